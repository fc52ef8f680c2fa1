"""A run of `./dev bench` as text: a table for each case, systems below each other, ratios behind it."""

from __future__ import annotations

import statistics

from tools.benchmark.run import (
    COLUMNS,
    RATIOS,
    SPREAD,
    Figures,
    Run,
    median,
    pairs,
    quartiles,
    ratio,
)

WORTH_SAYING = 5.0
"""Above it an append waits for so much else that a lone commit says nothing of it."""
MANY_PAIRS = 10
"""From so many on the spread is of the middle half: among many rounds there is always an odd one."""


def shown(rounds: list[Figures], name: str) -> str:
    """Return a figure's median as text, with its spread where that matters."""
    found = median(rounds, name)
    if found is None:
        return ""
    how = COLUMNS[name][1]
    values = [one[name] for one in rounds if name in one]
    if name not in SPREAD or len(values) < 2:
        return f"{found:{how}}"
    low, high = quartiles(values) if len(values) >= MANY_PAIRS else (min(values), max(values))
    return f"{found:{how}} ({low:{how}}…{high:{how}})"


def rows_of(systems: dict[str, list[Figures]]) -> list[list[str]]:
    """Return a row of titles, and one for each system: its name and its figures, as text; no column is empty."""
    names = [
        name
        for name in COLUMNS
        if any(name in one for rounds in systems.values() for one in rounds)
    ]
    titles = ["", *(COLUMNS[name][0] for name in names)]
    return [
        titles,
        *([system, *(shown(rounds, name) for name in names)] for system, rounds in systems.items()),
    ]


def ratios_of(systems: dict[str, list[Figures]]) -> list[str]:
    """Return what the first system is of each other one."""
    (first, these), *others = systems.items()
    lines = []
    for system, rounds in others:
        found = {name: ratio(these, rounds, name) for name in RATIOS}
        parts = [
            f"{COLUMNS[name][0]} {value:.3f}" for name, value in found.items() if value is not None
        ]
        if parts:
            lines.append(f"{first} / {system}: {', '.join(parts)}{spread_of(these, rounds)}")
    of_disk = pairs(these, these, "p50_us", "disk_p50_us")
    if of_disk and statistics.median(of_disk) < WORTH_SAYING:
        lines.append(f"{first} / its disk's 4 KiB commit: p50 {statistics.median(of_disk):.2f}")
    return lines


def spread_of(these: list[Figures], others: list[Figures]) -> str:
    """Return between which ratios of p50 the middle half of many pairs lies; "" for few."""
    found = pairs(these, others, "p50_us")
    if len(found) < MANY_PAIRS:
        return ""
    low, high = quartiles(found)
    return f"; of {len(found)} pairs half have p50 {low:.3f}…{high:.3f}"


def table(run: Run) -> str:
    """Return the report as text."""
    lines = []
    for case, systems in run.cases.items():
        rows = rows_of(systems)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines.append(case)
        for name, *cells in rows:
            lines.append(
                "  ".join([f"  {name:<{widths[0]}}", *map("{:>{}}".format, cells, widths[1:])])
            )
        lines += [f"  {line}" for line in ratios_of(systems)]
    return "\n".join(lines)
