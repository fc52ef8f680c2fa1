"""The last hour of figures, for charts: so many series of so many points, whatever the cluster does. Pure."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

POINTS_MAX = 720
"""Of a series: an hour of points 5 s apart. A point takes 16 bytes."""
SERIES_MAX = 4000
"""Beyond it the one that got no point for longest is forgotten. All series full take 46 MB."""


@dataclass(slots=True)
class Series:
    """Points in the order of their times, in seconds since 1970. A value that was not known is NaN."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at_s: float, value: float) -> None:
        """Add a point, and forget the oldest beyond POINTS_MAX."""
        # A quarter at once: to cut one off moves all others.
        if len(self.times_s) >= POINTS_MAX + POINTS_MAX // 4:
            del self.times_s[: -POINTS_MAX + 1], self.values[: -POINTS_MAX + 1]
        self.times_s.append(at_s)
        self.values.append(value)

    def last(self, count: int = POINTS_MAX) -> tuple[list[float], list[float | None]]:
        """Return times and values of the last points; None stands for a value that was not known."""
        values = [None if math.isnan(one) else one for one in self.values[-count:]]
        return list(self.times_s[-count:]), values


class History:
    """Series by their names."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._series: OrderedDict[str, Series] = OrderedDict()

    def __len__(self) -> int:
        return len(self._series)

    def add(self, name: str, at_s: float, value: float | None) -> None:
        """Add a point; None: the value is not known."""
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= self._series_max:
                self._series.popitem(last=False)
            series = self._series[name] = Series()
        self._series.move_to_end(name)
        series.add(at_s, math.nan if value is None else value)

    def get(self, name: str) -> Series:
        """Return a series; one that is not known has no points."""
        return self._series.get(name) or Series()
