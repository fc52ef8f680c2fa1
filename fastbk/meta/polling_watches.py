"""Watches for stores that cannot push: a thread that compares what it sees with what it saw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from fastbk.errors import Error
from fastbk.model.ids import LedgerId
from fastbk.observe.library_log import LibraryLog

Subject = (
    LedgerId | str | None
)  # text: of records (`fastbk.meta.records`); None: the set of bookies
_log = LibraryLog("fastbk.meta")


class Watching(Protocol):
    """What hands out subscriptions."""

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription."""


class WatchHandle:
    """One subscription."""

    def __init__(self, watcher: Watching, subject: Subject, callback: Callable[[], None]) -> None:
        self.subject = subject
        self.callback = callback
        self._watcher = watcher

    def close(self) -> None:
        """End the subscription."""
        self._watcher.remove(self)


def notify(handle: WatchHandle) -> None:
    """Call back; one callback's fault must not end the watches of all others."""
    try:
        handle.callback()
    except Exception as error:  # noqa: BLE001 -- it is the application's
        _log.error("metadata.watch_callback_failed", reason=repr(error), failed=error)


class Watcher:
    """Calls back when `look` gives another answer than before; its thread lives while there are watches.

    `look(subject)` returns anything comparable; it runs in the watcher's thread, and once in the caller's when a watch
    is added, so that no change after `add` returned is missed. `look_all` returns the same of several subjects, in
    their order, where that costs less.
    """

    def __init__(
        self,
        look: Callable[[Subject], object],
        interval_s: float,
        look_all: Callable[[Sequence[Subject]], Sequence[object]] | None = None,
    ) -> None:
        self._look = look
        self._look_all = look_all or (lambda subjects: [look(one) for one in subjects])
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._handles: list[WatchHandle] = []
        self._seen: dict[Subject, object] = {}
        self._stop: threading.Event | None = None

    def add(self, subject: Subject, callback: Callable[[], None]) -> WatchHandle:
        """Subscribe `callback` to changes of `subject`."""
        handle = WatchHandle(self, subject, callback)
        now = self._look(subject)
        with self._lock:
            # A watch that is there already may still have to tell of an older state: leave what it saw.
            self._seen.setdefault(subject, now)
            self._handles.append(handle)
            if self._stop is None:
                self._stop = threading.Event()
                threading.Thread(
                    target=self._run, args=(self._stop,), name="fastbk-watch", daemon=True
                ).start()
        return handle

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription; the last one ends the thread."""
        with self._lock:
            if handle in self._handles:
                self._handles.remove(handle)
            if all(other.subject != handle.subject for other in self._handles):
                self._seen.pop(handle.subject, None)
            if not self._handles and self._stop is not None:
                self._stop.set()
                self._stop = None

    def close(self) -> None:
        """End all subscriptions."""
        with self._lock:
            handles = list(self._handles)
        for handle in handles:
            self.remove(handle)

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval_s):
            with self._lock:
                subjects = list(self._seen)
            try:
                now = dict(zip(subjects, self._look_all(subjects), strict=True))
            except Error as error:
                # The store is away or closed; what changed meanwhile is told when it is back.
                _log.debug("metadata.watch_waits", reason=str(error))
                continue
            for handle in self._changed(now):
                notify(handle)

    def _changed(self, now: dict[Subject, object]) -> list[WatchHandle]:
        changed = []
        with self._lock:
            for subject, value in now.items():
                if subject in self._seen and self._seen[subject] != value:
                    self._seen[subject] = value
                    changed += [one for one in self._handles if one.subject == subject]
        return changed
