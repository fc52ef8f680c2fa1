"""The blocking writer's pipe: one writer machine with its channels, run by whoever waits for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from fastbk.client.blocking_channel import BlockingChannel
from fastbk.client.blocking_runner import BlockingIo, BlockingRunner
from fastbk.client.config import ClientConfig
from fastbk.client.ensemble_log import log_replacements, take
from fastbk.client.sequence import entry_of, first_request_id, room_before_wrap
from fastbk.errors import Error
from fastbk.model.ids import ID_MAX, BookieId, EntryId
from fastbk.native import client_codec as codec
from fastbk.replication.writer_machine import WriterMachine
from fastbk.wire.statuses import Status

_SLICE_S = 0.1
# Longest silence after a pause of the caller's before the clock goes on.
_CATCH_UP_S = 1.0


class BlockingPipe:
    """What was sent to a ledger and is not acknowledged yet. All calls are made while holding the client.

    Nobody serves the sockets while the caller does something else, or the metadata store is asked. What came, or could
    not leave, meanwhile is no silence of the bookies', so the machine's clock stands still until that was taken in.

    Attributes:
        bytes_in_flight: data sent and not acknowledged, as far as was heard.
        data_bytes_max: largest entry that all bookies take, as far as is known.
    """

    def __init__(self, machine: WriterMachine, io: BlockingIo, config: ClientConfig) -> None:
        self.machine = machine
        self.adds = machine.adds
        self.bytes_in_flight = 0
        self._codec = io.requests.adds
        self.data_bytes_max = codec.FRAME_SIZE_BYTES_MAX - self._codec.add_overhead_bytes
        self._config = config
        self._reactor = io.reactor
        self._ledger_id = io.ledger_id
        self._slot = io.reactor.new_slot(self)
        # (entry id behind, bytes) of what is in flight.
        self._flights: deque[tuple[EntryId, int]] = deque()
        self._retry_s: dict[BookieId, float] = {}
        self._tries: dict[BookieId, int] = {}
        self._version = machine.ensemble_version
        self._bookies_version = io.reactor.bookies_version
        # The machine's clock: when this pipe was last run.
        self._clock_s = time.monotonic()
        self._runner = BlockingRunner(machine, io, lambda: self._clock_s)
        self._answers = 0
        self.channels: list[BlockingChannel] = []
        self._runner.start()
        self._follow_ensemble()

    def _follow_ensemble(self) -> None:
        """Take the machine's ensemble for the channels to send to."""
        self._version = self.machine.ensemble_version
        log_replacements(self._ledger_id, "writer", take(self.machine.replacements))
        before = {channel.bookie_id: channel for channel in self.channels}
        self.channels = [self._reactor.channel(one, "adds") for one in self.machine.ensemble]
        for bookie_id, channel in before.items():
            if bookie_id not in self.machine.ensemble:
                channel.listeners.remove(self)
                self._retry_s.pop(bookie_id, None)
                self._reactor.known.quarantine(bookie_id, time.monotonic())
        for channel in self.channels:
            if channel.bookie_id not in before:
                channel.listeners.append(self)
                if channel.is_up:
                    self.channel_ready(channel.bookie_id)
        for index in range(len(self.channels)):
            self._pump(index)

    # --- what the channels tell --------------------------------------------------------------------------------

    def channel_ready(self, bookie_id: BookieId) -> None:
        """Send the bookie all that it lacks."""
        hello = self._reactor.channel(bookie_id, "adds").hello
        assert hello is not None
        room = hello.frame_size_bytes_max - self._codec.add_overhead_bytes
        self.data_bytes_max = min(self.data_bytes_max, room)
        self.machine.connected(bookie_id, self._clock_s)
        self.channel_drained(bookie_id)

    def channel_lost(self, bookie_id: BookieId, reason: str) -> None:
        """Note it."""
        is_gone = self._reactor.known.is_gone(bookie_id)
        self.machine.lost(bookie_id, reason, self._clock_s, is_gone=is_gone)

    def channel_drained(self, bookie_id: BookieId) -> None:
        """Send on."""
        index = self.machine.index_of(bookie_id)
        # The machine may be ahead of the channels: then all are sent to when these have followed.
        if index is not None and self._version == self.machine.ensemble_version:
            self._pump(index)

    def add_answered(self, bookie_id: str, first_sequence: int, count: int, status: int) -> None:
        """Take an answer to the adds whose sequences begin there."""
        self._answers += 1
        first = entry_of(first_sequence, self.adds.head)
        if status == Status.OK:
            self._tries.pop(bookie_id, None)
            self.machine.acknowledged(bookie_id, first, count, self._clock_s)
            return
        now_s = time.monotonic()
        if status == Status.IO_ERROR:
            self._reactor.known.failed(bookie_id, now_s)
        if self.machine.refused(bookie_id, first, count, status, self._clock_s):
            tries = self._tries[bookie_id] = self._tries.get(bookie_id, 0) + 1
            wait_s = min(self._config.backoff_max, self._config.backoff_min * 2 ** min(tries, 20))
            self._retry_s.setdefault(bookie_id, now_s + wait_s)

    # --- sending -----------------------------------------------------------------------------------------------

    def send(self, datas: Sequence[bytes], size_bytes: int) -> None:
        """Encode and send entries with the next ids."""
        adds = self.adds
        if adds.next_entry_id + len(datas) - 1 > ID_MAX:
            raise Error(
                f"ledger {self._ledger_id}: its ids would pass 2^63-1; go on in a new ledger"
            )
        if time.monotonic() - self._clock_s > _SLICE_S:
            self._reactor.turn(0.0)
        now_s = time.monotonic()
        room = room_before_wrap(adds.next_entry_id)
        for piece in (datas,) if len(datas) <= room else (datas[:room], datas[room:]):
            frames, offsets, sizes = self._codec.encode_adds(
                first_request_id(self._slot, adds.next_entry_id),
                adds.next_entry_id,
                self.machine.last_add_confirmed,
                adds.next_length,
                piece,
            )
            adds.add(frames, offsets, sizes, now_s)
        self.machine.added(now_s)
        self._flights.append((adds.next_entry_id, size_bytes))
        self.bytes_in_flight += size_bytes
        for index in range(len(self.channels)):
            self._pump(index)

    def _pump(self, index: int) -> None:
        channel, adds = self.channels[index], self.adds
        while channel.is_writable and adds.failure is None:
            frames = adds.next_to_send(index)
            if frames is None:
                return
            channel.write(frames)

    def has_room(self, size_bytes: int) -> bool:
        """Whether an entry of that size may be sent, by the configured bounds; also when the writer has failed."""
        adds, config = self.adds, self._config
        while self._flights and self._flights[0][0] <= adds.head:
            self.bytes_in_flight -= self._flights.popleft()[1]
        if adds.failure is not None or not self._flights:
            return True
        return (
            adds.next_entry_id - adds.head < config.entries_in_flight_max
            and self.bytes_in_flight + size_bytes <= config.bytes_in_flight_max
        )

    # --- running -----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Do what is due and performed; waits for nothing but the metadata store."""
        machine, now_s = self.machine, time.monotonic()
        if (
            now_s - self._clock_s > _SLICE_S
            and machine.wake_s is not None
            and now_s >= machine.wake_s
        ):
            self._catch_up(now_s)
            now_s = time.monotonic()
        self._clock_s = now_s
        if self._bookies_version != self._reactor.bookies_version:
            self._bookies_version = self._reactor.bookies_version
            machine.bookies_changed(now_s)
        if machine.wake_s is not None and now_s >= machine.wake_s:
            machine.tick(now_s)
        for bookie_id, at_s in list(self._retry_s.items()):
            if now_s >= at_s:
                del self._retry_s[bookie_id]
                machine.retry(bookie_id)
                self.channel_drained(bookie_id)
        self._runner.step()
        self._runner.poll()
        while self._version != machine.ensemble_version:
            self._follow_ensemble()

    def _has_to_be_heard(self) -> bool:
        """Whether a bookie owes answers of which nothing bad is known yet."""
        if self.adds.failure is not None:
            return False
        trouble = self.adds.trouble()
        return any(
            channel.is_up and channel.bookie_id not in trouble and self.adds.lagging(index)
            for index, channel in enumerate(self.channels)
        )

    def _catch_up(self, now_s: float) -> None:
        """Take in what is there after a pause, and let leave what could not, before anybody is blamed."""
        heard, silent_s = self._answers, now_s

        def is_over() -> bool:
            nonlocal heard, silent_s
            if heard != self._answers:
                heard, silent_s = self._answers, time.monotonic()
            return not self._has_to_be_heard() or time.monotonic() - silent_s >= _CATCH_UP_S

        while not is_over():
            self._reactor.turn(_CATCH_UP_S / 10)

    def run_until(self, is_done: Callable[[], bool], deadline_s: float) -> bool:
        """Run until `is_done()`, the writer's end or the deadline; return which: True if done or ended."""
        machine = self.machine

        def is_turn_over() -> bool:
            return (
                is_done()
                or machine.failure is not None
                or machine.has_actions
                or machine.ensemble_version != self._version
            )

        while True:
            self.poll()
            ends_s = [deadline_s, time.monotonic() + _SLICE_S, *self._retry_s.values()]
            if machine.wake_s is not None:
                ends_s.append(machine.wake_s)
            if not self._reactor.run_until(is_turn_over, min(ends_s)):
                # Something is due, which must not keep the sockets from being served.
                self._reactor.turn(0.0)
            if is_done() or machine.failure is not None:
                return True
            if time.monotonic() >= deadline_s:
                return False

    def has_laggards(self) -> bool:
        """Whether bookies that can be reached and take adds lack something."""
        return any(
            channel.is_up
            and self.adds.lagging(index)
            and self.machine.health.takes_adds(index)
            for index, channel in enumerate(self.channels)
        )

    def settle(self) -> None:
        """Change the ensemble no more: the ledger is about to be closed."""
        self.machine.stop(self._clock_s)

    def stop(self) -> None:
        """Let go of the channels."""
        self._runner.stop()
        for channel in self.channels:
            channel.listeners.remove(self)
        self._reactor.slots.pop(self._slot, None)
