"""A writer on a simulated client: the driver of the product's `WriterMachine`, and the application above it."""

from __future__ import annotations

import struct

from fastbk.errors import ClientClosed
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId
from fastbk.replication.add_machine import Buffer
from fastbk.replication.options import WriterOptions
from fastbk.replication.procedure import Procedure, WriteLac
from fastbk.replication.writer_machine import CloseLedger, WriterMachine
from tests.simulation.answering import Stored
from tests.simulation.client import ADDS, Client
from tests.simulation.kernel import STALE
from tests.simulation.network import TO_BOOKIE
from tests.simulation.running import Ledger, Running

RETRY_S = 0.02
DRAIN_S = 3.0
CLOSE_TIMEOUT_S = 10.0
# A frame of the simulator is an entry's id and its data.
ID = struct.Struct(">Q")


class Writing(Running[None]):
    """One open ledger.

    Attributes:
        machine: the product's.
        is_closing: the application has called close.
        is_over: nothing more will be added.
    """

    def __init__(
        self, client: Client, ledger: Ledger, known: VersionedLedger, options: WriterOptions
    ) -> None:
        self.machine = WriterMachine(ledger.ledger_id, known, options)
        super().__init__(client, ledger, self.machine)
        self.entries: list[Stored] = []
        self.is_closing = False
        self.is_over = False
        self.is_stopped = False
        self._subscribed: tuple[BookieId, ...] = ()
        self._version = -1
        self._head = 0
        self._timer_s: float | None = None
        self._retrying: set[BookieId] = set()

    def start(self) -> None:
        self.machine.start(self.client.kernel.now_s)
        self.look()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: everything was acknowledged, or has failed."""
        adds = self.machine.adds
        return adds.failure is not None or adds.head == adds.next_entry_id

    # --- the application ---------------------------------------------------------------------------------------

    def append(self, datas: list[bytes]) -> None:
        machine = self.machine
        if machine.failure is not None or self.is_closing:
            return
        adds = machine.adds
        first, lac, length = adds.next_entry_id, machine.last_add_confirmed, adds.next_length
        ids = range(first, first + len(datas))
        for data in datas:
            length += len(data)
            self.entries.append(Stored(lac, length, data))
            self.ledger.written.append(data)
        now_s = self.client.kernel.now_s
        frames = b"".join(
            [ID.pack(entry_id) + data for entry_id, data in zip(ids, datas, strict=True)]
        )
        adds.add(frames, [len(data) for data in datas], now_s)
        if self.checks.recorder is not None:
            # What the model calls sent is what the writer has begun with, in the order of ids.
            for entry_id in ids:
                bookie_id = machine.ensemble[entry_id % len(machine.ensemble)]
                self._note_sent(bookie_id, entry_id)
        machine.added(now_s)
        for bookie_id in machine.ensemble:
            self.send(bookie_id)
        self.look()

    def close(self) -> None:
        """Take no more, wait for what is under way, then close the ledger."""
        if self.is_closing:
            return
        self.is_closing = True
        self.client.kernel.after(DRAIN_S, self.client, self.drained_too_long)
        self.look()

    def drained_too_long(self) -> object:
        """Close now, whatever is still under way."""
        if self.is_stopped:
            return STALE
        self._stop()
        return None

    def force(self) -> None:
        """Have the bookies confirm what was acknowledged."""
        if self.machine.failure is not None or self.is_stopped:
            return
        Running(self.client, self.ledger, self.machine.forcing(2.0), self._was_forced).start()

    def tell_lac(self) -> None:
        lac = self.machine.last_add_confirmed
        if lac < 0 or self.is_stopped:
            return
        ledger = self.ledger
        for bookie_id in self.machine.ensemble:
            self.client.ask(
                ledger.ledger_id, ledger.key, bookie_id, WriteLac(lac), 1.0, lambda outcome: None
            )

    def _was_forced(self, running: Running) -> None:  # type: ignore[type-arg]
        procedure = running.procedure
        if procedure.error is not None:
            return
        to = procedure.value()
        if self.machine.failure is None:
            self.machine.forced(to)
            if to.entry_id >= 0:
                self.checks.forced(self.client.name, self.ledger.ledger_id, to.entry_id)

    def _stop(self) -> None:
        machine, now_s = self.machine, self.client.kernel.now_s
        self.is_stopped = True
        if machine.failure is None:
            machine.end(ClientClosed("the writer was closed"), now_s)
        machine.stop(now_s)
        self.look()
        self._end()
        Running(
            self.client, self.ledger, machine.closing(CLOSE_TIMEOUT_S), self._was_closed
        ).start()

    def _was_closed(self, running: Running) -> None:  # type: ignore[type-arg]
        procedure: Procedure[VersionedLedger] = running.procedure
        if procedure.error is None:
            value = procedure.value()
            self.checks.believes_closed(self.client.name, self.ledger.ledger_id, value.metadata)
            if isinstance(procedure, CloseLedger) and procedure.is_ours:
                mark = self.client.store.records.marks.read(self.ledger.ledger_id)
                self.checks.closed_by_writer(self.ledger.ledger_id, mark.missing)

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        for bookie_id in self._subscribed:
            self.client.unsubscribe(bookie_id, self)
        self._subscribed = ()
        self._leave()

    # --- what the channels tell --------------------------------------------------------------------------------

    def channel_ready(self, bookie_id: BookieId) -> None:
        self.machine.connected(bookie_id, self.client.kernel.now_s)
        self.send(bookie_id)
        self.look()

    def channel_lost(self, bookie_id: BookieId, reason: str, is_gone: bool) -> None:
        """It cannot be, or could not be reached again."""
        self.machine.lost(bookie_id, reason, self.client.kernel.now_s, is_gone=is_gone)
        self.look()

    def answered(self, bookie_id: BookieId, verdicts: list[tuple[EntryId, int, int]]) -> None:
        """The bookie answered adds: (first entry, count, status) for each run."""
        machine, now_s = self.machine, self.client.kernel.now_s
        for first, count, status in verdicts:
            if status == 0:
                was_probed = machine.index_of(bookie_id) in machine.adds.probed_members
                machine.acknowledged(bookie_id, first, count)
                if was_probed:
                    self.send(bookie_id)
            elif (
                machine.refused(bookie_id, first, count, status, now_s)
                and bookie_id not in self._retrying
            ):
                self._retrying.add(bookie_id)
                self.client.kernel.after(RETRY_S, self.client, self.retry, bookie_id)
        self.look()

    def retry(self, bookie_id: BookieId) -> object:
        """Send again what was refused for a passing reason."""
        self._retrying.discard(bookie_id)
        if self.is_over or self.machine.failure is not None:
            return STALE
        self.machine.retry(bookie_id)
        self.send(bookie_id)
        self.look()
        return None

    def bookies_changed(self) -> None:
        if not self.is_over:
            self.machine.bookies_changed(self.client.kernel.now_s)
            self.look()

    def pump(self) -> None:
        """Do what the machine asks for and see what follows; outcomes of its actions come this way too."""
        self.look()

    def wake(self, at_s: float) -> object:
        if self._timer_s != at_s or self.is_over:
            return STALE
        self._timer_s = None
        self.machine.tick(self.client.kernel.now_s)
        self.look()
        return None

    # --- after each call of the machine ------------------------------------------------------------------------

    def look(self) -> None:
        """Do everything that the machine's text says a driver does after a call."""
        machine, client = self.machine, self.client
        while machine.has_actions or machine.ensemble_version != self._version:
            for tag, action in machine.take_actions():
                self._perform(tag, action)
            if machine.ensemble_version != self._version:
                self._version = machine.ensemble_version
                self._change_channels()
        head = machine.adds.head
        if head != self._head:
            self._head = head
            self.checks.acked(client.name, self.ledger.ledger_id, head)
        client.doing = "writing" if machine.failure is None else "failed"
        if machine.is_changing:
            client.doing = "changing"
        if self.is_over:
            return
        if machine.failure is not None and not self.is_closing:
            self._end()
            return
        if self.is_closing and not self.is_stopped and self.is_idle:
            self._stop()
            return
        wake_s = machine.wake_s
        if wake_s is not None and (self._timer_s is None or wake_s < self._timer_s):
            self._timer_s = wake_s
            delay_s = max(0.0, wake_s - client.kernel.now_s)
            client.kernel.after(delay_s, client, self.wake, wake_s)

    def _change_channels(self) -> None:
        ensemble = self.machine.ensemble
        before, self._subscribed = self._subscribed, ensemble
        for bookie_id in before:
            if bookie_id not in ensemble:
                self.client.unsubscribe(bookie_id, self)
        for bookie_id in ensemble:
            if bookie_id not in before:
                self.client.subscribe(bookie_id, self)
        for bookie_id in ensemble:
            self.send(bookie_id)

    def send(self, bookie_id: BookieId) -> None:
        """Send everything that is to go to a bookie, if it can be reached."""
        channel = self.client.channel(bookie_id, ADDS)
        connection = channel.connection
        index = self.machine.index_of(bookie_id)
        if connection is None or index is None or self.machine.failure is not None:
            return
        ledger, adds, entries = self.ledger, self.machine.adds, self.entries
        while (frames := adds.next_to_send(index)) is not None:
            ids = self._ids_in(frames)
            if self.checks.recorder is not None:
                for entry_id in ids:
                    self._note_sent(bookie_id, entry_id)
            self.client.network.send(
                connection,
                TO_BOOKIE,
                channel.bookie.receive_adds,
                ledger.ledger_id,
                ledger.key,
                [(entry_id, entries[entry_id]) for entry_id in ids],
            )

    def _ids_in(self, frames: Buffer) -> list[EntryId]:
        """Return the entries that frames are of: each is an id and its entry's data."""
        ids: list[EntryId] = []
        at = 0
        while at < len(frames):
            (entry_id,) = ID.unpack_from(frames, at)
            ids.append(entry_id)
            at += ID.size + len(self.entries[entry_id].data)
        return ids

    def _note_sent(self, bookie_id: BookieId, entry_id: EntryId) -> None:
        ledger_id, lac = self.ledger.ledger_id, self.entries[entry_id].lac
        self.checks.add_sent(self.client.name, bookie_id, ledger_id, entry_id, lac)
