"""Streams of real bookies as Arrow tables, also while they are written; nobody is fenced.

Ranges, gaps and ledgers are tested on memory (tests/unit/arrow), ledgers on bookies by `ledger export`.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import fastbk.sync
from fastbk.arrow import read_stream, stream_batches
from fastbk.errors import NoSuchEntry, StreamNotFound
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.records import Record
from fastbk.stream.sync import SyncNamespace
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
            writer.append_batch_nowait(some, keys=keys)
            writer.append_nowait(b"lone", headers=[("at", b"%d" % at), ("at", b"")])
            if at % 20 == 19:
                writer.roll()
        writer.append_nowait(b"in the open segment")
        writer.publish()
        # The writer is open, and stays what it is.
        table = read_stream(cluster.metadata_uri, path, headers=True).read_all()
        writer.append(b"behind it")
    records = list(stream.reader(tail=False))
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


def test_an_end_that_is_not_published_yet_is_waited_for_or_an_error(space: SyncNamespace) -> None:
    stream = space.create_stream("end")
    with stream.writer() as writer:
        writer.append(b"a")
        writer.publish()
        end = DLSN(1, 2, 0)
        batches = stream_batches(stream, "earliest", end, wait_s=0.2)
        assert next(batches).column("value").to_pylist() == [b"a"]
        with pytest.raises(NoSuchEntry, match=r"1\.2\.0 was to be the end, .* behind 1\.1\.0"):
            next(batches)
        batches = stream_batches(stream, "earliest", end, rows_max=1, wait_s=60)
        assert next(batches).column("value").to_pylist() == [b"a"]
        writer.append(b"b")
        writer.publish()
        assert [one.column("value").to_pylist() for one in batches] == [[b"b"]]


def test_a_client_of_a_uri_is_closed_with_its_reader(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    with pytest.raises(StreamNotFound):
        read_stream(uri, "let/nothing")
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
