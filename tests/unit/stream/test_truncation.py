"""Truncation: to the record, never back, never beyond the end (INV-S7)."""

from __future__ import annotations

import asyncio
import random

import pytest

from fastbk.errors import Error
from fastbk.stream.options import WriterOptions
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN, FIRST, AtSeq, AtTxid
from fastbk.stream.stream import truncate
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, RandomPlan
from tests.fixtures.fake_streams import chain_of, context_of, new_stream, write_segments

FAR = DLSN(10**9, 0, 0)


async def test_an_empty_stream_has_nothing_to_cut_off() -> None:
    cluster = Cluster()
    await new_stream(cluster)
    assert await truncate(context_of(cluster.client()), FAR) == FIRST


async def test_it_is_exact_and_never_falls() -> None:
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
    client = cluster.client()
    await write_segments(client, 3)
    context = context_of(client)
    assert await truncate(context, AtSeq(4)) == DLSN(2, 1, 0)
    assert await truncate(context, AtTxid(5)) == DLSN(2, 2, 0)
    assert await truncate(context, AtSeq(1)) == DLSN(2, 2, 0)
    end = await truncate(context, "latest")
    assert DLSN(3, 2, 0) < end <= DLSN(4, 0, 0)


async def test_it_cuts_inside_the_open_segment_up_to_what_is_acknowledged() -> None:
    cluster = Cluster()
    await new_stream(cluster)
    writer = StreamWriter(context_of(cluster.client()), WriterOptions())
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
    cluster = Cluster()
    await new_stream(cluster)
    writer = StreamWriter(
        context_of(cluster.client(), policy=StreamPolicy(roll_bytes=500)), WriterOptions()
    )
    await writer.open()
    last = await writer.append(bytes(300))
    while len((await chain_of(cluster)).open_rows) < 2:
        last = await writer.append(b"")
    assert await truncate(context_of(cluster.client()), FAR) == DLSN(1, last.entry + 1, 0)
    writer.abort()


async def life(seed: int) -> int:
    """A writer that rolls and is taken over beside truncations: what comes later is never cut off before it came."""
    rng, spared = random.Random(seed), asyncio.all_tasks()
    cluster = Cluster()
    await new_stream(cluster)
    cluster.plan = RandomPlan(rng, away=0.05, lost=0.05)
    moved = 0

    async def write() -> None:
        for _ in range(4):
            client = cluster.client()
            policy = StreamPolicy(roll_bytes=rng.choice([300, 2000]))
            writer = StreamWriter(context_of(client, policy=policy), WriterOptions())
            try:
                await writer.open()
                for _ in range(rng.randrange(25)):
                    trim = (await chain_of(cluster)).trim
                    dlsn = await writer.append(bytes(rng.randrange(200)))
                    assert dlsn >= trim, "INV-S7: cut off before it was appended"
            except Error:
                pass
            client.crash()

    async def cut() -> None:
        nonlocal moved
        held = FIRST
        while not writing.done():
            await asyncio.sleep(0)
            before = rng.choice([FAR, held._replace(entry=held.entry + rng.randrange(5))])
            try:
                found = await truncate(context_of(cluster.client()), before)
            except Error:
                continue
            assert found >= held, "INV-S7: it fell"
            assert found <= max(before, held)
            moved += found > held
            held = found

    writing = asyncio.create_task(write())
    await cut()
    await writing
    others = asyncio.all_tasks() - spared
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return moved


@pytest.mark.slow
async def test_what_comes_after_a_cut_is_never_before_it(rng: random.Random) -> None:
    moved = 0
    for _ in range(25):
        moved += await life(rng.getrandbits(32))
    assert moved > 50
