"""Namespaces without `await`, and what they return for many streams. Meanings are those of the asyncio classes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from fastbk.client.loop_thread import LoopThread, blocking, blocking_as
from fastbk.stream.client import Client
from fastbk.stream.cursor.cursor_positions import CursorPositions
from fastbk.stream.namespace.events import NamespaceEvent
from fastbk.stream.namespace.listing import StreamInfo
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.stream_ranges import StreamRanges
from fastbk.stream.paths import check_name, split_path
from fastbk.stream.stream import Stream
from fastbk.stream.sync_stream import SyncStream

if TYPE_CHECKING:
    from fastbk.stream.pattern.reader import PatternStart
    from fastbk.stream.pattern.sync_pattern import SyncPatternCursor, SyncPatternReader
    from fastbk.stream.positions import AtTime
    from fastbk.stream.reader.options import CursorOptions, PatternReaderOptions
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
        from fastbk.stream.pattern.sync_pattern import SyncPatternReader

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
        from fastbk.stream.pattern.sync_pattern import SyncPatternCursor

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
