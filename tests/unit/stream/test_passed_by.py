"""What is not delivered is said, once and as what it is; what is at hand is not passed by (INV-S10, INV-S11).

The simulator's harnesses with readers and cursors found each of these.
"""

from __future__ import annotations

import asyncio

import pytest

from fastbk.errors import PositionTruncated
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.positions import DLSN, FIRST, AtSeq
from fastbk.stream.reader.read_ahead import ChainFollower
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Gap, Record
from fastbk.stream.stream import closed_end, end_of
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import context_of, filled, new_stream, truncated_to, writer_of


async def test_records_that_iteration_took_come_first_when_many_are_asked_for() -> None:
    """One acknowledgement of the last record would have had those that were passed by done."""
    cluster = Cluster()
    context = await new_stream(cluster)
    await filled(cluster, [6, 3])
    async with Cursor(context, "c", tail=False) as cursor:
        first = await anext(cursor)
        some = await cursor.read(2)
        third = await anext(cursor)
        async for rest in cursor.chunks():
            assert isinstance(rest, Chunk)
            break
    assert isinstance(first, Record) and isinstance(some, Chunk) and isinstance(third, Record)
    found = [first.seq, *(one.seq for one in some), third.seq, *(one.seq for one in rest)]
    assert found == [0, 1, 2, 3, 4, 5]


async def test_what_was_done_meanwhile_is_not_handed_out_again() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    await filled(cluster, [6])
    async with Cursor(context, "c", tail=False) as cursor:
        first, second = await anext(cursor), await anext(cursor)
        assert isinstance(first, Record) and isinstance(second, Record)
        cursor.ack(second)
        await cursor.ack_one(DLSN(1, 3, 0))
        some = await cursor.read()
        assert isinstance(some, Chunk) and [one.seq for one in some] == [2]
        some = await cursor.read()
        assert isinstance(some, Chunk) and [one.seq for one in some] == [4, 5]


async def test_a_truncation_is_told_once_also_where_nothing_follows_yet() -> None:
    """It was told again as lost, with the first record behind it."""
    cluster = Cluster()
    context = await new_stream(cluster)
    records = await filled(cluster, [4])
    async with Cursor(context, "c", on_gap="yield") as cursor:
        first = await anext(cursor)
        assert isinstance(first, Record)
        cursor.ack(first)
        while await cursor.read(timeout=0) is not None:
            pass
        await cursor.reset(records[1].dlsn)
        assert isinstance(await anext(cursor), Record)
    async with Cursor(context, "c", on_gap="yield") as cursor:
        await truncated_to(context, DLSN(2, 0, 0))
        found = [await cursor.read(timeout=0.01)]
        async with writer_of(cluster) as writer:
            await writer.append(b"new")
        found.append(await cursor.read())
        assert isinstance(found[0], Gap) and found[0].kind == "trimmed"
        assert isinstance(found[1], Chunk) and found[1].first.seq == 4
        assert (cursor.gap_records, cursor.mark_seq) == (3, 4)


@pytest.mark.parametrize("on_gap", ["raise", "yield"])
async def test_a_record_that_was_truncated_with_all_behind_it_is_told(on_gap: str) -> None:
    """A reader from its number on would have begun with what is appended next, without a word."""
    cluster = Cluster()
    context = await new_stream(cluster)
    await filled(cluster, [4, 4])
    await truncated_to(context, DLSN(3, 0, 0))
    for seq in (0, 7):
        async with StreamReader(context_of(cluster.client()), AtSeq(seq), on_gap=on_gap) as reader:  # type: ignore[arg-type]
            if on_gap == "raise":
                with pytest.raises(PositionTruncated) as raised:
                    await reader.read(timeout=5)
                assert raised.value.first_available == "3.0.0"
            else:
                gap = await reader.read(timeout=5)
                assert isinstance(gap, Gap) and (gap.first, gap.next) == (FIRST, DLSN(3, 0, 0))
    async with StreamReader(context, AtSeq(8)) as reader, writer_of(cluster) as writer:
        await writer.append(b"new")
        record = await anext(reader)
        assert isinstance(record, Record) and record.seq == 8


async def test_a_seek_knows_what_the_search_for_its_place_knew() -> None:
    """The watch had not told of the truncation yet: the reader began with the first record of the stream."""
    cluster = Cluster()
    context = await new_stream(cluster)
    records = await filled(cluster, [4, 4])
    async with StreamReader(context, records[2].dlsn) as reader:
        assert await anext(reader) == records[2]
        await truncated_to(context_of(cluster.client()), DLSN(2, 0, 0))
        await reader.seek(AtSeq(1))
        with pytest.raises(PositionTruncated) as raised:
            await reader.read(timeout=5)
        assert raised.value.first_available == "2.0.0"


class Held(Plan):
    """Of a client's reads of metadata the first is answered late, the second at once, the third never."""

    def __init__(self) -> None:
        self.client: FakeClient | None = None
        self.reads = 0
        self.is_held, self.go_on, self.is_third = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def after(self, client: FakeClient, what: str) -> None:
        if what != "metadata.read" or client is not self.client:
            return
        self.reads += 1
        if self.reads == 1:
            self.is_held.set()
            await self.go_on.wait()
        elif self.reads == 3:
            self.is_third.set()
            await asyncio.Event().wait()


async def test_an_older_chain_that_comes_later_changes_nothing() -> None:
    held = Held()
    cluster = Cluster(held)
    context = await new_stream(cluster)
    await filled(cluster, [4, 4])
    older = (await context.store.read()).chain
    held.client = cluster.client()
    follower = ChainFollower(context_of(held.client).store, older, asyncio.Event())
    async with asyncio.timeout(5):
        await held.is_held.wait()
        await truncated_to(context, DLSN(2, 0, 0))
        newer = await follower.refresh()
        held.go_on.set()
        await held.is_third.wait()
    assert newer != older and follower.chain == newer
    await follower.stop()


class Retires(Plan):
    """A ledger goes after it was opened, before anything is asked of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "read":
            self._cluster.ledgers.clear()


async def test_a_segment_that_goes_while_the_end_is_looked_for_ends_nothing() -> None:
    """A truncation raised NoSuchLedger: the segment was empty, and somebody took the stream over just then."""
    cluster = Cluster()
    context = await new_stream(cluster)
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"1")
    chain = (await context.store.read()).chain
    assert chain.open_rows
    cluster.plan = Retires(cluster)
    assert await end_of(context, chain) == closed_end(chain)
    writer.abort()
