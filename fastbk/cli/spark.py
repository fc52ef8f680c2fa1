"""`fastbk spark ...`: jobs over the whole data of a cluster, on Spark."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fastbk.cli.bookie_repair import ProgressLine, rate_of
from fastbk.cli.ledger_audit import print_audited, progress_of
from fastbk.cli.options import add_json, add_metadata, metadata_uri, note, print_json
from fastbk.errors import ConfigError
from fastbk.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Verb: TypeAlias = Callable[[SparkSession, str, argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the jobs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="JOB")
    audit = verbs.add_parser(
        "audit", help="read every copy of every entry from every bookie, and compare them"
    )
    audit.add_argument("ledger_id", type=int, nargs="*", metavar="ID", help="default: all ledgers")
    audit.add_argument(
        "--rate", metavar="SIZE", default="0",
        help='bytes a second of each bookie for each part that is read, as in "50MiB" (no limit)',
    )  # fmt: skip
    audit.add_argument(
        "--to", metavar="PATH", help="a row for each part as Parquet, wherever Spark can write"
    )
    audit.add_argument(
        "--progress", type=Path, metavar="FILE",
        help="says how far it is; run again with the same file, it goes on from there",
    )  # fmt: skip
    archive = verbs.add_parser(
        "archive",
        help="what streams hold as Parquet by stream and day, verified; then only what is new",
    )
    which = archive.add_mutually_exclusive_group(required=True)
    which.add_argument("--stream", metavar="PATH[,PATH]", help="these streams")
    which.add_argument(
        "--pattern", metavar="REGEX", help="streams whose whole paths match: shop/.*"
    )
    archive.add_argument("to", metavar="PLACE", help="the archive, wherever Spark can write")
    restore = verbs.add_parser(
        "restore", help="an archived stream into a new one, compared with the archive at the end"
    )
    restore.add_argument("archive", metavar="PLACE", help="the archive")
    restore.add_argument("stream", metavar="PATH", help="the stream as it was called")
    restore.add_argument("to", metavar="NEW", help="the new stream")
    for one in (audit, archive, restore):
        one.add_argument("--master", metavar="URL", help="Spark's (spark-submit's, else local[*])")
        add_metadata(one)
        add_json(one)


def run(options: argparse.Namespace) -> int:
    """Run one job."""
    try:
        from fastbk.spark.session import session
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Spark needs the package {error.name}: pip install 'fastbk[spark]'"
        ) from error
    uri = metadata_uri(options)
    spark = session(options.verb, options.master)
    spark.sparkContext.setLogLevel("ERROR")  # a place that is not there yet is no news
    try:
        return _VERBS[options.verb](spark, uri, options)
    finally:
        spark.stop()


def _audit(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    from fastbk.spark.jobs import audit

    plan = audit.AuditPlan(
        ledgers=options.ledger_id or None,
        bytes_per_s=rate_of(options.rate),
        to=options.to,
        progress=options.progress,
    )
    began_s = time.monotonic()
    line = ProgressLine()
    try:
        audited = audit.run(spark, uri, plan, lambda so_far: line.at(lambda: progress_of(so_far)))
    finally:
        line.end()
    print_audited(audited, time.monotonic() - began_s, as_json=options.json)
    return 0 if audited.is_whole else 1


def _archive(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    from fastbk.spark.jobs import archive

    lines = archive.run(
        spark, uri, options.to, streams=options.stream, pattern=options.pattern, say=note
    )
    if options.json:
        print_json({"streams": [asdict(one) for one in lines]})
        return 0
    for one in lines:
        print(
            f"{one.stream}: {one.first} up to {one.end}, {one.records:,} records, {format_size(one.bytes)}"
        )
    if not lines:
        print("nothing is new")
    return 0


def _restore(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    from fastbk.spark.jobs import restore

    found = restore.run(spark, uri, options.archive, options.stream, options.to, say=note)
    if options.json:
        print_json({"stream": options.to, "records": found.records, "bytes": found.size_bytes})
    else:
        print(
            f"{options.to}: {found.records:,} records, {format_size(found.size_bytes)}, as archived"
        )
    return 0


_VERBS: dict[str, Verb] = {"audit": _audit, "archive": _archive, "restore": _restore}
