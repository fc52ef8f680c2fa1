"""Streams without `await`: namespaces, streams, what they return for many streams, and the writer.

Names and meanings are those of the asyncio classes. Readers and cursors are imported with their first use
(`reader/sync_reader.py`, `cursor/sync_cursor.py`).
`sync_appends.py` is what its writer does in the caller's thread, and a producer (`producer/sync_producer.py`).
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from fastbk.client.loop_thread import LoopThread, blocking, blocking_as, blocking_opening
from fastbk.client.sync import LedgerWriter
from fastbk.errors import Error, QuotaExceeded
from fastbk.observe.tracing import tracer_of
from fastbk.option_checks import check_options, checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.cursor.store import CursorPositions
from fastbk.stream.namespace.listing import NamespaceEvent, StreamInfo
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.stream_ranges import StreamRanges
from fastbk.stream.options import StreamWriterOptions, WriterOptions, writer_options_of
from fastbk.stream.paths import check_name, split_path
from fastbk.stream.positions import DLSN, Start, check_start
from fastbk.stream.records import HeadersLike
from fastbk.stream.stream import Stream
from fastbk.stream.sync_appends import PendingRecord, SyncAppends
from fastbk.stream.writer.engine import StreamWriterStats
from fastbk.stream.writer.queue import next_txid
from fastbk.stream.writer.stream_writer import Data, StreamWriter

if TYPE_CHECKING:
    from fastbk.client.ledger_writer import LedgerWriter as AsyncLedgerWriter
    from fastbk.stream.cursor.sync_cursor import SyncCursor, SyncPatternCursor, SyncPatternReader
    from fastbk.stream.options import (
        CursorOptions,
        PatternReaderOptions,
        ReaderOptions,
        StreamProducerOptions,
    )
    from fastbk.stream.pattern.reader import PatternStart
    from fastbk.stream.positions import AtTime
    from fastbk.stream.producer.sync_producer import SyncProducer
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


def _ledger_writer(facade: SyncNamespace, inner: AsyncLedgerWriter) -> LedgerWriter:
    config, explicit_ids = facade._loop.client().config, inner.has_explicit_ids
    return LedgerWriter(facade._loop, inner, config, explicit_ids=explicit_ids)


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

    def _opening(
        self, act: Callable[[Namespace], Awaitable[T]], undo: Callable[[T], Awaitable[object]]
    ) -> T:
        return self._loop.call(lambda: act(self._inner()), undo)

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
    namespace_id = blocking(Namespace.namespace_id)
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
    create_ledger = blocking_opening(
        Namespace.create_ledger, _ledger_writer, lambda writer: writer._inner.close()
    )

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
            async for namespace in self._inner().namespaces(prefix):
                yield SyncNamespace(self._loop, namespace.path)

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

    def producer(
        self,
        name: str | None = None,
        *,
        create: bool = False,
        **options: Unpack[StreamProducerOptions],
    ) -> SyncProducer:
        """Return a producer: any number append to a stream at once, through a write service (`fastbk serve`).

        `with` opens it, and fences only who has the same name; None: a random one. Options: `ProducerOptions`.
        """
        from fastbk.stream.producer.sync_producer import SyncProducer

        made = self._loop.call_plain(lambda: self._inner().producer(name, create=create, **options))
        return SyncProducer(self._loop, lambda: made, made.name)

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
    set_kind = blocking(Stream.set_kind)
    seal = blocking(Stream.seal)
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


# --- the writer -----------------------------------------------------------------------------------


class SyncStreamWriter(SyncAppends[StreamWriter, DLSN]):
    """Appends to one stream; made by `Stream.writer()` of `fastbk.sync`. Several threads may append.

    The rules are the asyncio writer's: order of calls = order of records, the first failed append ends the writer, and
    leaving the `with` block by an exception aborts.
    """

    def __init__(
        self, loop: LoopThread[Client], make: Callable[[], StreamWriter], options: WriterOptions
    ) -> None:
        super().__init__(loop, make, options.entry_bytes_max, options.unacked_bytes_max)

    def _begin(self, inner: StreamWriter) -> tuple[int, bool]:
        return inner.last_txid, tracer_of(inner._context.client.config.tracing) is not None

    def _next(self, number: int | None, last: int) -> int:
        return next_txid(number, last)

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Epoch of this opening; rises with each."""
        return self._opened().epoch

    @property
    def last_txid(self) -> int:
        """The last transaction id appended, acknowledged or not; -1 in an empty stream."""
        self._opened()
        return self._queue.last().last_number

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last record that was acknowledged, also by earlier writers."""
        return self._opened().last_dlsn

    def stats(self) -> StreamWriterStats:
        """Return this writer's figures now, what is on its way to the loop included."""
        return self._live(StreamWriter.stats)

    # --- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
        timeout: float | None = None,
    ) -> DLSN:
        """Append a record, and return its position once the ack quorum has it.

        Waits for room first. After `timeout` seconds (30) for all of it: QuorumTimeout, and the writer goes on. Raises,
        and nothing was taken: TxidOutOfOrder, RecordTooLarge, what ended the writer.
        """
        checked_timeout(timeout)
        return self._kept(self._sending(payload, txid, key, headers), timeout)

    def append_nowait(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> PendingRecord[DLSN]:
        """Take a record; `.result()` of what is returned waits until it is kept.

        As `append`, but it waits for no room: BufferFull (call `ready()`).
        """
        return self._put(self._sending(payload, txid, key, headers), 0.0)

    def append_batch(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> DLSN:
        """Append records that are all kept or none: they become one entry. Waits and raises as `append`.

        Returns the first one's position; the others follow it, slot by slot.
        """
        checked_timeout(timeout)
        return self._kept(self._sending_batch(payloads, txids, keys, headers), timeout)

    def append_batch_nowait(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
    ) -> PendingRecord[DLSN]:
        """Append as `append_batch`, but wait for no room: BufferFull (call `ready()`)."""
        return self._put(self._sending_batch(payloads, txids, keys, headers), 0.0)

    def append_many(
        self,
        payloads: Iterable[Data],
        *,
        txids: Iterable[int] | None = None,
        keys: Iterable[Data | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> tuple[DLSN, DLSN]:
        """Append records one behind the other (not atomic), wait, and return the first and the last one's position.

        `timeout` is of each wait: for room, and at the end for the last acknowledgement. Raises ConfigError, and
        nothing was sent, for no record, and for another number of `txids`, `keys` or `headers` than of payloads.
        """
        return self._append_rows(payloads, txids, keys, headers, timeout)

    # --- waiting ------------------------------------------------------------------------------------------------

    flush = blocking(StreamWriter.flush)
    publish = blocking(StreamWriter.publish)
    roll = blocking(StreamWriter.roll)

    def seal(self) -> DLSN | None:
        """End the stream for good, and the writer. Returns the last record's position."""
        self._is_closed = True
        return self._call(lambda writer: writer.seal(), goes_on=True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is QuotaExceeded:
            with suppress(Error):
                self.close()
            return
        super().__exit__(kind, error, trace)
