"""`fastbk spark archive`: what streams hold as Parquet."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import note, print_json
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--stream", metavar="PATH[,PATH]", help="these streams")
    which.add_argument(
        "--pattern", metavar="REGEX", help="streams whose whole paths match: shop/.*"
    )
    parser.add_argument("to", metavar="PLACE", help="the archive, wherever Spark can write")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="the run that has the archive is dead: take its place",
    )


def check(options: argparse.Namespace) -> None:
    """Nothing can be said before Spark has looked."""


def run(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    """Archive what is new."""
    from fastbk.spark.jobs import archive

    lines = archive.run(
        spark,
        uri,
        options.to,
        streams=options.stream,
        pattern=options.pattern,
        take_over=options.take_over,
        say=note,
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
