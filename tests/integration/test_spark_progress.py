"""What a query tells of itself: its reports, and its mark as a cursor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import fastbk.sync
from fastbk.cli.janitor_page import text_of
from fastbk.stream.janitor.janitor import Janitor, JanitorOptions
from fastbk.stream.namespace.sync_namespace import SyncNamespace
from fastbk.stream.sync_stream import SyncStream
from fastbk.testing import LocalCluster
from tests.fixtures.exposition import Exposition, parsed
from tests.fixtures.spark import patiently
from tests.fixtures.spark_readers import stream_reader

pytestmark = pytest.mark.timeout(300)

ROLL_BYTES = 20_000
QUERY_S = 120


def append(stream: SyncStream, count: int) -> None:
    """Append records of 500 bytes, several segments of them; the last one is closed."""
    with stream.writer() as writer:
        for _ in range(count):
            writer.append(b"v" * 500).result()


def test_reports_tell_what_a_batch_has_and_what_is_left(
    cluster: LocalCluster, client: fastbk.sync.Client, space: SyncNamespace
) -> None:
    append(space.create_stream("old"), 40)
    pattern = {"streamPattern": f"{space.path}/.*", "startingOffsets": "earliest"}
    reader = stream_reader(cluster, **pattern)
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    append(space.create_stream("new"), 20)
    reader.latestOffset(start, ReadMaxRows(30))
    told = reader.reportLatestOffset()
    assert told is not None
    batch, behind = told["batch"], told["behind"]
    assert isinstance(batch, dict) and isinstance(behind, dict)
    assert (batch["records"], behind["records"]) == (30, 30)
    for one in (batch, behind):
        assert 15_000 <= one["bytes"] < 20_000
    assert 0 < behind["milliseconds"] < 120_000
    with client.create_ledger() as writer:
        for _ in range(10):
            writer.append(b"x" * 100)
    ledgers = stream_reader(cluster, ledgers=str(writer.ledger_id), startingOffsets="earliest")
    ledgers.latestOffset(ledgers.initialOffset(), ReadMaxRows(4))
    told = ledgers.reportLatestOffset()
    assert told is not None
    assert told["batch"] == {"records": 4, "bytes": 400}
    assert told["behind"] == {"records": 6, "bytes": 600, "milliseconds": 0}


def test_progress_is_a_cursor_of_the_stream(cluster: LocalCluster, space: SyncNamespace) -> None:
    stream = space.create_stream("orders")
    append(stream, 10)
    named = {"stream": stream.path, "startingOffsets": "earliest", "readerName": "billing"}
    reader = stream_reader(cluster, **named)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(6))
    (cursor,) = stream.cursors()
    assert (cursor.name, cursor.mark) == ("billing", stream.find(seq=0))
    assert (cursor.data, cursor.ledgers) == ({"by": "spark"}, ())
    reader.commit(end)
    (cursor,) = stream.cursors()
    assert (cursor.mark, cursor.mark_seq) == (stream.find(seq=6), 6)
    reader.stop()
    again = stream_reader(cluster, **named)
    last = again.latestOffset(end, ReadAllAvailable())
    again.commit(last)
    again.stop()
    (cursor,) = stream.cursors()
    tail = stream.last_position()
    assert tail is not None and cursor.mark == tail.next


def janitors_page(cluster: LocalCluster) -> Exposition:
    """Return the page of a janitor that has passed once."""

    async def passed() -> str:
        async with fastbk.connect(cluster.metadata_uri) as client:
            janitor = Janitor(client, JanitorOptions(cursor_gauges_max=1000), lambda _: None)
            await janitor.pass_once()
            return text_of(janitor)

    return parsed(asyncio.run(passed()))


def test_a_query_tells_how_far_it_is_behind_while_it_runs_and_afterwards(
    spark: SparkSession, cluster: LocalCluster, space: SyncNamespace, tmp_path: Path
) -> None:
    stream = space.create_stream("orders")
    append(stream, 40)

    def run() -> list[dict[str, object]]:
        query = (
            spark.readStream.format("fastbk")
            .option("metadata", cluster.metadata_uri)
            .options(stream=stream.path, startingOffsets="earliest", readerName="to-nowhere")
            .options(maxEntriesPerTrigger="30", payload="false")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(QUERY_S), "the query did not end"
        finally:
            query.stop()
        return [json.loads(one.json) for one in query.recentProgress]

    told = [
        one["sources"][0]["latestOffset"]
        for one in patiently(run)
        if one["numInputRows"]  # type: ignore[index]
    ]
    assert [one["batch"]["records"] for one in told] == [30, 10]
    assert [one["behind"]["records"] for one in told] == [10, 0]
    assert 15_000 <= told[0]["batch"]["bytes"] < 20_000
    assert 5_000 <= told[0]["behind"]["bytes"] < 7_000
    assert told[0]["behind"]["milliseconds"] > 0
    append(stream, 5)
    ((cursor, backlog),) = stream.backlogs()
    assert (cursor.name, cursor.data) == ("to-nowhere", {"by": "spark"})
    # Spark tells of the last batch when it plans another one, or not at all.
    assert cursor.mark_seq in (30, 40) and backlog is not None
    assert backlog.records == 45 - cursor.mark_seq
    labels = {"stream": stream.path, "cursor": "to-nowhere", "by": "spark"}
    page = janitors_page(cluster)
    assert page.value("fastbk_cursor_backlog_records", **labels) == backlog.records
    assert page.value("fastbk_cursor_oldest_unread_seconds", **labels) > 0
