"""Streams without `await`: namespaces, streams, what they return for many streams, and the writer.

Names and meanings are those of the asyncio classes. Readers and cursors are imported with their first use
(`reader/sync_reader.py`, `cursor/sync_cursor.py`).

A writer's `append` puts the record into a queue and wakes the loop once for all that is in it: crossing over to the
loop's thread costs as much as dozens of appends. What can be wrong with a record is found in the caller's thread, at
once. The step into the queue is all of an append: an exception that is raised in the caller comes before it or behind
it (INV-C3).
"""

from __future__ import annotations

import asyncio
import functools
import time
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
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, Unpack, overload

from fastbk.client.async_tools import TAKEN_AWAY, may_end_quietly
from fastbk.client.loop_thread import (
    CHECK_S,
    AppendQueue,
    LoopThread,
    Notices,
    blocking,
    blocking_as,
    blocking_opening,
    facade_text,
)
from fastbk.client.sync import LedgerWriter
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    Error,
    QuorumTimeout,
    QuotaExceeded,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.observe.tracing import tracer_of
from fastbk.option_checks import check_options, checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.context import as_error
from fastbk.stream.cursor.store import CursorPositions
from fastbk.stream.namespace.listing import NamespaceEvent, StreamInfo
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.stream_ranges import StreamRanges
from fastbk.stream.options import StreamWriterOptions, WriterOptions, writer_options_of
from fastbk.stream.paths import check_name, split_path
from fastbk.stream.positions import DLSN, Start, check_start
from fastbk.stream.records import HeadersLike
from fastbk.stream.stream import Stream
from fastbk.stream.writer.engine import StreamWriterStats
from fastbk.stream.writer.queue import check_entry, has_room_for, next_txid, record_bytes
from fastbk.stream.writer.stream_writer import (
    Data,
    StreamWriter,
    owned_batch,
    owned_record,
    rows_of,
)

if TYPE_CHECKING:
    from fastbk.client.ledger_writer import LedgerWriter as AsyncLedgerWriter
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


_log = LibraryLog("fastbk.stream")

_Sending: TypeAlias = tuple[
    int, Callable[[int], int], Callable[[int], Callable[[StreamWriter], asyncio.Future[DLSN]]]
]
"""Bytes that a call appends; what returns its last transaction id, of the one before; and of that what sends it."""
_RESULT_TIMEOUT_S = 30.0


class PendingRecord:
    """A record, or an atomic batch, that was appended; `result()` waits until it is kept."""

    __slots__ = ("_failure", "_future", "_writer")

    def __init__(self, writer: SyncStreamWriter) -> None:
        self._writer = writer
        self._future: asyncio.Future[DLSN] | None = None
        self._failure: Error | None = None

    def done(self) -> bool:
        """Whether it is acknowledged or failed."""
        return self._failure is not None or (self._future is not None and self._future.done())

    def result(self, timeout: float | None = None) -> DLSN:
        """Wait until it is acknowledged, and return its position (a batch: of its first record).

        Raises what the asyncio writer's future does, and QuorumTimeout after `timeout` seconds (30): it may still be
        kept, and can be waited for again.
        """
        self._writer._wait(self.done, checked_timeout(timeout, _RESULT_TIMEOUT_S))
        try:
            if self._failure is not None:
                raise self._failure.copy()
            assert self._future is not None
            return self._future.result()
        except TAKEN_AWAY:
            self._writer._is_reported = True
            raise


class TracedPendingRecord(PendingRecord):
    """A record with the context of its caller, whose span it may be in."""

    __slots__ = ("context",)

    def __init__(self, writer: SyncStreamWriter) -> None:
        super().__init__(writer)
        self.context = copy_context()


class _Taken(NamedTuple):
    """What one call has appended, and what all calls have up to it."""

    pending: PendingRecord
    send: Callable[[StreamWriter], asyncio.Future[DLSN]]
    last_txid: int
    given_bytes: int


class SyncStreamWriter:
    """Appends to one stream; made by `Stream.writer()` of `fastbk.sync`. Several threads may append.

    The rules are the asyncio writer's: order of calls = order of records, the first failed append ends the writer, and
    leaving the `with` block by an exception aborts.
    """

    def __init__(
        self, loop: LoopThread[Client], make: Callable[[], StreamWriter], options: WriterOptions
    ) -> None:
        self._loop = loop
        self._make = make
        self._options = options
        self._changed = Notices()
        self._queue = AppendQueue(loop, self._send, _Taken(PendingRecord(self), _not_sent, -1, 0))
        self._pending_type = PendingRecord
        self._is_closed = False
        self._is_aborted = False
        self._is_reported = False  # by a call, that another has the stream
        # Written on the loop only.
        self._inner: StreamWriter | None = None
        self._settled_bytes = 0
        self._failure: Error | None = None

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    # --- what it is ---------------------------------------------------------------------------------------------

    def _opened(self) -> StreamWriter:
        self._loop.check()
        if self._inner is None:
            raise ClientClosed("this writer is not open: use `with`")
        return self._inner

    @property
    def epoch(self) -> int:
        """Epoch of this opening; rises with each."""
        return self._opened().epoch

    @property
    def last_txid(self) -> int:
        """The last transaction id appended, acknowledged or not; -1 in an empty stream."""
        self._opened()
        return self._queue.last().last_txid

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last record that was acknowledged, also by earlier writers."""
        return self._opened().last_dlsn

    @property
    def unacked_bytes(self) -> int:
        """What was appended and not acknowledged yet."""
        self._opened()
        return self._queue.last().given_bytes - self._settled_bytes

    def stats(self) -> StreamWriterStats:
        """Return this writer's figures now, what is on its way to the loop included."""
        writer = self._opened()

        def live_stats() -> StreamWriterStats:
            self._send()
            return writer.stats()

        return self._loop.call_plain(live_stats)

    def open(self) -> None:
        """Take the stream over; `with` does it. Raises as the asyncio writer's."""

        async def opened() -> StreamWriter:
            writer = self._make()
            await writer.open()
            if tracer_of(writer._context.client.config.tracing) is not None:
                self._pending_type = TracedPendingRecord
            self._queue.sent = self._queue.sent._replace(last_txid=writer.last_txid)
            return writer

        self._inner = self._loop.call(opened, undo=lambda writer: writer.close())

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
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        sending = self._sending(payload, txid, key, headers)
        return self._kept(sending, limit_s)

    def _kept(self, sending: _Sending, limit_s: float) -> DLSN:
        end_s = time.monotonic() + limit_s
        try:
            pending = self._put(sending, limit_s)
        except BufferFull as full:
            raise QuorumTimeout(f"not appended: {full}", outcome="not_written") from None
        return pending.result(max(0.0, end_s - time.monotonic()))

    def _sending(
        self, payload: Data, txid: int | None, key: Data | None, headers: HeadersLike
    ) -> _Sending:
        data, owned_key, raw = owned_record(payload, key, headers)

        def sending(number: int) -> Callable[[StreamWriter], asyncio.Future[DLSN]]:
            return lambda writer: writer._admit(data, owned_key, raw, number)

        return record_bytes(data, owned_key, raw), lambda last: next_txid(txid, last), sending

    def append_nowait(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> PendingRecord:
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
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        return self._kept(self._sending_batch(payloads, txids, keys, headers), limit_s)

    def append_batch_nowait(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
    ) -> PendingRecord:
        """Append as `append_batch`, but wait for no room: BufferFull (call `ready()`)."""
        return self._put(self._sending_batch(payloads, txids, keys, headers), 0.0)

    def _sending_batch(
        self,
        payloads: Sequence[Data],
        txids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[HeadersLike] | None,
    ) -> _Sending:
        datas, wanted, owned_keys, raw = owned_batch(payloads, txids, keys, headers)
        size = sum(
            record_bytes(
                data,
                None if owned_keys is None else owned_keys[index],
                b"" if raw is None else raw[index],
            )
            for index, data in enumerate(datas)
        )

        def numbered(last: int) -> int:
            numbers.clear()
            for index in range(len(datas)):
                last = next_txid(None if wanted is None else wanted[index], last)
                numbers.append(last)
            return last

        def sending(_: int) -> Callable[[StreamWriter], asyncio.Future[DLSN]]:
            return lambda writer: writer._admit_batch(datas, numbers, owned_keys, raw)

        numbers: list[int] = []
        return size, numbered, sending

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
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        first: PendingRecord | None = None
        last: PendingRecord | None = None
        for payload, txid, key, given in rows_of(payloads, txids, keys, headers):
            last = self._put(self._sending(payload, txid, key, given), limit_s)
            first = first or last
        if first is None or last is None:
            raise ConfigError("append_many needs at least one record")
        end = last.result(timeout)
        return first.result(timeout), end

    def _put(self, sending: _Sending, limit_s: float) -> PendingRecord:
        """Wait for room, and put what is appended into the queue. Raises BufferFull, what ended the writer."""
        options, pending = self._options, self._pending_type(self)
        size, numbered, made = sending
        check_entry(size, options.entry_bytes_max)
        end_s = time.monotonic() + limit_s
        while True:
            self._check_taking()  # also: in a forked child the lock may be held for ever
            with self._queue.lock:
                if self._has_room(size):
                    last = self._queue.last()
                    number, given_bytes = numbered(last.last_txid), last.given_bytes + size
                    self._queue.put(_Taken(pending, made(number), number, given_bytes))
                    return pending
            self._wait_for_room(size, end_s, limit_s)

    def _check_taking(self) -> None:
        """Raise what ended the writer: of an append that was not sent."""
        writer = self._opened()
        # Whoever has been told of the failure may be here before the loop has come to `_settled`.
        if (ended := self._failure or writer.failure) is not None:
            failure = ended.copy()
            failure.outcome = "not_written"
            self._is_reported = self._is_reported or isinstance(failure, TAKEN_AWAY)
            raise failure
        if self._is_closed:
            raise ClientClosed("this writer is closed")

    def _has_room(self, size: int) -> bool:
        return has_room_for(size, self.unacked_bytes, self._options.unacked_bytes_max)

    def _wait_for_room(self, size: int, end_s: float, limit_s: float) -> None:
        """Return when there may be room, or the writer has ended. Raises BufferFull."""
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise BufferFull(
                f"{self.unacked_bytes} bytes are not acknowledged after {limit_s:g} s: call ready() and try again"
            )
        self._changed.wait(
            lambda: self._has_room(size) or self._failure is not None, min(left_s, CHECK_S)
        )

    def _wait(self, is_done: Callable[[], bool], limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while not is_done():
            self._loop.check()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise QuorumTimeout(f"not acknowledged after {limit_s:g} s", outcome="unknown")
            # Woken by acknowledgements; a client that is closed meanwhile wakes nobody.
            self._changed.wait(is_done, min(left_s, CHECK_S))

    # --- on the loop --------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Hand all that is queued to the asyncio writer. The client may be closing: then that refuses, or takes it."""
        writer = self._inner
        assert writer is not None
        last: asyncio.Future[DLSN] | None = None
        for taken in self._queue.taken():
            try:
                last = taken.pending._future = _in_context(taken.pending, taken.send, writer)
            except BaseException as error:  # noqa: BLE001 -- told to those who wait
                if not isinstance(error, Error):
                    # A bug, which the loop would only log: nothing may be sent behind what was not (INV-S5).
                    _log.error("stream.bug", where="writer", reason=repr(error), failed=error)
                    writer.abort()
                # The writer has ended: nothing more is taken.
                failure = as_error(error, "this writer")
                self._failure = self._failure or failure
                taken.pending._failure = failure
        # The last one is what the next is counted from; its record is not kept with it.
        sent = self._queue.sent = self._queue.sent._replace(send=_not_sent)
        settled = partial(self._settled, sent.given_bytes)
        if last is None:
            settled(None)
        else:
            # Futures resolve in order (INV-S5): when the last one has, all have.
            last.add_done_callback(settled)

    def _settled(self, given_bytes: int, _: object) -> None:
        """All that was given up to there is kept or has failed, perhaps while the client closes."""
        writer = self._inner
        assert writer is not None
        self._settled_bytes = max(self._settled_bytes, given_bytes)
        self._failure = self._failure or writer.failure
        self._changed.notify()

    # --- waiting ------------------------------------------------------------------------------------------------

    def ready(self, *, timeout: float | None = None) -> None:
        """Return when `append_nowait` has room. Raises what ended the writer, BufferFull after `timeout` (30 s)."""
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        end_s = time.monotonic() + limit_s
        self._check_taking()
        while not self._has_room(0):
            self._wait_for_room(0, end_s, limit_s)
            self._check_taking()

    flush = blocking(StreamWriter.flush)
    publish = blocking(StreamWriter.publish)
    roll = blocking(StreamWriter.roll)

    def seal(self) -> DLSN | None:
        """End the stream for good, and the writer. Returns the last record's position."""
        self._is_closed = True
        return self._call(lambda writer: writer.seal(), goes_on=True)

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, end the segment, take no more appends. Raises what ended the writer.

        Called again, it waits for the end, and raises the same. An exception in the caller's thread (Ctrl-C) ends the
        wait, and not the closing.
        """
        checked_timeout(timeout)
        is_again, self._is_closed = self._is_closed, True
        if self._inner is None or self._is_aborted or (is_again and self._loop.is_closed):
            return
        self._call(lambda writer: writer.close(timeout=timeout), goes_on=True)

    def abort(self) -> None:
        """Take no more appends and wait for nothing."""
        self._is_closed = self._is_aborted = True
        inner = self._inner
        if inner is not None and self._loop.is_closed is None:
            self._loop.call_plain(inner.abort)

    def _call(self, act: Callable[[StreamWriter], Awaitable[T]], *, goes_on: bool = False) -> T:
        """Run something of the asyncio writer's behind all that was appended here."""
        writer = self._opened()
        return self._queue.call(lambda: act(writer), goes_on=goes_on)

    def __enter__(self) -> SyncStreamWriter:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            was_reported = self._is_reported or (
                self._inner is not None and self._inner._is_reported
            )
            try:
                self.close()
            except Error as closing:
                if not may_end_quietly(closing, None, is_reported=was_reported):
                    raise
        elif kind is QuotaExceeded:
            with suppress(Error):
                self.close()
        else:
            self.abort()


def _not_sent(_: StreamWriter) -> asyncio.Future[DLSN]:
    raise AssertionError("this stands for what was appended before the writer was opened")


def _in_context(
    pending: PendingRecord,
    send: Callable[[StreamWriter], asyncio.Future[DLSN]],
    writer: StreamWriter,
) -> asyncio.Future[DLSN]:
    """Send a record in the context of its caller, where that matters."""
    if isinstance(pending, TracedPendingRecord):
        return pending.context.run(send, writer)
    return send(writer)
