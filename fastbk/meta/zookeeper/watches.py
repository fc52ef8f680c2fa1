"""Watches that outlive what ZooKeeper's do not: each of those fires once, and is lost with its connection.

One thread looks again at whatever fired, and at everything when a connection is there again, arms anew in the same
request, and calls back when it sees something else than before. So a change while there was no connection is told
too (INV-M16), and several changes may be told as one.

The same thread has the server forget the watch of what nobody watches any more: it would keep it until it fires, and
what never changes or is gone never does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from fastbk.errors import ClientClosed, Error
from fastbk.meta.api import BookieRegistration, Subject, Subscriptions, WatchHandle, notify
from fastbk.meta.zookeeper.bookies import list_bookies
from fastbk.meta.zookeeper.paths import Paths
from fastbk.meta.zookeeper.session import Call, Session, unwatch_later
from fastbk.model.ids import LedgerId
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import jittered

_RETRY_S = 1.0
_log = LibraryLog("fastbk.meta")

Seen = tuple[int, int] | list[BookieRegistration] | list[str] | None


def node_at(path: str) -> str:
    """Return what a watch calls the node at an absolute path. No record's path begins with a slash."""
    return f"={path}"


def children_at(path: str) -> str:
    """Return what a watch calls the names below the node at an absolute path."""
    return f"/{path}"


class ZooKeeperWatches:
    """The watches of one session. See `fastbk.meta.api.MetadataStore`."""

    def __init__(
        self, session: Session, paths: Paths, ledger_path: Callable[[LedgerId], str]
    ) -> None:
        self._session = session
        self._paths = paths
        self._ledger_path = ledger_path
        self._wake = threading.Condition()
        self._fired: set[Subject] = set()
        self._beginning: Counter[Subject] = Counter()
        """What is looked at for a watch that begins: its handle is not there yet."""
        self._missed: set[Subject] = set()
        """What fired of these meanwhile, and was nobody's."""
        self._ended: set[LedgerId | str] = set()  # those whose last handle was closed
        self._subscriptions = Subscriptions()
        self._subjects_by_path: dict[str, Subject] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        session.on_connected(self._all_fired)

    def add(self, subject: Subject, callback: Callable[[], None]) -> WatchHandle:
        """Subscribe `callback` to changes of `subject` from now on. Raises MetadataUnavailable."""
        handle = WatchHandle(self, subject, callback)
        with self._wake:
            self._beginning[subject] += 1
            if subject is not None:
                self._subjects_by_path[self._key(subject)] = subject
        try:
            now = self._check(self._session.call("watch"), subject)
        except BaseException:
            with self._wake:
                self._end_beginning(subject)
                self._forget_unwatched(subject)
            raise
        with self._wake:
            has_missed = self._end_beginning(subject)
            if self._closed:
                raise ClientClosed("this metadata store is closed")
            self._subscriptions.add(handle, now)
            if subject is not None and self._key(subject) not in self._subjects_by_path:
                # The last other handle was closed while we looked, and what fired since was nobody's.
                self._subjects_by_path[self._key(subject)] = subject
                has_missed = True
            if has_missed:  # look again: what has fired is armed no more
                self._fired.add(subject)
                self._wake.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fastbk-zookeeper-watch", daemon=True
                )
                self._thread.start()
        return handle

    def _end_beginning(self, subject: Subject) -> bool:
        """Return whether what was looked at for a watch that begins has fired since."""
        has_missed = subject in self._missed
        self._beginning[subject] -= 1
        if not self._beginning[subject]:
            del self._beginning[subject]
            self._missed.discard(subject)
        return has_missed

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription."""
        with self._wake:
            self._subscriptions.remove(handle)
            self._forget_unwatched(handle.subject)

    def _forget_unwatched(self, subject: Subject) -> None:
        """Forget a subject without a handle. Whoever is about to watch it looks again."""
        if subject is not None and subject not in self._subscriptions.seen:
            found = self._subjects_by_path.pop(self._key(subject), None)
            if found is not None and self._thread is not None:
                self._ended.add(subject)
                self._wake.notify_all()

    def close(self) -> None:
        """End all subscriptions and the thread."""
        with self._wake:
            self._closed = True
            self._subscriptions = Subscriptions()
            self._wake.notify_all()

    # --- what kazoo calls --------------------------------------------------------------------------------------

    def _event(self, event: Any) -> None:  # noqa: ANN401 -- kazoo's
        """Note what fired. One method for all paths: kazoo keeps a set of these, so arming again adds nothing."""
        with self._wake:
            if event.path is None:
                return  # the connection went; what is watched is looked at when it is back
            found = [self._subjects_by_path.get(kind + event.path) for kind in "=/"]
            self._fired.update(one for one in found if one is not None)
            if found == [None, None]:
                self._fired.add(None)  # the bookies' folders
            self._wake.notify_all()

    def _all_fired(self) -> None:
        with self._wake:
            self._fired.update(self._subscriptions.seen, self._beginning)
            self._wake.notify_all()

    # --- looking -----------------------------------------------------------------------------------------------

    def _check(self, call: Call, subject: Subject) -> Seen:
        """Return what is there now, with watches on it."""
        if subject is None:
            return list_bookies(call, self._paths, self._event)
        path = self._path(subject)
        if isinstance(subject, str) and subject[0] == "/":
            return self._names(call, path)
        node = call.exists(path, self._event)
        return None if node is None else (node.created_zxid, node.version)

    def _names(self, call: Call, path: str) -> list[str] | None:
        names = call.children(path, self._event)
        if names is None and call.exists(path, self._event) is not None:
            names = call.children(path, self._event)  # it came between the two
        return names and sorted(names)

    def _path(self, subject: LedgerId | str) -> str:
        if isinstance(subject, str):
            return subject[1:] if subject[1] == "/" else f"{self._paths.records}/{subject[1:]}"
        return self._ledger_path(subject)

    def _key(self, subject: LedgerId | str) -> str:
        """Return what an event's path and kind lead to: a record's own changes, or what lies below it."""
        return ("/" if isinstance(subject, str) and subject[0] == "/" else "=") + self._path(
            subject
        )

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._fired or self._ended or self._closed)
                if self._closed:
                    return
                subjects = [
                    subject for subject in self._fired if subject in self._subscriptions.seen
                ]
                self._missed.update(self._fired & self._beginning.keys())
                self._fired.clear()
                ended = [one for one in self._ended if self._key(one) not in self._subjects_by_path]
                self._ended.clear()
            self._disarm(ended)
            for subject in subjects:
                try:
                    now = self._check(self._session.call("watch"), subject)
                except Error as error:
                    self._check_later(subject, error)
                    continue
                with self._wake:
                    changed = self._subscriptions.changed(subject, now)
                for handle in changed:
                    notify(handle)

    def _disarm(self, subjects: list[LedgerId | str]) -> None:
        """Have the server forget the watches of what nobody watched just now."""
        for subject in subjects:
            is_of_children = isinstance(subject, str) and subject[0] == "/"
            unwatch_later(self._session, self._path(subject), is_of_children=is_of_children)
        with self._wake:
            for subject in subjects:
                # One that began meanwhile may have been disarmed: it looks again, or is looked at again.
                if subject in self._subscriptions.seen:
                    self._fired.add(subject)
                else:
                    self._subjects_by_path.pop(self._key(subject), None)

    def _check_later(self, subject: Subject, error: Error) -> None:
        _log.debug("metadata.watch_waits", reason=str(error))
        with self._wake:
            if not self._closed:
                self._wake.wait(jittered(_RETRY_S))
                self._fired.add(subject)
