"""The reader of all streams that a pattern chooses: their records in one sequence, each stream's in its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import Generic, Literal, Self, TypeAlias, cast

from fastbk.client.iteration import Repeated, raised_again
from fastbk.errors import ClientClosed, ConfigError, ProtocolError, WrongType
from fastbk.model.ids import ID_MAX
from fastbk.option_checks import checked_integer, checked_timeout
from fastbk.stream.context import StreamContext, one_at_a_time
from fastbk.stream.namespace.catalog import Catalog, label
from fastbk.stream.pattern.record import split_pattern
from fastbk.stream.pattern.source import How, PatternSource
from fastbk.stream.positions import DLSN, AtTime, Start, check_dlsn
from fastbk.stream.reader.buffer import unreadable_gap
from fastbk.stream.reader.options import GapT
from fastbk.stream.reader.read_ahead import ReadTurns
from fastbk.stream.reader.stream_reader import CHUNK_BYTES, CHUNK_RECORDS, StreamReader
from fastbk.stream.records import Chunk, Gap, Origin, Record
from fastbk.stream.stats import Lag, StreamReaderStats

PatternStart: TypeAlias = Literal["earliest", "latest"] | AtTime | Mapping[str, DLSN]
"""Where streams begin that are there already; a mapping says it by their paths, and others begin at the earliest."""


def check_pattern_start(start: object) -> None:
    """Raise ConfigError for what cannot be where a pattern's streams begin."""
    if isinstance(start, Mapping):
        for path, dlsn in start.items():
            if not isinstance(path, str) or not isinstance(dlsn, DLSN):
                raise WrongType(f"start: {path!r}: {dlsn!r} is no path of a stream with its DLSN")
            check_dlsn(dlsn)
    elif not isinstance(start, AtTime) and start not in ("earliest", "latest"):
        raise WrongType(
            f'start={start!r}: "earliest", "latest", AtTime, or a mapping from paths to DLSNs'
        )


class PatternRecords(Generic[GapT]):
    """What readers and cursors of patterns share: records, chunks and gaps, each with the stream that it is of."""

    def __init__(self, catalog: Catalog, path: tuple[str, ...], pattern: str) -> None:
        """`pattern`: such as `shop/*`, from the namespace at `path` on."""
        space, self._names = split_pattern(pattern)
        self._catalog = catalog
        self._path = (*path, *space)
        self._source: PatternSource | None = None
        self._chunk: Chunk | None = None
        self._at = 0
        self._is_closed = False

    @property
    def pattern(self) -> str:
        """With its namespace's path."""
        path = self._path if self._source is None else self._source.path
        return label((*path, self._names))

    def _opened(self) -> PatternSource:
        if self._source is None or self._is_closed:
            raise ClientClosed(f"{self!r} is not open: use `async with`")
        return self._source

    async def open(self) -> None:
        """Find the streams, and begin to read ahead; `async with` does it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Read no more. A second call does nothing."""
        self._is_closed = True
        if self._source is not None:
            await self._source.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record | GapT]:
        """Iterate. What is not open is opened, and closed at the end or when the loop is left."""
        return self if self._is_closed or self._source is not None else self._opened_for_it()

    @raised_again
    async def _opened_for_it(self) -> AsyncGenerator[Record | GapT, None]:
        async with self:
            with suppress(StopAsyncIteration):
                while True:
                    yield await self.__anext__()

    async def __anext__(self) -> Record | GapT:
        """Return the next record, or Gap. Streams take turns, by some hundred records where they have as many."""
        while True:
            chunk, at = self._chunk, self._at
            while chunk is not None and at < len(chunk):
                if not self._is_done(chunk, at):
                    try:
                        found: Record | Gap = chunk[at]
                    except ProtocolError as error:
                        try:
                            found = self._unreadable(chunk, at, error)
                        except ProtocolError:
                            self._chunk = None
                            self._give_back(chunk[at:])
                            raise
                    self._at = at + 1
                    return cast("Record | GapT", found)
                at = self._at = at + 1
            self._chunk = None
            item = await self._taken(CHUNK_RECORDS, CHUNK_BYTES, None)
            if item is None:
                raise StopAsyncIteration
            if isinstance(item, Gap):
                return cast("GapT", item)
            self._chunk, self._at = item, 0

    def _give_back(self, chunk: Chunk) -> None:
        """These records, the last that were handed out, come again in their stream's next turn; for `fastbk.sync`."""
        self._opened().give_back(chunk)

    def _is_done(self, chunk: Chunk, at: int) -> bool:
        """Whether a record that was taken needs no delivery any more."""
        del chunk, at
        return False

    def _unreadable(self, chunk: Chunk, at: int, error: ProtocolError) -> Gap:
        """Return what is handed out in place of a record that cannot be read. Raises `error`, if that is asked for."""
        raise NotImplementedError

    def chunks(
        self, max_records: int = CHUNK_RECORDS, max_bytes: int = CHUNK_BYTES
    ) -> AsyncGenerator[Chunk | GapT, None]:
        """Yield chunks of one stream's records each, and of Gaps with `on_gap="yield"`. Ends as iteration does."""

        async def following() -> Chunk | GapT | None:
            return await self._next(max_records, max_bytes, None)

        is_open = self._is_closed or self._source is not None
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
        """Return up to `max_records` of one stream as soon as one is there; None after `timeout` s, or at the end.

        What keeps one stream from being read is raised in its turn, and names it; the next call goes on with others.
        """
        self._opened()
        return await self._next(max_records, max_bytes, checked_timeout(timeout))

    @one_at_a_time
    async def _next(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | GapT | None:
        checked_integer("max_records", max_records, 1, ID_MAX)
        checked_integer("max_bytes", max_bytes, 1, ID_MAX)
        while self._chunk is not None and self._at < len(self._chunk):
            at, chunk = self._at, self._chunk
            end = at
            while end < min(at + max_records, len(chunk)) and not self._is_done(chunk, end):
                end += 1
            self._at = max(end, at + 1)
            if end > at:
                return chunk[at:end]
        self._chunk = None
        return cast("Chunk | GapT | None", await self._taken(max_records, max_bytes, timeout))

    async def _taken(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        return await self._opened().next(max_records, max_bytes, timeout)

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        """The paths of the streams that are read now, sorted; from the root, as `record.stream` has them."""
        return self._opened().streams

    @property
    def lags(self) -> dict[str, Lag]:
        """How far what was handed out of each stream is behind what is known of it, by path; no I/O."""
        parts = self._opened().parts().values()
        return {one.origin.path: one.reader.lag for one in parts if one.reader is not None}

    def stats(self) -> dict[str, StreamReaderStats]:
        """Return the figures of each stream's reader now, by path; no I/O."""
        parts = self._opened().parts().values()
        return {one.origin.path: one.reader.stats() for one in parts if one.reader is not None}


class PatternReader(PatternRecords[GapT]):
    """Reads all streams of one namespace whose names match; made by `Namespace.reader("shop/*")`.

    One task at a time may read; `async with` or iteration opens it. Streams that come are read from their first record
    on, those that are deleted, or renamed to what does not match, are read no more. Records, chunks and Gaps say which
    `stream` they are of. Each stream's are in its order, each once (INV-S11); streams take turns. What is truncated or
    lost, and other errors, are as `StreamReader` has them, of one stream: the next call goes on with the others.
    """

    def __init__(
        self,
        catalog: Catalog,
        path: tuple[str, ...],
        pattern: str,
        start: PatternStart = "earliest",
        *,
        tail: bool = True,
        prefetch_bytes: int = 8 << 20,
        on_gap: Literal["raise", "yield"] = "raise",
    ) -> None:
        """`start`: of streams that are there when it is opened. `tail` False: end behind what is visible then.

        `prefetch_bytes`: entries read ahead, of all streams together, beside what their answers hold: at most 8 of
        them are read at once.
        """
        super().__init__(catalog, path, pattern)
        check_pattern_start(start)
        checked_integer("prefetch_bytes", prefetch_bytes, 1, ID_MAX)
        if on_gap not in ("raise", "yield"):
            raise ConfigError(f'on_gap is {on_gap!r}: "raise" or "yield"')
        self._start: PatternStart = dict(start) if isinstance(start, Mapping) else start
        self._is_tailing = tail
        self._prefetch_bytes = prefetch_bytes
        self._on_gap = on_gap

    def __repr__(self) -> str:
        return f"<PatternReader of {self.pattern}{', closed' if self._is_closed else ''}>"

    async def open(self) -> None:
        """Find the streams, and begin to read ahead; `async with` does it.

        Raises StreamNotFound (there is no such namespace), QuotaExceeded (it is too many streams), MetadataUnavailable.
        """
        if self._source is not None:
            raise ClientClosed(f"{self!r} was opened before: make a new one")
        source = PatternSource(
            self._catalog,
            self._path,
            self._names,
            self._made,
            lambda _: None,
            is_tailing=self._is_tailing,
            prefetch_bytes=self._prefetch_bytes,
        )
        await source.open()
        self._source = source

    async def _made(
        self,
        origin: Origin,
        context: StreamContext,
        how: How,
        told: asyncio.Event,
        turns: ReadTurns,
        size: int,
    ) -> tuple[StreamReader[Gap], _Direct]:
        start: Start = "earliest"
        if how == "there":
            given = self._start
            start = given.get(origin.path, "earliest") if isinstance(given, Mapping) else given
        reader: StreamReader[Gap] = StreamReader(
            context,
            start,
            tail=self._is_tailing,
            prefetch_bytes=size,
            on_gap=self._on_gap,
            told=told,
            turns=turns,
        )
        await reader.open()
        return reader, _Direct(reader)

    def _unreadable(self, chunk: Chunk, at: int, error: ProtocolError) -> Gap:
        if self._on_gap == "raise":
            raise error
        return unreadable_gap(chunk, at)

    @property
    def positions(self) -> dict[str, DLSN]:
        """Where the next record of each stream lies, or will lie, by path: what another reader may begin at."""
        parts = self._opened().parts().values()
        found = {one.origin.path: one.position for one in parts if one.position is not None}
        chunk, at = self._chunk, self._at
        if chunk is not None and at < len(chunk) and chunk.stream in found:
            found[chunk.stream] = chunk[at:].first_dlsn
        return found

    def caught_up(self) -> bool:
        """Return whether all that is known to be visible was handed out; no I/O."""
        chunk = self._chunk
        if chunk is not None and self._at < len(chunk):
            return False
        parts = self._opened().parts().values()
        return all(
            one.is_ended or (one.reader is not None and one.reader.caught_up()) for one in parts
        )


class _Direct:
    """A stream's reader as what hands its records out."""

    held = None

    def __init__(self, reader: StreamReader[Gap]) -> None:
        self._reader = reader

    async def next(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        return await self._reader.read(max_records, max_bytes, timeout)
