"""What lies between a writer's queue and its segments: sending, rolling, acknowledgements, and the end by a failure.

Acknowledgements come in the order of the entries, and so futures resolve in the order of the calls (INV-S5).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from fastbk.client.explicit_lac_sender import FEW_IN_FLIGHT
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
    WriterFailed,
    WriterFenced,
)
from fastbk.stream.background_errors import as_error
from fastbk.stream.chain.chain import Segment
from fastbk.stream.chain.segment_slots import segment_works
from fastbk.stream.chain.store import Known
from fastbk.stream.context import StreamContext
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.queue import Group, WriterQueue
from fastbk.stream.writer.rolling import roll_age
from fastbk.stream.writer.segment_lifecycle import SegmentKeeper
from fastbk.stream.writer.segment_writer import SegmentWriter

ENTRIES_BEFORE_PACKING = 2
"""With as many in flight, the last group stays open for more until an acknowledgement comes."""
_ONLY_THE_WRITER = "Open it again only if this process is to be the writer: that fences the other one."


class AppendEngine:
    """One writer's, from its opening to its end.

    Attributes:
        segment: that is written now; None before the first append.
        failure: what ended the writer, None while it goes on.
        last_dlsn: of the last record that was acknowledged, also by earlier writers.
    """

    def __init__(
        self,
        context: StreamContext,
        options: WriterOptions,
        known: Known,
        policy: StreamPolicy,
        progressed: Callable[[], None],
    ) -> None:
        """`progressed()` is called when there may be room again, or the writer has ended."""
        chain = known.chain
        self.segment: SegmentWriter | None = None
        self.failure: Error | None = None
        self.last_dlsn = chain.last_dlsn
        self.queue = WriterQueue(
            options.entry_bytes_max, options.batch_bytes, options.unacked_bytes_max, chain.last_txid
        )
        self.keeper = SegmentKeeper(context, known, self._make, self._send_soon, self.fail)
        self._name = context.name
        self._works = segment_works(context.client)
        self._options = options
        self._policy = policy
        self._age = roll_age(0.0, 0)
        self._progressed = progressed
        self._loop = asyncio.get_running_loop()
        self._time_us = chain.last_time_us
        self._is_rolling = False
        self._is_stopped = False
        self._is_scheduled = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._flushing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._until_rolled: list[asyncio.Future[None]] = []

    def _make(
        self, row: Segment, ledger: LedgerWriter, codec: int, policy: StreamPolicy
    ) -> SegmentWriter:
        self._next_policy = policy
        return SegmentWriter(row, ledger, codec, self._acknowledged, self._entry_failed)

    # --- sending ------------------------------------------------------------------------------------------------

    def queued(self) -> None:
        """Something was put into the queue: send it in the next turn of the loop, with all that this turn appends.

        With a linger, when that is over, or when an entry is full.
        """
        if not self._options.linger or len(self.queue.groups) > 1 or self.queue.groups[0].is_atomic:
            self._send_soon()
        elif "linger" not in self._timers:
            self._timers["linger"] = self._loop.call_later(self._options.linger, self._send)

    def _send_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
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
        self._cancel("linger")
        queue, most = self.queue, self._options.entries_in_flight
        if self._is_rolling and not queue.groups and self.failure is None:
            self._segment_for_next()
        while queue.groups and self.failure is None:
            segment = self._segment_for_next()
            if segment is None or segment.in_flight >= most:
                return
            group = queue.take(only_full=segment.in_flight >= ENTRIES_BEFORE_PACKING)
            if group is None:
                return
            try:
                segment.send(group, self._time_us)
            except BufferFull:
                queue.groups.appendleft(group)
                return  # an acknowledgement makes room, and comes here
            except BaseException as error:
                # It was not sent: it fails in its turn, behind all that was (INV-S5).
                queue.groups.appendleft(group)
                failed = error if isinstance(error, Error) else Error(f"cannot be sent: {error!r}")
                failed.__cause__ = error.__cause__ if failed is error else error
                self.fail(failed)
                if not isinstance(error, Exception):
                    raise

    def _segment_for_next(self) -> SegmentWriter | None:
        """Return the segment to write to; None while a roll waits for acknowledgements, or none is there yet."""
        segment, keeper = self.segment, self.keeper
        if segment is None:
            if keeper.ready is not None:
                return self._begin()
            if isinstance(keeper.trouble, QuotaExceeded):
                self._refuse(keeper.trouble)
                return None
            keeper.want()
            self._wait_for_first()
            return None
        if self._is_stopped:
            return segment
        age_s = segment.age_s(time.monotonic())
        self._is_rolling = (
            self._is_rolling or self._age.is_roll_due(age_s) or self._is_used(segment, 1.0)
        )
        if self._is_rolling and keeper.ready is not None:
            return None if segment.in_flight else self._roll_over()
        if self._is_rolling and isinstance(keeper.trouble, QuotaExceeded):
            if self._until_rolled:
                self._is_rolling = (
                    False  # who asked for it is told; the writer goes on in this segment
                )
                self._wake_rolled(keeper.trouble)
            elif self.queue.groups:
                # This segment is full, and its namespace as well: what was sent is kept, what comes next is refused.
                if not segment.in_flight:
                    self._refuse(keeper.trouble)
                return None
        if self._is_rolling or self._age.is_ready_due(age_s) or self._is_used(segment, 0.5):
            keeper.want()
        return segment

    def _is_used(self, segment: SegmentWriter, share: float) -> bool:
        """Return whether so much of a segment's size is used."""
        return 0 < share * self._policy.roll_bytes <= segment.size_bytes

    async def roll(self) -> None:
        """Return when another segment than now is written, which the next records go to, or the writer has ended.

        QuotaExceeded: there is no room for another one; this one is written as before.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._until_rolled.append(future)
        self._is_rolling = True
        self.keeper.want()
        self._send_soon()
        await future

    def _roll_over(self) -> SegmentWriter:
        """Go on in the segment that is ready; all of the one before is acknowledged, and it is ended behind us."""
        assert self.segment is not None
        self._is_rolling = False
        self._time_us = self.segment.last_time_us
        self.keeper.end(self.segment)
        return self._begin()

    def _begin(self) -> SegmentWriter:
        self.segment = self.keeper.take()
        self._policy = self._next_policy
        self._age = roll_age(self._policy.roll_age_s, self.segment.ledger.ledger_id)
        self._cancel("first")
        self._wake_rolled()
        self._look_at_age()
        return self.segment

    def _look_at_age(self) -> None:
        """A segment that nobody writes to any more ends by its age all the same."""
        self._cancel("age")
        if self._is_stopped or self.segment is None or not self._policy.roll_age_s:
            return
        pause_s = self._age.look_s(self.segment.age_s(time.monotonic()))
        self._timers["age"] = self._loop.call_later(pause_s, self._look_at_age)
        self._segment_for_next()

    def _wake_rolled(self, error: Error | None = None) -> None:
        waiting, self._until_rolled = self._until_rolled, []
        for future in waiting:
            if not future.done() and error is None:
                future.set_result(None)
            elif not future.done() and error is not None:
                future.set_exception(error.copy())

    def _wait_for_first(self) -> None:
        if "first" not in self._timers:
            limit_s = self._options.first_segment_timeout

            def too_late() -> None:
                del self._timers["first"]
                trouble = self.keeper.trouble
                if trouble is None and self._works.troubled_s >= limit_s:
                    trouble = self._works.trouble  # nobody's turn ends well: ours would not, either
                if trouble is None:
                    self._wait_for_first()  # its turn has not come yet; once it has, each call has a deadline
                else:
                    failed = WriterFailed(
                        f"{self._name}: no first segment could be made within {limit_s:g} s, and nothing was"
                        f" appended: {trouble}"
                    )
                    failed.__cause__ = trouble
                    self.fail(failed)

            self._timers["first"] = self._loop.call_later(limit_s, too_late)

    # --- answers ------------------------------------------------------------------------------------------------

    def _acknowledged(self, group: Group, first: DLSN) -> None:
        if self.failure is not None:
            # Acknowledged behind one that failed: for the caller it never is (INV-S5).
            self._give_up(group, self._unknown(self.failure))
            self._settle()
            return
        self.queue.acknowledged(group)
        segment, entry, _ = first
        self.last_dlsn = DLSN(segment, entry, len(group.payloads) - 1)
        for slot, waiter in enumerate(group.waiters):
            if not waiter.done():
                waiter.set_result(DLSN(segment, entry, slot))
        self._wake_flushed()
        current = self.segment
        if (
            current is not None
            and current.in_flight <= FEW_IN_FLIGHT
            and self._options.publish == "immediate"
        ):
            current.ledger.tell_soon()
        if self.queue.groups or self._is_rolling:
            self._send()
        self._progressed()

    def _entry_failed(self, group: Group, error: Error) -> None:
        self._give_up(group, self._unknown(self.failure or self._failure_of(error)))
        if self.failure is None:
            self.fail(error)
        self._settle()

    def _unknown(self, failure: Error) -> Error:
        """Return the error of an append that was sent, of a writer that ended so."""
        cause = failure.__cause__ or failure
        if isinstance(failure, WriterFenced):
            error: Error = WriterFenced(
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

    async def until_settled(self) -> None:
        """Return when all that was taken so far is acknowledged, or has failed; nothing of it lingers."""
        if self.queue.settled < self.queue.taken:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((self.queue.taken, future))
            self._send_soon()
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
        self.stop()
        if self.segment is not None:
            self.segment.ledger.abandon(ClientClosed(str(self.failure), outcome="unknown"))
        self._settle()

    def _failure_of(self, error: Error) -> Error:
        """Return what a writer says that this error has ended. The outcome is that of appends that were sent."""
        if isinstance(error, WriterFailed | QuotaExceeded):
            return error.copy()
        if isinstance(error, LedgerFenced | LedgerClosed | NoSuchLedger | MetadataConflict):
            # An empty ledger is deleted by whoever takes the stream over.
            failure: Error = WriterFenced(
                f"{self._name}: another writer has opened the stream, and this one has ended ({error})."
                f" {_ONLY_THE_WRITER}"
            )
        else:
            failure = WriterFailed(f"{self._name}: an append failed: {error}", outcome="unknown")
        failure.__cause__ = error
        return failure

    def _refuse(self, error: QuotaExceeded) -> None:
        """End the writer for want of room: all that was sent is acknowledged, and the segment is ended behind it."""
        self.failure = error.copy()
        self.roll_no_more()
        if self.segment is not None:
            self.keeper.end(self.segment)
        self._settle()

    def _settle(self) -> None:
        """What was never sent fails behind all that was."""
        if self.failure is None or (self.segment is not None and self.segment.in_flight):
            return
        unsent = self.unsent()
        while self.queue.groups:
            self._give_up(self.queue.groups.popleft(), unsent)
        self._progressed()

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def roll_no_more(self) -> None:
        """The segment that is written is the last one."""
        self._is_stopped, self._is_rolling = True, False
        for name in list(self._timers):
            self._cancel(name)
        self._wake_rolled()
        self.keeper.want_no_more()

    def stop(self) -> None:
        """Make and end no more segments."""
        self.roll_no_more()
        self.keeper.stop()
