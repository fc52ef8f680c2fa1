"""What is not delivered is said, once and as what it is; what is at hand is not passed by (INV-S10, INV-S11).

The simulator's worlds with readers and cursors found each of these.
"""

from __future__ import annotations

import pytest

from fastbk.errors import PositionTruncated
from fastbk.stream.cursor import Cursor
from fastbk.stream.positions import DLSN, FIRST, AtSeq
from fastbk.stream.reader import StreamReader
from fastbk.stream.records import Chunk, Gap, Record
from tests.fixtures.fake_ledgers import Cluster
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
