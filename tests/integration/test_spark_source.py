"""The Spark source's parts without Spark running: planned and read as Spark does it, on real bookies."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import fastbk.sync
from fastbk.errors import ConfigError, DataLost, Error, PositionTruncated, StreamNotFound
from fastbk.spark.readers import StreamPart, StreamReader
from fastbk.stream.positions import AtSeq
from fastbk.stream.sync import SyncNamespace
from fastbk.testing import LocalCluster
from tests.fixtures.spark_readers import (
    append,
    batch_reader,
    between,
    read,
    rows,
    source,
    stream_reader,
)


def test_a_stream_is_read_whole_in_parts(cluster: LocalCluster, space: SyncNamespace) -> None:
    stream = space.create_stream("orders")
    append(stream, 200)
    for options in ({}, {"minPartitions": "7"}, {"targetPartitionBytes": "3000"}):
        reader = batch_reader(cluster, stream=stream.path, **options)
        parts = list(reader.partitions())
        table = read(reader, parts)
        assert table.column("seq").to_pylist() == list(range(200))
        assert len(parts) >= {"minPartitions": 7, "targetPartitionBytes": 20}.get(
            next(iter(options), ""), 1
        )
    made = source(cluster, stream=stream.path, includeHeaders="true")
    wanted = to_arrow_schema(made.schema(), timezone="UTC")
    full = made.reader(made.schema())
    (batch, *_) = full.read(full.partitions()[0])
    assert wanted.equals(batch.schema)


def test_the_open_segment_is_read_and_its_writer_goes_on(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    stream = space.create_stream("orders")
    with stream.writer() as writer:
        for _ in range(3):
            writer.append(b"x" * 100)
        assert rows(cluster, stream=stream.path, payload="false").column_names[-1] == "key"
        assert rows(cluster, stream=stream.path).column("seq").to_pylist() == [0, 1, 2]
        writer.append(b"y")
    assert rows(cluster, stream=stream.path).num_rows == 4


def test_places_to_begin_and_end(cluster: LocalCluster, space: SyncNamespace) -> None:
    stream = space.create_stream("orders")
    append(stream, 100)
    path = stream.path

    def numbers(**options: str) -> list[int]:
        return rows(cluster, stream=path, **options).column("seq").to_pylist()

    dlsn = stream.find(seq=61)
    assert dlsn is not None
    place = {"segment": dlsn.segment, "entry": dlsn.entry, "slot": dlsn.slot}
    assert numbers(startingOffsets=json.dumps({path: place})) == list(range(61, 100))
    assert numbers(endingOffsets=json.dumps({"streams": {path: {"seq": 61}}})) == list(range(61))
    assert numbers(startingOffsets="latest") == []
    time = stream.get(AtSeq(50)).time
    assert numbers(startingTimestamp=time.isoformat())[-50:] == list(range(50, 100))
    assert numbers(endingTimestamp=(datetime.now(UTC) + timedelta(days=1)).isoformat()) == list(
        range(100)
    )
    for wrong in ({path: {"seq": 101}}, {path: "9.0.0"}, {"no/such": "latest"}, {path: "here"}):
        with pytest.raises(ConfigError):
            numbers(startingOffsets=json.dumps(wrong))
    with pytest.raises(StreamNotFound, match="create it"):
        rows(cluster, stream=f"{space.path}/none")


def test_patterns_match_whole_paths(cluster: LocalCluster, space: SyncNamespace) -> None:
    for name in ("a1", "a2", "b1"):
        append(space.create_stream(name), 2)
    found = rows(cluster, streamPattern=f"{space.path}/a.")
    assert sorted(set(found.column("stream").to_pylist())) == [
        f"{space.path}/a1",
        f"{space.path}/a2",
    ]
    assert rows(cluster, streamPattern=f"({space.path}|nowhere)/b1").num_rows == 2
    assert rows(cluster, streamPattern=f"{space.path}+/b1").num_rows == 2
    assert rows(cluster, streamPattern=f"{space.path}/{{1}}b1").num_rows == 2
    assert batch_reader(cluster, streamPattern="no/such/.*").partitions() == []
    assert list(batch_reader(cluster, stream=f"{space.path}/b1").read(InputPartition(None))) == []


def test_ledgers_are_read_by_id_and_the_open_one_goes_on(
    cluster: LocalCluster, client: fastbk.sync.Client
) -> None:
    ids = []
    for count in (30, 0):
        with client.create_ledger() as writer:
            for at in range(count):
                writer.append(b"%d" % at * 50)
        ids.append(writer.ledger_id)
    with client.create_ledger() as writer:
        for at in range(5):
            writer.append(b"open %d" % at)
        writer.append(b"last")
        ids.append(writer.ledger_id)
        named = ",".join(map(str, ids))
        reader = batch_reader(cluster, ledgers=named, targetPartitionBytes="500")
        parts = list(reader.partitions())
        found = read(reader, parts)
        entries = [
            entry
            for one, entry in zip(*map(pa.ChunkedArray.to_pylist, found.columns[:2]), strict=True)
            if one == ids[0]
        ]
        assert entries == list(range(30)) and len(parts) > 4
        assert found.num_rows >= 35
        writer.append(b"still mine")
    start = json.dumps({str(ids[0]): 25, str(ids[2]): "latest"})
    assert rows(cluster, ledgers=named, startingOffsets=start).num_rows == 5
    for fails, said in (("true", Error), ("false", None)):
        gone = {"ledgers": f"{ids[0]},999999", "failOnDataLoss": fails}
        if said is None:
            assert rows(cluster, **gone).num_rows == 30
        else:
            with pytest.raises(said, match=r'999999.*\.option\("failOnDataLoss", "false"\)'):
                rows(cluster, **gone)


def test_filters_narrow_what_is_read(cluster: LocalCluster, space: SyncNamespace) -> None:
    stream = space.create_stream("orders")
    append(stream, 200)
    append(space.create_stream("other"), 3)
    pattern = f"{space.path}/.*"
    half = stream.get(AtSeq(100))

    def narrowed(*filters: object) -> pa.Table:
        reader = batch_reader(cluster, streamPattern=pattern, filterPushdown="true")
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return read(reader, list(reader.partitions()))

    assert narrowed(EqualTo(("stream",), f"{space.path}/other")).num_rows == 3
    ours = EqualTo(("stream",), stream.path)
    assert narrowed(ours, GreaterThanOrEqual(("seq",), 50), LessThan(("seq",), 60)).column(
        "seq"
    ).to_pylist() == list(range(50, 60))
    found = narrowed(ours, EqualTo(("segment",), 2), GreaterThanOrEqual(("entry",), 3))
    assert set(found.column("segment").to_pylist()) == {2}
    assert min(found.column("entry").to_pylist()) == 3
    later = narrowed(ours, GreaterThanOrEqual(("timestamp",), half.time)).column("seq").to_pylist()
    assert set(range(101, 200)) <= set(later) and len(later) < 200


def _behind(reader: StreamReader) -> tuple[int, int]:
    """Return what is told of records and milliseconds that a query is behind; nothing before a batch was planned."""
    told = reader.reportLatestOffset()
    assert told is not None
    behind = told["behind"]
    assert isinstance(behind, dict)
    return behind["records"], behind["milliseconds"]


def test_a_stream_is_followed_within_limits(cluster: LocalCluster, space: SyncNamespace) -> None:
    stream = space.create_stream("orders")
    append(stream, 50)
    options = {"startingOffsets": "earliest", "maxEntriesPerTrigger": "30"}
    reader = stream_reader(cluster, stream=stream.path, **options)
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    seen: list[int] = []
    sizes = []
    while (end := reader.latestOffset(start, limit)) != start:
        some = between(reader, start, end)
        seen += some
        sizes.append(len(some))
        assert (
            reader.initialOffset()
            == stream_reader(cluster, stream=stream.path, **options).initialOffset()
        )
        start = end
    assert (seen, sizes) == (list(range(50)), [30, 20])
    assert _behind(reader) == (0, 0)
    append(stream, 5)
    assert reader.latestOffset(start, ReadMaxRows(2)) != start
    records, age_ms = _behind(reader)
    assert records == 3 and 0 < age_ms < 120_000
    start = reader.latestOffset(start, ReadAllAvailable())
    append(stream, 20)
    # Another process goes on by the checkpoint, whatever the options say about a beginning.
    later = stream_reader(cluster, stream=stream.path, startingOffsets="latest")
    end = later.latestOffset(start, ReadAllAvailable())
    assert between(later, start, end) == list(range(55, 75))
    few = later.latestOffset(start, ReadMaxBytes(2600))
    assert 3 <= len(between(later, start, few)) <= 7


def test_available_now_ends_at_what_was_there(cluster: LocalCluster, space: SyncNamespace) -> None:
    stream = space.create_stream("orders")
    append(stream, 10)
    reader = stream_reader(cluster, stream=stream.path, startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    append(stream, 10)
    append(space.create_stream("later"), 1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert between(reader, start, end) == list(range(10))
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_new_streams_are_read_from_their_beginning_also_when_planned_again(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    append(space.create_stream("a"), 5)
    pattern = f"{space.path}/.*"
    reader = stream_reader(cluster, streamPattern=pattern)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    append(space.create_stream("b"), 40)
    space.stream("b").truncate(AtSeq(4))
    end = reader.latestOffset(start, ReadMaxRows(6))
    assert between(reader, start, end) == list(range(4, 10))
    again = stream_reader(cluster, streamPattern=pattern)
    assert between(again, start, end) == list(range(4, 10))
    last = again.latestOffset(end, ReadAllAvailable())
    assert between(again, end, last) == list(range(10, 40))
    space.stream("b").truncate(AtSeq(7))
    with pytest.raises(PositionTruncated, match="failOnDataLoss"):
        again.partitions(start, end)


def test_what_was_truncated_ends_a_query_unless_that_may_be(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    stream = space.create_stream("orders")
    append(stream, 100)
    reader = stream_reader(cluster, stream=stream.path, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = [part for part in reader.partitions(start, end) if isinstance(part, StreamPart)]
    stream.truncate(AtSeq(60))
    for act in (
        lambda: reader.latestOffset(start, ReadMaxRows(10)),
        lambda: reader.partitions(start, end),
    ):
        with pytest.raises(
            PositionTruncated, match=r'60 records.*\.option\("failOnDataLoss", "false"\)'
        ):
            act()
    with pytest.raises(DataLost, match=r'truncated.*\.option\("failOnDataLoss", "false"\)'):
        read(reader, list(parts))
    easy = stream_reader(cluster, stream=stream.path, failOnDataLoss="false")
    assert between(easy, start, end) == list(range(60, 100))
    assert read(easy, list(parts)).column("seq").to_pylist() == list(range(60, 100))
    wanted = json.dumps({stream.path: {"seq": 3}})
    with pytest.raises(PositionTruncated, match="startingOffsets"):
        rows(cluster, stream=stream.path, startingOffsets=wanted)
    assert (
        rows(cluster, stream=stream.path, startingOffsets=wanted, failOnDataLoss="false").num_rows
        == 40
    )


@pytest.mark.parametrize("which", [0, 1])
def test_a_ledger_that_is_gone_ends_a_query_or_is_passed_by(
    cluster: LocalCluster, client: fastbk.sync.Client, space: SyncNamespace, which: int
) -> None:
    stream = space.create_stream(f"orders{which}")
    append(stream, 150)
    segments = stream.segments()
    gone = segments[which]
    client.delete_ledger(gone.ledger_id)
    left = [at for at in range(150) if not gone.first_seq <= at < gone.first_seq + gone.records]
    with pytest.raises(
        DataLost, match=rf'from {gone.number}\.0\.0.*\.option\("failOnDataLoss", "false"\)'
    ):
        rows(cluster, stream=stream.path)
    easy = {"stream": stream.path, "failOnDataLoss": "false"}
    assert rows(cluster, **easy).column("seq").to_pylist() == left
    reader = stream_reader(cluster, startingOffsets="earliest", maxEntriesPerTrigger="30", **easy)
    start, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        seen += between(reader, start, end)
        start = end
    assert seen == left


def test_a_stream_that_is_deleted_or_made_anew_is_told(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    append(space.create_stream("orders"), 10)
    path = f"{space.path}/orders"
    reader = stream_reader(cluster, stream=path, startingOffsets="earliest")
    easy = stream_reader(cluster, stream=path, failOnDataLoss="false")
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    space.delete_stream("orders")
    with pytest.raises(StreamNotFound):
        reader.latestOffset(start, ReadAllAvailable())
    assert easy.latestOffset(start, ReadAllAvailable()) == {"streams": {}}
    append(space.create_stream("orders"), 3)
    with pytest.raises(DataLost, match="made anew"):
        reader.latestOffset(start, ReadAllAvailable())
    end = easy.latestOffset(start, ReadAllAvailable())
    assert between(easy, start, end) == [0, 1, 2]


def test_ledgers_are_followed(cluster: LocalCluster, client: fastbk.sync.Client) -> None:
    with client.create_ledger() as writer:
        for at in range(10):
            writer.append(b"%d" % at)
        writer.append(b"x")
        ledger = str(writer.ledger_id)
        reader = stream_reader(
            cluster, ledgers=ledger, startingOffsets="earliest", maxEntriesPerTrigger="4"
        )
        start = reader.initialOffset()
        assert start == {"ledgers": {ledger: "0"}}
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert end == {"ledgers": {ledger: "4"}}
        found = read(reader, list(reader.partitions(start, end)))
        assert found.column("entry").to_pylist() == [0, 1, 2, 3]
    end = reader.latestOffset(end, ReadAllAvailable())
    assert end == {"ledgers": {ledger: "11"}}
