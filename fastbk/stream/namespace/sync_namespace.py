"""Namespaces and streams without `await`, and what they return for many streams.

Names and meanings are those of the asyncio classes.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from fastbk.client.loop_thread import LoopThread, blocking, blocking_as
from fastbk.option_checks import check_options
from fastbk.stream.client import Client
from fastbk.stream.cursor.opening import CursorPositions
from fastbk.stream.namespace.listing import NamespaceEvent, StreamInfo
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.stream_ranges import StreamRanges
from fastbk.stream.options import StreamWriterOptions, writer_options_of
from fastbk.stream.paths import check_name, split_path
from fastbk.stream.positions import Start, check_start
from fastbk.stream.stream import Stream
from fastbk.stream.writer.sync_writer import SyncStreamWriter

if TYPE_CHECKING:
    from fastbk.stream.cursor.sync_cursor import SyncCursor, SyncPatternCursor, SyncPatternReader
    from fastbk.stream.options import CursorOptions, PatternReaderOptions, ReaderOptions
    from fastbk.stream.pattern.reader import PatternStart
    from fastbk.stream.positions import AtTime
    from fastbk.stream.reader.sync_reader import SyncStreamReader
    from fastbk.stream.records import Gap

T = TypeVar("T")
LISTED_AT_ONCE = 256


class SyncStreamRanges:
    """Looks at the streams of a client's cluster; made by `Namespace.spans` of `fastbk.sync`, without I/O."""

    def __init__(self, loop: LoopThread[Client], make: Callable[[], StreamRanges]) -> None:
        self._loop = loop
        self._make = make
        self._made: StreamRanges | None = None

    def _inner(self) -> StreamRanges:
        """Return the asyncio one. Only on the loop."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def _call(self, act: Callable[[StreamRanges], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner()))

    below = blocking(StreamRanges.below)
    of = blocking(StreamRanges.of)
    of_ids = blocking(StreamRanges.of_ids)

    def close(self) -> None:
        """Let go of what is kept open; it may be asked again."""
        if self._made is not None:
            self._loop.call(self._made.close)


@dataclass(frozen=True, slots=True)
class SyncCursorPositions:
    """Moves marks of one cursor in many streams; made by `Namespace.marks` of `fastbk.sync`."""

    _loop: LoopThread[Client]
    _inner: CursorPositions

    def _call(self, act: Callable[[CursorPositions], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner))

    move = blocking(CursorPositions.move)


def _namespace(facade: SyncNamespace, inner: Namespace) -> SyncNamespace:
    return SyncNamespace(facade._loop, inner.path)


def _stream(facade: SyncNamespace, inner: Stream) -> SyncStream:
    return SyncStream(facade._loop, lambda: inner, inner.name)


class SyncNamespace:
    """A namespace by its path; made by `Client.namespace` of `fastbk.sync`, without I/O."""

    def __init__(self, loop: LoopThread[Client], path: str = "") -> None:
        self._loop = loop
        self._path = split_path(path)

    @property
    def path(self) -> str:
        """Names from the root, with slashes between them; empty for the root."""
        return "/".join(self._path)

    def __repr__(self) -> str:
        return f"<fastbk.sync Namespace {self.path or 'root'}>"

    def _call(self, act: Callable[[Namespace], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner()))

    def _inner(self) -> Namespace:
        """Return the asyncio namespace. Only on the loop."""
        return self._loop.client().namespace(self.path)

    def namespace(self, path: str) -> SyncNamespace:
        """Return a namespace below this one. No I/O."""
        return SyncNamespace(self._loop, "/".join([*self._path, path]))

    def stream(self, name: str) -> SyncStream:
        """Return a stream of this namespace. No I/O."""
        check_name(name)
        return SyncStream(self._loop, lambda: self._inner().stream(name), name)

    def stream_of_id(self, stream_id: str, name: str) -> SyncStream:
        """Return the stream of this id for reading, whatever has its name by now. No I/O."""
        check_name(name)
        return SyncStream(self._loop, lambda: self._inner().stream_of_id(stream_id, name), name)

    create = blocking(Namespace.create)
    exists = blocking(Namespace.exists)
    delete = blocking(Namespace.delete)
    policy = blocking(Namespace.policy)
    set_policy = blocking(Namespace.set_policy)
    effective_policy = blocking(Namespace.effective_policy)
    delete_stream = blocking(Namespace.delete_stream)
    delete_streams = blocking(Namespace.delete_streams)
    stream_count = blocking(Namespace.stream_count)
    stored_bytes = blocking(Namespace.stored_bytes)

    pattern_cursors = blocking(Namespace.pattern_cursors)
    create_pattern_cursor = blocking(Namespace.create_pattern_cursor)
    move_pattern_cursor = blocking(Namespace.move_pattern_cursor)
    delete_pattern_cursor = blocking(Namespace.delete_pattern_cursor)

    rename = blocking_as(Namespace.rename, _namespace)

    @overload
    def reader(
        self,
        pattern: str,
        start: PatternStart = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[PatternReaderOptions],
    ) -> SyncPatternReader: ...

    @overload
    def reader(
        self,
        pattern: str,
        start: PatternStart = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[PatternReaderOptions],
    ) -> SyncPatternReader[Gap]: ...

    def reader(
        self, pattern: str, start: PatternStart = "earliest", **options: Any
    ) -> SyncPatternReader[Gap]:
        """Return a reader of all streams whose names match, such as "shop/*"; `with` opens it. Raises ConfigError."""
        from fastbk.stream.cursor.sync_cursor import SyncPatternReader

        namespace = self._loop.call_plain(self._inner)
        namespace.reader(pattern, start, **options)  # what is wrong with the arguments is told here
        return SyncPatternReader(self._loop, lambda: namespace.reader(pattern, start, **options))

    @overload
    def cursor(
        self,
        pattern: str,
        name: str,
        start: Literal["earliest", "latest"] | AtTime = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[CursorOptions],
    ) -> SyncPatternCursor: ...

    @overload
    def cursor(
        self,
        pattern: str,
        name: str,
        start: Literal["earliest", "latest"] | AtTime = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[CursorOptions],
    ) -> SyncPatternCursor[Gap]: ...

    def cursor(
        self,
        pattern: str,
        name: str,
        start: Literal["earliest", "latest"] | AtTime = "earliest",
        **options: Any,
    ) -> SyncPatternCursor[Gap]:
        """Return a durable cursor over all streams whose names match; `with` makes it, or takes it over."""
        from fastbk.stream.cursor.sync_cursor import SyncPatternCursor

        namespace = self._loop.call_plain(self._inner)
        namespace.cursor(pattern, name, start, **options)  # as above
        return SyncPatternCursor(
            self._loop, lambda: namespace.cursor(pattern, name, start, **options)
        )

    def spans(self) -> SyncStreamRanges:
        """Return what looks at where many streams begin and end, again and again; its paths are from the root."""
        return SyncStreamRanges(self._loop, lambda: self._inner().spans())

    def marks(self, name: str, data: Mapping[str, int | str]) -> SyncCursorPositions:
        """Return what moves the marks of cursors of one name, in streams by their paths from the root."""
        return SyncCursorPositions(
            self._loop, self._loop.call_plain(lambda: self._inner().marks(name, data))
        )

    create_stream = blocking_as(Namespace.create_stream, _stream)
    create_streams = blocking_as(
        Namespace.create_streams, lambda self, made: [_stream(self, one) for one in made]
    )
    rename_stream = blocking_as(Namespace.rename_stream, _stream)

    def streams(self, prefix: str = "", *, recursive: bool = False) -> Iterator[StreamInfo]:
        """Yield the streams whose names begin with `prefix`, with sizes."""
        return self._loop.iterate(
            lambda: self._inner().streams(prefix, recursive=recursive), LISTED_AT_ONCE
        )

    def namespaces(self, prefix: str = "") -> Iterator[SyncNamespace]:
        """Yield the namespaces directly below, by name."""

        async def found() -> AsyncIterator[SyncNamespace]:
            async for one in self._inner().namespaces(prefix):
                yield SyncNamespace(self._loop, one.path)

        return self._loop.iterate(found, LISTED_AT_ONCE)

    def watch(self) -> Iterator[NamespaceEvent]:
        """Yield all that is directly in the namespace, then what happens to it, until it is deleted."""
        return self._loop.iterate(lambda: self._inner().watch())


# --- streams --------------------------------------------------------------------------------------


class SyncStream:
    """One stream; made by `Namespace.stream` of `fastbk.sync`, without I/O."""

    def __init__(self, loop: LoopThread[Client], find: Callable[[], Stream], name: str) -> None:
        self._loop = loop
        self._inner = functools.cache(find)  # only on the loop
        self.name = name

    def __repr__(self) -> str:
        return f"<fastbk.sync Stream {self.name}>"

    def _call(self, act: Callable[[Stream], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner()))

    @property
    def path(self) -> str:
        """Namespace and name, with slashes between them."""
        return self._loop.call_plain(lambda: self._inner().path)

    def writer(
        self, *, create: bool = False, **options: Unpack[StreamWriterOptions]
    ) -> SyncStreamWriter:
        """Return a writer; `with` opens it and fences whoever wrote before. Options: `WriterOptions`."""
        known = writer_options_of(options)
        return SyncStreamWriter(
            self._loop, lambda: self._inner().writer(create=create, **options), known
        )

    @overload
    def reader(
        self,
        start: Start = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[ReaderOptions],
    ) -> SyncStreamReader: ...

    @overload
    def reader(
        self,
        start: Start = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[ReaderOptions],
    ) -> SyncStreamReader[Gap]: ...

    def reader(self, start: Start = "earliest", **options: Any) -> SyncStreamReader[Gap]:
        """Return a reader from `start` on; options as the asyncio stream's."""
        from fastbk.stream.options import AnyReaderOptions
        from fastbk.stream.reader.sync_reader import SyncStreamReader

        check_options(options, AnyReaderOptions)
        check_start(start)
        return SyncStreamReader(self._loop, lambda: self._inner().reader(start, **options))

    @overload
    def cursor(
        self,
        name: str,
        start: Start = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[CursorOptions],
    ) -> SyncCursor: ...

    @overload
    def cursor(
        self,
        name: str,
        start: Start = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[CursorOptions],
    ) -> SyncCursor[Gap]: ...

    def cursor(self, name: str, start: Start = "earliest", **options: Any) -> SyncCursor[Gap]:
        """Return a durable cursor; options as the asyncio stream's."""
        from fastbk.stream.cursor.sync_cursor import SyncCursor
        from fastbk.stream.options import AnyCursorOptions

        check_options(options, AnyCursorOptions)
        check_start(start)
        return SyncCursor(self._loop, lambda: self._inner().cursor(name, start, **options))

    exists = blocking(Stream.exists)
    info = blocking(Stream.info)
    segments = blocking(Stream.segments)
    effective_policy = blocking(Stream.effective_policy)
    policy = blocking(Stream.policy)
    set_policy = blocking(Stream.set_policy)
    get = blocking(Stream.get)
    get_many = blocking(Stream.get_many)
    find = blocking(Stream.find)
    first = blocking(Stream.first)
    last_position = blocking(Stream.last_position)
    attach = blocking(Stream.attach)
    attached_number = blocking(Stream.attached_number)
    begin_draft = blocking(Stream.begin_draft)
    draw_ledger = blocking(Stream.draw_ledger)
    drafts = blocking(Stream.drafts)
    attach_drafts = blocking(Stream.attach_drafts)
    give_up_drafts = blocking(Stream.give_up_drafts)
    cursors = blocking(Stream.cursors)
    backlogs = blocking(Stream.backlogs)
    create_cursor = blocking(Stream.create_cursor)
    move_cursor = blocking(Stream.move_cursor)
    pattern_cursors = blocking(Stream.pattern_cursors)
    delete_cursor = blocking(Stream.delete_cursor)
    truncate = blocking(Stream.truncate)
