"""`./dev bench spark`: what goes through Spark, beside a source and a sink in memory, in the same Spark and run.

Three bookies on this machine, MIB=256 of records of 1 KiB, 64 an entry, read from warm caches; Spark on two threads.
The ways of a group take turns, ROUNDS=3 times, after a round that warms all caches, and the best round of each counts;
of micro-batches, BATCHES=6 of 100,000 records, and 20 of one record, in one round, the median. Counts and sums of all
ways are compared with what was written; a wrong one ends the bench. ONLY=read,write,stream,floor: these groups alone.
A table, and JSON in build/bench-spark.json. `..._cpu_us`: processor time a row, of the JVM, Spark's Python workers, all
bookies.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import crc32, length
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

import fastbk.sync
from fastbk.arrow import read_stream
from fastbk.observe import library_log, logs
from fastbk.spark.options import read_options
from fastbk.spark.readers import BatchReader, StreamPart
from fastbk.stream.sync import SyncStream
from fastbk.testing import LocalCluster
from tools.part import print_table, setting
from tools.spark_bench_session import bench_spark
from tools.spark_memory_source import RECORD_BYTES, payloads
from tools.spark_processes import cpu_s, processes

ENTRY_RECORDS = 64
PER_BATCH = 100_000
FLOOR_BATCHES = 20
QUERY_S = 600
GROUPS = ("read", "write", "stream", "floor")
SPLIT = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""The parts of a micro-batch that Spark times."""

Figures = dict[str, float]
Way = Callable[[], Figures]


def filled(stream: SyncStream, records: int) -> int:
    """Append so many records; return the sum of their checksums."""
    some, total = payloads(4096), 0
    with stream.writer() as writer:
        for at in range(0, records, len(some)):
            piece = some[: records - at]
            for first in range(0, len(piece), ENTRY_RECORDS):
                writer.append_batch_nowait(piece[first : first + ENTRY_RECORDS])
            writer.flush()
            total += sum(map(zlib.crc32, piece))
    return total


def expect(what: str, found: object, right: object) -> None:
    """End the bench at a wrong result: its figures would say nothing."""
    if found != right:
        raise SystemExit(f"bench spark: {what}: {found}, and {right} was to be")


def timed(rows: int, act: Callable[[], object]) -> Figures:
    """Run it; return rows a second, and processor time a row of whoever has used some."""
    before, began_s = processes(), time.perf_counter()
    act()
    took_s = time.perf_counter() - began_s
    used = cpu_s(before, processes())
    figures: Figures = {
        "rows_per_s": round(rows / took_s),
        "mb_per_s": round(rows * RECORD_BYTES / took_s / 1e6),
    }
    figures |= {"s": round(took_s, 2)}
    return figures | {f"{role}_cpu_us": round(used[role] / rows * 1e6, 2) for role in sorted(used)}


@dataclass
class Bench:
    """A cluster with a stream to be read, and a Spark."""

    spark: SparkSession
    metadata: str
    client: fastbk.sync.Client
    records: int
    long_records: int
    folder: Path
    names: count[int] = field(default_factory=count)
    long_checksum: int = 0

    def fill(self, only: list[str]) -> None:
        """Make what these groups read."""
        space = self.client.namespace("bench")
        space.create()
        self.checksum = filled(space.create_stream("read"), self.records)
        if "stream" in only:
            self.long_checksum = filled(space.create_stream("long"), self.long_records)
        if "floor" in only:
            filled(space.create_stream("few"), FLOOR_BATCHES + 1)
        options = {"metadata": self.metadata, "stream": "bench/read"}
        parts = BatchReader(read_options(options, streaming=False)).partitions()
        self.parts = json.dumps([one.records for one in parts if isinstance(one, StreamPart)])
        self.memory_rows = sum(json.loads(self.parts))

    # --- sources and sinks ---------------------------------------------------------------------------------------

    def batch(self, **options: str) -> DataFrame:
        options = {"metadata": self.metadata, "stream": "bench/read"} | options
        return self.spark.read.format("fastbk").options(**options).load()

    def memory(self, **options: str) -> DataFrame:
        """Return rows of memory, in parts as the stream's."""
        return self.spark.read.format("memory_rows").options(parts=self.parts, **options).load()

    def counted(self, frame: DataFrame, rows: int) -> Way:
        """Return a way that reads all of it."""

        def act() -> None:
            found = frame.agg(count_of("value"), sum_of(length("value"))).first()
            expect("rows and bytes", tuple(found or ()), (rows, rows * RECORD_BYTES))

        return lambda: timed(rows, act)

    def written(self, **options: str) -> Way:
        """Return a way that writes memory's rows to a new stream."""

        def way() -> Figures:
            name = f"sink-{next(self.names)}"
            sink = self.memory().select("value").write.format("fastbk").mode("append")
            sink = sink.options(
                metadata=self.metadata, stream=f"bench/{name}", create="true", **options
            )
            figures = timed(self.memory_rows, sink.save)
            self.emptied(name, self.memory_rows)
            return figures

        return way

    def emptied(self, name: str, records: int, checksum: int | None = None) -> None:
        """Compare what a sink wrote with what it was given, and delete it."""
        space = self.client.namespace("bench")
        tail = space.stream(name).last_position()
        expect(f"records of {name}", 0 if tail is None else tail.seq + 1, records)
        if checksum is not None:
            batches = read_stream(self.client, f"bench/{name}")
            found = sum(zlib.crc32(one.as_buffer()) for batch in batches for one in batch["value"])
            expect(f"checksums of {name}", found, checksum)
        space.delete_stream(name)

    def let_go(self) -> Way:
        """Return a way that writes memory's rows to nowhere."""
        rows = self.memory_rows
        sink = self.memory().select("value").write.format("memory_rows").mode("append")
        return lambda: timed(rows, sink.options(expected=str(rows)).save)

    # --- streaming -----------------------------------------------------------------------------------------------

    def query(self, per_batch: int, rows: int, *, source: str, sink: str) -> Way:
        """Return a way that runs a query over all there is, in batches of so many rows; source and sink: format."""
        stream = "long" if rows == self.long_records else "few"

        def way() -> Figures:
            number = next(self.names)
            name, folder = f"sink-{number}", self.folder / str(number)
            reader = self.spark.readStream.format(source)
            if source == "fastbk":
                reader = reader.options(metadata=self.metadata, stream=f"bench/{stream}")
                reader = reader.options(
                    startingOffsets="earliest", maxEntriesPerTrigger=str(per_batch)
                )
            else:
                reader = reader.options(parts=f"[{rows}]", perBatch=str(per_batch))
                reader = reader.options(batchRows=str(min(per_batch, 8192)))
            writer = reader.load().select("value").writeStream.format(sink)
            writer = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)
            if sink == "fastbk":
                writer = writer.options(
                    metadata=self.metadata, stream=f"bench/{name}", create="true"
                )
            figures = of_batches(writer.start(), rows)
            if sink == "fastbk":
                is_known = stream == "long" and source == "fastbk"
                self.emptied(name, rows, self.long_checksum if is_known else None)
            return figures

        return way


def of_batches(query: StreamingQuery, rows: int) -> Figures:
    """Wait for a query's end; return medians of its batches, without the first one."""
    try:
        if not query.awaitTermination(QUERY_S):
            raise SystemExit(f"bench spark: a query did not end in {QUERY_S} s")
    finally:
        query.stop()
    reports = [
        one
        for one in map(json.loads, (p.json for p in query.recentProgress))
        if one["numInputRows"]
    ]
    expect("rows of a query", sum(one["numInputRows"] for one in reports), rows)
    times = [one["durationMs"] for one in reports[1:]]
    taken = {
        name: statistics.median(one.get(name, 0) for one in times)
        for name in ("triggerExecution", *SPLIT)
    }
    batch_rows = statistics.median(one["numInputRows"] for one in reports[1:])
    rates = (
        {"rows_per_s": round(batch_rows / taken["triggerExecution"] * 1000)}
        if batch_rows > 1
        else {}
    )
    return rates | {f"{name}_ms": value for name, value in taken.items()}


def groups(bench: Bench) -> dict[str, dict[str, Way]]:
    few, many = FLOOR_BATCHES + 1, bench.long_records
    return {
        "read": {
            "batch read, memory": bench.counted(bench.memory(), bench.memory_rows),
            "batch read, fastbk": bench.counted(bench.batch(), bench.records),
        },
        "write": {
            "batch write, memory to nowhere": bench.let_go(),
            "batch write, fastbk E3/Qw3/Qa2": bench.written(ensemble="3", writeQuorum="3", ackQuorum="2"),
            "batch write, fastbk E1/Qw1/Qa1": bench.written(ensemble="1", writeQuorum="1", ackQuorum="1"),
        },
        "stream": {
            "streaming, memory to nowhere": bench.query(PER_BATCH, many, source="memory_rows", sink="memory_rows"),
            "streaming, fastbk to nowhere": bench.query(PER_BATCH, many, source="fastbk", sink="memory_rows"),
            "streaming, fastbk to fastbk": bench.query(PER_BATCH, many, source="fastbk", sink="fastbk"),
        },
        "floor": {
            "a row a batch, memory to nowhere": bench.query(1, few, source="memory_rows", sink="memory_rows"),
            "a row a batch, fastbk to nowhere": bench.query(1, few, source="fastbk", sink="memory_rows"),
            "a row a batch, memory to fastbk": bench.query(1, few, source="memory_rows", sink="fastbk"),
            "a row a batch, fastbk to fastbk": bench.query(1, few, source="fastbk", sink="fastbk"),
        },
    }  # fmt: skip


def best(rounds: list[Figures]) -> Figures:
    """Return the best round: most rows, or the shortest batch."""
    return max(
        rounds, key=lambda one: (one.get("rows_per_s", 0), -one.get("triggerExecution_ms", 0))
    )


def run(mib: int, batches: int, rounds: int, only: list[str]) -> dict[str, Figures]:
    found: dict[str, list[Figures]] = {}
    with (
        LocalCluster(3) as cluster,
        fastbk.sync.connect(cluster.metadata_uri) as client,
        tempfile.TemporaryDirectory(prefix="fastbk-bench-") as folder,
        bench_spark() as spark,
    ):
        records = mib * 2**20 // RECORD_BYTES
        many = max(batches, 2) * PER_BATCH
        bench = Bench(spark, cluster.metadata_uri, client, records, many, Path(folder))
        bench.fill(only)
        checksum = bench.batch().agg(sum_of(crc32("value"))).first()
        expect("checksums of a batch read", tuple(checksum or ()), (bench.checksum,))
        for group, ways in groups(bench).items():
            turns = min(rounds, 1) if group == "floor" else rounds
            for turn in range(turns + 1 if group in only else 0):
                for name, way in ways.items():
                    figures = way()
                    if turn > 0:  # the first one warms all caches
                        found.setdefault(name, []).append(figures)
                        print(f"round {turn}: {name:<32}", json.dumps(figures), flush=True)
    return {name: best(some) for name, some in found.items()}


def main() -> dict[str, Figures]:
    logs.configure(level="warning")
    library_log.forward()
    only = setting("ONLY", ",".join(GROUPS)).split(",")
    figures = run(setting("MIB", 256), setting("BATCHES", 6), setting("ROUNDS", 3), only)
    print()
    print_table(figures)
    reads = [figures[name]["rows_per_s"] for name in figures if name.startswith("batch read")]
    if len(reads) == 2:
        print(
            f"batch read: {reads[1] / reads[0]:.2f} of what Spark reads from memory (at least 0.6)"
        )
    return figures
