"""A bookie as a node: the product's decisions (`tests.fixtures.decide`) over a simulated journal.

Records are decided in one order, written in batches, answered after the batch's sync (INV-J1); what is durable is
taken into the store in that order, the first copy of an entry winning (INV-A5). A crash loses the batches that were
not synced, or keeps any part of them; a start rebuilds states and entries from the last checkpoint and the journal. A
wiped bookie stays away, or is forced: all ledgers that metadata says it held are in limbo and fenced before it
registers anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fastbk.model.ids import EntryId, LedgerId
from fastbk.native.store import DELETED, FENCED, LIMBO, LedgerState
from fastbk.replication.procedure import (
    AddEntries,
    AddEntry,
    BookieRequest,
    ForceLedger,
    ReadEntry,
    Reply,
)
from fastbk.server.identity import ledgers_of, void_pending_names
from fastbk.wire.statuses import Status
from tests.fixtures.decide import NO_KEY, RECOVERY, Kind, LedgerTable, Limit, Take
from tests.simulation.answering import Answers, Stored
from tests.simulation.jobs import Job, Record, runs_of, split_key
from tests.simulation.kernel import STALE, Kernel, Node
from tests.simulation.network import TO_CLIENT, Connection, Network

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.store import Store

CHECKPOINT_RECORDS = 48
SESSION_S = 4.0
LISTING_S = 0.05


class Bookie(Node):
    """One bookie.

    Attributes:
        incarnation: goes up when its data is lost.
        is_up: the process runs and listens.
        sync_s: how long one sync of the journal takes.
        fails_sync: the next sync fails; the journal is dead then and the bookie starts again (INV-J2).
        takes_adds: False: read-only.
        entries: what is durable: ledger -> entry -> what is stored.
        answers: its reading half.
        is_liar: it may say anything; the checks know.
    """

    def __init__(
        self, kernel: Kernel, network: Network, store: Store, checks: Checks, name: str
    ) -> None:
        super().__init__(kernel, name)
        self.network = network
        self.store = store
        self.checks = checks
        self.rng = kernel.rng(f"bookie {name}")
        self.incarnation = 1
        self.is_up = True
        self.is_wiped = False
        self.sync_s = 0.0005
        self.fails_sync = False
        self.takes_adds = True
        self.busy = 0.0
        self.is_liar = False
        self.drops_after_ack = False
        self.table = LedgerTable()
        self.entries: dict[LedgerId, dict[EntryId, Stored]] = {}
        self.answers = Answers(self)
        self._connections: dict[int, Connection] = {}
        self._checkpoint = self.table.copy()
        self._journal: list[Record] = []
        self._batch: list[Job] = []
        self._syncing: list[Job] = []
        store.count_start(name, self.incarnation)
        store.register(name, self.incarnation, True)

    # --- connections -------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> object:
        if not connection.client_open:
            return STALE
        if not self.is_up:
            self.network.send(connection, TO_CLIENT, connection.client.refused)
            return None
        connection.bookie_open = True
        self._connections[connection.epoch] = connection
        self.network.send(connection, TO_CLIENT, connection.client.accepted, self.incarnation)
        return None

    def hung_up(self, connection: Connection) -> object:
        connection.bookie_open = False
        return STALE if self._connections.pop(connection.epoch, None) is None else None

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.epoch, None)

    # --- requests ----------------------------------------------------------------------------------------------

    def receive_adds(
        self,
        connection: Connection,
        ledger_id: LedgerId,
        key: bytes,
        adds: list[tuple[EntryId, Stored]],
    ) -> object:
        if not self._reaches(connection):
            return STALE
        for entry_id, stored in adds:
            record = (ledger_id, Kind.ADD, 0, key, entry_id, stored)
            self._decide(record, connection, 0, None)
        return None

    def receive(
        self,
        connection: Connection,
        request_id: int,
        ledger_id: LedgerId,
        key: bytes,
        request: BookieRequest,
    ) -> object:
        if not self._reaches(connection):
            return STALE
        record: Record
        if isinstance(request, AddEntry):
            stored = Stored(request.lac, request.length, bytes(request.data))
            flags = RECOVERY if request.recovery else 0
            record = (ledger_id, Kind.ADD, flags, key, request.entry_id, stored)
            self._decide(record, connection, request_id, request)
        elif isinstance(request, AddEntries):
            # As one of Apache's: copies come one by one then. The healing simulator's bookies take them together.
            self.answer(connection, request_id, Reply(Status.UNSUPPORTED))
        elif isinstance(request, ForceLedger):
            self._decide((ledger_id, Kind.FORCE, 0, key, 0, None), connection, request_id, request)
        elif isinstance(request, ReadEntry) and request.fence:
            record = (ledger_id, Kind.FENCE, 0, key, request.entry_id, None)
            self._decide(record, connection, request_id, request)
        elif (
            self.busy
            and not getattr(request, "high_priority", False)
            and self.rng.random() < self.busy
        ):
            status = Status.NOT_READY if self.rng.random() < 0.5 else Status.TOO_MANY_REQUESTS
            self.answer(connection, request_id, Reply(status))
        elif self._is_other_creation(ledger_id, key):
            self.answer(connection, request_id, Reply(Status.OTHER_CREATION))
        else:
            self.answers.answer(connection, request_id, ledger_id, split_key(key)[0], request)
        return None

    def _is_other_creation(self, ledger_id: LedgerId, key: bytes) -> bool:
        """INV-T2, as the index has it."""
        state, mark = self.table.get(ledger_id), split_key(key)[1]
        return bool(mark and state and state.creation_mark not in (0, mark))

    def _reaches(self, connection: Connection) -> bool:
        if connection.bookie_open and self.is_up:
            return True
        # The other side of a connection that this host knows nothing of is told so.
        if connection.client_open:
            self.network.send(connection, TO_CLIENT, connection.client.lost)
        return False

    def answer(self, connection: Connection, request_id: int, reply: Reply) -> None:
        self.network.send(connection, TO_CLIENT, connection.client.told, request_id, reply)

    # --- the journal -------------------------------------------------------------------------------------------

    def _decide(
        self, record: Record, connection: Connection, request_id: int, request: BookieRequest | None
    ) -> None:
        ledger_id, kind, flags, key, entry_id, _ = record
        limit = Limit.OPEN if self.takes_adds else Limit.NO_ADDS
        master_key, mark = split_key(key)
        take, status = self.table.decide(
            ledger_id, entry_id, kind, flags, master_key, limit=limit, creation_mark=mark
        )
        if take is not Take.REFUSED and kind is not Kind.FORCE:
            self.checks.decided(self, record)
        self._batch.append(Job(take, status, record, connection, request_id, request))
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        self._syncing, self._batch = self._batch, []
        self.kernel.after(self.sync_s * (0.5 + self.rng.random()), self, self.synced)

    def synced(self) -> None:
        """A sync has come back: take what is durable in, in order, and answer."""
        if self.fails_sync:
            self.fails_sync = False
            self.crash(keep=0.5, is_power_cut=False)
            self.kernel.after(0.3, self, self.start)
            return
        jobs, self._syncing = self._syncing, []
        verdicts: dict[tuple[int, LedgerId], list[tuple[EntryId, int]]] = {}
        for job in jobs:
            status = self._take_in(job)
            if job.request_id:
                self._answer_job(job, status)
            else:
                key = (job.connection.epoch, job.record[0])
                verdicts.setdefault(key, []).append((job.record[4], status))
        for (epoch, ledger_id), answers in verdicts.items():
            connection = self._connections.get(epoch)
            if connection is not None:
                self.network.send(
                    connection, TO_CLIENT, connection.client.told_adds, ledger_id, runs_of(answers)
                )
        if len(self._journal) > CHECKPOINT_RECORDS:
            self._checkpoint = self.table_of_index()
            self._journal.clear()
        if self._batch:
            self._sync()

    def _take_in(self, job: Job) -> int:
        """Return the status of a job whose batch is durable."""
        if job.take is Take.REFUSED:
            self.checks.refused(self, job.connection.client.name, job.record, job.status)
            return job.status
        if job.take in (Take.NEW, Take.CHECK, Take.FENCE):
            self._journal.append(job.record)
        ledger_id, _, flags, _, entry_id, stored = job.record
        if stored is None:
            if job.take is Take.FENCE:
                self.checks.fence_durable(self, job.connection.client.name, ledger_id)
                self.answers.wake(ledger_id)
            return int(Status.OK)
        status = self._store(ledger_id, entry_id, stored, is_recovery=bool(flags & RECOVERY))
        if status == Status.OK:
            self.checks.add_durable(self, job.connection.client.name, job.record)
            if self.is_liar and self.drops_after_ack:
                self.entries[ledger_id].pop(entry_id, None)
        return status

    def _store(
        self, ledger_id: LedgerId, entry_id: EntryId, stored: Stored, *, is_recovery: bool
    ) -> int:
        entries = self.entries.setdefault(ledger_id, {})
        there = entries.get(entry_id)
        noticed = self.answers.damaged.get((ledger_id, entry_id))
        if noticed is False:
            return int(Status.CONFLICT)  # for all it knows these bytes are another entry's
        if noticed:
            # Only a repair may put a copy beside a damaged one.
            if not is_recovery:
                return int(Status.CANNOT_TELL)
            del self.answers.damaged[ledger_id, entry_id]
            entries[entry_id] = stored
        elif there is not None:
            if not there.is_same(stored, ledger_id, entry_id):
                return int(Status.CONFLICT)
        else:
            entries[entry_id] = stored
        if self.table.stored(ledger_id, entry_id, stored.lac):
            self.answers.wake(ledger_id)
        return int(Status.OK)

    def _answer_job(self, job: Job, status: int) -> None:
        connection = job.connection
        if connection.epoch not in self._connections:
            return
        ledger_id = job.record[0]
        if status == Status.OK and isinstance(job.request, ReadEntry):
            if job.record[1] is Kind.FENCE:
                self.checks.fence_answered(self, ledger_id)
            self.answers.answer(connection, job.request_id, ledger_id, job.record[3], job.request)
        else:
            fenced = status == Status.FENCED
            self.answer(connection, job.request_id, Reply(status, fenced=fenced))

    def table_of_index(self) -> LedgerTable:
        """Return the states as far as what is durable goes: what a checkpoint writes.

        Records of a batch that is not synced yet have changed the table already; a checkpoint must not contain them.
        """
        table = self._checkpoint.copy()
        self._replay(table, self._journal)
        return table

    def _replay(self, table: LedgerTable, journal: list[Record]) -> None:
        for ledger_id, kind, flags, key, entry_id, stored in journal:
            if kind is not Kind.FORCE:
                master_key, mark = split_key(key)
                table.replay(
                    ledger_id, kind, flags, master_key, entry_id=entry_id, creation_mark=mark
                )
            if stored is not None:
                table.stored(ledger_id, entry_id, stored.lac)

    # --- death and life ----------------------------------------------------------------------------------------

    def crash(self, keep: float, is_power_cut: bool) -> None:
        """End at once. Each record that was not synced is on the disk all the same with probability `keep`.

        After a power cut nobody tells the clients: they find out by silence, or by sending something after the start.
        """
        if not self.is_up:
            return
        self.is_up = False
        self.life += 1
        self.doing = "down"
        self.checks.crashed(self.name)
        self.answers.forget_all()
        jobs = self._syncing + self._batch
        self._syncing, self._batch = [], []
        written = [job.record for job in jobs if job.take in (Take.NEW, Take.CHECK, Take.FENCE)]
        for record in written:
            if keep and self.rng.random() < keep:
                self._journal.append(record)
        for connection in self._connections.values():
            connection.bookie_open = False
            if is_power_cut:
                self.network.silence(connection, TO_CLIENT)
            else:
                self.network.send(connection, TO_CLIENT, connection.client.lost)
        self._connections.clear()
        self.kernel.deliver(self.kernel.now_s + SESSION_S, self.store, self.session_over, self.life)

    def session_over(self, life: int) -> object:
        if life != self.life or self.is_up:
            return STALE
        self.store.session_ended(self.name)
        return None

    def start(self) -> object:
        """Start again: replay what is durable, then listen and register."""
        if self.is_up or self.is_wiped:
            return STALE
        self.table = self._checkpoint.copy()
        for record in self._journal:
            ledger_id, _, _, _, entry_id, stored = record
            if stored is not None and not (self.is_liar and self.drops_after_ack):
                entries = self.entries.setdefault(ledger_id, {})
                entries.setdefault(entry_id, stored)
        self._replay(self.table, self._journal)
        self.store.count_start(self.name, self.incarnation)
        self.is_up = True
        self.life += 1
        self.doing = "up"
        self.store.register(self.name, self.incarnation, self.takes_adds)
        return None

    def wipe(self) -> None:
        """Lose all data. It may not start any more, until it is forced to."""
        self.crash(keep=0.0, is_power_cut=False)
        self.is_wiped = True
        self.table = LedgerTable()
        self._checkpoint = self.table.copy()
        self._journal.clear()
        self.entries.clear()
        self.answers.forget_damage()
        self.checks.wiped(self)

    def force_start(self) -> object:
        """Start a wiped bookie under its name: first list what it held, then a new incarnation."""
        if not self.is_wiped or self.is_up:
            return STALE
        if self.store.is_down or self.network.link(self, self.store).blocked:
            self.kernel.after(LISTING_S, self, self.force_start)
            return None
        records = self.store.records
        void_pending_names(records, records.read_identity(self.name))
        limbo = ledgers_of(records, self.name, or_in_recovery=True)
        self.checks.reborn(self, set(limbo))
        for ledger_id in limbo:
            self.table.put(LedgerState(ledger_id, flags=FENCED | LIMBO, master_key=NO_KEY))
            self.checks.in_limbo(self, ledger_id)
        self._checkpoint = self.table.copy()
        self.is_wiped = False
        self.incarnation += 1
        self.kernel.after(LISTING_S, self, self.start)
        return None

    def collect(self, ledger_id: LedgerId) -> None:
        """Free a deleted ledger, and remember that it is gone (garbage collection, on metadata's word)."""
        before = self.table.get(ledger_id)
        if before is None or not self.is_up:
            return
        for table in (self.table, self._checkpoint):
            table.put(replace(before, flags=before.flags | DELETED))
        self.entries.pop(ledger_id, None)
        self._journal = [record for record in self._journal if record[0] != ledger_id]
        self.checks.collected(self, ledger_id)

    def set_writable(self, writable: bool) -> None:
        self.takes_adds = writable
        if self.is_up:
            self.store.register(self.name, self.incarnation, writable)
