"""The way of a stream's records from the writer's calls to the writers of its ledgers.

`AppendEngine` sends what its `WriterQueue` packed to the `SegmentWriter` that `Rolling` names, takes
acknowledgements, and ends the writer by the first failure. Acknowledgements come in the order of the
entries, and so futures resolve in the order of the calls (INV-S5). `segment_lifecycle.py` creates
segments and ends them, beside this path.

Decision 150.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
    QuotaExceeded,
    StreamNotFound,
    WriterFailed,
    WriterFenced,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.observe.meter import (
    SENT,
    AppendClock,
    Figures,
    Latency,
    duration_figures,
    meter_of,
    sending,
)
from fastbk.observe.tracing import Span, Tracer
from fastbk.stream.chain import NONE, Contents, Segment, carried_us
from fastbk.stream.chain_store import VersionedChain
from fastbk.stream.context import StreamContext, as_error, clock_us
from fastbk.stream.opening import slots_of
from fastbk.stream.options import WriterOptions
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import CARRIED_US_MAX, DLSN
from fastbk.stream.records import CODECS, compressed
from fastbk.stream.segment_contents import IndexBuilder
from fastbk.stream.writer.queue import EntryGroup, EntryPlace, EntryQueue
from fastbk.stream.writer.segment_lifecycle import NEVER, SegmentLifecycle, roll_times

_log = LibraryLog("fastbk.stream")

ENTRIES_BEFORE_PACKING = 2
"""With so many in flight, the last group stays open for more until an acknowledgement comes."""
TAKEN_OVER = (LedgerFenced, LedgerClosed, NoSuchLedger, MetadataConflict)
"""Errors of a segment's ledger that somebody else has: only the chain says whether that is another writer."""
_ONLY_THE_WRITER = (
    "Open it again only if this process is to be the writer: that fences the other one."
)


@dataclass(frozen=True, slots=True)
class StreamWriterStats:
    """Figures of one writer at one moment, since it was opened."""

    records: int
    """Acknowledged."""
    bytes: int
    """Bytes of their payloads, keys and headers."""
    appends_in_flight: int
    """Records and batches that were taken and are not acknowledged yet."""
    bytes_in_flight: int
    """What these count in the bound `unacked_bytes_max`: with some 30 bytes around each record."""
    appends_waiting: int
    """Appends that wait for room, and are not taken yet."""
    segments: int
    """That it has begun to write."""
    entries_resent: int
    """Copies of entries that were sent to a bookie again, after a lost connection or a refusal."""
    ensemble_changes: int
    """How often other bookies were taken in place of some."""
    append_latency: Latency
    """Time of a record from the turn of the event loop that took it to its acknowledgement; `linger` counts, too."""
    times_ahead: int = 0
    """How often the last record before a segment said a time over a minute ahead of this machine's clock."""


class AppendEngine:
    """One writer's, from its opening to its end.

    Attributes:
        failure: what ended the writer, None while it goes on.
        last_dlsn: of the last record that was acknowledged, also by earlier writers.
        is_waiting: somebody took the current segment's ledger over, and who did is being found out (INV-S16).
        clock: how long appends took.
        segments: that were written to.
    """

    def __init__(
        self,
        context: StreamContext,
        options: WriterOptions,
        known: VersionedChain,
        policy: StreamPolicy,
        on_progress: Callable[[], None],
        queue: EntryQueue,
        tracer: Tracer | None = None,
    ) -> None:
        """`on_progress()` is called when there may be room again, or the writer has ended.

        `tracer`: of the ledgers' appends, whose spans lie within those of their groups.
        """
        chain = known.chain
        self.failure: Error | None = None
        self.last_dlsn = chain.last_dlsn
        self.queue = queue
        self._tracer = tracer
        self.lifecycle = SegmentLifecycle(
            context,
            known,
            make_writer=self._make_writer,
            on_ready=self.send_soon,
            on_lost_ended=self._lost_was_ended,
            on_fatal=self.fail,
        )
        self.clock = AppendClock()
        self.segments = 0
        self._turn_s: float | None = None
        self._begun = 0
        self._records = self._record_bytes = 0
        self._ledgers: list[LedgerWriter] = []
        self._resent = self._ensemble_changes = 0
        self._lost: list[tuple[EntryGroup, DLSN]] = []
        self._loss: Error | None = None
        self._loss_timer: asyncio.TimerHandle | None = None
        self._loss_limit_s = context.client.config.append_timeout
        self.options = options
        self._unsettled = context.client.unsettled
        self._unsettled.add(self)
        self._name = context.name
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._flushing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.rolling = Rolling(self, context, policy, chain.newest_time_us)
        meter = meter_of(context.client.config.tracing)
        self._source = None if meter is None else meter.add(sending(context.name), self._figures)

    def _make_writer(
        self, row: Segment, ledger: LedgerWriter, policy: StreamPolicy
    ) -> SegmentWriter:
        self._count_ledger(ledger)
        return SegmentWriter(
            row, ledger, policy, self._acknowledged, self._entry_failed, self._tracer
        )

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
            entries_resent=self._resent + sum(ledger.entries_resent for ledger in ledgers),
            ensemble_changes=self._ensemble_changes
            + sum(ledger.ensemble_changes for ledger in ledgers),
            append_latency=self.clock.histogram.latency(),
            times_ahead=self.rolling.times_ahead,
        )

    def _figures(self) -> Figures:
        stats = self.stats(0)
        return {
            SENT: stats.records,
            "fastbk.client.send.size": stats.bytes,
            "fastbk.client.send.pending": stats.appends_in_flight,
            "fastbk.client.send.buffered": stats.bytes_in_flight,
            "fastbk.client.send.resent": stats.entries_resent,
            "fastbk.client.send.ensemble_changes": stats.ensemble_changes,
            "fastbk.client.send.times_ahead": stats.times_ahead,
            **duration_figures("send", stats.append_latency),
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
                if isinstance(error, TAKEN_OVER) and queue.may_resend:
                    self._begin_loss(segment, error)
                    return
                failed = error if isinstance(error, Error) else Error(f"cannot be sent: {error!r}")
                failed.__cause__ = error.__cause__ if failed is error else error
                self.fail(failed)
                if not isinstance(error, Exception):
                    raise

    # --- answers ------------------------------------------------------------------------------------------------

    def _acknowledged(self, group: EntryGroup, first: DLSN) -> None:
        if self.failure is not None:
            # Acknowledged behind one that failed: for the caller it never is (INV-S5).
            self._give_up(group, self._unknown(self.failure))
            self._settle()
            return
        current = self.segment
        self.queue.acknowledged(group)
        self.clock.finish(self.queue.settled)
        self._records += group.count
        self._record_bytes += group.data_bytes
        segment, entry, _ = first
        if group.count:
            self.last_dlsn = DLSN(segment, entry, group.count - 1)
        group.resolve(segment, entry)
        self._wake_flushed()
        if self.queue.groups or self.rolling.is_due:
            self._send()
        if current is not None and self.options.publish == "immediate":
            # INV-S17: whoever waits runs only when this has returned, and may then keep the loop from all else.
            current.ledger.send_lac()
        self._on_progress()

    def _entry_failed(self, group: EntryGroup, first: DLSN, error: Error) -> None:
        segment = self.segment
        if (
            self.failure is None
            and segment is not None
            and self.queue.may_resend
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

    def _give_up(self, group: EntryGroup, error: Error) -> None:
        self.queue.acknowledged(group)
        group.give_up(error)
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

    def _lost_was_ended(self, segment: SegmentWriter, contents: Contents) -> None:
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
        self._on_progress()

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


class Rolling:
    """When a writer rolls, and which segment its next records go to.

    A segment rolls by its size, by its age, or by a call of `StreamWriter.roll`: README.md, "The
    life of a segment". Idle streams are rolled by the janitor. By age a segment rolls when it has
    90 to 100 percent of the policy's: its ledger's id decides when, so that thousands of streams
    that began together do not roll in the same moment.

    Attributes:
        segment: the segment that is written now; None before the first append.
        is_due: the segment is to be left for the next one.
        not_before_us: no entry of the current segment has an earlier time.
        times_ahead: how often the last time before a segment was not carried on into it (INV-S22).
    """

    def __init__(
        self, engine: AppendEngine, context: StreamContext, policy: StreamPolicy, last_time_us: int
    ) -> None:
        self.segment: SegmentWriter | None = None
        self.is_due = False
        self.not_before_us = NONE
        self.times_ahead = 0
        self._last_time_us = last_time_us
        self._engine = engine
        self._context = context
        self._policy = policy
        self._times = NEVER
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._was_lost = False
        self._requests: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def segment_for_next(self) -> SegmentWriter | None:
        """Return the segment to write to; None while a roll waits for acknowledgements, or none is ready yet."""
        segment, lifecycle = self.segment, self._engine.lifecycle
        if self._engine.is_waiting:
            return None
        if segment is None:
            if lifecycle.ready is not None:
                return self._begin()
            if isinstance(lifecycle.trouble, QuotaExceeded):
                self._engine.refuse(lifecycle.trouble)
                return None
            lifecycle.prepare()
            self._wait_for_first()
            return None
        if self._is_stopped:
            return segment
        age_s = segment.age_s(time.monotonic())
        self.is_due = self.is_due or age_s >= self._times.roll_s or self._is_used(segment, 1.0)
        if segment.is_ahead:
            lifecycle.prepare()
            self.is_due = self.is_due or lifecycle.ready is not None
        if self.is_due and lifecycle.ready is not None:
            return None if segment.in_flight else self._roll_over()
        if self.is_due and isinstance(lifecycle.trouble, QuotaExceeded):
            if self._requests:
                # `roll` raises this; the writer continues in this segment.
                self.is_due = False
                self._end_requests(lifecycle.trouble)
            elif self._engine.queue.groups:
                # The segment and its namespace are full: what was sent stays, and the next records are rejected.
                if not segment.in_flight:
                    self._engine.refuse(lifecycle.trouble)
                return None
        if self.is_due or age_s >= self._times.ready_s or self._is_used(segment, 0.5):
            lifecycle.prepare()
        return segment

    def _is_used(self, segment: SegmentWriter, share: float) -> bool:
        """Return whether this share of the segment's size is used."""
        return 0 < share * self._policy.roll_bytes <= segment.size_bytes

    async def roll(self) -> None:
        """Return when the next records go to another segment, or the writer has ended.

        QuotaExceeded: there is no room for another segment; the writer continues in this one. An empty segment never
        rolls: what stands behind it in the chain would go with it.
        """
        if self.segment is None or self.segment.is_empty:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._requests.append(future)
        self.is_due = True
        self._engine.lifecycle.prepare()
        self._engine.send_soon()
        await future

    def _roll_over(self) -> SegmentWriter:
        """Continue in the segment that is ready; all of the old one is acknowledged, and it ends in the background."""
        assert self.segment is not None
        self.is_due = False
        self._last_time_us = self.segment.last_time_us
        self._engine.lifecycle.end(self.segment)
        return self._begin()

    def leave_lost(self, segment: SegmentWriter) -> None:
        """Go on in another segment: somebody closed this one's ledger."""
        self.is_due, self._was_lost = False, True
        self._last_time_us = segment.last_time_us
        self.segment = None
        self._cancel_timer()

    def _begin(self) -> SegmentWriter:
        self.segment = self._engine.lifecycle.take()
        self._policy = self.segment.policy
        self._carry_time()
        self._times = roll_times(self._policy.roll_age_s, self.segment.ledger.ledger_id)
        self._end_requests()
        self._check_age()
        return self.segment

    def _carry_time(self) -> None:
        """Have times go on from the last one, unless a wrong clock is behind it (INV-S22)."""
        now_us = clock_us()
        self.not_before_us = carried_us(self._last_time_us, now_us)
        if self.not_before_us != self._last_time_us:
            self.times_ahead += 1
            _log.warning(
                "stream.times_ahead",
                stream=self._context.name,
                ahead_s=round((self._last_time_us - now_us) / 1e6),
                reason="the last record before this segment says a later time than this machine's clock: its writer's"
                " clock was ahead, or this one is behind. Records get this clock's time. Check both clocks",
            )

    def _check_age(self) -> None:
        """Have a segment that nothing more is written to end by its age, too."""
        self._cancel_timer()
        if self._is_stopped or self.segment is None or not self._policy.roll_age_s:
            return
        pause_s = self._times.check_s(self.segment.age_s(time.monotonic()))
        self._timer = self._loop.call_later(pause_s, self._check_age)
        self.segment_for_next()

    def _end_requests(self, error: Error | None = None) -> None:
        waiting, self._requests = self._requests, []
        for future in waiting:
            if not future.done() and error is None:
                future.set_result(None)
            elif not future.done() and error is not None:
                future.set_exception(error.copy())

    def _wait_for_first(self) -> None:
        """End the writer if the first segment cannot be created within `first_segment_timeout`."""
        if self._timer is None:
            limit_s = self._engine.options.first_segment_timeout
            self._timer = self._loop.call_later(limit_s, self._first_is_late, limit_s)

    def _first_is_late(self, limit_s: float) -> None:
        self._timer = None
        slots = slots_of(self._context.client)
        trouble = self._engine.lifecycle.trouble
        if trouble is None and slots.troubled_s >= limit_s:
            trouble = slots.trouble  # nobody's turn ends well: ours would not, either
        if trouble is None:
            self._wait_for_first()  # its turn has not come yet; once it has, each call has a deadline
            return
        failed = WriterFailed(
            f"{self._context.name}: no {'other' if self._was_lost else 'first'} segment could be made within"
            f" {limit_s:g} s, and nothing was appended: {trouble}"
        )
        failed.__cause__ = trouble
        self._engine.fail(failed)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """Roll no more: the segment that is written is the last one."""
        self._is_stopped, self.is_due = True, False
        self._cancel_timer()
        self._end_requests()
        self._engine.lifecycle.prepare_no_more()


class SegmentWriter:
    """One segment while it is written: sends groups as entries, and knows what was acknowledged.

    Attributes:
        in_flight: entries that were sent and not acknowledged.
        records, size_bytes: of all that was sent.
        began_s: when the first entry was sent, by the monotonic clock; None before.
        last_time_us: no entry of the segment that follows has an earlier time.
        is_ahead: the last entry's time lies far ahead of this machine's clock, which has gone back.
        is_lost: somebody closed its ledger who does not write the stream: the ledger says what it holds.
    """

    def __init__(
        self,
        row: Segment,
        ledger: LedgerWriter,
        policy: StreamPolicy,
        on_acknowledged: Callable[[EntryGroup, DLSN], None],
        on_failed: Callable[[EntryGroup, DLSN, Error], None],
        tracer: Tracer | None = None,
    ) -> None:
        """`policy`: the stream's when the segment was created. Each group gets one callback, in their order.

        `tracer`: of the ledger; its spans are in those of records. None: it has none.
        """
        self.number = row.number
        self.ledger = ledger
        self.policy = policy
        self.in_flight = 0
        self.records = 0
        self.size_bytes = 0
        self.began_s: float | None = None
        self.is_lost = False
        self.last_time_us = row.created_us
        self.is_ahead = False
        self._epoch = row.epoch
        self._codec = CODECS[policy.compression]
        self._on_acknowledged = on_acknowledged
        self._on_failed = on_failed
        self._tracer = tracer
        self._index = IndexBuilder()
        self._index_entry_id = NONE
        self._is_index_due = True
        self._entries = 0
        self._first_txid = NONE
        self._last_txid = NONE
        self._first_time_us = NONE
        self._last_entry = NONE
        self._last_slot = 0

    @property
    def is_empty(self) -> bool:
        """Whether no entry was sent."""
        return self._entries == 0

    def age_s(self, now_s: float) -> float:
        """Return how long ago its first entry was sent; 0 while there is none."""
        return 0.0 if self.began_s is None else now_s - self.began_s

    def send(self, group: EntryGroup, not_before_us: int) -> None:
        """Send a group as one entry. Raises BufferFull, or what ended the ledger's writer; then nothing has changed."""
        now_us = time.time_ns() // 1000
        time_us = max(not_before_us, self.last_time_us, now_us)  # INV-S22
        entry_id = self._entries
        if not self.ledger.has_room(group.size_bytes):
            raise BufferFull(f"ledger {self.ledger.ledger_id} has no room now")
        place = EntryPlace(self._epoch, entry_id, self.records, self._distance, time_us)
        entry = compressed(group.encode(place), self._codec)
        future = self._append(entry, group.span)
        if self.began_s is None:
            self.began_s = time.monotonic()
            self._first_time_us = time_us
        self._index.add(entry_id, self.records, group.first_txid, time_us)
        self._entries += 1
        self.in_flight += 1
        self.size_bytes += len(entry)
        self.last_time_us = time_us
        self.is_ahead = time_us - now_us > CARRIED_US_MAX
        self._last_txid = group.last_txid
        if group.count:
            if not self.records:
                self._first_txid = group.first_txid
            self.records += group.count
            self._last_entry, self._last_slot = entry_id, group.count - 1

        def done(acknowledged: asyncio.Future[int]) -> None:
            self.in_flight -= 1
            error = None if acknowledged.cancelled() else acknowledged.exception()
            first = DLSN(self.number, entry_id, 0)
            if error is None and not acknowledged.cancelled():
                self._on_acknowledged(group, first)
            else:
                failed = error if isinstance(error, Error) else Error(str(error))
                self._on_failed(group, first, failed)

        future.add_done_callback(done)

    @property
    def _distance(self) -> int:
        """Entries from the next one back to the last one with records; 0: there is none."""
        return self._entries - self._last_entry if self.records else 0

    def _append(self, entry: bytes | bytearray, span: Span | None) -> asyncio.Future[int]:
        if self._tracer is None:
            return self.ledger.append_nowait(entry)
        return self._tracer.call_within(span, self.ledger.append_nowait, entry)

    @property
    def contents(self) -> Contents:
        """What it holds, once all that was sent is acknowledged."""
        if self.is_empty:
            return Contents(0)
        last_dlsn = DLSN(self.number, self._last_entry, self._last_slot)
        return Contents(
            records=self.records,
            first_txid=self._first_txid if self.records else self._last_txid,
            last_txid=self._last_txid,
            first_time_us=self._first_time_us,
            last_time_us=self.last_time_us,
            last_dlsn=last_dlsn if self.records else None,
            index_entry_id=self._index_entry_id,
            size_bytes=self.size_bytes,
        )

    async def end(self) -> None:
        """Write the index behind the records, and close the ledger. All sent before must be acknowledged.

        A reader that meets the index knows at once that the segment is complete. An index that cannot be written is
        done without: the ledger then ends behind its records. Raises what `close` raises; called again it goes on.
        """
        if self.records and self._is_index_due:
            self._is_index_due = False
            distance = (
                self._distance if self._distance > 1 else 0
            )  # as ever, where it is the one before
            entry = self._index.entry(
                self._epoch, self.records, self._last_txid, self.last_time_us, distance
            )
            try:
                self._index_entry_id = await self._append(entry, None)
            except LedgerFenced:
                raise
            except Error as error:
                # The ledger's writer ends with it; closing leaves out what was not acknowledged.
                _log.info("stream.no_index", ledger_id=self.ledger.ledger_id, reason=str(error))
            else:
                self.size_bytes += len(entry)
                self.ledger.send_lac()
        await self.ledger.close()
