"""Segments that began together roll by age one after the other, never late, and in time for those behind them.

Thousands of streams roll or close at once: nobody fails because its turn has not come, only because of trouble.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import Error, MetadataUnavailable, QuorumTimeout
from fastbk.stream.opening import SLOTS_MAX, SegmentSlots, slots_of
from fastbk.stream.writer.segment_lifecycle import CHECK_S_MIN, LAST_SHARE, READY_FROM, roll_age
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.unit.stream.test_writer_attacked import PATIENCE_S, Harness, until

HOUR_S = 3600.0


@given(st.integers(0, 2**63 - 1), st.floats(0.01, 1e9))
def test_a_segment_rolls_in_the_last_tenth_of_its_age_with_the_next_one_ready(
    ledger_id: int, age_s: float
) -> None:
    age = roll_age(age_s, ledger_id)
    assert READY_FROM * age_s <= age.ready_s < age.roll_s <= age_s
    assert age.roll_s >= (1 - LAST_SHARE) * age_s * 0.999_999
    assert not age.is_roll_due(age.ready_s) and age.is_roll_due(age_s)


@pytest.mark.parametrize("step", [1, 2, 3, 10, 256, 1 << 32])
def test_thousands_that_began_together_are_spread(step: int) -> None:
    """Ids of one client's ledgers follow each other, at even distances where others draw, too."""
    count, parts = 5000, 20
    for name, width in (("roll_s", LAST_SHARE), ("ready_s", 0.3)):
        dues = [getattr(roll_age(1.0, 77 + step * at), name) for at in range(count)]
        low = min(dues)
        in_part = [0] * (parts + 1)
        for due in dues:
            in_part[int((due - low) / width * parts)] += 1
        assert max(in_part) < 2 * count / parts


@given(st.integers(0, 2**63 - 1), st.floats(1.0, 1e6), st.floats(0, 2e6))
def test_who_looks_when_told_misses_nothing(ledger_id: int, age_s: float, now_s: float) -> None:
    age = roll_age(age_s, ledger_id)
    behind_s = now_s + age.check_s(now_s)
    assert behind_s > now_s
    for due_s in (age.ready_s, age.roll_s):
        if now_s < due_s:
            assert behind_s <= due_s + CHECK_S_MIN
            break


def test_without_a_limit_nothing_is_ever_due() -> None:
    age = roll_age(0.0, 5)
    assert not age.is_roll_due(1e9) and not age.is_ready_due(1e9)


@pytest.mark.slow
async def test_a_segment_that_nobody_writes_to_any_more_rolls_when_it_is_due() -> None:
    """Not before, though it is looked at several times."""
    harness = Harness(roll_age_s=2)
    writer = await harness.writer()
    began_s = asyncio.get_running_loop().time()
    await writer.append(b"x")
    segment = writer._opened().segment
    assert segment is not None
    due_s = writer._opened().rolling._age.roll_s
    await until(lambda: writer._opened().segment is not segment)
    took_s = asyncio.get_running_loop().time() - began_s
    assert due_s * 0.99 <= took_s
    await writer.close()


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
    await until(
        lambda: writer._opened().segment is not None and not writer._opened().rolling.is_due
    )
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
