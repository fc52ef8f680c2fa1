"""The Spark sink on real bookies, without Spark running: pickled as Spark does it, compressed, rolled, with headers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

import fastbk.sync
from fastbk.arrow.batches import HEADERS
from fastbk.errors import ConfigError, StreamBusy
from fastbk.spark.sink import CommitMessage, FastbkBatchWriter, FastbkStreamWriter, TaskAttempt
from fastbk.spark.source import FastbkSource
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("key", BinaryType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)
ROWS = 2000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Bookies of this file's own: one is killed."""
    with LocalCluster() as made:
        yield made


def batch_of(partition: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "value": pa.array([b"%d.%d" % (partition, at) * 20 for at in range(ROWS)], pa.binary()),
            "key": pa.array([b"%d" % at if at % 2 else None for at in range(ROWS)], pa.binary()),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % at}] for at in range(ROWS)], HEADERS
            ),
        }
    )


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_batch_is_written_once(
    cluster: LocalCluster, client: fastbk.sync.Client, compression: str
) -> None:
    options = {
        "metadata": cluster.metadata_uri,
        "stream": f"batch/{compression}",
        "create": "true",
        "compression": compression,
        "entryBytes": "16KiB",
        "rollBytes": "64KiB",
        "idempotencyKey": "load",
    }
    for _ in range(2):
        writer = FastbkSource(options).writer(SCHEMA, False)
        assert isinstance(writer, FastbkBatchWriter)
        told: list[CommitMessage] = []
        for partition in range(2):
            task = pickle.loads(pickle.dumps(writer))
            written = task.attempt(TaskAttempt(task.key, 0, partition, 0)).write(
                [batch_of(partition)]
            )
            told.append(pickle.loads(pickle.dumps(written)))
        pickle.loads(pickle.dumps(writer)).commit(told)
    assert [one.was_attached for one in told] == [True, True]
    stream = client.namespace("batch").stream(compression)
    info = stream.info()
    assert (info.records, info.open_segments) == (2 * ROWS, 0) and info.segments >= 2
    with stream.reader("earliest") as reader:
        for number, record in enumerate(islice(reader, 2 * ROWS)):
            partition, at = divmod(number, ROWS)
            assert bytes(record.payload) == b"%d.%d" % (partition, at) * 20
            assert record.key == (b"%d" % at if at % 2 else None)
            assert record.headers == (("n", b"%d" % at),)
            assert (record.seq, record.txid) == (number, number + 1)
    assert stream.drafts() == []


def test_a_streaming_query_and_an_ordinary_writer_take_turns(
    cluster: LocalCluster, client: fastbk.sync.Client
) -> None:
    options = {"metadata": cluster.metadata_uri, "stream": "turns/orders", "create": "true"}
    stream = client.namespace("turns").stream("orders")

    def run(batch: int, **more: str) -> None:
        writer = FastbkSource({**options, **more}).streamWriter(SCHEMA, False)
        assert isinstance(writer, FastbkStreamWriter)
        place = TaskAttempt("spark/query", batch, 0, 0)
        told = writer.attempt(place).write([batch_of(0).slice(0, 3)])
        FastbkSource({**options, **more}).streamWriter(SCHEMA, False).commit([told], batch)

    run(0)
    with stream.writer() as writer:
        assert writer.last_txid == 3
        writer.append(b"own")
        with pytest.raises(StreamBusy):
            run(1)
    run(1)
    with stream.writer() as writer:
        writer.append(b"own")
        run(2, onWriter="fence")
        writer.abort()
    assert stream.info().records == 11
    assert stream.drafts() == []


def test_a_query_appends_to_a_stream_of_producers_beside_others(
    cluster: LocalCluster, client: fastbk.sync.Client
) -> None:
    """A batch that is tried again repeats nothing, and a killed attempt's rows are taken up where it ended."""
    client.namespace("produced").create()
    stream = client.namespace("produced").create_stream("orders")
    with stream.producer("own") as own:
        own.append(b"own")

        def run(batch: int, rows: slice = slice(0, 3)) -> None:
            writer = FastbkSource(
                {"metadata": cluster.metadata_uri, "stream": "produced/orders"}
            ).streamWriter(SCHEMA, False)
            assert isinstance(writer, FastbkStreamWriter)
            given = batch_of(0).slice(rows.start, rows.stop - rows.start)
            told = writer.attempt(TaskAttempt("spark/query", batch, 0, 0)).write([given])
            writer.commit([told], batch)

        run(0, slice(0, 2))  # an attempt that did not get further
        run(0)
        run(0)
        own.append(b"own")
        run(1)
    with pytest.raises(ConfigError, match="comes after batch 1"):
        run(0)
    with stream.reader("earliest", tail=False) as reader:
        records = list(reader)
    rows = [b"0.%d" % at * 20 for at in range(3)]
    assert [record.value for record in records] == [b"own", *rows, b"own", *rows]
    assert records[2].key == b"1" and records[2].headers == (("n", b"1"),)


def test_an_attempt_waits_for_a_bookie_that_is_started_again(
    cluster: LocalCluster, client: fastbk.sync.Client
) -> None:
    """Of three, on all of which its ledgers are to be: Spark would have used up its four attempts before that."""
    options = {"metadata": cluster.metadata_uri, "stream": "waits/orders", "create": "true"}
    writer = FastbkSource(options).streamWriter(SCHEMA, False)
    assert isinstance(writer, FastbkStreamWriter)
    stream = client.namespace("waits").stream("orders")
    cluster.kill(2)
    with ThreadPoolExecutor(1) as threads:
        attempt = writer.attempt(TaskAttempt("spark/query", 0, 0, 0))
        waiting = threads.submit(attempt.write, [batch_of(0).slice(0, 3)])
        try:
            wait_until(
                lambda: waiting.done() or any(one.ledgers for one in stream.drafts()), "its draft"
            )
        finally:
            cluster.start_bookie(2)
        told = waiting.result(60)
    writer.commit([told], 0)
    assert len(told.ledgers) == 1
    assert stream.info().records == 3
    assert stream.drafts() == []
