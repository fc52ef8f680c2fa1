"""A run's results: as a page for a file or for locust's web interface, and as lines for a terminal."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Results: TypeAlias = Mapping[str, Any]
"""Results as `locustfile.results` returns them. The command adds `audit`."""

WIDTH, HEIGHT = 880, 150
COLORS = ("#1f6feb", "#d1242f")
BUSY_SHARE = 0.9
"""A process of locust that is busier than this is late itself, and the times contain that."""
STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; max-width: 920px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { padding: 3px 10px; text-align: right }
th { border-bottom: 2px solid #888 } td:first-child, th:first-child { text-align: left }
tr:nth-child(even) { background: #f3f5f7 } .bad { color: #b00020; font-weight: 600 } .good { color: #19702e }
svg { background: #fafbfc; border: 1px solid #ddd; display: block } h2 { font-size: 1.1em; margin: 1.4em 0 .4em }
"""


def page(results: Results, *, refresh_s: int = 0) -> str:
    """Return a page that needs nothing from elsewhere."""
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8">{refresh}<title>Load test</title>',
        f"<style>{STYLE}</style><h1>Load test</h1>",
        '<p><a href="/">locust</a></p>' if refresh_s else "",
        f"<p>{html.escape(_headline(results))}</p>",
        *[f'<p class="{kind}">{html.escape(text)}</p>' for kind, text in _verdicts(results)],
        "<h2>Requests</h2>",
        _table(results),
        *_errors(results),
        *_charts(results),
        *_faults(results),
    ]
    return "\n".join(parts)


def lines(results: Results) -> list[str]:
    """Return what a terminal shows."""
    shown = [_headline(results), "", _row(HEADS)]
    shown += [_row(_cells(kind, result, results)) for kind, result in results["requests"].items()]
    errors = results["errors"]
    if errors:
        shown += ["", "failed requests"]
        shown += [f"{count:8,}  {kind}: {error}" for kind, error, count in errors]
    marks = {"good": "ok   ", "bad": "BAD  ", "": "     "}
    return [*shown, "", *[marks[kind] + text for kind, text in _verdicts(results)]]


HEADS = (
    "request",
    "per second",
    "MB/s",
    "p50 µs",
    "p90 µs",
    "p99 µs",
    "p99.9 µs",
    "max µs",
    "failed",
)


def _row(cells: Sequence[str]) -> str:
    return f"{cells[0]:22}" + "".join(f"{cell:>12}" for cell in cells[1:])


def _headline(results: Results) -> str:
    processes = results["processes"]
    return (
        f"{results['users']} users, {results['seconds']:.0f} s, {processes} process{'es' * (processes > 1)}"
        f"{', shape ' + results['shape'] if results['shape'] else ''}"
    )


def _cells(kind: str, one: Mapping[str, int], results: Results) -> tuple[str, ...]:
    seconds = max(1e-9, results["seconds"])
    times = [f"{one[key]:,}" for key in ("p50_us", "p90_us", "p99_us", "p999_us", "max_us")]
    rate, mb_per_s = one["count"] / seconds, one["size_bytes"] / seconds / 1e6
    return (kind, f"{rate:,.1f}", f"{mb_per_s:,.1f}", *times, f"{one['failures']:,}")


def _verdicts(results: Results) -> list[tuple[str, str]]:
    """Return (class, text) of each finding."""
    verdicts = [("good" if is_met else "bad", text) for text, is_met in results["thresholds"]]
    if results["ramp"]:
        verdicts.append(("", results["ramp"]))
    if results["processor_share"] > BUSY_SHARE:
        text = (
            f"locust's busiest process used {results['processor_share']:.0%} of a processor: "
            "the times contain its own queue. Use more PROCESSES or fewer USERS."
        )
        verdicts.append(("bad", text))
    audit = results.get("audit")
    if audit is not None:
        text = (
            f"read back: {audit['entries']:,} acknowledged entries of {audit['ledgers']:,} ledgers and streams, "
            f"{audit['lost']:,} lost"
        )
        verdicts.append(("bad" if audit["lost"] else "good", text))
        verdicts += [("bad", loss) for loss in audit["losses"]]
    return verdicts


def _table(results: Results) -> str:
    rows = ["<tr>" + "".join(f"<th>{head}</th>" for head in HEADS) + "</tr>"]
    for kind, result in results["requests"].items():
        cells = [f"<td>{html.escape(cell)}</td>" for cell in _cells(kind, result, results)]
        if result["failures"]:
            cells[-1] = cells[-1].replace("<td>", '<td class="bad">')
        rows.append("<tr>" + "".join(cells) + "</tr>")
    return "<table>" + "".join(rows) + "</table>"


def _errors(results: Results) -> list[str]:
    if not results["errors"]:
        return []
    items = [
        f"<li>{count:,} × {html.escape(kind)}: {html.escape(error)}</li>"
        for kind, error, count in results["errors"]
    ]
    return ["<h2>Failed requests</h2><ul>", *items, "</ul>"]


@dataclass(frozen=True)
class Scale:
    """The axes of a chart."""

    begin_s: float
    end_s: float
    top: float
    is_log: bool = False

    def x(self, at_s: float) -> float:
        """Return where a time is."""
        return (at_s - self.begin_s) / max(1e-9, self.end_s - self.begin_s) * WIDTH

    def y(self, value: float) -> float:
        """Return where a value is."""
        share = (
            math.log10(max(1.0, value)) / math.log10(self.top) if self.is_log else value / self.top
        )
        return HEIGHT - share * (HEIGHT - 20)

    def ticks(self) -> list[float]:
        """Return the values that have a line: powers of ten, or the half and all."""
        if self.is_log:
            return [10.0**power for power in range(1, int(math.log10(self.top)) + 1)]
        return [self.top / 2, self.top]


def _charts(results: Results) -> list[str]:
    slots = results["slots"][:-1]  # the last one is not whole
    if len(slots) < 2:
        return []
    begin_s, end_s = slots[0]["at_s"], slots[-1]["at_s"] + results["slot_s"]
    drawn = [
        _chart(results, title, Scale(begin_s, end_s, _top(slots, keys), is_log), keys)
        for title, keys, is_log in (
            ("Requests a second", ("per_s",), False),
            ("Latency of all requests, µs: p50 blue, p99 red", ("p50_us", "p99_us"), True),
            ("Failed requests a second", ("failures_per_s",), False),
        )
        if keys != ("failures_per_s",) or any(slot["failures_per_s"] for slot in slots)
    ]
    levels = [(at_s, users) for at_s, users in results["levels"] if at_s < end_s]
    if len(levels) > 1:
        scale = Scale(begin_s, end_s, max(users for _, users in levels))
        stairs = [(begin_s, 0), *levels, (end_s, levels[-1][1])]
        points = [
            point
            for (_, before), (at_s, users) in itertools.pairwise(stairs)
            for point in ((max(at_s, begin_s), before), (max(at_s, begin_s), users))
        ]
        drawn.append(_svg(results, "Users", scale, _polyline(points, scale, COLORS[0])))
    return drawn


def _top(slots: Sequence[Mapping[str, float]], keys: Sequence[str]) -> float:
    return max([slot[key] for slot in slots for key in keys] + [1])


def _chart(results: Results, title: str, scale: Scale, keys: Sequence[str]) -> str:
    paths = "".join(
        _polyline([(slot["at_s"], slot[key]) for slot in results["slots"][:-1]], scale, color)
        for key, color in zip(keys, COLORS, strict=False)
    )
    return _svg(results, title, scale, paths)


def _svg(results: Results, title: str, scale: Scale, paths: str) -> str:
    ticks = "".join(
        f'<line x1="0" x2="{WIDTH}" y1="{scale.y(tick):.1f}" y2="{scale.y(tick):.1f}" stroke="#ddd"/>'
        f'<text x="4" y="{scale.y(tick) - 3:.1f}" font-size="11" fill="#666">{tick:,.0f}</text>'
        for tick in scale.ticks()
    )
    return (
        f'<h2>{title}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{title}">'
        f"{ticks}{_marks(results, scale)}{paths}"
        f'<text x="{WIDTH - 4}" y="{HEIGHT + 15}" font-size="11" fill="#666" text-anchor="end">'
        f"{scale.end_s - scale.begin_s:,.0f} s</text></svg>"
    )


def _polyline(points: Sequence[tuple[float, float]], scale: Scale, color: str) -> str:
    placed = " ".join(f"{scale.x(at_s):.1f},{scale.y(value):.1f}" for at_s, value in points)
    return f'<polyline points="{placed}" fill="none" stroke="{color}" stroke-width="2"/>'


def _marks(results: Results, scale: Scale) -> str:
    """Return a dashed line for each fault, with its number in the list below."""
    drawn = []
    for number, (at_s, text) in enumerate(results["faults"], 1):
        if scale.begin_s <= at_s <= scale.end_s:
            x = f"{scale.x(at_s):.1f}"
            drawn.append(
                f'<line x1="{x}" x2="{x}" y1="0" y2="{HEIGHT}" stroke="#bf8700" stroke-dasharray="4 3">'
                f"<title>{html.escape(text)}</title></line>"
                f'<text x="{x}" y="{HEIGHT + 15}" font-size="11" fill="#7d5a00" text-anchor="middle">{number}</text>'
            )
    return "".join(drawn)


def _faults(results: Results) -> list[str]:
    faults = results["faults"]
    if not faults:
        return []
    begin_s = results["began_s"]
    items = [f"<li>{at_s - begin_s:.1f} s: {html.escape(text)}</li>" for at_s, text in faults]
    return ["<h2>Faults</h2><p>The charts have a dashed line for each.</p><ol>", *items, "</ol>"]
