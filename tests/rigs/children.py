"""Work in a forked child: what it holds, files and locks, goes with it, as with a process that dies."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastbk.native.process import die_with_parent

T = TypeVar("T")
READ_BYTES = 1 << 20


class ChildFailed(Exception):
    """The child raised something, or died; the text says what."""


@dataclass
class Child(Generic[T]):
    """A forked child at work."""

    pid: int
    reading: int

    def result(self, timeout_s: float) -> T:
        """Wait for what `work` returns. Raises ChildFailed, also after `timeout_s`. To be called once."""
        try:
            answer = _read_all(self.reading, timeout_s)
        finally:
            os.close(self.reading)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if not answer:
            raise ChildFailed("the child died or took too long")
        is_good, value = pickle.loads(answer)
        if not is_good:
            raise ChildFailed(value)
        return value  # type: ignore[no-any-return]


def start_child(work: Callable[[], T]) -> Child[T]:
    """Fork and run `work` there; what it returns is pickled."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # other threads' locks: the child takes none
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()  # else it would go on with folders that the next run takes for its own
            os.close(reading)
            _answer(work, writing)
        finally:
            os._exit(0)
    os.close(writing)
    return Child(pid, reading)


def in_child(work: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Fork, run `work`, and return what it returns. Raises ChildFailed, also after `timeout_s`."""
    return start_child(work).result(timeout_s)


def _answer(work: Callable[[], object], writing: int) -> None:
    try:
        answer = pickle.dumps((True, work()))
    except BaseException:  # whatever it is, the parent has to hear of it
        answer = pickle.dumps((False, traceback.format_exc(limit=-4)))
    with open(writing, "wb") as file:
        file.write(answer)


def _read_all(reading: int, timeout_s: float) -> bytes:
    """Read to the end; nothing when it does not come in time."""
    end_s = time.monotonic() + timeout_s
    parts = []
    while True:
        ready, _, _ = select.select([reading], [], [], max(end_s - time.monotonic(), 0.0))
        if not ready:
            return b""
        part = os.read(reading, READ_BYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)
