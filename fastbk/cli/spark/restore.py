"""`fastbk spark restore`: an archived stream into a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.cli.options import note, print_json
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("archive", metavar="PLACE", help="the archive")
    parser.add_argument("stream", metavar="PATH", help="the stream as it was called")
    parser.add_argument("to", metavar="NEW", help="the new stream")


def check(options: argparse.Namespace) -> None:
    """Nothing can be said before Spark has looked."""


def run(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    """Restore one stream."""
    from fastbk.spark.jobs import restore

    found = restore.run(spark, uri, options.archive, options.stream, options.to, say=note)
    if options.json:
        print_json({"stream": options.to, "records": found.records, "bytes": found.size_bytes})
    else:
        print(
            f"{options.to}: {found.records:,} records, {format_size(found.size_bytes)}, as archived"
        )
    return 0
