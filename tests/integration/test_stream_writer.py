"""A stream's writer on real bookies: appends, rolls, takeover, seal; and that all of it lies in the ledgers."""

from __future__ import annotations

import pytest

import fastbk
from fastbk.client.client import Client
from fastbk.errors import LedgerFenced, StreamSealed, WriterFenced
from fastbk.meta.records import Change
from fastbk.stream.chain.chain import Chain, put_chain
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record, chunk_of
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster

POLICY = StreamPolicy(roll_bytes=20_000)


async def stream_of(client: Client) -> StreamContext:
    await client.records.change(Change(chain_path("ab"), put_chain(Chain("ab"))))

    async def policy() -> StreamPolicy:
        return POLICY

    return StreamContext(client, ChainStore(client.records, "ab", 10.0), "test/ab", policy)


async def all_records(context: StreamContext) -> list[Record]:
    found: list[Record] = []
    chain = (await context.store.read()).chain
    for row in chain.rows:
        async with await context.client.open_ledger(row.ledger_id) as reader:
            async for batch in reader.read_batches(0, row.last_entry_id):
                found += chunk_of(
                    row.number, batch.first_entry_id, batch.datas, row.base_seq, row.base_txid
                )
    return found


async def test_what_is_appended_lies_in_the_segments_in_order(fastbk_cluster: LocalCluster) -> None:
    async with fastbk.connect(fastbk_cluster.metadata_uri) as client:
        context = await stream_of(client)
        async with StreamWriter(context, WriterOptions()) as writer:
            futures = [writer.append(b"%d" % at * 50, key=b"k%d" % at) for at in range(500)]
            first = await writer.append_batch([b"a", b"b", b"c"], headers=[[("n", b"v")]] * 3)
            places = [await one for one in futures]
            assert writer.last_dlsn == first._replace(slot=2)
            for _ in range(3):
                await writer.append(bytes(15_000))
                await writer.roll()
        records = await all_records(context)
        assert [one.seq for one in records] == list(range(506))
        assert [one.txid for one in records] == list(range(506))
        assert [one.dlsn for one in records[:500]] == places
        assert [bytes(one.payload) for one in records[:500]] == [
            b"%d" % at * 50 for at in range(500)
        ]
        assert [one.headers for one in records[500:503]] == [(("n", b"v"),)] * 3
        chain = (await context.store.read()).chain
        assert len(chain.rows) >= 3 and not chain.open_rows and not chain.doomed
        assert all(row.index_entry_id == row.last_entry_id + 1 for row in chain.rows)
        ledgers = [info.ledger_id async for info in client.list_ledgers()]
        assert ledgers == [row.ledger_id for row in chain.rows], "INV-S8"


async def test_opening_without_appending_adds_nothing(fastbk_cluster: LocalCluster) -> None:
    async with fastbk.connect(fastbk_cluster.metadata_uri) as client:
        context = await stream_of(client)
        for _ in range(3):
            async with StreamWriter(context, WriterOptions()) as writer:
                assert (writer.last_txid, writer.last_dlsn) == (-1, None)
        assert (await context.store.read()).chain.rows == ()
        assert [one async for one in client.list_ledgers()] == []


async def test_a_writer_that_is_overtaken_acknowledges_nothing_more(
    fastbk_cluster: LocalCluster,
) -> None:
    """INV-S1, INV-S5, INV-S6."""
    async with fastbk.connect(fastbk_cluster.metadata_uri) as client:
        context = await stream_of(client)
        former, later = (StreamWriter(context, WriterOptions()) for _ in range(2))
        await former.open()
        await former.append(b"kept", txid=7)
        async with later:
            assert (later.last_txid, later.last_dlsn) == (7, DLSN(1, 0, 0))
            under_way = [former.append(b"late"), former.append(b"later")]
            for future in under_way:
                with pytest.raises(WriterFenced) as fenced:
                    await future
                assert fenced.value.outcome == "unknown"
                assert isinstance(fenced.value.__cause__, LedgerFenced)
            with pytest.raises(WriterFenced) as refused:
                former.append(b"too late")
            assert refused.value.outcome == "not_written"
            await later.append(b"next")
            await later.seal()
        assert [bytes(one.payload) for one in await all_records(context)] == [b"kept", b"next"]
        with pytest.raises(StreamSealed):
            await StreamWriter(context, WriterOptions()).open()
        former.abort()
