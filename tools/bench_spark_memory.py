"""`./dev bench spark-memory`: is the memory of a streaming query flat? Of its JVM and each kind of Python process.

Three bookies, a writer of RATE=2000 records of 1 KiB a second, and a query from its stream to another one, with a
reader's name, a batch a second, for SECONDS=600. Memory is Linux's PSS; of the JVM also its heap, right after it was
collected; all of the heap is touched at the start, so what the process grows by is no heap that is used for the first
time. Of each kind the median of the last quarter must not be more than 5 %, or 16 MB, above that of the second;
slopes are by least squares after the first quarter. At the end all records must be there. Exit code 1 if any is not.
A table, and JSON in build/bench-spark-memory.json.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import fastbk.sync
from fastbk.devcluster import memory_pss_bytes
from fastbk.observe import library_log, logs
from fastbk.stream.sync import SyncNamespace
from fastbk.testing import LocalCluster
from tools.part import setting, write
from tools.spark_bench_session import bench_spark
from tools.spark_memory_source import payloads
from tools.spark_processes import processes

HEAP = "600m"
WHOLE_HEAP = f"-Xms{HEAP} -XX:+AlwaysPreTouch"
SAMPLE_S = 5.0
TICK_S = 0.05
END_S = 120.0
GROWTH_SHARE = 1.05
GROWTH_BYTES = 16_000_000
KINDS = {
    "worker": "tasks",
    "python_streaming_source_runner": "planner of the source",
    "python_streaming_sink_runner": "committer of the sink",
    "write_into_data_source": "planner of the sink",
}
"""What Spark's Python processes are, by their module."""

Samples = dict[str, list[tuple[float, float]]]


class Writer(threading.Thread):
    """Appends so many records a second until it is told to stop."""

    def __init__(self, metadata: str, rate: int) -> None:
        super().__init__(daemon=True)
        self._metadata, self._rate = metadata, rate
        self.ending = threading.Event()
        self.records = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Keep the rate as well as can be: what a slow moment missed is made up."""
        try:
            with fastbk.sync.connect(self._metadata) as client:
                stream, some = client.namespace("bench").stream("in"), payloads(4096)
                with stream.writer() as writer:
                    began_s = time.monotonic()
                    while not self.ending.wait(TICK_S):
                        due = int((time.monotonic() - began_s) * self._rate) - self.records
                        if due > 0:
                            writer.ready()
                            writer.append_batch_nowait(
                                [some[at % len(some)] for at in range(min(due, 512))]
                            )
                            self.records += min(due, 512)
                    writer.flush()
        except BaseException as error:
            self.error = error


def begun(spark: SparkSession, metadata: str, folder: Path) -> StreamingQuery:
    reader = spark.readStream.format("fastbk").options(metadata=metadata, stream="bench/in")
    reader = reader.options(startingOffsets="earliest", readerName="memory")
    writer = reader.load().select("value").writeStream.format("fastbk")
    writer = writer.options(metadata=metadata, stream="bench/out", create="true")
    return (
        writer.option("checkpointLocation", str(folder)).trigger(processingTime="1 second").start()
    )


def sample(spark: SparkSession, at_s: float, found: Samples) -> None:
    """Look at all processes once."""
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    usage = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
    now: dict[str, float] = {"JVM's heap, collected": usage.getUsed()}
    for one in processes():
        kind = KINDS.get(one.module, one.module) if one.role == "worker" else None
        if one.role == "jvm" and "JVM" not in now:
            kind = "JVM"
        elif one.role in ("daemon", "bookies"):
            kind = "daemons" if one.role == "daemon" else "bookies"
        if kind is not None:
            now[kind] = now.get(kind, 0) + memory_pss_bytes([one.pid])
            if one.role == "worker":
                now[f"{kind}, processes"] = now.get(f"{kind}, processes", 0) + 1
    for name, value in now.items():
        found.setdefault(name, []).append((at_s, value))


def slope(points: list[tuple[float, float]]) -> float:
    """Return by least squares what is added a second."""
    mean_s = statistics.fmean(at_s for at_s, _ in points)
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in points)
    return sum((at_s - mean_s) * value for at_s, value in points) / spread if spread else 0.0


def judged(points: list[tuple[float, float]], seconds: float) -> dict[str, float | bool]:
    """Return MB of the second and the last quarter, MB a minute, and whether that is flat."""
    second = [value for at_s, value in points if seconds / 4 <= at_s < seconds / 2]
    last = [value for at_s, value in points if at_s >= seconds * 3 / 4]
    if not second or not last:
        return {"flat": False}
    before, after = statistics.median(second), statistics.median(last)
    a_minute = slope([one for one in points if one[0] >= seconds / 4]) * 60
    return {
        "second_quarter_mb": round(before / 1e6, 1),
        "last_quarter_mb": round(after / 1e6, 1),
        "mb_a_minute": round(a_minute / 1e6, 3),
        "flat": after <= max(before * GROWTH_SHARE, before + GROWTH_BYTES),
    }


def waited(space: SyncNamespace, query: StreamingQuery, records: int) -> int:
    """Wait until all of it is in the other stream; return how much is."""
    end_s = time.monotonic() + END_S
    while True:
        tail = space.stream("out").last_position()
        found = 0 if tail is None else tail.seq + 1
        if found >= records or time.monotonic() > end_s or not query.isActive:
            return found
        query.awaitTermination(1)


def run(seconds: float, rate: int) -> dict[str, Any]:
    found: Samples = {}
    with (
        LocalCluster(3) as cluster,
        fastbk.sync.connect(cluster.metadata_uri) as client,
        tempfile.TemporaryDirectory(prefix="fastbk-bench-") as folder,
        bench_spark(HEAP, WHOLE_HEAP) as spark,
    ):
        space = client.namespace("bench")
        space.create()
        space.create_stream("in")
        writer = Writer(cluster.metadata_uri, rate)
        writer.start()
        query = begun(spark, cluster.metadata_uri, Path(folder) / "checkpoint")
        began_s = time.monotonic()
        while (at_s := time.monotonic() - began_s) < seconds:
            if query.awaitTermination(int(SAMPLE_S)) or writer.error is not None:
                raise SystemExit(
                    f"bench spark-memory: ended early: {query.exception()}, {writer.error}"
                )
            sample(spark, at_s, found)
        writer.ending.set()
        writer.join()
        copied = waited(space, query, writer.records)
        last = query.lastProgress
        batches = 0 if last is None else last["batchId"]
        query.stop()
    # Those that only begin a query end soon after.
    found = {name: points for name, points in found.items() if points[-1][0] >= seconds * 3 / 4}
    memory = {
        name: judged(points, seconds) for name, points in found.items() if "processes" not in name
    }
    counts = {
        name: [int(points[0][1]), int(points[-1][1])]
        for name, points in found.items()
        if "processes" in name
    }
    return {
        "seconds": seconds,
        "written": writer.records,
        "copied": copied,
        "batches": batches,
        "memory": memory,
        "processes": counts,
        "samples": found,
    }


def main() -> int:
    """Run it, print a table, write the JSON; return 1 if memory grew."""
    logs.configure(level="warning")
    library_log.forward()
    answer = run(setting("SECONDS", 600.0), setting("RATE", 2000))
    for name, each in answer["memory"].items():
        print(f"{name:<26}", " ".join(f"{key}={value}" for key, value in each.items()))
    print(f"processes, first and last: {answer['processes']}")
    print(
        f"written {answer['written']:,}, copied {answer['copied']:,}, in {answer['batches']:,} batches"
    )
    write("bench-spark-memory", answer)
    # Bookies keep what they were given, up to their own limits: that is not Spark's.
    is_flat = all(each["flat"] for name, each in answer["memory"].items() if name != "bookies")
    return 0 if is_flat and answer["written"] == answer["copied"] else 1
