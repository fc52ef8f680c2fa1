"""Runs Java programs that print their cells and ask for bookies to be killed, and serves what they ask."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.compat.jars import JAVA_OPTIONS, Programs
from tests.compat.python_side import PythonSide
from tests.compat.results import Result
from tests.compat.rig import Cluster

CELLS_MAIN = "fastbk.compat.Cells"
RUN_S_MAX = 1500.0


def run_cells(
    column: str,
    cluster: Cluster,
    programs: Programs,
    arguments: Sequence[str],
    *,
    main_class: str = CELLS_MAIN,
    options: Sequence[str] = (),
    more_answers: Mapping[str, Callable[..., str]] | None = None,
    run_s_max: float = RUN_S_MAX,
) -> Iterator[Result]:
    """Run a program on a cluster and yield its cells as they end; ends it after `run_s_max`.

    options: of its Java, beside the usual ones. more_answers: to what it may ask, beside `_answers`.
    """
    started_s = time.monotonic()
    log_path = cluster.folder / f"{column.replace(' ', '').replace('>', '-')}.log"
    with open(log_path, "ab") as log, PythonSide(cluster.metadata_uri) as python:
        process = subprocess.Popen(
            programs.command(main_class, *arguments, options=(*JAVA_OPTIONS, *options)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
            process_group=0,
        )
        timer = threading.Timer(run_s_max, process.kill)
        timer.start()
        try:
            yield from serve(column, process, {**_answers(cluster, python), **(more_answers or {})})
        finally:
            timer.cancel()
            process.kill()
            process.wait()
    if process.returncode not in (0, 1, -signal.SIGKILL):
        reason = f"the program ended with {process.returncode}; see {log_path}"
        yield Result(column, main_class, "fail", time.monotonic() - started_s, reason)


def serve(
    column: str, process: subprocess.Popen[str], answers: dict[str, Callable[..., str]]
) -> Iterator[Result]:
    """Yield the cells that a running program prints, and answer what it asks, until it ends."""
    assert process.stdin is not None and process.stdout is not None
    current = 0
    for line in process.stdout:
        kind, *words = line.rstrip("\n").split("\t")
        if kind == "CELL":
            name, verdict, seconds, reason = words
            current += 1
            yield Result(column, name, verdict, float(seconds), reason)
        elif kind == "ASK":
            try:
                answer = "ok " + answers[words[0]](*words[1:])
            except Exception as error:
                answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
            # It may have ended while it was asked for: by its own timer, or by ours.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(answer + "\n")
                process.stdin.flush()
        else:
            print(line, end="", flush=True)
    if current == 0 and process.wait() != 0:
        yield Result(column, "start", "fail", 0.0, "the program ended without a cell")


def _answers(cluster: Cluster, python: PythonSide) -> dict[str, Callable[..., str]]:
    def kill(bookie_id: str) -> str:
        cluster.member(bookie_id).kill()
        return ""

    def start(bookie_id: str) -> str:
        cluster.restore(bookie_id)
        return ""

    def pause(bookie_id: str) -> str:
        cluster.member(bookie_id).signal(signal.SIGSTOP)
        return ""

    def resume(bookie_id: str) -> str:
        cluster.member(bookie_id).signal(signal.SIGCONT)
        return ""

    def read_only(bookie_id: str) -> str:
        cluster.set_read_only(bookie_id, is_read_only=True)
        return ""

    def writable(bookie_id: str) -> str:
        cluster.set_read_only(bookie_id, is_read_only=False)
        return ""

    return {
        "read-only": read_only,
        "writable": writable,
        "kill": kill,
        "start": start,
        "restore": start,
        "pause": pause,
        "resume": resume,
        "count-running": lambda: str(sum(member.is_running for member in cluster.members)),
        "kind": lambda bookie_id: cluster.member(bookie_id).kind,
        "python-read": python.read,
        "python-write": python.write,
        "python-append": python.append,
        "python-close": python.close_writer,
    }
