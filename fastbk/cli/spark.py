"""`fastbk spark JOB`: jobs over the whole data of a cluster, on Spark: their options, and what is
printed of each.

`usage` says how much there is, where, and how it grows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fastbk.cli.ledger import print_audited, progress_of
from fastbk.cli.options import add_json, add_metadata, metadata_uri, note, print_answer, table
from fastbk.cli.progress import ProgressLine, rate_of, size_of
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_size, format_span_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from fastbk.spark.jobs.usage import Usage, UsageLine

Run: TypeAlias = "Callable[[SparkSession, str], int]"
"""Does a job on the cluster whose metadata is at the URI; returns the exit code."""


class Job(NamedTuple):
    """One job.

    Attributes:
        prepare: says what is wrong before Spark, which takes seconds, is started (ConfigError); returns the job.
    """

    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    prepare: Callable[[argparse.Namespace], Run]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the jobs."""
    jobs = parser.add_subparsers(dest="verb", required=True, metavar="JOB")
    for name, job in JOBS.items():
        one = jobs.add_parser(name, help=job.text, description=job.text)
        job.add_arguments(one)
        one.add_argument("--master", metavar="URL", help="Spark's (spark-submit's, else local[*])")
        add_metadata(one)
        add_json(one)


def run(options: argparse.Namespace) -> int:
    """Run one job."""
    try:
        from fastbk.spark.session import as_error, session
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Spark needs the package {error.name}: pip install 'fastbk[spark]'"
        ) from error
    from fastbk.meta import open_store

    uri = metadata_uri(options)
    prepared = JOBS[options.verb].prepare(options)
    # A wrong URI is told in a moment, where Spark takes seconds to start.
    open_store(uri, may_make=False).close()
    try:
        spark = session(options.verb, options.master)
        try:
            spark.sparkContext.setLogLevel("ERROR")  # a place that is not there yet is no news
            return prepared(spark, uri)
        finally:
            spark.stop()
    except Exception as error:
        if (told := as_error(error)) is None:
            raise
        raise told from error


def _add_take_over(parser: argparse.ArgumentParser, what: str) -> None:
    text = f"the run that has the {what} is dead: take its place"
    parser.add_argument("--take-over", action="store_true", help=text)


def _add_archive(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--stream", metavar="PATH[,PATH]", help="these streams")
    text = "streams whose whole paths match: shop/.*"
    which.add_argument("--pattern", metavar="REGEX", help=text)
    parser.add_argument("to", metavar="PLACE", help="the archive, wherever Spark can write")
    _add_take_over(parser, "archive")


def _archive(options: argparse.Namespace) -> Run:
    from fastbk.spark.jobs import archive

    def act(spark: SparkSession, uri: str) -> int:
        which = {"streams": options.stream, "pattern": options.pattern}
        found = archive.run(
            spark, uri, options.to, **which, take_over=options.take_over, report=note
        )
        lines = [
            f"{one.stream}: {one.first} up to {one.end}, {one.records:,} records, {format_size(one.bytes)}"
            for one in found
        ]
        facts = {"streams": [asdict(one) for one in found]}
        return print_answer(options, facts, *(lines or ["nothing is new"]))

    return act


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ledger_id", type=int, nargs="*", metavar="ID", help="default: all ledgers")
    text = 'bytes a second of each bookie for each part that is read, as in "50MiB" (no limit)'
    parser.add_argument("--rate", metavar="SIZE", default="0", help=text)
    text = "a row for each part as Parquet, wherever Spark can write"
    parser.add_argument("--to", metavar="PATH", help=text)
    text = "says how far it is; run again with the same file, it goes on from there"
    parser.add_argument("--progress", type=Path, metavar="FILE", help=text)


def _audit(options: argparse.Namespace) -> Run:
    from fastbk.spark.jobs import audit

    plan = audit.AuditPlan(
        ledgers=options.ledger_id or None,
        bytes_per_s=rate_of(options.rate),
        to=options.to,
        progress=options.progress,
    )

    def act(spark: SparkSession, uri: str) -> int:
        began_s, line = time.monotonic(), ProgressLine()
        try:
            audited = audit.run(spark, uri, plan, lambda found: line.at(lambda: progress_of(found)))
        finally:
            line.end()
        print_audited(audited, time.monotonic() - began_s, as_json=options.json)
        return 0 if audited.is_whole else 1

    return act


def _add_ingest(parser: argparse.ArgumentParser) -> None:
    text = "files, folders, patterns, wherever Spark can read"
    parser.add_argument("paths", nargs="+", metavar="PATH", help=text)
    parser.add_argument("--to", required=True, metavar="STREAM", help="namespace and name")
    text = "says which files are in the stream; run again with the same, it goes on from there"
    parser.add_argument("--manifest", required=True, metavar="PLACE", help=text)
    text = "lines, json, csv, parquet, or binary: a file a record (lines)"
    parser.add_argument("--format", default="lines", help=text)
    parser.add_argument("--key", metavar="COLUMN", help="what becomes the records' keys")
    text = "what becomes the payload (all columns, as JSON)"
    parser.add_argument("--value", metavar="COLUMN", help=text)
    parser.add_argument("--create", action="store_true", help="make the stream if it is not there")
    text = "end a writer that has the stream open (refuse)"
    parser.add_argument("--fence", action="store_true", help=text)
    text = "of a file that changed after it was taken: refuse, take all of it again, or skip it"
    parser.add_argument("--changed", default="refuse", help=text)
    text = "of files that appear in the stream together (1GiB)"
    parser.add_argument("--group", default="1GiB", metavar="SIZE", help=text)
    _add_take_over(parser, "manifest")


def _ingest(options: argparse.Namespace) -> Run:
    from fastbk.spark.jobs import ingest
    from fastbk.spark.jobs.ingest import IngestPlan

    plan = IngestPlan(
        stream=options.to,
        manifest=options.manifest.rstrip("/"),
        format=options.format,
        key=options.key,
        value=options.value,
        create=options.create,
        is_fencing=options.fence,
        changed=options.changed,
        group_bytes=size_of("--group", options.group),
    )

    def act(spark: SparkSession, uri: str) -> int:
        taking = {"take_over": options.take_over, "say": note}
        found = ingest.run(spark, uri, options.paths, plan, **taking)
        text = (
            f"{options.to}: {format_count(found.new_files, 'file')} taken, {found.new_records:,} records;"
            f" in all {format_count(found.files, 'file')}, {found.records:,} records, {format_size(found.bytes)}"
        )
        return print_answer(options, asdict(found), text)

    return act


def _add_rebuild(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="the stream of changes")
    text = "the state, wherever Spark can write"
    parser.add_argument("--to", required=True, metavar="PLACE", help=text)
    text = "of the files: parquet or orc (parquet)"
    parser.add_argument("--format", default="parquet", help=text)
    text = "read in at least so many parts, written in at most so many files (Spark's choice)"
    parser.add_argument("--partitions", type=int, metavar="N", help=text)
    text = "values are JSON of these columns: 'id long, name string'"
    parser.add_argument("--schema", metavar="DDL", help=text)
    text = "the JSON column that is the key (record's)"
    parser.add_argument("--key", metavar="COLUMN", help=text)
    text = "the JSON column whose greatest value is the last change (the stream's own order)"
    parser.add_argument("--sequence", metavar="COLUMN", help=text)
    text = "an empty value deletes its key (null); so does that value of a JSON column, as op=d"
    parser.add_argument("--deletes", default="null", metavar="null|COLUMN=VALUE", help=text)
    text = "records without a key (error)"
    parser.add_argument("--no-key", choices=("error", "skip"), default="error", help=text)
    text = "replay all that the stream has, whatever was made of it before"
    parser.add_argument("--from-scratch", action="store_true", help=text)
    _add_take_over(parser, "place")


def _rebuild(options: argparse.Namespace) -> Run:
    from fastbk.spark.jobs import rebuild
    from fastbk.spark.jobs.rebuild import RebuildPlan

    same = (
        "stream",
        "to",
        "format",
        "partitions",
        "schema",
        "key",
        "sequence",
        "deletes",
        "from_scratch",
    )
    given = {name: getattr(options, name) for name in same}
    plan = RebuildPlan(**given, skip_keyless=options.no_key == "skip")

    def act(spark: SparkSession, uri: str) -> int:
        line = rebuild.run(spark, uri, plan, take_over=options.take_over, report=note)
        text = f"{line.stream} has no records yet"
        if line.version:
            passed_by = f", {line.keyless:,} without a key" if line.keyless else ""
            text = (
                f"{line.stream}: version {line.version} has {line.keys:,} keys as of record {line.end_seq:,};"
                f" {line.records:,} records were replayed for it, {line.deletes_seen:,} of them delete{passed_by}"
            )
        return print_answer(options, asdict(line), text)

    return act


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="PLACE", help="the archive")
    parser.add_argument("stream", metavar="PATH", help="the stream as it was called")
    parser.add_argument("to", metavar="NEW", help="the new stream")


def _restore(options: argparse.Namespace) -> Run:
    from fastbk.spark.jobs import restore

    def act(spark: SparkSession, uri: str) -> int:
        found = restore.run(spark, uri, options.archive, options.stream, options.to, report=note)
        facts = {"stream": options.to, "records": found.records, "bytes": found.size_bytes}
        size = format_size(found.size_bytes)
        return print_answer(
            options, facts, f"{options.to}: {found.records:,} records, {size}, as archived"
        )

    return act


def add_usage_arguments(parser: argparse.ArgumentParser) -> None:
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


def _usage(options: argparse.Namespace) -> Callable[[SparkSession, str], int]:
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
        found = usage.run(spark, uri, to=options.to, top=options.top, report=note)
        if options.chart is not None:
            from fastbk.spark import charts

            charts.draw(found, options.chart)
            note(f"the chart is {options.chart}")
        return print_answer(options, usage_facts(found), *usage_lines(found))

    return act


def usage_facts(found: Usage) -> dict[str, object]:
    """Return what a script wants to know."""
    facts = asdict(found)
    facts["taken"] = found.taken.isoformat()
    facts["since"] = {what: when.isoformat() for what, when in found.since.items()}
    facts["history"] = [{"taken": when.isoformat(), "bytes": some} for when, some in found.history]
    return facts


def usage_lines(found: Usage) -> list[str]:
    """Return the tables, as lines."""
    spans = {
        what: format_span_s(round((found.taken - when).total_seconds()))
        for what, when in found.since.items()
    }
    heads = [f"since {spans[what]} ago" for what in spans]
    if not found.is_by_snapshots:
        heads = [f"made in {spans[what]}" for what in spans]
    counts = ["ledgers", "open", "entries", "bytes"]
    namespaces = [
        [namespace.name, *_usage_counts(namespace), *_usage_growth(namespace, list(spans))]
        for namespace in found.namespaces
    ]
    total = [
        found.total.name,
        *_usage_counts(found.total),
        *_usage_growth(found.total, list(spans)),
    ]
    rows = [["namespace", *counts, *heads], *namespaces, total]
    lines = table(rows, "<".ljust(len(rows[0]), ">"))
    for what, some in (("stream", found.streams), ("bookie", found.bookies)):
        if some:
            rows = [[what, *counts], *([one.name, *_usage_counts(one)] for one in some)]
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


def _usage_counts(one: UsageLine) -> list[str]:
    return [f"{one.ledgers:,}", f"{one.open:,}", f"{one.entries:,}", format_size(one.bytes)]


def _usage_growth(one: UsageLine, spans: Sequence[str]) -> list[str]:
    sign = {True: "+", False: ""}
    return [f"{sign[one.growth[what] >= 0]}{format_size(one.growth[what])}" for what in spans]


JOBS = {
    "archive": Job(
        "what streams hold as Parquet by stream and day, verified; then only what is new",
        _add_archive, _archive,
    ),
    "audit": Job(
        "read every copy of every entry from every bookie, and compare them", _add_audit, _audit
    ),
    "ingest": Job(
        "files into a stream, each once, in their order; then only those that are new",
        _add_ingest, _ingest,
    ),
    "rebuild": Job(
        "a stream of changes, replayed into the current state by key as a table; then only what is new",
        _add_rebuild, _rebuild,
    ),
    "restore": Job(
        "an archived stream into a new one, compared with the archive at the end",
        _add_restore, _restore,
    ),
    "usage": Job(
        "how much namespaces, streams and bookies hold, and how it grows: tables and a chart",
        add_usage_arguments, _usage,
    ),
}  # fmt: skip
