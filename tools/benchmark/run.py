"""What `./dev bench` has measured: case → system → the figures of each round, kept as JSON; medians and ratios."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

Figures = dict[str, float]

COLUMNS = {
    "per_s": ("a second", ",.0f"),
    "mb_per_s": ("MB/s", ",.0f"),
    "p50_us": ("p50 µs", ",.1f"),
    "p99_us": ("p99 µs", ",.0f"),
    "p999_us": ("p99.9 µs", ",.0f"),
    "tail_p50_us": ("tail read p50 µs", ",.1f"),
    "tail_p99_us": ("tail read p99 µs", ",.0f"),
    "reads_per_s": ("reads a second", ",.0f"),
    "read_p50_us": ("read p50 µs", ",.1f"),
    "read_p99_us": ("read p99 µs", ",.0f"),
    "behind_mb_per_s": ("compacted MB/s", ",.1f"),
    "create_p50_us": ("create p50 µs", ",.0f"),
    "close_p50_us": ("close p50 µs", ",.0f"),
    "open_p50_us": ("open p50 µs", ",.0f"),
    "recover_p50_us": ("recover p50 µs", ",.0f"),
    "recover_dead_p50_us": ("with a dead bookie, p50 µs", ",.0f"),
    "first_write_s": ("first write s", ".2f"),
    "bookie_us": ("bookie CPU µs", ".2f"),
    "client_us": ("client CPU µs", ".2f"),
    "bookie_cpu_s": ("bookie CPU s", ".2f"),
    "memory_mb": ("bookie MB", ",.0f"),
    "disk_bytes": ("bytes to disk a byte", ".2f"),
    "ahead_mb": ("written ahead MB", ",.0f"),
    "kept_share": ("journal kept as logs", ".2f"),
    "disk_p50_us": ("disk p50 µs", ",.1f"),
    "c_p50_us": ("in C p50 µs", ",.1f"),
    "behind_c_us": ("behind C µs", ",.1f"),
}
"""What a figure is called and how it is written. CPU in µs is an entry's (a ledger's, where ledgers are created);
memory is proportional. Of three bookies, both are those of all three."""
RATIOS = (
    "per_s", "p50_us", "p999_us", "tail_p50_us", "reads_per_s", "create_p50_us", "close_p50_us", "open_p50_us",
    "recover_p50_us", "first_write_s", "bookie_us", "memory_mb", "disk_bytes",
)  # fmt: skip
SPREAD = ("per_s", "p50_us", "p999_us", "tail_p50_us", "reads_per_s", "first_write_s", "mb_per_s")
DIGITS = 5
"""Digits of a figure that count."""


@dataclass
class Run:
    """Case → system → the figures of each round.

    Attributes:
        commit, against: what was measured: this tree's commit, and the other's.
    """

    seconds_each: float
    machine: str = field(
        default_factory=lambda: f"{os.cpu_count()} processors, Linux {platform.release()}"
    )
    commit: str = ""
    against: str = ""
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))
    cases: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Run:
        """Return what a run has written that was cut off, or is over."""
        return Run(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Replace the file."""
        fresh = path.with_suffix(".new")
        text = json.dumps(asdict(self), indent=1)
        # A round a line: the file is kept in the tree, and read there.
        fresh.write_text(
            re.sub(r"\{[^{}]*\}", lambda one: re.sub(r"\s+", " ", one[0]), text) + "\n"
        )
        fresh.replace(path)

    def add(self, case: str, system: str, figures: Figures) -> None:
        """Append the figures of a round, rounded."""
        rounded = {name: float(f"{value:.{DIGITS}g}") for name, value in figures.items()}
        self.cases.setdefault(case, {}).setdefault(system, []).append(rounded)

    def has(self, case: str, system: str, number: int) -> bool:
        """Whether this round of a system is there."""
        return len(self.cases.get(case, {}).get(system, ())) > number

    def of(self, case: str, system: str) -> list[Figures]:
        """Return the rounds of a system; [] where it was not measured."""
        return self.cases.get(case, {}).get(system, [])


def median(rounds: list[Figures], name: str) -> float | None:
    """Return the median of a figure; None where a system has none."""
    values = [one[name] for one in rounds if name in one]
    return statistics.median(values) if values else None


def pairs(
    these: list[Figures], others: list[Figures], name: str, other_name: str = ""
) -> list[float]:
    """Return this system's figure over another's, round by round."""
    found = [
        (one.get(name), other.get(other_name or name))
        for one, other in zip(these, others, strict=False)
    ]
    return [one / other for one, other in found if one is not None and other]


def ratio(these: list[Figures], others: list[Figures], name: str) -> float | None:
    """Return the median over the pairs of a round of this system's figure over another's."""
    found = pairs(these, others, name)
    return statistics.median(found) if found else None


def quartiles(values: list[float]) -> tuple[float, float]:
    """Return between which values the middle half lies; of fewer than four, all."""
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = statistics.quantiles(values, n=4)
    return first, third
