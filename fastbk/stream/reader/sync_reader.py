"""Readers without `await`: chunks are fetched from the loop, records are handed out in the thread of the caller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

from fastbk.client.loop_thread import LoopThread, facade_text
from fastbk.errors import ClientClosed, Error
from fastbk.option_checks import checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.positions import DLSN, Start
from fastbk.stream.reader.options import GapT
from fastbk.stream.reader.stream_reader import CHUNK_BYTES, CHUNK_RECORDS, Lag, StreamReader
from fastbk.stream.records import Chunk, Gap, Record

if TYPE_CHECKING:
    from fastbk.stream.cursor.cursor import Cursor



Inner = TypeVar("Inner", bound="StreamReader[Gap] | Cursor[Gap]")


class SyncRecords(Generic[Inner, GapT]):
    """What readers and cursors share: iteration by records and by chunks. Not for several threads at once."""

    def __init__(self, loop: LoopThread[Client], make: Callable[[], Inner]) -> None:
        self._loop = loop
        self._make = make
        self._inner: Inner | None = None
        self._is_closed = False
        self._is_own = False  # an iteration has opened it, and closes it
        self._source: AsyncIterator[Chunk | Gap] | None = None
        self._wish = (0, 0, 0.0)
        self._held: Chunk | None = None
        self._at = 0
        self._late: Error | None = None

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    def _opened(self) -> Inner:
        self._loop.check()
        if self._inner is None or self._is_closed:
            raise ClientClosed("it is not open: use `with`")
        return self._inner

    def open(self) -> None:
        """Begin; `with` does it, and a `for` loop over what is not open."""
        if self._inner is not None or self._is_closed:
            raise ClientClosed("it was opened before: make a new one")

        async def entered() -> Inner:
            inner = self._make()
            await inner.__aenter__()
            return inner

        self._inner = self._loop.call(entered)

    def close(self) -> None:
        """End it; a cursor keeps what was acknowledged. A second call does nothing."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        inner = self._inner
        if inner is None or self._is_closed:
            return
        self._is_closed = True
        self._held = None
        if self._loop.is_closed is None:
            kind = None if error is None else type(error)
            self._loop.call(self._close_source)
            self._loop.call(lambda: inner.__aexit__(kind, error, None))

    async def _close_source(self) -> None:
        source, self._source = self._source, None
        close = getattr(source, "aclose", None)
        if close is not None:
            with contextlib.suppress(Error):
                await close()

    def __enter__(self) -> Self:
        if self._inner is None:
            self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error)

    # --- reading ------------------------------------------------------------------------------------------------

    def _chunks(self, inner: Inner, wish: tuple[int, int, float]) -> AsyncIterator[Chunk | Gap]:
        """Return what to pull from. On the loop."""
        return inner.chunks(wish[0], wish[1])

    def _pull(self, wish: tuple[int, int, float]) -> Chunk | Gap | None:
        """Return what comes next, None at the end. `wish`: records and bytes at most, seconds to wait for more."""
        inner = self._opened()

        async def pulled() -> Chunk | Gap | None:
            if self._source is None or wish != self._wish:
                await self._close_source()
                self._source, self._wish = self._chunks(inner, wish), wish
            return await anext(self._source, None)

        try:
            return self._loop.call(pulled)
        except BaseException:
            # A generator that raised is at its end; what it did not deliver the next one does.
            self._source = None
            raise

    def _has_more(self) -> bool:
        return self._held is not None and self._at < len(self._held)

    @property
    def position(self) -> DLSN:
        """Where the next record to be handed out lies, or will lie; a cursor passes by what is done."""
        inner = self._opened()
        if self._held is not None and self._at < len(self._held):
            return self._held[self._at].dlsn
        return self._loop.call_plain(lambda: inner.position)

    def _rest(self) -> Chunk | None:
        """Return what is left of the chunk that records are handed out of, and let it go."""
        held, at = self._held, self._at
        self._held = None
        return held[at:] if held is not None and at < len(held) else None

    def __iter__(self) -> Iterator[Record | GapT]:
        """Yield records (and Gaps, with on_gap="yield"), until the end if it has one.

        Iteration opens what is not open, and closes that at the end. What `with` or `open` has opened stays open.
        """
        self._open_own()
        while True:
            while self._held is not None and self._at < len(self._held):
                self._at += 1
                yield self._held[self._at - 1]
            self._held = None
            item = self._pull((CHUNK_RECORDS, CHUNK_BYTES, 0.0))
            if item is None:
                self._close_own()
                return
            if isinstance(item, Gap):
                yield cast("GapT", item)
            else:
                self._held, self._at = item, 0

    def _open_own(self) -> None:
        if self._inner is None:
            self.open()
            self._is_own = True

    def _close_own(self) -> None:
        if self._is_own:
            self.close()

    def _iterate(self, wish: tuple[int, int, float]) -> Iterator[Chunk | GapT]:
        self._open_own()
        rest = self._rest()
        if rest is not None:
            yield rest
        while (item := self._pull(wish)) is not None:
            yield cast("Chunk | GapT", item)
        self._close_own()

    def read(
        self,
        max_records: int = CHUNK_RECORDS,
        max_bytes: int = CHUNK_BYTES,
        timeout: float | None = None,
    ) -> Chunk | GapT | None:
        """Return up to `max_records` as soon as one is there; None after `timeout` seconds, or at the end."""
        inner = self._opened()
        checked_timeout(timeout)
        rest = self._rest()
        if rest is not None:
            self._held, self._at = rest[max_records:], 0
            return rest[:max_records]

        async def some() -> Chunk | Gap | None:
            await self._close_source()
            return await inner.read(max_records, max_bytes, timeout)

        return cast("Chunk | GapT | None", self._loop.call(some))


class SyncStreamReader(SyncRecords[StreamReader[Gap], GapT]):
    """Reads a stream; made by `Stream.reader()` of `fastbk.sync`. `for record in stream.reader()` opens, closes it."""

    def _chunks(
        self, inner: StreamReader[Gap], wish: tuple[int, int, float]
    ) -> AsyncIterator[Chunk | Gap]:
        return inner.chunks(*wish)

    def chunks(
        self,
        max_records: int = CHUNK_RECORDS,
        max_bytes: int = CHUNK_BYTES,
        max_wait: float = 0.0,
    ) -> Iterator[Chunk | GapT]:
        """Yield chunks of records, as the asyncio reader's `chunks` does."""
        return self._iterate((max_records, max_bytes, max_wait))

    @property
    def lag(self) -> Lag:
        """How far behind the end it is, as the asyncio reader's; what was fetched counts as delivered."""
        return self._loop.call_plain(lambda: self._opened().lag)

    def read_chunks(
        self, max_records: int, max_bytes: int, timeout: float | None = None
    ) -> list[Chunk | GapT]:
        """Like `read`, with what else is there already, up to the same bounds together; one turn to the loop and back.

        Empty after `timeout` seconds, or at the end. All but the last are chunks. What goes wrong behind records that
        were taken is raised by the next call of this.
        """
        inner = self._opened()
        checked_timeout(timeout)
        late, self._late = self._late, None
        if late is not None:
            raise late
        if self._has_more():
            more = self.read(max_records, max_bytes, timeout)
            return [] if more is None else [more]

        async def some() -> list[Chunk | Gap]:
            await self._close_source()
            item = await inner.read(max_records, max_bytes, timeout)
            if item is None:
                return []
            found, rows, size_bytes = [item], max_records, max_bytes
            while isinstance(item, Chunk):
                rows, size_bytes = rows - len(item), size_bytes - item.entries_bytes
                if rows <= 0 or size_bytes <= 0:
                    break
                try:
                    more = inner.at_hand(rows, size_bytes)
                except Error as error:
                    self._late = error
                    break
                if more is None:
                    break
                item = more
                found.append(item)
            return found

        return cast("list[Chunk | GapT]", self._loop.call(some))

    @property
    def is_at_end(self) -> bool:
        """Whether nothing will ever come: the end asked for, or that of a sealed stream, is reached."""
        inner = self._opened()
        return not self._has_more() and self._loop.call_plain(lambda: inner.is_at_end)

    def caught_up(self) -> bool:
        """Return whether all that was visible at the last look was delivered."""
        inner = self._opened()
        return not self._has_more() and self._loop.call_plain(inner.caught_up)

    def wait_caught_up(self) -> DLSN:
        """Wait until all that was visible when it was called was delivered; return the position."""
        inner = self._opened()
        return self._loop.call(inner.wait_caught_up)

    def seek(self, where: Start) -> None:
        """Go on at another position."""
        inner = self._opened()
        self._held = self._late = None

        async def sought() -> None:
            await self._close_source()
            await inner.seek(where)

        self._loop.call(sought)
