"""`fastbk spark usage`: how much there is, where, and how it grows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import note, print_answer, table
from fastbk.errors import ConfigError
from fastbk.units import format_size, format_span_s

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from fastbk.spark.jobs.usage import Usage, UsageLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--to", metavar="PLACE",
        help="keep a snapshot there, and tell what changed since those before: wherever Spark can write",
    )  # fmt: skip
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw it, too")
    parser.add_argument(
        "--top", type=int, default=20, metavar="N",
        help="namespaces and streams that are told one by one (20)",
    )  # fmt: skip


def prepare(options: argparse.Namespace) -> Callable[[SparkSession, str], int]:
    """Refuse a chart that cannot be made, and a --top of nothing; return the job, which counts and tells."""
    if options.top < 1:
        raise ConfigError(f"--top {options.top} must be 1 or more")
    if options.chart is not None:
        import fastbk.spark.charts  # noqa: F401 -- says what is missing

        if options.chart.suffix != ".png":
            raise ConfigError(f"--chart {options.chart} must end in .png")
        if not options.chart.absolute().parent.is_dir():
            raise ConfigError(f"--chart {options.chart}: there is no folder {options.chart.parent}")
    from fastbk.spark.jobs import usage

    def act(spark: SparkSession, uri: str) -> int:
        found = usage.run(spark, uri, to=options.to, top=options.top, say=note)
        if options.chart is not None:
            from fastbk.spark.jobs import usage_chart

            usage_chart.draw(found, options.chart)
            note(f"the chart is {options.chart}")
        return print_answer(options, facts_of(found), *text_of(found))

    return act


def facts_of(found: Usage) -> dict[str, object]:
    """Return what a script wants to know."""
    facts = asdict(found)
    facts["taken"] = found.taken.isoformat()
    facts["since"] = {what: when.isoformat() for what, when in found.since.items()}
    facts["history"] = [{"taken": when.isoformat(), "bytes": some} for when, some in found.history]
    return facts


def text_of(found: Usage) -> list[str]:
    """Return the tables, as lines."""
    spans = {
        what: format_span_s(round((found.taken - when).total_seconds()))
        for what, when in found.since.items()
    }
    heads = [f"since {spans[what]} ago" for what in spans]
    if not found.is_by_snapshots:
        heads = [f"made in {spans[what]}" for what in spans]
    counts = ["ledgers", "open", "entries", "bytes"]
    namespaces = [[one.name, *_counts(one), *_growth(one, list(spans))] for one in found.namespaces]
    total = [found.total.name, *_counts(found.total), *_growth(found.total, list(spans))]
    rows = [["namespace", *counts, *heads], *namespaces, total]
    lines = table(rows, "<".ljust(len(rows[0]), ">"))
    for what, some in (("stream", found.streams), ("bookie", found.bookies)):
        if some:
            rows = [[what, *counts], *([one.name, *_counts(one)] for one in some)]
            lines += ["", *table(rows, "<>>>>")]
    lines += [
        "",
        "Bytes are of entries' data, of closed ledgers; those of bookies are estimated by entries.",
    ]
    if found.total.open:
        lines.append(
            "Of open ledgers, bytes and the entries since their last change of bookies count when they close."
        )
    return lines


def _counts(one: UsageLine) -> list[str]:
    return [f"{one.ledgers:,}", f"{one.open:,}", f"{one.entries:,}", format_size(one.bytes)]


def _growth(one: UsageLine, spans: Sequence[str]) -> list[str]:
    sign = {True: "+", False: ""}
    return [f"{sign[one.growth[what] >= 0]}{format_size(one.growth[what])}" for what in spans]
