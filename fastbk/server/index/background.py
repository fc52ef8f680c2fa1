"""The index's background thread: merges, recounts, compactions, scrubbing, a slice at a time.

It writes with a disk of its own and commits nothing: what is written is handed to the flush thread. Of the tasks that
may go on the one with the lowest priority number is given the next slice, so a merge never waits behind a
compaction. A slice is some milliseconds of work, or some ten, nearly all of it in C without the interpreter lock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fastbk.native.process import lower_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.store import Store
    from fastbk.server.index.pacing import TokenBucket

MERGE, RECOUNT, COMPACTION, SCRUB = range(4)
"""Priorities."""
WAIT_MAX_S = 1.0
"""A task that has to wait longer is looked at again by then: rates change."""


class Plan(Protocol):
    """What a task does, in slices."""

    def step(self, store: Store, /) -> int:
        """Do a slice; return the bytes that were read and written, 0 when it is done. Raises OSError, Error."""

    def abandon(self) -> None:
        """Let files and memory go; harmless when it is done."""


@dataclass(slots=True)
class Task:
    """A plan, and how it is run."""

    name: str
    """Of its result."""
    priority: int
    plan: Plan
    bucket: TokenBucket
    is_unpaced: Callable[[], bool] = lambda: False
    """Whether it must not be held back now."""
    is_stopped: bool = False
    """Set by anyone: it ends with `TaskStopped` at the next slice."""
    not_before_s: float = field(default=0.0, compare=False)

    def slice(self, store: Store, now_s: float) -> bool:
        """Do a slice; return whether it is done. Raises what the plan does."""
        if self.is_stopped:
            raise TaskStopped(self.name)
        size_bytes = self.plan.step(store)
        if not size_bytes:
            return True
        wait_s = self.bucket.take(size_bytes)
        self.not_before_s = now_s + (0.0 if self.is_unpaced() else min(wait_s, WAIT_MAX_S))
        return False


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """The result of a task that did not get to its end; what it held is let go."""

    task: Task
    error: Exception


class TaskStopped(Exception):
    """Somebody asked for it."""


def run_to_its_end(task: Task, store: Store) -> object:
    """Do all slices at once, in this thread; return the task or TaskFailed."""
    try:
        while not task.slice(store, 0.0):
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

    def __init__(self, store: Store, post: Callable[[str, object], None]) -> None:
        """Start it.

        Args:
            store: with a background disk that nobody else writes with.
            post: takes (name, task or TaskFailed) to the main loop.
        """
        self._store = store
        self._post = post
        self._tasks: list[Task] = []
        self._change = threading.Condition()
        self._is_stopping = False
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
                now_s = time.monotonic()
                ready = [
                    task for task in self._tasks if task.not_before_s <= now_s or task.is_stopped
                ]
                if ready:
                    return min(ready, key=lambda task: task.priority)
                waits = [task.not_before_s - now_s for task in self._tasks]
                self._change.wait(min(waits, default=None))
            return None

    def _run(self) -> None:
        lower_thread()
        while (task := self._next()) is not None:
            result: object = task
            try:
                if not task.slice(self._store, time.monotonic()):
                    continue
            except Exception as error:  # noqa: BLE001 - handed to the main loop, which decides
                task.plan.abandon()
                result = TaskFailed(task, error)
            with self._change:
                self._tasks.remove(task)
            self._post(task.name, result)
