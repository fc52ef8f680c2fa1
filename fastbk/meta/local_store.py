"""What the stores of one machine share, memory and sqlite: leases of bookies, and watches that compare versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from fastbk.errors import MetadataConflict
from fastbk.meta.api import BookieRegistration
from fastbk.meta.polling_watches import Subject, Watcher, WatchHandle
from fastbk.meta.records import children_subject, record_subject
from fastbk.model.ids import BookieId, LedgerId

S_contra = TypeVar("S_contra", contravariant=True)
S = TypeVar("S")


class LeaseStore(Protocol[S_contra]):
    """What keeps leases. `session` tells one registration of a bookie from an earlier or later one."""

    def renew_lease(self, bookie_id: BookieId, session: S_contra, writable: bool | None) -> None:
        """Push a lease's end, and say whether normal adds are taken (None: as before)."""

    def end_lease(self, bookie_id: BookieId, session: S_contra) -> None:
        """Deregister if the lease is still `session`'s."""


class StoreLease(Generic[S]):
    """A lease while it is held."""

    def __init__(
        self, store: LeaseStore[S], bookie_id: BookieId, session: S, renew_interval_s: float
    ) -> None:
        self.renew_interval_s = renew_interval_s
        self._store = store
        self._bookie_id = bookie_id
        self._session = session
        self._closed = False

    def renew(self) -> None:
        """Push the end of the lease."""
        self._store.renew_lease(self._bookie_id, self._session, None)

    def set_writable(self, writable: bool) -> None:
        """Say whether normal adds are taken."""
        self._store.renew_lease(self._bookie_id, self._session, writable)

    def close(self) -> None:
        """Deregister."""
        if not self._closed:
            self._closed = True
            self._store.end_lease(self._bookie_id, self._session)


class LocalRecords(ABC):
    """Records whose changes a watcher finds by comparing."""

    def __init__(self, watcher: Callable[[], Watcher]) -> None:
        self._watcher = watcher

    @abstractmethod
    def version_of(self, path: str) -> int | None:
        """Return a record's version, None if there is none."""

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Return the names below."""

    def watch(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of a record."""
        return self._watcher().add(record_subject(path), callback)

    def watch_children(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report names that are added or removed."""
        return self._watcher().add(children_subject(path), callback)


class LocalStore(ABC):
    """A store whose changes a watcher finds by comparing."""

    records: LocalRecords
    _watcher: Watcher

    @abstractmethod
    def list_bookies(self) -> Sequence[BookieRegistration]:
        """Return the live bookies."""

    @abstractmethod
    def _ledger_version(self, ledger_id: LedgerId) -> object:
        """Return a ledger's version, None if there is none."""

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[LedgerId], None]
    ) -> WatchHandle:
        """Report changes of one ledger."""
        return self._watcher.add(ledger_id, lambda: callback(ledger_id))

    def watch_bookies(self, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of the set of live bookies; a lease that runs out is one."""
        return self._watcher.add(None, callback)

    def _snapshot(self, subjects: list[Subject]) -> dict[Subject, object]:
        return {subject: self._state_of(subject) for subject in subjects}

    def _state_of(self, subject: Subject) -> object:
        if subject is None:
            return [(one.service, one.writable) for one in self.list_bookies()]
        if isinstance(subject, int):
            return self._ledger_version(subject)
        kind, path = subject[0], subject[1:]
        return self.records.version_of(path) if kind == "=" else self.records.children(path)


def identity_conflict(bookie_id: BookieId) -> MetadataConflict:
    """Return the error of a change of an identity that is not at the expected version."""
    return MetadataConflict(
        f"the identity of bookie {bookie_id} was changed by somebody else: read it again"
    )
