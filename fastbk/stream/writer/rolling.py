"""When a stream rolls to a new segment, and which segment a writer's next records go to.

A segment rolls by its size, by its age, or by a call of `StreamWriter.roll`: README.md, "The life of a segment".
`segment_lifecycle.py` creates the next one and ends the last one; `janitor/idle_rolling.py` rolls idle streams.

A segment rolls when it has 90 to 100 percent of the policy's age. Its ledger's id decides when, so that thousands of
streams that began together do not roll in the same moment.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.errors import Error, QuotaExceeded, WriterFailed
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain.chain import NONE
from fastbk.stream.chain.changes import carried_us
from fastbk.stream.chain.segment_slots import slots_of
from fastbk.stream.context import StreamContext, clock_us
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.writer.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from fastbk.stream.writer.engine import AppendEngine

_log = LibraryLog("fastbk.stream")
LAST_SHARE = 0.1
"""Of the age: the part in which segments roll."""
READY_FROM, READY_TO = 0.5, 0.8
"""Between these shares of the age the next segment is made; with both limits by size at half of it."""
CHECK_S_MAX = 60.0
CHECK_S_MIN = 0.05
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64


@dataclass(frozen=True, slots=True)
class RollAge:
    """Of one segment, in seconds behind its first entry; 0: never by age."""

    age_s: float
    ready_s: float
    roll_s: float

    def is_ready_due(self, age_s: float) -> bool:
        """Return whether the next segment is to be made."""
        return 0 < self.ready_s <= age_s

    def is_roll_due(self, age_s: float) -> bool:
        """Return whether the segment ends."""
        return 0 < self.roll_s <= age_s

    def check_s(self, age_s: float) -> float:
        """Return the seconds until the age must be checked again if nothing is written."""
        pause_s = min(self.age_s / 4, CHECK_S_MAX)
        for due_s in (self.ready_s, self.roll_s):
            if age_s < due_s:
                pause_s = min(pause_s, due_s - age_s)
                break
        return max(pause_s, CHECK_S_MIN)


def roll_age(age_s: float, ledger_id: int) -> RollAge:
    """Return what holds for the segment with this ledger, whose policy's `roll_age_s` is `age_s`."""
    share = ledger_id * _GOLDEN % _WORD / _WORD
    ready_share = READY_FROM + (READY_TO - READY_FROM) * share
    return RollAge(age_s, age_s * ready_share, age_s * (1 - LAST_SHARE * share))


class Rolling:
    """One writer's current segment, and its change to the next one.

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
        self._age = roll_age(0.0, 0)
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
        self.is_due = self.is_due or self._age.is_roll_due(age_s) or self._is_used(segment, 1.0)
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
        if self.is_due or self._age.is_ready_due(age_s) or self._is_used(segment, 0.5):
            lifecycle.prepare()
        return segment

    def _is_used(self, segment: SegmentWriter, share: float) -> bool:
        """Return whether this share of the segment's size is used."""
        return 0 < share * self._policy.roll_bytes <= segment.size_bytes

    async def roll(self) -> None:
        """Return when the next records go to another segment, or the writer has ended.

        QuotaExceeded: there is no room for another segment; the writer continues in this one.
        """
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
        self._age = roll_age(self._policy.roll_age_s, self.segment.ledger.ledger_id)
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
        pause_s = self._age.check_s(self.segment.age_s(time.monotonic()))
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
