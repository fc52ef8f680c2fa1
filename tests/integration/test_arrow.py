"""Streams and ledgers of real bookies as Arrow tables: whole, parts, gaps, an open end; nobody is fenced."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

import fastbk.sync
from fastbk.arrow import ledger_batches, read_ledger, read_stream, stream_batches
from fastbk.errors import (
    ConfigError,
    DataLost,
    NoSuchEntry,
    NoSuchLedger,
    PositionTruncated,
    StreamNotFound,
)
from fastbk.stream.namespace.sync_namespace import SyncNamespace
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.records import Gap, Record
from fastbk.stream.sync_stream import SyncStream
from fastbk.testing import LocalCluster


def rows_of(records: list[Record], path: str) -> list[dict[str, object]]:
    return [
        {
            "stream": path,
            "partition": 0,
            "segment": one.dlsn.segment,
            "entry": one.dlsn.entry,
            "slot": one.dlsn.slot,
            "seq": one.seq,
            "txid": one.txid,
            "timestamp": one.time,
            "key": one.key,
            "value": bytes(one.payload),
            "headers": [{"key": name, "value": value} for name, value in one.headers],
        }
        for one in records
    ]


def ledger_of(client: fastbk.sync.Client, stream: SyncStream, segment: int) -> int:
    wanted = {"fastbk.stream": stream.info().id.encode(), "fastbk.segment": b"%d" % segment}
    (found,) = [
        one.ledger_id
        for one in client.list_ledgers()
        if wanted.items() <= one.metadata.custom.items()
    ]
    return found


def records_of(stream: SyncStream) -> list[Record]:
    return list(stream.reader(tail=False))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_stream_is_a_table_up_to_what_is_published(
    space: SyncNamespace, cluster: LocalCluster, compression: str
) -> None:
    stream = space.create_stream("s", PolicyPatch(compression=compression))  # type: ignore[arg-type]
    path = stream.path
    with stream.writer() as writer:
        for at in range(60):
            some = [b"%d" % one * 20 for one in range(at * 50, at * 50 + 49)]
            keys = [b"%d" % one if one % 3 else None for one in range(49)]
            writer.append_batch(some, keys=keys)
            writer.append(b"lone", headers=[("at", b"%d" % at), ("at", b"")])
            if at % 20 == 19:
                writer.roll()
        writer.append(b"in the open segment")
        writer.publish()
        # The writer is open, and stays what it is.
        table = read_stream(cluster.metadata_uri, path, headers=True).read_all()
        writer.append(b"behind it").result()
    records = records_of(stream)
    assert len(records) == 3002
    assert stream.info().segments > 3
    assert table.to_pylist() == rows_of(records[:-1], path)
    table.validate(full=True)
    first, end = records[70].dlsn, records[2500].dlsn
    parts = list(stream_batches(stream, first, end, rows_max=100))
    assert [part.num_rows for part in parts] == [100] * 24 + [30]
    assert pa.Table.from_batches(parts).column("seq").to_pylist() == list(range(70, 2500))
    reader = read_stream(cluster.metadata_uri, path, AtSeq(10), AtSeq(20), payload=False)
    assert "value" not in reader.schema.names
    assert reader.read_all().column("seq").to_pylist() == list(range(10, 20))


def test_ranges_that_meet_give_each_record_once(space: SyncNamespace) -> None:
    stream = space.create_stream("parts")
    with stream.writer() as writer:
        for at in range(200):
            writer.append_batch([b"%d" % one * 40 for one in range(at % 5 + 1)])
    records = records_of(stream)
    tail = stream.last_position()
    assert tail is not None
    cuts = [one.dlsn for one in records[::37]]
    # Places between records, too: behind an entry's records, behind a segment's entries, and a segment's beginning.
    cuts += [DLSN(one.dlsn.segment, one.dlsn.entry, 99) for one in records[20::91]]
    cuts += [DLSN(segment, 10**6, 0) for segment in range(1, tail.dlsn.segment)]
    cuts += [DLSN(segment, 0, 0) for segment in range(1, tail.dlsn.segment + 1)]
    cuts = [DLSN(1, 0, 0), *sorted({*cuts}), tail.next]
    seqs: list[int] = []
    for first, end in pairwise(cuts):
        for batch in stream_batches(stream, first, end, wait_s=20):
            seqs += batch.column("seq").to_pylist()
    assert seqs == list(range(len(records)))


def test_an_end_that_is_not_published_yet_is_waited_for_or_an_error(
    space: SyncNamespace,
) -> None:
    stream = space.create_stream("end")
    with stream.writer() as writer:
        writer.append(b"a").result()
        writer.publish()
        end = DLSN(1, 2, 0)
        batches = stream_batches(stream, "earliest", end, wait_s=0.2)
        assert next(batches).column("value").to_pylist() == [b"a"]
        with pytest.raises(NoSuchEntry, match=r"1\.2\.0 was to be the end, .* behind 1\.1\.0"):
            next(batches)
        batches = stream_batches(stream, "earliest", end, rows_max=1, wait_s=60)
        assert next(batches).column("value").to_pylist() == [b"a"]
        writer.append(b"b").result()
        writer.publish()
        assert [one.column("value").to_pylist() for one in batches] == [[b"b"]]


def test_what_is_gone_is_said_or_passed_by(
    space: SyncNamespace, client: fastbk.sync.Client, cluster: LocalCluster
) -> None:
    stream = space.create_stream("gone")
    with stream.writer() as writer:
        for at in range(4):
            writer.append_many([b"%d" % one * 20 for one in range(at * 100, at * 100 + 100)])
            writer.roll()
    records = records_of(stream)
    stream.truncate(records[150].dlsn)
    path, uri = stream.path, cluster.metadata_uri
    with pytest.raises(PositionTruncated):
        read_stream(uri, path, DLSN(1, 0, 0)).read_all()
    assert read_stream(uri, path).read_all().column("seq").to_pylist() == list(range(150, 400))
    client.delete_ledger(ledger_of(client, stream, 3))
    found: list[int] = []
    batches = stream_batches(stream, "earliest")
    with pytest.raises(DataLost):
        for batch in batches:
            found += batch.column("seq").to_pylist()
    assert found == list(range(150, 200))
    gaps: list[Gap] = []
    reader = read_stream(uri, path, DLSN(1, 0, 0), skip_gaps=True, on_gap=gaps.append)
    assert reader.read_all().column("seq").to_pylist() == [*range(150, 200), *range(300, 400)]
    assert [(gap.kind, gap.next) for gap in gaps] == [
        ("trimmed", records[150].dlsn),
        ("lost", DLSN(4, 0, 0)),
    ]
    # Two ranges that meet within what is lost are told of their own parts.
    gaps.clear()
    middle = records[250].dlsn
    for first, end in ((records[199].dlsn, middle), (middle, records[301].dlsn)):
        list(stream_batches(stream, first, end, skip_gaps=True, on_gap=gaps.append))
    assert [(gap.first, gap.next) for gap in gaps] == [
        (DLSN(3, 0, 0), middle),
        (middle, DLSN(4, 0, 0)),
    ]


def test_what_is_wrong_with_the_arguments_is_told_at_once(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    with pytest.raises(StreamNotFound):
        read_stream(uri, "arrow/nothing")
    with pytest.raises(ConfigError, match="shop/orders"):
        read_stream(uri, "")
    with pytest.raises(ConfigError):
        read_stream(uri, "arrow/nothing", rows_max=0)
    with pytest.raises(NoSuchLedger):
        read_ledger(uri, 4711)


def test_a_ledger_is_a_table_also_while_it_is_written(
    client: fastbk.sync.Client, cluster: LocalCluster
) -> None:
    uri = cluster.metadata_uri
    with client.create_ledger(3, 3, 2) as writer:
        datas = [b"%d" % at * (at % 9) for at in range(500)]
        writer.append_many(datas)
        writer.write_last_add_confirmed()
        ledger_id = writer.ledger_id
        with pytest.raises(NoSuchEntry):
            list(ledger_batches(client, ledger_id, 0, 10_000))
        part = read_ledger(uri, ledger_id, 3, 7).read_all()
        assert part.column("entry").to_pylist() == [3, 4, 5, 6, 7]
        writer.append(b"the writer was not fenced")
    table = read_ledger(uri, ledger_id).read_all()
    table.validate(full=True)
    assert table.column("value").to_pylist() == [*datas, b"the writer was not fenced"]
    assert table.column("entry").to_pylist() == list(range(501))
    sizes = [len(data) for data in table.column("value").to_pylist()]
    assert table.column("length").to_pylist() == [sum(sizes[: at + 1]) for at in range(501)]
    batches = list(ledger_batches(client, ledger_id, rows_max=100))
    assert [batch.num_rows for batch in batches] == [100] * 5 + [1]
    assert pa.Table.from_batches(batches) == table
    with pytest.raises(ConfigError):
        read_ledger(uri, ledger_id, 7, 3)
    with client.create_ledger(3, 3, 2) as writer:
        empty = writer.ledger_id
    assert read_ledger(uri, empty).read_all().num_rows == 0


def test_a_client_of_a_uri_is_closed_with_its_reader(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    with fastbk.sync.connect(uri) as client:
        client.namespace("let").create()
        with client.namespace("let").stream("go").writer(create=True) as writer:
            writer.append_many([b"%d" % at for at in range(100)])
        made: list[fastbk.sync.Client] = []

        def connect(*arguments: object) -> fastbk.sync.Client:
            made.append(fastbk.sync.Client(uri))
            return made[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fastbk.sync.connect", connect)
            for read in (lambda reader: reader.read_all(), lambda reader: next(reader), id):
                reader = read_stream(uri, "let/go", rows_max=10)
                read(reader)
                del reader
        assert len(made) == 3
        assert all(one._thread.is_closed for one in made)
        assert read_stream(client, "let/go").read_all().num_rows == 100
        assert client._thread.is_closed is None
