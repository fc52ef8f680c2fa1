"""What the clients of a world are at: a writer, recoverers, readers, editors of custom metadata, an intruder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fastbk.errors import MetadataConflict, MetadataUnavailable, NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.placement.config import Distance, PlacementConfig
from fastbk.placement.rules import custom_rule
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.options import ChangePolicy, WriterOptions
from fastbk.replication.procedure import AddEntry, ReadEntry
from fastbk.replication.re_replication import ReReplicateLedger
from fastbk.replication.recovery import RecoverLedger, RecoveryOptions
from fastbk.replication.repair_options import RepairOptions
from fastbk.replication.replicas import Pacing
from fastbk.replication.under_replication import owed_by
from tests.simulation.client import Client
from tests.simulation.domains import forget
from tests.simulation.kernel import STALE, Node
from tests.simulation.plan import Item
from tests.simulation.readers import Reader
from tests.simulation.running import Ledger, Running
from tests.simulation.writing import Writing

if TYPE_CHECKING:
    from tests.simulation.world import World

KEY = b"k" * 20
RULE = PlacementConfig(policy="rack", enforce=True)
"""What each ledger has in its metadata, and no change may lose; where bookies are nobody here says."""
OTHER_KEY = b"x" * 20


def distance(bookie_id: BookieId) -> Distance:
    """Return how far a bookie is from whoever repairs: a third of them is in another region."""
    return (Distance.RACK, Distance.REGION, Distance.OTHER)[int(bookie_id[1:]) % 3]


REPAIR = RepairOptions(
    entries_in_flight_max=4,
    distance=distance,
    read_entries_max=5,
    request_timeout_s=1.0,
    metadata_timeout_s=4.0,
    patience_s=2.0,
)


class Workload:
    """All kinds of work; each method is a kind of an item, its target the client that does it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kernel = world.kernel
        self.node = Node(world.kernel, "w")
        self.ledgers: list[Ledger] = []
        self.writers: dict[int, Writing] = {}
        self.first: dict[int, VersionedLedger] = {}
        self.readers: dict[tuple[str, int], Reader] = {}
        self._edits = 0

    def schedule(self, items: list[Item]) -> None:
        for item in items:
            self.kernel.after(item.at_s, self.node, self.do, item)

    def schedule_racks(self) -> None:
        """The table changes, and what ledgers have recorded of it is lost."""
        plan = self.world.plan
        for at_s, name, rack in plan.moves:
            self.kernel.after(at_s, self.node, self.move, name, rack)
        for at_s, is_all in plan.forgets:
            self.kernel.after(at_s, self.node, self.forget, is_all)

    def move(self, name: BookieId, rack: str) -> None:
        if self.world.faults.is_healed:
            return
        self.world.racks.move(name, rack)
        self.world.store.tell_all()

    def forget(self, is_all: bool) -> object:
        client = self.world.clients["c3"]
        if not client.is_alive:
            return STALE
        self._edits += 1
        name = f"forgotten-{self._edits}"

        def decide(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if name in metadata.custom:
                return None
            custom = {**forget(metadata, is_all=is_all), name: b"1"}
            return replace(metadata, custom=custom)

        Running(client, self.ledgers[0], MetadataUpdate(decide, None, 3.0), self.edited).start()
        return None

    def do(self, item: Item) -> object:
        client = self.world.clients[item.target]
        if not client.is_alive:
            return STALE
        result: object = getattr(self, item.kind)(client, item)
        return result

    # --- settings ----------------------------------------------------------------------------------------------

    def pacing(self) -> Pacing:
        options = self.world.plan.options
        return Pacing(
            request_timeout_s=options["request_timeout_s"], give_up_s=options["give_up_s"]
        )

    def recovery_options(self) -> RecoveryOptions:
        entries_max = int(self.world.plan.options["entries_max"])
        return RecoveryOptions(
            pacing=self.pacing(), metadata_timeout_s=4.0, entries_max=entries_max
        )

    def writer_options(self) -> WriterOptions:
        plan = self.world.plan
        options = plan.options
        changes_max = int(options["changes_max"])
        return WriterOptions(
            held_bytes_max=int(options["held_bytes_max"]),
            append_timeout_s=options["append_timeout_s"],
            change=ChangePolicy(
                replace_after_s=options["replace_after_s"],
                delayed=bool(options["delayed"]),
                changes_max=None if changes_max < 0 else changes_max,
                bookie_timeout_s=options["bookie_timeout_s"],
            ),
            is_deferred=plan.is_deferred,
        )

    # --- ledgers and their writers -----------------------------------------------------------------------------

    def create(
        self,
        ensemble: Sequence[BookieId],
        client: Client | None = None,
        away: frozenset[BookieId] = frozenset(),
    ) -> Ledger:
        """Make a ledger and, if a client is named, open it for writing there. `away`: members that are not up."""
        world, plan = self.world, self.world.plan
        ledger = Ledger(
            len(self.ledgers),
            KEY,
            plan.ensemble,
            plan.write_quorum,
            plan.ack_quorum,
            plan.is_deferred,
            away=away,
        )
        self.ledgers.append(ledger)
        world.checks.ledgers[ledger.ledger_id] = ledger
        metadata = LedgerMetadata(
            ensemble_size=plan.ensemble,
            write_quorum=plan.write_quorum,
            ack_quorum=plan.ack_quorum,
            fragments=(Fragment(0, tuple(ensemble)),),
            digest_type=DigestType.CRC32C,
            custom={**custom_rule(RULE), **world.racks.custom_of_new(plan.write_quorum, ensemble)},
        )
        world.store.create(ledger.ledger_id, metadata)
        world.store.records.marks.update(ledger.ledger_id, owed_by(away))
        self.first[ledger.ledger_id] = VersionedLedger(metadata, 0)
        if client is not None:
            client.count_on(ensemble)
            known = VersionedLedger(metadata, 0)
            options = replace(self.writer_options(), away=away)
            writing = Writing(client, ledger, known, options)
            self.writers[ledger.ledger_id] = writing
            writing.start()
        return ledger

    def ledger_of(self, item: Item) -> Ledger:
        """Return the ledger that an item is about: the one whose number is its `more`."""
        return self.ledgers[int(item.more)]

    def writing(self, item: Item) -> Writing:
        return self.writers[self.ledger_of(item).ledger_id]

    def append(self, client: Client, item: Item) -> object:
        writing, ledger = self.writing(item), self.ledger_of(item)
        if writing.machine.failure is not None or writing.is_closing:
            return STALE
        first = len(ledger.written)
        writing.append(
            [data_of(ledger.ledger_id, first + number) for number in range(int(item.value))]
        )
        return None

    def force(self, client: Client, item: Item) -> None:
        self.writing(item).force()

    def tell_lac(self, client: Client, item: Item) -> None:
        self.writing(item).tell_lac()

    def close(self, client: Client, item: Item) -> None:
        """Close the ledger, also after its writer has failed."""
        self.writing(item).close()

    def read_own(self, client: Client, item: Item) -> None:
        ledger = self.ledger_of(item)
        head = self.world.checks.facts[ledger.ledger_id].acked
        if head:
            self.reader(client, ledger).read_own(head - 1)

    # --- recovery ----------------------------------------------------------------------------------------------

    def recover(self, client: Client, item: Item) -> None:
        ledger = self.ledger_of(item)
        client.doing = "recovering"
        # A client may have read the metadata when the ledger was new.
        known = self.first[ledger.ledger_id] if self.world.plan.options.get("stale") else None
        procedure = RecoverLedger(ledger.ledger_id, known, self.recovery_options())
        progress = self.world.checks.recovery_moved
        Running(client, ledger, procedure, self.recovered, progress).start()

    def recovered(self, running: Running[VersionedLedger]) -> None:
        procedure = running.procedure
        running.client.doing = "recovered" if procedure.error is None else "not recovered"
        if procedure.error is None:
            value = procedure.value()
            checks = self.world.checks
            checks.believes_closed(running.client.name, running.ledger.ledger_id, value.metadata)

    def repair(self, client: Client, item: Item) -> object:
        """Bring back the copies that lost bookies held."""
        wiped = self.world.faults.wiped
        if not wiped:
            return STALE
        ledger = self.ledger_of(item)
        procedure = ReReplicateLedger(ledger.ledger_id, wiped[-1], REPAIR)
        Running(client, ledger, procedure).start()
        return None

    def cancel(self, client: Client, item: Item) -> object:
        """Give up whatever is under way on a client, but for its writers."""
        given_up = [one for one in client.runnings if not isinstance(one, Writing)]
        for running in given_up:
            running.cancel()
        return None if given_up else STALE

    # --- readers -----------------------------------------------------------------------------------------------

    def reader(self, client: Client, ledger: Ledger) -> Reader:
        key = (client.name, ledger.ledger_id)
        found = self.readers.get(key)
        if found is None:
            found = self.readers[key] = Reader(self.world, client, ledger)
        return found

    def read(self, client: Client, item: Item) -> None:
        self.reader(client, self.ledger_of(item)).read_all()

    def read_lac(self, client: Client, item: Item) -> None:
        """Ask for the LAC, of a quorum or of anybody."""
        self.reader(client, self.ledger_of(item)).read_lac(item.value < 0.5, None)

    def tail(self, client: Client, item: Item) -> None:
        self.reader(client, self.ledger_of(item)).tail()

    def read_unconfirmed(self, client: Client, item: Item) -> None:
        self.reader(client, self.ledger_of(item)).read_unconfirmed()

    # --- others ------------------------------------------------------------------------------------------------

    def edit(self, client: Client, item: Item) -> None:
        """Change custom metadata, which must not lose what others change."""
        self._edits += 1
        name = f"{client.name}-{self._edits}"

        def decide(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if name in metadata.custom:
                return None
            return replace(metadata, custom={**metadata.custom, name: b"1"})

        update = MetadataUpdate(decide, None, 3.0)
        Running(client, self.ledger_of(item), update, self.edited).start()

    def edited(self, running: Running[VersionedLedger]) -> None:
        error = running.procedure.error
        passing = MetadataUnavailable | MetadataConflict | NoSuchLedger
        if error is not None and not isinstance(error, passing):
            raise error

    def delete(self, client: Client, item: Item) -> object:
        """Delete the ledger; the bookies free it at their next garbage collection, unless they are down."""
        ledger_id = self.ledger_of(item).ledger_id
        store = self.world.store
        if ledger_id not in store.ledgers or store.is_down or self.world.faults.is_healed:
            return STALE
        store.delete(ledger_id)
        self.world.checks.deleted.add(ledger_id)
        for bookie in self.world.bookies.values():
            self.kernel.after(
                bookie.rng.random() * self.world.plan.duration_s, bookie, bookie.collect, ledger_id
            )
        return None

    def intrude(self, client: Client, item: Item) -> None:
        """Try adds and fences with another key: a bookie that knows the ledger's refuses."""
        ledger = self.ledger_of(item)
        # A bookie that lost its data has lost the key, too: there the first to come would be the intruder.
        if ledger.ledger_id in self.world.checks.deleted or "wipes" in self.world.plan.classes:
            return
        ensemble = self.world.store.ledgers[ledger.ledger_id].metadata.fragments[-1].ensemble
        known = [one for one in ensemble if ledger.ledger_id in self.world.bookies[one].entries]
        for bookie_id in known:
            add = AddEntry(int(item.value * 10), -1, 1, b"!", recovery=item.value < 0.5)
            read = ReadEntry(-1, fence=True)
            for request in (add, read):
                client.ask(
                    ledger.ledger_id, OTHER_KEY, bookie_id, request, 1.0, lambda outcome: None
                )


def data_of(ledger_id: int, entry_id: int) -> bytes:
    """Return the data of an entry: its origin, and a tail whose length differs."""
    return b"%d/%d" % (ledger_id, entry_id) + b"." * (entry_id % 5)
