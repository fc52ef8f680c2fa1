"""Watches for stores that cannot push: a thread that compares what it sees with what it saw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fastbk.errors import ClientClosed, Error
from fastbk.meta.subscriptions import Subject, Subscriptions, WatchHandle, notify
from fastbk.observe.library_log import LibraryLog

_log = LibraryLog("fastbk.meta")


class Watcher:
    """Calls back when `look` gives another answer than before; its thread lives while there are watches.

    `look(subject)` returns anything comparable; it runs in the watcher's thread, and once in the caller's when a watch
    is added, so that no change after `add` returned is missed. `look_all` returns the same of several subjects, in
    their order, where that costs less. `mark` returns what changes with each change of any subject but the set of
    bookies, whose leases also end by the clock: while it stays the same, nothing else is looked at.
    """

    def __init__(
        self,
        look: Callable[[Subject], object],
        interval_s: float,
        look_all: Callable[[Sequence[Subject]], Sequence[object]] | None = None,
        mark: Callable[[], object] | None = None,
    ) -> None:
        self._look = look
        self._mark = mark
        self._look_all = look_all or (lambda subjects: [look(one) for one in subjects])
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._subscriptions = Subscriptions()
        self._stop: threading.Event | None = None

    def add(self, subject: Subject, callback: Callable[[], None]) -> WatchHandle:
        """Subscribe `callback` to changes of `subject`."""
        handle = WatchHandle(self, subject, callback)
        now = self._look(subject)
        with self._lock:
            self._subscriptions.add(handle, now)
            if self._stop is None:
                self._stop = threading.Event()
                threading.Thread(
                    target=self._run, args=(self._stop,), name="fastbk-watch", daemon=True
                ).start()
        return handle

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription; the last one ends the thread."""
        with self._lock:
            self._subscriptions.remove(handle)
            if not self._subscriptions and self._stop is not None:
                self._stop.set()
                self._stop = None

    def close(self) -> None:
        """End all subscriptions."""
        with self._lock:
            handles = self._subscriptions.all()
        for handle in handles:
            self.remove(handle)

    def _run(self, stop: threading.Event) -> None:
        mark: object = None
        while not stop.wait(self._interval_s):
            try:
                # Before anything is looked at: what changes meanwhile is looked at the next time.
                before, mark = mark, None if self._mark is None else self._mark()
                is_same = mark is not None and mark == before
                with self._lock:
                    subjects = [
                        one for one in self._subscriptions.seen if one is None or not is_same
                    ]
                now = dict(zip(subjects, self._look_all(subjects), strict=True))
            except ClientClosed:
                return  # a watch that began while the store was closed
            except Error as error:
                # The store is away; what changed meanwhile is told when it is back.
                mark = None
                _log.debug("metadata.watch_waits", reason=str(error))
                continue
            with self._lock:
                changed = [
                    one
                    for subject in now
                    for one in self._subscriptions.changed(subject, now[subject])
                ]
            for handle in changed:
                notify(handle)
