"""Reads Prometheus' text format: some metrics by name, and quantiles of what histograms counted in between."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its labels and its value."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MetricText:
    """Some of the metrics of one page, at one moment."""

    series: dict[str, list[Series]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> MetricText:
        """Return the series with one of these names; lines that are not understood are left out."""
        found: dict[str, list[Series]] = {}
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            name, brace, labels = head.partition("{")
            if name not in names:
                continue
            try:
                number = float(value)
            except ValueError:
                continue
            found.setdefault(name, []).append(
                Series(dict(_LABEL.findall(labels)) if brace else {}, number)
            )
        return cls(found)

    def of(self, name: str) -> list[Series]:
        """Return all series of a metric; empty where it is missing."""
        return self.series.get(name, [])

    def total(self, name: str) -> float:
        """Return a metric, added up over its series; 0 where it is missing."""
        return math.fsum(one.value for one in self.of(name))

    def histogram(self, name: str, pair: int | None = None) -> Buckets:
        """Return a histogram, added up over its series, or of one pair of directories."""
        found: dict[float, float] = {}
        for one in self.of(f"{name}_bucket"):
            if pair is not None and one.labels.get("pair", "0") != str(pair):
                continue
            bound = float(one.labels.get("le", "nan").replace("+Inf", "inf"))
            found[bound] = found.get(bound, 0.0) + one.value
        return Buckets(tuple(sorted(found.items())))


@dataclass(frozen=True, slots=True)
class Buckets:
    """A cumulative histogram: (upper bound, how many values are not above it), by bound."""

    counts: tuple[tuple[float, float], ...] = ()

    @property
    def count(self) -> int:
        """All values."""
        return int(self.counts[-1][1]) if self.counts else 0

    def minus(self, earlier: Buckets) -> Buckets:
        """Return what was added since `earlier`; everything, if that had other bounds or was larger."""
        if len(earlier.counts) != len(self.counts) or earlier.count > self.count:
            return self
        pairs = zip(self.counts, earlier.counts, strict=True)
        return Buckets(tuple((bound, max(0.0, now - then)) for (bound, now), (_, then) in pairs))

    def quantile(self, share: float) -> float | None:
        """Return the value that `share` of all values do not exceed, interpolated within its bucket; None if empty.

        Beyond the last finite bound that bound is returned.
        """
        if not self.count:
            return None
        wanted = share * self.count
        low, below = 0.0, 0.0
        for bound, count in self.counts:
            if count >= wanted and count > below:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (wanted - below) / (count - below)
            low, below = (low if math.isinf(bound) else bound), count
        return low


def rate(now: float, then: float, seconds: float) -> float | None:
    """Return how much a counter grew a second; None if it began anew or no time went by."""
    return (now - then) / seconds if seconds > 0 and now >= then else None


def slope(points: Iterable[tuple[float, float]]) -> float | None:
    """Return how much y changes with x, by least squares over (x, y); None with fewer than two different x."""
    known = list(points)
    count = len(known)
    if count < 2:
        return None
    middle_x = math.fsum(x for x, _ in known) / count
    middle_y = math.fsum(y for _, y in known) / count
    spread = math.fsum((x - middle_x) ** 2 for x, _ in known)
    if spread == 0:
        return None
    return math.fsum((x - middle_x) * (y - middle_y) for x, y in known) / spread
