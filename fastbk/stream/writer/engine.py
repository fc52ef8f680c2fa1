"""What lies between a writer's queue and its segments: sending, rolling, acknowledgements, and the end by a failure.

Acknowledgements come in the order of the entries, and so futures resolve in the order of the calls (INV-S5).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import (
    AppendUnknown,
    BufferFull,
    ClientClosed,
    Error,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    NoSuchLedger,
    QuorumTimeout,
    QuotaExceeded,
    StreamNotFound,
    WriterFailed,
    WriterFenced,
)
from fastbk.native.stream_codec import HEAD_BYTES, RECORD_OVERHEAD_BYTES_MAX
from fastbk.observe.latency import AppendClock
from fastbk.observe.meter import SENT, Figures, duration_figures, meter_of, sending
from fastbk.observe.tracing import tracer_of
from fastbk.stream.chain.chain import Segment
from fastbk.stream.chain.changes import Contents, close_segment
from fastbk.stream.chain.segment_slots import slots_of
from fastbk.stream.chain.store import VersionedChain
from fastbk.stream.context import StreamContext, as_error
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.stats import StreamWriterStats
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.queue import Group, WriterQueue
from fastbk.stream.writer.rolling import Rolling
from fastbk.stream.writer.segment_lifecycle import SegmentLifecycle
from fastbk.stream.writer.segment_writer import SegmentWriter
from fastbk.stream.writer.traced_appends import TracedAppends

ENTRIES_BEFORE_PACKING = 2
"""With as many in flight, the last group stays open for more until an acknowledgement comes."""
TAKEN_OVER = (LedgerFenced, LedgerClosed, NoSuchLedger, MetadataConflict)
"""Of a segment's ledger: somebody else has it, and only the chain says whether that is another writer."""
_ONLY_THE_WRITER = (
    "Open it again only if this process is to be the writer: that fences the other one."
)


class AppendEngine:
    """One writer's, from its opening to its end.

    Attributes:
        failure: what ended the writer, None while it goes on.
        last_dlsn: of the last record that was acknowledged, also by earlier writers.
        is_waiting: somebody took the current segment's ledger over, and who did is being found out (INV-S16).
        intake: what takes records: the queue, or with tracing what makes their spans before.
        clock: how long appends took.
        segments: that were written to.
    """

    def __init__(
        self,
        context: StreamContext,
        options: WriterOptions,
        known: VersionedChain,
        policy: StreamPolicy,
        progressed: Callable[[], None],
    ) -> None:
        """`progressed()` is called when there may be room again, or the writer has ended."""
        chain = known.chain
        self.failure: Error | None = None
        self.last_dlsn = chain.last_dlsn
        self.queue = WriterQueue(
            options.entry_bytes_max, options.batch_bytes, options.unacked_bytes_max, chain.last_txid
        )
        tracer = tracer_of(context.client.config.tracing)
        self.intake = (
            self.queue if tracer is None else TracedAppends(tracer, self.queue, context.name)
        )
        self.lifecycle = SegmentLifecycle(
            context, known, self._make, self.send_soon, self.fail, self._lost_was_found
        )
        self.clock = AppendClock()
        self.segments = 0
        self._turn_s: float | None = None
        self._begun = 0
        self._records = self._record_bytes = 0
        self._ledgers: list[LedgerWriter] = []
        self._resent = self._ensemble_changes = 0
        self._lost: list[tuple[Group, DLSN]] = []
        self._loss: Error | None = None
        self._loss_timer: asyncio.TimerHandle | None = None
        self._loss_limit_s = context.client.config.append_timeout
        self.options = options
        self._unsettled = context.client.unsettled
        self._unsettled.add(self)
        self._name = context.name
        self._progressed = progressed
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._flushing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.rolling = Rolling(self, context, policy, chain.newest_time_us)
        meter = meter_of(context.client.config.tracing)
        self._source = None if meter is None else meter.add(sending(context.name), self._figures)

    def _make(self, row: Segment, ledger: LedgerWriter, policy: StreamPolicy) -> SegmentWriter:
        self._count_ledger(ledger)
        tracer = self.intake.tracer if isinstance(self.intake, TracedAppends) else None
        return SegmentWriter(row, ledger, policy, self._acknowledged, self._entry_failed, tracer)

    # --- figures --------------------------------------------------------------------------------------------------

    def _count_ledger(self, ledger: LedgerWriter) -> None:
        """Have a ledger's figures in those of the stream; of one that has ended they are kept without it."""
        ended = [one for one in self._ledgers if one.is_done]
        self._ledgers = [one for one in self._ledgers if not one.is_done] + [ledger]
        self.segments += 1
        self._resent += sum(one.entries_resent for one in ended)
        self._ensemble_changes += sum(one.ensemble_changes for one in ended)

    def stats(self, appends_waiting: int) -> StreamWriterStats:
        """Return the writer's figures now. `appends_waiting`: for room."""
        ledgers = list(self._ledgers)
        return StreamWriterStats(
            records=self._records,
            bytes=self._record_bytes,
            appends_in_flight=self.queue.taken - self.queue.settled,
            bytes_in_flight=self.queue.unacked_bytes,
            appends_waiting=appends_waiting,
            segments=self.segments,
            entries_resent=self._resent + sum(one.entries_resent for one in ledgers),
            ensemble_changes=self._ensemble_changes + sum(one.ensemble_changes for one in ledgers),
            append_latency=self.clock.histogram.latency(),
            times_ahead=self.rolling.times_ahead,
        )

    def _figures(self) -> Figures:
        found = self.stats(0)
        return {
            SENT: found.records,
            "fastbk.client.send.size": found.bytes,
            "fastbk.client.send.pending": found.appends_in_flight,
            "fastbk.client.send.buffered": found.bytes_in_flight,
            "fastbk.client.send.resent": found.entries_resent,
            "fastbk.client.send.ensemble_changes": found.ensemble_changes,
            "fastbk.client.send.times_ahead": found.times_ahead,
            **duration_figures("send", found.append_latency),
        }

    @property
    def segment(self) -> SegmentWriter | None:
        """The segment that is written now; None before the first append."""
        return self.rolling.segment

    @property
    def is_waiting(self) -> bool:
        """Whether the current segment was lost, and what its ledger holds is not known yet."""
        return self._loss is not None

    # --- sending ------------------------------------------------------------------------------------------------

    def queued(self) -> None:
        """Something was put into the queue: send it in the next turn of the loop, with all that this turn appends.

        With a linger, when that is over, or when an entry is full.
        """
        if not self.options.linger or len(self.queue.groups) > 1 or self.queue.groups[0].is_atomic:
            self.send_soon()
        elif self._linger_timer is None:
            self._turn_s = time.monotonic()
            self._linger_timer = self._loop.call_later(self.options.linger, self._send)

    def send_soon(self) -> None:
        """Send in the next turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            if self._turn_s is None:
                self._turn_s = time.monotonic()
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        try:
            self._send_queued()
        except BaseException as error:
            # A bug: the loop would only log it, and those who append would wait for ever.
            self.fail(as_error(error, f"the writer of {self._name}"))
            raise

    def _send_queued(self) -> None:
        self._is_scheduled = False
        self._cancel_linger()
        if self._begun < self.queue.taken:
            self._begun = self.queue.taken
            self.clock.begin(self._begun, self._turn_s or time.monotonic())
        self._turn_s = None
        if self._loss is not None:
            return
        queue, most = self.queue, self.options.entries_in_flight
        if self.rolling.is_due and not queue.groups and self.failure is None:
            self.rolling.segment_for_next()
        while queue.groups and self.failure is None:
            segment = self.rolling.segment_for_next()
            if segment is None or segment.in_flight >= most:
                return
            group = queue.take(only_full=segment.in_flight >= ENTRIES_BEFORE_PACKING)
            if group is None:
                return
            try:
                segment.send(group, self.rolling.not_before_us)
            except BufferFull:
                queue.groups.appendleft(group)
                return  # an acknowledgement makes room, and comes here
            except BaseException as error:
                # It was not sent: it fails in its turn, behind all that was (INV-S5).
                queue.groups.appendleft(group)
                if isinstance(error, TAKEN_OVER):
                    self._begin_loss(segment, error)
                    return
                failed = error if isinstance(error, Error) else Error(f"cannot be sent: {error!r}")
                failed.__cause__ = error.__cause__ if failed is error else error
                self.fail(failed)
                if not isinstance(error, Exception):
                    raise

    # --- answers ------------------------------------------------------------------------------------------------

    def _acknowledged(self, group: Group, first: DLSN) -> None:
        if self.failure is not None:
            # Acknowledged behind one that failed: for the caller it never is (INV-S5).
            self._give_up(group, self._unknown(self.failure))
            self._settle()
            return
        current = self.segment
        self.queue.acknowledged(group)
        self.clock.finish(self.queue.settled)
        count = len(group.payloads)
        self._records += count
        self._record_bytes += group.size_bytes - HEAD_BYTES - count * RECORD_OVERHEAD_BYTES_MAX
        segment, entry, _ = first
        self.last_dlsn = DLSN(segment, entry, len(group.payloads) - 1)
        for slot, waiter in enumerate(group.waiters):
            if not waiter.done():
                waiter.set_result(DLSN(segment, entry, slot))
        self._wake_flushed()
        if self.queue.groups or self.rolling.is_due:
            self._send()
        if current is not None and self.options.publish == "immediate":
            # INV-S17: whoever waits runs only when this has returned, and may then keep the loop from all else.
            current.ledger.send_lac()
        self._progressed()

    def _entry_failed(self, group: Group, first: DLSN, error: Error) -> None:
        segment = self.segment
        if (
            self.failure is None
            and segment is not None
            and (isinstance(error, TAKEN_OVER) or self._loss is not None)
        ):
            self._lost.append((group, first))
            self._begin_loss(segment, error)
            return
        # It has failed before anybody is told: whoever is, in another thread, is refused at once.
        is_first, self.failure = self.failure is None, self.failure or self._failure_of(error)
        self._give_up(group, self._unknown(self.failure))
        if is_first:
            self._end(self.failure)
        self._settle()

    def _unknown(self, failure: Error) -> Error:
        """Return the error of an append that was sent, of a writer that ended so."""
        cause = failure.__cause__ or failure
        if isinstance(failure, StreamNotFound):
            error: Error = failure.copy()
            error.outcome = "unknown"
            return error
        if isinstance(failure, WriterFenced):
            error = WriterFenced(
                f"{self._name}: another writer has opened the stream while this append was under way ({cause})."
                f" It may be kept: read the stream to find out. {_ONLY_THE_WRITER}"
            )
        else:
            error = AppendUnknown(
                f"{self._name}: {cause}; it may be kept: open the stream again and look at last_txid"
            )
        error.__cause__ = cause
        return error

    def unsent(self) -> Error:
        """Return the error of an append that was never sent, of a writer that has ended."""
        assert self.failure is not None
        error = self.failure.copy()
        error.outcome = "not_written"
        return error

    lost_event = "client.appends_lost"

    @property
    def label(self) -> str:
        """What it has taken."""
        return f"appends to stream {self._name}"

    @property
    def is_unsettled(self) -> bool:
        """Whether records were taken that are neither acknowledged nor have failed."""
        return self.queue.settled < self.queue.taken

    @property
    def trouble(self) -> str:
        """Why records have failed; empty: none has."""
        return "" if self.failure is None else str(self.failure)

    async def until_settled(self) -> None:
        """Return when all that was taken so far is acknowledged, or has failed; nothing of it lingers."""
        if self.queue.settled < self.queue.taken:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((self.queue.taken, future))
            self.send_soon()
            await future

    def _wake_flushed(self) -> None:
        while self._flushing and self._flushing[0][0] <= self.queue.settled:
            _, future = self._flushing.popleft()
            if not future.done():
                future.set_result(None)

    def _give_up(self, group: Group, error: Error) -> None:
        self.queue.acknowledged(group)
        for waiter in group.waiters:
            if not waiter.done():
                waiter.set_exception(error.copy())
                waiter.exception()  # nobody has to look at each of many
        self._wake_flushed()

    def fail(self, error: Error) -> None:
        """End the writer, unless it has ended: the first cause counts (INV-S5)."""
        if self.failure is not None:
            self.stop()
            return
        self.failure = self._failure_of(error)
        self._end(self.failure)

    def _end(self, failure: Error) -> None:
        self.stop()
        self._end_loss()
        lost, self._lost = self._lost, []
        for group, _ in lost:
            self._give_up(group, self._unknown(failure))
        if self.segment is not None:
            self.segment.ledger.abandon(ClientClosed(str(failure), outcome="unknown"))
        self._settle()

    def _failure_of(self, error: Error) -> Error:
        """Return what a writer says that this error has ended. The outcome is that of appends that were sent."""
        if isinstance(error, WriterFailed | QuotaExceeded):
            return error.copy()
        if isinstance(error, StreamNotFound):
            # The store says so, which knows the stream perhaps only by its id.
            gone = StreamNotFound(
                f"{self._name} was deleted: nothing can be appended to it any more"
            )
            gone.__cause__ = self._loss or error
            return gone
        if isinstance(error, MetadataConflict):
            # By the chain: another writer has begun an epoch (INV-S16).
            error = self._loss or error
            failure: Error = WriterFenced(
                f"{self._name}: another writer has opened the stream, and this one has ended ({error})."
                f" {_ONLY_THE_WRITER}"
            )
        else:
            failure = WriterFailed(f"{self._name}: an append failed: {error}", outcome="unknown")
        failure.__cause__ = error
        return failure

    def refuse(self, error: QuotaExceeded) -> None:
        """End the writer for want of room: all that was sent is acknowledged, and the segment is ended behind it."""
        self.failure = error.copy()
        self.rolling.stop()
        if self.segment is not None:
            self.lifecycle.end(self.segment)
        self._settle()

    # --- a segment whose ledger was taken over --------------------------------------------------------------------

    def _begin_loss(self, segment: SegmentWriter, error: Error) -> None:
        """Somebody closed the segment's ledger, or does. Once all in flight has failed, the chain says who.

        One who empties a bookie closes ledgers that nobody writes to now; then the ledger says which appends it
        holds, and the others go to a new segment, in their order (INV-S5).
        """
        if self._loss is None:
            self._loss = error
            self._loss_timer = self._loop.call_later(self._loss_limit_s, self._loss_is_late)
        if segment.in_flight == 0 and not segment.is_lost:
            segment.is_lost = True
            self.lifecycle.end(segment)

    def _loss_is_late(self) -> None:
        assert self._loss is not None
        loss, trouble = self._loss, self.lifecycle.trouble
        failed = WriterFailed(
            f"{self._name}: {loss}; what was kept could not be found out within {self._loss_limit_s:g} s"
            f" ({trouble})",
            outcome="unknown",
        )
        failed.__cause__ = trouble or loss
        self.fail(failed)

    def _lost_was_found(self, segment: SegmentWriter, contents: Contents) -> None:
        lost, self._lost = self._lost, []
        self._end_loss()
        last = -1 if contents.last_dlsn is None else contents.last_dlsn.entry
        kept = sum(1 for _, first in lost if first.entry <= last)
        self.queue.groups.extendleft(group for group, _ in reversed(lost[kept:]))
        self.rolling.leave_lost(segment)
        for group, first in lost[:kept]:
            self._acknowledged(group, first)
        self.send_soon()

    def _end_loss(self) -> None:
        self._loss = None
        if self._loss_timer is not None:
            self._loss_timer.cancel()
            self._loss_timer = None

    def _settle(self) -> None:
        """What was never sent fails behind all that was."""
        if self.failure is None or (self.segment is not None and self.segment.in_flight):
            return
        unsent = self.unsent()
        while self.queue.groups:
            self._give_up(self.queue.groups.popleft(), unsent)
        self._progressed()

    def _cancel_linger(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    def stop(self) -> None:
        """Create and end no more segments."""
        self._unsettled.discard(self)
        if self._source is not None:
            self._source.close()
        self._cancel_linger()
        self.rolling.stop()
        self.lifecycle.stop()


async def end_segments(context: StreamContext, engine: AppendEngine, epoch: int) -> None:
    """Close the segment that is written, and remove the next one, which is empty. Raises what ended the writer."""
    lifecycle = engine.lifecycle
    engine.rolling.stop()
    if engine.segment is not None:
        lifecycle.end(engine.segment)
    await lifecycle.until_idle()
    if engine.failure is not None:
        raise engine.failure.copy()
    if lifecycle.ready is None:
        return
    # Nothing was written to it: it goes, and its ledger is deleted as it is.
    unused = lifecycle.take().ledger
    unused.abandon(ClientClosed(f"{context.name}: the writer was closed"))
    try:
        async with lifecycle.turn():
            lifecycle.known = await context.store.change(
                lambda chain: close_segment(chain, unused.ledger_id, Contents(0), epoch),
                lifecycle.known,
            )
    except MetadataConflict as error:
        engine.fail(error)
        raise WriterFenced(
            f"{context.name}: another writer has opened it: {error}", outcome="written"
        ) from error


def ended_too_late(context: StreamContext, engine: AppendEngine) -> QuorumTimeout:
    """Return the error of a segment that could not be ended in time, with what kept it as its cause."""
    trouble = engine.lifecycle.trouble or slots_of(context.client).trouble
    error = QuorumTimeout(
        f"{context.name}: its segment could not be ended in time ({trouble}); all appends are kept, and it is"
        " ended when that is possible, by whoever writes the stream then",
        outcome="written",
    )
    error.__cause__ = trouble
    return error
