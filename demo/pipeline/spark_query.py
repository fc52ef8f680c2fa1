"""The job on Spark: a streaming query from both streams to partitioned Parquet, and what is asked of it afterwards."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from demo.pipeline.expected import Totals
from fastbk.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

T = TypeVar("T")
RECORD = (
    "package string, architecture string, version string, section string, installed_kib long, summary string,"
    " path string, md5 string"
)
"""What the payloads of both streams may have."""
TABLE = f"seq long, timestamp timestamp, {RECORD}, kind string"
READER = "to-parquet"
LOOK_S = 0.2
QUERY_S = 240.0
TRIES = 4


@dataclass(frozen=True, slots=True)
class QueryRun:
    """How a query went from its beginning to its end: rows, and micro-batches that had any."""

    rows: int
    batches: int


class Query:
    """The query, from its checkpoint on; begun when it is made."""

    def __init__(
        self,
        spark: SparkSession,
        pattern: str,
        place: Path,
        records_per_batch: int,
        *,
        to_end: bool,
    ) -> None:
        """`to_end`: it ends by itself when it has what is there now, else it goes on for what comes."""
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
        self._writing = (
            writing.trigger(availableNow=True)
            if to_end
            else writing.trigger(processingTime="0 seconds")
        )
        self._before = QueryRun(0, 0)
        self._query = self._writing.start()

    def until(
        self, rows: int | None, say: Callable[[QueryRun], None], timeout_s: float = QUERY_S
    ) -> QueryRun:
        """Wait until it has taken so many rows, then stop it; None: until it ends by itself.

        `say` is told how far it is. Raises StorageError if the query fails or takes too long.
        """
        deadline_s = time.monotonic() + timeout_s
        for left in reversed(range(TRIES)):
            try:
                return self._until(rows, say, deadline_s)
            except PySparkException as error:
                if not left or not is_unstarted(error):
                    raise StorageError(f"the query failed: {said_by(error)}") from error
            # Nothing of that batch counts: it is planned again from the checkpoint, with the same records.
            self._before = self.went()
            self._query = self._writing.start()
        raise AssertionError("unreachable")

    def _until(
        self, rows: int | None, say: Callable[[QueryRun], None], deadline_s: float
    ) -> QueryRun:
        try:
            while not self._query.awaitTermination(LOOK_S):  # type: ignore[arg-type] # it says whole seconds
                went = self.went()
                say(went)
                if rows is not None and went.rows >= rows:
                    break
                if time.monotonic() > deadline_s:
                    raise StorageError(f"the query stands at {went.rows:,} rows")
        finally:
            self._query.stop()
        return self.went()

    def went(self) -> QueryRun:
        """Return how far it is."""
        counts = [one.numInputRows for one in self._query.recentProgress]
        batches = sum(count > 0 for count in counts)
        return QueryRun(self._before.rows + sum(counts), self._before.batches + batches)


def again_if_unstarted(act: Callable[[], T]) -> T:
    """Call it; again, a few times, where Spark gave up on a Python process. Only for what may be begun again."""
    for _ in range(TRIES - 1):
        try:
            return act()
        except PySparkException as error:
            if not is_unstarted(error):
                raise
    return act()


def is_unstarted(error: PySparkException) -> bool:
    """Whether Spark waited in vain for a Python process: ten seconds, fixed, and few on a machine that is filled."""
    return "failed to connect back" in str(error)


def said_by(error: PySparkException) -> str:
    """Return what it says, without traces."""
    return (str(error).strip().splitlines() or ["nothing"])[0]


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
