"""Streams without `await` on real bookies: written, tailed, sought, read by chunks; cursors go on at their mark."""

from __future__ import annotations

import threading

import pytest

from fastbk.errors import ClientClosed, CursorFenced
from fastbk.stream.namespace.sync_namespace import SyncNamespace
from fastbk.stream.positions import AtSeq, AtTxid
from fastbk.stream.records import Chunk
from fastbk.stream.sync_stream import SyncStream


def test_what_is_written_is_read_by_records_chunks_and_from_anywhere(
    space: SyncNamespace,
) -> None:
    stream = space.stream("a")
    with stream.writer(create=True) as writer:
        writer.append_many([b"%d" % at * 20 for at in range(1500)])
        writer.roll()
        writer.append_many([b"%d" % at * 20 for at in range(1500, 3000)])
        assert writer.publish() == writer.last_dlsn
    records = list(stream.reader(tail=False))
    assert [one.seq for one in records] == list(range(3000))
    assert [bytes(one.payload) for one in records] == [b"%d" % at * 20 for at in range(3000)]
    assert stream.info().segments > 1
    found = stream.find(seq=2000)
    assert found == records[2000].dlsn == stream.find(txid=2000)
    assert stream.get(AtSeq(7)).dlsn == records[7].dlsn
    assert [one.seq for one in stream.get_many([records[9].dlsn, AtSeq(3)])] == [9, 3]
    first, tail = stream.first(), stream.last_position()
    assert first is not None and tail is not None
    assert (first.seq, tail.seq) == (0, 2999)
    with stream.reader(AtTxid(2990), tail=False) as reader:
        assert reader.position == records[2990].dlsn
        some = next(iter(reader))
        assert some.seq == 2990 and reader.position == records[2991].dlsn
        assert not reader.caught_up()
        rest = [one for chunk in reader.chunks() if isinstance(chunk, Chunk) for one in chunk]
        assert [one.seq for one in rest] == list(range(2991, 3000))
        assert reader.lag.records == 0
        reader.seek("earliest")
        assert len(reader.read(max_records=5)) == 5  # type: ignore[arg-type]
        assert reader.position == records[5].dlsn
    with pytest.raises(ClientClosed):
        _ = reader.position


def test_a_batch_consumer_that_has_read_everything_ends_at_once(space: SyncNamespace) -> None:
    stream = space.stream("drained")
    with stream.writer(create=True) as writer:
        writer.append_batch([b"a", b"b", b"c"]).result()
        writer.publish()
        for expected in (3, 0, 0):  # the segment is open
            assert _read_and_acknowledged(stream) == expected
    assert _read_and_acknowledged(stream) == 0  # and now closed
    last = stream.last_position()
    assert last is not None
    behind = last.dlsn._replace(slot=last.dlsn.slot + 1)
    assert list(stream.reader(behind, end=last.next)) == []


def _read_and_acknowledged(stream: SyncStream) -> int:
    count = 0
    with stream.cursor("batch", tail=False) as cursor:
        for record in cursor:
            cursor.ack(record)
            count += 1
    return count


def test_a_reader_tails_what_another_thread_writes_until_it_is_sealed(
    space: SyncNamespace,
) -> None:
    stream = space.create_stream("tailed")
    found: list[int] = []

    def read() -> None:
        found.extend(record.seq for record in stream.reader("earliest"))

    reader = threading.Thread(target=read)
    reader.start()
    with stream.writer() as writer:
        for at in range(500):
            writer.append(b"%d" % at).result()
            if at % 100 == 99:
                writer.roll()
        writer.seal()
    reader.join(60)
    assert not reader.is_alive()
    assert found == list(range(500))


def test_reading_ends_with_the_client(space: SyncNamespace) -> None:
    stream = space.create_stream("quiet")
    with stream.reader("latest") as reader:
        assert reader.read(timeout=0.05) is None
        threading.Timer(0.2, lambda: space._loop.close(5.0)).start()
        with pytest.raises(ClientClosed):
            next(iter(reader))


def test_a_cursor_goes_on_at_its_mark_and_the_former_holder_is_told(
    space: SyncNamespace,
) -> None:
    stream = space.create_stream("billed")
    with stream.writer() as writer:
        writer.append_many([b"%d" % at for at in range(1000)])
    with stream.cursor("billing", tail=False) as cursor:
        for record in cursor:
            cursor.ack(record, data={"last": record.seq})
            if record.seq == 399:
                break
        cursor.ack_one(stream.get(AtSeq(401)))
        assert (cursor.mark, cursor.data) == (stream.find(seq=400), {"last": 399})
        assert cursor.backlog().records == 599
    (info,) = stream.cursors()
    assert (info.name, info.mark_seq) == ("billing", 400)
    with stream.cursor("billing", tail=False) as old:
        first = next(iter(old))
        assert first.seq == 400
        with stream.cursor("billing", tail=False) as new:
            assert [one.seq for one in new] == [400, *range(402, 1000)]
        old.ack(first)
        with pytest.raises(CursorFenced):
            old.flush()
        old.abort()
    with stream.cursor("billing", tail=False) as cursor:
        cursor.reset(AtSeq(998))
        assert [one.seq for one in cursor] == [998, 999]
    assert stream.delete_cursor("billing") and not stream.delete_cursor("billing")
    assert stream.cursors() == []
