"""A thousand streams that roll at once: only some segments are made at a time, and no append waits for it."""

from __future__ import annotations

import asyncio

from fastbk.meta.records import Change
from fastbk.stream.chain.chain import Chain, put_chain
from fastbk.stream.chain.segment_slots import SLOTS_MAX
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan

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
