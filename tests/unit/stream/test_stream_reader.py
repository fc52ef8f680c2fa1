"""Readers on ledgers in memory: each record once, in order, whatever happens beside them (INV-S11)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    DataLost,
    MetadataUnavailable,
    NotEnoughBookies,
    PositionTruncated,
    StreamNotFound,
)
from fastbk.meta.records import Change
from fastbk.stream.chain import truncate
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.sync_cursor import SyncCursor
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN, AtSeq, AtTxid, Start
from fastbk.stream.reader.search import first_sequence
from fastbk.stream.reader.stream_reader import Lag, StreamReader
from fastbk.stream.records import Chunk, Gap, Record
from tests.fixtures.fake_handles import FakeBatch, FakeReader
from tests.fixtures.fake_ledgers import Cluster, Counting, FakeClient, Plan
from tests.fixtures.streams import (
    cluster_with_stream,
    context_of,
    filled,
    new_stream,
    plain,
    records_of,
    some_sizes,
    truncated_to,
    writer_of,
)
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from fastbk.stream.context import StreamContext


async def all_of(reader: StreamReader) -> list[Record]:
    async with reader:
        return [one async for one in reader if isinstance(one, Record)]


async def test_many_small_segments_give_each_record_once() -> None:
    # DistributedLog passed by a whole segment when two "move on" were queued (B15).
    rng = random.Random(5)
    for _ in range(20):
        cluster, context = await cluster_with_stream()
        expected = await filled(cluster, some_sizes(rng), rng.randint(1, 3))
        for prefetch_bytes in (1, 500, 8 << 20):
            found = await all_of(StreamReader(context, tail=False, prefetch_bytes=prefetch_bytes))
            assert plain(found) == plain(expected), "INV-S11"


async def test_chunks_have_no_more_than_was_asked_for_and_miss_nothing() -> None:
    cluster, context = await cluster_with_stream()
    expected = await filled(cluster, [9, 1, 30, 4], 3)
    for most, most_bytes in ((1, 1 << 20), (4, 1), (7, 700), (1000, 1 << 20)):
        found: list[Record] = []
        async with StreamReader(context, tail=False) as reader:
            async for chunk in reader.chunks(most, most_bytes):
                assert isinstance(chunk, Chunk) and 1 <= len(chunk) <= most
                found += chunk
                assert reader.position == chunk.next_dlsn or reader.position.segment > chunk.segment
            assert reader.is_at_end and reader.caught_up()
        assert plain(found) == plain(expected)


async def test_any_start_and_end_give_what_a_model_says() -> None:
    rng = random.Random(6)
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [3, 1, 8, 2, 5], 3)
    for _ in range(150):
        start: object = rng.choice(
            [
                "earliest",
                DLSN(rng.randint(1, 6), rng.randint(0, 9), rng.randint(0, 4)),
                AtSeq(rng.randint(0, 60)),
                AtTxid(rng.randint(0, 130)),
            ]
        )
        end: object = rng.choice([None, DLSN(rng.randint(1, 6), 1, 1), AtSeq(rng.randint(0, 60))])
        found = await all_of(StreamReader(context, start, end=end, tail=False))  # type: ignore[arg-type]
        expected = [
            one for one in records if is_behind(one, start) and not (end and is_behind(one, end))
        ]
        assert plain(found) == plain(expected), (start, end)


def is_behind(record: Record, start: object) -> bool:
    if isinstance(start, DLSN):
        return record.dlsn >= start
    if isinstance(start, AtSeq):
        return record.seq >= start.seq
    return not isinstance(start, AtTxid) or record.txid >= start.txid


async def test_a_tail_goes_through_rolls_and_ends_with_a_sealed_stream() -> None:
    # DistributedLog's reader stood still for ever behind a closed segment, or read twice there (B15).
    cluster, context = await cluster_with_stream()
    reading = asyncio.create_task(all_of(StreamReader(context)))
    async with writer_of(cluster) as writer:
        for at in range(60):
            await writer.append(b"%d" % at)
            if at % 4 == 3:
                await writer.roll()
        await writer.seal()
    found = await asyncio.wait_for(reading, 5)
    assert [one.seq for one in found] == list(range(60))
    assert plain(found) == plain(await records_of(cluster))


async def test_a_lone_append_is_seen_at_once_and_a_reader_of_the_latest_sees_only_what_follows() -> (
    None
):
    cluster, context = await cluster_with_stream()
    async with writer_of(cluster) as writer:
        await writer.append(b"before")
        async with StreamReader(context, "latest") as latest, StreamReader(context) as all_:
            first = await all_.read()
            assert first is not None and [bytes(one.payload) for one in first] == [b"before"]
            assert await latest.read(timeout=0.01) is None
            assert latest.caught_up()
            await writer.append(b"alone")
            assert bytes((await asyncio.wait_for(anext(latest), 5)).payload) == b"alone"
            assert (await asyncio.wait_for(anext(all_), 5)).seq == 1


async def test_a_cancelled_read_has_taken_nothing() -> None:
    cluster, context = await cluster_with_stream()
    rng = random.Random(7)
    async with writer_of(cluster) as writer, StreamReader(context) as reader:
        found: list[Record] = []
        for at in range(300):
            writer.append_nowait(b"%d" % at)
            task = asyncio.ensure_future(anext(reader) if rng.random() < 0.5 else reader.read(3))
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            if task.done() or not task.cancel():
                item = task.result()
                assert item is not None
                found += [item] if isinstance(item, Record) else item
        await writer.flush()
        while len(found) < 300:
            assert reader.position >= found[-1].dlsn
            found += await asyncio.wait_for(reader.read(), 5) or ()
    assert [one.seq for one in found] == list(range(300))


async def test_seek_goes_back_and_forward() -> None:
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [4, 4, 4], 2)
    async with StreamReader(context) as reader:
        for where in (records[9].dlsn, AtSeq(3), AtTxid(records[20].txid), "earliest"):
            await reader.seek(where)
            record = await anext(reader)
            assert record in records and is_behind(record, where)
            assert record.seq == next(one.seq for one in records if is_behind(one, where))
        await reader.seek("latest")
        assert reader.position > records[-1].dlsn


# --- truncated --------------------------------------------------------------------------------------------------


async def test_a_reader_that_stands_beyond_the_end_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, _ = await cluster_with_stream()

    def told() -> list[str]:
        events = [getattr(one, "event", "") for one in caplog.records]
        return [one for one in events if one == "stream.reader_beyond_end"]

    async with writer_of(cluster) as writer:
        for payload in (b"a", b"b"):
            await writer.append(payload)
        last = writer.last_dlsn
        assert last is not None
        ordinary = [last, last._replace(slot=1), last._replace(entry=last.entry + 1), DLSN(1, 0, 0)]
        for position, count in [(one, 0) for one in ordinary] + [
            (DLSN(1, 7, 0), 1),
            (DLSN(4, 0, 0), 1),
        ]:
            caplog.clear()
            async with StreamReader(context_of(cluster.client()), position) as reader:
                while await reader.read(timeout=0.05) is not None:
                    pass
                if count:
                    await wait_until_async(lambda: len(told()) == 1, "the line")
                    assert await reader.read(timeout=0.05) is None
            assert len(told()) == count, position


async def test_what_was_truncated_is_said() -> None:
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [4, 4, 4], 2)
    trim = records[11].dlsn
    await truncated_to(context, trim, delete=True)
    assert plain(await all_of(StreamReader(context, tail=False))) == plain(records[11:])
    for start in (DLSN(1, 0, 0), AtSeq(3)):
        async with StreamReader(context, start, tail=False) as reader:
            for _ in range(2):
                with pytest.raises(PositionTruncated) as caught:
                    await anext(reader)
                assert caught.value.first_available == str(trim)
            await reader.seek(DLSN.parse(caught.value.first_available))
            assert (await anext(reader)) == records[11]
        async with StreamReader(context, start, tail=False, on_gap="yield") as reader:
            gap = await anext(reader)
            assert gap == Gap("trimmed", DLSN(1, 0, 0), trim, None)
            assert [one.seq async for one in reader] == list(range(11, 24))


async def test_a_trim_that_passes_a_running_reader_is_told_at_its_next_read() -> None:
    cluster, context = await cluster_with_stream()
    await filled(cluster, [4, 4, 4], 2)
    async with StreamReader(context, on_gap="yield") as reader:
        for seq in range(3):
            assert (await anext(reader)).seq == seq
        await truncated_to(context, DLSN(3, 0, 0), delete=True)
        for _ in range(20):
            await asyncio.sleep(0)
        assert await anext(reader) == Gap("trimmed", DLSN(1, 1, 1), DLSN(3, 0, 0), 13)
        assert (await anext(reader)).seq == 16


async def test_a_reader_that_has_read_all_of_what_is_truncated_is_told_nothing() -> None:
    cluster, context = await cluster_with_stream()
    await filled(cluster, [4, 4], 2)
    async with StreamReader(context) as reader:
        for _ in range(8):
            await anext(reader)
        assert reader.position == DLSN(2, 0, 0) or reader.position == DLSN(1, 4, 0)
        await truncated_to(context, DLSN(2, 0, 0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await anext(reader)).seq == 8


# --- lost -------------------------------------------------------------------------------------------------------


async def test_what_no_bookie_gives_is_said() -> None:
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [6, 3, 4], 2)
    rows = (await context.store.read()).chain.rows
    cluster.ledger(rows[0].ledger_id).lost = {1, 2, 5}
    del cluster.ledgers[rows[1].ledger_id]
    found: list[object] = []
    async with StreamReader(context, tail=False, on_gap="yield") as reader:
        async for one in reader:
            found.append(one if isinstance(one, Gap) else one.seq)
    behind = DLSN(2, 0, 0)
    assert found == [
        0,
        1,
        Gap("lost", DLSN(1, 1, 0), DLSN(1, 3, 0), 4),
        *range(6, 10),
        Gap("lost", DLSN(1, 5, 0), behind, 2),
        Gap("lost", behind, DLSN(3, 0, 0), 6),
        *range(18, 26),
    ]
    async with StreamReader(context, tail=False) as reader:
        for _ in range(2):
            await anext(reader)
        for _ in range(2):
            with pytest.raises(DataLost) as caught:
                await anext(reader)
            assert (caught.value.first, caught.value.next) == ("1.1.0", "1.3.0")
        await reader.seek(DLSN.parse(caught.value.next))
        assert await anext(reader) == records[6]


async def test_a_deleted_stream_ends_its_readers() -> None:
    _, context = await cluster_with_stream()
    async with StreamReader(context) as reader:
        reading = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        known = await context.store.read()
        await context.client.records.change(Change(context.store.path, None, known.version))
        with pytest.raises(StreamNotFound):
            await asyncio.wait_for(reading, 5)
    with pytest.raises(StreamNotFound):
        await StreamReader(context).open()


class Away(Plan):
    """Bookies are away for reads, while told so."""

    is_away = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_away and what == "read":
            raise NotEnoughBookies("bookies are away")


async def test_a_reader_goes_on_after_bookies_were_away() -> None:
    plan = Away()
    cluster, context = await cluster_with_stream(plan)
    await filled(cluster, [5, 20], 2)
    async with StreamReader(context, prefetch_bytes=1) as reader:
        assert (await anext(reader)).seq == 0
        plan.is_away = True
        seen = [0]
        with pytest.raises(NotEnoughBookies):
            while True:
                seen.append((await anext(reader)).seq)
        plan.is_away = False
        while len(seen) < 50:
            seen.append((await anext(reader)).seq)
    assert seen == list(range(50))


class NeverClosed(Plan):
    """Ledgers cannot be closed."""

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "close":
            await asyncio.get_running_loop().create_future()


async def test_the_index_entry_ends_a_segment_whose_ledger_is_open_still() -> None:
    cluster, context = await cluster_with_stream(NeverClosed())
    writer = writer_of(cluster, StreamPolicy(roll_bytes=1000))
    await writer.open()
    async with StreamReader(context) as reader:
        for at in range(16):
            await writer.append(bytes(100))
            for _ in range(20):
                await asyncio.sleep(0)
            assert (await asyncio.wait_for(anext(reader), 5)).seq == at
        assert reader.position.segment == 2
    assert len((await context.store.read()).chain.open_rows) == 2
    writer.abort()
    await asyncio.sleep(0)


async def test_the_second_open_segment_is_numbered_by_what_the_first_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeReader, "last_add_confirmed", FakeReader.try_last_add_confirmed)
    cluster, context = await cluster_with_stream()
    writer = writer_of(cluster)
    await writer.open()
    for at in range(5):
        await writer.append(b"%d" % at)
    writer._engine.lifecycle.prepare()  # type: ignore[union-attr]
    await writer._engine.lifecycle.until_idle()  # type: ignore[union-attr]
    first, second = (await context.store.read()).chain.open_rows
    # Readers know of none of the first one's last entries yet.
    cluster.ledger(first.ledger_id).visible = 2
    assert second.base_seq == -1
    assert await first_sequence(context_of(cluster.client()), second) == 5
    writer.abort()


async def test_a_tail_follows_a_roll_while_metadata_is_away() -> None:
    class Away(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            if what in ("open", "close", "create") or what.startswith("metadata."):
                raise MetadataUnavailable("away")

    cluster, context = await cluster_with_stream()
    writer = writer_of(cluster, StreamPolicy(roll_bytes=600))
    await writer.open()
    async with StreamReader(context) as reader:
        # At half of its size the next segment is made; what comes then still goes to this one.
        while writer._engine.lifecycle.ready is None:  # type: ignore[union-attr]
            await writer.append(b"x" * 100)
            await writer._engine.lifecycle.until_idle()  # type: ignore[union-attr]
        last = (await writer.append(b"known")).segment
        found = 0
        while bytes((await asyncio.wait_for(anext(reader), 5)).payload) != b"known":
            found += 1
        cluster.plan = Away()
        while (await writer.append(b"y" * 100)).segment == last:
            found += 1
        await writer.append(b"behind the roll")
        async with asyncio.timeout(5):
            async for record in reader:
                assert isinstance(record, Record)
                if bytes(record.payload) == b"behind the roll":
                    assert record.dlsn.segment == last + 1
                    break
    assert found
    writer.abort()


# A reader with an end asks for nothing that lies behind it.


@pytest.mark.parametrize(
    ("start", "end", "opens", "reads"),
    [
        (DLSN(1, 0, 0), DLSN(1, 14, 0), 1, 2),
        (DLSN(1, 0, 0), DLSN(1, 14, 1), 1, 3),
        (DLSN(1, 3, 1), DLSN(1, 4, 0), 1, 1),
        (DLSN(1, 0, 0), DLSN(2, 0, 0), 1, 10),
        (DLSN(1, 63, 0), DLSN(1, 900, 0), 1, 1),
        (DLSN(2, 0, 0), DLSN(3, 7, 0), 2, 11),
        (DLSN(3, 0, 0), DLSN(3, 0, 0), 0, 0),
    ],
)
async def test_nothing_behind_the_end_is_read_ahead(
    start: DLSN, end: DLSN, opens: int, reads: int
) -> None:
    plan = Counting()
    cluster, _ = await cluster_with_stream(plan)
    records = await filled(cluster, [70, 70, 70], 2)
    context = context_of(cluster.client())
    plan.calls.clear()
    reader = StreamReader(context, start, end=end)
    found = await asyncio.wait_for(all_of(reader), 5)
    assert plain(found) == plain([one for one in records if start <= one.dlsn < end])
    for _ in range(100):
        await asyncio.sleep(0)
    # Entries come by seven, and a closed segment needs nothing else.
    assert (plan.calls["open"], plan.calls["read"]) == (opens, reads)


# What a reader says of itself, how much it holds, and that no lost watch stops it (INV-S11).


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_lag_falls_to_nothing_and_rises_again() -> None:
    cluster, context = await cluster_with_stream()
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
    cluster, context = await cluster_with_stream()
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
    cluster, context = await cluster_with_stream()
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
    cluster, context = await cluster_with_stream()
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
    cluster, context = await cluster_with_stream()
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
    cluster, context = await cluster_with_stream()
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
    _, context = await cluster_with_stream()
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
    cluster, context = await cluster_with_stream()
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


# A reader or cursor that starts behind an entry's last record ends there with `tail=False`, and
# never hangs.


LAST = DLSN(1, 3, 2)
"""The last record of `new_segment`: four entries of three records."""
BEHIND_SLOT = DLSN(1, 3, 3)
BEHIND_ENTRY = DLSN(1, 4, 0)
WAIT_S = 5.0


async def new_segment(cluster: Cluster, segment: str) -> None:
    """Append four entries of three records to a segment that is then open, closed or recovered."""
    await new_stream(cluster)
    writer = writer_of(cluster)
    await writer.open()
    for _ in range(4):
        await writer.append_batch([b"a", b"b", b"c"])
    if segment == "open":
        await writer.publish()
    if segment == "closed":
        await writer.close()
    writer.abort()
    if segment == "recovered":
        async with writer_of(cluster):
            pass


async def records_left(reader: StreamReader) -> list[Record]:
    async with reader:
        return [one async for one in reader if isinstance(one, Record)]


def acknowledged(records: list[Record], how: str) -> Iterator[Record]:
    """Yield the records that a consumer acknowledges: the last one, or each one out of order."""
    return iter(records[-1:] if how == "ack" else reversed(records))


async def drain_cursor(cluster: Cluster, how: str) -> int:
    """Read a cursor to the end, acknowledge everything, and return the number of records."""
    async with Cursor(context_of(cluster.client()), "c", tail=False) as cursor:
        records = [one async for one in cursor if isinstance(one, Record)]
        for record in acknowledged(records, how):
            if how == "ack":
                await cursor.ack(record)
            else:
                await cursor.ack_one(record)
    return len(records)


def drain_blocking(loop: LoopThread[Any], cluster: Cluster, how: str) -> int:
    """Do the same without `await`."""
    context = context_of(cluster.client())
    with SyncCursor(loop, lambda: Cursor(context, "c", tail=False)) as cursor:
        records = [one for chunk in cursor.chunks() if isinstance(chunk, Chunk) for one in chunk]
        for record in acknowledged(records, how):
            if how == "ack":
                cursor.ack(record).result()
            else:
                cursor.ack_one(record)
    return len(records)


VARIANTS = list(itertools.product(("open", "closed", "recovered"), ("ack", "ack_one")))


@pytest.mark.parametrize(("segment", "how"), VARIANTS)
async def test_a_drained_cursor_ends_when_it_is_opened_again(segment: str, how: str) -> None:
    cluster = Cluster()
    await new_segment(cluster, segment)
    async with asyncio.timeout(WAIT_S):
        assert await drain_cursor(cluster, how) == 12
        assert await drain_cursor(cluster, how) == 0
        async with writer_of(cluster) as writer:
            await writer.append(b"d")
        assert await drain_cursor(cluster, how) == 1, "new records are delivered"
        assert await drain_cursor(cluster, how) == 0


@pytest.mark.parametrize(("segment", "how"), VARIANTS)
def test_a_drained_blocking_cursor_ends_when_it_is_opened_again(segment: str, how: str) -> None:
    cluster = Cluster()
    client = cluster.client()
    loop = LoopThread(lambda: client)  # type: ignore[arg-type, return-value]

    found: list[int] = []

    def drain() -> None:
        with contextlib.suppress(ClientClosed):
            for _ in range(2):
                found.append(drain_blocking(loop, cluster, how))

    try:
        loop.call(lambda: new_segment(cluster, segment))
        thread = threading.Thread(target=drain, daemon=True)
        thread.start()
        thread.join(WAIT_S)
    finally:
        loop.close(WAIT_S)  # ends a drain that hangs
    assert found == [12, 0]


@pytest.mark.parametrize("segment", ["open", "closed", "recovered"])
@pytest.mark.parametrize(
    ("start", "end", "tail"),
    [
        (BEHIND_SLOT, None, False),
        (BEHIND_SLOT, BEHIND_SLOT, True),
        (BEHIND_SLOT, BEHIND_ENTRY, True),
        (DLSN(1, 3, 7), BEHIND_ENTRY, True),
        (LAST, BEHIND_SLOT, True),
        (DLSN(1, 1, 3), DLSN(1, 2, 0), True),
        (DLSN(1, 0, 0), AtSeq(12), True),
        (BEHIND_SLOT, AtSeq(12), True),
        (DLSN(1, 1, 3), AtSeq(6), True),
        (AtSeq(12), AtSeq(12), True),
    ],
)
async def test_a_reader_ends_at_an_end_that_is_there(
    segment: str, start: Start, end: Start | None, tail: bool
) -> None:
    cluster = Cluster()
    await new_segment(cluster, segment)
    expected = {LAST: 1, DLSN(1, 0, 0): 12}.get(start, 0) if isinstance(start, DLSN) else 0
    async with asyncio.timeout(WAIT_S):
        reader = StreamReader(context_of(cluster.client()), start, end=end, tail=tail)
        assert len(await records_left(reader)) == expected


async def test_a_reader_behind_the_last_slot_goes_on_in_the_next_entry() -> None:
    cluster = Cluster()
    await new_segment(cluster, "closed")
    async with asyncio.timeout(WAIT_S):
        reader = StreamReader(context_of(cluster.client()), DLSN(1, 1, 3), tail=False)
        assert [one.dlsn.entry for one in await records_left(reader)] == [2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_reader_behind_the_last_slot_has_caught_up(is_read: bool) -> None:
    cluster = Cluster()
    await new_segment(cluster, "open")
    async with (
        asyncio.timeout(WAIT_S),
        StreamReader(context_of(cluster.client()), BEHIND_SLOT) as reader,
    ):
        waiting = asyncio.ensure_future(reader.wait_caught_up())
        if is_read:
            assert await reader.read(timeout=0.05) is None
        assert await waiting in (BEHIND_SLOT, BEHIND_ENTRY)


@pytest.mark.parametrize("end", [BEHIND_SLOT, BEHIND_ENTRY, None])
async def test_a_reader_waits_for_no_more_records_at_its_end(end: DLSN | None) -> None:
    cluster = Cluster()
    await new_segment(cluster, "open")
    reader = StreamReader(context_of(cluster.client()), end=end, tail=end is not None)
    async with asyncio.timeout(WAIT_S), reader:
        chunks = [one async for one in reader.chunks(max_wait=10 * WAIT_S)]
    assert sum(map(len, chunks)) == 12
