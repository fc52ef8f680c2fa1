"""How far a reader or a cursor is behind, and where it is: records, bytes, seconds, by what it knows itself."""

from __future__ import annotations

import time

from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.reader.stream_reader import Lag, StreamReader
from fastbk.stream.records import Chunk, Record
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of, filled, new_stream


async def filled_cluster() -> Cluster:
    """Two segments of ten entries with five records each."""
    made = Cluster()
    await new_stream(made)
    await filled(made, [10, 10], 5)
    return made


async def test_a_reader_that_begins_in_the_middle_does_not_count_what_is_before_it() -> None:
    cluster = await filled_cluster()
    async with StreamReader(context_of(cluster.client()), AtSeq(60)) as reader:
        assert 40 <= reader.lag.records <= 50, "before the first record its segment counts"
        first = await anext(reader)
        assert isinstance(first, Record) and first.seq == 60
        assert reader.lag.records == 39


async def test_a_cursor_is_behind_by_what_was_not_handed_out() -> None:
    cluster = await filled_cluster()
    chain = (await context_of(cluster.client()).store.read()).chain
    each = sum(row.size_bytes for row in chain.rows) / 100
    async with Cursor(context_of(cluster.client()), "c") as cursor:
        assert cursor.position == DLSN(1, 0, 0) and cursor.lag.records == 100
        for handed_out in range(1, 31):
            record = await anext(cursor)
            assert isinstance(record, Record)
            lag = cursor.lag
            assert lag.records == 100 - handed_out
            assert lag.size_bytes == round(lag.records * each) > 0
            assert 0 < lag.seconds <= time.time() - record.time_us / 1e6
        assert cursor.position == DLSN(1, 6, 0)
        assert (await cursor.backlog()).records == 100, "nothing is acknowledged"
        found = await cursor.read(7)
        assert isinstance(found, Chunk) and found.first.dlsn == DLSN(1, 6, 0)
        assert (cursor.lag.records, cursor.position) == (63, found.last.dlsn._replace(slot=2))
        assert isinstance(record, Record)
        await cursor.ack(record)
    async with Cursor(context_of(cluster.client()), "c") as cursor:
        assert cursor.lag.records == 70 and DLSN(1, 5, 4) < cursor.position <= DLSN(1, 6, 0)
        await cursor.reset(AtSeq(95))
        assert cursor.position == DLSN(2, 9, 0)
        async for record in cursor:
            assert isinstance(record, Record)
            cursor.ack(record)
            if record.seq == 99:
                break
        assert cursor.lag == Lag(0, 0.0)


async def test_what_is_done_already_is_not_waited_for() -> None:
    cluster = await filled_cluster()
    async with Cursor(context_of(cluster.client()), "c") as cursor:
        found = await cursor.read(100)
        assert isinstance(found, Chunk)
        for at in (10, 11, 30):
            await cursor.ack_one(found[at])
        cursor.ack(found[4])
    async with Cursor(context_of(cluster.client()), "c") as cursor:
        assert cursor.lag.records == 92
        assert DLSN(1, 0, 4) < cursor.position <= DLSN(1, 1, 0)
        assert cursor.lag.records == (await cursor.backlog()).records
