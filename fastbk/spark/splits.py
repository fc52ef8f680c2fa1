"""Cuts what is to be read into parts that are read side by side, by bytes along segments and entries. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from fastbk.spark.offsets import Offsets
from fastbk.stream.positions import DLSN, to_us
from fastbk.stream.reader.search import SegmentInfo

PARTS_MAX = 100_000
"""Of a batch, about: each is a task of Spark's, and its driver holds all of them."""
RECORD_BYTES = 1024
"""What a record is taken to have where nothing is known of any."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What rows can be left out by, conservatively: [low, high], None: no bound. Times in µs since 1970."""

    time_low: int | None = None
    time_high: int | None = None

    def leaves_out(self, segment: SegmentInfo) -> bool:
        """Return whether no record of a closed segment is within; times never fall within a segment."""
        if segment.is_open or segment.records == 0:
            return False
        if self.time_low is not None and segment.last_time_us < self.time_low:
            return True
        return self.time_high is not None and segment.first_time_us > self.time_high


@dataclass(frozen=True, slots=True)
class Range:
    """Part of a stream: from `first` up to, not with, `end`. Records and bytes: about."""

    first: DLSN
    end: DLSN
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive entries of one segment. `goes_on`: where it ends is not known, so the next one has to be with it."""

    first: DLSN
    end: DLSN
    records: int
    size_bytes: int
    goes_on: bool = False


def is_behind(segment: SegmentInfo, place: DLSN | int | str | datetime) -> bool:
    """Return whether all records of a segment are behind or at a place: a position, a number or a time."""
    if isinstance(place, DLSN):
        return segment.number > place.segment
    if isinstance(place, datetime):
        return not segment.is_open and segment.first_time_us >= to_us(place)
    return isinstance(place, int) and segment.first_seq >= place


def plan_stream(
    segments: Sequence[SegmentInfo],
    first: DLSN,
    end: DLSN,
    records: int,
    part_bytes: int,
    bounds: Bounds | None = None,
) -> list[Range]:
    """Return consecutive parts of [first, end), about `part_bytes` each; small segments share one.

    Args:
        segments: those from `first`'s to `end`'s that are kept, ascending.
        first: not before the trim point.
        end: not behind what is published.
        records: in the range; by it what lies in open segments is estimated.
        part_bytes: 1 or more.
        bounds: segments that it leaves out are not read.
    """
    parts: list[Range] = []
    held: _Piece | None = None
    for piece in _pieces(segments, first, end, records, part_bytes, bounds or Bounds()):
        if held is not None:
            follows = piece.first.segment - held.end.segment <= 1
            if held.goes_on or (follows and held.size_bytes + piece.size_bytes <= part_bytes):
                held = _joined(held, piece)
                continue
            parts.append(_range(held))
        held = piece
    if held is not None and held.goes_on:
        # `end` is the beginning of the segment behind it, which nothing is wanted of.
        more = max(records - held.records - sum(one.records for one in parts), 0)
        size_bytes = held.size_bytes + round(more * _record_bytes(segments))
        parts.append(Range(held.first, end, held.records + more, size_bytes))
    elif held is not None:
        parts.append(_range(held))
    return parts


def _joined(one: _Piece, next_one: _Piece) -> _Piece:
    records, size_bytes = one.records + next_one.records, one.size_bytes + next_one.size_bytes
    return _Piece(one.first, next_one.end, records, size_bytes, next_one.goes_on)


def _range(piece: _Piece) -> Range:
    return Range(piece.first, piece.end, piece.records, piece.size_bytes)


def _pieces(
    segments: Sequence[SegmentInfo],
    first: DLSN,
    end: DLSN,
    records: int,
    part_bytes: int,
    bounds: Bounds,
) -> Iterator[_Piece]:
    """Yield pieces of at most about `part_bytes`, each in one segment and at least an entry."""
    left = records
    record_bytes = _record_bytes(segments)
    for one in segments:
        begin = max(first, DLSN(one.number, 0, 0))
        stop = end if one.is_open else min(end, DLSN(one.number, one.last_entry_id + 1, 0))
        if begin >= stop:
            continue
        if one.is_open and one.number < end.segment:
            # The first of two open ones: only its reader finds out where it ends.
            yield _Piece(begin, DLSN(one.number, begin.entry, begin.slot), 0, 0, goes_on=True)
            continue
        entries = max(stop.entry + (stop.slot > 0) - begin.entry, 1)
        if one.is_open:
            some, size_bytes = max(left, 0), round(max(left, 0) * record_bytes)
        else:
            some = -(-one.records * entries // (one.last_entry_id + 1))
            size_bytes = one.size_bytes * entries // (one.last_entry_id + 1)
            left -= some
        if bounds.leaves_out(one):
            continue
        count = _count(entries, size_bytes, part_bytes)
        cuts = [DLSN(one.number, begin.entry + entries * at // count, 0) for at in range(1, count)]
        for low, high in pairwise([begin, *cuts, stop]):
            yield _Piece(low, high, some // count, size_bytes // count)


def _count(entries: int, size_bytes: int, part_bytes: int) -> int:
    """Return into how many parts so many entries are cut.

    A tenth of a part is no part of its own: a task costs as much as reading some MB, and a segment that rolls at a
    size is an entry larger than that.
    """
    return min(entries, max(1, -(-(10 * size_bytes - part_bytes) // (10 * part_bytes))))


def _record_bytes(segments: Sequence[SegmentInfo]) -> float:
    """Return the average bytes of a record of the closed segments."""
    closed = [one for one in segments if not one.is_open and one.records > 0]
    records = sum(one.records for one in closed)
    return sum(one.size_bytes for one in closed) / records if records else RECORD_BYTES


def part_bytes_of(total_bytes: int, parts_min: int, part_bytes: int) -> int:
    """Return how large parts are to be so that there are about `parts_min` of them, and none is above `part_bytes`.

    Where that would make more than `PARTS_MAX`, they are larger.
    """
    return max(1, min(part_bytes, -(-total_bytes // parts_min)), -(-total_bytes // PARTS_MAX))


def plan_entries(
    first: int, end: int, size_bytes: int, part_bytes: int
) -> list[tuple[int, int, int]]:
    """Return (first, behind last, bytes) of parts of a ledger's entries [first, end), about `part_bytes` each."""
    if first >= end:
        return []
    count = _count(end - first, size_bytes, part_bytes)
    cuts = [first + (end - first) * at // count for at in range(count + 1)]
    return [(low, high, size_bytes * (high - low) // (end - first)) for low, high in pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """What the last look said of one stream or ledger."""

    first: int
    """The number of its first record, or entry."""
    each_bytes: float
    """Of a record or entry, about."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Records, or entries of ledgers."""

    records: int
    size_bytes: int
    by_name: Mapping[str, int]
    """Of each stream or ledger that has any."""

    def to_json(self) -> dict[str, object]:
        """Return it for Spark's reports."""
        return {"records": self.records, "bytes": self.size_bytes}


def amount(start: Offsets, end: Offsets, known: Mapping[str, SizeEstimate]) -> Amount:
    """Return what lies from `start` to `end`; of what is not in `start`, or another stream there, from its first on."""
    found = {str(one): at - start.ledgers.get(one, 0) for one, at in end.ledgers.items()}
    for path, at in end.streams.items():
        before = start.streams.get(path)
        if before is not None and before.stream_id == at.stream_id:
            found[path] = at.seq - before.seq
        elif path in known:
            found[path] = at.seq - known[path].first
    found = {name: count for name, count in found.items() if count > 0}
    plain = SizeEstimate(0, RECORD_BYTES)
    size_bytes = sum(count * known.get(name, plain).each_bytes for name, count in found.items())
    return Amount(sum(found.values()), round(size_bytes), found)
