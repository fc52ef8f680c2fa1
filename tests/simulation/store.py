"""The metadata store as a node: the product's own store in memory, behind links that lose requests and replies.

A request whose reply is lost has taken effect; one that is held on its way takes effect long after its client gave up.
Only compare-and-set makes that harmless (INV-M1). Registrations of bookies are pushed to the clients.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from fastbk.errors import Error, MetadataUnavailable
from fastbk.meta.api import BookieIdentity, IdentityVersion, VersionedIdentity, VersionedLedger
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.procedure import MarkReplicas
from tests.simulation.kernel import Kernel, Node
from tests.simulation.network import Network

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.client import Client


# Stores of one name share their records.
_numbers = count()


class Store(Node):
    """The metadata store.

    Attributes:
        is_down: everything is refused.
        ledgers: what it holds, as the checks see it.
        records: the product's store.
        registered: bookie id -> (incarnation, writable).
        expired: bookies whose sessions are kept expired, though they live.
    """

    def __init__(self, kernel: Kernel, network: Network, checks: Checks) -> None:
        super().__init__(kernel, "m")
        self.network = network
        self.checks = checks
        self.is_down = False
        self.ledgers: dict[LedgerId, VersionedLedger] = {}
        self.registered: dict[BookieId, tuple[int, bool]] = {}
        self.expired: set[BookieId] = set()
        self.clients: list[Client] = []
        self.watchers: dict[LedgerId, list[Client]] = {}
        self.records = MemoryStore(f"simulation {next(_numbers)}")

    def close(self) -> None:
        """Forget everything."""
        self.records.close()

    def create(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Create a ledger at once: how ledgers begin is not what is simulated."""
        version = self.records.create_ledger(ledger_id, metadata)
        self.ledgers[ledger_id] = VersionedLedger(metadata, version)
        self.checks.ledger_created(ledger_id, metadata)

    def delete(self, ledger_id: LedgerId) -> None:
        """Delete a ledger at once."""
        self.records.delete_ledger(ledger_id)
        del self.ledgers[ledger_id]

    # --- requests of clients -----------------------------------------------------------------------------------

    def read(self, client: Client, request_id: int, ledger_id: LedgerId) -> None:
        outcome: VersionedLedger | Error
        try:
            self._check_up()
            outcome = self.records.read_ledger(ledger_id)
        except Error as error:
            outcome = error
        self.network.post(self, client, client.told_metadata, request_id, outcome)

    def update(
        self,
        client: Client,
        request_id: int,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None,
    ) -> None:
        outcome: int | Error
        try:
            self._check_up()
            outcome = self.records.update_ledger(ledger_id, metadata, version, if_identity)
            self._changed(client, ledger_id, VersionedLedger(metadata, outcome), version)
        except Error as error:
            outcome = error
        self.network.post(self, client, client.told_metadata, request_id, outcome)

    def read_identity(self, client: Client, request_id: int, bookie_id: BookieId) -> None:
        outcome: VersionedIdentity | Error | None
        try:
            self._check_up()
            outcome = self.records.read_identity(bookie_id)
        except Error as error:
            outcome = error
        self.network.post(self, client, client.told_metadata, request_id, outcome)

    def mark(
        self, client: Client, request_id: int, ledger_id: LedgerId, action: MarkReplicas
    ) -> None:
        outcome: Error | None = None
        try:
            self._check_up()
            self.records.marks.update(ledger_id, action.add, action.remove)
        except Error as error:
            outcome = error
        self.network.post(self, client, client.told_metadata, request_id, outcome)

    def _check_up(self) -> None:
        if self.is_down:
            raise MetadataUnavailable("the metadata store is down")

    def _changed(
        self, client: Client, ledger_id: LedgerId, now: VersionedLedger, base_version: int
    ) -> None:
        before = self.ledgers[ledger_id]
        self.ledgers[ledger_id] = now
        self.doing = now.metadata.state.name
        self.checks.metadata_changed(ledger_id, before, now, client.name, base_version)
        if now.metadata.is_closed and not before.metadata.is_closed:
            self.checks.closed_without(ledger_id, self.records.marks.read(ledger_id).missing)
        for watcher in self.watchers.get(ledger_id, ()):
            if watcher is not client:
                self.network.post(self, watcher, watcher.metadata_was_changed, ledger_id, now)

    # --- registrations of bookies ------------------------------------------------------------------------------

    def count_start(self, bookie_id: BookieId, incarnation: int) -> None:
        """Give a bookie's identity another version, as each start does."""
        read = self.records.read_identity(bookie_id)
        identity = BookieIdentity(bookie_id, incarnation, ())
        self.records.write_identity(identity, None if read is None else read.version)

    def register(self, bookie_id: BookieId, incarnation: int, writable: bool) -> None:
        if bookie_id in self.expired:
            return
        if self.registered.get(bookie_id) != (incarnation, writable):
            self.registered[bookie_id] = (incarnation, writable)
            self.tell_all()

    def session_ended(self, bookie_id: BookieId) -> None:
        if self.registered.pop(bookie_id, None) is not None:
            self.tell_all()

    def tell_all(self) -> None:
        writable = tuple(sorted(one for one, (_, writable) in self.registered.items() if writable))
        for client in self.clients:
            self.network.post(self, client, client.told_bookies, writable)
