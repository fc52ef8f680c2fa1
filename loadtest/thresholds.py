"""Thresholds of a run: `append small: p99 < 50ms; *: failures < 0.1%; stream append: rate > 100`.

`*` is each kind of request that was made. Times have `us`, `ms` or `s`; failures are a number or a share; a rate is
requests a second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.latency import Latency

_FORM = re.compile(
    r"(?P<kind>[^:]+):\s*(?P<figure>p50|p90|p99|p99\.9|max|failures|rate)\s*(?P<sign>[<>])\s*"
    r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>us|µs|ms|s|%)?"
)
_US = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class Threshold:
    """One bound. `limit` is in microseconds, a share, requests a second or a count, as `unit` says."""

    text: str
    kind: str
    figure: str
    is_upper: bool
    limit: float
    is_share: bool = False

    def value(self, latency: Latency, seconds: float) -> float:
        """Return the figure that is bounded."""
        if self.figure == "rate":
            return latency.count / seconds
        if self.figure == "failures":
            made = latency.count + latency.failures
            return latency.failures / made if self.is_share and made else latency.failures
        if self.figure == "max":
            return latency.max_us
        return latency.percentile_us(float(self.figure[1:]))

    def is_met_by(self, value: float) -> bool:
        """Return whether the value is on the right side."""
        return value < self.limit if self.is_upper else value > self.limit

    def written(self, value: float) -> str:
        """Return a value of its figure as people write it."""
        if self.figure == "rate":
            return f"{value:,.0f}/s"
        if self.figure == "failures":
            return f"{value:.3%}" if self.is_share else f"{value:,.0f}"
        return f"{value:,.0f} µs"


@dataclass(frozen=True)
class Verdict:
    """What became of a threshold for one kind of request."""

    threshold: Threshold
    kind: str
    value: float | None
    """None: no such request was made."""

    @property
    def is_met(self) -> bool:
        """Whether the bound was kept."""
        return self.value is not None and self.threshold.is_met_by(self.value)

    def __str__(self) -> str:
        found = "none was made" if self.value is None else self.threshold.written(self.value)
        return f"{self.kind}: {self.threshold.text.partition(':')[2].strip()}: {found}"


def parse(text: str) -> list[Threshold]:
    """Return the thresholds of a text. Raises ValueError that says which part is wrong."""
    return [_threshold(part.strip()) for part in text.split(";") if part.strip()]


def _threshold(text: str) -> Threshold:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no threshold: write it as `append small: p99 < 50ms`")
    figure, unit, limit = match["figure"], match["unit"], float(match["number"])
    is_time = figure not in ("failures", "rate")
    if is_time != (unit in _US) or (unit == "%" and figure != "failures"):
        raise ValueError(f"{text!r}: {figure} is {'a time, as 50ms' if is_time else 'no time'}")
    if unit is not None:
        limit *= _US.get(unit, 0.01)
    return Threshold(text, match["kind"].strip(), figure, match["sign"] == "<", limit, unit == "%")


def summary(verdicts: list[Verdict]) -> list[tuple[str, bool]]:
    """Return (text, whether it is met) of each threshold; of one for all kinds the kinds that broke it."""
    found = []
    for threshold in dict.fromkeys(verdict.threshold for verdict in verdicts):
        of_it = [verdict for verdict in verdicts if verdict.threshold == threshold]
        broken = [one for one in of_it if not one.is_met]
        if threshold.kind == "*" and not broken:
            found.append((f"{threshold.text}: {len(of_it)} kinds of requests", True))
        else:
            found += [(str(one), one.is_met) for one in broken or of_it]
    return found


def judged(
    thresholds: Sequence[Threshold], totals: Mapping[str, Latency], seconds: float
) -> list[Verdict]:
    """Return what became of each threshold, for each kind that it is about."""
    verdicts = []
    for threshold in thresholds:
        for kind in totals if threshold.kind == "*" else [threshold.kind]:
            latency = totals.get(kind)
            value = None if latency is None else threshold.value(latency, seconds)
            verdicts.append(Verdict(threshold, kind, value))
    return verdicts
