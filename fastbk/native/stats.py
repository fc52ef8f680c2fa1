"""Counters and histograms in a segment: read by the supervisor at any time, written by the segment's owner.

`fastbk/observe/names.py` lists the slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import check

if TYPE_CHECKING:
    from fastbk.native.cdata import CData
    from fastbk.native.segment import Segment

COUNTERS_MAX = lib.FBK_COUNTERS_MAX
HISTOGRAMS_MAX = lib.FBK_HISTOGRAMS_MAX
BUCKET_COUNT = lib.FBK_HISTOGRAM_BUCKETS

HEARTBEATS_MAX = lib.FBK_HEARTBEATS_MAX
BEAT_LOOP = lib.FBK_BEAT_LOOP
BEAT_FLUSH = lib.FBK_BEAT_FLUSH
BEAT_BACKGROUND = lib.FBK_BEAT_BACKGROUND


def bucket_from(bucket: int) -> int:
    """Return the lowest value that falls into `bucket`; one bucket is at most 12.5 % wide."""
    return lib.fbk_python_bucket_from(bucket)


@dataclass(frozen=True)
class Histogram:
    """A copy of one histogram. Its parts were not read at one instant: `count` may be one off the buckets."""

    count: int
    sum: int
    max: int
    buckets: list[int]

    def percentile(self, percent: float) -> int:
        """Return a value that `percent` of all values do not exceed (at most 12.5 % too high); 0 if empty."""
        total = sum(self.buckets)
        if total == 0:
            return 0
        wanted = total * percent / 100.0
        seen = 0
        for bucket, times in enumerate(self.buckets):
            seen += times
            if times and seen >= wanted:
                return min(bucket_from(bucket + 1) - 1, self.max)
        return self.max

    def minus(self, earlier: Histogram) -> Histogram:
        """Return what was added since `earlier`; `max` stays that of the whole life."""
        return Histogram(
            self.count - earlier.count,
            self.sum - earlier.sum,
            self.max,
            [now - then for now, then in zip(self.buckets, earlier.buckets, strict=True)],
        )


class Stats:
    """The statistics of one mapped segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._counters = ffi.new("uint64_t[]", COUNTERS_MAX)
        self._histogram = ffi.new("struct fbk_histogram_copy *")
        self._beats = ffi.new("uint64_t[]", HEARTBEATS_MAX)

    def counters(self) -> list[int]:
        """Return all counters and gauges, by slot."""
        result = lib.fbk_python_counters(
            self.segment.pointer, self.segment.role_number, self._counters, COUNTERS_MAX
        )
        check(result, "read counters")
        counters: list[int] = ffi.unpack(self._counters, COUNTERS_MAX)
        return counters

    def histogram(self, slot: int) -> Histogram:
        """Return a copy of the histogram in `slot`."""
        copy = self._histogram
        result = lib.fbk_python_histogram(
            self.segment.pointer, self.segment.role_number, slot, copy
        )
        check(result, f"read histogram {slot}")
        return Histogram(copy.count, copy.sum, copy.max, ffi.unpack(copy.buckets, BUCKET_COUNT))

    def heartbeats(self) -> list[int]:
        """Return the heartbeat words, by BEAT_LOOP and so on."""
        result = lib.fbk_python_heartbeats(
            self.segment.pointer, self.segment.role_number, self._beats
        )
        check(result, "read heartbeats")
        beats: list[int] = ffi.unpack(self._beats, HEARTBEATS_MAX)
        return beats

    def beat(self, word: int = BEAT_LOOP) -> None:
        """Beat a heartbeat word. For the segment's owner only, and one thread a word."""
        check(lib.fbk_python_beat(*self._owned(), word), "beat")

    def count(self, slot: int, amount: int = 1) -> None:
        """Add to a counter. For the segment's owner only."""
        check(lib.fbk_python_count(*self._owned(), slot, amount), "count")

    def gauge(self, slot: int, value: int) -> None:
        """Set a gauge. For the segment's owner only."""
        check(lib.fbk_python_gauge(*self._owned(), slot, value), "gauge")

    def observe(self, slot: int, value: int) -> None:
        """Add a value to a histogram. For the segment's owner only."""
        check(lib.fbk_python_observe(*self._owned(), slot, value), "observe")

    def _owned(self) -> tuple[CData, int]:
        # Writing through a read-only mapping would be a fault that nothing could catch.
        if not self.segment.is_writable:
            raise PermissionError(f"the segment of {self.segment.role} belongs to another process")
        return self.segment.pointer, self.segment.role_number
