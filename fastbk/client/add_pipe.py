"""The writer's pipe: one add machine with its channels, timers and the futures that wait for acknowledgements.

Adds are collected during a turn of the loop, encoded by one call of C and written once to each bookie; an add that
comes while nothing is in flight leaves at once. Answers resolve futures in a loop; there is no task for an add.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from fastbk.client.bookie_pool import BookiePool, Peer
from fastbk.client.config import ClientConfig
from fastbk.client.connection import SEQUENCE_MAX, SLOT_SHIFT
from fastbk.client.lac_teller import LacTeller
from fastbk.errors import Error, LedgerClosed
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.native import client_codec as codec
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.batch import split
from fastbk.wire.statuses import Status

T = TypeVar("T")


class AddPipe:
    """What was admitted to a ledger and is not acknowledged yet, on its way to the bookies.

    Attributes:
        next_entry_id: the id that the next admitted entry gets.
        bytes_in_flight: data admitted and not acknowledged.
        data_bytes_max: largest entry that all bookies take, as far as is known.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        ledger_codec: codec.LedgerCodec,
        password: bytes,
        pool: BookiePool,
        config: ClientConfig,
        on_progress: Callable[[], None],
    ) -> None:
        ensemble = metadata.fragments[-1].ensemble
        self.ledger_id = ledger_id
        self.machine = AddMachine(
            ledger_id,
            ensemble,
            metadata.write_quorum,
            metadata.ack_quorum,
            held_bytes_max=config.held_bytes_max,
        )
        self.peers: list[Peer] = [pool.peer(bookie_id) for bookie_id in ensemble]
        self.next_entry_id: EntryId = 0
        self.bytes_in_flight = 0
        self.data_bytes_max = codec.FRAME_SIZE_BYTES_MAX - ledger_codec.add_overhead_bytes
        self._codec = ledger_codec
        self._config = config
        self._pool = pool
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._index = {bookie_id: index for index, bookie_id in enumerate(ensemble)}
        self._slot = pool.new_slot(self)
        # Admitted and not encoded yet.
        self._queue: list[bytes] = []
        # (last entry id, bytes, future, its result): resolved when the head has passed the id.
        self._waiters: deque[tuple[EntryId, int, asyncio.Future[object], object]] = deque()
        self._encode_scheduled = False
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._retry_tries = [0] * len(ensemble)
        self._expiry: asyncio.TimerHandle | None = None
        self._laggards: asyncio.Future[None] | None = None
        self._lac_teller = LacTeller(self.machine, self.peers, ledger_codec, password, config)
        for peer in self.peers:
            peer.adds.subscribe(self)

    # --- admission ---------------------------------------------------------------------------------------------

    def admit_one(self, data: bytes) -> asyncio.Future[EntryId]:
        """Take an entry; return a future of its id."""
        entry_id = self.next_entry_id
        self.next_entry_id = entry_id + 1
        size = len(data)
        self.bytes_in_flight += size
        future: asyncio.Future[EntryId] = self._loop.create_future()
        self._waiters.append((entry_id, size, future, entry_id))  # type: ignore[arg-type]
        self._queue.append(data)
        if not self._encode_scheduled:
            self._schedule(entry_id)
        return future

    def admit_many(self, datas: list[bytes], size: int) -> asyncio.Future[tuple[EntryId, EntryId]]:
        """Take entries of `size` bytes in all; return a future of the first and the last id."""
        first = self.next_entry_id
        last = first + len(datas) - 1
        self.next_entry_id = last + 1
        self.bytes_in_flight += size
        future: asyncio.Future[tuple[EntryId, EntryId]] = self._loop.create_future()
        self._waiters.append((last, size, future, (first, last)))  # type: ignore[arg-type]
        self._queue += datas
        if not self._encode_scheduled:
            self._schedule(first)
        return future

    def _schedule(self, first: EntryId) -> None:
        if first == self.machine.head:
            # Nothing is in flight: a lone add must not wait for the next turn of the loop.
            self._encode()
        else:
            self._encode_scheduled = True
            self._loop.call_soon(self._encode)

    def wait_for_all(self) -> asyncio.Future[object]:
        """Return a future that is resolved when everything admitted so far is acknowledged."""
        future: asyncio.Future[object] = self._loop.create_future()
        if self.next_entry_id == self.machine.head:
            future.set_result(None)
        else:
            self._waiters.append((self.next_entry_id - 1, 0, future, None))
        return future

    @property
    def entries_in_flight(self) -> int:
        """How many entries are admitted and not acknowledged."""
        return self.next_entry_id - self.machine.head

    # --- sending -----------------------------------------------------------------------------------------------

    def _encode(self) -> None:
        """Encode what was admitted and send it."""
        self._encode_scheduled = False
        queue, machine = self._queue, self.machine
        if not queue or machine.failure is not None:
            return
        self._queue = []
        if machine.next_entry_id + len(queue) > SEQUENCE_MAX:
            # Request ids have no room for more; at a million a second that is twelve days in one ledger.
            self.end(LedgerClosed(f"ledger {self.ledger_id} is full: go on in a new one"))
            return
        now_s = self._loop.time()
        try:
            for datas in split(queue):
                frames, offsets, sizes = self._codec.encode_adds(
                    self._slot << SLOT_SHIFT | machine.next_entry_id,
                    machine.next_entry_id,
                    machine.last_add_confirmed,
                    machine.next_length,
                    datas,
                )
                machine.add(frames, offsets, sizes, now_s)
        except Exception as error:  # noqa: BLE001
            # Their ids are given out: the next entry must not get one of them, and with it another's ack.
            self.end(Error(f"ledger {self.ledger_id}: an add could not be encoded: {error!r}"))
            return
        for index, peer in enumerate(self.peers):
            if peer.adds.is_writable:
                self._pump(index)
        if self._expiry is None:
            self._expiry = self._loop.call_at(now_s + self._config.append_timeout, self._expire)

    def _pump(self, index: int) -> None:
        """Send to one bookie what it has not been sent, until its transport fills."""
        channel, machine = self.peers[index].adds, self.machine
        while channel.is_writable:
            frames = machine.next_to_send(index)
            if frames is None:
                return
            channel.write(frames)

    # --- what the channels tell --------------------------------------------------------------------------------

    def channel_ready(self, bookie_id: BookieId) -> None:
        """Send the bookie all that it lacks."""
        index = self._index[bookie_id]
        connection = self.peers[index].adds.connection
        assert connection is not None and connection.hello is not None
        self.data_bytes_max = min(
            self.data_bytes_max,
            connection.hello.frame_size_bytes_max - self._codec.add_overhead_bytes,
        )
        self.machine.connected(index)
        if self.machine.failure is None:
            self._pump(index)

    def channel_lost(self, bookie_id: BookieId, reason: str) -> None:
        """Note it; the channel comes back by itself."""
        self.machine.lost(self._index[bookie_id], reason)
        self._note_laggards()

    def channel_drained(self, bookie_id: BookieId) -> None:
        """Send on."""
        if self.machine.failure is None:
            self._pump(self._index[bookie_id])

    def add_answered(
        self, bookie_id: BookieId, first_sequence: int, count: int, status: int
    ) -> None:
        """Take an answer to adds [first, first + count) (their sequence is their entry id)."""
        index = self._index.get(bookie_id)
        if index is None:
            return
        machine = self.machine
        if status == Status.OK:
            self._retry_tries[index] = 0
            if machine.acknowledged(index, first_sequence, count):
                self._release()
            if self._laggards is not None:
                self._note_laggards()
            return
        again = machine.refused(index, first_sequence, count, status)
        if machine.failure is not None:
            self._fail()
        elif again and index not in self._retries:
            tries = self._retry_tries[index] = self._retry_tries[index] + 1
            config = self._config
            wait_s = min(config.backoff_max, config.backoff_min * 2 ** min(tries, 20))
            self._retries[index] = self._loop.call_later(
                wait_s * random.uniform(0.75, 1.25), self._retry, index
            )

    def _retry(self, index: int) -> None:
        self._retries.pop(index, None)
        self.machine.rewind(index)
        if self.machine.failure is None:
            self._pump(index)

    def _release(self) -> None:
        """Resolve everything below the head, in order (INV-C1)."""
        head = self.machine.head
        waiters = self._waiters
        while waiters and waiters[0][0] < head:
            _, size, future, result = waiters.popleft()
            self.bytes_in_flight -= size
            if not future.done():
                future.set_result(result)
        self._lac_teller.poke()
        self._on_progress()

    def _expire(self) -> None:
        self._expiry = None
        at_s = self.machine.expire(self._loop.time(), self._config.append_timeout)
        if self.machine.failure is not None:
            self._fail()
        elif at_s is not None:
            self._expiry = self._loop.call_at(at_s, self._expire)

    def end(self, error: Error) -> None:
        """End the writer from outside; what waits fails with `error`, or with what ended it before."""
        self.machine.end(error)
        self._fail()

    def _fail(self) -> None:
        """Fail everything that is not acknowledged, in order, with the same cause (INV-C2)."""
        machine = self.machine
        failure = machine.failure
        assert failure is not None
        self._queue = []
        waiters, self._waiters = self._waiters, deque()
        self.bytes_in_flight = 0
        entry_id = machine.head
        for last, _, future, _ in waiters:
            if not future.done():
                error = failure.copy()
                error.entry_id = entry_id
                error.outcome = machine.outcome(entry_id)
                future.set_exception(error)
            entry_id = last + 1
        self._on_progress()
        self._stop_timers()

    # --- end ---------------------------------------------------------------------------------------------------

    async def wait_for_laggards(self, timeout_s: float) -> None:
        """Give reachable bookies beyond the ack quorum a moment to take what they were sent."""
        if not self._has_laggards():
            return
        self._laggards = self._loop.create_future()
        try:
            await asyncio.wait([self._laggards], timeout=max(0.0, timeout_s))
        finally:
            self._laggards = None

    def _has_laggards(self) -> bool:
        return any(
            peer.adds.connection is not None and self.machine.lagging(index)
            for index, peer in enumerate(self.peers)
        )

    def _note_laggards(self) -> None:
        if self._laggards is not None and not self._laggards.done() and not self._has_laggards():
            self._laggards.set_result(None)

    def stop(self) -> None:
        """Let go of channels and timers."""
        self._stop_timers()
        for peer in self.peers:
            peer.adds.unsubscribe(self)
        self._pool.slots.pop(self._slot, None)

    def _stop_timers(self) -> None:
        self._lac_teller.stop()
        for timer in (self._expiry, *self._retries.values()):
            if timer is not None:
                timer.cancel()
        self._expiry = None
        self._retries.clear()
