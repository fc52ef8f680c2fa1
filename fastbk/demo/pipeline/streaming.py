"""The job on Spark: a streaming query from both streams to partitioned Parquet, and what is asked of it afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from fastbk.demo.pipeline.expected import Totals
from fastbk.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORD = (
    "package string, architecture string, version string, section string, installed_kib long, summary string,"
    " path string, md5 string"
)
"""What the payloads of both streams may have."""
TABLE = f"seq long, timestamp timestamp, {RECORD}, kind string"
READER = "to-parquet"
LOOK_S = 0.2
QUERY_S = 240.0


@dataclass(frozen=True, slots=True)
class Went:
    """How a query went from its beginning to its end: rows, and micro-batches that had any."""

    rows: int
    batches: int


def begin(
    spark: SparkSession, pattern: str, place: Path, records_per_batch: int, *, to_end: bool
) -> StreamingQuery:
    """Start the query, or go on with it; `to_end`: it ends when it has what is there now, else it does not end."""
    rows = (
        spark.readStream.format("fastbk")
        .option("streamPattern", pattern)
        .option("startingOffsets", "earliest")
        .option("maxEntriesPerTrigger", str(records_per_batch))
        .option("readerName", READER)
        .load()
    )
    record = f.from_json(f.col("value").cast("string"), RECORD, {"mode": "FAILFAST"})
    parsed = rows.select(
        f.element_at(f.split("stream", "/"), -1).alias("kind"),
        "seq",
        "timestamp",
        record.alias("record"),
    ).select("kind", "seq", "timestamp", "record.*")
    writing = (
        parsed.writeStream.format("parquet")
        .partitionBy("kind", "section")
        .option("path", str(place / "parquet"))
        .option("checkpointLocation", str(place / "checkpoint"))
    )
    if to_end:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime="0 seconds").start()


def until(
    query: StreamingQuery,
    rows: int | None,
    say: Callable[[int, int], None],
    timeout_s: float = QUERY_S,
) -> Went:
    """Wait until the query has taken so many rows, then stop it; None: until it ends by itself.

    `say` is told rows and batches so far. Raises StorageError if the query fails or takes too long.
    """
    try:
        left_s = timeout_s
        while not query.awaitTermination(LOOK_S):  # type: ignore[arg-type] # annotated as whole seconds
            went = _went(query)
            say(went.rows, went.batches)
            if rows is not None and went.rows >= rows:
                break
            left_s -= LOOK_S
            if left_s <= 0:
                raise StorageError(
                    f"the query took {went.rows:,} rows in {timeout_s:g} s, and no more"
                )
    except PySparkException as error:
        raise StorageError(f"the query failed: {str(error).splitlines()[0]}") from error
    finally:
        query.stop()
    return _went(query)


def _went(query: StreamingQuery) -> Went:
    counts = [one.numInputRows for one in query.recentProgress]
    return Went(sum(counts), sum(count > 0 for count in counts))


def table(spark: SparkSession, place: Path) -> DataFrame:
    """Return what the query has written, as a table."""
    return spark.read.schema(TABLE).parquet(str(place / "parquet"))


def totals(rows: DataFrame) -> Totals:
    """Return the same figures as `expected.totals`, computed by Spark from the Parquet."""
    is_package = f.col("kind") == "packages"
    line = f.when(
        is_package,
        _tabbed(
            "kind", "package", "architecture", "version", "section", "installed_kib", "summary"
        ),
    ).otherwise(_tabbed("kind", "package", "section", "path", "md5"))
    hashed = rows.select(f.sha2(line, 256).alias("hash")).sort("hash")
    digest = hashlib.sha256("\n".join(row.hash for row in hashed.toLocalIterator()).encode())
    by_section = rows.groupBy("section").agg(
        f.count_if(is_package),
        f.sum(f.coalesce("installed_kib", f.lit(0))),
        f.count_if(~is_package),
    )
    sections = {name: (packages, kib, files) for name, packages, kib, files in by_section.collect()}
    columns = [sum(column) for column in zip(*sections.values(), strict=True)] or [0, 0, 0]
    return Totals(columns[0], columns[2], columns[1], digest.hexdigest(), sections)


def _tabbed(*names: str) -> Column:
    # Not concat_ws alone: it leaves out what is null, and two fields could stand for each other.
    return f.concat_ws("\t", *(f.coalesce(f.col(name).cast("string"), f.lit("")) for name in names))


def largest(rows: DataFrame, count: int) -> list[tuple[str, str, int]]:
    """Return (package, summary, KiB) of the largest packages, the largest first."""
    found = (
        rows.where(f.col("kind") == "packages")
        .sort(f.desc("installed_kib"), "package")
        .limit(count)
        .select("package", "summary", "installed_kib")
    )
    return [(row[0], row[1], row[2]) for row in found.collect()]
