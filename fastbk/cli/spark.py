"""`fastbk spark ...`: jobs over the whole data of a cluster, on Spark."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fastbk.cli.bookie_repair import ProgressLine, rate_of
from fastbk.cli.ledger_audit import print_audited, progress_of
from fastbk.cli.options import add_json, add_metadata, metadata_uri
from fastbk.errors import ConfigError

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
    for one in (audit,):
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


_VERBS: dict[str, Verb] = {"audit": _audit}
