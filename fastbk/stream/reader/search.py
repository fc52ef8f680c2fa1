"""Where something is in a stream: by position, sequence number, transaction id or time; first and last record.

The chain says which segment, its pages included; the index entry of a segment that was ended in order says which
entries; otherwise the heads of some entries at a time are read, in parallel, until one is left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fastbk.errors import (
    ConfigError,
    DataLost,
    NoSuchEntry,
    NoSuchLedger,
    PositionTruncated,
    WrongType,
)
from fastbk.stream.chain.chain import Chain, PageRef, Segment, made_behind_us
from fastbk.stream.context import StreamContext, clock_us, gathered
from fastbk.stream.positions import (
    CARRIED_US_MAX,
    DLSN,
    AtSeq,
    AtTime,
    AtTxid,
    Start,
    check_dlsn,
    check_start,
    to_us,
)
from fastbk.stream.reader.gaps import truncated
from fastbk.stream.reader.segment_search import Key, SegmentAt, key_of_row
from fastbk.stream.records import Chunk, Record

PARALLEL = 8
"""Segments that `get_many` reads at the same time."""
AGAIN = 5
"""How often a search begins anew because the chain changed under it."""


@dataclass(frozen=True, slots=True)
class Position:
    """The last record that is visible, and `next`, the position behind it."""

    dlsn: DLSN
    seq: int
    txid: int
    time_us: int
    next: DLSN


async def resolve(context: StreamContext, start: Start) -> DLSN:
    """Return the position of the first record at or behind `start`; behind the last visible one if there is none.

    A DLSN is what it is, also before the trim point.
    """
    check_start(start)
    if isinstance(start, DLSN):
        return start
    if start == "earliest":
        return (await context.store.read()).chain.trim
    if start == "latest":
        return await end_position(context)
    key = key_of(start)
    found = await find_key(context, key)
    return await end_position(context) if found is None else found


async def is_truncated(
    context: StreamContext, start: AtSeq, tail: Position | None, found: DLSN | None
) -> bool:
    """Return whether the record of this number was truncated.

    `tail`: of before the search; what is appended later was not truncated. `found`: what `find_key` returned. An entry
    that cannot be read counts as not truncated: its reader gets the error.
    """
    if found is None:
        return tail is not None and start.seq <= tail.seq
    try:
        return (await get(context, found)).seq > start.seq
    except PositionTruncated:
        return True
    except (DataLost, NoSuchEntry, NoSuchLedger):
        return False


async def end_position(context: StreamContext) -> DLSN:
    """Return the position behind the last visible record, not before the trim point."""
    return await position_behind(context, await tail_position(context))


async def position_behind(context: StreamContext, tail: Position | None) -> DLSN:
    """Return the position behind the tail that was found, not before the trim point."""
    trim = (await context.store.read()).chain.trim
    return trim if tail is None else max(trim, tail.next)


def key_of(start: AtTxid | AtTime | AtSeq | str) -> Key:
    """Return what to search by. Raises ConfigError for what is no start."""
    if isinstance(start, AtTxid):
        return Key("txid", start.txid)
    if isinstance(start, AtTime):
        return Key("time", to_us(start.time))
    if isinstance(start, AtSeq):
        return Key("seq", start.seq)
    raise ConfigError(
        f"{start!r} is no position: a DLSN, AtTxid, AtTime, AtSeq, earliest or latest"
    )


async def find(
    context: StreamContext,
    *,
    txid: int | None = None,
    time: datetime | None = None,
    seq: int | None = None,
) -> DLSN | None:
    """Return the position of the first visible record whose id, time or number is not less; None if there is none.

    Name exactly one. What was truncated is not found: the result is at or behind the trim point.
    """
    keys = [] if txid is None else [key_of(AtTxid(txid))]
    keys += [] if time is None else [key_of(AtTime(time))]
    keys += [] if seq is None else [key_of(AtSeq(seq))]
    if len(keys) != 1:
        raise ConfigError("find() takes exactly one of txid, time and seq")
    return await find_key(context, keys[0])


async def find_key(context: StreamContext, key: Key) -> DLSN | None:
    """Return the position of the first visible record that is not before the key; see `find`."""
    for left in reversed(range(AGAIN)):
        chain = (await context.store.read()).chain
        try:
            return await _find_in(context, chain, key)
        except NoSuchLedger:
            # Closed, dropped or deleted since the chain was read?
            if not left or (await context.store.read()).chain == chain:
                raise
    return None


async def _find_in(context: StreamContext, chain: Chain, key: Key) -> DLSN | None:
    number = await _first_segment(context, chain, key)
    first = chain.trim
    while number < chain.next_number:
        row = await context.store.row(chain, number)
        if row is not None:
            async with SegmentAt(context, row) as segment:
                found = await segment.find(key)
            if found is not None:
                if found.dlsn >= first:
                    return found.dlsn
                record = await first_from(context, chain, first)
                return None if record is None else record.dlsn
        number += 1
    return None


async def _first_segment(context: StreamContext, chain: Chain, key: Key) -> int:
    """Return the first segment that may have the record, the first open one if no closed one has it."""
    low = max(chain.head, chain.trim.segment)
    ends = [page.base_seq for page in chain.pages[1:]]
    ends.append(chain.rows[0].base_seq if chain.rows else chain.end_seq)
    for page, end_seq in zip(chain.pages, ends, strict=False):
        is_reached = end_seq > key.value if key.kind == "seq" else key_of_row(key, page)
        if page.last >= low and is_reached:
            rows = await context.store.page(page)
            at = _first_row(rows, key, low, await _rows_behind(context, chain, page, rows))
            if at is not None:
                return at
    at = _first_row(chain.rows, key, low)
    return chain.next_number if at is None else at


def _first_row(
    rows: Sequence[Segment], key: Key, low: int, behind: Sequence[Segment] = ()
) -> int | None:
    """`behind`: the rows that follow, two are enough; of times only."""
    if key.kind != "time":
        at = bisect_left(rows, True, key=lambda row: row.number >= low and key_of_row(key, row))
        return rows[at].number if at < len(rows) else None
    # Times may fall between segments, by a wrong clock.
    known, now_us = (*rows, *behind), clock_us()
    for place, row in enumerate(rows):
        if row.number >= low and (row.is_open or _ended_us(known, place, now_us) >= key.value):
            return row.number
    return None


def _ended_us(rows: Sequence[Segment], place: int, now_us: int) -> int:
    """Return the time of a closed segment's last record, as far as that can be believed (INV-S22).

    Not one that lies ahead of this machine's clock, where the writer of a later segment has said otherwise: its
    segment was made behind the end of this one. A clock that is behind alone, ours or a writer's, hides no record.
    """
    last_us = rows[place].last_time_us
    if last_us <= now_us:
        return last_us
    made_us = made_behind_us(rows, place)
    return last_us if made_us is None or last_us - made_us <= CARRIED_US_MAX else made_us


async def _rows_behind(
    context: StreamContext, chain: Chain, page: PageRef, rows: Sequence[Segment]
) -> Sequence[Segment]:
    """Return the rows behind those of a page that `_ended_us` asks for."""
    if all(row.last_time_us <= clock_us() for row in rows[-2:]):
        return ()
    following = next((one for one in chain.pages if one.first > page.last), None)
    return chain.rows[:2] if following is None else (await context.store.page(following))[:2]


# --- by position ------------------------------------------------------------------------------------------------


async def first(context: StreamContext) -> Record | None:
    """Return the first record that was not truncated, None if none is visible."""
    chain = (await context.store.read()).chain
    return await first_from(context, chain, chain.trim)


async def first_from(context: StreamContext, chain: Chain, position: DLSN) -> Record | None:
    """Return the first visible record at or behind `position`, which is not before the trim point; None if none is."""
    number = max(position.segment, chain.head)
    while number < chain.next_number:
        row = await context.store.row(chain, number)
        if row is not None:
            async with SegmentAt(context, row) as segment:
                entry = position.entry if number == position.segment else 0
                while entry <= await segment.last_entry():
                    chunk = await segment.entry(entry)
                    at = chunk.index_of(position)
                    if at < len(chunk):
                        return chunk[at]
                    entry += 1
        number += 1
    return None


async def get(context: StreamContext, where: DLSN | AtSeq) -> Record:
    """Return one record: of a position, or of a sequence number.

    Raises PositionTruncated, DataLost (no bookie gives it), NoSuchEntry (there is no such record, or not yet).
    """
    (record,) = await get_many(context, [where])
    return record


async def get_many(context: StreamContext, wanted: Sequence[DLSN | AtSeq]) -> list[Record]:
    """Return records in the order asked for; each entry is read once. Raises as `get`, for the first one it meets.

    Payloads are copies: a small record keeps no large entry in memory.
    """
    chain = (await context.store.read()).chain
    places = [await _place(context, one) for one in wanted]
    by_segment: dict[int, dict[int, set[int]]] = {}
    for place in places:
        if place < chain.trim:
            raise truncated(context.name, place, chain.trim)
        by_segment.setdefault(place.segment, {}).setdefault(place.entry, set()).add(place.slot)
    found: dict[DLSN, Record] = {}

    async def read(number: int) -> None:
        entries, row = by_segment[number], await context.store.row(chain, number)
        if row is None:
            raise _no_such(context, DLSN(number, min(entries), 0))
        async with SegmentAt(context, row) as segment:
            last = await segment.last_entry()
            for entry in sorted(entries):
                if entry > last:
                    raise _no_such(context, DLSN(number, entry, 0))
                found.update(_copied(await segment.entry(entry), entries[entry]))

    try:
        await gathered(read, by_segment, PARALLEL)
    except (NoSuchLedger, DataLost):
        now = (await context.store.read()).chain
        for place in places:
            if place < now.trim:
                raise truncated(context.name, place, now.trim) from None
        raise
    for place in places:
        if place not in found:
            raise _no_such(context, place)
    return [found[place] for place in places]


def _copied(chunk: Chunk, slots: set[int]) -> dict[DLSN, Record]:
    """Return these records of one entry, with payloads of their own."""
    records = [chunk[slot] for slot in slots if slot < len(chunk)]
    return {
        record.dlsn: replace(record, payload=memoryview(bytes(record.payload)))
        for record in records
    }


async def _place(context: StreamContext, where: DLSN | AtSeq) -> DLSN:
    if isinstance(where, DLSN):
        check_dlsn(where)
        return where
    if not isinstance(where, AtSeq):
        raise WrongType(f"{where!r} names no record: a DLSN or AtSeq does")
    found = await find_key(context, Key("seq", where.seq))
    if found is None:
        raise NoSuchEntry(f"{context.name} has no record {where.seq} yet")
    (record,) = await get_many(context, [found])
    if record.seq > where.seq:
        raise truncated(context.name, f"record {where.seq}", record.dlsn)
    return found


def _no_such(context: StreamContext, place: DLSN) -> NoSuchEntry:
    return NoSuchEntry(f"{context.name} has no record at {place}, or not yet")


# --- the end ----------------------------------------------------------------------------------------------------


async def tail_position(context: StreamContext, *, fresh: bool = True) -> Position | None:
    """Return the last visible record's position, None if the stream never had one.

    `fresh`: not before anything that any reader has seen; otherwise what one round of questions tells, which may be
    old. Records that are acknowledged and not published yet may lie behind it.
    """
    for left in reversed(range(AGAIN)):
        chain = (await context.store.read()).chain
        try:
            for row in reversed(chain.open_rows):
                async with SegmentAt(context, row) as segment:
                    found = await segment.last(fresh=fresh)
                    if found is not None:
                        return _position_of(found)
            break
        except NoSuchLedger:
            if not left or (await context.store.read()).chain == chain:
                raise
    if chain.last_dlsn is None:
        return None
    segment_number, entry, _ = chain.last_dlsn
    behind = DLSN(segment_number, entry + 1, 0)
    return Position(
        chain.last_dlsn, chain.end_seq - 1, chain.last_txid, chain.newest_time_us, behind
    )


def _position_of(chunk: Chunk) -> Position:
    seq = chunk.first_seq + len(chunk) - 1
    return Position(chunk.last_dlsn, seq, chunk.last_txid, chunk.last_time_us, chunk.next_dlsn)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment. Of an open one only number, ledger, and `first_seq` (where it is not -1) are known."""

    number: int
    """From 1."""
    ledger_id: int
    is_open: bool
    first_seq: int
    """The number of its first record; -1: not known, since the segment before it is open, too."""
    records: int
    last_entry_id: int
    """Of its last entry with records."""
    size_bytes: int
    """Of all its entries' data, one copy."""
    first_time_us: int
    last_time_us: int
    """Of its first and last record, in µs since 1970 by the writer's clock; times never fall within a segment."""


async def segments_of(context: StreamContext, first: int) -> list[SegmentInfo]:
    """Return the segments that are kept, ascending, from number `first` on: closed ones, then at most two open ones."""
    chain = (await context.store.read()).chain
    return [
        SegmentInfo(
            row.number,
            row.ledger_id,
            row.is_open,
            row.base_seq,
            row.records,
            row.last_entry_id,
            row.size_bytes,
            row.first_time_us,
            row.last_time_us,
        )
        async for row in context.store.rows_from(chain, max(first, chain.head))
    ]
