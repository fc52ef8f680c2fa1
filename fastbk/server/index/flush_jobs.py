"""The flush thread: it does one job after the other, and nearly all of its time is spent in C or waiting for a disk."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class FlushThread:
    """Runs jobs in order, in one thread: the only one that commits manifests and unlinks files."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when a result waits."""
        self.beat: Callable[[], None] = lambda: None
        """Called before and after each job, in the thread."""
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], object]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    def submit(self, name: str, job: Callable[[], object]) -> None:
        """Queue a job."""
        self._jobs.put((name, job))

    def post(self, name: str, result: object) -> None:
        """Put a result of another thread among those of jobs. Any thread."""
        self._results.put((name, result))
        os.eventfd_write(self.fd, 1)

    def results(self) -> list[tuple[str, object]]:
        """Return names and results of jobs that are done; an exception is a result."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def stop(self) -> None:
        """End after the jobs that are queued."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self.fd)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            name, job = item
            result: object
            beat = self.beat
            beat()
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - handed to the main loop, which decides
                result = error
            beat()
            self.post(name, result)


class DirectJobs:
    """Does each job at once, in the caller's thread: for tests that want one order of everything."""

    fd = -1

    def __init__(self) -> None:
        self._results: list[tuple[str, object]] = []

    def submit(self, name: str, job: Callable[[], object]) -> None:
        """Do it."""
        try:
            self._results.append((name, job()))
        except Exception as error:  # noqa: BLE001 - as in FlushThread
            self._results.append((name, error))

    def post(self, name: str, result: object) -> None:
        """Put a result among those of jobs."""
        self._results.append((name, result))

    def results(self) -> list[tuple[str, object]]:
        """Return what was done since the last call."""
        found, self._results = self._results, []
        return found

    def stop(self) -> None:
        """Do nothing."""
