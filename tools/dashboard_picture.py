"""A dashboard of `monitoring/grafana` as a picture: each panel where its JSON has it, with what its queries find.

Matplotlib draws it. It stands for Grafana's own picture where none can be made; Grafana's looks different.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.dates import DateFormatter, MinuteLocator
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator
from PIL import Image

COLUMNS = 24
WIDTH_INCHES, ROW_INCHES, DPI = 15.0, 0.33, 90
TITLE_INCHES = 0.55
GAP_INCHES = 0.10
PALETTE = (
    "#2f6fb7",
    "#d9731a",
    "#3a8f4d",
    "#b3405a",
    "#7a5bb0",
    "#8a6d3b",
    "#0d8f8f",
    "#c2459a",
    "#6b7a00",
    "#555f6b",
)
INK, FAINT, PAPER, GROUND, GOOD, BAD = (
    "#20252b",
    "#69727d",
    "#ffffff",
    "#eef0f3",
    "#2b8a3e",
    "#c92a2a",
)
FRAME, GRID, AXIS = "#d5d9de", "#e6e9ed", "#c4c9d0"
SHADES = 5
"""Shades of each colour in the file, down to paper: text and lines need no more, and the file is a third as large."""
LEGEND_LINES, LEGEND_COLUMNS, LEGEND_NAME_MAX = 2, 3, 21
"""Longer names get two columns."""
TICKS_MAX, TIMES_MAX = 4, 6
STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
TIMES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
MINUTE_STEPS_S = (60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0)


class Line(NamedTuple):
    """A series: its name in the legend, moments in seconds since 1970, values."""

    name: str
    at_s: list[float]
    values: list[float]


Fetch = Callable[[str], list[tuple[dict[str, str], list[tuple[float, float]]]]]
"""Expression -> labels, and moments with values, of each series."""


def draw(path: Path, fetch: Fetch, target: Path, title: str) -> None:
    """Draw the dashboard in `path`; `title` stands above it."""
    dashboard = json.loads(path.read_text())
    panels = dashboard["panels"]
    rows = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels)
    height_inches = rows * ROW_INCHES + TITLE_INCHES
    mpl.rcParams.update(
        {"font.size": 8, "text.color": INK, "axes.labelcolor": INK, "timezone": "UTC"}
    )
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DPI, facecolor=GROUND)
    top = 1 - TITLE_INCHES / 2 / height_inches
    figure.text(
        GAP_INCHES / WIDTH_INCHES, top, dashboard["title"], size=14, weight="bold", va="center"
    )
    figure.text(
        1 - GAP_INCHES / WIDTH_INCHES, top, title, size=8.5, color=FAINT, va="center", ha="right"
    )
    for panel in panels:
        _draw_panel(figure, panel, list(_lines(panel, fetch)), height_inches)
    raw = io.BytesIO()
    figure.savefig(raw, format="png", facecolor=GROUND)
    Image.open(raw).convert("RGB").quantize(palette=_palette(), dither=Image.Dither.NONE).save(
        target, optimize=True
    )


def _palette() -> Image.Image:
    """Return the colours of the file: ours, each mixed with paper and the ground's."""
    values: list[int] = []
    for colour in (*PALETTE, INK, FAINT, GOOD, BAD):
        parts = [round(255 * part) for part in to_rgb(colour)]
        values += [
            255 + (part - 255) * shade // SHADES for shade in range(1, SHADES + 1) for part in parts
        ]
    for colour in (PAPER, GROUND, FRAME, GRID, AXIS):
        values += [round(255 * part) for part in to_rgb(colour)]
    image = Image.new("P", (1, 1))
    image.putpalette(values)
    return image


def _lines(panel: dict[str, Any], fetch: Fetch) -> Iterator[Line]:
    """Yield the series of all queries of a panel, those without a number left out."""
    for target in panel["targets"]:
        for labels, points in fetch(target["expr"]):
            # every other one is a label's name
            parts = re.split(r"\{\{(\w+)\}\}", target["legendFormat"])
            name = "".join(
                labels.get(part, "") if at % 2 else part for at, part in enumerate(parts)
            )
            values = [value for _, value in points]
            if any(not math.isnan(value) for value in values):
                yield Line(" ".join(name.split()), [at_s for at_s, _ in points], values)


def _draw_panel(
    figure: Figure, panel: dict[str, Any], lines: list[Line], height_inches: float
) -> None:
    place = panel["gridPos"]
    left, width = place["x"] / COLUMNS, place["w"] / COLUMNS
    top_inches = TITLE_INCHES + place["y"] * ROW_INCHES
    panel_inches = place["h"] * ROW_INCHES
    gap_x, gap_y = GAP_INCHES / 2 / WIDTH_INCHES, GAP_INCHES / 2 / height_inches
    bottom = 1 - (top_inches + panel_inches) / height_inches
    frame = figure.add_axes(
        (left + gap_x, bottom + gap_y, width - 2 * gap_x, panel_inches / height_inches - 2 * gap_y),
        facecolor=PAPER,
    )
    frame.set(xticks=[], yticks=[])
    for side in frame.spines.values():
        side.set_color(FRAME)
    inner_inches = panel_inches - GAP_INCHES
    frame.text(0.012 * COLUMNS / place["w"] / 3, 1 - 0.15 / inner_inches, panel["title"], weight="bold", va="center",
               transform=frame.transAxes)  # fmt: skip
    if panel["type"] == "stat":
        _draw_stat(frame, panel, lines)
        return
    width_inches = WIDTH_INCHES * width - GAP_INCHES
    legend_inches = 0.155 * min(math.ceil(len(lines) / _legend_columns(lines)), LEGEND_LINES) + 0.08
    left_inches = 0.78 if panel["fieldConfig"]["defaults"].get("mappings") else 0.62
    box = frame.inset_axes((
        left_inches / width_inches,
        (legend_inches + 0.24) / inner_inches,
        1 - (left_inches + 0.14) / width_inches,
        1 - (legend_inches + 0.24 + 0.36) / inner_inches,
    ))  # fmt: skip
    _draw_series(box, panel, lines)


def _legend_columns(lines: list[Line]) -> int:
    return (
        LEGEND_COLUMNS
        if all(len(line.name) <= LEGEND_NAME_MAX for line in lines)
        else LEGEND_COLUMNS - 1
    )


def _draw_stat(frame: Axes, panel: dict[str, Any], lines: list[Line]) -> None:
    """Write the last number, as Grafana does; red from its threshold on."""
    defaults = panel["fieldConfig"]["defaults"]
    numbers = [value for line in lines for value in line.values if not math.isnan(value)]
    if not numbers:
        frame.text(
            0.5,
            0.42,
            "no data",
            size=13,
            color=FAINT,
            ha="center",
            va="center",
            transform=frame.transAxes,
        )
        return
    steps = defaults.get("thresholds", {}).get("steps", [])
    alarm = next((step["value"] for step in steps if step["value"] is not None), math.inf)
    colour = BAD if numbers[-1] >= alarm else GOOD
    text = number_text(numbers[-1], defaults["unit"])
    frame.text(
        0.5, 0.42, text, size=24, color=colour, ha="center", va="center", transform=frame.transAxes
    )


def _draw_series(box: Axes, panel: dict[str, Any], lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    box.set_facecolor(PAPER)
    box.grid(axis="y", color=GRID, linewidth=0.7)
    box.set_axisbelow(True)
    for name, side in box.spines.items():
        side.set_visible(name == "bottom")
        side.set_color(AXIS)
    box.tick_params(colors=FAINT, length=0, labelsize=7.5)
    if not lines:
        box.text(
            0.5, 0.5, "no data", color=FAINT, ha="center", va="center", transform=box.transAxes
        )
        box.set(xticks=[], yticks=[])
        return
    for number, line in enumerate(lines):
        days = [at_s / 86_400 for at_s in line.at_s]
        colour = PALETTE[number % len(PALETTE)]
        style = "-" if number < len(PALETTE) else "--"
        box.plot(
            days, line.values, style, color=colour, linewidth=1.1, label=line.name or panel["title"]
        )
    mappings = [one["options"] for one in defaults.get("mappings", [])]
    texts = {int(value): text["text"] for one in mappings for value, text in one.items()}
    highest = max(value for line in lines for value in line.values if math.isfinite(value))
    if texts:
        shown = [value for value in texts if value <= max(highest, 1)]
        box.set_yticks(shown, [texts[value] for value in shown])
        box.set_ylim(-0.1, max(shown) + 0.3)
    else:
        box.set_ylim(0, highest * 1.12 or 1)
        step = _step(highest, defaults["unit"])
        tens = MaxNLocator(TICKS_MAX + 1, integer=defaults["unit"] == "none")
        box.yaxis.set_major_locator(MultipleLocator(step) if step else tens)
        box.yaxis.set_major_formatter(lambda value, _: number_text(value, defaults["unit"]))
    moments_s = [at_s for line in lines for at_s in line.at_s]
    minutes = (max(moments_s) - min(moments_s)) / 60
    box.xaxis.set_major_locator(MinuteLocator(interval=max(1, math.ceil(minutes / TIMES_MAX))))
    box.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    box.margins(x=0)
    handles, names = box.get_legend_handles_labels()
    columns = _legend_columns(lines)
    count = columns * LEGEND_LINES
    if len(names) > count:
        names[count - 1] = f"and {len(names) - count + 1} more"
    box.legend(
        handles[:count], names[:count], loc="upper left", bbox_to_anchor=(-0.06, -0.11), ncols=columns,
        frameon=False, fontsize=7, handlelength=1.1, columnspacing=1.0, borderpad=0.1, labelspacing=0.25,
    )  # fmt: skip


def _step(highest: float, unit: str) -> float:
    """Return the distance of ticks where tens would be odd; 0: they are not."""
    if unit == "bytes" and highest > 0:
        return float(2 ** math.ceil(math.log2(highest / TICKS_MAX)))
    if unit == "s" and highest > TIMES[-1][0]:
        return next((step for step in MINUTE_STEPS_S if highest / step <= TICKS_MAX), 0.0)
    return 1.0 if unit == "none" and highest <= TICKS_MAX else 0.0


def number_text(value: float, unit: str) -> str:
    """Return a number with the unit that Grafana calls by this name."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return _seconds_text(value)
    steps = BINARY if unit == "bytes" else STEPS
    end = {"bytes": "B", "Bps": "B/s", "ops": "/s"}.get(unit, "")
    for size, letter in steps:
        if abs(value) >= size:
            end = letter if unit == "bytes" else letter + end
            return f"{value / size:.3g} {end}"
    if value == 0:
        return "0"
    return f"{value:.3g} {end}".strip()


def _seconds_text(value: float) -> str:
    if value == 0:
        return "0"
    for size, letter in TIMES:
        if value >= (2 if size > TIMES[-1][0] else 1) * size:
            return f"{value / size:.3g} {letter}"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
