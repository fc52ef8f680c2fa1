"""Where something is in a stream: by position, sequence number, transaction id or time; first and last record.

The chain says which segment, its pages included; the index entry of a segment that was ended in order says which
entries; otherwise the heads of some entries at a time are read, in parallel, until one is left.

Decision 162.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, NamedTuple

from fastbk.client.ledger_reader import Entry, LedgerReader
from fastbk.errors import (
    ConfigError,
    DataLost,
    DigestMismatch,
    Error,
    NoSuchEntry,
    NoSuchLedger,
    PositionTruncated,
    ProtocolError,
    StorageError,
    WrongType,
)
from fastbk.native.stream_codec import KIND_INDEX, Head
from fastbk.stream.chain import NONE, Chain, PageRef, Segment, made_behind_us
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
from fastbk.stream.records import Chunk, Gap, Record, chunk_of
from fastbk.stream.segment_contents import (
    RECORD,
    TIME,
    TXID,
    SegmentIndex,
    head_of,
    last_with_records,
)

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
        index = bisect_left(rows, True, key=lambda row: row.number >= low and key_of_row(key, row))
        return rows[index].number if index < len(rows) else None
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


# --- by position ----------------------------------------------------------------------------------


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
                    index = chunk.index_of(position)
                    if index < len(chunk):
                        return chunk[index]
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
    place = await find_key(context, Key("seq", where.seq))
    if place is None:
        raise NoSuchEntry(f"{context.name} has no record {where.seq} yet")
    (record,) = await get_many(context, [place])
    if record.seq > where.seq:
        raise truncated(context.name, f"record {where.seq}", record.dlsn)
    return place


def _no_such(context: StreamContext, place: DLSN) -> NoSuchEntry:
    return NoSuchEntry(f"{context.name} has no record at {place}, or not yet")


# --- the end --------------------------------------------------------------------------------------


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
    """Number of the segment, from 1."""
    ledger_id: int
    is_open: bool
    first_seq: int
    """The number of its first record; -1: not known, since the segment before it is open, too."""
    records: int
    last_entry_id: int
    """Id of its last entry with records."""
    size_bytes: int
    """Bytes of all its entries' data, one copy."""
    first_time_us: int
    last_time_us: int
    """Times of its first and last record, in µs since 1970 by the writer's clock; times never fall within a segment."""


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


# --- in one segment -------------------------------------------------------------------------------


FAN = 7
"""Entries whose heads are read at the same time; each round leaves an eighth."""
_COLUMNS = {"txid": TXID, "time": TIME, "seq": RECORD}


class Key(NamedTuple):
    """What to search by: transaction id, time in µs since 1970, or sequence number."""

    kind: Literal["txid", "time", "seq"]
    value: int


def key_of_row(key: Key, row: Segment | PageRef) -> bool:
    """Return whether the row's last record is not before the key. An open segment's may always be."""
    if isinstance(row, Segment) and row.is_open:
        return True
    if key.kind == "txid":
        return row.last_txid >= key.value
    if key.kind == "time":
        return row.last_time_us >= key.value
    assert isinstance(row, Segment)  # a page does not say where it ends
    return row.end_seq > key.value


def is_reached(key: Key, record: Record) -> bool:
    """Return whether a record is not before the key."""
    if key.kind == "txid":
        return record.txid >= key.value
    return (record.time_us if key.kind == "time" else record.seq) >= key.value


def index_in(chunk: Chunk, key: Key) -> int:
    """Return the place of the first record of a chunk that is not before the key; len(chunk) if there is none."""
    return bisect_left(range(len(chunk)), True, key=lambda at: is_reached(key, chunk[at]))


class SegmentAt:
    """Opens a segment's ledger, without recovery; `async with`."""

    def __init__(self, context: StreamContext, row: Segment) -> None:
        self._context = context
        self._row = row
        self._base_seq = row.base_seq
        self._probed: dict[int, Entry] = {}
        self._last: int | None = None if row.is_open else row.last_entry_id
        self._confirmed: int | None = None

    async def __aenter__(self) -> SegmentAt:
        """Raises NoSuchLedger."""
        return await self.open()

    async def open(self) -> SegmentAt:
        """Open the ledger and return this: for who keeps it open longer than a block. Raises NoSuchLedger."""
        client, ledger_id = self._context.client, self._row.ledger_id
        self._reader: LedgerReader = await client.open_ledger(ledger_id, recovery=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the ledger."""
        await self._reader.close()

    async def has_moved(self) -> bool:
        """Ask an open segment's bookies anew; return whether another entry is the last one than before."""
        confirmed = await self._reader.last_add_confirmed()
        if confirmed == self._confirmed:
            return False
        self._confirmed, self._last = confirmed, None
        return True

    def forget(self) -> None:
        """Have `has_moved` answer True: what it said before could not be made use of."""
        self._confirmed = None

    async def last_entry(self, *, fresh: bool = True) -> int:
        """Return the last visible entry with records, -1 if there is none."""
        if self._last is None:
            reader = self._reader
            ask = reader.last_add_confirmed if fresh else reader.try_last_add_confirmed
            last = await ask() if self._confirmed is None else self._confirmed
            self._last = (
                last if last < 0 else last_with_records(head_of(await self._raw(last)), last)
            )
        return self._last

    async def _raw(self, entry_id: int) -> Entry:
        """Return an entry. Raises DataLost."""
        try:
            async for batch in self._reader.read_batches(entry_id, entry_id):
                return next(iter(batch))
        except (NoSuchEntry, DigestMismatch) as error:
            number = self._row.number
            first, behind = DLSN(number, entry_id, 0), DLSN(number, entry_id + 1, 0)
            raise lost(self._context.name, first, behind, error) from error
        raise NoSuchEntry(f"ledger {self._row.ledger_id} has no entry {entry_id}")

    async def entry(self, entry_id: int) -> Chunk:
        """Return an entry's records; it must be visible. Raises DataLost, StorageError."""
        raw = self._probed.get(entry_id) or await self._raw(entry_id)
        row, base_seq = self._row, await self._base()
        try:
            return chunk_of(row.number, entry_id, [raw.data], base_seq, row.base_txid)
        except ProtocolError as error:
            raise StorageError(
                f"ledger {row.ledger_id} is no segment: {error}", ledger_id=row.ledger_id
            ) from error

    async def _base(self) -> int:
        """Return the number of the segment's first record."""
        if self._base_seq == NONE:
            self._base_seq = await first_sequence(self._context, self._row)
        return self._base_seq

    async def last(self, *, fresh: bool = True) -> Chunk | None:
        """Return the last visible entry's records, None if there is none."""
        last = await self.last_entry(fresh=fresh)
        return None if last < 0 else await self.entry(last)

    async def find(self, key: Key) -> Record | None:
        """Return the first visible record that is not before the key, None if there is none."""
        low, high = 0, await self.last_entry()
        if high < 0:
            return None
        if self._row.index_entry_id != NONE:
            index = SegmentIndex((await self._raw(self._row.index_entry_id)).data)
            first, behind = index.entries_for(_COLUMNS[key.kind], self._relative(key))
            low = min(first, high)
            if behind is not None:
                # A number is in an entry before that of the row behind it; a key may first be reached there.
                high = min(high, max(low, behind - (2 if key.kind == "seq" else 1)))
        await self._base()
        low = await self._narrowed(key, low, high)
        while low <= high:
            chunk = await self.entry(low)
            at = index_in(chunk, key)
            if at < len(chunk):
                return chunk[at]
            low += 1
        return None

    def _relative(self, key: Key) -> int:
        if key.kind == "txid":
            return key.value - self._row.base_txid
        return key.value - self._row.base_seq if key.kind == "seq" else key.value

    def _is_last_reached(self, key: Key, head: Head) -> bool:
        """Return whether the last record of an entry is not before the key."""
        if key.kind == "time":
            return head.time_us >= key.value
        if key.kind == "txid":
            return self._row.base_txid + head.last_txid >= key.value
        return self._base_seq + head.first_record + head.record_count > key.value

    async def _narrowed(self, key: Key, low: int, high: int) -> int:
        """Return the first entry of low..high whose last record is not before the key; `high` if none before it is."""
        while low < high:
            count = high - low
            step = max(1, -(-count // (FAN + 1)))
            probes = list(range(low + step - 1, high, step))
            raws = await asyncio.gather(*map(self._raw, probes))
            self._probed = dict(zip(probes, raws, strict=True))
            # Their heads say enough: no body is decompressed.
            reached = [self._is_last_reached(key, head_of(raw)) for raw in raws]
            index = reached.index(True) if True in reached else len(probes)
            if index < len(probes):
                high = probes[index]
            if index > 0:
                low = probes[index - 1] + 1
        return low


# --- an open segment's first number ---------------------------------------------------------------

PART_ENTRIES = 64


async def first_sequence(context: StreamContext, row: Segment) -> int:
    """Return the number of the first record of `row`, a segment that has one; the chain may not say it yet.

    A writer goes on in the second open segment only when all it sent to the first is acknowledged: then everything
    that the first one's bookies hold stays, also what lies beyond its LAC, and its last record ends the numbers.
    """
    while row.base_seq == NONE:
        chain = (await context.store.read()).chain
        now = await context.store.row(chain, row.number)
        if now is None or now.ledger_id != row.ledger_id:
            raise NoSuchLedger(
                f"{context.name}: segment {row.number} is gone", ledger_id=row.ledger_id
            )
        row = now
        before = await context.store.row(chain, row.number - 1)
        if row.base_seq == NONE and before is not None and before.base_seq != NONE:
            try:
                return before.base_seq + await _records_of(context, before)
            except NoSuchLedger:
                # Deleted, or closed and deleted, meanwhile: the chain knows.
                if (await context.store.read()).chain == chain:
                    raise
    return row.base_seq


async def _records_of(context: StreamContext, row: Segment) -> int:
    if not row.is_open:
        return row.records
    async with await context.client.open_ledger(row.ledger_id, recovery=False) as reader:
        last: Entry | None = None
        at = max(await reader.last_add_confirmed() - 1, 0)
        while True:
            found = await reader.read_unconfirmed(at, at + PART_ENTRIES - 1)
            for entry in found:
                if head_of(entry).kind != KIND_INDEX:
                    last = entry
            if len(found) < PART_ENTRIES:
                break
            at += PART_ENTRIES
        if last is None:
            raise Error(f"{context.name}: segment {row.number} has no entry, and one behind it has")
        head = head_of(last)
        return head.first_record + head.record_count


# --- missing records ------------------------------------------------------------------------------
#
# What a reader raises, or hands out, where records are missing (INV-S11).


def truncated(stream: str, where: DLSN | str, first_available: DLSN) -> PositionTruncated:
    """Return the error of a position, or record, before the trim point."""
    error = PositionTruncated(
        f"{stream}: {where} was truncated; the stream begins at {first_available}: go on there"
    )
    error.first_available = str(first_available)
    return error


def has_no_records_before(trim: DLSN, chain: Chain, position: DLSN) -> bool:
    """Whether the chain says that no record lies from a position before the trim point to that point."""
    row = chain.row(position.segment)
    is_next = trim == DLSN(position.segment + 1, 0, 0)
    return is_next and row is not None and not row.is_open and position.entry > row.last_entry_id


def lost(stream: str, first: DLSN, behind: DLSN, cause: Error | None = None) -> DataLost:
    """Return the error of records that no bookie gives: `first` up to, not with, `behind`."""
    why = f" ({cause})" if cause is not None else ""
    error = DataLost(
        f"{stream}: no bookie gives what lies from {first} to {behind}{why}: seek({behind}) goes on behind it"
    )
    error.first, error.next = str(first), str(behind)
    error.__cause__ = cause
    return error


def error_of(stream: str, gap: Gap) -> PositionTruncated | DataLost:
    """Return the error that says what a gap says."""
    if gap.kind == "trimmed":
        return truncated(stream, gap.first, gap.next)
    return lost(stream, gap.first, gap.next)
