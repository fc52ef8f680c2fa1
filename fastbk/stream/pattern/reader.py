"""The reader of all streams that a pattern chooses: their records in one sequence, each stream's in its order.

Decisions 77 and 160.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, Self, TypeAlias, cast

from fastbk.client.async_tools import Repeated, raised_again
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    Error,
    MetadataUnavailable,
    ProtocolError,
    QuotaExceeded,
    StreamNotFound,
    WrongType,
)
from fastbk.model.ids import ID_MAX
from fastbk.option_checks import checked_integer, checked_timeout
from fastbk.retry import Retry
from fastbk.stream.context import StreamContext, as_error, gathered, one_at_a_time
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.listing import NamespaceEvent, watched_changes
from fastbk.stream.namespace.tree import label
from fastbk.stream.options import GapT
from fastbk.stream.pattern.store import STREAMS_MAX, is_match, split_pattern, too_many
from fastbk.stream.positions import DLSN, AtTime, Start, check_dlsn
from fastbk.stream.reader.buffer import unreadable_gap
from fastbk.stream.reader.read_ahead import ReadTurns
from fastbk.stream.reader.stream_reader import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    Lag,
    StreamReader,
    StreamReaderStats,
)
from fastbk.stream.records import Chunk, Gap, Origin, Record

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
        """The pattern with its namespace's path."""
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
            chunk, index = self._chunk, self._at
            while chunk is not None and index < len(chunk):
                if not self._is_done(chunk, index):
                    try:
                        found: Record | Gap = chunk[index]
                    except ProtocolError as error:
                        try:
                            found = self._unreadable(chunk, index, error)
                        except ProtocolError:
                            self._chunk = None
                            self._give_back(chunk[index:])
                            raise
                    self._at = index + 1
                    return cast("Record | GapT", found)
                index = self._at = index + 1
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
            index, chunk = self._at, self._chunk
            end = index
            while end < min(index + max_records, len(chunk)) and not self._is_done(chunk, end):
                end += 1
            self._at = max(end, index + 1)
            if end > index:
                return chunk[index:end]
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
        return {part.origin.path: part.reader.lag for part in parts if part.reader is not None}

    def stats(self) -> dict[str, StreamReaderStats]:
        """Return the figures of each stream's reader now, by path; no I/O."""
        parts = self._opened().parts().values()
        return {part.origin.path: part.reader.stats() for part in parts if part.reader is not None}


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
        arrived: asyncio.Event,
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
            arrived=arrived,
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
        positions = {part.origin.path: part.position for part in parts if part.position is not None}
        chunk, index = self._chunk, self._at
        if chunk is not None and index < len(chunk) and chunk.stream in positions:
            positions[chunk.stream] = chunk[index:].first_dlsn
        return positions

    def caught_up(self) -> bool:
        """Return whether all that is known to be visible was handed out; no I/O."""
        chunk = self._chunk
        if chunk is not None and self._at < len(chunk):
            return False
        parts = self._opened().parts().values()
        return all(
            part.is_ended or (part.reader is not None and part.reader.caught_up()) for part in parts
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


# --- the streams and their turns ------------------------------------------------------------------
#
# The streams that a pattern chooses, found and followed, each read in its turn.
#
# A stream's reader says when something came; then the stream stands in line, once. Whoever is first
# hands out what was decoded of it, at most `max_bytes`, and goes to the end of the line while it
# has more. So order is kept within a stream, and a large backlog holds nobody else up for longer
# than one such part.
#
# A reader that waits holds no entries. Those that read hold a place (`ReadTurns`), and there are
# few of these: so what is read ahead is bounded whatever the number of streams (INV-S21).


PLACES = 8
"""Streams that hold entries at once. Each has what one reader's answers and half a MiB of `prefetch_bytes` come to."""
PREFETCH_BYTES_MIN = 64 * 1024
OPENED_TOGETHER = 16
AGAIN_S = 0.1
AGAIN_S_MAX = 5.0

How = Literal["there", "created", "renamed"]
"""Why a stream is read: it was there at the beginning, came with its first record, or got a name that matches."""


class Delivery(Protocol):
    """What hands out a stream's records: its reader, or a cursor's part."""

    async def next(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        """Return what comes next; None after `timeout` seconds, or at the end."""

    @property
    def held(self) -> Chunk | None:
        """What was taken from the reader and not handed out yet."""


Made = tuple[StreamReader[Gap], Delivery]
Make = Callable[[Origin, StreamContext, How, "asyncio.Event", ReadTurns, int], Awaitable[Made]]
"""Returns the reader of a stream, opened, and what hands its records out. Given: what the reader takes of these."""


class _Bell(asyncio.Event):
    """Rings for one stream's reader: puts the stream into line whenever something came."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def set(self) -> None:
        super().set()
        self._ring()


@dataclass(slots=True, eq=False)
class Part:
    """One stream."""

    origin: Origin
    how: How
    bell: _Bell
    reader: StreamReader[Gap] | None = None
    delivery: Delivery | None = None
    error: Error | None = None
    """Why it could not be opened; told in its turn."""
    opening: asyncio.Task[None] | None = None
    is_ended: bool = False
    rest: Chunk | None = None
    """What was handed out and came back."""
    last_position: DLSN | None = None
    """Where its reader was as it ended."""

    @property
    def position(self) -> DLSN | None:
        """Where the next record lies, or will lie; None before it was opened."""
        return self.last_position if self.reader is None else self.reader.position

    @property
    def has_more(self) -> bool:
        """Whether something was decoded that is not handed out: its turn goes on."""
        if self.rest is not None:
            return True
        reader, delivery = self.reader, self.delivery
        return (
            reader is not None
            and delivery is not None
            and (delivery.held is not None or reader._has_record)
        )


class PatternSource:
    """One reader's, or one holder's of a cursor. One call of `next` at a time."""

    def __init__(
        self,
        catalog: Catalog,
        path: tuple[str, ...],
        pattern: str,
        make: Make,
        gone: Callable[[str], None],
        *,
        is_tailing: bool,
        prefetch_bytes: int,
    ) -> None:
        """`gone(stream_id)` is called when a stream is not the pattern's any more: deleted, or renamed."""
        self._catalog = catalog
        self._path = path
        self._pattern = pattern
        self._make = make
        self._gone = gone
        self._is_tailing = is_tailing
        self._prefetch_bytes = max(prefetch_bytes // PLACES, PREFETCH_BYTES_MIN)
        self._turns = ReadTurns(PLACES)
        self._parts: dict[str, Part] = {}
        self._line: OrderedDict[str, Part] = OrderedDict()
        self._came = asyncio.Event()
        self._failure: Error | None = None
        self._refused: set[str] = set()
        self._space_id = ""
        self._following: asyncio.Task[None] | None = None
        self._waiting_opened = asyncio.Semaphore(OPENED_TOGETHER)
        self._ending: set[asyncio.Task[None]] = set()

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the streams that are there, and open their readers. Raises StreamNotFound, QuotaExceeded.

        What keeps one stream from being read is told when its turn comes, and keeps no other from that.
        """
        changes = watched_changes(self._catalog, self._path)
        try:
            events = await anext(changes)
            self._space_id = (await self._catalog.place(self._path)).here.id
            found = [
                event
                for event in events
                if event.what == "stream" and is_match(self._pattern, event.name)
            ]
            if len(found) > STREAMS_MAX:
                raise self._too_many(len(found))
            parts = [self._part(one.id, one.name, "there") for one in found]
            await gathered(self._open_first, parts, OPENED_TOGETHER)
        except BaseException:
            await changes.aclose()
            await self.close()
            raise
        if self._is_tailing:
            self._following = asyncio.get_running_loop().create_task(self._follow(changes))
        else:
            await changes.aclose()

    async def close(self) -> None:
        """Read no more. A `next` that waits raises ClientClosed."""
        self._failure = self._failure or ClientClosed(
            "this was closed while it was read: make a new one"
        )
        self._came.set()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        for part in [*self._parts.values()]:
            self._end(part)
        self._parts.clear()
        self._line.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def _too_many(self, count: int) -> QuotaExceeded:
        return too_many(label((*self._path, self._pattern)), count)

    # --- streams that come and go -----------------------------------------------------------------------------------

    def _part(self, stream_id: str, name: str, how: How) -> Part:
        part = Part(
            Origin(label((*self._path, name)), stream_id), how, _Bell(lambda: self._ring(stream_id))
        )
        self._parts[stream_id] = part
        return part

    def _ring(self, stream_id: str) -> None:
        part = self._parts.get(stream_id)
        if part is not None and not part.is_ended:
            self._line.setdefault(stream_id, part)
        self._came.set()

    async def _open_first(self, part: Part) -> None:
        try:
            await self._opened(part)
        except MetadataUnavailable:
            raise
        except StreamNotFound:
            self._drop(part)  # it was deleted just now
        except Error as error:
            part.error = error
            self._ring(part.origin.id)

    async def _opened(self, part: Part) -> None:
        context = self._catalog.reading(part.origin.id, part.origin.path)
        made = await self._make(
            part.origin, context, part.how, part.bell, self._turns, self._prefetch_bytes
        )
        if self._parts.get(part.origin.id) is not part:
            await made[0].close()
            return
        part.reader, part.delivery = made
        self._ring(part.origin.id)

    def _begin_opening(self, part: Part) -> None:
        async def opened() -> None:
            retry = Retry(AGAIN_S, AGAIN_S_MAX)
            async with self._waiting_opened:
                while True:
                    try:
                        await self._opened(part)
                        return
                    except MetadataUnavailable as error:
                        pause_s = retry.pause_s(error)
                    except StreamNotFound:
                        self._drop(part)
                        return
                    except asyncio.CancelledError:
                        raise
                    except BaseException as error:  # noqa: BLE001 -- told in the stream's turn
                        part.error = as_error(error, f"opening stream {part.origin.path}")
                        self._ring(part.origin.id)
                        return
                    await asyncio.sleep(pause_s)

        part.opening = asyncio.get_running_loop().create_task(opened())

    async def _follow(self, changes: AsyncGenerator[list[NamespaceEvent], None]) -> None:
        try:
            async with contextlib.aclosing(changes):
                async for events in changes:
                    for event in events:
                        self._happened(event)
            self._failure = StreamNotFound(
                f"there is no namespace {label(self._path)}: it was deleted"
            )
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failure = as_error(error, f"following namespace {label(self._path)}")
            if not isinstance(error, Error):
                raise
        finally:
            self._came.set()

    def _happened(self, event: NamespaceEvent) -> None:
        if event.what == "namespace":
            if event.kind == "renamed" and event.id == self._space_id:
                self._path = tuple(event.name.split("/"))
                for part in self._parts.values():
                    name = part.origin.path.rpartition("/")[2]
                    part.origin = part.origin._replace(path=label((*self._path, name)))
            return
        known = self._parts.get(event.id)
        if event.kind == "deleted" or (
            event.kind == "renamed" and not is_match(self._pattern, event.name)
        ):
            if known is not None:
                self._drop(known)
        elif known is not None:
            known.origin = known.origin._replace(path=label((*self._path, event.name)))
        elif event.kind in ("present", "created", "renamed") and is_match(
            self._pattern, event.name
        ):
            self._come(event.id, event.name, "renamed" if event.kind == "renamed" else "created")

    def _come(self, stream_id: str, name: str, how: How) -> None:
        part = self._part(stream_id, name, how)
        if self._is_full:
            self._refused.add(stream_id)
            self._ring(stream_id)
        else:
            self._begin_opening(part)

    @property
    def _is_full(self) -> bool:
        return len(self._parts) - len(self._refused) > STREAMS_MAX

    def _drop(self, part: Part) -> None:
        """The stream is not the pattern's any more: its position goes, and reading goes on."""
        self._end(part)
        if self._parts.pop(part.origin.id, None) is None:
            return
        self._line.pop(part.origin.id, None)
        self._refused.discard(part.origin.id)
        self._gone(part.origin.id)
        self._came.set()

    def _end(self, part: Part) -> None:
        """Close a stream's reader, in the background."""
        part.is_ended = True
        part.last_position = part.position
        reader, part.reader, part.delivery = part.reader, None, None
        opening, part.opening = part.opening, None

        async def ended() -> None:
            if opening is not None and opening is not asyncio.current_task():
                opening.cancel()
                await asyncio.wait([opening])
            if reader is not None:
                await reader.close()

        task = asyncio.get_running_loop().create_task(ended())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def next(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        """Return records of one stream, or a gap, which say of which; None after `timeout` s, or at the end of all.

        Cancelled, it loses nothing. Raises what readers raise, of one stream: the next call goes on with the others.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._came.clear()
                    while self._line:
                        item = await self._turn(
                            next(iter(self._line.values())), max_records, max_bytes
                        )
                        if item is not None:
                            return item
                    if self._failure is not None:
                        raise self._failure.copy()
                    if not self._is_tailing and all(part.is_ended for part in self._parts.values()):
                        return None
                    await self._came.wait()
        except TimeoutError:
            return None

    async def _turn(self, part: Part, max_records: int, max_bytes: int) -> Chunk | Gap | None:
        """Return what the first in line has; None if that is nothing."""
        stream_id = part.origin.id
        self._line.move_to_end(stream_id)
        if stream_id in self._refused or part.error is not None:
            await asyncio.sleep(0)
        if stream_id in self._refused:
            if len(self._parts) - len(self._refused) >= STREAMS_MAX:
                raise self._too_many(len(self._parts))
            self._refused.discard(stream_id)
            self._line.pop(stream_id)
            self._begin_opening(part)
            return None
        if part.error is not None:
            error, part.error = part.error, None
            self._line.pop(stream_id)
            self._begin_opening(part)
            raise error.copy()
        reader, delivery = part.reader, part.delivery
        if reader is None or delivery is None:
            self._line.pop(stream_id, None)
            return None
        if part.rest is not None:
            await asyncio.sleep(0)  # others have to come on, whoever asks again at once
            rest = part.rest
            part.rest = rest[max_records:] if len(rest) > max_records else None
            return self._handed_out(part, rest[:max_records])
        try:
            item = await delivery.next(max_records, max_bytes, 0.0)
        except StreamNotFound:
            self._drop(part)
            return None
        except ClientClosed:
            if part.is_ended:
                return None  # it went meanwhile
            raise
        except Error:
            # Raised again in its next turns: until it is passed, others need its place more.
            if not part.is_ended:
                reader._let_go()
            await asyncio.sleep(0)
            raise
        if part.is_ended:
            return None
        if item is None:
            if not part.bell.is_set():
                self._line.pop(stream_id, None)
            if reader.is_at_end:
                self._line.pop(stream_id, None)
                self._end(part)
            return None
        return self._handed_out(part, item)

    def _handed_out(self, part: Part, item: Chunk | Gap) -> Chunk | Gap:
        if part.has_more and part.origin.id in self._line:
            self._line.move_to_end(part.origin.id, last=False)
        if isinstance(item, Gap):
            return replace(item, stream=part.origin.path)
        item.origin = part.origin
        return item

    def give_back(self, chunk: Chunk) -> None:
        """These records, the last that were handed out, come again in their stream's next turn."""
        part = None if chunk.origin is None else self._parts.get(chunk.origin.id)
        if part is None or part.is_ended:
            return
        # What is behind them, if a part of what came back was handed out, is of the same chunk.
        part.rest = chunk if part.rest is None else chunk._part(0, len(chunk) + len(part.rest))
        self._line.setdefault(part.origin.id, part)
        self._line.move_to_end(part.origin.id)

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        """The paths of the streams that are read now, sorted."""
        return sorted(part.origin.path for part in self._parts.values())

    @property
    def path(self) -> tuple[str, ...]:
        """The namespace's, as it is called now."""
        return self._path

    def parts(self) -> dict[str, Part]:
        """Return what is known of each stream, by id."""
        return self._parts
