"""Readers of streams on real bookies: over rolls and takeovers, tailing, searching."""

from __future__ import annotations

import asyncio
import time

import pytest

import fastbk
from fastbk.meta.records import Change
from fastbk.stream.chain.chain import Chain, put_chain
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import AtSeq, AtTxid
from fastbk.stream.reader import search
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Record
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster

POLICY = StreamPolicy(roll_bytes=20_000)


async def stream_of(client: fastbk.Client, is_new: bool = True) -> StreamContext:
    if is_new:
        await client.records.change(Change(chain_path("ab"), put_chain(Chain("ab"))))

    async def policy() -> StreamPolicy:
        return POLICY

    return StreamContext(client, ChainStore(client.records, "ab", 10.0), "test/ab", policy)


async def test_readers_follow_writers_over_rolls_and_takeovers(
    cluster: LocalCluster,
) -> None:
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        fastbk.connect(cluster.metadata_uri) as other,
    ):
        context = await stream_of(client)

        async def read(chunks: bool) -> list[Record]:
            found: list[Record] = []
            async with StreamReader(await stream_of(other, is_new=False)) as reader:
                if chunks:
                    async for chunk in reader.chunks():
                        assert isinstance(chunk, Chunk)
                        found += chunk
                else:
                    found += [one async for one in reader if isinstance(one, Record)]
            return found

        tails = [asyncio.create_task(read(chunks)) for chunks in (True, False)]
        for start in range(0, 1200, 300):
            writer = StreamWriter(context, WriterOptions())
            await writer.open()
            assert writer.last_txid == start - 1
            futures = [writer.append(b"%d" % at * 40) for at in range(start, start + 300)]
            await asyncio.gather(*futures)
            # Killed: no index entry, and nobody closes its ledger but who comes next.
            writer.abort()
        async with StreamWriter(context, WriterOptions()) as writer:
            await writer.append(b"last")
            await writer.seal()
        for found in await asyncio.wait_for(asyncio.gather(*tails), 60):
            assert [one.seq for one in found] == list(range(1201))
            assert [bytes(one.payload) for one in found[:1200]] == [
                b"%d" % at * 40 for at in range(1200)
            ]
        rows = (await context.store.read()).chain.rows
        assert len(rows) >= 5
        for seq in (0, 299, 300, 777, 1200):
            record = await search.get(context, AtSeq(seq))
            assert record == found[seq]
            assert await search.find(context, txid=seq) == record.dlsn
        async with StreamReader(context, AtTxid(1190), tail=False) as reader:
            assert [one.seq async for one in reader] == list(range(1190, 1201))


@pytest.mark.alone
async def test_a_lone_append_reaches_a_tailing_reader_soon(fastbk_cluster: LocalCluster) -> None:
    async with fastbk.connect(fastbk_cluster.metadata_uri) as client:
        context = await stream_of(client)
        async with (
            StreamWriter(context, WriterOptions()) as writer,
            StreamReader(context) as reader,
        ):
            delays: list[float] = []
            for _ in range(200):
                began_s = time.perf_counter()
                appended = writer.append(b"x")
                record = await asyncio.wait_for(anext(reader), 30)
                delays.append(time.perf_counter() - began_s)
                assert await appended == record.dlsn
            tail = await search.tail_position(context)
            assert tail is not None and tail.seq == 199
            assert reader.position == tail.next
            # Without being told it would wait for the writer's interval or the end of a poll.
            assert sorted(delays)[100] < 0.25
