"""Who watches what, for all metadata stores: subjects, the handles of those who watch them, and what was seen last."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

from fastbk.model.ids import LedgerId
from fastbk.observe.library_log import LibraryLog

# text: of records (`fastbk.meta.records`); None: the set of bookies
Subject = LedgerId | str | None
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


class Subscriptions:
    """The handles by subject, and what was seen of each. Its owner's lock guards it.

    Attributes:
        seen: what was seen last of each subject that has a handle.
    """

    def __init__(self) -> None:
        self.seen: dict[Subject, object] = {}
        self._handles: dict[Subject, dict[Hashable, WatchHandle]] = {}

    def __bool__(self) -> bool:
        return bool(self._handles)

    def add(self, handle: WatchHandle, now: object) -> None:
        """Take a handle; `now`: what is seen of its subject."""
        # A handle that is there already may still have to tell of an older state: leave what was seen.
        self.seen.setdefault(handle.subject, now)
        self._handles.setdefault(handle.subject, {})[id(handle)] = handle

    def remove(self, handle: WatchHandle) -> None:
        """Forget a handle. A second time does nothing."""
        handles = self._handles.get(handle.subject, {})
        handles.pop(id(handle), None)
        if not handles:
            self._handles.pop(handle.subject, None)
            self.seen.pop(handle.subject, None)

    def all(self) -> list[WatchHandle]:
        """Return all handles."""
        return [handle for handles in self._handles.values() for handle in handles.values()]

    def changed(self, subject: Subject, now: object) -> list[WatchHandle]:
        """Note what is seen of a subject; return the handles to notify: none where it was seen before."""
        if subject not in self.seen or self.seen[subject] == now:
            return []
        self.seen[subject] = now
        return list(self._handles[subject].values())
