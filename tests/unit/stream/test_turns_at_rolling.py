"""Thousands of streams roll or close at once: nobody fails because its turn has not come, only because of trouble."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fastbk.errors import Error, MetadataUnavailable, QuorumTimeout
from fastbk.stream.chain.segment_slots import SLOTS_MAX, SegmentSlots, slots_of
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.unit.stream.test_writer_attacked import PATIENCE_S, Harness, until

LIMIT_S = 0.05


async def impatient_writer(harness: Harness, records: int = 1) -> StreamWriter:
    """Return a writer whose client gives calls that end segments `LIMIT_S`."""
    writer = await harness.writer()
    client: Any = writer._context.client
    client.config = type(client.config)(close_timeout=LIMIT_S)
    for _ in range(records):
        await writer.append(b"x")
    return writer


async def take_all(works: SegmentSlots, taken: AsyncExitStack) -> None:
    for _ in range(SLOTS_MAX):
        await taken.enter_async_context(works)


@pytest.mark.parametrize("call", ["roll", "close", "seal"])
async def test_a_call_that_waits_for_its_turn_is_not_too_late(call: str) -> None:
    harness = Harness()
    writer = await impatient_writer(harness)
    async with AsyncExitStack() as turns_of_others:
        await take_all(slots_of(writer._context.client), turns_of_others)
        under_way = asyncio.ensure_future(getattr(writer, call)())
        await asyncio.wait({under_way}, timeout=4 * LIMIT_S)
        assert not under_way.done()
    await asyncio.wait_for(under_way, PATIENCE_S)
    if call == "roll":
        assert (await writer.append(b"behind")).segment == 2
        await writer.close()
    chain = await harness.chain()
    assert not chain.open_rows and chain.is_sealed == (call == "seal")


async def test_a_close_waits_for_its_turn_to_drop_a_segment_that_was_ready() -> None:
    harness = Harness(roll_bytes=500)
    writer = await impatient_writer(harness, 6)
    await until(lambda: writer._opened().lifecycle.ready is not None)
    engine, works = writer._opened(), slots_of(writer._context.client)
    original, others = engine.lifecycle.until_idle, AsyncExitStack()

    async def until_idle() -> None:
        await original()
        await take_all(works, others)

    engine.lifecycle.until_idle = until_idle  # type: ignore[method-assign]
    closing = asyncio.ensure_future(writer.close())
    await asyncio.wait({closing}, timeout=4 * LIMIT_S)
    assert not closing.done()
    await others.aclose()
    await asyncio.wait_for(closing, PATIENCE_S)
    assert not (await harness.chain()).open_rows


@pytest.mark.parametrize("what", ["create", "metadata.change"])
async def test_once_its_turn_has_come_the_limit_counts(what: str) -> None:
    harness = Harness()
    writer = await impatient_writer(harness)
    harness.plan.holds.add(what)
    async with AsyncExitStack() as turns_of_others:
        await take_all(slots_of(writer._context.client), turns_of_others)
        rolling = asyncio.ensure_future(writer.roll())
        await asyncio.wait({rolling}, timeout=2 * LIMIT_S)
        assert not rolling.done()
    with pytest.raises(QuorumTimeout):
        await asyncio.wait_for(rolling, PATIENCE_S)
    harness.plan.go.set()
    await until(lambda: writer._opened().segment is not None and not writer._opened().rolling.is_due)
    assert (await writer.append(b"rolled after all")).segment == 2
    await writer.close()


async def test_an_outage_ends_the_wait_for_a_turn_that_never_comes() -> None:
    harness = Harness()
    writer = await impatient_writer(harness)
    works = slots_of(writer._context.client)
    away: Error = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        async with works:
            raise away
    async with AsyncExitStack() as turns_of_others:
        await take_all(works, turns_of_others)
        with pytest.raises(QuorumTimeout, match="away"):
            await asyncio.wait_for(writer.roll(), PATIENCE_S)
    writer.abort()
