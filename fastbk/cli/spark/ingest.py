"""`fastbk spark ingest`: files into a stream."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import note, print_json
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_size, parse_size

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

    from fastbk.spark.jobs.ingest_plan import IngestPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="files, folders, patterns, wherever Spark can read"
    )
    parser.add_argument("--to", required=True, metavar="STREAM", help="namespace and name")
    parser.add_argument(
        "--manifest", required=True, metavar="PLACE",
        help="says which files are in the stream; run again with the same, it goes on from there",
    )  # fmt: skip
    parser.add_argument(
        "--format",
        default="lines",
        help="lines, json, csv, parquet, or binary: a file a record (lines)",
    )
    parser.add_argument("--key", metavar="COLUMN", help="what becomes the records' keys")
    parser.add_argument(
        "--value", metavar="COLUMN", help="what becomes the payload (all columns, as JSON)"
    )
    parser.add_argument("--create", action="store_true", help="make the stream if it is not there")
    parser.add_argument(
        "--fence", action="store_true", help="end a writer that has the stream open (refuse)"
    )
    parser.add_argument(
        "--changed", default="refuse",
        help="of a file that changed after it was taken: refuse, take all of it again, or skip it",
    )  # fmt: skip
    parser.add_argument(
        "--group", default="1GiB", metavar="SIZE",
        help="of files that appear in the stream together (1GiB)",
    )  # fmt: skip
    parser.add_argument(
        "--take-over", action="store_true",
        help="the run that has the manifest is dead: take its place",
    )  # fmt: skip


def check(options: argparse.Namespace) -> None:
    """Say what is wrong with the options."""
    _plan_of(options)


def run(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    """Take what is left of the files."""
    from fastbk.spark.jobs import ingest

    found = ingest.run(
        spark, uri, options.paths, _plan_of(options), take_over=options.take_over, say=note
    )
    if options.json:
        print_json(asdict(found))
    else:
        print(
            f"{options.to}: {format_count(found.new_files, 'file')} taken, {found.new_records:,} records;"
            f" in all {format_count(found.files, 'file')}, {found.records:,} records, {format_size(found.bytes)}"
        )
    return 0


def _plan_of(options: argparse.Namespace) -> IngestPlan:
    from fastbk.spark.jobs.ingest_plan import IngestPlan

    try:
        group_bytes = parse_size(options.group)
    except ValueError as error:
        raise ConfigError(f"--group: {error}") from error
    return IngestPlan(
        stream=options.to,
        manifest=options.manifest.rstrip("/"),
        format=options.format,
        key=options.key,
        value=options.value,
        create=options.create,
        is_fencing=options.fence,
        changed=options.changed,
        group_bytes=group_bytes,
    )
