"""A stream without `await`. Names and meanings are those of `stream.py`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from fastbk.client.loop_thread import LoopThread, blocking
from fastbk.option_checks import check_options
from fastbk.stream.client import Client
from fastbk.stream.positions import Start, check_start
from fastbk.stream.stream import Stream
from fastbk.stream.writer.options import StreamWriterOptions, writer_options_of
from fastbk.stream.writer.sync_writer import SyncStreamWriter

if TYPE_CHECKING:
    from fastbk.stream.cursor.sync_cursor import SyncCursor
    from fastbk.stream.reader.options import CursorOptions, ReaderOptions
    from fastbk.stream.reader.sync_reader import SyncStreamReader
    from fastbk.stream.records import Gap

T = TypeVar("T")


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
        from fastbk.stream.reader.options import AnyReaderOptions
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
        from fastbk.stream.reader.options import AnyCursorOptions

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
