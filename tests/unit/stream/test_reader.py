"""Readers on ledgers in memory: each record once, in order, whatever happens beside them (INV-S11)."""

from __future__ import annotations

import asyncio
import random

import pytest

from fastbk.errors import (
    DataLost,
    MetadataUnavailable,
    NotEnoughBookies,
    PositionTruncated,
    StreamNotFound,
)
from fastbk.meta.records import Change
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN, AtSeq, AtTxid
from fastbk.stream.reader.search import first_sequence
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Gap, Record
from tests.fixtures.fake_handles import FakeReader
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import (
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


async def all_of(reader: StreamReader) -> list[Record]:
    async with reader:
        return [one async for one in reader if isinstance(one, Record)]


async def test_many_small_segments_give_each_record_once() -> None:
    # DistributedLog passed by a whole segment when two "move on" were queued (B15).
    rng = random.Random(5)
    for _ in range(20):
        cluster = Cluster()
        context = await new_stream(cluster)
        expected = await filled(cluster, some_sizes(rng), rng.randint(1, 3))
        for prefetch_bytes in (1, 500, 8 << 20):
            found = await all_of(StreamReader(context, tail=False, prefetch_bytes=prefetch_bytes))
            assert plain(found) == plain(expected), "INV-S11"


async def test_chunks_have_no_more_than_was_asked_for_and_miss_nothing() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)

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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
    cluster = Cluster(plan)
    context = await new_stream(cluster)
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
    cluster = Cluster(NeverClosed())
    context = await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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

    cluster = Cluster()
    context = await new_stream(cluster)
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
