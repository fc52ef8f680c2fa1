"""How long things take: a histogram that costs little, and what it tells.

An append is too short for a measurement of its own: what was sent together is measured together (`AppendClock`).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
"""Quantiles are those of the last one to two windows."""
_EXACT_US = 16
"""Below it a bucket is a microsecond; above, an eighth to a sixteenth of its value."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, in seconds."""

    count: int = 0
    """How often it was measured, over the whole life."""
    total_s: float = 0.0
    """All of that time together: divided by `count` it is the mean."""
    p50_s: float = 0.0
    """The median of the last one to two minutes, to 6 %; 0 where nothing was measured in them."""
    p99_s: float = 0.0
    """What 99 of 100 of the same time took at most."""


class LatencyHistogram:
    """Counts of one thing. Written by one thread, and read by any.

    Attributes:
        count, total_s: see `Latency`.
    """

    __slots__ = ("_before", "_began_s", "_buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._buckets: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._began_s = 0.0

    def record(self, took_s: float, count: int, now_s: float) -> None:
        """Note that `count` of them took so long each. `now_s`: by the monotonic clock."""
        if now_s - self._began_s >= WINDOW_S:
            is_next = now_s - self._began_s < 2 * WINDOW_S
            self._before, self._buckets = self._buckets if is_next else {}, {}
            self._began_s = now_s
        self.count += count
        self.total_s += took_s * count
        took_us = int(took_s * 1e6)
        if took_us >= _EXACT_US:
            shift = took_us.bit_length() - 4
            took_us = shift * 8 + (took_us >> shift)
        buckets = self._buckets
        buckets[took_us] = buckets.get(took_us, 0) + count

    def latency(self) -> Latency:
        """Return what is known now."""
        age_s = time.monotonic() - self._began_s
        counts: dict[int, int] = {}
        if age_s < 2 * WINDOW_S:
            for one in (self._buckets, self._before if age_s < WINDOW_S else {}):
                for bucket, count in list(one.items()):
                    counts[bucket] = counts.get(bucket, 0) + count
        p50_s, p99_s = (_quantile_s(counts, share) for share in (0.5, 0.99))
        return Latency(self.count, self.total_s, p50_s, p99_s)


def _quantile_s(counts: dict[int, int], share: float) -> float:
    """Return what this share of them took at most; 0 if there are none."""
    left = share * sum(counts.values())
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 0:
            return _middle_us(bucket) / 1e6
    return 0.0


def _middle_us(bucket: int) -> float:
    if bucket < _EXACT_US:
        return bucket + 0.5
    shift = bucket // 8 - 1
    return ((bucket - shift * 8) + 0.5) * (1 << shift)


class AppendClock:
    """Measures what begins in the order of its numbers, and ends in the same order.

    It costs something for each group that begins together, and for each that ends together; nothing for each number.
    """

    __slots__ = ("_begun", "_ended", "histogram")

    def __init__(self, first: int = 0) -> None:
        """`first`: the number of what begins first."""
        self.histogram = LatencyHistogram()
        self._begun: deque[tuple[int, float]] = deque()
        self._ended = first

    def begin(self, end: int, now_s: float) -> None:
        """All below `end` that had not begun has begun, at this moment of the monotonic clock."""
        self._begun.append((end, now_s))

    def finish(self, end: int) -> None:
        """All below `end` has ended, now."""
        begun, before = self._begun, self._ended
        now_s = time.monotonic()
        while begun and before < end:
            group_end, began_s = begun[0]
            reached = min(group_end, end)
            if reached > before:
                self.histogram.record(now_s - began_s, reached - before, now_s)
                before = reached
            if group_end > end:
                break
            begun.popleft()
        self._ended = max(before, end)
