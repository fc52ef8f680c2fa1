"""The common look of our charts: PNGs of bars and lines that can be read without their text, by the colour-blind too.

Drawn with matplotlib's objects and Agg only: no window, no state that two threads would share, no fonts of the machine.
Needs the extra `charts`.

    page = sheet("What the cluster holds", "3 bookies", heights=(bars_inches(2), LINES_INCHES))
    bars(page.panels[0], "By namespace", {"shop": 7 << 30, "billing": 1 << 30}, unit="B")
    lines(page.panels[1], "Growth", {"shop": [(when, 5 << 30), (later, 7 << 30)]}, unit="B")
    page.save(Path("usage.png"))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, os_errors_as
from fastbk.safe_files import replaced
from fastbk.spark.jobs.usage import Usage
from fastbk.units import format_amount, format_count, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

try:
    from matplotlib import dates
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter
except ModuleNotFoundError as _error:
    raise ConfigError(
        f"charts need the package {_error.name}: pip install 'fastbk[charts]'"
    ) from None


COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F")
"""Okabe and Ito's, which stay apart for all kinds of colour-blindness; its yellow is too faint on white."""
OTHERS, OTHERS_COLOUR = "(others)", "#9AA0A6"
INK, FAINT, GRID = "#202124", "#5F6368", "#E3E5E8"
FONT = "DejaVu Sans"  # comes with matplotlib: the same picture on every machine
WIDTH_INCHES, DPI = 10.0, 150
HEAD_INCHES, AROUND_INCHES, BAR_INCHES, LINES_INCHES = 0.95, 0.85, 0.32, 2.8
LABEL_MAX = 36
"""Characters of a label; the middle of a longer one is left out."""
TICKS_MAX = 6


@dataclass(frozen=True, slots=True)
class Page:
    """A figure with panels from top to bottom."""

    figure: Figure
    panels: tuple[Axes, ...]

    def save(self, path: Path) -> None:
        """Write the PNG, whole or not at all; the same numbers give the same bytes. Raises ConfigError."""
        with (
            os_errors_as(ConfigError, f"the chart cannot be written to {path}"),
            replaced(path) as draft,
        ):
            self.figure.savefig(draft, format="png", dpi=DPI, metadata={"Software": None})


def sheet(title: str, subtitle: str = "", *, heights: Sequence[float] = (LINES_INCHES,)) -> Page:
    """Return a page with a panel for each of `heights`, in inches: `bars_inches(n)` or LINES_INCHES."""
    height = HEAD_INCHES + sum(one + AROUND_INCHES for one in heights)
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    below_head = (0.015, 0.01, 0.965, 1 - HEAD_INCHES / height - 0.01)
    figure.set_layout_engine("constrained", rect=below_head, h_pad=0.12, hspace=0.04)
    for text, down, size, colour, weight in (
        (title, 0.36, 17, INK, "bold"),
        (subtitle, 0.7, 10.5, FAINT, "normal"),
    ):
        figure.text(
            0.02, 1 - down / height, text,
            fontsize=size, color=colour, weight=weight, family=FONT, va="center", parse_math=False,
        )  # fmt: skip
    made = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return Page(figure, tuple(made[:, 0]))


def bars_inches(count: int) -> float:
    """Return the height of a panel with `count` bars."""
    return max(2, count) * BAR_INCHES


def bars(
    panel: Axes,
    title: str,
    amounts: Mapping[str, float | Mapping[str, float]],
    *,
    unit: str,
    colour: int = 0,
) -> None:
    """Draw a bar for each label, from top to bottom as they are given, with its amount behind it.

    `amounts`: label -> amount, not below 0; or label -> (series -> amount) for bars of parts, with a legend.
    `unit`: "B" and "B/s" are shown with binary prefixes, "" and anything else with decimal ones.
    """
    labels = list(amounts)
    rows = [amount if isinstance(amount, Mapping) else {"": amount} for amount in amounts.values()]
    series = list(dict.fromkeys(name for row in rows for name in row))
    ends = [0.0] * len(rows)
    for number, name in enumerate(series):
        parts = [row.get(name, 0.0) for row in rows]
        shade = colour_of(name, number + colour)
        panel.barh(range(len(rows)), parts, 0.66, left=ends, color=shade)
        ends = [end + part for end, part in zip(ends, parts, strict=True)]
    top = max(ends, default=0.0)
    for index, end in enumerate(ends):
        panel.annotate(
            text_of(end, unit), (end, index), (5, 0), textcoords="offset points",
            va="center", fontsize=9, color=INK, family=FONT,
        )  # fmt: skip
    panel.set_yticks(range(len(rows)), [shortened(label) for label in labels], parse_math=False)
    panel.set_ylim(max(len(rows), 2) - 0.4, -0.6)
    panel.set_xlim(0, (top or 1) * 1.14)  # room for the last number
    _amounts_on(panel.xaxis, top, unit)
    _plain(panel, title, unit, grid="x")
    panel.tick_params(axis="y", labelsize=9.5, labelcolor=INK, length=0)
    if series not in ([], [""]):
        _legend(panel, series)


def lines(
    panel: Axes,
    title: str,
    series: Mapping[str, Sequence[tuple[datetime | float, float]]],
    *,
    unit: str,
    along: str = "",
    stacked: bool = False,
) -> None:
    """Draw a line for each series of (time or number, amount), by rising times; times are shown in UTC.

    `along`: what numbers on the horizontal axis are. `stacked`: areas on each other; all series have the same times.
    """
    top, is_dated, floor = 0.0, False, [0.0] * max(map(len, series.values()), default=0)
    for number, (name, points) in enumerate(series.items()):
        when: list[float] = []
        for at, _ in points:
            is_dated |= isinstance(at, datetime)
            when.append(
                float(dates.date2num(at.astimezone(UTC))) if isinstance(at, datetime) else at
            )
        shade, amounts = colour_of(name, number), [amount for _, amount in points]
        if stacked:
            ends = [low + amount for low, amount in zip(floor, amounts, strict=True)]
            panel.fill_between(when, floor, ends, color=shade, alpha=0.9, linewidth=0)
            floor, amounts = ends, ends
        else:
            marker = "o" if len(points) < 40 else ""
            panel.plot(
                when, amounts, color=shade, linewidth=2, marker=marker, markersize=4, label=name
            )
        top = max(top, *amounts, 0.0)
    if is_dated:
        locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
        panel.xaxis.get_offset_text().set(fontsize=9, color=FAINT, family=FONT)
    panel.set_xlabel(along, fontsize=9, color=FAINT, family=FONT)
    panel.margins(x=0.01)
    panel.set_ylim(0, (top or 1) * 1.06)
    _amounts_on(panel.yaxis, top, unit)
    _plain(panel, title, unit, grid="y")
    if len(series) > 1:
        _legend(panel, list(series))


def colour_of(name: str, number: int) -> str:
    """Return the colour of the series `name`, which is the `number`th: grey for what is left over."""
    return OTHERS_COLOUR if name == OTHERS else COLOURS[number % len(COLOURS)]


def largest(amounts: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the `count` largest, falling, and the sum of all the rest as OTHERS."""
    ordered = sorted(amounts.items(), key=lambda one: (-one[1], one[0]))
    kept = dict(ordered[:count])
    if rest := ordered[count:]:
        kept[OTHERS] = sum(amount for _, amount in rest)
    return kept


def ticks_of(top: float, unit: str) -> list[float]:
    """Return round places on an axis from 0 to `top`: powers of two for bytes, else 1, 2, 5 of each power of ten."""
    if top <= 0:
        return [0.0]
    if _is_bytes(unit):
        step = 2.0 ** max(0, math.ceil(math.log2(top / TICKS_MAX)))
    else:
        power = 10.0 ** math.floor(math.log10(top / TICKS_MAX))
        step = next(
            one * power for one in (1, 2, 5, 10) if one * power * TICKS_MAX >= top * 0.999_999
        )
    return [index * step for index in range(math.floor(top / step * 1.000_001) + 1)]


def text_of(amount: float, unit: str) -> str:
    """Return an amount with its unit (`1.5 GiB`, `20 MiB/s`, `3.2 k rows`)."""
    if _is_bytes(unit):
        return f"{format_size(round(amount))}{unit[1:]}"
    number = format_amount(amount)
    return f"{number} {unit}" if unit else number


def shortened(label: str) -> str:
    """Return the label, its middle left out if it is long: both ends of a path say something."""
    if len(label) <= LABEL_MAX:
        return label
    half = (LABEL_MAX - 1) // 2
    return f"{label[: LABEL_MAX - 1 - half]}…{label[-half:]}"


def _is_bytes(unit: str) -> bool:
    return unit in ("B", "B/s")


def _amounts_on(axis: Axis, top: float, unit: str) -> None:
    axis.set_major_locator(FixedLocator(ticks_of(top, unit)))
    plain = unit if _is_bytes(unit) else ""  # others have it in the title
    axis.set_major_formatter(
        FuncFormatter(lambda amount, _: text_of(amount, plain).replace(".0 ", " "))
    )


def _plain(panel: Axes, title: str, unit: str, *, grid: str) -> None:
    shown = title if _is_bytes(unit) or not unit else f"{title}, {unit}"
    panel.set_title(shown, loc="left", fontsize=12, color=INK, family=FONT, weight="bold", pad=9)
    for side in ("top", "right", "left" if grid == "y" else "bottom"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(FAINT)
    panel.set_axisbelow(True)
    panel.grid(visible=True, axis="x" if grid == "x" else "y", color=GRID, linewidth=0.9)
    panel.tick_params(labelsize=9, labelcolor=FAINT, labelfontfamily=FONT, color=GRID, length=3)


def _legend(panel: Axes, names: Sequence[str]) -> None:
    # Handed over: matplotlib passes by what is called "_name" if it looks for itself.
    drawn = panel.lines or panel.collections or panel.containers
    made = panel.legend(
        list(drawn), [shortened(name) for name in names], loc="lower right", bbox_to_anchor=(1.0, 1.0),
        ncols=8, frameon=False, borderaxespad=0.2, handlelength=1.0, columnspacing=1.2,
        prop={"family": FONT, "size": 9},
    )  # fmt: skip
    for text in made.get_texts():
        text.set_parse_math(False)


# --- the picture of a cluster's usage -------------------------------------------------------------

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
