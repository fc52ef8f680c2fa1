"""From one set of offsets to another: the parts that tasks read. In the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastbk.errors import StreamNotFound
from fastbk.spark.offset_resolver import OffsetResolver, StreamBounds
from fastbk.spark.offsets import Offsets, StreamOffset, renamed
from fastbk.spark.partition_reader import LedgerPart, StreamPart
from fastbk.spark.splits import (
    RECORD_BYTES,
    Bounds,
    Range,
    part_bytes_of,
    plan_entries,
    plan_stream,
)
from fastbk.spark.worker_client import in_parallel
from fastbk.stream.reader.search import SegmentInfo


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
        total_bytes = sum(one.size_bytes for ranges in whole for one in ranges)
        part_bytes = part_bytes_of(total_bytes, options.partitions_min, options.partition_bytes)
        return [
            StreamPart(
                task.path, task.end.stream_id, one.first, one.end, one.records, one.size_bytes
            )
            for task in tasks
            for one in task.ranges(part_bytes, self.bounds)
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
