"""Runs Java programs that print their cells and ask for bookies to be killed, and serves what they ask."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from tests.compat.jars import JAVA_OPTIONS, Programs
from tests.compat.python_side import PythonSide
from tests.compat.results import Result
from tests.compat.rig import Cluster

CELLS_MAIN = "fastbk.compat.Cells"
RUN_S_MAX = 1500.0
Answer = Callable[..., str | None]
"""What a program asks to be done; None and "" are the same."""


def run_cells(
    column: str,
    cluster: Cluster,
    programs: Programs,
    arguments: Sequence[str],
    *,
    main_class: str = CELLS_MAIN,
    options: Sequence[str] = (),
    more_answers: Mapping[str, Answer] | None = None,
    client_options: Mapping[str, object] | None = None,
    run_s_max: float = RUN_S_MAX,
) -> Iterator[Result]:
    """Run a program on a cluster and yield its cells as they end; ends it after `run_s_max`.

    options: of its Java, beside the usual ones. more_answers: to what it may ask, beside `_answers`. client_options:
    of the client in Python that it may ask for something.
    """
    started_s = time.monotonic()
    log_path = cluster.folder / f"{column.replace(' ', '').replace('>', '-')}.log"
    with open(log_path, "ab") as log, PythonSide(cluster.metadata_uri, client_options) as python:
        command = programs.command(main_class, *arguments, options=(*JAVA_OPTIONS, *options))
        with piped(command, log, run_s_max) as process:
            yield from serve(column, process, {**_answers(cluster, python), **(more_answers or {})})
    if process.returncode not in (0, 1, -signal.SIGKILL):
        reason = f"the program ended with {process.returncode}; see {log_path}"
        yield Result(column, main_class, "fail", time.monotonic() - started_s, reason)


@contextlib.contextmanager
def piped(
    command: Sequence[str],
    log: IO[bytes],
    seconds_max: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Give a running program with pipes; it is killed at the end, or after `seconds_max`."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        bufsize=1,
        cwd=folder,
        env=environment,
        process_group=0,
    )
    timer = threading.Timer(seconds_max, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def serve(
    column: str, process: subprocess.Popen[str], answers: dict[str, Answer]
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
                answer = f"ok {answers[words[0]](*words[1:]) or ''}"
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


def _answers(cluster: Cluster, python: PythonSide) -> dict[str, Answer]:
    def send(number: signal.Signals) -> Answer:
        return lambda bookie_id: cluster.member(bookie_id).signal(number)

    def set_read_only(is_read_only: bool) -> Answer:
        return lambda bookie_id: cluster.set_read_only(bookie_id, is_read_only=is_read_only)

    return {
        "read-only": set_read_only(True),
        "writable": set_read_only(False),
        "kill": lambda bookie_id: cluster.member(bookie_id).kill(),
        "start": cluster.restore,
        "restore": cluster.restore,
        "pause": send(signal.SIGSTOP),
        "resume": send(signal.SIGCONT),
        "count-running": lambda: str(sum(member.is_running for member in cluster.members)),
        "kind": lambda bookie_id: cluster.member(bookie_id).kind,
        "append-lines": partial(_append_lines, cluster),
        "count-same-lines": partial(_count_same_lines, cluster),
        "python-read": python.read,
        "python-write": python.write,
        "python-append": python.append,
        "python-close": python.close_writer,
    }


def _append_lines(cluster: Cluster, file: str, stream: str) -> None:
    """Append a file's records to a stream, without those that it has."""
    where = ("--metadata", cluster.metadata_uri)
    cluster.fastbk("namespace", "create", stream.partition("/")[0], "--exist-ok", *where)
    cluster.fastbk("stream", "append", stream, file, "--json-lines", "--resume", "--create", *where)


def _count_same_lines(cluster: Cluster, file: str, stream: str) -> str:
    """Return how many records a stream has; raise if one is not the file's."""
    read = cluster.fastbk("stream", "read", stream, "--json", "--metadata", cluster.metadata_uri)
    found, wanted = (
        [_record(line) for line in text.splitlines()] for text in (read, Path(file).read_text())
    )
    if found != wanted:
        raise ValueError(f"{len(found)} records of {stream} are not the {len(wanted)} of {file}")
    return str(len(found))


def _record(line: str) -> tuple[bytes, int]:
    record = json.loads(line)
    text = record.get("payload")
    return base64.b64decode(record["payload_base64"]) if text is None else text.encode(), record[
        "txid"
    ]
