"""What `./dev bench openloop` has measured, as text and as a page with the chart of latency against load."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import Any

from tools.benchmark.page import STYLE, html_table
from tools.open_loop import REACHED, Figures

Rows = list[list[str]]
LATENCIES = {"p50_us": "p50", "p99_us": "p99", "p999_us": "p99.9"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 360, 76, 60, 28, 44
COLOURS = ("#2f6fd0", "#d98324", "#6a8f3a")
LABEL_HEIGHT = 15
BAR_HEIGHT, BAR_LEFT, BAR_WIDTH = 24, 290, 420
DONE = {
    "flushes": "{:,.0f} flushes",
    "merges": "{:,.0f} merges",
    "scrub_mb": "{:,.0f} MB scrubbed",
    "compacted_mb": "{:,.0f} MB compacted",
    "gc_cycles": "{:,.0f} gc cycles",
    "gc_deleted": "{:,.0f} ledgers deleted",
    "caught_up_mb": "{:,.0f} MB of history read",
}


def values(rounds: Sequence[Figures], name: str) -> list[float]:
    return [one[name] for one in rounds if name in one]


def middle(rounds: Sequence[Figures], name: str) -> float:
    return statistics.median(values(rounds, name) or [0.0])


def span(rounds: Sequence[Figures], name: str) -> str:
    """Return the median, and between what it lies."""
    found = values(rounds, name)
    return f"{statistics.median(found):,.0f} ({min(found):,.0f}…{max(found):,.0f})"


def common(rounds: Sequence[Figures]) -> list[str]:
    """Return the cells that all tables have."""
    stolen, slices = sum(values(rounds, "stolen")), sum(values(rounds, "slices"))
    return [
        f"{middle(rounds, 'p50_us'):,.0f}",
        f"{middle(rounds, 'p99_us'):,.0f}",
        span(rounds, "p999_us"),
        f"{middle(rounds, 'max_us'):,.0f}",
        f"{middle(rounds, 'bookie_us'):.2f}",
        f"{middle(rounds, 'memory_mb'):,.0f}",
        f"{stolen:.0f} of {slices:.0f}",
    ]


COMMON = [
    "p50 µs",
    "p99 µs",
    "p99.9 µs (least…most)",
    "max µs",
    "bookie CPU µs",
    "bookie MB",
    "slices with steal",
]


def disk_in(part: dict[str, Any]) -> str:
    """Return what the disk alone did between the measurements."""
    disk = part["disk_us"]
    return (
        f" The disk alone, in between: p50 {disk['p50']:,.0f} µs, p99.9 {disk['p999']:,.0f} µs for a durable write"
        " of 4 KiB."
    )


def rates_table(part: dict[str, Any]) -> Rows:
    """Return a row for each rate; one that was not reached says which was."""
    rows = [["appends a second", "reached", *COMMON]]
    for rate, rounds in part["rates"].items():
        share = middle(rounds, "per_s") / int(rate)
        reached = "yes" if share >= REACHED else f"{share:.0%}"
        mark = "  ← knee" if int(rate) == part["knee_per_s"] else ""
        rows.append([f"{int(rate):,}{mark}", reached, *common(rounds)])
    return rows


def done_in(rounds: Sequence[Figures]) -> str:
    """Return what the background work did in a round, and in how many rounds not all of it did something."""
    did = [
        text.format(middle(rounds, key)) for key, text in DONE.items() if middle(rounds, key) > 0
    ]
    if missed := sum(one.get("ran") == 0 for one in rounds):
        did.append(f"NOT ALL OF IT RAN in {missed} of {len(rounds)} rounds")
    return ", ".join(did)


def work_table(part: dict[str, Any]) -> Rows:
    """Return a row for each work: latencies, their ratio to those without any, and what it did in a round."""
    rows = [
        ["background work", *COMMON, "p99.9 to nothing", "tail read p99 µs", "what it did, a round"]
    ]
    base = next(iter(part["works"].values()))
    for name, rounds in part["works"].items():
        pairs = [
            one["p999_us"] / other["p999_us"] for one, other in zip(rounds, base, strict=False)
        ]
        tail = f"{middle(rounds, 'tail_p99_us'):,.0f}"
        rows.append(
            [name, *common(rounds), f"{statistics.median(pairs):.2f}", tail, done_in(rounds)]
        )
    return rows


def apache_table(part: dict[str, Any]) -> Rows:
    """Return a row for each system, and what the first one's p99.9 is of its."""
    rows = [["", "a second", *COMMON, "samples", "p99.9: this tree ÷ it", "what it did, a round"]]
    ours = next(iter(part["systems"].values()))
    for name, rounds in part["systems"].items():
        pairs = [mine["p999_us"] / one["p999_us"] for mine, one in zip(ours, rounds, strict=False)]
        is_ours = rounds is ours
        rows.append(
            [name, f"{middle(rounds, 'per_s'):,.0f}", *common(rounds), f"{sum(values(rounds, 'samples')):,.0f}",
             "" if is_ours else f"{statistics.median(pairs):.3f} ({min(pairs):.3f}…{max(pairs):.3f})", done_in(rounds)]
        )  # fmt: skip
    return rows


def parts_of(found: dict[str, Any]) -> list[tuple[str, str, Rows]]:
    """Return title, explanation and table of each part that was measured."""
    parts = []
    if part := found.get("knee"):
        said = (
            f"Knee: {part['knee_per_s']:,} a second, {part['knee_per_s'] / part['peak_per_s']:.0%} of the closed loop's"
            f" peak of {part['peak_per_s']:,}. It is the highest rate that, with all below it, was reached in full and"
            " has a p99 of at most five times that of the lowest rate."
        )
        parts.append(("Latency against load", said + disk_in(part), rates_table(part)))
    if part := found.get("work"):
        said = f"{part['rate_per_s']:,} appends a second; every 16th entry is read as soon as it is acknowledged."
        parts.append(("During background work", said + disk_in(part), work_table(part)))
    if part := found.get("apache"):
        peaks = ", ".join(f"{name} {peak:,.0f}" for name, peak in part["peaks"].items())
        said = f"{part['rate_per_s']:,} appends a second, 80 % of what Apache's bookie sustains ({peaks})."
        parts.append(("Beside Apache's tuned bookie", said + disk_in(part), apache_table(part)))
    return parts


def table(found: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = []
    for title, said, rows in parts_of(found):
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [title, f"  {said}"]
        for name, *cells in rows:
            lines.append(
                "  ".join([f"  {name:<{widths[0]}}", *map("{:>{}}".format, cells, widths[1:])])
            )
    return "\n".join(lines)


# --- the page ---------------------------------------------------------------------------------------------------


def duration(value_us: float) -> str:
    """Return a latency as an axis has it."""
    return f"{value_us / 1000:.3g} ms" if value_us >= 1000 else f"{value_us:g} µs"


def curve(part: dict[str, Any]) -> str:
    """Return latency against load as SVG: logarithmic upwards; the knee is a line."""
    rates = [int(rate) for rate in part["rates"]]
    every = [middle(rounds, name) for rounds in part["rates"].values() for name in LATENCIES]
    low = math.floor(math.log10(max(1.0, min(every))))
    high = math.ceil(math.log10(max(10.0, *every)))
    most = max(rates)

    def x_of(rate: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * rate / most

    def y_of(value_us: float) -> float:
        share = (math.log10(max(value_us, 10**low)) - low) / max(1, high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = []
    for power in range(low, high + 1):
        y = y_of(10**power)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{duration(10.0**power)}</text>'
        )
    step = 10 ** math.floor(math.log10(most)) / (
        2 if most < 3 * 10 ** math.floor(math.log10(most)) else 1
    )
    for number in range(int(most / step) + 1):
        x = x_of(number * step)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number * step:,.0f}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">appends a second</text>'
    )
    if part["knee_per_s"]:
        x = x_of(part["knee_per_s"])
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#888" stroke-dasharray="5 4"/>'
            f'<text x="{x:.1f}" y="{TOP - 8}" text-anchor="middle">knee</text>'
        )
    label_y = float(HEIGHT)
    for colour, (name, title) in zip(COLOURS, LATENCIES.items(), strict=False):
        points = [
            (x_of(int(rate)), y_of(middle(rounds, name))) for rate, rounds in part["rates"].items()
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points
        )
        x, y = points[-1]
        label_y = min(y, label_y - LABEL_HEIGHT)  # upwards, since each is above the one before
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'
            f'<text x="{x + 8:.1f}" y="{label_y + 4:.1f}" style="fill:{colour}">{title}</text>'
        )
    return svg(WIDTH, HEIGHT, "latency against load", parts)


def bars(found: dict[str, list[Figures]]) -> str:
    """Return p99.9 as bars; the thin line goes from the least to the most of the rounds."""
    most = max((max(values(rounds, "p999_us")) for rounds in found.values()), default=1.0) or 1.0
    parts = ['<text x="0" y="14">p99.9</text>']
    for at, (name, rounds) in enumerate(found.items()):
        y, value, each = 22 + at * BAR_HEIGHT, middle(rounds, "p999_us"), values(rounds, "p999_us")
        width, least, last = (BAR_WIDTH * one / most for one in (value, min(each), max(each)))
        parts.append(
            f'<text x="0" y="{y + 13}">{escape(name)}</text>'
            f'<rect x="{BAR_LEFT}" y="{y}" width="{width:.1f}" height="16" class="this"/>'
            f'<line x1="{BAR_LEFT + least:.1f}" x2="{BAR_LEFT + last:.1f}" y1="{y + 8}" y2="{y + 8}" stroke="#888"'
            f' stroke-width="2"/><text x="{BAR_LEFT + 8 + last:.1f}" y="{y + 13}">{duration(round(value))}</text>'
        )
    return svg(BAR_LEFT + BAR_WIDTH + 90, 26 + len(found) * BAR_HEIGHT, "p99.9", parts)


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" style="max-width:100%" role="img"'
        f' aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def page(found: dict[str, Any]) -> str:
    """Return the report as one HTML file that needs nothing else."""
    charts = {
        "Latency against load": curve(found["knee"]) if "knee" in found else "",
        "During background work": bars(found["work"]["works"]) if "work" in found else "",
        "Beside Apache's tuned bookie": bars(found["apache"]["systems"])
        if "apache" in found
        else "",
    }
    parts = []
    for title, said, rows in parts_of(found):
        parts.append(
            f"<h2>{escape(title)}</h2><p>{escape(said)}</p>{charts[title]}{html_table(rows)}"
        )
    said = (
        f"{found['machine']}, {found['date']}; one bookie, entries of 1 KiB; {found['rounds']} rounds of"
        f" {found['seconds_each']:g} s at each rate, twice that during work, in turn. Latency runs from each append's"
        " intended start. Medians of the rounds. Slices of a second with stolen processor time do not count."
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>fastbk: dev bench openloop</title>'
        f"<style>{STYLE}</style><h1>./dev bench openloop</h1><p>{escape(said)}</p>{''.join(parts)}</html>\n"
    )
