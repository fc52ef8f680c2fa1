"""Turns of one client's streams at making segments, and what an outage of metadata means to those who wait for one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from fastbk.errors import MetadataUnavailable, NotEnoughBookies, WriterFailed
from fastbk.stream.chain import segment_slots
from fastbk.stream.chain.segment_slots import SLOTS_MAX, SegmentSlots, slots_of
from fastbk.stream.positions import DLSN
from tests.unit.stream.test_writer_attacked import PATIENCE_S, Harness


async def test_a_first_append_fails_while_metadata_answers_nobody_though_its_turn_never_comes() -> (
    None
):
    """With thousands of streams the turns of an outage, each as long as a call's deadline, last for half an hour."""
    harness = Harness()
    writer = await harness.writer(first_segment_timeout=0.02)
    works = slots_of(writer._context.client)
    with pytest.raises(MetadataUnavailable):
        async with works:
            raise MetadataUnavailable("away")
    async with AsyncExitStack() as turns_of_others:
        for _ in range(SLOTS_MAX):
            await turns_of_others.enter_async_context(works)
        with pytest.raises(WriterFailed, match=r"nothing was appended: .*away") as failed:
            await asyncio.wait_for(writer.append(b"x"), PATIENCE_S)
    assert failed.value.outcome == "not_written"


async def test_metadata_that_answered_anybody_since_is_no_reason_to_fail() -> None:
    harness = Harness()
    writer = await harness.writer(first_segment_timeout=0.01)
    works = slots_of(writer._context.client)
    for error in (MetadataUnavailable("away"), NotEnoughBookies("few")):
        with pytest.raises(type(error)):
            async with works:
                raise error
    assert works.trouble is None and works.troubled_s == 0.0
    async with AsyncExitStack() as turns_of_others:
        for _ in range(SLOTS_MAX):
            await turns_of_others.enter_async_context(works)
        future = writer.append(b"in its turn")
        await asyncio.wait({future}, timeout=0.1)
        assert not future.done()
    assert await asyncio.wait_for(future, PATIENCE_S) == DLSN(1, 0, 0)
    await writer.close()


async def test_thousands_that_try_in_vain_are_a_line_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = SegmentSlots()
    monkeypatch.setattr(segment_slots, "LINE_EVERY_S", 1e9)
    for at in range(1000):
        works.log_wait(f"many/s{at}", MetadataUnavailable("away"))
    monkeypatch.setattr(segment_slots, "LINE_EVERY_S", 0.0)
    works.log_wait("many/last", MetadataUnavailable("away"))
    lines = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(one["stream"], one["others"]) for one in lines] == [("many/s0", 0), ("many/last", 999)]
    assert lines[0]["reason"] == "away"
