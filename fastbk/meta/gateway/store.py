"""The metadata store of clients that reach it by gateways only: `gateway://host:3182;host2`. See `fastbk.meta.api`.

It has what clients need: ledgers, records, marks and the list of bookies. Bookies, AutoRecovery and tools that repair a
cluster use the metadata store itself: what they need and this one lacks raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from fastbk.errors import ConfigError, MetadataUnavailable
from fastbk.meta.api import (
    LIST_PAGE_COUNT,
    BadIdentity,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    IdentityVersion,
    Lease,
    LedgerRead,
    VersionedIdentity,
    VersionedLedger,
    ledger_read,
    one_ledger,
    parse_service,
)
from fastbk.meta.gateway import messages
from fastbk.meta.gateway.calls import GatewayCalls
from fastbk.meta.gateway.messages import KEYS_MAX, ChangeRow, LedgerRow, RecordRow
from fastbk.meta.gateway.watches import GatewayWatches
from fastbk.meta.records import (
    Change,
    VersionedRecord,
    check_folder,
    check_path,
    children_subject,
    count_within,
    record_subject,
)
from fastbk.meta.replica_marks import LedgerMark, ReplicaMarks
from fastbk.meta.subscriptions import Subject, WatchHandle
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica, from_json, to_json
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions

if TYPE_CHECKING:
    from fastbk.meta.coordination import Coordination

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """How a client reaches gateways: the same as it reaches bookies by."""

    tls: TlsOptions | None
    credentials: Credentials | None

    @classmethod
    def from_environment(cls) -> GatewayAccess:
        """Return what FASTBK_TLS_... and FASTBK_TOKEN_FILE say. Raises ConfigError."""
        return cls(TlsOptions.from_environment(), Credentials.from_environment())


class Calls(Protocol):
    """What sends requests to gateways."""

    def call(self, request: messages.Request, kind: type[T]) -> T:
        """Return a request's result. Raises Error."""

    def close(self) -> None:
        """Close the connections."""


def open_gateway(servers: Sequence[str], access: GatewayAccess, timeout_s: float) -> GatewayStore:
    """Return the store behind some gateways, each as host:port. Nothing is sent yet. Raises ConfigError."""
    calls = GatewayCalls(servers, timeout_s, access.tls, access.credentials)
    return GatewayStore(f"{messages.SCHEME}://{';'.join(servers)}", calls, timeout_s)


class GatewayStore:
    """A `MetadataStore` behind gateways. Every call ends within about `timeout_s` seconds."""

    def __init__(self, uri: str, calls: Calls, timeout_s: float = 10.0) -> None:
        """`uri`: for messages. `calls`: how requests reach a gateway; they are closed with the store."""
        self.uri = uri
        self._timeout_ms = int(timeout_s * 1e3)
        self._calls = calls
        self._watches = GatewayWatches(self._states)
        self.records = GatewayRecords(self._calls, self._watches, self._timeout_ms)
        self.marks = GatewayMarks(self._calls, self.records, self._timeout_ms)

    @property
    def coordination(self) -> Coordination:
        """Raise ConfigError: processes that share repairs use the metadata store itself."""
        self._refuse("locks and switches of AutoRecovery")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{self.uri}: a gateway offers no {what}: give the URI of the metadata store behind it (`zk://...`), with"
            " the rights that this needs there"
        )

    # --- ledgers -----------------------------------------------------------------------------------------------

    def instance_id(self) -> str:
        """Return the cluster's id."""
        return self._calls.call(messages.InstanceId(self._timeout_ms), str)

    def next_ledger_id(self) -> LedgerId:
        """Draw the next ledger id."""
        return self._calls.call(messages.DrawId(self._timeout_ms), int)

    def highest_drawn_id(self) -> LedgerId:
        """Raise ConfigError."""
        self._refuse("counter of ledger ids")

    def move_ids_above(self, ledger_id: LedgerId) -> None:
        """Raise ConfigError."""
        self._refuse("counter of ledger ids")

    def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> int:
        """Store a new ledger. One with the same creation token is taken for ours when an answer was lost."""
        request = messages.CreateLedger(self._timeout_ms, ledger_id, metadata.to_bytes(), False)
        return self._calls.call(request, int)

    def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata and version."""
        return one_ledger(ledger_id, *self.read_ledgers([ledger_id]))

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRead]:
        """Return several ledgers' metadata."""
        found: list[LedgerRead] = []
        while len(found) < len(ledger_ids):
            some = tuple(ledger_ids[len(found) : len(found) + KEYS_MAX])
            rows = self._calls.call(
                messages.ReadLedgers(self._timeout_ms, some), list[LedgerRow | None]
            )
            found += [_ledger(*one) for one in zip(some, _some_of(rows), strict=False)]
        return found

    def update_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Compare-and-set on `version` (INV-M1). Raise ConfigError for a change that depends on a bookie's identity."""
        if if_identity is not None:
            self._refuse("repairs of ledgers")
        request = messages.UpdateLedger(
            self._timeout_ms, ledger_id, metadata.to_bytes(), version, False
        )
        return self._calls.call(request, int)

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Remove a ledger."""
        request = messages.DeleteLedger(self._timeout_ms, ledger_id, version, False)
        self._calls.call(request, type(None))

    def list_ledgers(
        self, after: LedgerId = -1, count_max: int = LIST_PAGE_COUNT
    ) -> list[LedgerId]:
        """Return one page of ids: of those that the client may work with."""
        found: list[LedgerId] = []
        at: LedgerId | None = after
        while at is not None and len(found) < count_max:
            request = messages.ListLedgers(
                self._timeout_ms, at, min(KEYS_MAX, count_max - len(found))
            )
            page = self._calls.call(request, messages.LedgerPage)
            found += page.ledger_ids
            at = page.next_after
        return found

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[LedgerId], None]
    ) -> WatchHandle:
        """Report changes of one ledger."""
        return self._watches.add(ledger_id, lambda: callback(ledger_id))

    # --- bookies -----------------------------------------------------------------------------------------------

    def register_bookie(self, service: BookieService, *, writable: bool) -> Lease:
        """Raise ConfigError."""
        self._refuse("registration of bookies")

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the live bookies."""
        rows = self._calls.call(messages.ListBookies(self._timeout_ms), list[messages.BookieRow])
        return [BookieRegistration(parse_service(row.service), row.writable) for row in rows]

    def watch_bookies(self, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of the set of live bookies."""
        return self._watches.add(None, callback)

    def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Raise ConfigError."""
        self._refuse("identities of bookies")

    def foreign_cookie(self, bookie_id: BookieId) -> bytes | None:
        """Raise ConfigError."""
        self._refuse("cookies of bookies")

    def write_identity(
        self, identity: BookieIdentity, version: int | None, *, replaced_cookie: bytes | None = None
    ) -> int:
        """Raise ConfigError."""
        self._refuse("identities of bookies")

    def delete_identity(self, bookie_id: BookieId, version: int) -> None:
        """Raise ConfigError."""
        self._refuse("identities of bookies")

    def list_identities(self) -> list[BookieIdentity | BadIdentity]:
        """Raise ConfigError."""
        self._refuse("identities of bookies")

    # --- watches and the end -----------------------------------------------------------------------------------

    def _states(
        self, subjects: Sequence[Subject], seen: Sequence[str] | None, wait_s: float
    ) -> list[str]:
        found: list[str] = []
        for at in range(0, len(subjects), KEYS_MAX):
            known = None if seen is None else tuple(seen[at : at + KEYS_MAX])
            some = tuple(subjects[at : at + KEYS_MAX])
            request = messages.ReadStates(self._timeout_ms, some, known, int(wait_s * 1e3))
            states = self._calls.call(request, list[str])
            if len(states) != len(some):
                raise MetadataUnavailable(
                    f"a gateway answered {len(some)} subjects of watches with {len(states)} states: is it of another"
                    " version?"
                )
            found += states
        return found

    def close(self) -> None:
        """End the watches and close the connections."""
        self._watches.close()
        self._calls.close()


class GatewayRecords:
    """The records behind gateways. See `fastbk.meta.records`."""

    def __init__(self, calls: Calls, watches: GatewayWatches, timeout_ms: int) -> None:
        self._calls = calls
        self._watches = watches
        self._timeout_ms = timeout_ms

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records."""
        found: list[VersionedRecord | None] = []
        while len(found) < len(paths):
            found += self.read_some(paths[len(found) :], messages.ANSWER_BYTES_MAX)
        return found

    def read_some(self, paths: Sequence[str], bytes_max: int) -> list[VersionedRecord | None]:
        """Return the first ones of several records, of those that one answer has room for (INV-M18)."""
        some = tuple(check_path(path) for path in paths[:KEYS_MAX])
        rows = self._calls.call(
            messages.ReadRecords(self._timeout_ms, some), list[RecordRow | None]
        )
        found = [None if row is None else row.record() for row in _some_of(rows)]
        return found[
            : count_within((0 if one is None else len(one.value) for one in found), bytes_max)
        ]

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do all of it or nothing (INV-M1)."""
        for change in changes:
            change.check()
        rows = tuple(ChangeRow(one.path, one.value, one.version) for one in changes)
        return self._calls.call(messages.ChangeRecords(self._timeout_ms, rows, False), list[int])

    def children(self, path: str) -> list[str]:
        """Return the names below a path."""
        (names,) = self.children_of([path])
        return names

    def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names below several paths."""
        for path in paths:
            check_folder(path)
        found: list[list[str]] = []
        while len(found) < len(paths):
            some = tuple(paths[len(found) : len(found) + KEYS_MAX])
            found += _some_of(
                self._calls.call(messages.ListChildren(self._timeout_ms, some), list[list[str]])
            )
        return found

    def watch(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of a record."""
        return self._watches.add(record_subject(path), callback)

    def watch_children(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report names that come or go."""
        return self._watches.add(children_subject(path), callback)


class GatewayMarks(ReplicaMarks):
    """The marks of under-replicated ledgers: read as records, changed by a request of their own."""

    def __init__(self, calls: Calls, records: GatewayRecords, timeout_ms: int) -> None:
        super().__init__(records)
        self._calls = calls
        self._timeout_ms = timeout_ms

    def update(
        self,
        ledger_id: LedgerId,
        add: Sequence[MissingReplica] = (),
        remove: Sequence[MissingReplica] = (),
    ) -> LedgerMark:
        """Change the mark of a ledger; return it. See `ReplicaMarks`."""
        request = messages.UpdateMark(self._timeout_ms, ledger_id, to_json(add), to_json(remove))
        return LedgerMark(ledger_id, from_json(self._calls.call(request, bytes)))


def _ledger(ledger_id: LedgerId, row: LedgerRow | None) -> LedgerRead:
    return None if row is None else ledger_read(ledger_id, row.metadata, row.version)


def _some_of(rows: list[T]) -> list[T]:
    """Return what an answer has of what was requested. Raises MetadataUnavailable for one without anything."""
    if not rows:
        raise MetadataUnavailable(
            "a gateway answered a request with nothing: is it of another version?"
        )
    return rows
