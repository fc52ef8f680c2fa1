"""A stream without `await`. Names and meanings are those of `stream.py`."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from fastbk.client.loop_thread import LoopThread
from fastbk.option_checks import check_options
from fastbk.stream.client import Client
from fastbk.stream.namespace.listing import StreamInfo
from fastbk.stream.policy import PolicyPatch, StreamPolicy
from fastbk.stream.positions import DLSN, AtSeq, Start
from fastbk.stream.stream import Stream
from fastbk.stream.writer.options import StreamWriterOptions, writer_options_of
from fastbk.stream.writer.sync_writer import SyncStreamWriter

if TYPE_CHECKING:
    from fastbk.stream.chain.drafts import Draft
    from fastbk.stream.cursor.backlog import Backlog
    from fastbk.stream.cursor.store import CursorInfo
    from fastbk.stream.cursor.sync_cursor import SyncCursor
    from fastbk.stream.reader.options import CursorOptions, ReaderOptions
    from fastbk.stream.reader.search import Position, SegmentInfo
    from fastbk.stream.reader.sync_reader import SyncStreamReader
    from fastbk.stream.records import Gap, Record

T = TypeVar("T")


class SyncStream:
    """One stream; made by `Namespace.stream` of `fastbk.sync`, without I/O."""

    def __init__(self, loop: LoopThread[Client], find: Callable[[], Stream], name: str) -> None:
        self._loop = loop
        self._find = find
        self._found: Stream | None = None
        self.name = name

    def _inner(self) -> Stream:
        """Return the asyncio stream. Only on the loop."""
        if self._found is None:
            self._found = self._find()
        return self._found

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
        return SyncCursor(self._loop, lambda: self._inner().cursor(name, start, **options))

    def exists(self) -> bool:
        """Return whether there is a stream of this name now."""
        return self._call(lambda inner: inner.exists())

    def info(self) -> StreamInfo:
        """Return what metadata says of it."""
        return self._call(lambda inner: inner.info())

    def segments(self, first: int = 1) -> list[SegmentInfo]:
        """Return its segments from number `first` on, as metadata has them."""
        return self._call(lambda inner: inner.segments(first))

    def effective_policy(self) -> StreamPolicy:
        """Return what holds for the next segment."""
        return self._call(lambda inner: inner.effective_policy())

    def policy(self) -> PolicyPatch:
        """Return what the stream says itself."""
        return self._call(lambda inner: inner.policy())

    def set_policy(self, patch: PolicyPatch | None = None, *, inherit: Iterable[str] = ()) -> None:
        """Change what `patch` names, and inherit the fields of `inherit` again."""
        self._call(lambda inner: inner.set_policy(patch, inherit=inherit))

    def get(self, where: DLSN | AtSeq) -> Record:
        """Return one record."""
        return self._call(lambda inner: inner.get(where))

    def get_many(self, wanted: Sequence[DLSN | AtSeq]) -> list[Record]:
        """Return records in the order asked for."""
        return self._call(lambda inner: inner.get_many(wanted))

    def find(
        self, *, txid: int | None = None, time: datetime | None = None, seq: int | None = None
    ) -> DLSN | None:
        """Return the position of the first record that is not less; None if there is none."""
        return self._call(lambda inner: inner.find(txid=txid, time=time, seq=seq))

    def first(self) -> Record | None:
        """Return the first record that was not truncated."""
        return self._call(lambda inner: inner.first())

    def last_position(self, *, fresh: bool = True) -> Position | None:
        """Return the last visible record's position."""
        return self._call(lambda inner: inner.last_position(fresh=fresh))

    def tail(self, *, fresh: bool = True) -> Position | None:
        """The former name of `last_position`; deprecated, to be removed in version 0.3."""
        warnings.warn("Stream.tail is called last_position now", DeprecationWarning, stacklevel=2)
        return self.last_position(fresh=fresh)

    def attach(self, ledger_ids: Sequence[int], key: str, number: int) -> DLSN | None:
        """Put closed ledgers with entries of a stream behind all it has; a repeat does nothing."""
        return self._call(lambda inner: inner.attach(ledger_ids, key, number))

    def attached_number(self, key: str) -> int:
        """Return the last number that was attached under `key`, -1 if none is known."""
        return self._call(lambda inner: inner.attached_number(key))

    def begin_draft(self, key: str, number: int, label: str = "") -> Draft | None:
        """Begin ledgers that are to be attached under `key` and `number`; None where that was done."""
        return self._call(lambda inner: inner.begin_draft(key, number, label))

    def draw_ledger(self, draft: Draft) -> tuple[int, Draft]:
        """Name a draft's next ledger; return its id, with which it may be created now, and the draft."""
        return self._call(lambda inner: inner.draw_ledger(draft))

    def drafts(self) -> list[Draft]:
        """Return the stream's drafts, of all keys."""
        return self._call(lambda inner: inner.drafts())

    def attach_drafts(
        self, some: Sequence[Draft], number: int, *, is_fencing: bool = True
    ) -> DLSN | None:
        """Put the ledgers of drafts behind all that the stream has; a repeat does nothing."""
        return self._call(lambda inner: inner.attach_drafts(some, number, is_fencing=is_fencing))

    def give_up_drafts(self, some: Sequence[Draft]) -> None:
        """Delete drafts and their ledgers; those that were attached meanwhile stay."""
        self._call(lambda inner: inner.give_up_drafts(some))

    def cursors(self) -> list[CursorInfo]:
        """Return the stream's durable cursors, by name."""
        return self._call(lambda inner: inner.cursors())

    def backlogs(self) -> list[tuple[CursorInfo, Backlog | None]]:
        """Return the stream's durable cursors, and how much each has before it; None: it cannot be told now."""
        return self._call(lambda inner: inner.backlogs())

    def delete_cursor(self, name: str) -> bool:
        """Delete a cursor. Returns whether there was one."""
        return self._call(lambda inner: inner.delete_cursor(name))

    def truncate(self, before: Start) -> DLSN:
        """Have all records before this position gone; return the trim point that holds."""
        return self._call(lambda inner: inner.truncate(before))
