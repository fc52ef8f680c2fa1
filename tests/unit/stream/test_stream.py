"""Truncation: to the record, never back, never beyond the end (INV-S7)."""

from __future__ import annotations

import asyncio

from fastbk.errors import AppendUnknown, MetadataUnavailable, StorageError, WriterFailed
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN, FIRST, AtSeq, AtTxid
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Record
from fastbk.stream.stream import truncate
from tests.fixtures.fake_ledgers import FakeClient, Plan
from tests.fixtures.streams import (
    chain_of,
    cluster_with_stream,
    context_of,
    filled,
    records_of,
    write_segments,
    writer_of,
)

FAR = DLSN(10**9, 0, 0)


async def test_an_empty_stream_has_nothing_to_cut_off() -> None:
    cluster, _ = await cluster_with_stream()
    assert await truncate(context_of(cluster.client()), FAR) == FIRST


async def test_it_is_exact_and_never_falls() -> None:
    cluster, _ = await cluster_with_stream()
    client = cluster.client()
    await write_segments(client, 3)
    context = context_of(client)
    for before, holds in [
        (DLSN(2, 1, 0), DLSN(2, 1, 0)),
        (DLSN(1, 2, 0), DLSN(2, 1, 0)),
        (DLSN(2, 1, 0), DLSN(2, 1, 0)),
        (DLSN(3, 0, 0), DLSN(3, 0, 0)),
        (FAR, DLSN(4, 0, 0)),
        (FIRST, DLSN(4, 0, 0)),
    ]:
        assert await truncate(context, before) == holds
        assert (await chain_of(cluster)).trim == holds


async def test_it_takes_numbers_and_ids_as_readers_do() -> None:
    cluster, _ = await cluster_with_stream()
    client = cluster.client()
    await write_segments(client, 3)
    context = context_of(client)
    assert await truncate(context, AtSeq(4)) == DLSN(2, 1, 0)
    assert await truncate(context, AtTxid(5)) == DLSN(2, 2, 0)
    assert await truncate(context, AtSeq(1)) == DLSN(2, 2, 0)
    end = await truncate(context, "latest")
    assert DLSN(3, 2, 0) < end <= DLSN(4, 0, 0)


async def test_it_cuts_inside_the_open_segment_up_to_what_is_acknowledged() -> None:
    cluster, _ = await cluster_with_stream()
    writer = writer_of(cluster)
    await writer.open()
    for _ in range(4):
        last = await writer.append(b"x")
    context = context_of(cluster.client())
    assert await truncate(context, DLSN(1, 2, 0)) == DLSN(1, 2, 0)
    assert await truncate(context, FAR) == DLSN(1, last.entry + 1, 0)
    assert await writer.append(b"y") == DLSN(1, last.entry + 1, 0)
    writer.abort()


async def test_an_open_segment_that_is_empty_and_made_ahead_is_not_cut() -> None:
    """Its number is used again when it leaves the chain: what lies before it does not end with it."""
    cluster, _ = await cluster_with_stream()
    writer = writer_of(cluster, policy=StreamPolicy(roll_bytes=500))
    await writer.open()
    last = await writer.append(bytes(300))
    while len((await chain_of(cluster)).open_rows) < 2:
        last = await writer.append(b"")
    assert await truncate(context_of(cluster.client()), FAR) == DLSN(1, last.entry + 1, 0)
    writer.abort()


# Defects that other log systems had, each shown not to be here; the README of streams names all
# of these tests.


PATIENCE_S = 10.0


class Script(Plan):
    """The appends of these numbers fail; metadata is away, while told so; recovery keeps `keeps` of what is unsure."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.is_away = False
        self.keeps = 0
        self._appends = 0

    async def before(self, client: FakeClient, what: str) -> None:
        if what.startswith("metadata") and self.is_away:
            raise MetadataUnavailable("it is away")
        if what == "append":
            self._appends += 1
            if self._appends - 1 in self.failing:
                raise StorageError("this one fails")

    def kept(self, ledger_id: int, unacknowledged: int) -> int:
        return min(self.keeps, unacknowledged)


async def test_the_head_of_a_pipeline_fails_alone_and_leaves_no_hole() -> None:
    """Pulsar: one send failed, later ones were kept, and the resend was taken for a duplicate and acknowledged.

    Here all behind the first failure fail, none of them is kept, and the last id of the stream says where to go on.
    """
    plan = Script()
    cluster, _ = await cluster_with_stream(plan)
    writer = writer_of(cluster, batch_bytes=1)
    await writer.open()
    await writer.append(b"0", txid=0)
    plan.failing = {1}
    futures = [writer.append_nowait(b"%d" % txid, txid=txid) for txid in range(1, 40)]
    ends = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), PATIENCE_S)
    assert all(isinstance(one, AppendUnknown | WriterFailed) for one in ends), "none acknowledged"
    writer.abort()
    async with writer_of(cluster) as later:
        assert later.last_txid == 0, "nothing behind the hole counts"
        await later.append_many((b"%d" % txid for txid in range(1, 40)), txids=range(1, 40))
    assert [bytes(one.payload) for one in await records_of(cluster)] == [
        b"%d" % txid for txid in range(40)
    ]


async def test_a_resend_after_a_crash_is_judged_by_what_the_ledgers_hold() -> None:
    """Pulsar: a watermark that was kept beside the data was not rebuilt, and records came twice.

    Here it is the last record's own id, whatever part of what was under way recovery has kept.
    """
    for keeps in range(4):
        plan = Script()
        plan.keeps = keeps
        cluster, _ = await cluster_with_stream(plan)
        writer = writer_of(cluster, batch_bytes=1)
        await writer.open()
        for txid in range(5):
            await writer.append(b"%d" % txid, txid=txid)
        ledger = next(one for one in cluster.ledgers.values() if one.entries)
        under_way = [writer.append_nowait(b"%d" % txid, txid=txid) for txid in range(5, 8)]
        await asyncio.sleep(0)
        writer.abort()
        assert ledger.acknowledged == 5
        async with writer_of(cluster) as later:
            assert 4 <= later.last_txid <= 7
            todo = range(later.last_txid + 1, 10)
            await later.append_many((b"%d" % txid for txid in todo), txids=todo)
        await asyncio.gather(*under_way, return_exceptions=True)
        found = [one.txid for one in await records_of(cluster)]
        assert found == list(range(10)), f"{keeps} were kept"


async def test_a_tail_that_no_reader_could_see_yet_is_there_after_a_takeover() -> None:
    """Pravega: ledgers that were opened without recovery lost the end that was acknowledged."""
    cluster, _ = await cluster_with_stream()
    writer = writer_of(cluster, batch_bytes=1, publish="piggyback")
    await writer.open()
    for _ in range(10):
        await writer.append(b"x")
    ledger = next(one for one in cluster.ledgers.values() if one.entries)
    assert ledger.visible < ledger.acknowledged == 10, "the last one is not published"
    writer.abort()
    async with writer_of(cluster) as later:
        assert later.last_txid == 9
    assert len(await records_of(cluster)) == 10


async def test_an_empty_segment_of_a_dead_writer_holds_up_nobody() -> None:
    """S14. DistributedLog: behind an empty segment the last id was not the greatest one, and no writer could open."""
    cluster, _ = await cluster_with_stream()
    for turn in range(4):
        writer = writer_of(cluster)
        await writer.open()
        assert writer.last_txid == (-1 if turn == 0 else 10 * turn)
        await writer.append(b"x", txid=10 * (turn + 1))
        await writer.roll()  # the segment behind it is made, and stays empty
        writer.abort()
    async with writer_of(cluster) as last:
        assert last.last_txid == 40
        await last.append(b"y")
    assert [one.txid for one in await records_of(cluster)] == [10, 20, 30, 40, 41]


async def test_after_a_failure_the_stream_can_be_written_at_once() -> None:
    """Pravega: after an error a writer could not be used, and no other one took its place."""
    plan = Script()
    cluster, _ = await cluster_with_stream(plan)
    for turn in range(5):
        plan.failing = {3 * turn + 1}
        writer = writer_of(cluster, batch_bytes=1)
        await writer.open()
        plan._appends = 3 * turn
        await asyncio.wait_for(writer.append(b"kept"), PATIENCE_S)
        future = writer.append_nowait(b"fails")
        await asyncio.wait_for(asyncio.wait([future]), PATIENCE_S)
        assert isinstance(future.exception(), AppendUnknown)
        writer.abort()
    plan.failing = set()
    async with writer_of(cluster) as writer:
        await writer.append(b"end")
    found = [bytes(one.payload) for one in await records_of(cluster)]
    assert found.count(b"kept") == 5 and found[-1] == b"end"


async def test_what_is_cut_off_in_the_open_segment_is_read_by_nobody() -> None:
    """Pravega: truncation did not reach into the ledger that was written, and readers got what was truncated."""
    cluster, context = await cluster_with_stream()
    async with writer_of(cluster, batch_bytes=1) as writer, StreamReader(context) as running:
        places = [await writer.append(b"%d" % at) for at in range(10)]
        assert await truncate(context_of(cluster.client()), places[6]) == places[6]
        async with StreamReader(context_of(cluster.client()), tail=False) as reader:
            assert [one.seq async for one in reader if isinstance(one, Record)] == [6, 7, 8, 9]
        await running.seek("earliest")
        found = await asyncio.wait_for(running.read(), PATIENCE_S)
        assert isinstance(found, Chunk) and found.first.seq == 6


async def test_going_back_while_a_read_is_under_way_stalls_nothing() -> None:
    """Pulsar: a cursor that was rewound beside a read in flight stood still."""
    cluster, _ = await cluster_with_stream()
    await filled(cluster, [3, 3])
    context = context_of(cluster.client())
    async with StreamReader(context) as reader:
        for _ in range(20):
            while not reader.caught_up():
                await reader.read(timeout=0.01)
            waiting = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0)
            await reader.seek(AtSeq(2))
            found = await asyncio.wait_for(waiting, PATIENCE_S)
            assert isinstance(found, Chunk) and found.first.seq == 2
    async with Cursor(context_of(cluster.client()), "c") as cursor:
        for turn in range(5):
            for seq in range(turn, 6):
                record = await asyncio.wait_for(anext(cursor), PATIENCE_S)
                assert record.seq == seq  # type: ignore[union-attr]
                cursor.ack(record)  # type: ignore[arg-type]
            following = asyncio.ensure_future(anext(cursor))
            await asyncio.sleep(0)
            following.cancel()
            await asyncio.wait([following])
            await cursor.reset(AtSeq(turn + 1))
        assert cursor.mark == DLSN(2, 2, 0) and cursor.mark_seq in (-1, 5)


async def test_a_place_and_what_belongs_to_it_are_kept_together() -> None:
    """Pulsar: a pair of numbers was not kept as one, and a crash between them made duplicates."""
    cluster, _ = await cluster_with_stream()
    await filled(cluster, [20])
    kept = -1
    for _ in range(6):
        cursor = Cursor(context_of(cluster.client()), "c", flush_interval=0.001, flush_acks=1)
        await cursor.open()
        assert (cursor.mark_seq, cursor.data) == (
            (kept + 1, {"row": kept}) if kept >= 0 else (cursor.mark_seq, {})
        )
        for _ in range(3):
            record = await anext(cursor)
            assert record.seq > kept  # type: ignore[union-attr]
            await cursor.ack(record, data={"row": record.seq})  # type: ignore[arg-type, union-attr]
            kept = record.seq  # type: ignore[union-attr]
        await cursor.abort()


async def test_without_metadata_the_open_segment_goes_on_beyond_its_limits() -> None:
    """S13. Systems that need their metadata to roll stop writing with it."""
    plan = Script()
    cluster, _ = await cluster_with_stream(plan)
    writer = writer_of(cluster, StreamPolicy(roll_bytes=2000))
    async with writer:
        await writer.append(bytes(100))
        plan.is_away = True
        for _ in range(100):
            await asyncio.wait_for(writer.append(bytes(200)), PATIENCE_S)
        assert writer.failure is None
        plan.is_away = False
        await writer.roll()
    assert len(await records_of(cluster)) == 101
