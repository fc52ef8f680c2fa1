"""Reads a stream's entries ahead of their reader: one task, by its plan, into a bounded queue.

Sealed segments are read by batches, the following one's ledger is opened meanwhile; an open one is tailed. Ledgers are
opened without recovery: a reader fences nobody. `ChainFollower` follows the chain in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from fastbk.client.ledger_reader import Batch, Entry, LedgerReader, ReadFigures
from fastbk.errors import (
    DigestMismatch,
    Error,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    StorageError,
    StreamNotFound,
)
from fastbk.native.stream_codec import KIND_INDEX, Head
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.entry_table import size_bytes_of
from fastbk.replication.procedure import Found
from fastbk.retry import Retry
from fastbk.stream.chain import NONE, Chain, Segment
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext, as_error
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.read_plan import Next, ReadPlan
from fastbk.stream.reader.search import first_sequence
from fastbk.stream.segment_contents import head_of

_log = LibraryLog("fastbk.stream")

_KIND_AT = 1
ENTRY_OVERHEAD_BYTES = 200


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries with records, not decoded, as they came; `count` of them."""

    segment: int
    first_entry: int
    count: int
    runs: Sequence[Sequence[Found]]
    base_seq: int
    base_txid: int
    size_bytes: int

    def behind(self, count: int) -> Entries:
        """Return these without the first `count`."""
        runs: list[Sequence[Found]] = []
        skip = count
        for run in self.runs:
            if skip < len(run):
                runs.append(run[skip:])
            skip = max(skip - len(run), 0)
        left = self.count - count
        size_bytes = queued_size_bytes(runs, left)
        first = self.first_entry + count
        return Entries(self.segment, first, left, runs, self.base_seq, self.base_txid, size_bytes)


def queued_size_bytes(runs: Sequence[Sequence[Found]], count: int) -> int:
    """Return what so many entries count in the queue."""
    return sum(map(size_bytes_of, runs)) + ENTRY_OVERHEAD_BYTES * count


@dataclass(frozen=True, slots=True)
class Ended:
    """The segment has no more records."""

    segment: int


@dataclass(frozen=True, slots=True)
class Missing:
    """What lies before `next`, from where the reader is, cannot be read. `next_seq`: NONE if it is not known."""

    next: DLSN
    next_seq: int


Item = Entries | Ended | Missing
TURN_BYTES = 4 << 20
"""What one of many readers reads at least before it makes room for those that wait."""


class ReadTurns:
    """Which of many readers may hold entries that were read ahead: so many at once, the others in their order."""

    def __init__(self, places: int) -> None:
        self._free = asyncio.Semaphore(places)
        self._waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits."""
        return self._waiting > 0

    async def take(self) -> None:
        """Wait for a place."""
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        """Make room."""
        self._free.release()


class ReadAhead:
    """Reads ahead from one position on, until it is stopped, or to an end that was given.

    Attributes:
        error: what ended it, None while it goes on.
        is_over: the stream is sealed, and all of it is in the queue or was taken.
        is_trimmed: the place was truncated; begin anew at the trim point.
    """

    def __init__(
        self,
        context: StreamContext,
        follower: ChainFollower,
        position: DLSN,
        size_bytes_max: int,
        arrived: asyncio.Event,
        end: DLSN | None = None,
        figures: ReadFigures | None = None,
        turns: ReadTurns | None = None,
    ) -> None:
        """`told` is set whenever there is something new. `size_bytes_max`: of what is in the queue, but one batch.

        `end`: nothing at or behind it is needed; what was read together with what is before it comes all the same.
        `figures`: where it is counted what was read.
        `turns`: of many readers, each of which has entries only while it has a place in them.
        """
        self.error: Error | None = None
        self.is_over = False
        self.is_trimmed = False
        self.plan = ReadPlan(position)
        self._end_at = end
        self._context = context
        self._follower = follower
        self._arrived = arrived
        self._items: deque[Item] = deque()
        self._size_bytes = 0
        self._size_bytes_max = size_bytes_max
        self._room = asyncio.Event()
        self._is_waiting = False
        self._tailing: LedgerReader | None = None
        self._was_asked = False
        self._lost_first: DLSN | None = None
        self._turns = turns
        self._has_turn = self._is_fetching = False
        self._turn_bytes = 0
        self._early: dict[int, asyncio.Task[LedgerReader]] = {}
        self._begin: DLSN | None = position
        self._figures = figures or ReadFigures()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- for the reader -----------------------------------------------------------------------------------------

    def peek(self) -> Item | None:
        """Return what comes next, None if there is nothing yet."""
        return self._items[0] if self._items else None

    def take(self) -> None:
        """What `peek` returned was taken."""
        item = self._items.popleft()
        if isinstance(item, Entries):
            self._size_bytes -= item.size_bytes
            self._end_turn()
            self._room.set()

    def put_back(self, items: Sequence[Entries]) -> None:
        """Entries that were taken are not used yet: they come next again."""
        self._items.extendleft(reversed(items))
        self._size_bytes += sum(item.size_bytes for item in items)

    @property
    def queued_bytes(self) -> int:
        """Bytes of the entries in the queue."""
        return self._size_bytes

    @property
    def is_complete(self) -> bool:
        """Whether nothing more will be put into the queue."""
        return self.is_over or self.error is not None or self._is_past_end()

    @property
    def is_caught_up(self) -> bool:
        """Whether all that is known to be visible was taken."""
        if self._items or self.error is not None:
            return False
        tailing = self._tailing
        is_behind = tailing is None or not self._was_asked or tailing.last_known >= self.plan.entry
        return self.is_over or self._is_waiting or not is_behind

    async def stop(self) -> None:
        """Read no more."""
        tasks = [self._task, *self._early.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._size_bytes = 0
        self.rest()
        for early in self._early.values():
            if not early.cancelled() and early.exception() is None:
                await early.result().close()

    # --- turns, where it is one of many readers -------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait until it may fetch entries. One that had its turn goes to the end of the line."""
        turns = self._turns
        if turns is None:
            return
        if self._has_turn and turns.is_wanted and self._turn_bytes >= TURN_BYTES:
            self.rest()
            while self._has_turn:
                self._room.clear()
                await self._room.wait()
        if not self._has_turn:
            await turns.take()
            self._has_turn, self._turn_bytes = True, 0
        self._is_fetching = True

    def rest(self) -> None:
        """It fetches nothing for now: its place is free as soon as what it has was taken."""
        self._is_fetching = False
        self._end_turn()

    def _end_turn(self) -> None:
        if (
            self._turns is not None
            and self._has_turn
            and not self._is_fetching
            and self._size_bytes <= 0
        ):
            self._has_turn = False
            self._turns.give_back()

    @property
    def _has_had_its_turn(self) -> bool:
        return self._turns is not None and self._turns.is_wanted and self._turn_bytes >= TURN_BYTES

    # --- the task -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not (self.is_over or self.is_trimmed or self._is_past_end()):
                await self._step()
            if not self.is_trimmed:
                self._put_missing(self.plan.place, NONE)
        except Error as error:
            self.error = error
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.error = as_error(error, f"reading ahead in {self._context.name}")
            raise
        finally:
            self._arrived.set()

    def _is_past_end(self) -> bool:
        return self._end_at is not None and self.plan.place >= self._end_at

    async def _step(self) -> None:
        chain, plan = self._follower.chain, self.plan
        what = plan.next(chain)
        if what is Next.END:
            self.is_over = True
        elif what is Next.TRIMMED:
            self.is_trimmed = True
        elif what is Next.WAIT:
            self._check_begin(DLSN(chain.next_number, 0, 0))
            self._is_waiting = True
            self._arrived.set()
            await self._follower.other_than(chain)
            self._is_waiting = False
        else:
            row = await self._row()
            if row is None:
                return
            number = row.number
            if plan.begin(row):
                await self._read_segment(row)
            if plan.segment != number:
                self._end(row)

    async def _row(self) -> Segment | None:
        """Return the segment's row; None if the chain has moved, so that all has to be looked at anew."""
        chain, store = self._follower.chain, self._context.store
        try:
            row = await store.row(chain, self.plan.segment)
        except StorageError:
            row = None  # a page of what was deleted
            if await self._follower.refresh() == chain:
                raise
        if (
            row is None
            and self._follower.chain is chain
            and await self._follower.refresh() == chain
        ):
            raise StorageError(f"{self._context.name}: no row of segment {self.plan.segment}")
        return row

    async def _read_segment(self, row: Segment) -> None:
        plan = self.plan
        try:
            ledger = await self._open(row)
        except NoSuchLedger as error:
            if not await self._is_other(row):
                self._note_lost(error)
                plan.lost_all(row)
            return
        ledger.figures = self._figures
        try:
            self._open_early(row)
            await self._read_ledger(row, ledger)
        except (NoSuchEntry, DigestMismatch) as error:
            is_beyond = row.is_open and plan.entry > ledger.last_known
            if is_beyond or await self._is_other(row):
                if is_beyond:
                    raise
                return
            self._note_lost(error)
            plan.lost(row.number, row.ledger_id, plan.entry)
            if row.is_open:
                self._put_missing(plan.place, NONE)
        except NoSuchLedger as error:
            if not await self._is_other(row):
                self._note_lost(error)
                plan.lost_all(row)
        finally:
            self._tailing = None
            self.rest()
            await ledger.close()

    async def _is_other(self, row: Segment) -> bool:
        """Look whether the chain says something else of that segment now."""
        chain = await self._follower.refresh()
        if self.plan.next(chain) is not Next.READ:
            return True
        return await self._context.store.row(chain, row.number) != row

    async def _open(self, row: Segment) -> LedgerReader:
        task = self._early.pop(row.ledger_id, None)
        unused, self._early = self._early, {}
        for other in unused.values():
            other.cancel()
            await asyncio.wait([other])
            if not other.cancelled() and other.exception() is None:
                await other.result().close()
        if task is not None:
            return await task
        return await self._context.client.open_ledger(row.ledger_id, recovery=False)

    def _open_early(self, row: Segment) -> None:
        """Open what follows, also an open segment behind an open one: metadata may be away when the writer rolls."""
        if self._end_at is not None and DLSN(row.number + 1, 0, 0) >= self._end_at:
            return
        following = self._follower.chain.row(row.number + 1)
        if following is not None and following.ledger_id not in self._early:
            opening = self._context.client.open_ledger(following.ledger_id, recovery=False)
            task = asyncio.get_running_loop().create_task(opening)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._early[following.ledger_id] = task

    async def _read_ledger(self, row: Segment, ledger: LedgerReader) -> None:
        plan = self.plan
        batches: AsyncGenerator[Batch, None]
        if row.is_open:
            if not self._was_asked:
                # Once, so that "caught up" means something; later on the polls tell.
                with contextlib.suppress(NotEnoughBookies):
                    await ledger.last_add_confirmed()
                self._was_asked = True
                self._check_begin(DLSN(row.number, ledger.last_known + 1, 0))
            self._tailing = ledger
            self._arrived.set()
            batches = ledger.tail_batches(plan.entry, *([] if self._turns is None else [self]))
        else:
            await self.begin()
            batches = ledger.read_batches(plan.entry, self._last_wanted(row))
        index_records: int | None = None
        async with contextlib.aclosing(batches):
            async for batch in batches:
                while self._size_bytes >= self._size_bytes_max:
                    self._room.clear()
                    await self._room.wait()
                index_records = await self._take(row, batch)
                if index_records is not None:
                    break
                if self._is_past_end() or self._has_had_its_turn:
                    return
                if row.is_open:
                    # Whoever waits has it before the next poll is sent, which takes longer than all else of a record.
                    await asyncio.sleep(0)
        is_empty = ledger.is_closed and ledger.metadata.last_entry_id < 0
        if is_empty or index_records == 0:
            plan.was_empty(row.number, row.ledger_id)
        else:
            plan.completed(row.number, row.ledger_id)

    def _last_wanted(self, row: Segment) -> int:
        """Return the last entry of a closed segment that is needed."""
        end = self._end_at
        if end is None or end.segment != row.number:
            return row.last_entry_id
        return min(row.last_entry_id, end.entry - (end.slot == 0))

    async def _take(self, row: Segment, batch: Batch) -> int | None:
        """Put a batch into the queue; return the records of the segment if its index was in it."""
        runs, last_entry, index_records = list(batch.runs), batch.last_entry_id, None
        last = batch.last_data
        if len(last) > _KIND_AT and last[_KIND_AT] == KIND_INDEX:
            index_records = self._head(row, last_entry, last).first_record
            runs[-1:] = [runs[-1][:-1]] if len(runs[-1]) > 1 else []
            last_entry -= 1
        if not runs:
            return index_records
        first, plan = batch.first_entry_id, self.plan
        head = self._head(row, last_entry, runs[-1][-1].data)
        if head.kind == KIND_INDEX:
            raise StorageError(f"ledger {row.ledger_id} is no segment", ledger_id=row.ledger_id)
        if plan.base_seq == NONE:
            plan.found_base(row.number, await first_sequence(self._context, row))
        if self._lost_first is not None:
            before = self._head(row, first, runs[0][0].data).first_record
            self._put_missing(DLSN(row.number, first, 0), plan.base_seq + before)
        records = head.first_record + head.record_count
        if not plan.read(row.number, row.ledger_id, first, last_entry, records):
            raise StorageError(
                f"ledger {row.ledger_id} gave entry {first}, expected was {plan.entry}",
                ledger_id=row.ledger_id,
            )
        count = last_entry - first + 1
        size_bytes = queued_size_bytes(runs, count)
        self._size_bytes += size_bytes
        self._turn_bytes += size_bytes
        self._put(Entries(row.number, first, count, runs, plan.base_seq, row.base_txid, size_bytes))
        self._open_early(row)
        return index_records

    def _check_begin(self, end: DLSN) -> None:
        """Log, once, that the place where this began lies behind the end, where it waits in silence: a position of
        another stream, or of this one before it was restored.
        """
        begin, self._begin = self._begin, None
        if begin is not None and begin > end:
            _log.warning(
                "stream.reader_beyond_end",
                stream=self._context.name,
                position=str(begin),
                end=str(end),
                reason="nothing is handed out before the stream has grown to there: is it a position of this stream?",
            )

    def _head(self, row: Segment, entry_id: int, data: bytes | memoryview) -> Head:
        return head_of(Entry(row.ledger_id, entry_id, memoryview(data)))

    def _note_lost(self, error: Error) -> None:
        _log.warning("stream.entries_lost", stream=self._context.name, reason=str(error))
        if self._lost_first is None:
            self._lost_first = self.plan.place

    def _put_missing(self, behind: DLSN, next_seq: int) -> None:
        if self._lost_first is not None:
            self._lost_first = None
            self._put(Missing(behind, next_seq))

    def _end(self, row: Segment) -> None:
        self._put_missing(DLSN(row.number + 1, 0, 0), self.plan.next_seq)
        self._put(Ended(row.number))

    def _put(self, item: Item) -> None:
        self._items.append(item)
        self._arrived.set()


# --- the chain as a reader knows it ---------------------------------------------------------------


AGAIN_S = 0.1
AGAIN_S_MAX = 5.0


class ChainFollower:
    """One reader's.

    Attributes:
        chain: the newest known.
        failure: that the stream is gone, or what nobody can mend; None while it is followed.
    """

    def __init__(
        self,
        store: ChainStore,
        chain: Chain,
        arrived: asyncio.Event,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`told` is set whenever either attribute has changed; `failed()` is called when `failure` has."""
        self.chain = chain
        self.failure: Error | None = None
        self._store = store
        self._arrived = arrived
        self._failed = failed
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _update(self, chain: Chain) -> None:
        known = self.chain
        if chain.epoch < known.epoch or chain.trim < known.trim or chain.end_seq < known.end_seq:
            return  # none of these ever falls: an answer that was longer under way than what is known
        if chain != known:
            self.chain = chain
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._arrived.set()
        if self.failure is not None:
            self._failed()

    async def _run(self) -> None:
        retry = Retry(AGAIN_S, AGAIN_S_MAX)
        while self.failure is None:
            try:
                async with contextlib.aclosing(self._store.follow()) as changes:
                    async for known in changes:
                        retry.restart()
                        self._update(known.chain)
            except MetadataUnavailable:
                # What is known goes on being read.
                await asyncio.sleep(retry.pause_s())
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.failure = as_error(error, "following the stream's chain")
                self._notify()
                if not isinstance(error, Error):
                    raise

    async def refresh(self) -> Chain:
        """Read the chain now, and return it. Raises MetadataUnavailable, StreamNotFound."""
        try:
            self._update((await self._store.read()).chain)
        except StreamNotFound as error:
            self.failure = error
            self._notify()
            raise
        return self.chain

    async def other_than(self, chain: Chain) -> None:
        """Return when the chain is not that object any more."""
        while self.chain is chain and self.failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure.copy()

    async def stop(self) -> None:
        """Follow no more."""
        self._task.cancel()
        await asyncio.wait([self._task])
