"""`fastbk spark rebuild`: the current state by key of a stream of changes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import note, print_json

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

    from fastbk.spark.jobs.rebuild_plan import RebuildPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("stream", metavar="STREAM", help="the stream of changes")
    parser.add_argument(
        "--to", required=True, metavar="PLACE", help="the state, wherever Spark can write"
    )
    parser.add_argument(
        "--format", default="parquet", help="of the files: parquet or orc (parquet)"
    )
    parser.add_argument(
        "--partitions", type=int, metavar="N",
        help="read in at least so many parts, written in at most so many files (Spark's choice)",
    )  # fmt: skip
    parser.add_argument(
        "--schema", metavar="DDL", help="values are JSON of these columns: 'id long, name string'"
    )
    parser.add_argument(
        "--key", metavar="COLUMN", help="the JSON column that is the key (record's)"
    )
    parser.add_argument(
        "--sequence", metavar="COLUMN",
        help="the JSON column whose greatest value is the last change (the stream's own order)",
    )  # fmt: skip
    parser.add_argument(
        "--deletes", default="null", metavar="null|COLUMN=VALUE",
        help="an empty value deletes its key (null); so does that value of a JSON column, as op=d",
    )  # fmt: skip
    parser.add_argument(
        "--no-key", choices=("error", "skip"), default="error", help="records without a key (error)"
    )
    parser.add_argument(
        "--from-scratch", action="store_true",
        help="replay all that the stream has, whatever was made of it before",
    )  # fmt: skip
    parser.add_argument(
        "--take-over", action="store_true",
        help="the run that has the place is dead: take its place",
    )  # fmt: skip


def check(options: argparse.Namespace) -> None:
    """Say what is wrong with the options."""
    _plan_of(options)


def run(spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
    """Bring the state up to date."""
    from fastbk.spark.jobs import rebuild

    line = rebuild.run(spark, uri, _plan_of(options), take_over=options.take_over, say=note)
    if options.json:
        print_json(asdict(line))
    elif line.version == 0:
        print(f"{line.stream} has no records yet")
    else:
        passed_by = f", {line.keyless:,} without a key" if line.keyless else ""
        print(
            f"{line.stream}: version {line.version} has {line.keys:,} keys as of record {line.end_seq:,};"
            f" {line.records:,} records were replayed for it, {line.deletes_seen:,} of them delete{passed_by}"
        )
    return 0


def _plan_of(options: argparse.Namespace) -> RebuildPlan:
    from fastbk.spark.jobs.rebuild_plan import RebuildPlan

    return RebuildPlan(
        stream=options.stream,
        to=options.to,
        format=options.format,
        partitions=options.partitions,
        schema=options.schema,
        key=options.key,
        sequence=options.sequence,
        deletes=options.deletes,
        skip_keyless=options.no_key == "skip",
        from_scratch=options.from_scratch,
    )
