"""The tables of README.md and docs/performance.md that show a run of `./dev bench`, which docs/benchmark.json keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import ROOT
from tools.benchmark import cases
from tools.benchmark.apache import CONFIGURATIONS, PROTOCOLS, TUNED
from tools.benchmark.redis_streams import NAME as REDIS
from tools.benchmark.run import Figures, Run, median, ratio
from tools.benchmark.systems import CHAIN, DISK, PINNED, THIS, TWICE
from tools.benchmark.targets import rows_of_targets

KEPT = ROOT / "docs/benchmark.json"
"""The run that the pages show."""
PAGES = (ROOT / "README.md", ROOT / "docs/performance.md")
PLACE = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
APACHE = tuple(f"Apache {name}, {protocol}" for name in CONFIGURATIONS for protocol in PROTOCOLS)
FEWER_IS_BETTER = ("p50_us", "p999_us", "bookie_us", "first_write_s", "disk_bytes")
LOADS = {case.name: case.load for case in cases.CASES}


@dataclass(frozen=True)
class Row:
    """A row: what is said, and which figure of which case it has."""

    text: str
    case: str
    figure: str = "per_s"


def number(value: float | None, figure: str) -> str:
    """Return a figure as a table has it: three digits count."""
    if value is None:
        return "–"
    if figure == "disk_bytes":
        return f"{value:.2f}"
    if figure in ("bookie_us", "first_write_s") or value < 10:
        return f"{value:.2f}" if value < 10 else f"{value:,.1f}"
    if value < 1000:
        return f"{value:.0f}"
    digits = 3 - len(str(int(value)))
    return f"{round(value, digits):,.0f}"


def best(run: Run, row: Row, systems: Sequence[str]) -> tuple[float, list[Figures]] | None:
    """Return the median and the rounds of that system which is best."""
    found = [(value, rounds) for system in systems
             if (value := median(rounds := run.of(row.case, system), row.figure)) is not None]  # fmt: skip
    if not found:
        return None
    return (min if row.figure in FEWER_IS_BETTER else max)(found, key=lambda one: one[0])


def cell(run: Run, row: Row, *systems: str) -> str:
    """Return the best median of some systems as text."""
    found = best(run, row, systems)
    return number(found[0] if found else None, row.figure)


def times(run: Run, row: Row, systems: Sequence[str], figure: str = "") -> str:
    """Return this tree's figure over that of the best of some systems, pair by pair."""
    found = best(run, row, systems)
    value = ratio(run.of(row.case, THIS), found[1], figure or row.figure) if found else None
    return "–" if value is None else f"{value:.2f}"


def measured(run: Run, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose figure this tree has."""
    return [row for row in rows if median(run.of(row.case, THIS), row.figure) is not None]


def is_sustained(case: str) -> bool:
    """Return whether a case's load goes on until everything is written that a bookie writes later."""
    load = LOADS.get(case)
    return isinstance(load, cases.Append) and load.seconds_min > 0


def before(run: Run, case: str) -> list[str]:
    """Return the name of the other commit in a case, if it was measured there."""
    known = {THIS, CHAIN, TWICE, DISK, PINNED, REDIS, *APACHE}
    names = [name for name in run.cases[case] if name not in known and not name.startswith(THIS)]
    return names[:1]


def markdown(rows: list[list[str]]) -> str:
    """Return a table; nothing where it has no rows."""
    titles, *body = rows
    if not body:
        return ""
    lines = [titles, ["---"] * len(titles), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


README_ROWS = (
    Row("1 append in flight, µs", cases.WINDOW_1.name, "p50_us"),
    Row("100 in flight, appends a second", cases.WINDOW_100.name),
    Row("1,000 in flight, appends a second", cases.WINDOW_1000.name),
    Row("bookie's processor time for each of them, µs", cases.WINDOW_1000.name, "bookie_us"),
    Row("client library, three bookies, appends a second", cases.REPLICATED_1000.name),
    Row("reads of 64 entries from memory, entries a second", cases.BATCH_HOT.name),
)


def readme(run: Run) -> str:
    """Return the README's table."""
    titles = ["", "fastbk", "three bare C processes", "Apache BookKeeper, tuned", "Redis Streams"]
    body = [
        [
            row.text,
            cell(run, row, THIS),
            cell(run, row, CHAIN),
            cell(run, row, *TUNED),
            cell(run, row, REDIS),
        ]
        for row in measured(run, README_ROWS)
    ]
    return markdown([titles, *body])


FLOOR_ROWS = (
    Row("window 1: p50, µs", cases.WINDOW_1.name, "p50_us"),
    Row("window 1: bookie's processor time, µs", cases.WINDOW_1.name, "bookie_us"),
    Row("window 100: adds a second", cases.WINDOW_100.name),
    Row("window 100: p50, µs", cases.WINDOW_100.name, "p50_us"),
    Row("window 100: bookie's processor time, µs", cases.WINDOW_100.name, "bookie_us"),
    Row("window 1,000: adds a second", cases.WINDOW_1000.name),
    Row("window 1,000: bookie's processor time, µs", cases.WINDOW_1000.name, "bookie_us"),
)


def floor(run: Run) -> str:
    """Return the table beside the bare-C chain."""
    titles = ["", "fastbk", "chain", "twice", "fastbk ÷ chain", "fastbk ÷ twice"]
    body = [
        [row.text, *(cell(run, row, system) for system in (THIS, CHAIN, TWICE)),
         *(times(run, row, [system]) for system in (CHAIN, TWICE))]
        for row in measured(run, FLOOR_ROWS)
    ]  # fmt: skip
    for case in cases.CASES:
        row = Row(f"disk, {case.name}: p50, µs", case.name, "p50_us")
        if isinstance(case.load, cases.DiskWrite) and run.of(case.name, DISK):
            body.append([row.text, cell(run, row, DISK), *[""] * 4])
    return markdown([titles, *body])


def rivals(run: Run) -> str:
    """Return the table beside Apache's bookies and Redis: short loads, which none of them need have written twice."""
    titles = ["", "fastbk", "Apache default", "Apache tuned, v3", "Apache tuned, v2", "Redis",
              "rate ÷ Apache's best", "processor time ÷ its"]  # fmt: skip
    groups = (
        [name for name in APACHE if name not in TUNED],
        [name for name in TUNED if name.endswith("v3")],
        [name for name in TUNED if name.endswith("v2")],
        [REDIS],
    )
    body = []
    for case, systems in run.cases.items():
        others = [system for group in groups for system in group if system in systems]
        if not others or is_sustained(case) or median(run.of(case, THIS), "per_s") is None:
            continue
        rows = [Row(f"{case}: p50, µs", case, "p50_us")] * (case == cases.WINDOW_1.name) + [
            Row(case, case)
        ]
        for row in rows:
            cells = [cell(run, row, *group) for group in groups]
            ends = [times(run, row, APACHE), times(run, row, APACHE, "bookie_us")]
            body.append(
                [
                    row.text,
                    cell(run, row, THIS),
                    *cells,
                    *(ends if row.figure == "per_s" else [ends[0], ""]),
                ]
            )
    return markdown([titles, *body])


def sustained(run: Run) -> str:
    """Return the table of sustained loads: rates and the longest thousandth."""
    titles = ["", "fastbk", "the commit before", "chain", "twice", "Apache's best",
              "fastbk ÷ before", "÷ chain", "÷ Apache's best"]  # fmt: skip
    body = []
    for case in filter(is_sustained, run.cases):
        rows = (Row(case, case), Row(f"{case}: p99.9, µs", case, "p999_us"))
        for row in measured(run, rows):
            others = (before(run, case), [CHAIN], [TWICE], APACHE)
            cells = [cell(run, row, *names) for names in ([THIS], *others)]
            ratios = [times(run, row, names) for names in (others[0], others[1], others[3])]
            body.append([row.text, *cells, *ratios])
    return markdown([titles, *body])


def disk_bytes(run: Run) -> str:
    """Return the table of bytes to the disk for a byte of data."""
    titles = ["", "fastbk", "the commit before", "Apache's best", "fastbk ÷ before"]
    body = []
    for case in run.cases:
        row = Row(case.removeprefix("bytes to disk, "), case, "disk_bytes")
        if isinstance(LOADS.get(case), cases.DiskBytes) and measured(run, [row]):
            cells = [cell(run, row, *names) for names in ([THIS], before(run, case), APACHE)]
            body.append([row.text, *cells, times(run, row, before(run, case))])
    return markdown([titles, *body])


def calls(run: Run) -> str:
    """Return the table of what is no rate: ledgers' calls, a restart."""
    figures = {
        "create_p50_us": "create a ledger: p50, µs",
        "close_p50_us": "close: p50, µs",
        "open_p50_us": "open: p50, µs",
        "recover_p50_us": "recover: p50, µs",
        "first_write_s": "first write after kill -9, s",
    }
    body = []
    for case in run.cases:
        for name, text in figures.items():
            row = Row(text, case, name)
            value = median(run.of(case, THIS), name)
            if value is None:
                continue
            known = [
                found
                for system in APACHE
                if (found := median(run.of(case, system), name)) is not None
            ]
            apache = number(min(known) if known else None, name)
            body.append([row.text, number(value, name), apache])
    return markdown([["", "fastbk", "Apache's best"], *body])


def targets(run: Run) -> str:
    """Return the targets."""
    return markdown(rows_of_targets(run))


TABLES = {
    "readme": readme,
    "floor": floor,
    "rivals": rivals,
    "sustained": sustained,
    "bytes": disk_bytes,
    "calls": calls,
    "targets": targets,
}


def with_tables(text: str, run: Run) -> str:
    """Return a page with its tables replaced by those of a run."""
    return PLACE.sub(lambda place: f"{place[1]}{TABLES[place[2]](run)}{place[3]}", text)


def write_tables(source: str) -> None:
    """Write the pages' tables; `source`: a run that becomes the one which they show; "": the one that they show now."""
    run = Run.read(Path(source) if source else KEPT)
    run.write(KEPT)
    for path in PAGES:
        path.write_text(with_tables(path.read_text(), run))
        print(f"written: {path}")
