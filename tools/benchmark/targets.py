"""What fastbk is to reach, as ratios of one run and as figures; and whether a run reached it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.benchmark import cases
from tools.benchmark.apache import TUNED
from tools.benchmark.cases import Case
from tools.benchmark.redis_streams import NAME as REDIS
from tools.benchmark.run import Run, median, pairs, quartiles
from tools.benchmark.systems import CHAIN, PINNED, THIS

BASE = "676fec0"
"""The commit before this work: what "today" was."""


@dataclass(frozen=True)
class Found:
    """What a run says of a target: the median, and between which values the middle half lies (few: all)."""

    value: float
    low: float
    high: float


Find = Callable[[Run], Found | None]
"""None: the run did not measure it."""


@dataclass(frozen=True)
class Target:
    """A limit; `is_least`: the figure is to be at least that, else at most."""

    name: str
    limit: float
    find: Find
    is_least: bool = False
    unit: str = "×"
    why_not: str = ""
    """Where no run of this command measures it: what does."""

    def row(self, run: Run) -> list[str]:
        """Return name, target, measured, verdict."""
        target = f"{'≥' if self.is_least else '≤'} {self.limit:g} {self.unit}"
        found = None if self.why_not else self.find(run)
        if found is None:
            return [self.name, target, "", self.why_not or "not in this run"]
        is_met = found.value >= self.limit if self.is_least else found.value <= self.limit
        spread = f" ({short(found.low)}…{short(found.high)})" if found.low != found.high else ""
        return [self.name, target, f"{short(found.value)}{spread}", "met" if is_met else "missed"]


def short(value: float) -> str:
    """Return a figure with three digits that count, or whole."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def of_values(values: Sequence[float]) -> Found | None:
    """Return the median and the spread."""
    return Found(statistics.median(values), *quartiles(list(values))) if values else None


def over(case: Case, figure: str, *others: str, least: bool = False) -> Find:
    """Return this tree's figure over that of another system, pair by pair; of several, the one that is best.

    least: more is better, so that the best of the others is the one with the least ratio.
    """

    def find(run: Run) -> Found | None:
        these = run.of(case.name, THIS)
        found = [of_values(pairs(these, run.of(case.name, other), figure)) for other in others]
        known = [one for one in found if one is not None]
        if not known:
            return None
        return (min if least else max)(known, key=lambda one: one.value)

    return find


def figure(case: Case, name: str) -> Find:
    """Return this tree's figure itself."""
    return lambda run: of_values([one[name] for one in run.of(case.name, THIS) if name in one])


def over_own(
    case: Case, name: str, other: Case | None, other_name: str, system: str = THIS
) -> Find:
    """Return a figure over another of the same system; `other`: of another case, by medians; None: pair by pair."""

    def find(run: Run) -> Found | None:
        these = run.of(case.name, system)
        if other is None:
            return of_values(pairs(these, these, name, other_name))
        base = median(run.of(other.name, system), other_name)
        return of_values([one[name] / base for one in these]) if base and these else None

    return find


def rate_over(name: str, limit: float, case: Case, *others: str) -> Target:
    """Return a target for this tree's entries a second over those of the fastest of some systems."""
    return Target(name, limit, over(case, "per_s", *others, least=True), is_least=True)


def none(_: Run) -> Found | None:
    """Return nothing."""
    return None


W1, W100, W1000 = cases.WINDOW_1, cases.WINDOW_100, cases.WINDOW_1000
MANY = cases.CONNECTIONS_1000
TARGETS = (
    Target("window 1: p50 ÷ chain", 1.10, over(W1, "p50_us", CHAIN)),
    Target(
        "window 1: p50 ÷ disk, with processors and spin",
        1.75,
        over_own(W1, "p50_us", None, "disk_p50_us", PINNED),
    ),
    Target("window 1: p50 ÷ Apache tuned", 0.7, over(W1, "p50_us", *TUNED)),
    Target("window 1: p50 ÷ Redis", 0.9, over(W1, "p50_us", REDIS)),
    rate_over("window 100: adds a second ÷ Apache tuned", 5, W100, *TUNED),
    Target("window 100: bookie CPU an entry", 1.5, figure(W100, "bookie_us"), unit="µs"),
    Target("window 100: p50 ÷ that of window 1", 1.5, over_own(W100, "p50_us", W1, "p50_us")),
    Target(
        "window 1,000: adds ÷ those without index",
        0.85,
        none,
        is_least=True,
        why_not="needs a bookie without index",
    ),
    Target("window 1,000: bookie CPU an entry", 1.3, figure(W1000, "bookie_us"), unit="µs"),
    rate_over("window 1,000, stretch: adds a second ÷ Apache tuned", 5, W1000, *TUNED),
    Target(
        "window 1,000, stretch: bookie CPU an entry", 1.0, figure(W1000, "bookie_us"), unit="µs"
    ),
    rate_over(f"1,000 connections: adds a second ÷ {BASE}", 2, MANY, BASE),
    rate_over("1,000 connections: adds a second ÷ Apache tuned", 4, MANY, *TUNED),
    Target(
        "1,000 connections: system calls an add",
        2,
        none,
        unit="",
        why_not="./dev bench costs counts them",
    ),
    rate_over(
        "client library, E3/Qw3/Qa2, window 1,000 ÷ Apache's", 5, cases.REPLICATED_1000, *TUNED
    ),
    Target(
        "client library, window 1: p50 behind C",
        40,
        figure(cases.BESIDE_C, "behind_c_us"),
        unit="µs",
    ),
    Target(
        "p99.9, open loop ÷ Apache tuned", 0.2, none, why_not="./dev bench openloop measures it"
    ),
    Target("memory at window 1,000", 250, figure(W1000, "memory_mb"), unit="MB"),
    rate_over("reads, hot, batch ÷ Apache tuned", 4, cases.BATCH_HOT, *TUNED),
    rate_over("reads, hot, singly ÷ Apache tuned", 5, cases.SINGLE_HOT, *TUNED),
    rate_over("reads, cold, batch ÷ Apache tuned", 5, cases.BATCH_COLD, *TUNED),
    Target(
        "stream into Arrow", 1000, figure(cases.TO_ARROW, "mb_per_s"), is_least=True, unit="MB/s"
    ),
    Target("first write after kill -9", 0.3, figure(cases.RESTART, "first_write_s"), unit="s"),
)


def rows_of_targets(run: Run) -> list[list[str]]:
    """Return a row of titles, and one for each target."""
    return [["target", "wanted", "measured", ""], *(target.row(run) for target in TARGETS)]


def targets_table(run: Run) -> str:
    """Return the targets as text."""
    rows = rows_of_targets(run)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
