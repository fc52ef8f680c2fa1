"""Writers and readers of streams on real bookies: rolls, takeovers, names, searching; what lies in the ledgers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable

import pytest

import fastbk
from fastbk.errors import StreamNotFound
from fastbk.stream.context import StreamContext
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, AtSeq, AtTxid
from fastbk.stream.reader import search
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Record, chunk_of
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tools.bench_cluster import MetadataCount

MANY = 40
# How many calls of metadata these cost:
OPEN = 3  # its name, the policy, the chain
FIRST = 5  # the policy; an id is drawn and named; which bookies there are; the ledger; its segment
END = 2  # the ledger is closed, and the chain says what it holds
END_EMPTY = 3  # it leaves the chain, is deleted, and forgotten


async def stream_of(client: fastbk.Client, name: str) -> StreamContext:
    """Return a stream whose segments are small, in a namespace of this name."""
    namespace = client.namespace(name)
    await namespace.create(PolicyPatch(roll_bytes=20_000), exist_ok=True)
    return await (await namespace.create_stream("s", exist_ok=True)).context()


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


async def test_what_is_appended_lies_in_the_segments_in_order(
    cluster: LocalCluster, own_name: str
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        context = await stream_of(client, own_name)
        async with StreamWriter(context, WriterOptions()) as writer:
            futures = [writer.append_nowait(b"%d" % at * 50, key=b"k%d" % at) for at in range(500)]
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


async def test_readers_follow_writers_over_rolls_and_takeovers(
    cluster: LocalCluster, own_name: str
) -> None:
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        fastbk.connect(cluster.metadata_uri) as other,
    ):
        context = await stream_of(client, own_name)

        async def read(chunks: bool) -> list[Record]:
            found: list[Record] = []
            async with StreamReader(await stream_of(other, own_name)) as reader:
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
            futures = [writer.append_nowait(b"%d" % at * 40) for at in range(start, start + 300)]
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


async def test_what_is_written_by_name_is_read_by_name(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri) as client, fastbk.connect(uri) as other:
        space = client.namespace("shop/eu")
        await space.create(PolicyPatch(compression="zstd"))
        async with space.stream("orders").writer(create=True, batch_bytes=1000) as writer:
            for number in range(300):
                writer.append_nowait(b"order %d" % number, txid=number * 2)
            await writer.flush()
            await space.set_policy(PolicyPatch(ensemble=2, write_quorum=2, compression="none"))
            await space.rename_stream("orders", "sales")
            await writer.roll()
            await writer.append(b"last")
        stream = other.namespace("shop/eu").stream("sales")
        async with stream.reader(tail=False) as reader:
            payloads = [bytes(one.payload) async for one in reader]
        assert payloads == [b"order %d" % number for number in range(300)] + [b"last"]
        assert await stream.find(txid=7) == (await stream.get(AtSeq(4))).dlsn
        first, last = await stream.first(), await stream.last_position()
        assert first is not None and first.dlsn == DLSN(1, 0, 0)
        assert last is not None and last.seq == 300
        info = await stream.info()
        assert (info.path, info.segments, info.records, info.last_txid) == (
            "shop/eu/sales",
            2,
            301,
            599,
        )
        assert info.size_bytes > 0 and info.last_dlsn == last.dlsn
        rows = (await (await stream.context()).store.read()).chain.rows
        ensembles = [
            (await client.ledger_info(row.ledger_id)).metadata.ensemble_size for row in rows
        ]
        assert ensembles == [3, 2], "the policy of the next segment"
        with pytest.raises(StreamNotFound):
            async with other.namespace("shop/eu").stream("orders").reader() as reader:
                await anext(reader)


async def test_calls_of_metadata_are_counted(fastbk_cluster: LocalCluster) -> None:
    async with fastbk.connect(fastbk_cluster.metadata_uri) as client:
        space = client.namespace("counted")
        await space.create()
        streams = await space.create_streams([f"s{at}" for at in range(MANY + 1)])
        async with streams[0].writer(
            create=False
        ) as writer:  # connections are made, bookies watched
            await writer.append(b"x")
        count = MetadataCount(client)

        async def calls(work: Awaitable[object]) -> int:
            before = count.calls
            await work
            return count.calls - before

        async def all_calls(works: Iterable[Awaitable[object]]) -> float:
            commits = count.commits
            made = await calls(asyncio.gather(*works))
            assert count.commits - commits < MANY, "commits are shared"
            return made / MANY

        alone = streams[0].writer()
        assert await calls(alone.open()) <= OPEN + 1
        assert await calls(alone.append(b"x")) == FIRST
        assert await calls(alone.roll()) == FIRST + END
        assert await calls(alone.close()) == END_EMPTY
        again = streams[0].writer()
        await again.open()
        await again.append(b"x")
        assert await calls(again.close()) == END
        writers: list[StreamWriter] = [stream.writer() for stream in streams[1:]]
        for writer in writers:
            await writer.open()
        assert await all_calls(writer.append(b"x") for writer in writers) < FIRST - 0.5
        assert await all_calls(writer.roll() for writer in writers) < FIRST + END - 0.5
        assert await all_calls(writer.close() for writer in writers) == END_EMPTY

        async def listed() -> None:
            assert len([info async for info in space.streams()]) == MANY + 1

        for work in (listed(), space.set_policy(PolicyPatch(roll_bytes=1000))):
            assert await calls(work) < MANY / 2, "nothing is asked for stream by stream"


@pytest.mark.alone
async def test_a_lone_append_reaches_a_tailing_reader_soon(
    fastbk_cluster: LocalCluster, own_name: str
) -> None:
    async with fastbk.connect(fastbk_cluster.metadata_uri) as client:
        context = await stream_of(client, own_name)
        async with (
            StreamWriter(context, WriterOptions()) as writer,
            StreamReader(context) as reader,
        ):
            delays: list[float] = []
            for _ in range(200):
                began_s = time.perf_counter()
                appended = writer.append_nowait(b"x")
                record = await asyncio.wait_for(anext(reader), 30)
                delays.append(time.perf_counter() - began_s)
                assert await appended == record.dlsn
            tail = await search.tail_position(context)
            assert tail is not None and tail.seq == 199
            assert reader.position == tail.next
            # Without being told it would wait for the writer's interval or the end of a poll.
            assert sorted(delays)[100] < 0.25
