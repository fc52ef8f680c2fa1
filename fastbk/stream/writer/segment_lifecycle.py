"""Creates a writer's next segment before it is needed, and ends the last one. `Rolling` (engine.py) decides when.

One task a writer, one thing at a time: what ends is ended before more is made, so that at most two segments are open.
Metadata or bookies that are away delay this, with growing pauses, and nothing else: the writer goes on in the segment
it has.

Decisions 89 and 94.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import (
    ClientClosed,
    Error,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    NoSuchLedger,
    QuotaExceeded,
    StorageError,
    StreamNotFound,
    StreamSealed,
)
from fastbk.retry import Retry
from fastbk.stream.chain import Contents, Segment, add_segment, check_epoch, close_segment, reserve
from fastbk.stream.chain_store import VersionedChain
from fastbk.stream.context import StreamContext, as_error, clock_us
from fastbk.stream.opening import SegmentMoved, create_ledger, delete_pending, recovered, slots_of
from fastbk.stream.policy import StreamPolicy

if TYPE_CHECKING:
    from fastbk.stream.writer.engine import SegmentWriter

AGAIN_S = 0.05
AGAIN_S_MAX = 5.0
TICK_S = 0.001
ENDS_THE_WRITER = (ClientClosed, MetadataConflict, StreamNotFound, StreamSealed)
DOOMED_MANY = 16
"""With so many ledgers to delete the writer deletes them itself."""


class SegmentLifecycle:
    """One writer's.

    Attributes:
        ready: the segment that is ready to be written, None if there is none yet.
        trouble: why the last try of anything failed; None when it succeeded.
    """

    def __init__(
        self,
        context: StreamContext,
        known: VersionedChain,
        *,
        make_writer: Callable[[Segment, LedgerWriter, StreamPolicy], SegmentWriter],
        on_ready: Callable[[], None],
        on_lost_ended: Callable[[SegmentWriter, Contents], None],
        on_fatal: Callable[[Error], None],
    ) -> None:
        """Create nothing yet.

        Args:
            context: the stream's.
            known: its chain, as its opening left it.
            make_writer: returns the writer of a segment's new ledger.
            on_ready: a segment is ready, or none can be made as the namespace is full (`trouble`).
            on_lost_ended: the chain has what the ledger of a lost segment holds.
            on_fatal: nothing can be made ever again: another writer has the stream, or it is gone.
        """
        self.ready: SegmentWriter | None = None
        self.trouble: Error | None = None
        self.known = known
        self._context = context
        self._epoch = known.chain.epoch
        self._make_writer = make_writer
        self._on_ready = on_ready
        self._on_lost_ended = on_lost_ended
        self._on_fatal = on_fatal
        self._ending: deque[SegmentWriter] = deque()
        self._is_needed = False
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._reserved: int | None = None
        self._created: tuple[LedgerWriter, StreamPolicy] | None = None
        self._retry = Retry(AGAIN_S, AGAIN_S_MAX)
        self._is_stopped = False
        self._is_last = False
        self._turn_s = time.monotonic()
        self._waits_for_turn = False

    def prepare(self) -> None:
        """Have a segment made ready, if none is."""
        if self.ready is None and not self._is_needed and not self._is_stopped:
            self._is_needed = True
            self._wake()

    def take(self) -> SegmentWriter:
        """Return the segment that is ready: it is the writer's from now on."""
        assert self.ready is not None
        ready, self.ready = self.ready, None
        return ready

    def end(self, segment: SegmentWriter) -> None:
        """Have a segment ended, all of which is acknowledged."""
        self._ending.append(segment)
        self._wake()

    @property
    def unended(self) -> tuple[SegmentWriter, ...]:
        """The segments that are being ended, or wait for it."""
        return tuple(self._ending)

    def prepare_no_more(self) -> None:
        """Make no more segments: what was begun of one that is not ready is left to whoever opens the stream next."""
        self._is_needed = False
        self._is_last = True
        self._work.set()

    def _wake(self) -> None:
        if self._is_stopped:
            return
        self._idle.clear()
        self._work.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def until_idle(self) -> None:
        """Return when nothing is left to do."""
        await self._idle.wait()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for this writer's turn at metadata among all streams of the client, and hold it."""
        self._waits_for_turn = True
        try:
            async with slots_of(self._context.client):
                self._waits_for_turn, self._turn_s = False, time.monotonic()
                yield
        finally:
            self._waits_for_turn = False

    @asynccontextmanager
    async def in_time(self, limit_s: float) -> AsyncIterator[None]:
        """Wait for what is to be done here. TimeoutError after `limit_s`, which counts from when its turn has come.

        Before that only an outage of metadata ends it: thousands of streams may have their turns first.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle
        async with asyncio.timeout(None) as deadline:

            def check() -> None:
                nonlocal timer
                left_s = self._left_s(limit_s)
                if left_s > 0.0:
                    # Less than a clock can add to its time would be no wait at all, over and over.
                    timer = loop.call_later(max(left_s, TICK_S), check)
                else:
                    deadline.reschedule(loop.time())

            timer = loop.call_later(limit_s, check)
            try:
                yield
            finally:
                timer.cancel()

    def _left_s(self, limit_s: float) -> float:
        """Return for how long what waits here may go on waiting, when it has waited for `limit_s`."""
        if self.trouble is not None or slots_of(self._context.client).troubled_s >= limit_s:
            return 0.0
        if self._waits_for_turn:
            return limit_s
        return limit_s - (time.monotonic() - self._turn_s)

    def stop(self) -> None:
        """Do nothing more; what was under way may have happened."""
        self._is_stopped = True
        self._is_needed = False
        left = [segment.ledger for segment in self._ending]
        left += [] if self.ready is None else [self.ready.ledger]
        left += [] if self._created is None else [self._created[0]]
        for ledger in left:
            ledger.abandon(ClientClosed(f"the writer of {self._context.name} has ended"))
        self._ending.clear()
        self._idle.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._work.clear()
                if not self._ending and not self._is_needed:
                    self._idle.set()
                    if self._is_last:
                        self._task = None
                        return
                    await self._work.wait()
                elif not await self._next():
                    # Something new to do is looked at at once.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._retry.pause_s()):
                            await self._work.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A bug: the writer ends and says so, where it would wait for a segment for ever.
            self._on_fatal(as_error(error, f"the upkeep of segments of {self._context.name}"))
            raise

    async def _next(self) -> bool:
        """Do the next thing; False when it has to be tried again later."""
        try:
            async with self.turn():
                if self._ending:
                    await self._end(self._ending[0])
                    self._ending.popleft()
                elif self._is_needed:
                    await self._make_ready()
                    self._is_needed = False
        except Error as error:
            if isinstance(error, ENDS_THE_WRITER) and not error.retryable:
                self._on_fatal(error)
                return True
            self.trouble = error
            if isinstance(error, QuotaExceeded):
                self._on_ready()
            slots_of(self._context.client).log_wait(self._context.name, error)
            return False
        self.trouble = None
        self._retry.restart()
        return True

    # --- the next one -------------------------------------------------------------------------------------------

    async def _make_ready(self) -> None:
        context, epoch = self._context, self._epoch
        if self._created is None:
            policy = await context.policy()
            context.check_room()
            ledger_id = await self._reserve()
            ledger = await self._create(policy, ledger_id)
            # Kept until the chain has it: a change that nobody knows of may have added it, and it must be this one
            # that is added, else an empty open segment would lie before the one that is written.
            self._reserved, self._created = None, (ledger, policy)
        ledger, policy = self._created
        ledger_id, now_us = ledger.ledger_id, clock_us()
        self.known = await context.store.change(
            lambda chain: add_segment(chain, epoch, ledger_id, now_us), self.known
        )
        self._created = None
        row = next(row for row in self.known.chain.rows if row.ledger_id == ledger_id)
        self.ready = self._make_writer(row, ledger, policy)
        self._on_ready()

    async def _reserve(self) -> int:
        if self._reserved is not None:
            return self._reserved
        if len(self.known.chain.doomed) >= DOOMED_MANY:
            self.known = await delete_pending(self._context, self.known)
        epoch = self._epoch
        self._reserved, self.known = await self._context.store.name_ledger(
            lambda chain, ledger_id: reserve(chain, epoch, ledger_id), self.known
        )
        return self._reserved

    async def _create(self, policy: StreamPolicy, ledger_id: int) -> LedgerWriter:
        """Create the ledger that is reserved; where its id cannot be used, another one is reserved next time."""
        number, name = str(self.known.chain.next_number), self._context.name.rpartition("/")[2]
        try:
            return await create_ledger(self._context, policy, ledger_id, segment=number, name=name)
        except MetadataConflict as error:
            # A try before this one made it after all, and its answer was lost.
            self._reserved = None
            raise StorageError(str(error), retryable=True) from error

    # --- the last one -------------------------------------------------------------------------------------------

    async def _end(self, segment: SegmentWriter) -> None:
        """Close the ledger, and say in the chain what it holds; one that holds nothing leaves it, and is deleted."""
        if segment.is_lost:
            await self._end_lost(segment)
            return
        try:
            if not segment.is_empty:
                await segment.end()
            else:
                segment.ledger.abandon(ClientClosed("nothing was written to the segment"))
        except (LedgerFenced, LedgerClosed, NoSuchLedger):
            # Somebody recovers it: one who opens the stream, which ends us, or a person, which changes nothing: all
            # of it is acknowledged, so all of it stays.
            check_epoch((await self._context.store.read()).chain, self._epoch)
        ledger_id, contents, epoch = segment.ledger.ledger_id, segment.contents, self._epoch
        self.known = await self._context.store.change(
            lambda chain: close_segment(chain, ledger_id, contents, epoch), self.known
        )

    async def _end_lost(self, segment: SegmentWriter) -> None:
        """Somebody took the ledger over. If that was no writer of the stream, its recovery says what it holds.

        Raises MetadataConflict when another writer has opened the stream (INV-S16).
        """
        context, epoch = self._context, self._epoch
        self.known = await context.store.read()
        check_epoch(self.known.chain, epoch)
        row = self.known.chain.row(segment.number)
        if row is None or not row.is_open:
            raise MetadataConflict(f"segment {segment.number} is not open in the stream any more")
        try:
            contents = await recovered(context.client, context.store, row)
        except SegmentMoved:
            raise
        except StorageError as error:
            if not error.retryable:
                self._on_fatal(error)
            raise
        ledger_id = row.ledger_id
        self.known = await context.store.change(
            lambda chain: close_segment(chain, ledger_id, contents, epoch), self.known
        )
        if contents.is_empty and self.ready is not None:
            # What stood open behind an empty segment left the chain with it.
            self.take().ledger.abandon(ClientClosed("the segment before it was empty"))
        self._on_lost_ended(segment, contents)


# --- when a segment ends by age -------------------------------------------------------------------


LAST_SHARE = 0.1
"""Last share of the age, in which segments roll."""
READY_FROM, READY_TO = 0.5, 0.8
"""Between these shares of the age the next segment is made; with both limits by size at half of it."""
CHECK_S_MAX = 60.0
CHECK_S_MIN = 0.05
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64


@dataclass(frozen=True, slots=True)
class RollTimes:
    """When one segment rolls by age, in seconds behind its first entry; infinite: never.

    Attributes:
        ready_s: the next segment is to be made then.
        roll_s: this one ends then.
        check_s_max: the age is checked at least so often if nothing is written.
    """

    ready_s: float
    roll_s: float
    check_s_max: float

    def check_s(self, age_s: float) -> float:
        """Return the seconds until the age must be checked again if nothing is written."""
        pause_s = self.check_s_max
        for due_s in (self.ready_s, self.roll_s):
            if age_s < due_s:
                pause_s = min(pause_s, due_s - age_s)
                break
        return max(pause_s, CHECK_S_MIN)


NEVER = RollTimes(math.inf, math.inf, CHECK_S_MAX)


def roll_times(roll_age_s: float, ledger_id: int) -> RollTimes:
    """Return when the segment with this ledger rolls, whose policy has this `roll_age_s`; 0: never."""
    if not roll_age_s:
        return NEVER
    share = ledger_id * _GOLDEN % _WORD / _WORD
    ready_share = READY_FROM + (READY_TO - READY_FROM) * share
    check_s_max = min(roll_age_s / 4, CHECK_S_MAX)
    return RollTimes(roll_age_s * ready_share, roll_age_s * (1 - LAST_SHARE * share), check_s_max)
