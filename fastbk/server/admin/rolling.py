"""Quantiles of the last minute: histograms that only grow, less what they were a minute ago."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from fastbk.native.stats import Histogram, bucket_from

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

PARTS = 6
"""A window moves in so many steps: it covers its length, and up to a step more."""


class RollingWindow:
    """The states of some histograms at the last few steps. Time arrives as an argument."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._states: deque[tuple[float, Mapping[Hashable, Histogram]]] = deque()

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for `keep`."""
        return not self._states or now_s >= self._states[-1][0] + self._window_s / PARTS

    def keep(self, now_s: float, histograms: Mapping[Hashable, Histogram]) -> None:
        """Note how things stand."""
        self._states.append((now_s, histograms))
        while len(self._states) > 1 and self._states[1][0] <= now_s - self._window_s:
            self._states.popleft()

    def clear(self) -> None:
        """Forget everything: the histograms begin anew."""
        self._states.clear()

    def recent(self, key: Hashable, histogram: Histogram) -> Histogram:
        """Return what was added to the histogram within the window."""
        earlier = self._states[0][1].get(key) if self._states else None
        return histogram if earlier is None else histogram.minus(earlier)


def quantile(histogram: Histogram, share: float) -> float:
    """Return a stored value that `share` of all values do not exceed (at most 12.5 % too high); NaN of none."""
    total = sum(histogram.buckets)
    if not total:
        return float("nan")
    seen = 0
    found = 0
    for bucket, times in enumerate(histogram.buckets):
        if times:
            seen += times
            found = bucket
            if seen >= share * total:
                break
    return float(min(bucket_from(found + 1) - 1, histogram.max))
