"""The source through Spark itself: a handful of tests, since each query costs seconds. The rest: test_spark_source."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, length
from pyspark.sql.functions import sum as sum_of

import fastbk.sync
from fastbk.admin.copy_audit import Audited
from fastbk.errors import ConfigError
from fastbk.spark.jobs import archive, audit, restore
from fastbk.stream.positions import AtSeq
from fastbk.stream.sync import SyncNamespace
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently
from tests.fixtures.spark_readers import append

pytestmark = pytest.mark.timeout(300)

QUERY_S = 120


class Query:
    """A query that is run again and again from one checkpoint, each time to the end of what is there."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, folder: Path) -> None:
        self._spark = spark
        self._metadata = cluster.metadata_uri
        self._folder = folder

    def run(self, **options: str) -> list[dict[str, object]]:
        """Return Spark's reports of the batches that had rows."""
        return patiently(lambda: self._run(options))

    def _run(self, options: dict[str, str]) -> list[dict[str, object]]:
        reader = self._spark.readStream.format("fastbk").option("metadata", self._metadata)
        query = (
            reader.options(startingOffsets="earliest", payload="false", **options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self._folder / "out"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(QUERY_S), "the query did not end"
        finally:
            query.stop()
        return [
            one
            for one in map(json.loads, (p.json for p in query.recentProgress))
            if one["numInputRows"]
        ]

    def seen(self) -> list[tuple[str, int]]:
        """Return stream and number of all rows that were written, sorted."""
        found = self._spark.read.parquet(str(self._folder / "out"))
        return sorted(
            (row.stream.rpartition("/")[2], row.seq)
            for row in found.select("stream", "seq").collect()
        )


@pytest.fixture
def query(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> Query:
    return Query(spark, cluster, tmp_path)


def test_batch_reads_by_name_by_pattern_and_of_ledgers(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client, space: SyncNamespace
) -> None:
    for name in ("a", "b"):
        append(space.create_stream(name), 120)

    def read(**options: str) -> DataFrame:
        reader = spark.read.format("fastbk").option("metadata", cluster.metadata_uri)
        return reader.options(**options).load()

    one = read(stream=f"{space.path}/a", includeHeaders="true", minPartitions="4")
    assert one.rdd.getNumPartitions() >= 4
    first = one.orderBy("seq").first()
    assert first is not None
    assert (first.seq, first.key, first.value, first.headers) == (0, b"k", b"v" * 500, [])
    record = space.stream("a").get(AtSeq(0))
    assert first.timestamp.timestamp() == pytest.approx(record.time.timestamp(), abs=1e-6)
    both = read(streamPattern=f"{space.path}/.", filterPushdown="true")
    counts = both.where(col("seq") >= 100).groupBy("stream").count().collect()
    assert sorted(row["count"] for row in counts) == [20, 20]
    with client.create_ledger() as writer:
        for at in range(50):
            writer.append_nowait(b"%02d" % at)
    ledgers = read(ledgers=str(writer.ledger_id))
    total = ledgers.agg(sum_of(length("value")), sum_of("entry")).first()
    assert total is not None and tuple(total) == (100, 1225)


def test_a_query_goes_on_from_its_checkpoint_through_new_segments_and_streams(
    query: Query, space: SyncNamespace
) -> None:
    append(space.create_stream("a"), 30)
    named = {
        "streamPattern": f"{space.path}/.*",
        "maxEntriesPerTrigger": "20",
        "readerName": "spark",
    }
    reports = query.run(**named)
    assert [one["numInputRows"] for one in reports] == [20, 10]
    assert query.seen() == [("a", at) for at in range(30)]
    assert query.run(**named) == []
    append(space.stream("a"), 60)
    append(space.create_stream("b"), 5)
    (*_, last) = query.run(**named)
    (told,) = last["sources"]
    assert told["latestOffset"]["streams"][f"{space.path}/a"]["seq"] == "90"
    assert query.seen() == [*(("a", at) for at in range(90)), *(("b", at) for at in range(5))]
    (cursor,) = space.stream("a").cursors()
    tail = space.stream("a").last_position()
    assert tail is not None and (cursor.name, cursor.mark) == ("spark", tail.next)


def test_wrong_options_are_told_before_any_task(spark: SparkSession, cluster: LocalCluster) -> None:
    metadata = cluster.metadata_uri
    with pytest.raises(PySparkException, match="no option strm"):
        spark.read.format("fastbk").options(metadata=metadata, strm="a/b").load()
    with pytest.raises(PySparkException, match="there is no stream no/such: create it"):
        spark.read.format("fastbk").options(metadata=metadata, stream="no/such").load().count()
    streaming = spark.readStream.format("fastbk").option("metadata", metadata)
    made = streaming.options(stream="a/b", endingOffsets="latest").load()

    def run() -> None:
        made.writeStream.format("noop").start().awaitTermination(QUERY_S)

    with pytest.raises(PySparkException, match="endingOffsets for streaming reads"):
        patiently(run)


def test_what_is_written_is_there_once_and_wrong_writes_end_before_any_task(
    spark: SparkSession, cluster: LocalCluster, space: SyncNamespace, tmp_path: Path
) -> None:
    source, path = space.create_stream("in"), f"{space.path}/out"
    append(source, 40)
    options = {"metadata": cluster.metadata_uri, "stream": path}
    rows = spark.range(0, 1000, numPartitions=3).select(col("id").cast("string").alias("value"))

    def write(frame: DataFrame = rows, **more: str) -> None:
        options_of_it = {**options, **more}
        patiently(
            lambda: frame.write.format("fastbk").mode("append").options(**options_of_it).save()
        )

    for more, says in (({}, "create"), ({"create": "true", "rollBites": "1"}, "rollbites")):
        with pytest.raises(PySparkException, match=f"(?i){says}"):
            write(**more)
    for _ in range(2):
        write(create="true", idempotencyKey="once")
    output = space.stream("out")
    with output.reader("earliest") as reader:
        found = [int(bytes(one.payload)) for one in islice(reader, 1000)]
    assert found == list(range(1000)) and output.info().records == 1000
    reader_of_rows = spark.readStream.format("fastbk").option("metadata", cluster.metadata_uri)
    for _ in range(2):

        def run() -> None:
            query = (
                reader_of_rows.options(stream=source.path, startingOffsets="earliest")
                .load()
                .writeStream.format("fastbk")
                .options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(QUERY_S), "the query did not end"

        patiently(run)
        append(source, 5)
    assert output.info().records == 1045
    assert output.drafts() == []


@pytest.mark.long
def test_an_archive_takes_what_is_new_and_comes_back_as_it_was(
    spark: SparkSession, cluster: LocalCluster, space: SyncNamespace, tmp_path: Path
) -> None:
    uri, place = cluster.metadata_uri, str(tmp_path / "archive")
    streams = [space.create_stream(name) for name in ("orders", "007")]
    for stream in streams:
        with stream.writer() as writer:
            for n in range(120):
                writer.append_nowait(
                    b"%d" % n, key=b"k" if n % 2 else None, headers=[("h", b"%d" % n)]
                )
    pattern = f"{space.path}/.*"
    first = archive.run(spark, uri, place, pattern=pattern)
    assert [(one.stream, one.first_seq, one.end_seq) for one in first] == [
        (streams[1].path, 0, 120),
        (streams[0].path, 0, 120),
    ]
    # A run without a manifest does not count, whatever lies there.
    (tmp_path / "archive" / "records" / "run=000002" / "rest").mkdir(parents=True)
    append(streams[0], 30)
    (second,) = archive.run(spark, uri, place, pattern=pattern)
    assert (second.stream, second.first_seq, second.records) == (streams[0].path, 120, 30)
    assert archive.run(spark, uri, place, pattern=pattern) == []

    new = f"{space.path}/restored"
    found = restore.run(spark, uri, place, streams[0].path, new)
    assert found.records == 150
    with streams[0].reader() as old, space.stream("restored").reader() as again:
        for left, right in zip(islice(old, 150), islice(again, 150), strict=True):
            assert (left.seq, left.key, bytes(left.payload), left.headers) == (
                right.seq,
                right.key,
                bytes(right.payload),
                right.headers,
            )
    assert restore.run(spark, uri, place, streams[0].path, new).records == 150
    with pytest.raises(ConfigError, match="not in the archive; there is"):
        restore.run(spark, uri, place, "shop/none", new)
    append(space.stream("restored"), 1)
    with pytest.raises(ConfigError, match="has 151 records"):
        restore.run(spark, uri, place, streams[0].path, new)


@pytest.mark.long
def test_the_audit_reads_every_copy_and_goes_on_where_it_was(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client, tmp_path: Path
) -> None:
    ids = []
    for _ in range(3):
        with client.create_ledger(3, 3, 2) as writer:
            writer.append_many([b"x" * 100] * 50)
            ids.append(writer.ledger_id)
    plan = audit.AuditPlan(
        ledgers=ids,
        unit_bytes=2000,
        slice_units=4,
        to=str(tmp_path / "rows"),
        progress=tmp_path / "progress.json",
    )
    seen: list[int] = []

    class Enough(Exception):
        pass

    def stop_after_two(found: Audited) -> None:
        seen.append(found.entries)
        if len(seen) == 2:
            raise Enough

    with pytest.raises(Enough):
        audit.run(spark, cluster.metadata_uri, plan, stop_after_two)
    found = audit.run(spark, cluster.metadata_uri, plan)
    assert found.is_whole
    assert (found.ledgers, found.entries, seen) == (3, 150, [70, 140])
    assert sum(one.good for one in found.bookies.values()) == 450
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert rows.count() == 9
    assert rows.select(sum_of(col("last") - col("first") + 1)).first() == (150,)
