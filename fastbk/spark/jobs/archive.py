"""Archive: what streams hold goes to Parquet by stream and day, is verified, and only what is new goes the next time.

    <to>/records/run=<n>/stream=<path>/date=<yyyy-mm-dd>/*.parquet     what one run wrote
    <to>/manifest/run=<n>/*.json                                      a line for each stream of that run
    <to>/claims/run=<n>                                               whose it is, while it is under way (claims.py)

What a run reads is fixed before it reads: of each stream from where the last run with a manifest ended to what is
published now. What it wrote is read again and held against a second reading of the streams: how many records, numbers
without a hole, a hash of everything in them. Only then its manifest is written, and that is what makes a run count:
what one that was cut off has left is deleted by the next, so no record is twice in the archive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from fastbk.errors import ConfigError, DataLost, StorageError
from fastbk.spark.jobs.claims import Claim, claimed, files_of
from fastbk.spark.jobs.folders import (
    check_place,
    delete,
    names_in,
    number_of,
    read_manifests,
    write_manifest,
)
from fastbk.spark.offset_resolver import OffsetResolver, StreamBounds
from fastbk.spark.options import read_options, reading_of
from fastbk.stream.positions import DLSN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = ("seq", "segment", "entry", "slot", "txid", "timestamp", "key", "value", "headers")
RECORDS = (
    "seq long, segment long, entry long, slot int, txid long, timestamp timestamp, key binary, value binary,"
    " headers array<struct<key: string, value: binary>>, stream string, date date"
)
"""How records are read again: without it Spark takes a stream that is called 007 for a number."""
RUN = "run="
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the folder of those that have no stream."""


@dataclass(frozen=True, slots=True)
class ArchivedStream:
    """A manifest's line: records first_seq..end_seq-1 of a stream, from position `first` to before `end`."""

    stream: str
    id: str
    first: str
    first_seq: int
    end: str
    end_seq: int
    records: int = 0
    bytes: int = 0
    hashes: str = "0"
    archived_at: str = ""


def run(
    spark: SparkSession,
    uri: str | None,
    to: str,
    *,
    streams: str | None = None,
    pattern: str | None = None,
    take_over: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> list[ArchivedStream]:
    """Archive what is new of these streams (with commas between, or all whose paths match); return the run's lines.

    Nothing new: no run, and no lines. take_over: another run that has the archive is dead, or may fail.
    Raises ConfigError, also while another run has the archive; StreamNotFound; DataLost where retention was faster than
    the archive; StorageError if what was written is not what the streams hold (its run does not count).
    """
    to = check_place(to)
    with claimed(
        files_of(spark, f"{to}/claims"), lambda: _last_run(spark, to), take_over=take_over
    ) as claim:
        return _run(spark, uri, to, streams, pattern, claim, report)


def _run(
    spark: SparkSession,
    uri: str | None,
    to: str,
    streams: str | None,
    pattern: str | None,
    claim: Claim,
    report: Callable[[str], None],
) -> list[ArchivedStream]:
    given = {"metadata": uri, "stream": streams, "streamPattern": pattern}
    options = {name: value for name, value in given.items() if value is not None}
    resolver = OffsetResolver(read_options(options, streaming=False))
    lines_before = lines_of(spark, to)
    done = ends_of(lines_before)
    nows = resolver.all_now()
    if not nows:
        report(f"no stream matches {pattern}")
    stretches = [
        stretch
        for path, now in sorted(nows.items())
        if (stretch := stretch_of(path, now, done.get(path))).end_seq > stretch.first_seq
    ]
    if not stretches:
        return []
    if any(one.stream == NO_VALUE for one in stretches):
        raise ConfigError(f"a stream that is called {NO_VALUE} cannot be archived: rename it")
    claim.check()
    number, counted = claim.number, {number for number, _ in lines_before}
    for name in names_in(spark, f"{to}/records"):
        if (left := number_of(name, RUN)) and left < number and left not in counted:
            delete(spark, f"{to}/records/{name}")
    records = sum(one.end_seq - one.first_seq for one in stretches)
    report(f"run {number}: {records:,} records of {len(stretches)} streams")
    # Both ends are positions, not "latest": a run is what it was planned to be.
    source = {
        **reading_of(uri, *(one.stream for one in stretches)),
        "includeHeaders": "true",
        "startingOffsets": json.dumps({one.stream: one.first for one in stretches}),
        "endingOffsets": json.dumps({one.stream: one.end for one in stretches}),
    }
    rows = spark.read.format("fastbk").options(**source).load()
    place = f"{to}/records/{RUN}{number:06}"
    dated = rows.select("stream", *COLUMNS).withColumn("date", f.to_date("timestamp"))
    dated.write.mode("overwrite").partitionBy("stream", "date").parquet(place)
    report(f"run {number}: written, being verified")
    written = sums_of(spark.read.schema(RECORDS).parquet(place), COLUMNS)
    lines = _verified(stretches, written, sums_of(rows, COLUMNS))
    claim.check()
    write_manifest(spark, f"{to}/manifest/{RUN}{number:06}", lines)
    report(f"run {number}: {records:,} records are in the archive")
    return lines


def _last_run(spark: SparkSession, to: str) -> int:
    """Return the highest number that a run has written under, whether it counts or not."""
    names = [name for part in ("records", "manifest") for name in names_in(spark, f"{to}/{part}")]
    return max((number_of(name, RUN) for name in names), default=0)


def stretch_of(path: str, now: StreamBounds, done: ArchivedStream | None) -> ArchivedStream:
    """Return what is new of a stream, uncounted: all of it, if another one had the name before. Raises DataLost."""
    first, end = now.first, now.end
    at, first_seq = first.dlsn, first.seq
    if done is not None and done.id == end.stream_id:
        if done.end_seq < first.seq:
            raise DataLost(
                f"{path}: records {done.end_seq}..{first.seq - 1} were truncated before they were archived; archive to"
                " another place, or more often, or hold them with a cursor"
            )
        at, first_seq = max(DLSN.parse(done.end), first.dlsn), done.end_seq
    return ArchivedStream(path, end.stream_id, str(at), first_seq, str(end.dlsn), end.seq)


def _verified(
    stretches: list[ArchivedStream], written: Mapping[str, Sums], read: Mapping[str, Sums]
) -> list[ArchivedStream]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = []
    for stretch in stretches:
        there, source = written.get(stretch.stream, Sums()), read.get(stretch.stream, Sums())
        wanted = stretch.end_seq - stretch.first_seq
        if there != source or there.records != wanted or there.has_holes:
            raise StorageError(
                f"{stretch.stream}: {wanted} records were to be archived, {there} were written and {source} read;"
                " this run does not count: run it again"
            )
        line = replace(stretch, records=there.records, bytes=there.size_bytes, hashes=there.hashes)
        lines.append(replace(line, archived_at=now))
    return lines


def lines_of(spark: SparkSession, to: str) -> list[tuple[int, ArchivedStream]]:
    """Return (run, line) of all manifests of an archive that count; none, if nothing was archived there."""
    return counting(_all_lines(spark, to))


def _all_lines(spark: SparkSession, to: str) -> list[tuple[int, ArchivedStream]]:
    manifests = read_manifests(spark, f"{to}/manifest", ArchivedStream, ", run int")
    names = list(ArchivedStream.__dataclass_fields__)
    return sorted(
        ((row["run"], ArchivedStream(*(row[name] for name in names))) for row in manifests),
        key=lambda one: (one[0], one[1].stream),
    )


def counting(lines: Sequence[tuple[int, ArchivedStream]]) -> list[tuple[int, ArchivedStream]]:
    """Return the lines that count, of all by rising runs: of two that have the same records, the later run's.

    A run that is taken over between its last look at its claim and its manifest writes such a line; nobody sees it.
    """
    kept: list[tuple[int, ArchivedStream]] = []
    begins: dict[tuple[str, str], int] = {}
    for number, line in reversed(lines):
        stream = line.stream, line.id
        if line.end_seq <= begins.get(stream, line.end_seq):
            kept.append((number, line))
            begins[stream] = line.first_seq
    return kept[::-1]


def ends_of(lines: list[tuple[int, ArchivedStream]]) -> dict[str, ArchivedStream]:
    """Return each stream's last line."""
    return {line.stream: line for _, line in lines}


def records_of(spark: SparkSession, to: str) -> DataFrame:
    """Return the records of an archive: of the lines that count."""
    lines = _all_lines(spark, to)
    counted = set(counting(lines))
    numbers = sorted({number for number, _ in counted})
    places = [f"{to}/records/{RUN}{number:06}" for number in numbers]
    reader = spark.read.schema(f"{RECORDS}, run int").option("basePath", f"{to}/records")
    rows = reader.parquet(*places)
    for number, line in set(lines) - counted:
        if number in numbers:
            rows = rows.where((f.col("run") != number) | (f.col("stream") != line.stream))
    return rows


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over one stream's records: how many, first and last number (-1: none), bytes of payloads, the sum of
    hashes.
    """

    records: int = 0
    first_seq: int = -1
    last_seq: int = -1
    size_bytes: int = 0
    hashes: str = "0"

    @property
    def has_holes(self) -> bool:
        """Whether numbers are missing, or there twice."""
        return self.records > 0 and self.records != self.last_seq - self.first_seq + 1


def sums_of(rows: DataFrame, hashed: Sequence[Column | str]) -> dict[str, Sums]:
    """Return the sums of rows with the columns stream, seq and value, for each stream, in one pass.

    `hashed`: what has to be the same; the order of rows does not matter, so `seq` should be among it.
    """
    # As a decimal: a sum of many 64-bit numbers does not fit into 64 bits.
    total = f.sum(f.xxhash64(*hashed).cast("decimal(20,0)")).cast("decimal(38,0)").cast("string")
    found = rows.groupBy("stream").agg(
        f.count("*"),
        f.min("seq"),
        f.max("seq"),
        f.sum(f.coalesce(f.length("value"), f.lit(0))),
        total,
    )
    return {stream: Sums(*rest) for stream, *rest in found.collect()}
