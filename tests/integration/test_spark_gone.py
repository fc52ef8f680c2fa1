"""What goes, comes or gets another name while a query reads: each of its steps may be the one it happens before.

What a query tells of itself: its reports, and its mark as a cursor.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import fastbk
import fastbk.sync
from fastbk.errors import ConfigError, DataLost, Error, PositionTruncated
from fastbk.spark.offset_resolver import OffsetResolver, StreamBounds
from fastbk.spark.offsets import StreamOffset
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.sync import SyncNamespace
from fastbk.testing import LocalCluster
from tests.fixtures.spark_readers import append, between, read, rows, stream_reader

ALL = ReadAllAvailable()


def test_a_task_reads_the_stream_that_was_planned_whatever_has_its_name(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    append(space.create_stream("orders"), 5)
    path = f"{space.path}/orders"
    reader = stream_reader(cluster, stream=path, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = list(reader.partitions(start, end))
    space.rename_stream("orders", "old")
    append(space.create_stream("orders"), 5, b"n" * 100)
    assert read(reader, parts).column("value").to_pylist() == [b"v" * 500] * 5
    assert between(reader, start, end) == list(range(5))
    space.delete_stream("old")
    with pytest.raises(DataLost, match=r'\.option\("failOnDataLoss", "false"\)'):
        read(reader, parts)
    easy = stream_reader(cluster, stream=path, failOnDataLoss="false")
    assert read(easy, parts).num_rows == 0
    assert between(easy, start, end) == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_is_renamed_goes_on_where_it_was(
    cluster: LocalCluster, space: SyncNamespace, fails: str
) -> None:
    append(space.create_stream("a"), 5)
    options = {"streamPattern": f"{space.path}/.*", "failOnDataLoss": fails}
    reader = stream_reader(cluster, startingOffsets="earliest", **options)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    renamed = space.rename_stream("a", "b")
    append(renamed, 3)
    end = reader.latestOffset(start, ALL)
    assert between(reader, start, end) == [5, 6, 7]
    assert reader.latestOffset(end, ALL) == end


def test_what_options_leave_out_for_a_while_goes_on_where_it_was(
    cluster: LocalCluster, client: fastbk.sync.Client, space: SyncNamespace
) -> None:
    for name in ("a", "b"):
        append(space.create_stream(name), 5)
    both = {"stream": f"{space.path}/a,{space.path}/b"}
    reader = stream_reader(cluster, startingOffsets="earliest", **both)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    for name in ("a", "b"):
        append(space.stream(name), 2)
    narrow = stream_reader(cluster, stream=f"{space.path}/a")
    end = narrow.latestOffset(start, ALL)
    assert between(narrow, start, end) == [5, 6]
    wide = stream_reader(cluster, **both)
    assert between(wide, end, wide.latestOffset(end, ALL)) == [5, 6]
    with client.create_ledger() as writer:
        writer.append_nowait(b"x")
    ledgers = stream_reader(cluster, ledgers=str(writer.ledger_id))
    for act in (lambda: ledgers.latestOffset(end, ALL), lambda: ledgers.partitions(start, end)):
        with pytest.raises(ConfigError, match="checkpointLocation"):
            act()


@pytest.mark.parametrize("is_anew", [False, True])
def test_available_now_passes_by_a_stream_that_is_deleted_meanwhile(
    cluster: LocalCluster, space: SyncNamespace, is_anew: bool
) -> None:
    for name in ("gone", "kept"):
        append(space.create_stream(name), 50)
    options = {"streamPattern": f"{space.path}/.*", "failOnDataLoss": "false"}
    reader = stream_reader(
        cluster, startingOffsets="earliest", maxEntriesPerTrigger="40", **options
    )
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sorted(between(reader, start, end)) == sorted([*range(20), *range(20)])
    space.delete_stream("gone")
    if is_anew:
        append(space.create_stream("gone"), 10)
    seen: list[int] = []
    while (start := end) != (end := reader.latestOffset(end, reader.getDefaultReadLimit())):
        seen += between(reader, start, end)
    assert seen == list(range(20, 50))
    later = stream_reader(cluster, **options)
    assert between(later, end, later.latestOffset(end, ALL)) == list(range(10 if is_anew else 0))


def test_what_is_truncated_while_a_batch_is_planned_is_told(
    cluster: LocalCluster, space: SyncNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = space.create_stream("orders")
    append(stream, 150)
    reader = stream_reader(cluster, stream=stream.path, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    look = OffsetResolver.nows_of

    async def delete() -> None:
        async with fastbk.connect(cluster.metadata_uri) as other:
            await Janitor(other, JanitorOptions(), lambda _: None).pass_once()

    def nows_of(self: OffsetResolver, ats: dict[str, StreamOffset]) -> dict[str, StreamBounds]:
        found = look(self, ats)
        stream.truncate(AtSeq(100))
        asyncio.run(delete())
        assert stream.segments()[0].number > 1
        return found

    monkeypatch.setattr(OffsetResolver, "nows_of", nows_of)
    with pytest.raises(PositionTruncated, match="100 records that were not read"):
        reader.partitions(start, end)


@pytest.mark.parametrize("place", [{"seq": 50}, {"segment": 2, "entry": 3}])
def test_a_beginning_that_is_lost_is_told_or_passed_by(
    cluster: LocalCluster, client: fastbk.sync.Client, space: SyncNamespace, place: dict[str, int]
) -> None:
    stream = space.create_stream("orders", PolicyPatch(roll_bytes=1 << 20))
    for _ in range(3):  # each writer begins a segment
        append(stream, 35)
    _, lost, behind = stream.segments()
    client.delete_ledger(lost.ledger_id)
    options = {"stream": stream.path, "startingOffsets": json.dumps({stream.path: place})}
    with pytest.raises(DataLost, match=r'\.option\("failOnDataLoss", "false"\)'):
        rows(cluster, **options)
    found = rows(cluster, failOnDataLoss="false", **options).column("seq").to_pylist()
    assert behind.first_seq == 70
    assert found == list(range(70, 105))


def test_offsets_that_were_shown_of_another_stream_are_refused(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    stream = space.create_stream("orders")
    append(stream, 5)
    reader = stream_reader(cluster, stream=stream.path, startingOffsets="earliest")
    reader.latestOffset(reader.initialOffset(), ALL)
    shown = json.dumps(reader.reportLatestOffset())
    assert rows(cluster, stream=stream.path, endingOffsets=shown).num_rows == 5
    space.delete_stream("orders")
    append(space.create_stream("orders"), 9)
    with pytest.raises(ConfigError, match="made anew"):
        rows(cluster, stream=stream.path, endingOffsets=shown)


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
            writer.append_nowait(b"x" * 100)
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


# --- checkpoints that were changed, or are of another cluster's past ----------------------------------------------


def changed(offsets: dict[str, object], path: str, **fields: object) -> dict[str, object]:
    """Return offsets with other fields of a stream."""
    found = json.loads(json.dumps(offsets))
    found["streams"][path].update(fields)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("place", [("1", "9999", 0), ("99", "0", 0), ("1", str(1 << 61), 5)])
def test_a_place_behind_the_end_is_told_and_no_record_is_passed_by(
    cluster: LocalCluster, space: SyncNamespace, place: tuple[str, str, int]
) -> None:
    """Records that came later were passed by in silence until the place was reached; its mark went there, too."""
    stream = space.create_stream("orders")
    append(stream, 5)
    named = {"stream": stream.path, "startingOffsets": "earliest", "readerName": "billing"}
    reader = stream_reader(cluster, **named)
    good = reader.latestOffset(reader.initialOffset(), ALL)
    segment, entry, slot = place
    hostile = changed(good, stream.path, segment=segment, entry=entry, slot=slot)
    with pytest.raises(
        DataLost, match=r'lost records since.*\.option\("failOnDataLoss", "false"\)'
    ):
        stream_reader(cluster, **named).latestOffset(hostile, ALL)
    (cursor,) = stream.cursors()
    assert cursor.mark == stream.find(seq=0)
    easy = stream_reader(cluster, failOnDataLoss="false", **named)
    end = easy.latestOffset(hostile, ALL)
    assert end == good
    assert between(easy, hostile, end) == []
    append(stream, 3)
    assert between(easy, end, easy.latestOffset(end, ALL)) == [5, 6, 7]
    (cursor,) = stream.cursors()
    assert cursor.mark is not None and cursor.mark <= stream.find(seq=5)  # type: ignore[operator]


def test_a_place_in_an_open_segment_is_told_only_where_nothing_is(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    stream = space.create_stream("orders")
    with stream.writer() as writer:
        for _ in range(4):
            writer.append(b"v")
        reader = stream_reader(cluster, stream=stream.path, startingOffsets="earliest")
        good = reader.latestOffset(reader.initialOffset(), ALL)
        place = good["streams"][stream.path]  # type: ignore[index]
        hostile = changed(good, stream.path, entry=str(int(place["entry"]) + 7))
        with pytest.raises(DataLost, match="ends at"):
            stream_reader(cluster, stream=stream.path).latestOffset(hostile, ALL)
        # Of the last acknowledged entry bookies may not know yet: it is there, so the place stays.
        target = OffsetResolver(reader._options).nows_of(
            {stream.path: StreamOffset(DLSN(1, 0, 0), 0, place["id"])}
        )
        assert not reader._resolver.is_beyond(
            target[stream.path], StreamOffset(DLSN(1, 4, 0), 4, place["id"])
        )
        assert reader._resolver.is_beyond(
            target[stream.path], StreamOffset(DLSN(1, 5, 0), 5, place["id"])
        )


def test_a_number_that_is_not_that_of_its_place_stops_no_query(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    """It looked up the record by its number behind the place, found it before, and stayed there for ever."""
    stream = space.create_stream("orders")
    append(stream, 30)
    options = {"stream": stream.path, "startingOffsets": "earliest", "maxEntriesPerTrigger": "4"}
    reader = stream_reader(cluster, **options)
    start = reader.initialOffset()
    for _ in range(4):
        start = reader.latestOffset(start, ReadMaxRows(4))
    for seq in ("0", str(1 << 61)):
        wrong = changed(start, stream.path, seq=seq)
        end = stream_reader(cluster, **options).latestOffset(wrong, ReadMaxRows(4))
        assert between(reader, start, end) == [16, 17, 18, 19]


def test_a_place_behind_the_end_of_a_ledger_is_told(
    cluster: LocalCluster, client: fastbk.sync.Client
) -> None:
    with client.create_ledger() as writer:
        for _ in range(5):
            writer.append_nowait(b"x")
        writer.append_nowait(b"y")
        ledger = str(writer.ledger_id)
        for _ in range(2):  # open, then closed
            reader = stream_reader(cluster, ledgers=ledger, startingOffsets="earliest")
            hostile = {"ledgers": {ledger: "9"}}
            with pytest.raises(DataLost, match=f"ledger {ledger} was read up to 9"):
                reader.latestOffset(hostile, ALL)
            easy = stream_reader(cluster, ledgers=ledger, failOnDataLoss="false")
            assert easy.latestOffset(hostile, ALL) == {"ledgers": {ledger: "6"}}
            writer.close()


def test_a_checkpoint_that_names_other_streams_is_read_or_told(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    stream = space.create_stream("orders")
    append(stream, 3)
    reader = stream_reader(cluster, stream=stream.path, startingOffsets="earliest")
    good = reader.latestOffset(reader.initialOffset(), ALL)
    place = good["streams"][stream.path]  # type: ignore[index]
    for path in ("../../ledgers", "a\x1b[2J/b", "no-namespace", "", "x" * 100_000 + "/y"):
        hostile = {"streams": {path: {**place, "id": "0" * 16}}}
        with pytest.raises(Error) as caught:
            stream_reader(cluster, stream=stream.path).latestOffset(hostile, ALL)
        assert len(str(caught.value)) < 1000
    with pytest.raises(ConfigError, match="none of this version"):
        stream_reader(cluster, stream=stream.path).latestOffset({"version": 2, **good}, ALL)
