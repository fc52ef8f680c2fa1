"""Commands of `fastbk`, shown as a person would type them, and run."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.__main__ import Screen
from demo.pipeline.spark_query import again_if_unstarted
from fastbk.cli.__main__ import main as fastbk_cli
from fastbk.errors import StorageError

COMMAND_S = 300.0
SHOWN_MAX = 160


@dataclass(slots=True)
class Appending:
    """An append that runs: `head | fastbk stream append`, or without head."""

    shown: str
    process: subprocess.Popen[str]
    head: subprocess.Popen[bytes] | None
    began_s: float

    def end(self) -> dict[str, Any]:
        """Wait for its end, and return its answer. Raises StorageError unless that is a good one."""
        try:
            out, _ = self.process.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired as error:
            raise StorageError(f"{self.shown}: not done within {COMMAND_S:g} s") from error
        finally:
            self.kill()
        if self.process.returncode != 0:
            raise StorageError(f"{self.shown}: ended with {self.process.returncode}")
        answer: dict[str, Any] = json.loads(out)
        return answer

    def kill(self) -> None:
        """End it, if it still runs."""
        for one in (self.head, self.process):
            if one is not None and one.poll() is None:
                one.kill()
                one.wait()


class Commands:
    """Shows and runs them; they find the cluster by FASTBK_METADATA."""

    def __init__(self, screen: Screen, metadata_uri: str) -> None:
        self._screen = screen
        os.environ["FASTBK_METADATA"] = metadata_uri

    def append(self, stream: str, path: Path, first: int | None = None) -> Appending:
        """Begin to append the lines of a file, or its first ones, to a stream, which is made if it is not there."""
        words = ["stream", "append", stream, "--json-lines", "--resume", "--create", "--json"]
        shown = _typed(words)
        if first is None:
            words.insert(3, str(path))
            shown = _typed(words)
        else:
            shown = f"head -n {first} {_beside(path)} | {shown}"
        self._screen.say(f"$ {shown}")
        head = None
        if first is not None:
            head = subprocess.Popen(["head", "-n", str(first), str(path)], stdout=subprocess.PIPE)
        process = subprocess.Popen(
            [sys.executable, "-m", "fastbk.cli", *words],
            stdin=subprocess.DEVNULL if head is None else head.stdout,
            stdout=subprocess.PIPE,
            text=True,
        )
        if head is not None and head.stdout is not None:
            head.stdout.close()
        return Appending(shown, process, head, time.monotonic())

    def run(self, *words: str, good: Sequence[int] = (0,)) -> tuple[int, Any, float]:
        """Run a command in a process of its own; return its exit code, answer and seconds. StorageError: it failed."""
        self._screen.say(f"$ {_typed(words)}")
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "fastbk.cli", *words],
                stdout=subprocess.PIPE,
                text=True,
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StorageError(f"{_typed(words)}: not done within {COMMAND_S:g} s") from error
        return self._answer(words, done.returncode, done.stdout, good, began_s)

    def run_here(self, *words: str, good: Sequence[int] = (0,)) -> tuple[int, Any, float]:
        """The same in this process, for jobs on Spark: its Java machine runs here, and to start one takes seconds.

        They may be begun again, all of them.
        """
        self._screen.say(f"$ {_typed(words)}")
        began_s = time.monotonic()
        out = io.StringIO()
        with redirect_stdout(out):
            code = again_if_unstarted(lambda: fastbk_cli(list(words)))
        return self._answer(words, code, out.getvalue(), good, began_s)

    def _answer(
        self, words: Sequence[str], code: int, out: str, good: Sequence[int], began_s: float
    ) -> tuple[int, Any, float]:
        if code not in good:
            raise StorageError(f"{_typed(words)}: ended with {code}")
        lines = [json.loads(line) for line in out.splitlines() if line.strip()]
        answer = lines[0] if len(lines) == 1 else lines
        return code, answer, time.monotonic() - began_s


@contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Let what is written to stderr by this process and those it starts go to a file meanwhile."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _typed(words: Sequence[str]) -> str:
    text = shlex.join(["fastbk", *map(_beside, words)])
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]} ..."


def _beside(word: str | Path) -> str:
    """Return a path below this folder as it is called from here."""
    return str(word).removeprefix(f"{Path.cwd()}{os.sep}")
