"""Readers without `await`: chunks are fetched from the loop, records are handed out in the thread of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fastbk.client.async_tools import may_end_quietly
from fastbk.client.loop_thread import Hand, LoopThread, facade_text
from fastbk.errors import ClientClosed, Error, ProtocolError
from fastbk.option_checks import checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.options import GapT
from fastbk.stream.positions import DLSN, Start
from fastbk.stream.reader.stream_reader import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    Lag,
    StreamReader,
    StreamReaderStats,
)
from fastbk.stream.records import Chunk, Gap, Record

if TYPE_CHECKING:
    from fastbk.stream.cursor.cursor import Cursor
    from fastbk.stream.pattern.cursor import PatternCursor
    from fastbk.stream.pattern.reader import PatternReader


Inner = TypeVar(
    "Inner", bound="StreamReader[Gap] | Cursor[Gap] | PatternReader[Gap] | PatternCursor[Gap]"
)
One = TypeVar("One", bound="StreamReader[Gap] | Cursor[Gap]")


class SyncRecords(Generic[Inner, GapT]):
    """What readers and cursors share: iteration by records and by chunks. Not for several threads at once.

    What the loop took from the asyncio reader lies in `_hand`, which belongs to this object, until the caller has it.
    So a call that was interrupted has skipped nothing (INV-C3): the next one hands it out.
    """

    def __init__(self, loop: LoopThread[Client], make: Callable[[], Inner]) -> None:
        self._loop = loop
        self._make = make
        self._inner: Inner | None = None
        self._is_closed = False
        self._is_own = False  # an iteration has opened it, and closes it
        self._turn = asyncio.Lock()  # a call that was interrupted may not be at its end
        self._hand: Hand[Chunk | Gap] = Hand()

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    def _opened(self) -> Inner:
        self._loop.check()
        if self._inner is None or self._is_closed:
            raise ClientClosed("it is not open: use `with`")
        return self._inner

    def _check_new(self) -> None:
        if self._inner is not None or self._is_closed:
            raise ClientClosed("it was opened or closed before: make a new one")

    def open(self) -> None:
        """Begin; `with` does it, and a `for` loop over what is not open."""
        self._check_new()

        async def entered() -> Inner:
            inner = self._make()
            await inner.__aenter__()
            return inner

        self._inner = self._loop.call(entered, undo=lambda inner: inner.__aexit__(None, None, None))
        if self._is_closed:  # by a signal's handler, or another thread
            self.close()
            raise ClientClosed("it was closed while it was opened: make a new one")

    def close(self) -> None:
        """End it; a cursor keeps what was acknowledged. Called again, it waits for the end, and raises the same.

        An exception in the caller's thread (Ctrl-C) ends the wait, and not the closing.
        """
        self._is_closed = True
        inner = self._inner
        if inner is None:
            return
        self._hand = Hand()
        if self._loop.is_closed is None:
            self._loop.call(lambda: self._close_inner(inner), goes_on=True)

    async def _close_inner(self, inner: Inner) -> None:
        """Close the asyncio reader. On the loop."""
        await inner.close()

    @property
    def _was_reported(self) -> bool:
        """Whether a call has raised that somebody else has it now."""
        return False

    def __enter__(self) -> Self:
        if self._inner is None:
            self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        was_reported = self._was_reported
        try:
            self.close()
        except Error as closing:
            if not may_end_quietly(closing, error, is_reported=was_reported):
                raise

    # --- reading ------------------------------------------------------------------------------------------------

    def _read(
        self, inner: Inner, max_records: int, max_bytes: int, timeout: float | None, max_wait: float
    ) -> Awaitable[Chunk | Gap | None]:
        """Take what comes next from the asyncio reader. On the loop."""
        return inner.read(max_records, max_bytes, timeout)

    def _fetch(
        self, max_records: int, max_bytes: int, timeout: float | None = None, max_wait: float = 0.0
    ) -> None:
        """Have something in hand; nothing after `timeout` seconds, or at the end."""
        inner = self._opened()

        async def fetched() -> None:
            async with self._turn:
                if self._next_in_hand() is None:
                    item = await self._read(inner, max_records, max_bytes, timeout, max_wait)
                    if item is not None:
                        self._hand = Hand([item])

        self._loop.call(fetched)

    def _next_in_hand(self) -> Chunk | Gap | None:
        """Return the item that is handed out next, or the rest of; None if there is none."""
        while not self._hand.is_empty:
            hand = self._hand
            if hand.at < hand.size or isinstance(hand.item, Gap):
                item: Chunk | Gap = hand.item
                return item
            self._hand = hand.behind()
        return None

    def _take(self, max_records: int) -> Chunk | GapT | None:
        """Hand out the next item, or so many records of it; None if there is none."""
        item = self._next_in_hand()
        hand, index = self._hand, self._hand.at
        if isinstance(item, Chunk):
            part = item[index : index + max_records]
            end = index + len(part)
            hand.at = end
            return part
        if item is not None:
            following = hand.behind()
            self._hand = following
        # A Gap, or None; a call of `cast` behind the store would be too late (INV-C3).
        return item  # type: ignore[return-value]

    def __iter__(self) -> Self:
        """Begin an iteration over records (and Gaps, with on_gap="yield"), until the end if there is one.

        Iteration opens what is not open, and closes that at the end. What `with` or `open` has opened stays open.
        """
        self._open_own()
        return self

    def __next__(self) -> Record | GapT:
        while True:
            hand = self._hand
            index = hand.at
            if index < hand.size:
                try:
                    record: Record | Gap = hand.item[index]
                except ProtocolError as error:
                    record = self._passed(hand.item, index, error)
                hand.at = index + 1
                return record  # type: ignore[return-value]
            item = self._next_in_hand()
            if isinstance(item, Gap):
                following = self._hand.behind()
                self._hand = following
                return item  # type: ignore[return-value]
            if item is None:
                self._fetch(CHUNK_RECORDS, CHUNK_BYTES)
                if self._next_in_hand() is None:
                    self._close_own()
                    raise StopIteration

    def _passed(self, chunk: Chunk, at: int, error: ProtocolError) -> Gap:
        """Return what is handed out in place of a record that cannot be read. Raises `error`, if that is asked for."""
        inner = self._opened()
        return self._loop.call_plain(lambda: inner._unreadable(chunk, at, error))

    def _open_own(self) -> None:
        if self._inner is None:
            self.open()
            self._is_own = True

    def _close_own(self) -> None:
        if self._is_own:
            self.close()

    def read(
        self,
        max_records: int = CHUNK_RECORDS,
        max_bytes: int = CHUNK_BYTES,
        timeout: float | None = None,
    ) -> Chunk | GapT | None:
        """Return up to `max_records` as soon as one is there; None after `timeout` seconds, or at the end."""
        self._opened()
        checked_timeout(timeout)
        if self._next_in_hand() is None:
            self._fetch(max_records, max_bytes, timeout)
        return self._take(max_records)


class SyncChunks(Iterator["Chunk | GapT"]):
    """The iterator that `chunks` of readers and cursors return."""

    def __init__(
        self, records: SyncRecords[Any, GapT], max_records: int, max_bytes: int, max_wait: float
    ) -> None:
        self._records = records
        self._wish = max_records, max_bytes, None, max_wait

    def __next__(self) -> Chunk | GapT:
        records = self._records
        records._open_own()
        if records._next_in_hand() is None:
            records._fetch(*self._wish)
            if records._next_in_hand() is None:
                records._close_own()
                raise StopIteration
        return records._take(self._wish[0])  # type: ignore[return-value]


class SyncOfOneStream(SyncRecords[One, GapT]):
    """What has one position: readers and cursors of one stream."""

    @property
    def position(self) -> DLSN:
        """Where the next record to be handed out lies, or will lie; a cursor passes by what is done."""
        inner = self._opened()
        item = self._next_in_hand()
        if isinstance(item, Gap):
            return item.first
        if item is not None:
            return item[self._hand.at :].first_dlsn
        return self._loop.call_plain(lambda: inner.position)


class SyncStreamReader(SyncOfOneStream[StreamReader[Gap], GapT]):
    """Reads a stream; made by `Stream.reader()` of `fastbk.sync`. `for record in stream.reader()` opens, closes it."""

    def _read(
        self,
        inner: StreamReader[Gap],
        max_records: int,
        max_bytes: int,
        timeout: float | None,
        max_wait: float,
    ) -> Awaitable[Chunk | Gap | None]:
        return inner._next(max_records, max_bytes, timeout, max_wait)

    def chunks(
        self,
        max_records: int = CHUNK_RECORDS,
        max_bytes: int = CHUNK_BYTES,
        max_wait: float = 0.0,
    ) -> SyncChunks[GapT]:
        """Return an iterator over chunks of records, as the asyncio reader's `chunks`."""
        return SyncChunks(self, max_records, max_bytes, max_wait)

    @property
    def lag(self) -> Lag:
        """How far behind the end it is, as the asyncio reader's; what was fetched counts as delivered."""
        return self._loop.call_plain(lambda: self._opened().lag)

    def stats(self) -> StreamReaderStats:
        """Return this reader's figures now; what was fetched counts as handed out."""
        inner = self._opened()
        return self._loop.call_plain(inner.stats)

    def read_chunks(
        self, max_records: int, max_bytes: int, timeout: float | None = None
    ) -> list[Chunk | GapT]:
        """Like `read`, with what else is there already, up to the same bounds together; one turn to the loop and back.

        Empty after `timeout` seconds, or at the end. All but the last are chunks. What goes wrong behind records that
        were taken is raised by the next call.
        """
        inner = self._opened()
        checked_timeout(timeout)
        if self._next_in_hand() is not None:
            more = self._take(max_records)
            return [more]  # type: ignore[list-item]

        async def some() -> None:
            async with self._turn:
                if self._next_in_hand() is None:
                    self._hand = Hand(await self._found(inner, max_records, max_bytes, timeout))

        self._loop.call(some)
        items, following = self._hand.items, Hand[Chunk | Gap]()
        self._hand = following
        return items  # type: ignore[return-value]

    async def _found(
        self, inner: StreamReader[Gap], max_records: int, max_bytes: int, timeout: float | None
    ) -> list[Chunk | Gap]:
        item = await inner.read(max_records, max_bytes, timeout)
        if item is None:
            return []
        found, rows, size_bytes = [item], max_records, max_bytes
        while isinstance(item, Chunk):
            rows, size_bytes = rows - len(item), size_bytes - item.entries_bytes
            if rows <= 0 or size_bytes <= 0:
                break
            more = inner.at_hand(rows, size_bytes)
            if more is None:
                break
            item = more
            found.append(item)
        return found

    @property
    def is_at_end(self) -> bool:
        """Whether nothing will ever come: the end asked for, or that of a sealed stream, is reached."""
        inner = self._opened()
        return self._next_in_hand() is None and self._loop.call_plain(lambda: inner.is_at_end)

    def caught_up(self) -> bool:
        """Return whether all that was visible at the last look was delivered."""
        inner = self._opened()
        return self._next_in_hand() is None and self._loop.call_plain(inner.caught_up)

    def wait_caught_up(self) -> DLSN:
        """Wait until all that was visible when it was called was delivered; return the position."""
        inner = self._opened()
        return self._loop.call(inner.wait_caught_up)

    def seek(self, where: Start) -> None:
        """Go on at another position."""
        inner = self._opened()

        async def sought() -> None:
            async with self._turn:
                await inner.seek(where)
                self._hand = Hand()

        self._loop.call(sought)
