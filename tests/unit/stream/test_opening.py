"""Turns of one client's streams at making segments, and what an outage of metadata means to those who wait for one.

A thousand streams that roll at once: only some segments are made at a time, and no append waits for it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from fastbk.errors import MetadataUnavailable, NotEnoughBookies, WriterFailed
from fastbk.meta.records import Change
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import PLACEMENT_KEY, decode_rule
from fastbk.stream import opening
from fastbk.stream.chain import Chain, put_chain
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.opening import SLOTS_MAX, SegmentSlots, slots_of
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import PolicyPatch, StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.unit.client.fake_cluster import fake_cluster
from tests.unit.stream.test_writer_engine import PATIENCE_S, Harness


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
        future = writer.append_nowait(b"in its turn")
        await asyncio.wait({future}, timeout=0.1)
        assert not future.done()
    assert await asyncio.wait_for(future, PATIENCE_S) == DLSN(1, 0, 0)
    await writer.close()


async def test_thousands_that_try_in_vain_are_a_line_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = SegmentSlots()
    monkeypatch.setattr(opening, "LINE_EVERY_S", 1e9)
    for at in range(1000):
        works.log_wait(f"many/s{at}", MetadataUnavailable("away"))
    monkeypatch.setattr(opening, "LINE_EVERY_S", 0.0)
    works.log_wait("many/last", MetadataUnavailable("away"))
    lines = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(one["stream"], one["others"]) for one in lines] == [("many/s0", 0), ("many/last", 999)]
    assert lines[0]["reason"] == "away"


STREAMS = 300


class Counting(Plan):
    """Counts creations that go on beside each other."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "create":
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)
            for _ in range(20):
                await asyncio.sleep(0)

    async def after(self, client: FakeClient, what: str) -> None:
        self.now -= what == "create"


@pytest.mark.slow
async def test_only_some_segments_are_made_at_once() -> None:
    plan = Counting()
    client = Cluster(plan).client()

    async def policy() -> StreamPolicy:
        return StreamPolicy(roll_bytes=1000)

    async def one(at: int) -> None:
        stream_id = f"{at:04x}"
        await client.records.change(Change(chain_path(stream_id), put_chain(Chain(stream_id))))
        store = ChainStore(client.records, stream_id, 10.0)  # type: ignore[arg-type]
        context = StreamContext(client, store, stream_id, policy)  # type: ignore[arg-type]
        async with StreamWriter(context, WriterOptions()) as writer:
            for _ in range(4):
                await writer.append(bytes(600))
                await writer.roll()

    await asyncio.wait_for(asyncio.gather(*map(one, range(STREAMS))), 60)
    assert plan.all >= 4 * STREAMS
    assert 1 < plan.most <= SLOTS_MAX


PLACES = {"b0": "/r1/a", "b1": "/r1/b", "b2": "/r1/c", "b3": "/r2/d"}


async def test_segments_are_where_their_namespace_and_the_client_want_them() -> None:
    """INV-P3: a namespace's policy does not replace a client's own wishes, nor the other way round."""
    async with fake_cluster(4, topology=PLACES, placement=PlacementConfig(policy="rack")) as (
        client,
        _,
        store,
    ):
        shop = client.namespace("shop")
        await shop.create(
            PolicyPatch(placement="region", placement_enforced=True, ensemble=2, write_quorum=2)
        )
        for number in range(6):
            stream = await shop.create_stream(f"s{number}")
            async with stream.writer() as writer:
                await writer.append(b"x")
            (segment,) = await stream.segments()
            metadata = store.read_ledger(segment.ledger_id).metadata
            assert "b3" in metadata.fragments[0].ensemble
            rule = decode_rule(metadata.custom[PLACEMENT_KEY])
            assert (rule.policy, rule.enforce) == ("region", True)
        await shop.set_policy(
            PolicyPatch(regions_min=3, write_quorum=3, ensemble=3, allow_missing_bookies=False)
        )
        with pytest.raises(NotEnoughBookies):
            async with (await shop.create_stream("t")).writer() as writer:
                await writer.append(b"x")
