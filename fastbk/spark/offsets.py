"""Offsets: how far a query is in each stream and ledger, as JSON of Spark's checkpoints; and parts. Pure.

    {"streams": {"shop/orders": {"id": "5f…", "segment": "3", "entry": "120", "slot": 0, "seq": "7021"}}}
    {"ledgers": {"7": "1000"}}

Everything before it was read. Numbers of 64 bits are text, so that no reader of JSON rounds them.

A checkpoint is a file that others may have changed, and options come from anywhere. So each field is
checked here, and a name that is not known is an error: whoever wrote it meant something by it.

What is to be read is cut into parts that are read side by side, by bytes along segments and entries.

Decision 75.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Literal, TypeAlias

from fastbk.errors import ConfigError
from fastbk.printable_text import printable, printable_json
from fastbk.stream.paths import split_path, split_stream_path
from fastbk.stream.positions import DLSN, to_us
from fastbk.stream.reader.search import SegmentInfo

EXAMPLE = '{"shop/orders": {"segment": 3, "entry": 120, "slot": 0}}, for ledgers {"7": 1000}'
"""The form that docs/spark.md shows."""
_NUMBER_MAX = 1 << 62
_DIGITS_MAX = 19
_PLACE = {"segment", "entry", "slot", "seq", "id", "began"}
"""Fields of a stream's place, as options name it or Spark shows it."""
_REPORTED = {"batch", "behind"}
"""What Spark's reports show beside places."""
_KINDS = {"streams", "ledgers"}
_STREAM_ID = re.compile("[0-9A-Za-z_-]{1,64}")
"""It becomes part of a path of metadata."""
_SHOWN_MAX = 200

Edge: TypeAlias = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream was read."""

    dlsn: DLSN
    """DLSN of the next record."""
    seq: int
    """Its number: the difference of two is what lies between them."""
    stream_id: str
    """So that another stream that got the name is not taken for this one."""
    began: DLSN | None = None
    """Where the query began with it, for a stream that was found later: a batch that is planned again begins there."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Places in all streams by path, or in all ledgers by id."""

    streams: Mapping[str, StreamOffset]
    ledgers: Mapping[int, int]

    def to_json(self) -> dict[str, object]:
        """Return what `parse` reads."""
        if self.ledgers:
            return {
                "ledgers": {str(one): str(entry) for one, entry in sorted(self.ledgers.items())}
            }
        return {"streams": {path: _put(at) for path, at in sorted(self.streams.items())}}


def _put(at: StreamOffset) -> dict[str, object]:
    segment, entry, slot = at.dlsn
    found: dict[str, object] = {
        "id": at.stream_id,
        "segment": str(segment),
        "entry": str(entry),
        "slot": slot,
        "seq": str(at.seq),
    }
    return found if at.began is None else {**found, "began": str(at.began)}


def parse(found: Mapping[str, object]) -> Offsets:
    """Return the offsets that `to_json` wrote. Raises ConfigError for any others."""
    if len(found) != 1 or not _KINDS.issuperset(found):
        raise ConfigError(
            f"the checkpoint's offsets are none of this version of fastbk: {_shown(found)}; go on with the version"
            ' that wrote them, or begin anew with another .option("checkpointLocation", ...)'
        )
    streams = {path: _get(path, one) for path, one in _object(found.get("streams", {})).items()}
    ledgers = {_number(one): _number(at) for one, at in _object(found.get("ledgers", {})).items()}
    return Offsets(streams, ledgers)


def _get(path: str, found: object) -> StreamOffset:
    try:
        split_path(path)
        split_stream_path(path)
    except ConfigError as error:
        raise ConfigError(
            f"the checkpoint's offsets name a stream that cannot be: {error}"
        ) from error
    fields = _object(found)
    stream_id, text = fields.get("id"), fields.get("began")
    is_known = (
        isinstance(stream_id, str) and _STREAM_ID.fullmatch(stream_id) and _PLACE.issuperset(fields)
    )
    if not is_known or not (text is None or isinstance(text, str)):
        raise _not_ours(path, found)
    dlsn, began = _dlsn(fields), None if text is None else DLSN.parse(text)
    if began is not None and began > dlsn:
        raise _not_ours(path, found)  # all before it would count as read
    return StreamOffset(dlsn, _number(fields.get("seq")), str(stream_id), began)


def _not_ours(path: str, found: object) -> ConfigError:
    return ConfigError(
        f"the checkpoint's offset of {printable(path, _SHOWN_MAX)} is none of fastbk's: {_shown(found)}"
    )


def _shown(found: object) -> str:
    """Return the beginning of what was given, as JSON of one line: it may be deep, and megabytes."""
    if isinstance(found, float):
        return repr(found)
    text = printable_json(found).decode()
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where to begin or end by option, for each stream and ledger that is named."""

    streams: Mapping[str, DLSN | int | Edge]
    """An int: a sequence number."""
    ledgers: Mapping[int, int | Edge]
    ids: Mapping[str, str] = field(default_factory=dict)
    """Ids of the streams whose places say which stream it was."""


def parse_wanted(found: Mapping[str, object], *, ledgers: bool) -> Wanted:
    """Return what startingOffsets or endingOffsets say, with or without "streams" or "ledgers" around it.

    A stream's value is an object of segment, entry and slot (or of seq), text such as "3.120.0", "earliest" or
    "latest"; a ledger's is the next entry, or one of these words. Raises ConfigError.
    """
    kind = "ledgers" if ledgers else "streams"
    if set(found) - _REPORTED == {kind} and isinstance(found[kind], dict):
        found = _object(found[kind])
    if ledgers:
        return Wanted({}, {_number(one): _edge(at) or _number(at) for one, at in found.items()})
    ids = {path: at["id"] for path, at in found.items() if isinstance(at, dict) and "id" in at}
    return Wanted({path: _place(at) for path, at in found.items()}, {}, ids)


def _place(found: object) -> DLSN | int | Edge:
    edge = _edge(found)
    if edge is not None:
        return edge
    if isinstance(found, str):
        return DLSN.parse(found)
    fields = _object(found)
    unknown = sorted(set(fields) - _PLACE)
    if unknown and all(name.isdigit() for name in fields):
        raise ConfigError(
            f"offsets by partition, as Kafka's connector takes them ({_shown(unknown[0])}): a stream has one partition;"
            ' write its sequence number as {"shop/orders": {"seq": 23}}'
        )
    if unknown:
        raise ConfigError(
            f"the offset of a stream has no field {_shown(unknown[0])}; write {EXAMPLE}"
        )
    return _number(fields["seq"]) if set(fields) - {"id"} == {"seq"} else _dlsn(fields)


def _edge(found: object) -> Edge | None:
    if found == "earliest":
        return "earliest"
    return "latest" if found == "latest" else None


def _dlsn(fields: Mapping[str, object]) -> DLSN:
    segment = _number(fields.get("segment"))
    return DLSN(segment, _number(fields.get("entry", 0)), _number(fields.get("slot", 0)))


def _object(found: object) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise ConfigError(f"{_shown(found)} is not an offset; write {EXAMPLE}")
    return found


def _number(found: object) -> int:
    if isinstance(found, str) and len(found) <= _DIGITS_MAX and found.isascii() and found.isdigit():
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < _NUMBER_MAX:
        raise ConfigError(f"{_shown(found)} is not a number of an offset; write {EXAMPLE}")
    return found


def renamed(start: Offsets, end: Offsets) -> Offsets:
    """Return `start` with each stream under the path that it has in `end`: a stream is its id, names come and go."""
    paths = {at.stream_id: path for path, at in end.streams.items()}
    found = {path: at for path, at in start.streams.items() if at.stream_id not in paths}
    found |= {
        paths[stream.stream_id]: stream
        for stream in start.streams.values()
        if stream.stream_id in paths
    }
    return Offsets(found, start.ledgers)


def advanced(start: Offsets, end: Offsets) -> Offsets:
    """Return `end`, nowhere before `start`: what was read stays read, whatever is known meanwhile.

    Ledgers that are read no longer keep their place: named again they go on there.
    """
    streams = dict(end.streams)
    for path, at in start.streams.items():
        known = streams.get(path)
        if known is not None and known.stream_id == at.stream_id and known.dlsn < at.dlsn:
            streams[path] = at
    ledgers = {one: max(entry, start.ledgers.get(one, 0)) for one, entry in end.ledgers.items()}
    return Offsets(streams, {**start.ledgers, **ledgers})


def shares(backlogs: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return how many of `limit` each name gets: in proportion to its backlog, at least one where there is any.

    So the sum may be above the limit by as much as there are names.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    return {
        name: min(backlog, max(1, backlog * limit // total)) if backlog else 0
        for name, backlog in backlogs.items()
    }


# --- what lies between two offsets, cut into parts ------------------------------------------------


PARTS_MAX = 100_000
"""Approximate maximum of parts of a batch: each is a task of Spark's, and its driver holds all of them."""
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
        more = max(records - held.records - sum(part.records for part in parts), 0)
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
    for segment in segments:
        begin = max(first, DLSN(segment.number, 0, 0))
        stop = (
            end if segment.is_open else min(end, DLSN(segment.number, segment.last_entry_id + 1, 0))
        )
        if begin >= stop:
            continue
        if segment.is_open and segment.number < end.segment:
            # The first of two open ones: only its reader finds out where it ends.
            yield _Piece(begin, DLSN(segment.number, begin.entry, begin.slot), 0, 0, goes_on=True)
            continue
        entries = max(stop.entry + (stop.slot > 0) - begin.entry, 1)
        if segment.is_open:
            some, size_bytes = max(left, 0), round(max(left, 0) * record_bytes)
        else:
            some = -(-segment.records * entries // (segment.last_entry_id + 1))
            size_bytes = segment.size_bytes * entries // (segment.last_entry_id + 1)
            left -= some
        if bounds.leaves_out(segment):
            continue
        count = _count(entries, size_bytes, part_bytes)
        cuts = [
            DLSN(segment.number, begin.entry + entries * index // count, 0)
            for index in range(1, count)
        ]
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
    closed = [segment for segment in segments if not segment.is_open and segment.records > 0]
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
    cuts = [first + (end - first) * index // count for index in range(count + 1)]
    return [(low, high, size_bytes * (high - low) // (end - first)) for low, high in pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """What the last look said of one stream or ledger."""

    first: int
    """The number of its first record, or entry."""
    each_bytes: float
    """Estimated bytes of a record or entry."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Records, or entries of ledgers."""

    records: int
    size_bytes: int
    by_name: Mapping[str, int]
    """By name, each stream or ledger that has any."""

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
