"""A durable cursor: a reader that remembers what is done, over restarts and from holder to holder.

Decision 158.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, Self, TypeVar, cast

from fastbk.client.async_tools import Repeated, SharedEnd, may_end_quietly
from fastbk.client.client import Client
from fastbk.errors import ClientClosed, ConfigError, CursorFenced, Error, ProtocolError
from fastbk.model.ids import ID_MAX
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import checked_integer, checked_timeout
from fastbk.retry import Retry
from fastbk.stream.context import ContextLike, StreamContext, as_error, context_of
from fastbk.stream.cursor.backlog import Backlog, backlog_of
from fastbk.stream.cursor.delivery import CursorDelivery
from fastbk.stream.cursor.state import NONE, CursorAcks, Data, check_data
from fastbk.stream.cursor.store import (
    CursorRequest,
    StateStorage,
    checked_keeping,
    clamped_start,
    part_of,
    take_over,
)
from fastbk.stream.options import GapT
from fastbk.stream.positions import DLSN, NUMBER_MAX, Start, check_start
from fastbk.stream.reader.buffer import unreadable_gap
from fastbk.stream.reader.stream_reader import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    Lag,
    StreamReader,
    StreamReaderStats,
)
from fastbk.stream.records import Chunk, Gap, Record

if TYPE_CHECKING:
    from fastbk.client.client import Settling

_log = LibraryLog("fastbk.stream.cursor")


@dataclass(frozen=True, slots=True)
class CursorStats:
    """Figures of one cursor at one moment."""

    reader: StreamReaderStats
    """Since it was opened. What is done does not count in `lag`."""
    mark_seq: int
    """The number of the first record that is not done; -1 while none was seen."""
    ranges: int
    """Ranges done behind the mark."""
    changes_unstored: int
    """Changes that a crash would forget now: acknowledgements, gaps that were passed, and the number of the mark."""
    gap_records: int
    """Records that were gone before they were done, over the cursor's life."""


class Acks(Protocol):
    """What is done of all that a cursor reads."""

    changes: int
    data: Data

    @property
    def gap_records(self) -> int:
        """Records that were gone before they were done."""


AcksT = TypeVar("AcksT", bound=Acks, covariant=True)
HeldT = TypeVar("HeldT", bound="Held[Acks]")
PlaceT = TypeVar("PlaceT")
"""What is acknowledged beside records and chunks: positions, or nothing where a position does not say its stream."""


@dataclass(frozen=True, slots=True)
class Held(Generic[AcksT]):
    """What every open cursor has."""

    acks: AcksT
    flusher: CursorFlusher
    epoch: int


class CursorHolder(Generic[HeldT, PlaceT, GapT]):
    """What cursors of a stream and of a pattern share: a holder's life, and acknowledgements."""

    def __init__(
        self,
        name: str,
        *,
        flush_interval: float,
        flush_acks: int,
        tail: bool,
        prefetch_bytes: int,
        on_gap: Literal["raise", "yield"],
    ) -> None:
        checked_integer("prefetch_bytes", prefetch_bytes, 1, ID_MAX)
        if not 0.001 <= flush_interval <= 3600:
            raise ConfigError("flush_interval must be from 0.001 to 3600 seconds")
        checked_integer("flush_acks", flush_acks, 1, ID_MAX)
        if on_gap not in ("raise", "yield"):
            raise ConfigError('on_gap must be "raise" or "yield"')
        part_of(name)
        self.name = name
        self._flush_interval = flush_interval
        self._flush_acks = flush_acks
        self._is_tailing = tail
        self._prefetch_bytes = prefetch_bytes
        self._raises = on_gap == "raise"
        self._parts: HeldT | None = None
        self._room = asyncio.Event()

    # --- what differs ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the cursor, or take it over."""
        raise NotImplementedError

    async def _stop_reading(self) -> None:
        raise NotImplementedError

    def _place(self, done: Record | Chunk | PlaceT) -> tuple[str, int, DLSN]:
        """Return what was done: the stream's id, "" for the only one; number, NONE before the mark; position.

        Raises ConfigError, TypeError.
        """
        raise NotImplementedError

    def _acks_of(self, stream_id: str) -> CursorAcks | None:
        """Return what is done of a stream; None: it is not read any more."""
        raise NotImplementedError

    def _is_stale(self, stream_id: str, seq: int) -> bool:
        """Whether acknowledging it changes nothing: it was handed out before a `reset`, and not again since."""
        raise NotImplementedError

    def _has_room(self, acks: CursorAcks, seq: int) -> bool:
        return acks.has_room(seq)

    def _changed(self) -> None:
        """Something was done."""
        if self._parts is not None:
            self._parts.flusher.touch()
            self._room.set()

    # --- life -----------------------------------------------------------------------------------------------------

    def _flusher(self, path: str, acks: Acks, keeper: Keeper, client: Client) -> CursorFlusher:
        times = self._flush_interval, self._flush_acks
        return CursorFlusher(path, acks, keeper, *times, self._room.set, client.unsettled)

    def _held(self) -> HeldT:
        if self._parts is None:
            raise ClientClosed(f"cursor {self.name} is not open: use `async with`")
        return self._parts

    @property
    def _failure(self) -> Error | None:
        """What ended the holder; None while it goes on."""
        return self._held().flusher.failure

    @property
    def _is_reported(self) -> bool:
        """Whether a call has raised CursorFenced: then the end of the block does not."""
        return self._parts is not None and self._parts.flusher.is_reported

    def _alive(self) -> HeldT:
        parts = self._held()
        parts.flusher.check()
        return parts

    async def close(self) -> None:
        """Keep what was acknowledged, and let go; again: does nothing.

        Raises CursorFenced, and what kept it from keeping it.
        """
        if self._parts is None:
            return
        try:
            await self._parts.flusher.close()
        finally:
            await self._stop_reading()

    async def abort(self) -> None:
        """Let go without keeping anything more, as a process does that dies."""
        if self._parts is not None:
            self._parts.flusher.abort()
            await self._stop_reading()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        was_reported = self._is_reported
        try:
            await self.close()
        except Error as closing:
            if not may_end_quietly(closing, error, is_reported=was_reported):
                raise

    def _unreadable(self, chunk: Chunk, at: int, error: ProtocolError) -> Gap:
        """Pass by a record that cannot be read, and count it as gone. Raises `error` instead, with on_gap "raise"."""
        if self._raises:
            raise error
        self._alive()
        gap, seq = unreadable_gap(chunk, at), chunk.first_seq + at
        acks = self._acks_of("" if chunk.origin is None else chunk.origin.id)
        if acks is not None and acks.pass_gap(seq, seq + 1, gap.next):
            self._changed()
        return gap

    # --- acknowledging --------------------------------------------------------------------------------------------

    def ack(
        self, up_to: Record | Chunk | PlaceT, *, data: Mapping[str, int | str] | None = None
    ) -> Awaitable[None]:
        """Everything of its stream up to this record (a chunk's last), it included, is done.

        Awaiting the result has that kept now; what is not awaited is kept in groups. `data` becomes the cursor's map,
        kept together with this mark; where this record was done before, nothing changes. A position alone must be of a
        record that was handed out lately, and a pattern's cursor takes none. Raises CursorFenced, ConfigError.
        """
        parts = self._alive()
        known = None if data is None else check_data(data)
        acks, seq, dlsn = self._acks_at(self._place(up_to))
        if acks is not None and acks.ack(seq, dlsn):
            if known is not None:
                parts.acks.data = known
            self._changed()
        return Kept(parts.flusher, parts.acks.changes)

    def ack_one(self, done: Record | PlaceT) -> Awaitable[None]:
        """This record is done, whatever is before it; awaiting the result has that kept now.

        What is not awaited is kept in groups. While 10,000 ranges of such records lie behind the mark, 4,000 behind
        the marks of all streams of a pattern, there is no room for more: then only who awaits has it acknowledged, once
        there are fewer. Raises CursorFenced, ConfigError.
        """
        parts, place = self._alive(), self._place(done)
        if self._took_one(place):
            return Kept(parts.flusher, parts.acks.changes)
        return self._ack_one_later(parts, place)

    async def _ack_one_later(self, parts: HeldT, place: tuple[str, int, DLSN]) -> None:
        await self._take_one_with_room(place)
        await parts.flusher.until(parts.acks.changes)

    async def _ack_one_unkept(self, done: Record | PlaceT) -> None:
        """Wait for room only, for `fastbk.sync`."""
        self._alive()
        await self._take_one_with_room(self._place(done))

    async def _take_one_with_room(self, place: tuple[str, int, DLSN]) -> None:
        while not self._took_one(place):
            self._room.clear()
            await self._room.wait()
            self._alive()

    def _took_one(self, place: tuple[str, int, DLSN]) -> bool:
        """Acknowledge a record; False: there is no room."""
        acks, seq, dlsn = self._acks_at(place)
        if acks is None or acks.is_done(seq):
            return True
        if not self._has_room(acks, seq):
            return False
        acks.ack_one(seq, dlsn)
        self._changed()
        return True

    def _acks_at(self, place: tuple[str, int, DLSN]) -> tuple[CursorAcks | None, int, DLSN]:
        """Return what is done of a record's stream, None where acknowledging it changes nothing; and the record."""
        stream_id, seq, dlsn = place
        return None if self._is_stale(stream_id, seq) else self._acks_of(stream_id), seq, dlsn

    async def flush(self) -> None:
        """Return when all that was acknowledged is kept: it survives any crash. Raises CursorFenced.

        Raises anything else where that failed; it is tried again, later or by the next call.
        """
        parts = self._held()
        await parts.flusher.until(parts.acks.changes)

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def data(self) -> Mapping[str, int | str]:
        """The map that came with the last acknowledgement that had one."""
        return dict(self._held().acks.data)

    @property
    def epoch(self) -> int:
        """Epoch of this opening; rises with each."""
        return self._held().epoch

    @property
    def gap_records(self) -> int:
        """Records that were gone before they were done, over the cursor's life."""
        return self._held().acks.gap_records


@dataclass(frozen=True, slots=True)
class _Parts(Held[CursorAcks]):
    """What an open cursor of one stream has."""

    context: StreamContext
    reader: StreamReader[Gap]
    delivery: CursorDelivery


class Cursor(CursorHolder[_Parts, DLSN, GapT]):
    """Reads a stream from its mark on, and keeps what is done; made by `Stream.cursor(name)`.

    `async with` opens it: whoever held it before is fenced, and finds out (CursorFenced) when it next has something
    to keep. Leaving the block keeps all that was acknowledged, and raises CursorFenced only if no call has before.
    What was acknowledged and not kept when a process dies is delivered again (INV-S10). Not for several tasks to read
    from at once; acknowledging from any is fine.
    """

    def __init__(
        self,
        context: ContextLike,
        name: str,
        start: Start = "earliest",
        *,
        hold: bool = True,
        flush_interval: float = 1.0,
        flush_acks: int = 1000,
        expire_after: float | None = None,
        tail: bool = True,
        prefetch_bytes: int = 8 << 20,
        on_gap: Literal["raise", "yield"] = "raise",
    ) -> None:
        """Make a handle; no I/O.

        Args:
            context: the stream.
            name: of the cursor, 1 to 80 bytes; made at its first opening.
            start: where it begins then; afterwards at its mark. A position or number that was truncated raises
                PositionTruncated, and no cursor is made; with on_gap "yield" the first item is a Gap.
            hold: whether soft limits of retention keep what is not done.
            flush_interval, flush_acks: what is acknowledged is kept after so many seconds (0.001 to 3600), or so many
                acknowledgements (1 or more).
            expire_after: seconds without a holder after which it is deleted (1 or more); None: never.
            tail: whether to wait for more at the end of the stream.
            prefetch_bytes: read ahead of what is asked for.
            on_gap: what happens where records are gone that were not done: "raise" PositionTruncated or DataLost, again
                and again until `reset`; or "yield" a Gap, count it, and go on.
        """
        check_start(start)
        super().__init__(
            name,
            flush_interval=flush_interval,
            flush_acks=flush_acks,
            tail=tail,
            prefetch_bytes=prefetch_bytes,
            on_gap=on_gap,
        )
        self._given = context
        self._wish = CursorRequest(start, on_gap == "raise", *checked_keeping(hold, expire_after))
        self._chunk: Chunk | None = None
        self._handed_out = 0

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the cursor, or take it over.

        Raises StreamNotFound, PositionTruncated, QuotaExceeded (of a new one), and what recovery raises.
        """
        if self._parts is not None:
            raise ClientClosed(f"cursor {self.name} was opened before: make a new handle")
        context = await context_of(self._given)
        store = await take_over(context, self.name, self._wish)
        acks = CursorAcks(store.record.state)
        reader: StreamReader[Gap] = StreamReader(
            context,
            acks.mark,
            tail=self._is_tailing,
            prefetch_bytes=self._prefetch_bytes,
            on_gap="yield",
            start_seq=acks.mark_seq,
        )
        reader.consumer = self
        await reader.__aenter__()
        keeper = StateStorage(context, self.name, store, acks)
        path = f"{context.name}/{self.name}"
        flusher = self._flusher(path, acks, keeper, context.client)
        delivery = CursorDelivery(reader, acks, flusher.touch, raises=self._raises, name=path)
        self._parts = _Parts(acks, flusher, store.record.state.epoch, context, reader, delivery)

    def __repr__(self) -> str:
        where = "not open" if self._parts is None else f"mark {self._parts.acks.mark}"
        return f"<Cursor {self._given.name}/{self.name}: {where}>"

    async def _stop_reading(self) -> None:
        await self._held().reader.__aexit__(None, None, None)

    # --- reading --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record | GapT:
        """Return the next record that is not done; with `on_gap="yield"` also Gaps."""
        while True:
            parts, chunk, index = self._alive(), self._chunk, self._handed_out
            while chunk is not None and index < len(chunk):
                if not parts.acks.is_done(chunk.first_seq + index):
                    try:
                        record: Record | Gap = chunk[index]
                    except ProtocolError as error:
                        record = self._unreadable(chunk, index, error)
                    self._handed_out = index + 1
                    return cast("Record | GapT", record)
                index = self._handed_out = index + 1
            self._chunk = None
            item = await parts.delivery.next(CHUNK_RECORDS, CHUNK_BYTES, None)
            if item is None:
                raise StopAsyncIteration
            if isinstance(item, Gap):
                return cast("GapT", item)
            self._chunk, self._handed_out = item, 0

    def _delivery(self) -> CursorDelivery:
        """Return what hands out many records at once, with what iteration took and has not handed out before it."""
        delivery, chunk, index = self._alive().delivery, self._chunk, self._handed_out
        self._chunk = None
        if chunk is not None and index < len(chunk):
            delivery.give_back(chunk[index:])
        return delivery

    def chunks(
        self, max_records: int = CHUNK_RECORDS, max_bytes: int = CHUNK_BYTES
    ) -> AsyncGenerator[Chunk | GapT, None]:
        """Yield records that are not done, in chunks: one ends where something done follows. Ends as iteration does."""

        async def following() -> Chunk | GapT | None:
            item = await self._delivery().next(max_records, max_bytes, None)
            return cast("Chunk | GapT | None", item)

        return Repeated(following)

    async def read(
        self,
        max_records: int = CHUNK_RECORDS,
        max_bytes: int = CHUNK_BYTES,
        timeout: float | None = None,
    ) -> Chunk | GapT | None:
        """Return up to `max_records` as soon as one is there; None after `timeout` seconds, or at the end."""
        item = await self._delivery().next(max_records, max_bytes, checked_timeout(timeout))
        return cast("Chunk | GapT | None", item)

    # --- acknowledging --------------------------------------------------------------------------------------------

    def _is_stale(self, stream_id: str, seq: int) -> bool:
        if seq == NONE:
            return True  # a position before the mark, which may have no number yet: it is done, or was left
        chunk = self._chunk
        is_ahead = chunk is not None and seq >= chunk.first_seq + self._handed_out
        return self._held().delivery.is_stale(seq, is_ahead=is_ahead)

    def _acks_of(self, stream_id: str) -> CursorAcks:
        return self._held().acks

    def _place(self, done: Record | Chunk | DLSN) -> tuple[str, int, DLSN]:
        check_done(done)
        if isinstance(done, Record):
            return "", done.seq, done.dlsn
        if isinstance(done, Chunk):
            return "", done.first_seq + len(done) - 1, done.last_dlsn
        parts = self._held()
        return "", NONE if done < parts.acks.mark else parts.delivery.seq_of(done), done

    async def reset(self, where: Start, *, seq: int | None = None) -> None:
        """Begin anew elsewhere, also backwards, but not before what the stream still has; kept when this returns.

        Everything behind it is not done, and is delivered (again). An acknowledgement of a record that was handed out
        before, and not again since, changes nothing: what works on such records need not be waited for. `seq`: the
        number of the record at that position, from whoever knows it: what lists cursors then tells their backlog.
        """
        parts = self._alive()
        check_start(where)
        if seq is not None:
            checked_integer("seq", seq, 0, NUMBER_MAX)
            if not isinstance(where, DLSN):
                raise ConfigError("seq is the number of the record at a position that is given")
        mark = await clamped_start(parts.context, where)
        await parts.delivery.seek(mark)
        self._chunk = None
        parts.acks.reset(mark, NONE if seq is None or mark != where else seq)
        self._changed()
        await self.flush()

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def position(self) -> DLSN:
        """Where the next record to be handed out lies, or will lie, or before: what is done is passed by."""
        parts, ahead = self._held(), self._at_hand()
        return parts.reader.position if ahead is None else ahead.first_dlsn

    @property
    def lag(self) -> Lag:
        """How far what was handed out is behind what this cursor knows to be there; no I/O. `backlog()` asks."""
        parts, ahead = self._held(), self._at_hand()
        if ahead is None:
            return parts.reader._lag_from(parts.acks.not_done)
        not_done = parts.acks.not_done(ahead.first_seq, parts.reader._end_seq)
        return parts.reader._lag_of(sum(high - low for low, high in not_done), ahead.first.time_us)

    def stats(self) -> CursorStats:
        """Return this cursor's figures now; no I/O."""
        parts = self._held()
        return CursorStats(
            reader=parts.reader.stats(),
            mark_seq=parts.acks.mark_seq,
            ranges=len(parts.acks.ranges),
            changes_unstored=parts.flusher.unkept,
            gap_records=parts.acks.gap_records,
        )

    @property
    def records_at_hand(self) -> int:
        """Records that were read for it, and that it has not handed out; those that are done are among them."""
        parts, chunk = self._held(), self._chunk
        return parts.delivery.held_records + (0 if chunk is None else len(chunk) - self._handed_out)

    def _at_hand(self) -> Chunk | None:
        """Return what was read and not handed out yet, its beginning; None if nothing is."""
        chunk, index = self._chunk, self._handed_out
        if chunk is not None and index < len(chunk):
            return chunk[index:]
        return self._held().delivery.held

    @property
    def mark(self) -> DLSN:
        """Everything before it is done, as far as this handle knows."""
        return self._held().acks.mark

    @property
    def mark_seq(self) -> int:
        """The number of the first record that is not done; -1 while none was seen."""
        return self._held().acks.mark_seq

    @property
    def ranges(self) -> int:
        """Ranges done behind the mark: at most 10,000."""
        return len(self._held().acks.ranges)

    async def backlog(self) -> Backlog:
        """Return what is not done of what readers can see now. Raises what reads raise."""
        parts = self._held()
        return await backlog_of(parts.context, parts.acks)


def check_done(done: object) -> None:
    """Raise TypeError for what cannot be done: a Gap, a number."""
    if not isinstance(done, Record | Chunk | DLSN):
        raise TypeError(f"a record, a chunk or a DLSN is acknowledged, not {type(done).__name__}")


# --- when the state is kept -----------------------------------------------------------------------
#
# When a cursor's state is kept: all that was acknowledged meanwhile goes together, and all who wait
# are told.


AGAIN_S = 0.1
"""First pause after a state could not be kept; doubled up to five seconds. Whoever waits for it cuts it short."""
AGAIN_S_MAX = 5.0


class Changes(Protocol):
    """What acknowledgements come to."""

    @property
    def changes(self) -> int:
        """Counts what has changed."""


class Keeper(Protocol):
    """Where states are kept. One call at a time."""

    async def keep(self) -> int:
        """Keep the state as it is now; return the count of changes that are in it.

        Raises CursorFenced; anything else: nobody knows whether it is kept, and another call tries again.
        """

    def renew_in_s(self) -> float | None:
        """Return in how many seconds `tend` has to be called, even if nothing is to be kept; None: not at all."""

    async def tend(self) -> None:
        """Do what is due beside. Raises CursorFenced; other troubles wait for the next call."""

    async def close(self, is_dirty: bool) -> None:
        """Keep what is not kept. Raises CursorFenced; anything else where it is not known whether it is kept."""


class CursorFlusher:
    """One holder's: a task that keeps states, one at a time.

    Attributes:
        failure: what ended the holder: CursorFenced, ClientClosed, a bug; None while it may go on.
        is_reported: a call has raised CursorFenced: the end of the cursor's block need not say it again.
        trouble: why the last state could not be kept; None when it could.
    """

    def __init__(
        self,
        name: str,
        acks: Changes,
        keeper: Keeper,
        interval_s: float,
        changes_max: int,
        on_end: Callable[[], None],
        unsettled: set[Settling],
    ) -> None:
        """`interval_s`, `changes_max`: after either of them a state is kept, whoever waits for it or not.

        `on_end()` is called when `failure` is there. `unsettled`: of the client, which waits for what is kept.
        """
        self.failure: Error | None = None
        self.is_reported = False
        self.trouble: Error | None = None
        self._retry = Retry(AGAIN_S, AGAIN_S_MAX)
        self._name = name
        self._acks = acks
        self._keeper = keeper
        self._interval_s = interval_s
        self._changes_max = changes_max
        self._on_end = on_end
        self._kept = acks.changes
        self._taken = acks.changes
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._work = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._is_closing = False
        self._is_given_up = False
        self._closing = SharedEnd()
        self._unsettled = unsettled
        unsettled.add(self)
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def is_dirty(self) -> bool:
        """Whether something changed that is not kept yet."""
        return self._kept < self._acks.changes

    @property
    def unkept(self) -> int:
        """How many changes are not kept yet."""
        return max(0, self._acks.changes - self._kept)

    def check(self) -> None:
        """Raise what ended the holder, in a call."""
        if self.failure is not None:
            self.is_reported = self.is_reported or isinstance(self.failure, CursorFenced)
            raise self.failure.copy()

    def touch(self) -> None:
        """Something was acknowledged; it is kept when it is time."""
        if self._acks.changes - self._taken >= self._changes_max:
            if not self._is_due:
                self._due()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._due)

    def _due(self) -> None:
        self._stop_timer()
        self._is_due = True
        self._work.set()

    async def until(self, changes: int) -> None:
        """Return when so many changes are kept; they are at once. Raises what ended the holder, or kept them from it.

        In the second case they are tried again, later or by the next call.
        """
        try:
            await self._until(changes)
        except CursorFenced:
            self.is_reported = True
            raise

    async def _until(self, changes: int) -> None:
        if changes <= self._kept:
            return
        if self.failure is not None:
            raise self.failure.copy()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((changes, future))
        self._due()
        await future

    # --- the task -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self.failure is None and not self._is_closing:
            await self._wait()
            try:
                if self._is_due and self.is_dirty and not self._is_closing:
                    await self._flush()
                if not self._is_closing:
                    await self._keeper.tend()
            except CursorFenced as error:
                self._end(error)
            except asyncio.CancelledError:
                self._end(ClientClosed(f"cursor {self._name} was given up"))
                raise
            except BaseException as error:
                # A bug of ours: nobody may wait for it for ever.
                self._end(as_error(error, f"cursor {self._name}"))
                raise

    async def _wait(self) -> None:
        timeout_s = self._keeper.renew_in_s()
        try:
            async with asyncio.timeout(timeout_s):
                await self._work.wait()
        except TimeoutError:
            pass
        self._work.clear()

    async def _flush(self) -> None:
        """Keep the state, or try again later."""
        self._is_due = False
        self._taken = self._acks.changes
        try:
            kept = await self._keeper.keep()
        except CursorFenced:
            raise
        except Error as error:
            self.trouble = error
            _log.warning("cursor.flush_waits", cursor=self._name, reason=str(error))
            self._resolve_waiters(self._taken, error)
            self._stop_timer()
            self._timer = self._loop.call_later(self._retry.pause_s(), self._due)
            return
        self._retry.restart()
        self.trouble = None
        self._kept = max(self._kept, kept)
        self._resolve_waiters(self._kept, None)

    def _resolve_waiters(self, changes: int, error: Error | None) -> None:
        """Answer those who wait for at most so many changes; what others wait for is due again."""
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if future.done():
                continue
            if wanted > changes:
                self._waiting.append((wanted, future))
                self._due()
            elif error is None:
                future.set_result(None)
            else:
                future.set_exception(error.copy())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: Error) -> None:
        self.failure = error
        self._unsettled.discard(self)
        self._stop_timer()
        self._resolve_waiters(self._acks.changes, error)
        self._on_end()

    # --- for a client that is about to be closed -----------------------------------------------------------------

    lost_event = "client.acknowledgements_lost"

    @property
    def label(self) -> str:
        """What it has taken."""
        return f"acknowledgements by cursor {self._name}"

    @property
    def is_unsettled(self) -> bool:
        """Whether something was acknowledged that is not kept."""
        return self.failure is None and self.is_dirty

    async def until_settled(self) -> None:
        """Return when all that was acknowledged so far is kept, or could not be."""
        with suppress(Error):
            await self._until(self._acks.changes)

    # --- the end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Keep what is not kept yet, delete ledgers that are not needed, and end. Raises what kept it from that.

        Called again, it waits for the first call's end, and raises the same. After `abort` it does nothing.
        """
        if self._is_given_up:
            return
        try:
            await self._closing.reach(self._close, self.abort)
        except CursorFenced:
            self.is_reported = True
            raise

    async def _close(self) -> None:
        self._is_closing = True
        self._work.set()
        try:
            await asyncio.wait([self._task])
            if self.failure is not None:
                raise self.failure.copy()
            await self._keeper.close(self.is_dirty)
            self._kept = self._acks.changes
            self._resolve_waiters(self._kept, None)
        except Error as error:
            self._end(error)
            raise
        finally:
            self._end(self.failure or ClientClosed(f"cursor {self._name} is closed"))

    def abort(self) -> None:
        """Do nothing more: what was under way may be kept."""
        self._is_closing = self._is_given_up = True
        self._task.cancel()
        self._end(self.failure or ClientClosed(f"cursor {self._name} was given up"))


class Kept:
    """What `ack` returns: awaiting it has the acknowledgement kept at once; not awaiting it is fine, too."""

    __slots__ = ("_changes", "_flusher")

    def __init__(self, flusher: CursorFlusher, changes: int) -> None:
        self._flusher = flusher
        self._changes = changes

    def __await__(self) -> Generator[object, None, None]:
        return self._flusher.until(self._changes).__await__()
