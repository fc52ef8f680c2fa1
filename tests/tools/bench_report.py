"""What `./dev bench` has measured: kept as JSON, and shown as text and as a page with charts."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path

Figures = dict[str, float]

COLUMNS = {
    "per_s": ("a second", ",.0f"),
    "mb_per_s": ("MB/s", ",.0f"),
    "p50_us": ("p50 µs", ",.1f"),
    "p99_us": ("p99 µs", ",.0f"),
    "p999_us": ("p99.9 µs", ",.0f"),
    "bookie_us": ("bookie CPU µs", ".2f"),
    "client_us": ("client CPU µs", ".2f"),
    "memory_mb": ("bookie MB", ",.0f"),
    "disk_p50_us": ("disk p50 µs", ",.1f"),
}
"""What a figure is called and how it is written. CPU is an entry's; memory is proportional."""
RATIOS = ("per_s", "p50_us", "bookie_us")
WORTH_SAYING = 5.0
"""Above it an append waits for so much else that a lone commit says nothing of it."""
SPREAD = ("per_s", "p50_us")


@dataclass
class Run:
    """Case → system → the figures of each round."""

    seconds_each: float
    machine: str = field(default_factory=lambda: f"{os.cpu_count()} processors, Linux {platform.release()}")
    cases: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Run:
        """Return what a run has written that was cut off, or is over."""
        return Run(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Replace the file."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.replace(path)

    def add(self, case: str, system: str, figures: Figures) -> None:
        self.cases.setdefault(case, {}).setdefault(system, []).append(figures)

    def has(self, case: str, system: str, number: int) -> bool:
        """Whether this round of a system is there."""
        return len(self.cases.get(case, {}).get(system, ())) > number


def median(rounds: list[Figures], name: str) -> float | None:
    """Return the median of a figure; None where a system has none."""
    values = [one[name] for one in rounds if name in one]
    return statistics.median(values) if values else None


def shown(rounds: list[Figures], name: str) -> str:
    """Return a figure's median as text, with its range where that matters."""
    found = median(rounds, name)
    if found is None:
        return ""
    how = COLUMNS[name][1]
    values = [one[name] for one in rounds if name in one]
    spread = f" ({min(values):{how}}…{max(values):{how}})" if name in SPREAD and len(values) > 1 else ""
    return f"{found:{how}}{spread}"


def ratio(these: list[Figures], others: list[Figures], name: str) -> float | None:
    """Return the median over the pairs of a round of this system's figure over another's."""
    pairs = [(one.get(name), other.get(name)) for one, other in zip(these, others, strict=False)]
    found = [one / other for one, other in pairs if one is not None and other]
    return statistics.median(found) if found else None


def rows_of(systems: dict[str, list[Figures]]) -> list[list[str]]:
    """Return a row of titles, and one for each system: its name and its figures, as text; no column is empty."""
    names = [name for name in COLUMNS if any(name in one for rounds in systems.values() for one in rounds)]
    titles = ["", *(COLUMNS[name][0] for name in names)]
    return [titles, *([system, *(shown(rounds, name) for name in names)] for system, rounds in systems.items())]


def ratios_of(systems: dict[str, list[Figures]]) -> list[str]:
    """Return what the first system is of each other one."""
    (first, these), *others = systems.items()
    lines = []
    for system, rounds in others:
        found = {name: ratio(these, rounds, name) for name in RATIOS}
        parts = [f"{COLUMNS[name][0]} {value:.3f}" for name, value in found.items() if value is not None]
        lines.append(f"{first} / {system}: {', '.join(parts)}")
    of_disk = [one["p50_us"] / one["disk_p50_us"] for one in these if one.get("disk_p50_us")]
    if of_disk and statistics.median(of_disk) < WORTH_SAYING:
        lines.append(f"{first} / its disk's 4 KiB commit: p50 {statistics.median(of_disk):.2f}")
    return lines


def table(run: Run) -> str:
    """Return the report as text."""
    lines = []
    for case, systems in run.cases.items():
        rows = rows_of(systems)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines.append(case)
        for name, *cells in rows:
            lines.append("  ".join([f"  {name:<{widths[0]}}", *map("{:>{}}".format, cells, widths[1:])]))
        lines += [f"  {line}" for line in ratios_of(systems)]
    return "\n".join(lines)


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
h2{font-size:1.1rem;margin:2rem 0 .3rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .8rem .2rem 0;text-align:right;white-space:nowrap}th{font-weight:600;color:#555}
th:first-child,td:first-child{text-align:left}p{margin:.3rem 0;color:#555}.scroll{overflow-x:auto}
text{font:13px system-ui,sans-serif;fill:#1a1a1a}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#e6e6e6}th,p{color:#aaa}text{fill:#e6e6e6}}"""
COLOURS = ("#2f6fd0", "#d98324", "#6a8f3a", "#8a5fbf")
BAR_WIDTH, BAR_HEIGHT = 460, 22


def chart(systems: dict[str, list[Figures]], name: str) -> str:
    """Return bars of one figure, a system each, as SVG; nothing where fewer than two have it."""
    values = {system: found for system, rounds in systems.items() if (found := median(rounds, name)) is not None}
    if len(values) < 2:
        return ""
    title, how = COLUMNS[name]
    most = max(values.values()) or 1.0
    parts = [f'<text x="0" y="14">{escape(title)}</text>']
    for at, (system, value) in enumerate(values.items()):
        y, width = 22 + at * BAR_HEIGHT, BAR_WIDTH * value / most
        parts.append(
            f'<text x="0" y="{y + 13}">{escape(system)}</text>'
            f'<rect x="130" y="{y}" width="{width:.1f}" height="16" fill="{COLOURS[at % len(COLOURS)]}"/>'
            f'<text x="{138 + width:.1f}" y="{y + 13}">{value:{how}}</text>'
        )
    height = 26 + len(values) * BAR_HEIGHT
    return f'<svg width="720" height="{height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def page(run: Run) -> str:
    """Return the report as one HTML file that needs nothing else."""
    parts = []
    for case, systems in run.cases.items():
        head, *body = (
            "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row)
            for kind, row in zip(["th", *["td"] * len(systems)], rows_of(systems), strict=True)
        )
        parts.append(
            f"<h2>{escape(case)}</h2>{chart(systems, 'per_s')}{chart(systems, 'p50_us')}"
            f'<div class="scroll"><table><tr>{head}</tr>{"".join(f"<tr>{row}</tr>" for row in body)}</table></div>'
            + "".join(f"<p>{escape(line)}</p>" for line in ratios_of(systems))
        )
    rounds = max((len(one) for systems in run.cases.values() for one in systems.values()), default=0)
    said = (
        f"{run.machine}; {rounds} rounds of {run.seconds_each:g} s, all systems in turn. Medians, with the least and"
        " the most in brackets; ratios are medians over the pairs of a round. Processor time is an entry's; memory is"
        " the bookie's proportional set."
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>fastbk: dev bench</title>'
        f"<style>{STYLE}</style><h1>./dev bench</h1><p>{escape(said)}</p>{''.join(parts)}</html>\n"
    )
