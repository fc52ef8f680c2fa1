"""The registration of one bookie in a store of ours: a row or record that runs out unless it is renewed."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from fastbk.model.ids import BookieId

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
