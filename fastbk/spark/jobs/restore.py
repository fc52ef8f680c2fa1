"""Restore: a stream's records out of an archive into a new stream, in their order, compared with it at the end.

Each run of the archive is one write of the exactly-once sink under a key of its own, so a restore that was cut off is
simply begun again: what is there already stays as it is. Positions, times and transaction ids are given anew; keys,
payloads and headers are as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from fastbk.errors import ConfigError, StorageError, StreamNotFound
from fastbk.spark.jobs.archive import COLUMNS, ArchivedStream, Sums, lines_of, records_of, sums_of
from fastbk.spark.jobs.folders import check_place
from fastbk.spark.offset_resolver import OffsetResolver
from fastbk.spark.options import read_options, reading_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BYTES = 64 * 1024 * 1024
PARTITIONS_MAX = 200


def run(
    spark: SparkSession,
    uri: str | None,
    archive: str,
    stream: str,
    to: str,
    *,
    report: Callable[[str], None] = lambda _: None,
) -> Sums:
    """Restore archived stream `stream` as the new stream `to`; return what both have.

    Raises ConfigError for what is not in the archive, and for a stream that has other records; StorageError if the
    archive's files are not what its manifests say (nothing is written then), or the restored stream is not what they
    hold.
    """
    check_place(archive)
    lines = archived(lines_of(spark, archive), stream)
    counts = [0, *accumulate(line.records for _, line in lines)]
    begun = _begun(uri, to, dict(zip(counts[1:], lines, strict=True)))
    source = records_of(spark, archive).where(f.col("stream") == stream)
    _check(source, lines)
    for (number, line), upto in zip(lines, counts[1:], strict=True):
        if upto <= begun:
            continue
        partitions = min(PARTITIONS_MAX, 1 + line.bytes // PARTITION_BYTES)
        rows = source.where(f.col("run") == number).repartitionByRange(partitions, "seq")
        writer = (
            rows.sortWithinPartitions("seq")
            .select("key", "value", "headers")
            .write.format("fastbk")
            .mode("append")
            .options(stream=to, create="true", idempotencyKey=_key(number, line))
        )
        (writer if uri is None else writer.option("metadata", uri)).save()
        report(f"run {number}: {line.records:,} records restored")
    numbers = [number for number, _ in lines]
    wanted = _relative(source.where(f.col("run").isin(numbers)), lines[0][1].first_seq)
    reader = spark.read.format("fastbk").option("includeHeaders", "true")
    restored = _relative(reader.options(**reading_of(uri, to)).load(), 0)
    if replace(restored, first_seq=wanted.first_seq, last_seq=wanted.last_seq) != wanted:
        raise StorageError(f"{to} holds {restored}, and the archive {wanted}")
    return restored


def _check(source: DataFrame, lines: Sequence[tuple[int, ArchivedStream]]) -> None:
    """Read the files of these runs, and hold them against the manifests. Raises StorageError."""
    numbers = [number for number, _ in lines]
    rows = source.where(f.col("run").isin(numbers)).withColumn("stream", f.col("run"))
    found = {int(number): sums for number, sums in sums_of(rows, COLUMNS).items()}
    for number, line in lines:
        there = found.get(number, Sums())
        wanted = (line.records, line.first_seq, line.end_seq - 1, line.bytes, line.hashes)
        if there != Sums(*wanted):
            raise StorageError(
                f"run {number} of the archive is not what its manifest says: {line.stream} has {there} there,"
                f" instead of {Sums(*wanted)}"
            )


def archived(
    lines: Sequence[tuple[int, ArchivedStream]], stream: str
) -> list[tuple[int, ArchivedStream]]:
    """Return the (run, line)s of the stream that had this name last. Raises ConfigError."""
    named = [(number, line) for number, line in lines if line.stream == stream]
    if not named:
        there = ", ".join(sorted({line.stream for _, line in lines})) or "nothing"
        raise ConfigError(f"{stream} is not in the archive; there is {there}")
    return [(number, line) for number, line in named if line.id == named[-1][1].id]


def _key(number: int, line: ArchivedStream) -> str:
    return f"restore-{line.id}-{number}"


def _begun(uri: str | None, to: str, after: Mapping[int, tuple[int, ArchivedStream]]) -> int:
    """Return how many records of this restore are there; `after` each such number: which run was written last.

    Raises ConfigError if others are there: as many as a run has may still be somebody else's.
    """
    resolver = OffsetResolver(read_options(reading_of(uri, to), streaming=False))
    try:
        now = resolver.now(to)
    except StreamNotFound:
        return 0
    count = now.end.seq
    last = after.get(count)
    if count and (last is None or now.stream.attached_number(f"spark/{_key(*last)}") < 0):
        raise ConfigError(
            f"{to} has {count} records that are none of this restore's: restore into a new stream"
        )
    return count


def _relative(rows: DataFrame, first_seq: int) -> Sums:
    hashed = [f.col("seq") - f.lit(first_seq), f.col("key"), f.col("value"), f.col("headers")]
    return next(iter(sums_of(rows, hashed).values()), Sums())
