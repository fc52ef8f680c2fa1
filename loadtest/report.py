"""A run's results: as a page for a file or for locust's web interface, and as lines for a terminal."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Results: TypeAlias = Mapping[str, Any]
"""As `locustfile.results` returns it. The command adds `audit`."""

WIDTH, HEIGHT = 880, 150
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
    shown += [_row(_cells(kind, one, results)) for kind, one in results["requests"].items()]
    errors = results["errors"]
    if errors:
        shown += ["", "failed requests"]
        shown += [f"{count:8,}  {kind}: {error}" for kind, error, count in errors]
    marks = {"good": "ok   ", "bad": "BAD  ", "": "     "}
    return [*shown, "", *[marks[kind] + text for kind, text in _verdicts(results)]]


HEADS = (
    "request",
    "a second",
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
    found = [("good" if is_met else "bad", text) for text, is_met in results["thresholds"]]
    if results["ramp"]:
        found.append(("", results["ramp"]))
    if results["processor_share"] > BUSY_SHARE:
        text = (
            f"locust's busiest process used {results['processor_share']:.0%} of a processor: "
            "the times contain its own queue. Use more PROCESSES or fewer USERS."
        )
        found.append(("bad", text))
    audit = results.get("audit")
    if audit is not None:
        text = f"read back: {audit['entries']:,} acknowledged entries, {audit['lost']:,} lost"
        found.append(("bad" if audit["lost"] else "good", text))
        found += [("bad", loss) for loss in audit["losses"]]
    return found


def _table(results: Results) -> str:
    rows = ["<tr>" + "".join(f"<th>{head}</th>" for head in HEADS) + "</tr>"]
    for kind, one in results["requests"].items():
        cells = [f"<td>{html.escape(cell)}</td>" for cell in _cells(kind, one, results)]
        if one["failures"]:
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


def _charts(results: Results) -> list[str]:
    slots = results["slots"]
    if len(slots) < 2:
        return []
    begin_s, end_s = slots[0]["at_s"], slots[-1]["at_s"] + results["slot_s"]
    marks = [(at_s, text) for at_s, text in results["faults"] if begin_s <= at_s <= end_s]
    drawn = []
    for title, keys in (
        ("Requests a second", ("per_s",)),
        ("Latency of all requests, µs: p50 blue, p99 red", ("p50_us", "p99_us")),
        ("Failed requests a second", ("failures_per_s",)),
    ):
        top = max([slot[key] for slot in slots for key in keys] + [1])
        paths = "".join(
            _polyline([(slot["at_s"], slot[key]) for slot in slots], begin_s, end_s, top, color)
            for key, color in zip(keys, ("#1f6feb", "#d1242f"), strict=False)
        )
        drawn.append(
            f'<h2>{title}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{title}">'
            f"{_marks(marks, begin_s, end_s)}{paths}"
            f'<text x="4" y="14" font-size="12" fill="#555">{top:,.0f}</text>'
            f'<text x="{WIDTH - 4}" y="{HEIGHT + 15}" font-size="12" fill="#555" text-anchor="end">'
            f"{end_s - begin_s:,.0f} s</text></svg>"
        )
    return drawn


def _x(at_s: float, begin_s: float, end_s: float) -> float:
    return (at_s - begin_s) / max(1e-9, end_s - begin_s) * WIDTH


def _polyline(
    points: list[tuple[float, float]], begin_s: float, end_s: float, top: float, color: str
) -> str:
    placed = " ".join(
        f"{_x(at_s, begin_s, end_s):.1f},{HEIGHT - value / top * (HEIGHT - 20):.1f}"
        for at_s, value in points
    )
    return f'<polyline points="{placed}" fill="none" stroke="{color}" stroke-width="2"/>'


def _marks(marks: list[tuple[float, str]], begin_s: float, end_s: float) -> str:
    return "".join(
        f'<line x1="{_x(at_s, begin_s, end_s):.1f}" x2="{_x(at_s, begin_s, end_s):.1f}" y1="0" y2="{HEIGHT}" '
        f'stroke="#bf8700" stroke-dasharray="4 3"><title>{html.escape(text)}</title></line>'
        for at_s, text in marks
    )


def _faults(results: Results) -> list[str]:
    faults = results["faults"]
    if not faults:
        return []
    begin_s = results["began_s"]
    items = [f"<li>{at_s - begin_s:.1f} s: {html.escape(text)}</li>" for at_s, text in faults]
    return ["<h2>Faults</h2><p>Dashed lines in the charts.</p><ol>", *items, "</ol>"]
