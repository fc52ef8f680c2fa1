"""Durable cursors, of one stream and of a pattern of streams, and readers of patterns, without `await`."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastbk.client.loop_thread import Hand, LoopThread, Wakeup, blocking
from fastbk.errors import Error, ProtocolError
from fastbk.stream.client import Client
from fastbk.stream.context import as_error
from fastbk.stream.cursor.cursor import Cursor, CursorStats, check_done
from fastbk.stream.cursor.state import Data, check_data
from fastbk.stream.options import GapT
from fastbk.stream.pattern.cursor import PatternCursor, check_pattern_done
from fastbk.stream.pattern.reader import PatternReader
from fastbk.stream.positions import DLSN, Start
from fastbk.stream.reader.stream_reader import CHUNK_BYTES, CHUNK_RECORDS, Lag, StreamReaderStats
from fastbk.stream.reader.sync_reader import SyncChunks, SyncOfOneStream, SyncRecords
from fastbk.stream.records import Chunk, Gap, Record

PatternInner = TypeVar("PatternInner", bound="PatternReader[Gap] | PatternCursor[Gap]")

T = TypeVar("T")
Held = TypeVar("Held", bound="Cursor[Gap] | PatternCursor[Gap]")
ACKS_WAITING_MAX = 1000
"""Acknowledgements that are on their way to the loop; one more waits for them."""


class PendingAck:
    """An acknowledgement; `result()` waits until it survives any crash. Not waiting for it is fine, too."""

    __slots__ = ("_flush",)

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush

    def result(self) -> None:
        """Have it kept now. Raises CursorFenced, and what keeps it from that."""
        self._flush()


class SyncHolder(SyncRecords[Held, GapT]):
    """What cursors of a stream and of a pattern share: acknowledgements, taken to the loop in their order."""

    _check_done = staticmethod(check_done)

    def __init__(self, loop: LoopThread[Client], make: Callable[[], Held]) -> None:
        super().__init__(loop, make)
        self._acks: deque[tuple[Any, Data | None]] = deque()
        self._wakeup = Wakeup(loop, self._take_acks)
        self._failure: Error | None = None
        self._is_reported = False  # of `_failure`, by a call

    def chunks(
        self, max_records: int = CHUNK_RECORDS, max_bytes: int = CHUNK_BYTES
    ) -> SyncChunks[GapT]:
        """Return an iterator over chunks of records that are not done."""
        return SyncChunks(self, max_records, max_bytes, 0.0)

    def ack(
        self, up_to: Record | Chunk | DLSN, *, data: Mapping[str, int | str] | None = None
    ) -> PendingAck:
        """Everything of its stream up to this record, with it, is done. Raises what an earlier one met on the loop."""
        self._opened()
        self._check_done(up_to)
        known = None if data is None else check_data(data)
        self._raise_failure()
        self._acks.append((up_to, known))
        self._wakeup.wake()
        if len(self._acks) > ACKS_WAITING_MAX:
            self._loop.call_plain(self._take_acks)
        return PendingAck(self.flush)

    def _raise_failure(self) -> None:
        """Raise what an acknowledgement met on the loop, in a call."""
        if self._failure is not None:
            self._is_reported = True
            raise self._failure.copy()

    def _take_acks(self) -> None:
        """Give what was acknowledged here to the asyncio cursor. On the loop; behind its end they are refused."""
        inner = self._inner
        assert inner is not None
        while self._acks:
            up_to, data = self._acks.popleft()
            try:
                if (ended := inner._failure) is not None:
                    raise ended.copy()  # not by a call of the cursor's: nobody has been told by this
                inner.ack(up_to, data=data)
            except BaseException as error:  # noqa: BLE001 -- told at the next call
                self._failure = self._failure or as_error(error, "this cursor")

    def _call(self, act: Callable[[Held], Awaitable[T]]) -> T:
        """Run something of the asyncio cursor's behind all that was acknowledged here."""
        inner = self._opened()

        async def acted() -> T:
            self._take_acks()
            return await act(inner)

        return self._loop.call(acted)

    def ack_one(self, done: Record | DLSN) -> PendingAck:
        """This record is done, whatever is before it; waits while as many ranges of such records as may be are there.

        `result()` has it kept now. Raises CursorFenced, ConfigError.
        """
        given: Any = done  # a pattern's cursor refuses a DLSN
        self._call(lambda inner: inner._ack_one_unkept(given))
        return PendingAck(self.flush)

    def flush(self) -> None:
        """Return when all that was acknowledged is kept. Raises CursorFenced."""

        async def flushed(inner: Held) -> None:
            self._raise_failure()
            await inner.flush()

        self._call(flushed)

    def abort(self) -> None:
        """Let go without keeping anything more."""
        inner = self._inner
        if inner is not None and not self._is_closed:
            self._is_closed = True
            self._loop.call(inner.abort)

    async def _close_inner(self, inner: Held) -> None:
        self._take_acks()
        await inner.close()
        if not self._is_reported:
            self._raise_failure()

    @property
    def _was_reported(self) -> bool:
        return self._is_reported or (self._inner is not None and self._inner._is_reported)

    @property
    def data(self) -> Mapping[str, int | str]:
        """The map that came with the mark."""
        self._loop.call_plain(self._take_acks)
        return self._opened().data

    @property
    def epoch(self) -> int:
        """Epoch of this opening; rises with each."""
        return self._opened().epoch

    @property
    def gap_records(self) -> int:
        """Records that were gone before they were done, over the cursor's life."""
        return self._opened().gap_records

    @property
    def ranges(self) -> int:
        """Ranges done behind the mark, or the marks of all streams."""
        return self._opened().ranges


class SyncCursor(SyncHolder[Cursor[Gap], GapT], SyncOfOneStream[Cursor[Gap], GapT]):
    """A durable cursor; made by `Stream.cursor(name)` of `fastbk.sync`. The rules are the asyncio cursor's."""

    backlog = blocking(Cursor.backlog)

    def reset(self, where: Start, *, seq: int | None = None) -> None:
        """Begin anew at a position that is still there, also backwards; kept when this returns. `seq`: its number."""
        self._opened()

        async def done(inner: Cursor[Gap]) -> None:
            async with self._turn:
                await inner.reset(where, seq=seq)
                self._hand = Hand()

        self._call(done)

    @property
    def lag(self) -> Lag:
        """How far it is behind, as the asyncio cursor's; what was fetched counts as handed out."""
        inner = self._opened()

        def read_lag() -> Lag:
            self._take_acks()
            return inner.lag

        return self._loop.call_plain(read_lag)

    def stats(self) -> CursorStats:
        """Return this cursor's figures now; what was fetched counts as handed out."""
        inner = self._opened()

        def live_stats() -> CursorStats:
            self._take_acks()
            return inner.stats()

        return self._loop.call_plain(live_stats)

    @property
    def mark(self) -> DLSN:
        """Everything before it is done."""
        self._loop.call_plain(self._take_acks)
        return self._opened().mark

    @property
    def mark_seq(self) -> int:
        """The number of the first record that is not done; -1 while none was seen."""
        self._loop.call_plain(self._take_acks)
        return self._opened().mark_seq


# --- patterns of streams --------------------------------------------------------------------------


class SyncOfPattern(SyncRecords[PatternInner, GapT]):
    """What readers and cursors of patterns share."""

    @property
    def pattern(self) -> str:
        """The pattern with its namespace's path."""
        inner = self._opened()
        return self._loop.call_plain(lambda: inner.pattern)

    @property
    def streams(self) -> list[str]:
        """The paths of the streams that are read now, sorted."""
        inner = self._opened()
        return self._loop.call_plain(lambda: inner.streams)

    @property
    def lags(self) -> dict[str, Lag]:
        """How far each stream is behind, by path; what was fetched counts as handed out."""
        inner = self._opened()
        return self._loop.call_plain(lambda: inner.lags)

    def stats(self) -> dict[str, StreamReaderStats]:
        """Return the figures of each stream's reader now, by path; what was fetched counts as handed out."""
        inner = self._opened()
        return self._loop.call_plain(inner.stats)

    def _passed(self, chunk: Chunk, at: int, error: ProtocolError) -> Gap:
        """Handle a gap as other readers do; but what raises comes again in its stream's turn, and holds up no other
        stream.
        """
        try:
            return super()._passed(chunk, at, error)
        except ProtocolError:
            inner = self._opened()
            # First there, then away from here: whoever is interrupted between gets it twice, and skips nothing.
            self._loop.call_plain(lambda: inner._give_back(chunk[at:]))
            following = self._hand.behind()
            self._hand = following
            raise


class SyncPatternReader(SyncOfPattern[PatternReader[Gap], GapT]):
    """Reads all streams of a pattern; made by `Namespace.reader("shop/*")` of `fastbk.sync`."""

    def chunks(
        self, max_records: int = CHUNK_RECORDS, max_bytes: int = CHUNK_BYTES
    ) -> SyncChunks[GapT]:
        """Return an iterator over chunks of one stream's records each."""
        return SyncChunks(self, max_records, max_bytes, 0.0)

    def caught_up(self) -> bool:
        """Return whether all that was visible at the last look was handed out."""
        inner = self._opened()
        return self._next_in_hand() is None and self._loop.call_plain(inner.caught_up)

    @property
    def positions(self) -> dict[str, DLSN]:
        """Where the next record of each stream lies, or will lie, by path: what another reader may begin at."""
        inner = self._opened()
        item = self._next_in_hand()
        positions = self._loop.call_plain(lambda: inner.positions)
        if isinstance(item, Gap):
            positions[item.stream] = item.first
        elif isinstance(item, Chunk):
            positions[item.stream] = item[self._hand.at :].first_dlsn
        return positions


class SyncPatternCursor(
    SyncHolder[PatternCursor[Gap], GapT], SyncOfPattern[PatternCursor[Gap], GapT]
):
    """A durable cursor over all streams of a pattern; made by `Namespace.cursor("shop/*", name)` of `fastbk.sync`."""

    _check_done = staticmethod(check_pattern_done)

    @property
    def marks(self) -> dict[str, DLSN]:
        """The position of each stream before which everything is done, by path."""
        inner = self._opened()
        self._loop.call_plain(self._take_acks)
        return self._loop.call_plain(lambda: inner.marks)

    def reset(self, stream: str, where: Start) -> None:
        """Begin anew in one stream, by its path, also backwards; kept when this returns."""
        self._opened()

        async def done(inner: PatternCursor[Gap]) -> None:
            async with self._turn:
                await inner.reset(stream, where)
                item = self._next_in_hand()
                if item is not None and item.stream == stream:
                    self._hand = Hand()

        self._call(done)
