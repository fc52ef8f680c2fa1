"""How many calls of metadata streams cost: opening, first append, roll and end; and lists of many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

import fastbk
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tests.tools.bench_cluster import MetadataCount

MANY = 40
OPEN = 3  # its name, the policy, the chain
FIRST = 5  # the policy; an id is drawn and named; which bookies there are; the ledger; its segment
END = 2  # the ledger is closed, and the chain says what it holds
END_EMPTY = 3  # it leaves the chain, is deleted, and forgotten


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
