"""The index's two threads beside its loop, both nearly always in C or waiting for a disk.

The flush thread does one job after the other, and alone commits manifests and unlinks files.

The background thread does merges, recounts, compactions and scrubbing, a slice of some milliseconds at a time. It
writes with a disk of its own and commits nothing: what is written is handed to the flush thread. Of the tasks that may
go on the one with the lowest priority number is given the next slice, so a merge never waits behind a compaction.

Decision 49.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Protocol

import msgspec

from fastbk.limits import RateLimit
from fastbk.native.process import lower_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.store import Store

MERGE, RECOUNT, COMPACTION, SCRUB = range(4)
"""Priorities."""
WAIT_MAX_S = 1.0
"""A task that has to wait longer is looked at by then: it may be stopped, or be in a hurry now."""
BURST_S = 0.1
"""What was not used for so long may be used at once."""
DEBT_MAX_S = 60.0
"""No slice costs more: a pass over all locations may read far more than what it is for."""


class Plan(Protocol):
    """What a task does, in slices."""

    def step(self, store: Store, /) -> int:
        """Do a slice; return the bytes that were read and written, 0 when it is done. Raises OSError, Error."""

    def abandon(self) -> None:
        """Let files and memory go; harmless when it is done."""


class Task(msgspec.Struct, eq=False):
    """A plan, and how it is run."""

    name: str
    """The name of the job's result."""
    priority: int
    plan: Plan
    bucket: RateLimit
    is_unpaced: Callable[[], bool] = lambda: False
    """Whether it must not be held back now."""
    is_stopped: bool = False
    """Set by anyone: it ends with `TaskStopped` at the next slice."""
    turn: int = 0
    """When it was given its last slice, by the count of all slices."""

    @staticmethod
    def limit(bytes_per_s: float, clock_s: Callable[[], float] | None = None) -> RateLimit:
        """Return the limit of one kind of background work. `bytes_per_s`: more than 0."""
        return RateLimit(bytes_per_s, clock_s=clock_s, burst_s=BURST_S, debt_max_s=DEBT_MAX_S)

    def slice(self, store: Store) -> bool:
        """Do a slice; return whether it is done. Raises what the plan does."""
        if self.is_stopped:
            raise TaskStopped(self.name)
        size_bytes = self.plan.step(store)
        if not size_bytes:
            return True
        self.bucket.take(size_bytes)
        return False

    def wait_s(self) -> float:
        """Return how long it has to wait for its next slice."""
        return 0.0 if self.is_stopped or self.is_unpaced() else self.bucket.wait_s()


class TaskFailed(msgspec.Struct, frozen=True):
    """The result of a task that did not get to its end; what it held is let go."""

    task: Task
    error: Exception


class TaskStopped(Exception):
    """Somebody asked for it."""


def run_to_its_end(task: Task, store: Store) -> object:
    """Do all slices at once, in this thread; return the task or TaskFailed."""
    try:
        while not task.slice(store):
            pass
    except Exception as error:  # noqa: BLE001 - handed to the main loop, which decides
        task.plan.abandon()
        return TaskFailed(task, error)
    return task


class DirectBackground:
    """Does each task at once, in the caller's thread: for tests that want one order of everything."""

    def __init__(self, store: Store, post: Callable[[str, object], None]) -> None:
        self._store = store
        self._post = post

    def submit(self, task: Task) -> None:
        """Do it."""
        self._post(task.name, run_to_its_end(task, self._store))

    def stop(self) -> None:
        """Do nothing."""


class Background:
    """The thread."""

    def __init__(
        self,
        store: Store,
        post: Callable[[str, object], None],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Start it.

        Args:
            store: with a background disk that nobody else writes with.
            post: takes (name, task or TaskFailed) to the main loop.
            beat: called before and after each slice, in the thread.
        """
        self._store = store
        self._post = post
        self._tasks: list[Task] = []
        self._change = threading.Condition()
        self._is_stopping = False
        self._turns = 0
        self._beat = beat
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Have it done."""
        with self._change:
            self._tasks.append(task)
            self._change.notify()

    def stop(self) -> None:
        """End after the slice that is under way; what is not done is abandoned."""
        with self._change:
            self._is_stopping = True
            self._change.notify()
        self._thread.join()
        for task in self._tasks:
            task.plan.abandon()

    def _next(self) -> Task | None:
        """Wait for a task that may go on; None to stop."""
        with self._change:
            while not self._is_stopping:
                waits = [(task.wait_s(), task) for task in self._tasks]
                ready = [task for wait_s, task in waits if wait_s <= 0]
                if ready:
                    # Of equals the one that has waited longest: they may share a bucket.
                    chosen = min(ready, key=lambda task: (task.priority, task.turn))
                    self._turns += 1
                    chosen.turn = self._turns
                    return chosen
                least_s = min((wait_s for wait_s, _ in waits), default=None)
                self._change.wait(None if least_s is None else min(least_s, WAIT_MAX_S))
            return None

    def _run(self) -> None:
        lower_thread()
        while (task := self._next()) is not None:
            result: object = task
            self._beat()
            try:
                if not task.slice(self._store):
                    continue
            except Exception as error:  # noqa: BLE001 - handed to the main loop, which decides
                task.plan.abandon()
                result = TaskFailed(task, error)
            finally:
                self._beat()
            with self._change:
                self._tasks.remove(task)
            self._post(task.name, result)


class FlushThread:
    """Runs jobs in order, in one thread: the only one that commits manifests and unlinks files."""

    def __init__(self, beat: Callable[[], None] = lambda: None) -> None:
        """Start it. `beat`: called before and after each job, in the thread."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when a result waits."""
        self._beat = beat
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
            self._beat()
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - handed to the main loop, which decides
                result = error
            self._beat()
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
