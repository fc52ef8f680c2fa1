"""What a reader says of itself, how much it holds, and that no lost watch stops it (INV-S11)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial

import pytest

from fastbk.errors import ClientClosed, ConfigError
from fastbk.stream.chain import truncate
from fastbk.stream.context import StreamContext
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.reader.stream_reader import Lag, StreamReader
from fastbk.stream.records import Chunk, Record
from tests.fixtures.fake_handles import FakeBatch, FakeReader
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of, filled, new_stream, writer_of
from tests.fixtures.wait import wait_until_async


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_lag_falls_to_nothing_and_rises_again() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    await filled(cluster, [4, 6], 5)
    async with StreamReader(context) as reader:
        assert reader.lag.records == 50 and not reader.caught_up()
        waiting = asyncio.ensure_future(reader.wait_caught_up())
        await reader.read(20)
        lag = reader.lag
        assert lag.records == 30 and lag.seconds > 0 and not waiting.done()
        while not reader.caught_up():
            await reader.read(timeout=0.01)
        assert reader.lag == Lag(0, 0.0)
        assert await asyncio.wait_for(waiting, 5) >= DLSN(2, 6, 0)
        async with writer_of(cluster) as writer:
            await writer.append_batch([b"x"] * 3)
            await turns()
            assert reader.lag.records == 3 and not reader.caught_up()


async def test_no_more_is_read_ahead_than_was_allowed() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    async with writer_of(cluster) as writer:
        for _ in range(100):
            await writer.append(bytes(1000))
    async with StreamReader(context, prefetch_bytes=10_000) as reader:
        for seq in range(100):
            await turns(20)
            ahead = reader._ahead
            # One of the fake's batches has seven entries.
            assert ahead is not None and ahead.queued_bytes < 10_000 + 7 * 1300
            (record,) = await reader.read(1, 1)
            assert record.seq == seq


@pytest.mark.slow
async def test_chunks_wait_for_more_as_long_as_they_may() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    async with writer_of(cluster) as writer, StreamReader(context) as reader:
        chunks = reader.chunks(max_wait=0.5)
        reading = asyncio.ensure_future(anext(chunks))
        for at in range(10):
            await writer.append(b"%d" % at)
            await turns(20)
        chunk = await asyncio.wait_for(reading, 5)
        assert isinstance(chunk, Chunk) and len(chunk) == 10, "decoded together"
        await chunks.aclose()


@pytest.mark.parametrize("make", [StreamReader, lambda context: Cursor(context, "c")])
async def test_truncated_records_are_no_lag(
    make: Callable[[StreamContext], StreamReader | Cursor],
) -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    await filled(cluster, [4, 6, 2], 5)
    async with make(context) as reader:
        await reader.read(3)
        assert reader.lag.records == 57
        for segment, left in ((2, 40), (3, 10), (4, 0)):
            await context.store.change(partial(truncate, before=DLSN(segment, 0, 0)))
            await wait_until_async(
                partial(lambda left: reader.lag.records == left, left), "what the chain says"
            )


async def test_iteration_opens_what_is_not_open_and_closes_that() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    async with writer_of(cluster) as writer:
        await writer.append_many([b"x", b"y"])
        assert [bytes(one.payload) async for one in StreamReader(context, tail=False)] == [
            b"x",
            b"y",
        ]
        assert [len(one) async for one in StreamReader(context, tail=False).chunks()] == [2]
        reader = StreamReader(context)
        async for one in reader:
            assert one.seq == 0
            break
        await turns(20)
        assert "closed" in repr(reader), "leaving the loop ends it"
        with pytest.raises(ClientClosed):
            await reader.read()


async def test_handles_say_what_they_are() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    writer, reader, cursor = (
        writer_of(cluster),
        StreamReader(context, tail=False),
        Cursor(context, "c"),
    )
    assert [repr(one) for one in (writer, reader, cursor)] == [
        "<StreamWriter of test/ab, not open>",
        "<StreamReader of test/ab at earliest>",
        "<Cursor test/ab/c: not open>",
    ]
    async with writer, cursor:
        await writer.append(b"x")
        assert repr(writer) == "<StreamWriter of test/ab: last 1.0.0, 0 bytes not acknowledged>"
        async with reader:
            await anext(aiter(reader))
            assert repr(reader) == "<StreamReader of test/ab at 1.1.0>"
        assert repr(cursor) == "<Cursor test/ab/c: mark 1.0.0>"
    assert (repr(writer), repr(reader)) == (
        "<StreamWriter of test/ab, closed>",
        "<StreamReader of test/ab, closed>",
    )


async def test_a_second_task_that_reads_is_told_at_once() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    for make in (lambda: StreamReader(context), lambda: Cursor(context, "c")):
        async with make() as reader:
            first = asyncio.ensure_future(anext(aiter(reader)))
            await turns()
            for read in (reader.read, reader.__anext__, lambda: anext(reader.chunks())):
                with pytest.raises(ConfigError, match="another task"):
                    await read()
            first.cancel()
            await asyncio.wait([first])
            assert await reader.read(timeout=0.01) is None, "one after the other is fine"


async def test_a_reader_fences_nobody() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    async with writer_of(cluster) as writer:
        await writer.append(b"x")
        async with StreamReader(context, tail=False) as reader:
            assert len([one async for one in reader]) == 1
        assert not any(ledger.is_fenced for ledger in cluster.ledgers.values())
        await writer.append(b"y")


async def test_what_makes_no_sense_is_refused() -> None:
    context = await new_stream(Cluster())
    for wrong in ({"prefetch_bytes": 0}, {"on_gap": "skip"}):
        with pytest.raises(ConfigError):
            StreamReader(context, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        await StreamReader(context, "oldest").open()  # type: ignore[arg-type]
    reader = StreamReader(context)
    with pytest.raises(ClientClosed):
        await anext(reader)
    async with reader:
        with pytest.raises(ConfigError):
            await reader.read(0)
    with pytest.raises(ClientClosed):
        await reader.read()


async def test_whoever_waits_has_a_record_before_the_next_poll_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    events: list[str] = []
    context = await new_stream(cluster)
    tail_batches = FakeReader.tail_batches

    async def logged(self: FakeReader, first: int = 0) -> AsyncGenerator[FakeBatch, None]:
        async with contextlib.aclosing(tail_batches(self, first)) as batches:
            events.append("asked")
            async for batch in batches:
                yield batch
                events.append("asked")

    monkeypatch.setattr(FakeReader, "tail_batches", logged)
    async with writer_of(cluster) as writer, StreamReader(context) as reader:

        async def read() -> None:
            await reader.read()
            events.append("has it")

        for _ in range(3):
            waiting = asyncio.ensure_future(read())
            await turns()
            await writer.append(b"x")
            await asyncio.wait_for(waiting, 5)
            await turns()
    assert events[:6] == ["asked", "has it"] * 3


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
