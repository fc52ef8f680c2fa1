"""The parts of streams and ledgers that tasks read: planned in the driver, from one set of offsets to another, and read
as Arrow batches in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fastbk.arrow import ledger_batches, stream_batches
from fastbk.errors import (
    DataLost,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    PositionTruncated,
    StreamNotFound,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.spark.offset_resolver import ALLOWED, CHOICE, OffsetResolver, StreamBounds
from fastbk.spark.offsets import (
    RECORD_BYTES,
    Bounds,
    Offsets,
    Range,
    StreamOffset,
    part_bytes_of,
    plan_entries,
    plan_stream,
    renamed,
)
from fastbk.spark.options import ReadOptions
from fastbk.spark.schemas import arrow_schema
from fastbk.spark.worker_client import in_parallel
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.search import SegmentInfo

# --- reading a part -------------------------------------------------------------------------------


_log = LibraryLog("fastbk.spark")
_GONE = (PositionTruncated, DataLost, NoSuchEntry, NoSuchLedger, DigestMismatch, StreamNotFound)


@dataclass(frozen=True)
class StreamPart(InputPartition):
    """Records of a stream from `first` up to, not with, `end`. Records and bytes: about."""

    path: str
    stream_id: str
    """By which it is read: another stream may have got the name since it was planned."""
    first: DLSN
    end: DLSN
    records: int
    size_bytes: int


@dataclass(frozen=True)
class LedgerPart(InputPartition):
    """Entries of a ledger from `first` up to, not with, `end`."""

    ledger_id: int
    first: int
    end: int
    size_bytes: int


def read_part(options: ReadOptions, part: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield a part's batches; a part of no kind of ours is empty: Spark makes one where there is nothing to read.

    What is gone is an error that names it and the choice there is, or is passed by without failOnDataLoss.
    """
    if isinstance(part, StreamPart):
        return _named(_stream(options, part), f"{part.path} from {part.first} to {part.end}")
    if isinstance(part, LedgerPart):
        return _named(_ledger(options, part), f"ledger {part.ledger_id}")
    return iter(())


def _named(batches: Iterator[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except _GONE as error:
        raise DataLost(f"{what}: {error}. {CHOICE}") from error


def _stream(options: ReadOptions, part: StreamPart) -> Iterator[pa.RecordBatch]:
    try:
        yield from stream_batches(
            OffsetResolver(options).stream(part.path, part.stream_id),
            part.first,
            part.end,
            schema=arrow_schema(options),
            rows_max=options.rows_max,
            skip_gaps=not options.fail_on_data_loss,
            on_gap=lambda gap: _log.warning(
                "spark.gap_skipped", stream=part.path, gap=str(gap), reason=ALLOWED
            ),
        )
    except StreamNotFound:
        if options.fail_on_data_loss:
            raise
        _log.warning("spark.deleted_stream_skipped", stream=part.path, reason=ALLOWED)


def _ledger(options: ReadOptions, part: LedgerPart) -> Iterator[pa.RecordBatch]:
    try:
        yield from ledger_batches(
            OffsetResolver(options).client,
            part.ledger_id,
            part.first,
            part.end - 1,
            schema=arrow_schema(options),
            rows_max=options.rows_max,
            skip_gaps=not options.fail_on_data_loss,
            digest=options.digest,
            password=options.password,
        )
    except NoSuchLedger:
        if options.fail_on_data_loss:
            raise
        _log.warning("spark.deleted_ledger_skipped", ledger_id=part.ledger_id, reason=ALLOWED)


# --- planning the parts ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """One stream's range, before it is cut."""

    path: str
    first: StreamOffset
    end: StreamOffset
    segments: list[SegmentInfo]

    def ranges(self, part_bytes: int, bounds: Bounds) -> list[Range]:
        records = max(self.end.seq - self.first.seq, 0)
        return plan_stream(
            self.segments, self.first.dlsn, self.end.dlsn, records, part_bytes, bounds
        )


def _begin(start: StreamOffset | None, end: StreamOffset) -> StreamOffset:
    """Return where a batch begins in a stream; number -1: only the position was kept."""
    if start is not None and start.stream_id == end.stream_id:
        return start
    # Found while the query ran, or made anew under the same name.
    dlsn = end.dlsn if end.began is None else end.began
    return StreamOffset(dlsn, end.seq if end.began is None else -1, end.stream_id)


@dataclass
class ReadPlanner:
    """Plans one read."""

    resolver: OffsetResolver
    bounds: Bounds = field(default_factory=Bounds)

    def of_streams(self, start: Offsets, end: Offsets) -> list[StreamPart]:
        """Return parts of [start, end); of streams that are new in `end` from where the query began with them.

        Raises StreamNotFound, PositionTruncated, DataLost with failOnDataLoss: before any task starts.
        """
        start = renamed(start, end)
        begins = {
            path: begin
            for path, at in sorted(end.streams.items())
            if (begin := _begin(start.streams.get(path), at)).dlsn < at.dlsn
        }
        nows = self.resolver.nows_of({path: end.streams[path] for path in begins})
        found = in_parallel(
            lambda path: self._task(path, nows.get(path), begins[path], end.streams[path]),
            list(begins),
        )
        tasks = [task for task in found if task is not None]
        options = self.resolver.options
        whole = [task.ranges(1 << 62, self.bounds) for task in tasks]
        total_bytes = sum(range_.size_bytes for ranges in whole for range_ in ranges)
        part_bytes = part_bytes_of(total_bytes, options.partitions_min, options.partition_bytes)
        return [
            StreamPart(
                task.path,
                task.end.stream_id,
                range_.first,
                range_.end,
                range_.records,
                range_.size_bytes,
            )
            for task in tasks
            for range_ in task.ranges(part_bytes, self.bounds)
        ]

    def _task(
        self, path: str, now: StreamBounds | None, begin: StreamOffset, end: StreamOffset
    ) -> _Task | None:
        first = self._first(path, now, begin, end)
        if now is None or first is None:
            return None
        try:
            segments = now.stream.segments(first.dlsn.segment)
        except StreamNotFound:
            self._first(path, None, begin, end)
            return None
        if not segments or segments[0].number > first.dlsn.segment:
            # Truncated and deleted since it was looked at? What is missing in the list has to be told.
            first = self._first(path, self.resolver.nows_of({path: end}).get(path), begin, end)
        return None if first is None else _Task(path, first, end, segments)

    def _first(
        self, path: str, now: StreamBounds | None, begin: StreamOffset, end: StreamOffset
    ) -> StreamOffset | None:
        """Return where to begin with a stream, None where nothing of it is left, which was said to be fine."""
        if begin.seq < 0 and now is not None and now.end.stream_id == end.stream_id:
            # Only its position was kept; what was truncated since then is told by that.
            known = (
                now.first
                if begin.dlsn >= now.first.dlsn
                else StreamOffset(begin.dlsn, 0, end.stream_id)
            )
            begin = StreamOffset(begin.dlsn, known.seq, end.stream_id)
        first = self.resolver.checked(now, path, begin)
        if first is None or first.stream_id != end.stream_id or first.dlsn >= end.dlsn:
            return None
        return first

    def of_ledgers(self, start: Offsets, end: Offsets) -> list[LedgerPart]:
        """Return parts of [start, end) of ledgers; those not in `start` from their first entry on."""
        found: list[tuple[int, int, int, int]] = []
        for one, behind in sorted(end.ledgers.items()):
            first = start.ledgers.get(one, 0)
            if first >= behind:
                continue
            known = self.resolver.ledger_end(one)
            if known is None:
                continue
            entries, size_bytes = known
            share = size_bytes * (behind - first) // entries if entries else RECORD_BYTES
            found.append((one, first, behind, share))
        options = self.resolver.options
        part_bytes = part_bytes_of(
            sum(share for *_, share in found), options.partitions_min, options.partition_bytes
        )
        return [
            LedgerPart(one, low, high, some)
            for one, first, behind, share in found
            for low, high, some in plan_entries(first, behind, share, part_bytes)
        ]
