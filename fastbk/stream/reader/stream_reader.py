"""The reader of a stream: hands out its records in order, each once, from the oldest segment into the open one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, Self, cast

from fastbk.client.async_tools import Repeated, raised_again
from fastbk.client.ledger_reader import ReadFigures
from fastbk.errors import ClientClosed, ConfigError, DataLost, ProtocolError, StorageError
from fastbk.model.ids import ID_MAX
from fastbk.observe.meter import (
    CONSUMED,
    Figures,
    Latency,
    Source,
    duration_figures,
    meter_of,
    receiving,
)
from fastbk.option_checks import checked_integer, checked_timeout
from fastbk.stream.chain import NONE, Chain
from fastbk.stream.context import ContextLike, clock_us, context_of, one_at_a_time
from fastbk.stream.options import GapT
from fastbk.stream.positions import DLSN, FIRST, AtSeq, AtTime, AtTxid, Start, check_start
from fastbk.stream.reader.buffer import EntryUnreadable, ReadBuffer, buffer_of, unreadable_gap
from fastbk.stream.reader.read_ahead import ChainFollower, ReadAhead, ReadTurns
from fastbk.stream.reader.search import (
    Key,
    end_position,
    error_of,
    find_key,
    is_truncated,
    key_of,
    position_behind,
    resolve,
    tail_position,
)
from fastbk.stream.records import Chunk, Gap, Record

CHUNK_RECORDS = 1000
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Lag:
    """How far it is behind what it knows to be visible; exact where it has caught up."""

    records: int
    seconds: float
    """Since the last record that it handed out was appended, by this machine's clock; 0 where it has caught up."""
    size_bytes: int = 0
    """About: from the average of the segments that are closed, else of what was handed out last."""


@dataclass(frozen=True, slots=True)
class StreamReaderStats:
    """Figures of one reader at one moment, since it was opened."""

    records: int
    """Handed out."""
    bytes: int
    """About, of these: payloads, keys, headers, and some bytes around each record."""
    buffered_bytes: int
    """Read ahead, and not handed out yet; as stored, with compression."""
    entries_read: int
    """Entries that bookies gave."""
    bytes_read: int
    """Bytes of these, as stored."""
    copies_skipped: int
    """Copies that were missing, damaged or not to be had, so that another bookie was asked."""
    read_latency: Latency
    """Time from the request of a range of entries until the first of them came."""
    lag: Lag
    """How far it is behind what it knows to be visible."""


class Consumer(Protocol):
    """A cursor that a reader reads for."""

    name: str

    @property
    def lag(self) -> Lag:
        """How far the cursor is behind."""

    @property
    def records_at_hand(self) -> int:
        """Records that it was given, and has not handed out."""


class StreamReader(Generic[GapT]):
    """Reads one stream; made by `Stream.reader()`. One task at a time may read; `async with` or iteration opens it.

    `async for record in reader` yields records, `chunks()` many at once (INV-S11). What was truncated or lost is an
    error, raised again until `seek()` passes it, or with `on_gap="yield"` a Gap among the records. Other errors
    (NotEnoughBookies, MetadataUnavailable) end no reader: the next call goes on where it was. Cancelling a call leaves
    `position` at the first record that was not handed out. A record or entry that makes no sense (its writer was
    broken) is an error that names its position (ProtocolError, StorageError), again and again until `seek()` passes
    it, or with `on_gap="yield"` a Gap.
    """

    def __init__(
        self,
        context: ContextLike,
        start: Start = "earliest",
        *,
        end: Start | None = None,
        tail: bool = True,
        prefetch_bytes: int = 8 << 20,
        on_gap: Literal["raise", "yield"] = "raise",
        arrived: asyncio.Event | None = None,
        turns: ReadTurns | None = None,
        start_seq: int = NONE,
    ) -> None:
        """`end`: the first position that is not delivered. `tail` False: end behind what is visible when it is opened.

        `prefetch_bytes`: entries read ahead, at least 1, beside one batch and what is being handed out.
        `arrived`, `turns`: of one of many readers: is set whenever something came, and bounds what all have read ahead.
        `start_seq`: number of the record at `start`, if that is a position; NONE where it is not known.
        """
        check_start(start)
        if end is not None:
            check_start(end, "end")
        checked_integer("prefetch_bytes", prefetch_bytes, 1, ID_MAX)
        if on_gap not in ("raise", "yield"):
            raise ConfigError(f'on_gap is {on_gap!r}: "raise" or "yield"')
        self._given = context
        self._start: Start = start
        self._start_seq = start_seq
        self._end_at = end
        self._is_tailing = tail
        self._prefetch_bytes = prefetch_bytes
        self._on_gap = on_gap
        self._arrived = arrived or asyncio.Event()
        self._turns = turns
        self._moved = asyncio.Event()
        self._ahead: ReadAhead | None = None
        self._follower: ChainFollower | None = None
        self._buffer: ReadBuffer | None = None
        self._retired: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._figures = ReadFigures()
        self._source: Source | None = None
        self.consumer: Consumer | None = None

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the start, and begin to read ahead; `async with` does it. Raises StreamNotFound, MetadataUnavailable."""
        context = self._context = await context_of(self._given)
        ends: list[DLSN | Key] = []
        keys_from = FIRST
        if self._end_at is not None:
            end, keys_from = await self._end_of(self._end_at)
            ends.append(end)
        if isinstance(self._end_at, AtSeq):
            tail = await tail_position(context)
            if tail is not None and tail.seq + 1 == self._end_at.seq:
                ends.append(tail.next)  # everything before the end is there already
        if not self._is_tailing:
            ends.append(await resolve(context, "latest"))
        position, from_key = await self._begin_of(self._start)
        self._follower = ChainFollower(
            context.store, (await context.store.read()).chain, self._arrived, self._moved.set
        )
        self._buffer = buffer_of(context, position, from_key, ends, keys_from, self._start_seq)
        self._read_ahead()
        meter = meter_of(context.client.config.tracing)
        if meter is not None:
            cursor = "" if self.consumer is None else self.consumer.name
            self._source = meter.add(receiving(context.name, cursor), self._observed)

    async def _end_of(self, end: Start) -> tuple[DLSN | Key, DLSN]:
        """Return where to end: a position, or a key that nothing reaches before the position behind it.

        Of times the search says what reaches one: a record of a wrong clock may lie before others (INV-S22).
        """
        if not isinstance(end, AtTime):
            by_key = isinstance(end, AtTxid | AtSeq)
            return key_of(end) if by_key else await resolve(self._context, end), FIRST  # type: ignore[arg-type]
        key, behind = key_of(end), await end_position(self._context)
        try:
            return await find_key(self._context, key) or key, behind
        except DataLost:
            return key, FIRST

    async def _begin_of(self, start: Start) -> tuple[DLSN, Key | None]:
        """Return where to begin; with the key, where nothing that reaches it is there yet."""
        if isinstance(start, AtTxid | AtTime | AtSeq):
            context, key = self._context, key_of(start)
            tail = await tail_position(context)
            end = await position_behind(context, tail)
            found = await find_key(context, key)
            if isinstance(start, AtSeq) and await is_truncated(context, start, tail, found):
                return FIRST, None  # before the gap, which is reported there
            return (end, key) if found is None else (found, None)
        return await resolve(self._context, start), None

    def _read_ahead(self) -> None:
        buffer, follower = self._opened()
        self._ahead = ReadAhead(
            self._context,
            follower,
            buffer.position,
            self._prefetch_bytes,
            self._arrived,
            buffer.end,
            self._figures,
            self._turns,
        )
        buffer.ahead = self._ahead

    async def close(self) -> None:
        """Read no more. A second call does nothing."""
        if self._source is not None:
            self._source.close()
        self._is_closed = True
        self._arrived.set()
        self._moved.set()
        self._retire()
        if self._retired:
            await asyncio.wait(self._retired)
        if self._follower is not None:
            await self._follower.stop()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> tuple[ReadBuffer, ChainFollower]:
        if self._is_closed or self._buffer is None or self._follower is None:
            raise ClientClosed("the reader is not open: use `async with`")
        return self._buffer, self._follower

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<StreamReader of {self._given.name}, closed>"
        return f"<StreamReader of {self._given.name} at {self._start if self._buffer is None else self.position}>"

    # --- reading ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record | GapT]:
        """Iterate. What is not open is opened, and closed at the end or when the loop is left."""
        return self if self._is_closed or self._buffer is not None else self._opened_for_it()

    @raised_again
    async def _opened_for_it(self) -> AsyncGenerator[Record | GapT, None]:
        async with self:
            with suppress(StopAsyncIteration):
                while True:
                    yield await self.__anext__()

    async def __anext__(self) -> Record | GapT:
        """Return the next record, or Gap. Ends behind the last record of a sealed stream, or at the end asked for."""
        buffer = self._buffer
        if buffer is None or not buffer.has_record(self._follower):
            item = await self._next(None, CHUNK_BYTES, None, 0.0)
            if isinstance(item, Gap):
                return item
            buffer = self._buffer
        if buffer is None or not buffer.has_record(self._follower):
            raise StopAsyncIteration
        try:
            return buffer.next_record()
        except ProtocolError:
            if self._on_gap == "raise":
                raise
            return cast("GapT", buffer.pass_record())

    def chunks(
        self, max_records: int = CHUNK_RECORDS, max_bytes: int = CHUNK_BYTES, max_wait: float = 0.0
    ) -> AsyncGenerator[Chunk | GapT, None]:
        """Yield chunks of 1 to `max_records` records; of Gaps with `on_gap="yield"` only. Ends as iteration does.

        `max_bytes`: of entries that are decoded together; one entry may be larger. `max_wait`: seconds to wait for
        more when something is there, and less than `max_bytes`.
        """

        async def following() -> Chunk | GapT | None:
            return await self._next(max_records, max_bytes, None, max_wait)

        is_open = self._is_closed or self._buffer is not None
        return Repeated(following) if is_open else self._opened_for_chunks(Repeated(following))

    @raised_again
    async def _opened_for_chunks(
        self, chunks: AsyncGenerator[Chunk | GapT, None]
    ) -> AsyncGenerator[Chunk | GapT, None]:
        async with self:
            async for chunk in chunks:
                yield chunk

    async def read(
        self,
        max_records: int = CHUNK_RECORDS,
        max_bytes: int = CHUNK_BYTES,
        timeout: float | None = None,
    ) -> Chunk | GapT | None:
        """Return up to `max_records` as soon as one is there; None after `timeout` seconds, or at the end."""
        self._opened()
        return await self._next(max_records, max_bytes, checked_timeout(timeout), 0.0)

    def at_hand(self, max_records: int, max_bytes: int) -> Chunk | None:
        """Return more records without waiting; None: none are there, or something else is to be told before them."""
        buffer, follower = self._opened()
        if self._ahead is None or follower.failure is not None:
            return None
        if buffer.gap_at(follower.chain) is not None:
            return None
        try:
            chunk = buffer.take(max_records, max_bytes)
        except StorageError:
            return None  # nothing was taken: whoever reads next is told
        self._moved.set()
        return chunk

    @property
    def _has_record(self) -> bool:
        """Whether a record was decoded and not handed out yet."""
        return self._buffer is not None and self._buffer.has_record(self._follower)

    @property
    def is_at_end(self) -> bool:
        """Whether nothing will ever come: the end asked for, or that of a sealed stream, is reached."""
        return self._opened()[0].is_over

    @one_at_a_time
    async def _next(
        self, max_records: int | None, max_bytes: int, timeout_s: float | None, fill_s: float
    ) -> Chunk | GapT | None:
        """Return what comes next; None at the end, or when the time is over.

        `max_records` None: return None when a record is at hand, and take nothing.
        """
        if max_records is not None:
            checked_integer("max_records", max_records, 1, ID_MAX)
        checked_integer("max_bytes", max_bytes, 1, ID_MAX)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._arrived.clear()
                    buffer, follower = self._opened()
                    if follower.failure is not None:
                        self._moved.set()
                        raise follower.failure.copy()
                    if self._ahead is None:
                        self._read_ahead()
                    gap = buffer.gap_at(follower.chain)
                    if gap is not None:
                        return self._passed(gap)
                    if fill_s > 0 and buffer.is_filling(max_bytes):
                        fill_s = await self._fill(fill_s)
                        continue
                    try:
                        if max_records is None:
                            chunk, is_there = None, buffer.fill(max_bytes)
                        else:
                            chunk = buffer.take(max_records, max_bytes)
                            is_there = chunk is not None
                    except EntryUnreadable:
                        if self._on_gap == "raise":
                            raise
                        return cast("GapT", buffer.pass_entry())
                    finally:
                        self._moved.set()  # also where all that came was skipped
                    if is_there or buffer.is_over:
                        return chunk
                    if not buffer.has_items:
                        self._check_end_of_ahead()
                        await self._arrived.wait()
        except TimeoutError:
            return None

    def _unreadable(self, chunk: Chunk, at: int, error: ProtocolError) -> Gap:
        """Return what is handed out in place of a record of a chunk that was taken. Raises `error`."""
        if self._on_gap == "raise":
            raise error
        return unreadable_gap(chunk, at)

    async def _fill(self, fill_s: float) -> float:
        """Wait for more; return how long may be waited still."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(fill_s):
                await self._arrived.wait()
        except TimeoutError:
            return 0.0
        return max(fill_s - (time.monotonic() - began_s), 0.0)

    def _retire(self) -> None:
        """Let go of what reads ahead, without waiting for it: nothing may come between a gap and its being told."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            task = asyncio.get_running_loop().create_task(ahead.stop())
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)

    def _let_go(self) -> None:
        """Hold nothing that was read ahead: one of many readers, whose error nobody has passed yet."""
        buffer, _ = self._opened()
        self._retire()
        buffer.let_go()

    def _check_end_of_ahead(self) -> None:
        """Reading ahead may have ended: with an error, or where it was truncated."""
        ahead = self._ahead
        if ahead is None or not (ahead.error is not None or ahead.is_trimmed):
            return
        self._retire()
        self._arrived.set()  # begin anew
        if ahead.error is not None:
            raise ahead.error.copy()

    def _passed(self, gap: Gap) -> GapT:
        buffer, _ = self._opened()
        if self._on_gap == "raise":
            raise error_of(self._context.name, gap)
        if gap.kind == "trimmed":
            self._retire()
        buffer.pass_by(gap)
        self._moved.set()
        return cast("GapT", gap)

    # --- where it is --------------------------------------------------------------------------------------------

    @property
    def position(self) -> DLSN:
        """Where the next record to be handed out lies, or will lie."""
        return self._opened()[0].position

    @property
    def lag(self) -> Lag:
        """How far this reader is behind what it knows; no I/O."""
        return self._lag_from(lambda first, end: [(first, end)])

    def _lag_from(self, counted: Callable[[int, int], Sequence[tuple[int, int]]]) -> Lag:
        """Return the lag in those records alone that `counted(first, end)` names, as ranges."""
        buffer, follower = self._opened()
        if self.caught_up():
            return Lag(0, 0.0)
        ranges = counted(buffer.next_seq_in(follower.chain), self._end_seq)
        return self._lag_of(sum(high - low for low, high in ranges), buffer.last_time_us)

    def _lag_of(self, records: int, since_us: int) -> Lag:
        """Return the lag of so many records, the first of which was appended then (0: it is not known)."""
        buffer, follower = self._opened()
        return lag_of(follower.chain, records, since_us, buffer.record_bytes)

    def stats(self) -> StreamReaderStats:
        """Return this reader's figures now; no I/O."""
        buffer, _ = self._opened()
        records, size_bytes = buffer.taken_in_all()
        ahead, read, consumer = self._ahead, self._figures, self.consumer
        return StreamReaderStats(
            records=records - (0 if consumer is None else consumer.records_at_hand),
            bytes=size_bytes,
            buffered_bytes=0 if ahead is None else ahead.queued_bytes,
            entries_read=read.entries,
            bytes_read=read.bytes,
            copies_skipped=read.copies_skipped,
            read_latency=read.histogram.latency(),
            lag=self.lag if consumer is None else consumer.lag,
        )

    def _observed(self) -> Figures:
        stats = self.stats()
        return {
            CONSUMED: stats.records,
            "fastbk.client.receive.size": stats.bytes,
            "fastbk.client.receive.buffered": stats.buffered_bytes,
            "fastbk.client.receive.lag": stats.lag.records,
            "fastbk.client.receive.lag.duration": stats.lag.seconds,
            **duration_figures("receive", stats.read_latency),
        }

    @property
    def _end_seq(self) -> int:
        """The number behind the last record that this reader knows to be there; no I/O."""
        _, follower = self._opened()
        return max(follower.chain.end_seq, self._ahead.plan.next_seq if self._ahead else 0)

    def caught_up(self) -> bool:
        """Return whether all that this reader knows to be visible was handed out; no I/O."""
        buffer, _ = self._opened()
        if buffer.is_over:
            return True
        return not buffer.has_items and self._ahead is not None and self._ahead.is_caught_up

    async def wait_caught_up(self) -> DLSN:
        """Wait until all that is visible now was handed out (to another task); return the position then."""
        tail = await tail_position(self._context)
        while True:
            self._moved.clear()
            buffer, follower = self._opened()
            if follower.failure is not None:
                raise follower.failure.copy()
            if tail is None or buffer.is_over or buffer.position > tail.dlsn:
                return buffer.position
            await self._moved.wait()

    async def seek(self, where: Start) -> None:
        """Go on from `where`; an end that was asked for stays."""
        buffer, follower = self._opened()
        check_start(where)
        position, from_key = await self._begin_of(where)
        if not isinstance(where, DLSN):
            # what was found to be truncated has to be known as that here, too
            await follower.refresh()
        self._retire()
        buffer.move_to(position, from_key)
        self._moved.set()


def lag_of(chain: Chain, records: int, since_us: int, record_bytes: float) -> Lag:
    """Return the lag of so many records. `record_bytes`: the average where the chain does not say one."""
    if records <= 0:
        return Lag(0, 0.0)
    each, now_us = average_bytes(chain), clock_us()
    return Lag(
        records,
        max((now_us - (since_us if 0 < since_us <= now_us else chain.newest_time_us)) / 1e6, 0.0),
        round(records * (record_bytes if each is None else each)),
    )


def average_bytes(chain: Chain) -> float | None:
    """Return bytes a record, of the closed segments whose rows are at hand; None if there are none."""
    closed = [row for row in chain.rows if not row.is_open]
    records = sum(row.records for row in closed)
    return sum(row.size_bytes for row in closed) / records if records else None
