"""A second `close` waits for the first one, and says what that one says."""

from __future__ import annotations

import asyncio

import pytest

from fastbk.errors import MetadataUnavailable, QuorumTimeout, WriterFailed
from fastbk.stream.cursor.cursor import Cursor
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import context_of, filled, new_stream, writer_of


class Held(Plan):
    """Calls of one kind wait until they may go on; then they fail, if they are to."""

    def __init__(self, what: str) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.error: Exception | None = None
        self._what = what

    async def before(self, client: FakeClient, what: str) -> None:
        if what == self._what:
            await self.may_go_on.wait()
            if self.error is not None:
                raise self.error


async def _turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_second_close_of_a_writer_waits_for_what_the_first_one_flushes() -> None:
    plan = Held("append")
    cluster = Cluster(plan)
    await new_stream(cluster)
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"0")
    plan.may_go_on.clear()
    late = writer.append_nowait(b"1")
    first = asyncio.ensure_future(writer.close())
    await _turns()
    second = asyncio.ensure_future(writer.close())
    await _turns()
    assert not first.done() and not second.done()
    plan.may_go_on.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    assert late.done()
    await writer.close()


async def test_both_closes_of_a_writer_raise_what_went_wrong() -> None:
    plan = Held("append")
    cluster = Cluster(plan)
    await new_stream(cluster)
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"0")
    plan.may_go_on.clear()
    plan.error = MetadataUnavailable("whatever")
    writer.append_nowait(b"1")
    closing = [asyncio.ensure_future(writer.close()) for _ in range(3)]
    await _turns()
    plan.may_go_on.set()
    ends = await asyncio.gather(*closing, return_exceptions=True)
    assert [type(end) for end in ends] == [WriterFailed] * 3
    assert len({id(end) for end in ends}) == 3, "each has an exception of its own"
    with pytest.raises(WriterFailed):
        await writer.close()


async def test_whoever_gives_up_a_close_that_others_wait_for_does_not_end_theirs() -> None:
    plan = Held("append")
    cluster = Cluster(plan)
    await new_stream(cluster)
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"0")
    plan.may_go_on.clear()
    late = writer.append_nowait(b"1")
    first = asyncio.ensure_future(writer.close())
    await _turns()
    with pytest.raises(QuorumTimeout):
        await writer.close(timeout=0.01)
    plan.may_go_on.set()
    await asyncio.wait_for(first, 10)
    assert (await late).entry == 1


async def test_a_second_close_of_a_cursor_waits_until_what_was_acknowledged_is_kept() -> None:
    plan = Held("metadata.change")
    cluster = Cluster(plan)
    await new_stream(cluster)
    records = await filled(cluster, [3])
    cursor = Cursor(context_of(cluster.client()), "c", flush_interval=60)
    await cursor.open()
    plan.may_go_on.clear()
    cursor.ack(records[1])
    first = asyncio.ensure_future(cursor.close())
    await _turns()
    second = asyncio.ensure_future(cursor.close())
    await _turns()
    assert not first.done() and not second.done()
    plan.may_go_on.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    async with Cursor(context_of(cluster.client()), "c") as again:
        assert again.mark_seq == 2
