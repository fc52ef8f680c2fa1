"""Closed ledgers are attached by one change of the chain, once, whatever is lost. INV-S3, INV-S6, INV-S15."""

from __future__ import annotations

import asyncio
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fastbk.errors import (
    ConfigError,
    MetadataUnavailable,
    StorageError,
    WriterFenced,
)
from fastbk.native.stream_codec import encode
from fastbk.stream.chain import Chain, Contents, Segment, add_segment, close_segment, reserve
from fastbk.stream.drafts import attach
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.unit.stream.test_writer import payloads_of
from tests.unit.stream.test_writer_attacked import Harness


async def ledger_of(harness: Harness, *entries: list[bytes], first_txid: int = 1) -> int:
    """Return a closed ledger with these entries' records."""
    ledger = await harness.cluster.client().create_ledger()
    records = 0
    for at, payloads in enumerate(entries):
        txids = array("q", range(first_txid + records, first_txid + records + len(payloads)))
        await ledger.append(encode(0, records, 1000 + at, payloads, txids, None, None))
        records += len(payloads)
    await ledger.close()
    return ledger.ledger_id


async def test_ledgers_follow_what_the_stream_has_and_a_repeat_does_nothing() -> None:
    harness = Harness()
    former = await harness.writer()
    await former.append(b"own", txid=70)
    one = await ledger_of(harness, [b"a", b"b"], [b"c"])
    two = await ledger_of(harness, [b"d"])
    context = harness.context()
    for _ in range(3):
        assert await attach(context, [one, two], "import", 0) == DLSN(3, 0, 0)
        assert await attach(context, [99, 98], "import", 0) == DLSN(3, 0, 0)
    chain = await harness.chain()
    assert [row.base_seq for row in chain.rows] == [0, 1, 4]
    with pytest.raises(WriterFenced):
        await former.append(b"fenced")
    async with StreamWriter(context, WriterOptions()) as later:
        assert later.last_txid == 74
        assert await later.append(b"own again") == DLSN(4, 0, 0)
    assert await payloads_of(harness.cluster) == [
        (0, 70, b"own"),
        (1, 71, b"a"),
        (2, 72, b"b"),
        (3, 73, b"c"),
        (4, 74, b"d"),
        (5, 75, b"own again"),
    ]
    custom = harness.cluster.ledger(one).metadata.custom
    assert custom["fastbk.stream"] == b"ab"
    assert custom["fastbk.namespace"] == b"test"


async def forget(harness: Harness, kept: int) -> None:
    """Take the chain back to its first segments, as a restored backup does."""
    context = harness.context()

    def older(chain: Chain) -> Chain:
        again = Chain("ab", epoch=chain.epoch)
        for row in chain.rows[:kept]:
            held = Contents(
                row.records,
                row.first_txid,
                row.last_txid,
                row.first_time_us,
                row.last_time_us,
                DLSN(row.number, row.last_entry_id, 0),
                row.index_entry_id,
                row.size_bytes,
            )
            opened = add_segment(
                reserve(again, again.epoch, row.ledger_id), again.epoch, row.ledger_id, 0
            )
            again = close_segment(opened, row.ledger_id, held)
        return again

    await context.store.change(older)


@settings(max_examples=25, deadline=None)
@given(
    segments=st.lists(
        st.lists(st.integers(0, 1000), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    kept=st.integers(0, 4),
    together=st.booleans(),
)
def test_segments_that_a_chain_has_lost_come_back_as_they_were(
    segments: list[list[int]], kept: int, together: bool
) -> None:
    """Positions, sequence numbers, transaction ids and times (INV-S15)."""

    async def run() -> None:
        harness, txid = Harness(), 0
        for steps in segments:
            writer = await harness.writer()
            for step in steps:
                txid += step
                await writer.append(b"%d" % txid, txid=txid)
            await writer.close()
        before, records = await harness.chain(), await payloads_of(harness.cluster)
        await forget(harness, kept)
        lost = [row.ledger_id for row in before.rows[kept:]]
        for number, ledger_ids in enumerate([lost] if together else [[one] for one in lost]):
            if ledger_ids:
                await attach(harness.context(), ledger_ids, "again", number)
        after = await harness.chain()
        assert [_facts(row) for row in after.rows] == [_facts(row) for row in before.rows]
        assert (after.last_txid, after.last_time_us, after.end_seq) == (
            before.last_txid,
            before.last_time_us,
            before.end_seq,
        )
        assert await payloads_of(harness.cluster) == records

    asyncio.run(run())


def _facts(row: Segment) -> Segment:
    return replace(row, epoch=0, created_us=0)


async def test_a_segment_that_is_older_than_the_streams_end_is_refused() -> None:
    harness = Harness()
    for txid in (5, 9):
        writer = await harness.writer()
        await writer.append(b"own", txid=txid)
        await writer.close()
    rows = (await harness.chain()).rows
    await forget(harness, 1)
    async with StreamWriter(harness.context(), WriterOptions()) as writer:
        await writer.append(b"later", txid=20)
    with pytest.raises(
        ConfigError, match=f"ledger {rows[1].ledger_id} begins with the transaction id 9"
    ):
        await attach(harness.context(), [rows[1].ledger_id], "again", 0)


async def test_an_answer_that_is_lost_attaches_once() -> None:
    harness = Harness()
    await (await harness.writer()).close()
    one = await ledger_of(harness, [b"a"])
    losses = 3

    def fails(what: str, is_after: bool) -> MetadataUnavailable | None:
        nonlocal losses
        if what == "metadata.change" and is_after and losses:
            losses -= 1
            return MetadataUnavailable("no answer")
        return None

    harness.plan.fails = fails
    for _ in range(10):
        try:
            await attach(harness.context(1.0), [one], "import", 5)
            break
        except MetadataUnavailable:
            await asyncio.sleep(0)
    assert not losses
    assert await harness.payloads() == [b"a"]


async def test_what_cannot_be_a_segment_is_refused_and_changes_nothing() -> None:
    harness = Harness()
    writer = await harness.writer()
    await writer.append(b"own")
    await writer.close()
    client, context = harness.cluster.client(), harness.context()
    (own,) = harness.cluster.ledgers
    still_open = await client.create_ledger()
    await still_open.append(b"x")
    other = await client.create_ledger()
    await other.append(
        b"no entry of a stream, but long enough to have the head of one in it, of 56 bytes"
    )
    await other.close()
    good = await ledger_of(harness, [b"a"])
    marked = await ledger_of(harness, [b"a"])
    await client.edit_metadata(marked, {"fastbk.stream": b"cd"})
    far = await ledger_of(harness, [b"a"], first_txid=2**62)
    for ledgers in (
        [],
        [good, good],
        [good, own],
        [good, still_open.ledger_id],
        [good, await ledger_of(harness)],
        [good, marked],
        [good, far],
    ):
        with pytest.raises(ConfigError):
            await attach(context, ledgers, "import", 0)
    with pytest.raises(StorageError):
        await attach(context, [good, other.ledger_id], "import", 0)
    with pytest.raises(ConfigError):
        await attach(context, [good], "import", -1)
    assert len((await harness.chain()).rows) == 1
    await attach(context, [good], "import", 0)
    assert await harness.payloads() == [b"own", b"a"]
