"""`fastbk spark audit`: `fastbk ledger audit`, by as many machines as Spark has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.ledger.audit import print_audited, progress_of
from fastbk.cli.progress import ProgressLine, rate_of

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("ledger_id", type=int, nargs="*", metavar="ID", help="default: all ledgers")
    parser.add_argument(
        "--rate", metavar="SIZE", default="0",
        help='bytes a second of each bookie for each part that is read, as in "50MiB" (no limit)',
    )  # fmt: skip
    parser.add_argument(
        "--to", metavar="PATH", help="a row for each part as Parquet, wherever Spark can write"
    )
    parser.add_argument(
        "--progress", type=Path, metavar="FILE",
        help="says how far it is; run again with the same file, it goes on from there",
    )  # fmt: skip


def check(options: argparse.Namespace) -> None:
    """Refuse a wrong --rate. Raises ConfigError."""
    rate_of(options.rate)


def run(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    """Audit; 0 only if everything is as it should be."""
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
