"""From where to where many streams go, asked again and again: what reading all of them together is planned by.

What cannot have changed is not asked for again. A namespace counts the changes of its names, and is listed where there
was one; a stream without an open segment costs a look at its chain's version. Of an open segment bookies are asked for
their last entry, which is read only when it is another one. Many are asked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fastbk.errors import DataLost, Error, NoSuchLedger, StreamNotFound
from fastbk.meta.records import BadRecord, decoded
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain import CONDEMNED, NONE, Chain, Segment, get_chain
from fastbk.stream.context import StreamContext, gathered
from fastbk.stream.namespace.catalog import Catalog, records_at
from fastbk.stream.namespace.listing import STREAMS_AT_ONCE, entries_of
from fastbk.stream.namespace.tree import UsageRecord, label
from fastbk.stream.paths import chain_path, split_path, usage_path
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.search import SegmentAt, first_from, tail_position
from fastbk.stream.reader.stream_reader import average_bytes

_log = LibraryLog("fastbk.stream")

READ_TOGETHER = 64
"""Streams of which bookies are asked at once."""
OPEN_MAX = 4096
"""Open segments that are kept open from one look to the next; others are opened anew."""


@dataclass(frozen=True, slots=True)
class StreamRange:
    """One stream's visible records: from the first that was not truncated to the last. Without any both agree."""

    path: str
    """Namespace and name."""
    stream_id: str
    first: DLSN
    first_seq: int
    end: DLSN
    """The place behind the last record."""
    end_seq: int
    record_bytes: float
    """Estimated bytes of a record: of the closed segments, else of the last entry; 0 where there is none."""


@dataclass(slots=True)
class _End:
    dlsn: DLSN
    seq: int
    record_bytes: float


@dataclass(slots=True)
class _Tail:
    """An open segment, and what its last visible entry was at the last look."""

    segment: SegmentAt
    end: _End | None = None


@dataclass(slots=True)
class _CachedRange:
    """What is remembered of one stream."""

    version: int
    """Version of its chain."""
    open_rows: tuple[Segment, ...]
    trim: DLSN
    closed: _End
    """What the closed segments say."""
    first: tuple[DLSN, int] | None = None
    """Where that is not what bookies have to be asked for."""
    tails: dict[int, _Tail] = field(default_factory=dict)
    """Tails by ledger."""


@dataclass(slots=True)
class _Listing:
    """The names in a namespace, with ids, and what counted its changes then."""

    changes: int
    streams: list[tuple[str, str]] = field(default_factory=list)
    namespaces: list[tuple[str, str]] = field(default_factory=list)


class StreamRanges:
    """Looks at the streams of a client's cluster. One look at a time; `close` lets go of what is kept open."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._held: dict[str, _CachedRange] = {}
        self._listed: dict[str, _Listing] = {}
        self._open_count = 0
        self._lock = asyncio.Lock()

    async def below(self, path: str, is_wanted: Callable[[str], bool]) -> dict[str, StreamRange]:
        """Return the streams of a namespace, and of those below it, whose paths are wanted, by path.

        None where there is no such namespace. Raises MetadataUnavailable and what reading open segments raises.
        """
        async with self._lock:
            names_below = await self._names_below(path, is_wanted)
            await self._forget(set(self._held) - {stream_id for _, stream_id in names_below})
            return await self._read(names_below)

    async def of(self, paths: Iterable[str]) -> dict[str, StreamRange]:
        """Return these streams, by path; those that are not there are left out. Raises as `below` does."""
        by_namespace: dict[tuple[str, ...], list[str]] = {}
        for path in paths:
            *where, name = split_path(path)
            by_namespace.setdefault(tuple(where), []).append(name)
        found: list[tuple[str, str]] = []
        for namespace, names in by_namespace.items():
            with suppress(StreamNotFound):
                place = await self._catalog.place(namespace, *names)
                for name, entry in place.entries.items():
                    if entry.value.kind == "stream":
                        found.append((label((*namespace, name)), entry.value.id))
        async with self._lock:
            return await self._read(found)

    async def of_ids(self, ids: Mapping[str, str]) -> dict[str, StreamRange]:
        """Return the streams of these ids, by the keys given, whatever their names are. Raises as `below` does."""
        async with self._lock:
            return await self._read(list(ids.items()))

    async def close(self) -> None:
        """Let go of what is kept open; it may be asked again."""
        async with self._lock:
            await self._forget(set(self._held))

    # --- names --------------------------------------------------------------------------------------------------

    async def _names_below(
        self, path: str, is_wanted: Callable[[str], bool]
    ) -> list[tuple[str, str]]:
        """Return paths and ids of the streams that are wanted, level by level."""
        names_below: list[tuple[str, str]] = []
        seen: dict[str, _Listing] = {}
        with suppress(StreamNotFound):
            place = await self._catalog.place(split_path(path))
            waiting = [(place.path, place.here.id)]
            while waiting:
                ids = [one for _, one in waiting]
                listed = await self._listings(ids)
                seen.update(zip(ids, listed, strict=True))
                below: list[tuple[tuple[str, ...], str]] = []
                for (where, _), listing in zip(waiting, listed, strict=True):
                    below += [((*where, name), one) for name, one in listing.namespaces]
                    paths = ((label((*where, name)), one) for name, one in listing.streams)
                    names_below += [(full, one) for full, one in paths if is_wanted(full)]
                waiting = below
        self._listed = seen
        return names_below

    async def _listings(self, namespace_ids: Sequence[str]) -> list[_Listing]:
        """Return what lies in these namespaces; listed anew where their counts say that a name came or changed."""
        listings: list[_Listing] = []
        for offset in range(0, len(namespace_ids), STREAMS_AT_ONCE):
            some = namespace_ids[offset : offset + STREAMS_AT_ONCE]
            paths = {one: usage_path(one) for one in some}
            usages = await records_at(self._catalog.records, UsageRecord, paths)
            for one in some:
                changes = usages[one].value.changes if one in usages else 0
                known = self._listed.get(one)
                if known is None or known.changes != changes:
                    # The count is older than the listing: what changes meanwhile is listed again.
                    known = self._listed[one] = await self._listing(one, changes)
                listings.append(known)
        return listings

    async def _listing(self, namespace_id: str, changes: int) -> _Listing:
        listing = _Listing(changes)
        async for entries in entries_of(self._catalog, namespace_id):
            for name, one in entries:
                kind = listing.namespaces if one.kind == "namespace" else listing.streams
                kind.append((name, one.id))
        return listing

    # --- reading -------------------------------------------------------------------------------------------------

    async def _read(self, found: Sequence[tuple[str, str]]) -> dict[str, StreamRange]:
        spans: dict[str, StreamRange] = {}
        unread: list[tuple[str, str, _CachedRange]] = []
        for offset in range(0, len(found), STREAMS_AT_ONCE):
            some = found[offset : offset + STREAMS_AT_ONCE]
            read = self._catalog.records.each([chain_path(one) for _, one in some])
            for path, stream_id in some:
                raw = await anext(read)
                if raw is None:
                    continue  # deleted just now
                held = self._held.get(stream_id)
                if held is None or held.version != raw.version:
                    chain = decoded(chain_path(stream_id), lambda: get_chain(raw.value))  # noqa: B023
                    if isinstance(chain, BadRecord):
                        _log.warning("stream.bad_record", path=chain.path, reason=chain.reason)
                        continue
                    if chain.owner == CONDEMNED:
                        continue
                    held = await self._hold(raw.version, chain)
                if held.open_rows or held.first is None:
                    unread.append((path, stream_id, held))
                else:
                    spans[path] = _span(path, stream_id, held, held.first, held.closed)
        await self._read_all(unread, spans)
        return {path: spans[path] for path, _ in found if path in spans}

    async def _hold(self, version: int, chain: Chain) -> _CachedRange:
        """Remember a chain; of open segments that go on what was known stays known."""
        before = self._held.get(chain.stream_id)
        tails = {} if before is None else before.tails
        ledgers = {row.ledger_id for row in chain.open_rows}
        await self._close([tails.pop(tail) for tail in list(tails) if tail not in ledgers])
        held = _CachedRange(
            version, chain.open_rows, chain.trim, _closed_end(chain), _plain_first(chain), tails
        )
        self._held[chain.stream_id] = held
        return held

    async def _read_all(
        self, unread: Sequence[tuple[str, str, _CachedRange]], spans: dict[str, StreamRange]
    ) -> None:
        async def read(one: tuple[str, str, _CachedRange]) -> None:
            with suppress(StreamNotFound):  # deleted just now
                spans[one[0]] = await self._read_range(*one)

        await gathered(read, unread, READ_TOGETHER)

    async def _read_range(self, path: str, stream_id: str, held: _CachedRange) -> StreamRange:
        context = self._catalog.reading(stream_id, path)
        try:
            end = await self._end(context, held)
        except NoSuchLedger:
            # Closed, dropped or deleted since its chain was read: what is there now is asked for as usual.
            await self._forget({stream_id})
            chain = (await context.store.read()).chain
            tail = await tail_position(context)
            end = _closed_end(chain)
            if tail is not None and tail.next > end.dlsn:
                end = _End(tail.next, tail.seq + 1, end.record_bytes)
            held = _CachedRange(0, (), chain.trim, end, _plain_first(chain))
        first = held.first
        if first is None and end.dlsn > held.trim:
            first = await self._first(context, held.trim, end)
            if not held.open_rows or first[0] < end.dlsn:
                held.first = first
        return _span(path, stream_id, held, first or (end.dlsn, end.seq), end)

    async def _end(self, context: StreamContext, held: _CachedRange) -> _End:
        """Return what lies behind the last visible record. Raises NoSuchLedger."""
        for row in reversed(held.open_rows):
            tail = held.tails.get(row.ledger_id)
            is_kept = tail is not None
            if tail is None:
                tail = _Tail(await SegmentAt(context, row).open())
                if is_kept := self._open_count < OPEN_MAX:
                    self._open_count += 1
                    held.tails[row.ledger_id] = tail
            try:
                if await tail.segment.has_moved():
                    chunk = await tail.segment.last()
                    if chunk is not None:
                        each = held.closed.record_bytes or chunk.entries_bytes / len(chunk)
                        end_seq = chunk.first_seq + len(chunk)
                        tail.end = _End(chunk.next_dlsn, end_seq, each)
            except BaseException:
                tail.segment.forget()
                raise
            finally:
                if not is_kept:
                    await tail.segment.close()
            if tail.end is not None:
                return tail.end
        return held.closed

    @staticmethod
    async def _first(context: StreamContext, trim: DLSN, end: _End) -> tuple[DLSN, int]:
        """Return the first record behind a trim point within a segment, or that point where it cannot be read."""
        chain = (await context.store.read()).chain
        trim = max(trim, chain.trim)
        try:
            first = await first_from(context, chain, trim)
        except (DataLost, NoSuchLedger):
            # Whoever reads it is told. Its number is the segment's first, or more.
            row = await context.store.row(chain, trim.segment)
            return trim, max(NONE if row is None else row.base_seq, 0)
        if first is None or first.dlsn >= end.dlsn:
            return end.dlsn, end.seq
        return first.dlsn, first.seq

    async def _forget(self, stream_ids: set[str]) -> None:
        for stream_id in stream_ids:
            held = self._held.pop(stream_id, None)
            if held is not None:
                await self._close(list(held.tails.values()))
                held.tails.clear()

    async def _close(self, tails: Sequence[_Tail]) -> None:
        for tail in tails:
            self._open_count -= 1
            with suppress(Error):
                await tail.segment.close()


def _closed_end(chain: Chain) -> _End:
    """Return the end of a chain without open segments, or if nothing is visible of them; not before its trim point."""
    each = average_bytes(chain) or 0.0
    if chain.last_dlsn is None:
        return _End(chain.trim, 0, each)
    segment, entry, _ = chain.last_dlsn
    return _End(max(DLSN(segment, entry + 1, 0), chain.trim), chain.end_seq, each)


def _plain_first(chain: Chain) -> tuple[DLSN, int] | None:
    """Return the first record's position and number where the chain says it; None: nobody knows without asking."""
    end = _closed_end(chain)
    if end.dlsn <= chain.trim and not chain.open_rows:
        return end.dlsn, end.seq
    number = max(chain.trim.segment, chain.head)
    if chain.trim > DLSN(number, 0, 0):
        return None
    row = chain.row(number)
    base_seq = NONE if row is None else row.base_seq
    if row is None and number == chain.head:
        base_seq = chain.head_seq
    return None if base_seq == NONE else (DLSN(number, 0, 0), base_seq)


def _span(
    path: str, stream_id: str, held: _CachedRange, first: tuple[DLSN, int], end: _End
) -> StreamRange:
    if end.dlsn <= held.trim or first[0] >= end.dlsn:
        behind = max(end.dlsn, held.trim)
        return StreamRange(path, stream_id, behind, end.seq, behind, end.seq, end.record_bytes)
    return StreamRange(path, stream_id, *first, end.dlsn, end.seq, end.record_bytes)
