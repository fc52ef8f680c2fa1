"""A stream: the way to its writer, readers, cursors and figures, and its truncation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from fastbk.errors import NoSuchLedger, StreamNotFound, StreamSealed, Unauthorized
from fastbk.option_checks import check_options
from fastbk.stream import chain as changes
from fastbk.stream import drafts
from fastbk.stream.chain import Chain, KindName, StreamKind
from fastbk.stream.context import LateContext, StreamContext
from fastbk.stream.cursor.backlog import Backlog, backlogs_of
from fastbk.stream.cursor.store import (
    CursorInfo,
    checked_keeping,
    create_cursor,
    cursors_of,
    delete_cursor,
    move_cursor,
    place_of,
)
from fastbk.stream.drafts import Draft, attach, attach_drafts
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.listing import StreamInfo, infos_of
from fastbk.stream.namespace.tree import StreamRecord, label, patches, stream_policy_set
from fastbk.stream.opening import new_owner, open_stream, slots_of
from fastbk.stream.options import (
    AnyCursorOptions,
    AnyReaderOptions,
    CursorOptions,
    ReaderOptions,
)
from fastbk.stream.policy import PolicyPatch, StreamPolicy, effective
from fastbk.stream.positions import DLSN, AtSeq, Start, check_start
from fastbk.stream.reader import search
from fastbk.stream.reader.search import Position, SegmentInfo, resolve
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Gap, Record

if TYPE_CHECKING:
    from fastbk.stream.cursor.cursor import Cursor
    from fastbk.stream.options import StreamProducerOptions, StreamWriterOptions
    from fastbk.stream.producer.producer import Producer
    from fastbk.stream.writer.stream_writer import StreamWriter


class Stream:
    """One stream of a client's cluster; made by `Namespace.stream`, without I/O.

    Its name is looked up at its first use, and the handle then stands for the stream that had it: when the stream is
    renamed the handle goes on with it, when it is deleted calls raise StreamNotFound, whatever is created later.
    """

    def __init__(
        self,
        catalog: Catalog,
        namespace: tuple[str, ...],
        name: str,
        context: StreamContext | None = None,
    ) -> None:
        """`context`: of the stream, where it is known by other means than its name."""
        self._catalog = catalog
        self.namespace = namespace
        self.name = name
        """The name that the handle was made with."""
        self._context = context

    @property
    def path(self) -> str:
        """Namespace and name, with slashes between them."""
        return label((*self.namespace, self.name))

    def __repr__(self) -> str:
        return f"<Stream {self.path}>"

    async def context(self) -> StreamContext:
        """Return what writers, readers and cursors of the stream share. Raises StreamNotFound, MetadataUnavailable."""
        if self._context is None:
            self._context = await self._catalog.context(self.namespace, self.name)
        return self._context

    def _late(self) -> LateContext:
        return LateContext(self.path, self.context)

    async def exists(self) -> bool:
        """Return whether there is a stream of this name now."""
        try:
            await self._catalog.context(self.namespace, self.name)
        except StreamNotFound:
            return False
        return True

    # --- writing ------------------------------------------------------------------------------------------------

    def writer(
        self, *, create: bool = False, **options: Unpack[StreamWriterOptions]
    ) -> StreamWriter:
        """Return a writer; `async with` opens it and fences whoever wrote before. Options: `WriterOptions`.

        `create`: a stream that is not there is made, with the namespaces that it is in. Raises ConfigError.
        """
        from fastbk.stream.options import writer_options_of
        from fastbk.stream.writer.stream_writer import StreamWriter

        late = LateContext(self.path, self._make) if create else self._late()
        return StreamWriter(late, writer_options_of(options))

    def producer(
        self,
        name: str | None = None,
        *,
        create: bool = False,
        **options: Unpack[StreamProducerOptions],
    ) -> Producer:
        """Return a producer: any number append to a stream at once, through a write service (`fastbk serve`).

        `async with` opens it, and fences only who has the same name; None: a random one. Options: `ProducerOptions`.
        `create`: as of `writer`; else the service looks the stream up, and no right to read is needed. Raises
        ConfigError.
        """
        from fastbk.stream.options import producer_options_of
        from fastbk.stream.producer.producer import Producer, checked_name

        known, make = producer_options_of(options), self._make if create else None
        return Producer(self._catalog.client, self.path, checked_name(name), known, make)

    async def _make(self) -> StreamContext:
        """Make the stream if it is not there."""
        from fastbk.stream.namespace.namespace import Namespace

        namespace = Namespace(self._catalog, "/".join(self.namespace))
        try:
            await namespace.create_stream(self.name, exist_ok=True)
        except StreamNotFound:
            await namespace.create(exist_ok=True)
            await namespace.create_stream(self.name, exist_ok=True)
        return await self.context()

    async def attach(self, ledger_ids: Sequence[int], key: str, number: int) -> DLSN | None:
        """Put closed ledgers with entries of a stream behind all it has; a repeat does nothing: see `drafts.py`."""
        return await attach(await self.context(), ledger_ids, key, number)

    async def attached_number(self, key: str) -> int:
        """Return the last number that was attached under `key`; -1 if none was, or many other keys came after it."""
        return (await (await self.context()).store.read()).chain.attached_number(key)

    async def begin_draft(self, key: str, number: int, label: str = "") -> Draft | None:
        """Begin ledgers that are to be attached under `key` and `number`; None where that was done. See `drafts.py`."""
        return await drafts.begin(await self.context(), key, number, label)

    async def draw_ledger(self, draft: Draft) -> tuple[int, Draft]:
        """Name a draft's next ledger; return its id, with which it may be created now, and the draft."""
        return await drafts.draw_ledger((await self.context()).client, draft)

    async def drafts(self) -> list[Draft]:
        """Return the stream's drafts, of all keys."""
        context = await self.context()
        return await drafts.drafts_of(context.client, context.stream_id)

    async def attach_drafts(
        self, some: Sequence[Draft], number: int, *, is_fencing: bool = True
    ) -> DLSN | None:
        """Put the ledgers of drafts behind all that the stream has; a repeat does nothing: see `drafts.py`."""
        return await attach_drafts(await self.context(), some, number, is_fencing=is_fencing)

    async def give_up_drafts(self, some: Sequence[Draft]) -> None:
        """Delete drafts and their ledgers; those that were attached meanwhile stay."""
        await drafts.give_up((await self.context()).client, some)

    # --- reading ------------------------------------------------------------------------------------------------

    @overload
    def reader(
        self,
        start: Start = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[ReaderOptions],
    ) -> StreamReader: ...

    @overload
    def reader(
        self,
        start: Start = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[ReaderOptions],
    ) -> StreamReader[Gap]: ...

    def reader(self, start: Start = "earliest", **options: Any) -> StreamReader[Gap]:
        """Return a reader from `start` on; `async with` opens it. Options: those of `StreamReader`."""
        from fastbk.stream.reader.stream_reader import StreamReader

        check_options(options, AnyReaderOptions)
        return StreamReader(self._late(), start, **options)

    async def get(self, where: DLSN | AtSeq) -> Record:
        """Return one record. Raises PositionTruncated, DataLost, NoSuchEntry (there is none, or not yet)."""
        return await search.get(await self.context(), where)

    async def get_many(self, wanted: Sequence[DLSN | AtSeq]) -> list[Record]:
        """Return records in the order asked for; each entry is read once. Raises as `get`."""
        return await search.get_many(await self.context(), wanted)

    async def find(
        self, *, txid: int | None = None, time: datetime | None = None, seq: int | None = None
    ) -> DLSN | None:
        """Return the position of the first visible record whose id, time or number is not less; None if there is none.

        Raises ConfigError unless exactly one is given.
        """
        return await search.find(await self.context(), txid=txid, time=time, seq=seq)

    async def first(self) -> Record | None:
        """Return the first record that was not truncated, None if none is visible."""
        return await search.first(await self.context())

    async def last_position(self, *, fresh: bool = True) -> Position | None:
        """Return the last visible record's position, None if the stream never had one; for `fresh` see `search.py`."""
        return await search.tail_position(await self.context(), fresh=fresh)

    async def truncate(self, before: Start) -> DLSN:
        """Have all records before this position gone; return the trim point that holds.

        It never goes back, or beyond the end.
        """
        return await truncate(await self.context(), before)

    # --- cursors ------------------------------------------------------------------------------------------------

    @overload
    def cursor(
        self,
        name: str,
        start: Start = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[CursorOptions],
    ) -> Cursor: ...

    @overload
    def cursor(
        self,
        name: str,
        start: Start = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[CursorOptions],
    ) -> Cursor[Gap]: ...

    def cursor(self, name: str, start: Start = "earliest", **options: Any) -> Cursor[Gap]:
        """Return a durable cursor; `async with` makes it, or takes it over. Options: `Cursor`. Raises ConfigError."""
        from fastbk.stream.cursor.cursor import Cursor

        check_options(options, AnyCursorOptions)
        return Cursor(self._late(), name, start, **options)

    async def cursors(self) -> list[CursorInfo]:
        """Return the stream's cursors, by name, as metadata has them. Raises StreamNotFound, MetadataUnavailable."""
        context = await self.context()
        return await cursors_of(context.client.records, context.stream_id)

    async def backlogs(self) -> list[tuple[CursorInfo, Backlog | None]]:
        """Return the stream's cursors, and behind them those of patterns that read it, with what each has before it.

        None: it cannot be told now.
        """
        return await backlogs_of(
            await self.context(), [*await self.cursors(), *await self.pattern_cursors()]
        )

    async def pattern_cursors(self) -> list[CursorInfo]:
        """Return what cursors of patterns say of this stream, by name; their `pattern` says which streams they read."""
        from fastbk.stream.pattern.store import each_pattern_cursor

        stream_id = (await self.context()).stream_id
        record = (await self._catalog.stream_record(stream_id, self.path)).value
        pattern_cursors: list[CursorInfo] = []
        with suppress(Unauthorized):  # a gateway of a version before 0.3 lets few clients read them
            async for one in each_pattern_cursor(self._catalog.records, record.namespace):
                if one.reads(record.name):
                    pattern_cursors.append(one.of_stream(stream_id))
        return pattern_cursors

    async def create_cursor(
        self,
        name: str,
        start: Start = "earliest",
        *,
        hold: bool = True,
        expire_after: float | None = None,
    ) -> CursorInfo:
        """Make a cursor that nobody holds yet; `cursor(name)` opens it. Options: those of `Cursor`.

        Raises StreamExists where there is one, PositionTruncated, QuotaExceeded; ConfigError for a position behind the
        stream's end.
        """
        check_start(start)
        holds, expire_s = checked_keeping(hold, expire_after)
        context = await self.context()
        return await create_cursor(context, name, start, holds=holds, expire_after_s=expire_s)

    async def move_cursor(self, name: str, where: Start) -> CursorInfo:
        """Have a cursor go on at the first record at or behind `where`; all from there on is delivered (again).

        Whoever holds it is fenced, and finds out when it next stores something. A place that was truncated becomes the
        stream's first one. Raises StreamNotFound if there is no such cursor, ConfigError for a position behind the end.
        """
        check_start(where)
        context = await self.context()
        return await move_cursor(context, name, *await place_of(context, where))

    async def delete_cursor(self, name: str) -> bool:
        """Delete a cursor; whoever holds it finds itself fenced. Returns whether there was one."""
        context = await self.context()
        return await delete_cursor(context.client, context.stream_id, name)

    # --- what it is ---------------------------------------------------------------------------------------------

    async def info(self) -> StreamInfo:
        """Return what metadata says of it: one request, nothing is asked of bookies. Raises StreamNotFound."""
        stream_id = (await self.context()).stream_id
        infos = await infos_of(self._catalog.records, self.namespace, {stream_id: self.name})
        if not infos:
            raise StreamNotFound(f"there is no stream {self.path}: it was deleted")
        return infos[0]

    async def segments(self, first: int = 1) -> list[SegmentInfo]:
        """Return its segments from number `first` on, as metadata has them: for readers that share the work."""

        return await search.segments_of(await self.context(), first)

    async def effective_policy(self) -> StreamPolicy:
        """Return what holds for the next segment."""
        return await (await self.context()).policy()

    async def policy(self) -> PolicyPatch:
        """Return what the stream says itself; the rest it inherits."""
        stream_id = (await self.context()).stream_id
        return (await self._catalog.stream_record(stream_id, self.path)).value.policy

    async def seal(self) -> DLSN | None:
        """End the stream for good, whatever its kind, fencing whoever appends. Returns the last record's position.

        Raises StreamSealed for one that has ended, StreamNotFound, MetadataConflict where somebody took the stream over
        meanwhile, and what recovery raises.
        """
        return await seal(await self.context())

    async def set_kind(self, kind: KindName) -> None:
        """Have one writer append from now on, or any number of producers; whoever appended so far is fenced.

        A stream that is of this kind stays as it is, and nobody is fenced. Names of producers keep their last numbers
        while the stream is a writer's. Raises ConfigError where the cluster's format level has no producers,
        MetadataConflict while somebody takes the stream over again and again, StreamSealed, StreamNotFound, and what
        recovery raises.
        """
        from fastbk.stream.kind import set_kind

        await set_kind(await self.context(), StreamKind.of(kind))

    async def set_policy(
        self, patch: PolicyPatch | None = None, *, inherit: Iterable[str] = ()
    ) -> None:
        """Change what `patch` names, and inherit the fields of `inherit` again, from the next segment on.

        Raises PolicyInvalid, StreamNotFound.
        """
        fields, known = list(inherit), await self._catalog.checked_policy(patch)

        async def attempt() -> None:
            stream_id = (await self.context()).stream_id
            # A record that nobody can read is written anew: where the stream is, the tree says.
            instead = StreamRecord((await self._catalog.place(self.namespace)).here.id, self.name)
            record = await self._catalog.stream_record(stream_id, self.path, instead)
            place = await self._catalog.place(self.namespace, record.value.name)
            found = place.entries.get(record.value.name)
            if found is None or found.value.id != stream_id:
                raise StreamNotFound(f"stream {self.path} is not in its namespace any more")
            before = record.value.policy
            after = before.changed(known).without(fields)
            if after != before or record.value is instead:
                effective([*patches(place), after])
                await self._catalog.records.change(*stream_policy_set(place, found, record, after))

        await self._catalog.until_decided(attempt)


async def seal(context: StreamContext) -> DLSN | None:
    """End a stream for good; return the position of its last record."""
    async with slots_of(context.client):
        try:
            known = await open_stream(context.client, context.store, f"seal {new_owner()}", None)
        except StreamSealed as error:
            raise StreamSealed(f"{context.name} has ended: it was sealed before") from error
        epoch = known.chain.epoch
        known = await context.store.change(lambda chain: changes.seal(chain, epoch), known)
    return known.chain.last_dlsn


# --- truncation -----------------------------------------------------------------------------------
#
# Cutting off a stream's old end, exact to the record, inside the open segment, too (INV-S7).


async def truncate(context: StreamContext, before: Start) -> DLSN:
    """Have all records before this position gone for readers; return the trim point that holds then.

    It never falls, and never goes beyond the end: of what is written now, that is behind the last record that is
    acknowledged and known to be. A repeat does nothing. Space comes back by whole segments, when a janitor gets to it.
    Raises StreamNotFound, MetadataUnavailable (it may have happened), and what reading raises.
    """
    wanted = await resolve(context, before)
    known = await context.store.read()
    if wanted <= known.chain.trim:
        return known.chain.trim
    point = min(wanted, await end_of(context, known.chain))
    # Once a position is within the end it stays so: what is acknowledged is kept by whoever takes the stream over.
    known = await context.store.change(lambda chain: changes.truncate(chain, point), known)
    return known.chain.trim


def closed_end(chain: Chain) -> DLSN:
    """Return where the first record behind all closed segments is, or will be."""
    open_rows = chain.open_rows
    return DLSN(open_rows[0].number if open_rows else chain.next_number, 0, 0)


async def end_of(context: StreamContext, chain: Chain) -> DLSN:
    """Return a position behind the last record that is acknowledged, and not behind any that is still to come."""
    for row in reversed(chain.open_rows):
        try:
            reader = await context.client.open_ledger(row.ledger_id, recovery=False)
            async with reader:
                last_entry_id = await reader.last_add_confirmed()
        except NoSuchLedger:
            continue  # dropped by somebody who took the stream over, just now perhaps: nothing was in it
        if last_entry_id >= 0:
            return DLSN(row.number, last_entry_id + 1, 0)
    return closed_end(chain)
