"""Finding records by position, number, transaction id and time, against a model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from fastbk.errors import ConfigError, DataLost, NoSuchEntry, PositionTruncated
from fastbk.stream.chain import Contents, attach
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.positions import DLSN, AtSeq, AtTime, AtTxid, to_time
from fastbk.stream.reader import search
from fastbk.stream.reader.search import segments_of
from fastbk.stream.records import Record
from tests.fixtures.fake_ledgers import Cluster, Counting
from tests.fixtures.streams import (
    cluster_with_stream,
    filled,
    new_stream,
    plain,
    records_of,
    truncated_to,
    writer_of,
)


@asynccontextmanager
async def a_stream(
    cluster: Cluster, is_killed: bool
) -> AsyncIterator[tuple[StreamContext, list[Record]]]:
    """Make closed segments, and behind them a killed one, or one that is open and another made ready."""
    context = await new_stream(cluster)
    records = await filled(cluster, [5, 1, 40, 3], 2)
    writer = writer_of(cluster)
    await writer.open()
    for _ in range(30):
        await writer.append(b"%d" % (writer.last_txid + 3), txid=writer.last_txid + 3)
    if is_killed:
        writer.abort()
        async with writer_of(cluster):
            pass
        yield context, await records_of(cluster)
        return
    await writer.publish()
    row = (await context.store.read()).chain.open_rows[0]
    entries = len(cluster.ledger(row.ledger_id).entries)
    end = records[-1]
    tail = [
        (DLSN(row.number, at, 0), end.seq + 1 + at, end.txid + 3 * (at + 1))
        for at in range(entries)
    ]
    found = [await search.get(context, one) for one, _, _ in tail]
    assert [(one.dlsn, one.seq, one.txid) for one in found] == tail
    yield context, [*records, *found]
    writer.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize("is_killed", [True, False])
async def test_searches_find_what_a_scan_finds(is_killed: bool) -> None:
    async with a_stream(Cluster(), is_killed) as (context, records):
        for seq in range(len(records) + 3):
            expected = records[seq].dlsn if seq < len(records) else None
            assert await search.find(context, seq=seq) == expected
        for txid in range(records[-1].txid + 3):
            expected = next((one.dlsn for one in records if one.txid >= txid), None)
            assert await search.find(context, txid=txid) == expected
            if expected is not None:
                assert await search.resolve(context, AtTxid(txid)) == expected
        for time_us in {one.time_us + off for one in records[::3] for off in (-1, 0, 1)}:
            expected = next((one.dlsn for one in records if one.time_us >= time_us), None)
            assert await search.find(context, time=to_time(time_us)) == expected
        tail = await search.tail_position(context)
        assert tail is not None
        assert (tail.dlsn, tail.seq, tail.txid) == (
            records[-1].dlsn,
            len(records) - 1,
            records[-1].txid,
        )
        assert (
            await search.resolve(context, AtTime(datetime.now(UTC) + timedelta(days=1)))
            == tail.next
        )
        assert tail.next == await search.resolve(context, "latest")


@pytest.mark.parametrize("is_killed", [True, False])
async def test_get_gives_each_record(is_killed: bool) -> None:
    async with a_stream(Cluster(), is_killed) as (context, records):
        some = random.Random(3).choices(records, k=40)
        assert plain(await search.get_many(context, [one.dlsn for one in some])) == plain(some)
        assert plain(await search.get_many(context, [AtSeq(one.seq) for one in some])) == plain(
            some
        )
        for missing in (DLSN(1, 0, 2), DLSN(1, 5, 0), DLSN(99, 0, 0), AtSeq(len(records))):
            with pytest.raises(NoSuchEntry):
                await search.get(context, missing)
        for wrong in ({}, {"seq": 1, "txid": 1}):
            with pytest.raises(ConfigError):
                await search.find(context, **wrong)


async def test_an_index_finds_in_two_reads_and_heads_in_few() -> None:
    plan = Counting()
    async with a_stream(Cluster(plan), True) as (context, records):
        third = [one for one in records if one.dlsn.segment == 3]
        plan.taken()
        assert await search.find(context, seq=third[50].seq) == third[50].dlsn
        assert plan.calls["read"] == 2, "the index entry, and the entry"
        killed = [one for one in records if one.dlsn.segment == 5]
        plan.taken()
        assert await search.find(context, seq=killed[17].seq) == killed[17].dlsn
        assert plan.calls["read"] <= 2 * 7 + 1


async def test_what_is_truncated_is_not_found() -> None:
    async with a_stream(Cluster(), True) as (context, records):
        await truncated_to(context, DLSN(3, 7, 1), delete=True)
        kept = [one for one in records if one.dlsn >= DLSN(3, 7, 1)]
        assert await search.first(context) == kept[0]
        assert await search.find(context, seq=0) == kept[0].dlsn
        assert await search.find(context, txid=records[-1].txid) == records[-1].dlsn
        for gone in (records[3].dlsn, AtSeq(3), records[kept[0].seq - 1].dlsn):
            with pytest.raises(PositionTruncated) as caught:
                await search.get(context, gone)
            assert caught.value.first_available == str(kept[0].dlsn)


async def test_an_empty_stream_has_neither_first_nor_last() -> None:
    context = await new_stream(Cluster())
    assert await search.first(context) is None
    assert await search.tail_position(context) is None
    assert await search.find(context, seq=0) is None
    assert await search.resolve(context, "latest") == await search.resolve(context, "earliest")


async def test_a_lost_entry_is_said() -> None:
    cluster = Cluster()
    async with a_stream(cluster, True) as (context, _):
        row = (await context.store.read()).chain.rows[0]
        cluster.ledger(row.ledger_id).lost = {2}
        with pytest.raises(DataLost) as caught:
            await search.get(context, DLSN(1, 2, 0))
        assert (caught.value.first, caught.value.next) == ("1.2.0", "1.3.0")


async def test_ids_of_attached_segments_count_from_their_base() -> None:
    cluster = Cluster()
    async with a_stream(cluster, True) as (context, records):
        chain = (await context.store.read()).chain
        first = chain.rows[0]
        contents = Contents(
            first.records,
            first.first_txid,
            first.last_txid,
            first.first_time_us,
            first.last_time_us,
            DLSN(1, first.last_entry_id, 1),
            first.index_entry_id,
            first.size_bytes,
        )
        await context.store.change(
            lambda chain: attach(chain, ((first.ledger_id, contents),), "copy", 1, 0)
        )
        base = records[-1].txid
        for at, one in enumerate(records[: first.records]):
            found = await search.get(context, AtSeq(len(records) + at))
            assert found.txid == base + one.txid
            assert await search.find(context, txid=found.txid) == (
                found.dlsn if at or found.txid > base else records[-1].dlsn
            )


async def test_rows_in_pages_are_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbk.stream.chain_store.ROWS_MAX", 4)
    monkeypatch.setattr("fastbk.stream.chain_store.PAGE_ROWS", 2)
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [3] * 15, 2)
    chain = (await context.store.read()).chain
    assert len(chain.pages) >= 5
    fresh = ChainStore(context.client.records, "ab", 10.0)
    assert (await fresh.read()).chain == chain
    for seq in range(len(records)):
        assert await search.find(context, seq=seq) == records[seq].dlsn
        assert await search.find(context, txid=records[seq].txid) == records[seq].dlsn


async def test_segments_say_what_they_hold_and_the_open_one_only_where_it_begins() -> None:
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [5, 1, 40], 2)
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"open")
    found = await segments_of(context, 1)
    for one in (one for one in found if not one.is_open):
        inside = [record for record in records if record.dlsn.segment == one.number]
        assert (one.first_seq, one.records) == (inside[0].seq, len(inside))
        assert one.last_entry_id == inside[-1].dlsn.entry
        assert (one.first_time_us, one.last_time_us) == (inside[0].time_us, inside[-1].time_us)
        assert one.size_bytes > 0
    assert [one.number for one in found] == [1, 2, 3, 4]
    assert (found[3].is_open, found[3].first_seq) == (True, len(records))
    assert [one.number for one in await segments_of(context, 3)] == [3, 4]
    writer.abort()
    await asyncio.sleep(0)
