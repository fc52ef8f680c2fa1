"""Readers beside writers that are taken over, crash, roll, and lose the answers of metadata (INV-S11)."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from fastbk.errors import Error, MetadataUnavailable
from fastbk.stream.options import WriterOptions
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Gap, Record
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, RandomPlan
from tests.fixtures.streams import (
    context_of,
    new_stream,
    plain,
    records_of,
    truncated_to,
    writer_of,
)

pytestmark = pytest.mark.slow


async def write_some(cluster: Cluster, rng: random.Random, policy: StreamPolicy) -> None:
    """Open, append, and end somehow: in order, by a crash, or by whoever comes next."""
    client = cluster.client(f"w{rng.randrange(10**6)}")
    writer = StreamWriter(
        context_of(client, policy), WriterOptions(entries_in_flight=rng.randint(1, 5))
    )
    try:
        await writer.open()
        for _ in range(rng.randrange(30)):
            writer.append_nowait(b"%d" % rng.randrange(10**9))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        await writer.flush()
        if rng.random() < 0.5:
            await writer.close()
        elif rng.random() < 0.5:
            client.crash()
    except Error:
        pass


async def read_all(cluster: Cluster, rng: random.Random, found: list[Record | Gap]) -> None:
    """Read until the stream is sealed, by records and by chunks."""
    reader = StreamReader(
        context_of(cluster.client()), on_gap="yield", prefetch_bytes=rng.choice([1, 300, 8 << 20])
    )
    async with await opened(reader):
        while True:
            try:
                if rng.random() < 0.5:
                    item = await reader.read(rng.randint(1, 9))
                    found += [item] if isinstance(item, Gap) else item or ()
                    if reader.is_at_end:
                        return
                else:
                    found.append(await anext(reader))
            except StopAsyncIteration:
                return
            except Error as error:
                if not error.retryable:
                    raise


class Opened:
    """Closes a reader that was opened."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader

    async def __aenter__(self) -> None:
        """Nothing: it is open."""

    async def __aexit__(self, *_: object) -> None:
        await self.reader.close()


async def opened(reader: StreamReader) -> Opened:
    while True:
        try:
            await reader.open()
            return Opened(reader)
        except MetadataUnavailable:
            await asyncio.sleep(0)


async def history(seed: int, trims: bool) -> None:
    rng = random.Random(seed)
    cluster = Cluster(RandomPlan(rng, away=0.02, lost=0.02))
    plan, cluster.plan = cluster.plan, type(cluster.plan)(random.Random(seed))
    context = await new_stream(cluster)
    cluster.plan = plan
    founds: list[list[Record | Gap]] = [[] for _ in range(3)]
    readers = [asyncio.create_task(read_all(cluster, rng, found)) for found in founds]
    policy = StreamPolicy(roll_bytes=rng.choice([200, 600, 5000]))
    for _ in range(rng.randint(2, 5)):
        await asyncio.wait_for(write_some(cluster, rng, policy), 30)
        with suppress(MetadataUnavailable):
            chain = (await context.store.read()).chain
            if trims and chain.last_dlsn is not None and rng.random() < 0.5:
                await truncated_to(context, chain.last_dlsn)
    cluster.plan = type(plan)(random.Random(seed))
    async with writer_of(cluster, policy) as writer:
        await writer.append(b"last")
        await writer.seal()
    await asyncio.wait_for(asyncio.gather(*readers), 30)
    expected = plain(await records_of(cluster))
    for found in founds:
        assert_is_all_or_said(found, expected, seed)
        if not trims:
            assert not any(isinstance(one, Gap) for one in found)


def assert_is_all_or_said(
    found: list[Record | Gap], expected: list[tuple[object, ...]], seed: int
) -> None:
    """Each record was delivered once, in order, or lies in a gap that was told."""
    left = list(expected)
    for one in found:
        if isinstance(one, Gap):
            assert one.kind == "trimmed" and one.first < one.next
            count = sum(1 for other in left if other[0] < one.next)  # type: ignore[operator]
            assert count and one.records in (None, count), f"INV-S11, seed {seed}"
            del left[:count]
        else:
            assert plain([one]) == left[:1], f"INV-S11, seed {seed}"
            del left[:1]
    assert not left, f"INV-S11, seed {seed}"


async def histories(rng: random.Random, count: int, trims: bool) -> None:
    spared = asyncio.all_tasks()
    for _ in range(count):
        await history(rng.getrandbits(32), trims)
        # What processes that are gone had under way is gone, too.
        others = asyncio.all_tasks() - spared
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_readers_beside_takeovers_rolls_and_crashes(rng: random.Random) -> None:
    await histories(rng, 40, trims=False)


async def test_readers_beside_takeovers_and_trims(rng: random.Random) -> None:
    await histories(rng, 40, trims=True)
