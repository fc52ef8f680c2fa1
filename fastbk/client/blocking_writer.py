"""The blocking writer of one ledger: sockets around the add machine. Made by `fastbk.sync.Client`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeAlias

from fastbk.client.blocking import Owner
from fastbk.client.blocking_channel import BlockingChannel
from fastbk.client.connection import SEQUENCE_MAX, SLOT_SHIFT, Answer
from fastbk.client.rules import close_in
from fastbk.client.writer_stats import WriterStats
from fastbk.errors import (
    BufferFull,
    ConfigError,
    Error,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    Outcome,
    QuorumTimeout,
)
from fastbk.model.entry import DigestType, make_lac_body
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import every_write_set_has
from fastbk.native import client_codec as codec
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.batch import split
from fastbk.wire.statuses import Status, status_name

Data: TypeAlias = bytes | bytearray | memoryview

_CHUNK_ENTRIES = 512


class Pending:
    """An append that was sent; `result()` waits for it."""

    def __init__(self, writer: LedgerWriter, entry_id: EntryId) -> None:
        self._writer = writer
        self.entry_id = entry_id

    def done(self) -> bool:
        """Whether it is acknowledged or failed, as far as was heard."""
        machine = self._writer._machine
        return machine.head > self.entry_id or machine.failure is not None

    def result(self, timeout: float | None = None) -> EntryId:
        """Wait until it is acknowledged and return its id; raises as `append` does."""
        self._writer._wait(self.entry_id, timeout)
        return self.entry_id


class LedgerWriter:
    """Appends to one ledger; made by `fastbk.sync.Client.create_ledger`. The rules are the asyncio writer's."""

    def __init__(
        self,
        client: Owner,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        password: bytes,
        digest_type: DigestType,
    ) -> None:
        ensemble = metadata.fragments[-1].ensemble
        self.ledger_id = ledger_id
        self.metadata = metadata
        self._client = client
        self._config = client.config
        self._password = password
        self._reactor = client.reactor
        self._codec = codec.LedgerCodec(ledger_id, digest_type, password)
        self._machine = AddMachine(
            ledger_id,
            ensemble,
            metadata.write_quorum,
            metadata.ack_quorum,
            held_bytes_max=client.config.held_bytes_max,
        )
        self._blocked: Error | None = None
        self._done = False
        self._lac_told: EntryId = -1
        self._retry_s: dict[int, float] = {}
        self._tries = [0] * len(ensemble)
        # (entry id behind, bytes): what is in flight, to bound it.
        self._flights: deque[tuple[EntryId, int]] = deque()
        self._bytes_in_flight = 0
        self._data_bytes_max = codec.FRAME_SIZE_BYTES_MAX - self._codec.add_overhead_bytes
        self._index = {bookie_id: index for index, bookie_id in enumerate(ensemble)}
        self._slot = self._reactor.new_slot(self)
        self._channels: list[BlockingChannel] = []
        for bookie_id in ensemble:
            channel = self._reactor.channel(bookie_id, "adds")
            channel.listeners.append(self)
            self._channels.append(channel)
            if channel.is_up:
                self.channel_ready(bookie_id)

    # --- what the channels tell --------------------------------------------------------------------------------

    def channel_ready(self, bookie_id: BookieId) -> None:
        """Send the bookie all that it lacks."""
        self._machine.connected(self._index[bookie_id])
        self._pump(self._index[bookie_id])

    def channel_lost(self, bookie_id: BookieId, reason: str) -> None:
        """Note it."""
        self._machine.lost(self._index[bookie_id], reason)

    def channel_drained(self, bookie_id: BookieId) -> None:
        """Send on."""
        self._pump(self._index[bookie_id])

    def add_answered(self, bookie_id: str, first_sequence: int, count: int, status: int) -> None:
        """Take an answer to adds."""
        index = self._index[bookie_id]
        if status == Status.OK:
            self._tries[index] = 0
            self._machine.acknowledged(index, first_sequence, count)
        elif self._machine.refused(index, first_sequence, count, status):
            tries = self._tries[index] = self._tries[index] + 1
            wait_s = min(self._config.backoff_max, self._config.backoff_min * 2 ** min(tries, 20))
            self._retry_s.setdefault(index, time.monotonic() + wait_s)

    def _pump(self, index: int) -> None:
        channel, machine = self._channels[index], self._machine
        while channel.is_writable and machine.failure is None:
            frames = machine.next_to_send(index)
            if frames is None:
                return
            channel.write(frames)

    # --- appending ---------------------------------------------------------------------------------------------

    def append(self, data: Data, *, timeout: float | None = None) -> EntryId:
        """Append one entry and return its id once the ack quorum has it durably."""
        first, _ = self.append_many([data], timeout=timeout)
        return first

    def append_many(
        self, datas: Sequence[Data], *, timeout: float | None = None
    ) -> tuple[EntryId, EntryId]:
        """Append entries with consecutive ids; return the first and the last id once all are acknowledged."""
        owned = [data if type(data) is bytes else bytes(data) for data in datas]
        if not owned:
            raise ConfigError("append_many needs at least one entry")
        self._check_sizes(owned)
        limit_s = self._config.append_timeout if timeout is None else timeout
        deadline_s = time.monotonic() + limit_s
        with self._client.turn():
            self._check()
            first = self._machine.next_entry_id
            for piece in split(owned, min(_CHUNK_ENTRIES, self._config.entries_in_flight_max)):
                size = sum(map(len, piece))
                if not self._run(partial(self._has_room, size), deadline_s):
                    begun = self._machine.next_entry_id > first
                    raise self._timeout(first, limit_s, "unknown" if begun else "not_written")
                self._send(piece, size)
                # Acks that are here already make room; without them this would fill the bounds first.
                self._reactor.turn(0.0)
            self._wait(first + len(owned) - 1, deadline_s - time.monotonic(), limit_s)
        return first, first + len(owned) - 1

    def append_nowait(self, data: Data) -> Pending:
        """Send an entry without waiting for its ack; raises BufferFull when the bounds are reached."""
        owned = data if type(data) is bytes else bytes(data)
        self._check_sizes([owned])
        with self._client.turn() as reactor:
            self._check()
            if not self._has_room(len(owned)):
                reactor.turn(0.0)
            if not self._has_room(len(owned)):
                raise BufferFull(f"ledger {self.ledger_id}: too much is in flight; call ready()")
            self._send([owned], len(owned))
            return Pending(self, self._machine.next_entry_id - 1)

    def ready(self) -> None:
        """Return when `append_nowait` has room for an entry of ordinary size."""
        with self._client.turn():
            self._check()
            limit_s = self._config.append_timeout
            if not self._run(lambda: self._has_room(1), time.monotonic() + limit_s):
                raise self._timeout(self._machine.head, limit_s, "unknown")

    def _check_sizes(self, owned: list[bytes]) -> None:
        for data in owned:
            if len(data) > self._data_bytes_max:
                raise ConfigError(
                    f"an entry of {len(data)} bytes; at most {self._data_bytes_max} are possible"
                )

    def _check(self) -> None:
        if self._machine.failure is not None:
            raise self._machine.failure.copy()
        if self._blocked is not None:
            raise self._blocked.copy()

    def _has_room(self, size: int) -> bool:
        machine = self._machine
        while self._flights and self._flights[0][0] <= machine.head:
            self._bytes_in_flight -= self._flights.popleft()[1]
        if machine.failure is not None or not self._flights:
            return True
        return (
            machine.next_entry_id - machine.head < self._config.entries_in_flight_max
            and self._bytes_in_flight + size <= self._config.bytes_in_flight_max
        )

    def _send(self, owned: list[bytes], size: int) -> None:
        machine = self._machine
        if machine.next_entry_id + len(owned) > SEQUENCE_MAX:
            machine.end(LedgerClosed(f"ledger {self.ledger_id} is full: go on in a new one"))
        self._check()
        frames, offsets, sizes = self._codec.encode_adds(
            self._slot << SLOT_SHIFT | machine.next_entry_id,
            machine.next_entry_id,
            machine.last_add_confirmed,
            machine.next_length,
            owned,
        )
        machine.add(frames, offsets, sizes, time.monotonic())
        self._flights.append((machine.next_entry_id, size))
        self._bytes_in_flight += size
        for index in range(len(self._channels)):
            self._pump(index)

    def _run(self, is_done: Callable[[], bool], deadline_s: float) -> bool:
        """Serve the sockets until `is_done()`, the writer's end or the deadline; return which: True if done."""
        machine = self._machine
        while True:
            now_s = time.monotonic()
            machine.expire(now_s, self._config.append_timeout)
            for index, at_s in list(self._retry_s.items()):
                if now_s >= at_s:
                    del self._retry_s[index]
                    machine.rewind(index)
                    self._pump(index)
            slice_s = min([deadline_s, now_s + 0.1, *self._retry_s.values()])
            if self._reactor.run_until(
                lambda: is_done() or machine.failure is not None, max(now_s, slice_s)
            ):
                return True
            if time.monotonic() >= deadline_s:
                return False

    def _wait(
        self, entry_id: EntryId, timeout_s: float | None, shown_s: float | None = None
    ) -> None:
        limit_s = self._config.append_timeout if timeout_s is None else timeout_s
        machine = self._machine
        with self._client.turn():
            self._run(lambda: machine.head > entry_id, time.monotonic() + limit_s)
            if machine.head > entry_id:
                return
            if machine.failure is not None:
                error = machine.failure.copy()
                error.entry_id = machine.head
                error.outcome = machine.outcome(entry_id)
                raise error
            raise self._timeout(entry_id, limit_s if shown_s is None else shown_s, "unknown")

    def _timeout(self, entry_id: EntryId, limit_s: float, outcome: Outcome) -> QuorumTimeout:
        return QuorumTimeout(
            f"ledger {self.ledger_id}: entry {entry_id} was not acknowledged within {limit_s:g} s;"
            " it stays in the pipe, so read before appending it again",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
            outcome=outcome,
            replicas=self._machine.trouble(),
        )

    # --- flush, force, close -----------------------------------------------------------------------------------

    def flush(self, *, timeout: float | None = None) -> None:
        """Return when everything appended so far is acknowledged; tells bookies the LAC, so that readers see it."""
        with self._client.turn():
            machine = self._machine
            if machine.failure is not None:
                raise machine.failure.copy()
            if machine.head != machine.next_entry_id:
                self._wait(machine.next_entry_id - 1, timeout)
            self._tell_lac()

    def _tell_lac(self) -> None:
        lac = self._machine.last_add_confirmed
        if lac <= self._lac_told:
            return
        self._lac_told = lac
        body = make_lac_body(self.ledger_id, lac, self._codec.digest_type, self._password)
        self._reactor.ask_all(
            [channel.bookie_id for channel in self._channels if channel.is_up],
            lambda request_id: codec.put_write_lac(
                request_id, self.ledger_id, lac, self._codec.master_key, body
            ),
            min(1.0, self._config.read_timeout),
            is_enough=None,
        )

    def force(self, *, timeout: float | None = None) -> None:
        """Flush, then have each write set's ack quorum confirm that everything before is durable."""
        limit_s = self._config.append_timeout if timeout is None else timeout
        deadline_s = time.monotonic() + limit_s
        with self._client.turn() as reactor:
            self.flush(timeout=limit_s)
            machine = self._machine
            answers = reactor.ask_all(
                list(machine.ensemble),
                lambda request_id: codec.put_force(request_id, self.ledger_id),
                max(0.001, deadline_s - time.monotonic()),
                is_enough=None,
            )
        good = [
            isinstance(one, Answer) and one.status in (Status.OK, Status.NO_LEDGER)
            for one in answers
        ]
        if not every_write_set_has(good, machine.write_quorum, machine.ack_quorum):
            raise NotEnoughBookies(
                f"ledger {self.ledger_id}: too few bookies confirmed the force; try again",
                ledger_id=self.ledger_id,
                outcome="unknown",
                replicas={
                    bookie: str(one) if isinstance(one, Error) else status_name(one.status)
                    for bookie, one, ok in zip(machine.ensemble, answers, good, strict=True)
                    if not ok
                },
            )

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, then close the ledger in the metadata; raises what ended the writer. Again: does nothing."""
        if self._done:
            return
        limit_s = self._config.close_timeout if timeout is None else timeout
        deadline_s = time.monotonic() + limit_s
        with self._client.turn():
            machine = self._machine
            self._blocked = LedgerClosed(
                f"ledger {self.ledger_id} is closed: go on in a new one", ledger_id=self.ledger_id
            )
            if machine.failure is None and machine.head != machine.next_entry_id:
                try:
                    self._wait(machine.next_entry_id - 1, limit_s)
                except Error as error:
                    machine.end(error)
            if machine.failure is None:
                laggards_s = min(self._config.laggard_wait, deadline_s - time.monotonic())
                self._run(lambda: not self._has_laggards(), time.monotonic() + laggards_s)
            if not isinstance(machine.failure, LedgerFenced):
                close_in(
                    self._client.store(),
                    self.ledger_id,
                    machine.last_add_confirmed,
                    machine.length_confirmed,
                )
            self._done = True
            for channel in self._channels:
                channel.listeners.remove(self)
            self._reactor.slots.pop(self._slot, None)
            if machine.failure is not None:
                raise machine.failure.copy()

    def _has_laggards(self) -> bool:
        return any(
            channel.is_up and self._machine.lagging(index)
            for index, channel in enumerate(self._channels)
        )

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last acknowledged entry, -1 before the first."""
        return self._machine.last_add_confirmed

    @property
    def pending(self) -> int:
        """How many entries are sent and not acknowledged, as far as was heard."""
        return self._machine.next_entry_id - self._machine.head

    def stats(self) -> WriterStats:
        """Return this writer's figures now."""
        self._has_room(0)
        return WriterStats.of(self._machine, self.pending, self._bytes_in_flight)

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise
