"""Readers and cursors of patterns of streams without `await`. Names and meanings are those of the asyncio classes."""

from __future__ import annotations

from typing import TypeVar

from fastbk.client.loop_thread import Hand
from fastbk.errors import ProtocolError
from fastbk.stream.cursor.sync_cursor import SyncHolder
from fastbk.stream.pattern.cursor import PatternCursor, check_done
from fastbk.stream.pattern.reader import PatternReader
from fastbk.stream.positions import DLSN, Start
from fastbk.stream.reader.options import GapT
from fastbk.stream.reader.stream_reader import CHUNK_BYTES, CHUNK_RECORDS
from fastbk.stream.reader.sync_reader import SyncChunks, SyncRecords
from fastbk.stream.records import Chunk, Gap
from fastbk.stream.stats import Lag, StreamReaderStats

Inner = TypeVar("Inner", bound="PatternReader[Gap] | PatternCursor[Gap]")


class SyncOfPattern(SyncRecords[Inner, GapT]):
    """What readers and cursors of patterns share."""

    @property
    def pattern(self) -> str:
        """With its namespace's path."""
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
        """As other readers; but what raises comes again in its stream's turn, and holds up no other stream."""
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
        found = self._loop.call_plain(lambda: inner.positions)
        if isinstance(item, Gap):
            found[item.stream] = item.first
        elif isinstance(item, Chunk):
            found[item.stream] = item[self._hand.at :].first_dlsn
        return found


class SyncPatternCursor(
    SyncHolder[PatternCursor[Gap], GapT], SyncOfPattern[PatternCursor[Gap], GapT]
):
    """A durable cursor over all streams of a pattern; made by `Namespace.cursor("shop/*", name)` of `fastbk.sync`."""

    _check_done = staticmethod(check_done)

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
