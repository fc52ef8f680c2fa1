"""The picture of a cluster's usage: bytes by namespace, by bookie, and how they grew."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from fastbk.spark.charts import LINES_INCHES, OTHERS, bars, bars_inches, largest, lines, sheet
from fastbk.spark.jobs.usage import Usage
from fastbk.units import format_count, format_size

NAMESPACES_MAX, BOOKIES_MAX = 12, 24
SERIES_MAX = 5
"""Namespaces with a colour of their own."""


def draw(usage: Usage, path: Path) -> None:
    """Write the PNG. Raises ConfigError."""
    every = {namespace.name: float(namespace.bytes) for namespace in usage.namespaces}
    if rest := usage.total.bytes - sum(every.values()):
        every[OTHERS] = every.get(OTHERS, 0.0) + rest
    coloured = [name for name in every if name != OTHERS][:SERIES_MAX]
    by_size = sorted(usage.bookies, key=lambda bookie: (-bookie.bytes, bookie.name))[:BOOKIES_MAX]
    bookies = {
        one.name: parts_of(one.parts, coloured) for one in sorted(by_size, key=lambda one: one.name)
    }
    namespaces = _others_last(largest(every, NAMESPACES_MAX))
    held = sum(bookie.bytes for bookie in usage.bookies)
    page = sheet(
        f"Usage: {format_size(usage.total.bytes)}, {format_size(held)} in all copies",
        f"{usage.taken:%-d %B %Y, %H:%M} UTC, {format_count(usage.total.ledgers, 'ledger')} ({usage.total.open:,} open:"
        f" their bytes are not counted), {format_count(len(usage.bookies), 'bookie')}",
        heights=(bars_inches(len(namespaces)), bars_inches(len(bookies)), LINES_INCHES),
    )
    bars(page.panels[0], "By namespace, one copy", namespaces, unit="B")
    which = "" if len(by_size) == len(usage.bookies) else f", the {BOOKIES_MAX} fullest"
    bars(page.panels[1], f"By bookie{which}, estimated", bookies, unit="B")
    how = "by snapshots" if usage.is_by_snapshots else "by when ledgers were made"
    lines(page.panels[2], f"Growth, {how}", growth_of(usage, coloured), unit="B", stacked=True)
    page.save(path)


def growth_of(usage: Usage, names: list[str]) -> dict[str, list[tuple[datetime | float, float]]]:
    """Return each series' points, all at the same times; up to the time of the run."""
    history = list(usage.history)
    if history and history[-1][0] < usage.taken:
        history.append((usage.taken, history[-1][1]))
    found: dict[str, list[tuple[datetime | float, float]]] = {}
    for when, some in history:
        for name, size in parts_of(some, names, always=True).items():
            found.setdefault(name, []).append((when, size))
    return {name: points for name, points in found.items() if any(size for _, size in points)}


def parts_of(
    sizes: Mapping[str, int], names: list[str], *, always: bool = False
) -> dict[str, float]:
    """Return the sizes of `names`, and of all that have no colour of their own; `always`: also of none."""
    found = {name: float(sizes.get(name, 0)) for name in names}
    rest = float(sum(sizes.values())) - sum(found.values())
    return found | ({OTHERS: rest} if rest or always else {})


def _others_last(amounts: dict[str, float]) -> dict[str, float]:
    rest = amounts.pop(OTHERS, None)
    return amounts if rest is None else amounts | {OTHERS: rest}
