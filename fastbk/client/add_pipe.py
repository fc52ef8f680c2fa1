"""The writer's pipe: one writer machine with its channels, timers and the futures that wait for acknowledgements.

Adds are collected during a turn of the loop, encoded by one call of C and written once to each bookie; an add that
comes while nothing is in flight leaves at once. Answers resolve futures in a loop; there is no task for an add.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

from fastbk.client.bookie_pool import Peer
from fastbk.client.config import ClientConfig
from fastbk.client.connection import entry_of, first_request_id, room_before_wrap
from fastbk.client.ensembles import drain, log_replacements
from fastbk.client.explicit_lac_sender import ExplicitLacSender
from fastbk.client.ledger_tags import show
from fastbk.client.runner import LedgerIo, Runner
from fastbk.errors import Error, LedgerFenced, NoSuchLedger
from fastbk.model.ids import ID_MAX, BookieId, EntryId
from fastbk.native import client_codec as codec
from fastbk.observe.meter import AppendClock
from fastbk.observe.tracing import Attributes, Span, Tracer, tracer_of
from fastbk.replication.add_machine import split
from fastbk.replication.metadata_update import Replacement
from fastbk.replication.writer_machine import WriterMachine
from fastbk.retry import Retry
from fastbk.wire.statuses import Status, status_name

T = TypeVar("T")


class Waiter(Protocol):
    """What waits for an acknowledgement: a future, or what callers in other threads wait for."""

    def done(self) -> bool:
        """Whether it waits no more."""

    def set_result(self, result: Any, /) -> None:  # noqa: ANN401
        """It is acknowledged."""

    def set_exception(self, exception: Error, /) -> None:
        """It has failed."""


class AddPipe:
    """What was admitted to a ledger and is not acknowledged yet, on its way to the bookies.

    Attributes:
        next_entry_id: the id that the next admitted entry gets.
        bytes_in_flight: data admitted and not acknowledged.
        carried_lac: the LAC that the last entry which was sent has in it; -1 before the first.
        data_bytes_max: largest entry that all bookies take, as far as is known.
        clock: how long entries took, from being sent to their acknowledgement.
        publishes_at_once: whether the LAC is sent as soon as nothing is in flight (INV-C5), and not after a while.
    """

    def __init__(
        self,
        machine: WriterMachine,
        io: LedgerIo,
        config: ClientConfig,
        on_progress: Callable[[], None],
    ) -> None:
        self.ledger_id = io.ledger_id
        self.machine = machine
        self.adds = machine.adds
        self.peers: list[Peer] = []
        self.next_entry_id: EntryId = self.adds.next_entry_id
        self.bytes_in_flight = 0
        self.carried_lac: EntryId = -1
        self.publishes_at_once = False
        self._codec = io.requests.add_codec
        self._tag = io.requests.tag
        self.data_bytes_max = codec.FRAME_SIZE_BYTES_MAX - self._codec.add_overhead_bytes
        self._config = config
        self._pool = io.pool
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._slot = self._pool.new_slot(self)
        # Admitted and not encoded yet.
        self._queue: list[bytes] = []
        # (last entry id, bytes, future, its result): resolved when the head has passed the id.
        self._waiters: deque[tuple[EntryId, int, Waiter, object]] = deque()
        self._encode_scheduled = False
        self._retries: dict[BookieId, asyncio.TimerHandle] = {}
        self._backoffs = defaultdict[BookieId, Retry](
            lambda: Retry(config.backoff_min, config.backoff_max)
        )
        self._wake: asyncio.TimerHandle | None = None
        self._wake_s = 0.0  # uvloop's handle of a moment that has come does not say when it was
        self._released, self._has_failed = self.adds.head, False
        self.clock = AppendClock(self.adds.head)
        self._laggards: asyncio.Future[None] | None = None
        self._version = machine.ensemble_version
        self._runner = Runner(machine, io, self._follow_machine)
        self.lac_sender = ExplicitLacSender(self, io, config)
        self._runner.start()
        self._subscribe()

    def _subscribe(self) -> None:
        """Take the machine's ensemble for the channels to send to."""
        before = {peer.bookie_id: peer for peer in self.peers}
        self.peers = [self._pool.peer(bookie_id) for bookie_id in self.machine.ensemble]
        if self._tag is not None:
            self._tag.add_bookies(self.machine.ensemble)
        for peer in self.peers:
            if before.pop(peer.bookie_id, None) is None:
                peer.add_channel.subscribe(self)
        for bookie_id, peer in before.items():
            peer.add_channel.unsubscribe(self)
            self._pool.quarantine(bookie_id)
            retry = self._retries.pop(bookie_id, None)
            if retry is not None:
                retry.cancel()

    # --- admission ---------------------------------------------------------------------------------------------

    def admit_one(self, data: bytes, size: int) -> asyncio.Future[EntryId]:
        """Take an entry of `size` bytes; return a future of its id."""
        entry_id = self.next_entry_id
        self.next_entry_id = entry_id + 1
        self.bytes_in_flight += size
        future: asyncio.Future[EntryId] = self._loop.create_future()
        self._waiters.append((entry_id, size, future, entry_id))
        self._queue.append(data)
        if not self._encode_scheduled:
            self._schedule(entry_id)
        return future

    def admit_many(self, datas: list[bytes], size: int) -> asyncio.Future[tuple[EntryId, EntryId]]:
        """Take entries of `size` bytes in all; return a future of the first and the last id."""
        first = self.next_entry_id
        future: asyncio.Future[tuple[EntryId, EntryId]] = self._loop.create_future()
        self.admit(datas, size, future, (first, first + len(datas) - 1))
        return future

    def admit(self, datas: list[bytes], size: int, waiter: Waiter, result: object) -> None:
        """Take entries of `size` bytes in all; `waiter` gets `result` when all are acknowledged."""
        first = self.next_entry_id
        self.next_entry_id = first + len(datas)
        self.bytes_in_flight += size
        self._waiters.append((first + len(datas) - 1, size, waiter, result))
        self._queue += datas
        if not self._encode_scheduled:
            self._schedule(first)

    def _schedule(self, first: EntryId) -> None:
        if first == self.adds.head:
            # Nothing is in flight: a lone add must not wait for the next turn of the loop.
            self._encode()
        else:
            self._encode_scheduled = True
            self._loop.call_soon(self._encode)

    def wait_for_all(self) -> asyncio.Future[object]:
        """Return a future that is resolved when everything admitted so far is acknowledged."""
        future: asyncio.Future[object] = self._loop.create_future()
        if self.next_entry_id == self.adds.head:
            future.set_result(None)
        else:
            self._waiters.append((self.next_entry_id - 1, 0, future, None))
        return future

    @property
    def entries_in_flight(self) -> int:
        """How many entries are admitted and not acknowledged."""
        return self.next_entry_id - self.adds.head

    # --- sending -----------------------------------------------------------------------------------------------

    def _encode(self) -> None:
        """Encode what was admitted and send it."""
        self._encode_scheduled = False
        queue, adds = self._queue, self.adds
        if not queue or adds.failure is not None:
            return
        self._queue = []
        now_s = self._loop.time()
        try:
            if adds.next_entry_id + len(queue) - 1 > ID_MAX:
                raise Error("its ids would pass 2^63-1; go on in a new ledger")
            for datas in split(queue, room_before_wrap(adds.next_entry_id)):
                entry_id = adds.next_entry_id
                frames, sizes = self._codec.encode_adds(
                    first_request_id(self._slot, entry_id),
                    entry_id,
                    adds.last_add_confirmed,
                    adds.next_length,
                    datas,
                )
                adds.add(frames, sizes, now_s)
                self.carried_lac = adds.last_add_confirmed
            self.clock.begin(adds.next_entry_id, time.monotonic())
        except Exception as error:  # noqa: BLE001
            # Their ids are given out: the next entry must not get one of them, and with it another's ack.
            self.end(
                Error(
                    f"ledger {self.ledger_id}: an add could not be encoded: {str(error) or repr(error)}"
                )
            )
            return
        has_news = self.machine.added(now_s)
        for index in range(len(self.peers)):
            self._pump(index)
        if has_news:
            self._after()

    def send_lac(self) -> None:
        """Send the LAC before this returns, with what waits to be sent, or by itself."""
        if self._queue:
            self._encode()
        self.lac_sender.send_untold()

    def _pump(self, index: int) -> None:
        """Send to one bookie what it has not been sent, until its transport fills."""
        connection, adds = self.peers[index].add_channel.connection, self.adds
        if connection is not None:
            if self._tag is not None:
                show(connection, self._tag, self._pool.next_request_id())
            while not connection.is_paused and (frames := adds.next_to_send(index)) is not None:
                connection.write(frames)

    def _pump_bookie(self, bookie_id: BookieId) -> None:
        index = self.machine.index_of(bookie_id)
        # The machine may be ahead of the channels: then all are sent to when these have followed.
        has_followed = self._version == self.machine.ensemble_version
        if index is not None and has_followed and self.machine.failure is None:
            self._pump(index)

    # --- what the machine tells --------------------------------------------------------------------------------

    def _after(self) -> None:
        """Look at the machine after a call of it."""
        if self.machine.has_actions:
            self._runner.step()
        else:
            self._follow_machine()

    def _follow_machine(self) -> None:
        machine = self.machine
        fault = self._runner.fault
        if fault is not None and machine.failure is None:
            if not isinstance(fault, Error):
                self._pool.report(fault)
                fault = Error(f"ledger {self.ledger_id}: a fault of the client's own: {fault!r}")
            machine.end(fault, self._loop.time())
        if self._version != machine.ensemble_version:
            self._version = machine.ensemble_version
            log_replacements(self._pool, self.ledger_id, "writer", drain(machine.replacements))
            self._subscribe()
            for index in range(len(self.peers)):
                self._pump(index)
        if self.adds.head != self._released:
            self._release()
        if machine.failure is not None:
            self._fail()
            return
        wake_s = machine.wake_s
        if wake_s is not None and (self._wake is None or wake_s < self._wake_s):
            if self._wake is not None:
                self._wake.cancel()
            self._wake, self._wake_s = self._loop.call_at(wake_s, self._tick), wake_s

    def _tick(self) -> None:
        self._wake = None
        self.machine.tick(self._loop.time())
        self._after()

    # --- what the channels tell --------------------------------------------------------------------------------

    def channel_ready(self, bookie_id: BookieId) -> None:
        """Send the bookie all that it lacks."""
        connection = self._pool.peer(bookie_id).add_channel.connection
        assert connection is not None and connection.hello is not None
        self.data_bytes_max = min(
            self.data_bytes_max,
            connection.hello.frame_size_bytes_max - self._codec.add_overhead_bytes,
        )
        self.machine.connected(bookie_id, self._loop.time())
        self._pump_bookie(bookie_id)
        self.lac_sender.resend_to(bookie_id)
        self._after()

    def channel_lost(self, bookie_id: BookieId, reason: str) -> None:
        """Note it; the channel comes back by itself."""
        is_gone = self._pool.known.is_gone(bookie_id)
        self.machine.lost(bookie_id, reason, self._loop.time(), is_gone=is_gone)
        self._after()
        self._note_laggards()

    def channel_drained(self, bookie_id: BookieId) -> None:
        """Send on."""
        self._pump_bookie(bookie_id)

    def add_answered(
        self, bookie_id: BookieId, first_sequence: int, count: int, status: int
    ) -> None:
        """Take an answer to the adds whose sequences begin there."""
        machine = self.machine
        first = entry_of(first_sequence, self.adds.head)
        if status == Status.OK:
            if self._backoffs:
                self._backoffs.pop(bookie_id, None)
            was_probed = (
                bool(self.adds.probed_members)
                and machine.index_of(bookie_id) in self.adds.probed_members
            )
            if machine.acknowledged(bookie_id, first, count):
                self._release()
            if self.adds.failure is not None:
                self._after()
            if was_probed:
                self._pump_bookie(bookie_id)
            if self._laggards is not None:
                self._note_laggards()
            return
        if status == Status.IO_ERROR:
            self._pool.failed(bookie_id)
        again = machine.refused(bookie_id, first, count, status, self._loop.time())
        self._note_laggards()
        if again and bookie_id not in self._retries:
            wait_s = self._backoffs[bookie_id].pause_s()
            self._retries[bookie_id] = self._loop.call_later(wait_s, self._retry, bookie_id)
        self._after()

    def _retry(self, bookie_id: BookieId) -> None:
        self._retries.pop(bookie_id, None)
        self.machine.retry(bookie_id)
        self._pump_bookie(bookie_id)
        self._after()

    def bookies_changed(self, read_only: Collection[BookieId]) -> None:
        """Others may be had by now; `read_only` are to be replaced."""
        self.machine.bookies_changed(self._loop.time(), read_only)
        self._after()

    def _release(self) -> None:
        """Resolve everything below the head, in order (INV-C1)."""
        head = self._released = self.adds.head
        self.clock.finish(head)
        waiters = self._waiters
        while waiters and waiters[0][0] < head:
            _, size, waiter, result = waiters.popleft()
            self.bytes_in_flight -= size
            if not waiter.done():
                waiter.set_result(result)
        if self.publishes_at_once and self.next_entry_id == head:
            # INV-C5: whoever waits runs only when this has returned, and may then keep the loop from all else.
            self.lac_sender.send_untold()
        self.lac_sender.schedule()
        self._on_progress()

    def end(self, error: Error) -> None:
        """End the writer from outside; what waits fails with `error`, or with what ended it before."""
        self.machine.end(error, self._loop.time())
        self._after()

    def _fail(self) -> None:
        """Fail everything that is not acknowledged, in order, with the same cause (INV-C2)."""
        if self._has_failed:
            return
        self._has_failed = True
        failure = self.machine.failure
        assert failure is not None
        if not isinstance(failure, LedgerFenced | NoSuchLedger):
            self.lac_sender.send_last()
        self._queue = []
        waiters, self._waiters = self._waiters, deque()
        self.bytes_in_flight = 0
        entry_id = self.adds.head
        for last, _, future, _ in waiters:
            if not future.done():
                error = failure.copy()
                # A flush adds nothing: what it waited for came before it.
                error.entry_id = min(entry_id, last)
                error.outcome = self.adds.outcome(error.entry_id)
                future.set_exception(error)
            entry_id = last + 1
        self._on_progress()
        self._stop_timers()

    # --- end ---------------------------------------------------------------------------------------------------

    async def wait_for_laggards(self, timeout_s: float) -> None:
        """Give reachable bookies beyond the ack quorum a moment to take what they were sent, if they take adds."""
        if not self._has_laggards():
            return
        self._laggards = self._loop.create_future()
        try:
            await asyncio.wait([self._laggards], timeout=max(0.0, timeout_s))
        finally:
            self._laggards = None

    def _has_laggards(self) -> bool:
        return any(
            peer.add_channel.connection is not None
            and self.adds.lagging(index)
            and self.machine.health.takes_adds(index)
            for index, peer in enumerate(self.peers)
        )

    def _note_laggards(self) -> None:
        if self._laggards is not None and not self._laggards.done() and not self._has_laggards():
            self._laggards.set_result(None)

    def settle(self) -> None:
        """Change the ensemble no more: the ledger is about to be closed."""
        self.machine.stop(self._loop.time())
        self._after()

    def stop(self) -> None:
        """Let go of channels and timers."""
        self._runner.stop()
        self._stop_timers()
        for peer in self.peers:
            peer.add_channel.unsubscribe(self)
        self._pool.slots.pop(self._slot, None)

    def _stop_timers(self) -> None:
        self.lac_sender.stop()
        for timer in (self._wake, *self._retries.values()):
            if timer is not None:
                timer.cancel()
        self._wake = None
        self._retries.clear()


# --- with spans -----------------------------------------------------------------------------------
#
# A writer's pipe that makes spans of sampled appends: of each one, and of each copy that a bookie
# is sent.
#
# A class beside `AddPipe`, so that without tracing an append costs what it did.


TRACED_MAX = 100
"""Appends of one writer that are traced at a time; more are not traced."""


def pipe_of(
    machine: WriterMachine, io: LedgerIo, config: ClientConfig, on_progress: Callable[[], None]
) -> AddPipe:
    """Return a writer's pipe, with spans or without."""
    tracer = tracer_of(config.tracing)
    if tracer is None:
        return AddPipe(machine, io, config, on_progress)
    return TracedPipe(machine, io, config, on_progress, tracer)


class TracedAdd:
    """An append that is traced, until all bookies of its write set have it."""

    __slots__ = ("copies", "is_over", "last", "span", "stored")

    def __init__(self, span: Span, last: EntryId) -> None:
        self.span = span
        self.last = last
        """The last of several entries; its copies have the spans."""
        self.copies: dict[BookieId, Span] = {}
        """Sent and not answered."""
        self.stored: set[BookieId] = set()
        self.is_over = False
        """Acknowledged or failed."""


class TracedPipe(AddPipe):
    """`AddPipe` with spans."""

    def __init__(
        self,
        machine: WriterMachine,
        io: LedgerIo,
        config: ClientConfig,
        on_progress: Callable[[], None],
        tracer: Tracer,
    ) -> None:
        self._tracer = tracer
        self._traced: deque[TracedAdd] = deque()
        super().__init__(machine, io, config, on_progress)

    # --- admission ---------------------------------------------------------------------------------------------

    def admit_one(self, data: bytes, size: int) -> asyncio.Future[EntryId]:
        """Do the same as `AddPipe`."""
        self._begin(1, size)
        return super().admit_one(data, size)

    def admit(self, datas: list[bytes], size: int, waiter: Waiter, result: object) -> None:
        """Do the same as `AddPipe`."""
        self._begin(len(datas), size)
        super().admit(datas, size, waiter, result)

    def _begin(self, count: int, size: int) -> None:
        if not self._tracer.wants_span():
            return
        if len(self._traced) >= TRACED_MAX and not self._traced[0].is_over:
            return
        first = self.next_entry_id
        attributes: Attributes = {
            "fastbk.ledger.id": self.ledger_id,
            "fastbk.entry.id": first,
            "fastbk.entry.count": count,
            "fastbk.entry.bytes": size,
        }
        span = self._tracer.begin("append to ledger", "internal", attributes)
        if span is None:
            return
        if len(self._traced) >= TRACED_MAX:
            _end_copies(self._traced.popleft(), "not answered while 100 later appends were traced")
        self._traced.append(TracedAdd(span, first + count - 1))

    # --- what happens to it ------------------------------------------------------------------------------------

    def _pump(self, index: int) -> None:
        super()._pump(index)
        if not self._traced or self.peers[index].add_channel.connection is None:
            return
        adds, bookie_id = self.adds, self.peers[index].bookie_id
        for traced in self._traced:
            last = traced.last
            is_new = bookie_id not in traced.copies and bookie_id not in traced.stored
            if is_new and adds.owns_any(index, last, last + 1) and adds.was_sent(index, last):
                attributes = {"fastbk.bookie.id": bookie_id}
                traced.copies[bookie_id] = traced.span.child("add to bookie", "client", attributes)

    def add_answered(
        self, bookie_id: BookieId, first_sequence: int, count: int, status: int
    ) -> None:
        """As `AddPipe` does."""
        if self._traced:
            first = entry_of(first_sequence, self.adds.head)
            for traced in self._traced:
                if not first <= traced.last < first + count or bookie_id not in traced.copies:
                    continue
                if status == Status.OK:
                    traced.copies.pop(bookie_id).end()
                    traced.stored.add(bookie_id)
                else:
                    traced.copies[bookie_id].event(
                        "refused", {"fastbk.status": status_name(status)}
                    )
        super().add_answered(bookie_id, first_sequence, count, status)
        self._forget_complete()

    def channel_lost(self, bookie_id: BookieId, reason: str) -> None:
        """Do the same as `AddPipe`."""
        for traced in self._traced:
            if bookie_id in traced.copies:
                traced.copies[bookie_id].event("connection lost", {"fastbk.reason": reason})
        super().channel_lost(bookie_id, reason)

    def _follow_machine(self) -> None:
        if self._traced and self._version != self.machine.ensemble_version:
            for replacement in self.machine.replacements:
                self._replaced(replacement)
            self._forget_complete()
        super()._follow_machine()

    def _replaced(self, replacement: Replacement) -> None:
        attributes = {
            "fastbk.bookie.id": replacement.bookie_id,
            "fastbk.replacement.id": replacement.replacement,
            "fastbk.reason": replacement.reason,
        }
        for traced in self._traced:
            if not traced.is_over:
                traced.span.event("ensemble changed", attributes)
            copy = traced.copies.pop(replacement.bookie_id, None)
            if copy is not None:
                copy.fail(f"replaced: {replacement.reason}")

    def _release(self) -> None:
        for traced in self._traced:
            if traced.last >= self.adds.head:
                break
            if not traced.is_over:
                traced.is_over = True
                traced.span.end()
        super()._release()

    def _forget_complete(self) -> None:
        # A bookie that is not connected yet is sent its copy later.
        while self._traced and self._traced[0].is_over:
            if len(self._traced[0].stored) < self.adds.write_quorum:
                break
            self._traced.popleft()

    # --- the end -----------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        self._end_traced(self.machine.failure)
        super()._fail()

    def stop(self) -> None:
        """Do the same as `AddPipe`."""
        self._end_traced(None)
        super().stop()

    def _end_traced(self, failure: Error | None) -> None:
        while self._traced:
            traced = self._traced.popleft()
            _end_copies(traced, "not answered before the writer ended")
            if not traced.is_over:
                traced.span.fail(
                    f"{type(failure).__name__}: {failure}" if failure else "the writer ended"
                )


def _end_copies(traced: TracedAdd, reason: str) -> None:
    for copy in traced.copies.values():
        copy.fail(reason)
