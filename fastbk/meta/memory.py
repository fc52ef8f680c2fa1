"""A metadata store in the memory of one process, for tests and simulation.

Stores opened by the same name (`memory:name`) share their records while at least one of them is open. The clock
can be handed in, so that leases run out when a test says so.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastbk.errors import ClientClosed, MetadataConflict, NoSuchLedger
from fastbk.meta.api import (
    LIST_PAGE_COUNT,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    VersionedIdentity,
    VersionedLedger,
    deleted_before,
)
from fastbk.meta.hold import HOLD_PATH, raise_if_held
from fastbk.meta.local_store import LocalStore, StoreLease, identity_conflict
from fastbk.meta.memory_records import KeptRecords, MemoryRecords
from fastbk.meta.polling_watches import Watcher
from fastbk.meta.replica_marks import ReplicaMarks
from fastbk.model.ids import BookieId, LedgerId, check_bookie_id, check_ledger_id
from fastbk.model.ledger import LedgerMetadata

LEASE_S = 10.0
WATCH_INTERVAL_S = 0.01


@dataclass(slots=True)
class _Registered:
    session: object
    service: BookieService
    writable: bool
    expires_s: float


@dataclass(slots=True)
class _Records:
    lock: threading.RLock = field(default_factory=threading.RLock)
    instance_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    next_ledger_id: int = 0
    # Metadata is kept as bytes, so that what a test reads back has been through the format.
    ledgers: dict[LedgerId, tuple[bytes, int]] = field(default_factory=dict)
    deleted: set[LedgerId] = field(default_factory=set)
    identities: dict[BookieId, VersionedIdentity] = field(default_factory=dict)
    bookies: dict[BookieId, _Registered] = field(default_factory=dict)
    users: int = 0
    records: KeptRecords = field(init=False)

    def __post_init__(self) -> None:
        self.records = KeptRecords(self.lock)


_shared: dict[str, _Records] = {}
_shared_lock = threading.Lock()


class MemoryStore(LocalStore):
    """A `MetadataStore` without a file. See `fastbk.meta.api`."""

    def __init__(
        self,
        name: str = "",
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uri = f"memory:{name}"
        self._name = name
        self._lease_s = lease_s
        self._clock = clock
        self._closed = False
        with _shared_lock:
            self._records = _shared.setdefault(name, _Records())
            self._records.users += 1
        self._watcher = Watcher(self._snapshot, WATCH_INTERVAL_S)
        self.records: MemoryRecords = MemoryRecords(
            self._records.records, lambda: self._closed, lambda: self._watcher
        )
        self.marks = ReplicaMarks(self.records)

    def _open(self) -> _Records:
        if self._closed:
            raise ClientClosed("this metadata store is closed")
        return self._records

    def instance_id(self) -> str:
        """Return the cluster's id."""
        return self._open().instance_id

    def next_ledger_id(self) -> LedgerId:
        """Draw the next ledger id."""
        records = self._open()
        with records.lock:
            records.next_ledger_id += 1
            return records.next_ledger_id - 1

    def highest_drawn_id(self) -> LedgerId:
        """Return the last id drawn, or a higher one that was chosen."""
        return self._open().next_ledger_id - 1

    def move_ids_above(self, ledger_id: LedgerId) -> None:
        """Move the counter (INV-M3)."""
        records = self._open()
        with records.lock:
            records.next_ledger_id = max(records.next_ledger_id, ledger_id + 1)

    def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> int:
        """Store a new ledger; its version is 0."""
        check_ledger_id(ledger_id)
        records = self._open()
        with records.lock:
            if ledger_id in records.ledgers:
                raise MetadataConflict(
                    f"ledger {ledger_id} exists already: choose another id", ledger_id=ledger_id
                )
            if ledger_id in records.deleted:
                raise deleted_before(ledger_id)
            records.ledgers[ledger_id] = (metadata.to_bytes(), 0)
            if ledger_id < 2**62:
                records.next_ledger_id = max(records.next_ledger_id, ledger_id + 1)
            return 0

    def _find(
        self, records: _Records, ledger_id: LedgerId, version: int | None
    ) -> tuple[bytes, int]:
        found = records.ledgers.get(ledger_id)
        if found is None:
            raise NoSuchLedger(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
        if version is not None and found[1] != version:
            raise MetadataConflict(
                f"ledger {ledger_id} was changed by somebody else: read it again",
                ledger_id=ledger_id,
            )
        return found

    def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata and version."""
        raw, version = self._find(self._open(), ledger_id, None)
        return VersionedLedger(LedgerMetadata.from_bytes(raw), version)

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[VersionedLedger | None]:
        """Return several ledgers' metadata."""
        ledgers = self._open().ledgers
        found = [ledgers.get(ledger_id) for ledger_id in ledger_ids]
        return [
            None if one is None else VersionedLedger(LedgerMetadata.from_bytes(one[0]), one[1])
            for one in found
        ]

    def update_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> int:
        """Compare-and-set on `version` (INV-M1)."""
        records = self._open()
        with records.lock:
            self._find(records, ledger_id, version)
            records.ledgers[ledger_id] = (metadata.to_bytes(), version + 1)
            return version + 1

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Remove a ledger."""
        records = self._open()
        with records.lock:
            hold = records.records.values.get(HOLD_PATH)
            raise_if_held(None if hold is None else hold.value)
            self._find(records, ledger_id, version)
            del records.ledgers[ledger_id]
            records.deleted.add(ledger_id)

    def list_ledgers(
        self, after: LedgerId = -1, count_max: int = LIST_PAGE_COUNT
    ) -> list[LedgerId]:
        """Return one page of ids."""
        records = self._open()
        with records.lock:
            return sorted(one for one in records.ledgers if one > after)[:count_max]

    def register_bookie(self, service: BookieService, *, writable: bool) -> StoreLease[object]:
        """Announce a bookie, taking over a lease of the same incarnation."""
        check_bookie_id(service.bookie_id)
        records = self._open()
        session = object()
        with records.lock:
            held = records.bookies.get(service.bookie_id)
            if (
                held is not None
                and held.expires_s > self._clock()
                and held.service.incarnation != service.incarnation
            ):
                raise MetadataConflict(
                    f"bookie id {service.bookie_id} is registered with other data"
                    f" (incarnation {held.service.incarnation}); stop that bookie"
                )
            records.bookies[service.bookie_id] = _Registered(
                session, service, writable, self._clock() + self._lease_s
            )
        return StoreLease(self, service.bookie_id, session, self._lease_s / 3)

    def renew_lease(self, bookie_id: BookieId, session: object, writable: bool | None) -> None:
        """Push a lease's end; used by `StoreLease`."""
        records = self._open()
        with records.lock:
            held = records.bookies.get(bookie_id)
            if held is None or held.session is not session:
                raise MetadataConflict(
                    f"another process holds the registration of bookie {bookie_id}"
                )
            held.expires_s = self._clock() + self._lease_s
            if writable is not None:
                held.writable = writable

    def end_lease(self, bookie_id: BookieId, session: object) -> None:
        """Deregister if the lease is still `session`'s; used by `StoreLease`."""
        records = self._open()
        with records.lock:
            held = records.bookies.get(bookie_id)
            if held is not None and held.session is session:
                del records.bookies[bookie_id]

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the live bookies."""
        records = self._open()
        with records.lock:
            return [
                BookieRegistration(held.service, held.writable)
                for _, held in sorted(records.bookies.items())
                if held.expires_s > self._clock()
            ]

    def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Return a bookie's identity."""
        return self._open().identities.get(bookie_id)

    def foreign_cookie(self, bookie_id: BookieId) -> bytes | None:
        """Return None: no other system's bookies are here."""
        return None

    def write_identity(
        self,
        identity: BookieIdentity,
        version: int | None,
        *,
        replaced_cookie: bytes | None = None,
    ) -> int:
        """Create or compare-and-set an identity."""
        check_bookie_id(identity.bookie_id)
        records = self._open()
        with records.lock:
            self._check_identity(records, identity.bookie_id, version)
            fresh = 0 if version is None else version + 1
            records.identities[identity.bookie_id] = VersionedIdentity(identity, fresh)
            return fresh

    def delete_identity(self, bookie_id: BookieId, version: int) -> None:
        """Forget an identity."""
        records = self._open()
        with records.lock:
            self._check_identity(records, bookie_id, version)
            del records.identities[bookie_id]

    @staticmethod
    def _check_identity(records: _Records, bookie_id: BookieId, version: int | None) -> None:
        held = records.identities.get(bookie_id)
        if (None if held is None else held.version) != version:
            raise identity_conflict(bookie_id)

    def list_identities(self) -> list[BookieIdentity]:
        """Return all identities."""
        records = self._open()
        with records.lock:
            return [held.identity for _, held in sorted(records.identities.items())]

    def _ledger_version(self, ledger_id: LedgerId) -> object:
        held = self._open().ledgers.get(ledger_id)
        return None if held is None else held[1]

    def close(self) -> None:
        """Let go of the records; the last user's close drops them."""
        self._watcher.close()
        with _shared_lock:
            if self._closed:
                return
            self._closed = True
            self._records.users -= 1
            if self._records.users == 0:
                _shared.pop(self._name, None)
