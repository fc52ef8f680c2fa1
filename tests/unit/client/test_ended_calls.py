"""Calls that wait while somebody else ends what they wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from fastbk.client.request_ids import SLOT_MAX
from fastbk.errors import ClientClosed, NotEnoughBookies, QuorumTimeout
from fastbk.meta.api import Watch
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import fake_cluster


@pytest.mark.parametrize("ends_client", [False, True])
async def test_telling_the_lac_ends_when_the_writer_is_closed(ends_client: bool) -> None:
    async with fake_cluster(explicit_lac_interval=0) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.silent = True
        telling = asyncio.ensure_future(writer.write_last_add_confirmed())
        await asyncio.sleep(0)
        await (client.close() if ends_client else writer.close())
        with pytest.raises(ClientClosed if ends_client else NotEnoughBookies):
            await asyncio.wait_for(telling, 2)


async def test_slots_come_around_and_pass_over_those_in_use() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        (first,) = client.pool.slots
        client.pool._slot = SLOT_MAX - 1
        last = await client.create_ledger()
        again = await client.create_ledger()
        assert sorted(client.pool.slots) == [first, first + 1, SLOT_MAX]
        for one in (writer, last, again):
            assert await one.append(b"x") == 0


async def test_a_watch_that_nobody_waits_for_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_cluster() as (client, _, store):
        writer = await client.create_ledger()
        begin, is_asked, may_begin = store.watch_ledger, threading.Event(), threading.Event()
        watches: list[Closing] = []

        class Closing:
            def __init__(self, watch: Watch) -> None:
                self.watch, self.is_closed = watch, False

            def close(self) -> None:
                self.is_closed = True
                self.watch.close()

        def begin_late(ledger_id: int, callback: Callable[[int], None]) -> Watch:
            is_asked.set()
            assert may_begin.wait(10)
            watches.append(Closing(begin(ledger_id, callback)))
            return watches[0]

        monkeypatch.setattr(store, "watch_ledger", begin_late)
        changes = client.watch_ledger(writer.ledger_id)
        first = asyncio.ensure_future(anext(changes))
        # A call that the store's thread has not begun with is simply dropped.
        await wait_until_async(is_asked.is_set, "the store's thread is at it")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        may_begin.set()
        await wait_until_async(lambda: bool(watches) and watches[0].is_closed, "it is closed")
        await writer.close()


async def test_a_flush_that_fails_says_what_became_of_what_it_waited_for() -> None:
    async with fake_cluster(3, append_timeout=0.2, laggard_wait=0.01) as (client, fakes, _):
        writer = await client.create_ledger()
        for fake in fakes:
            fake.faults.swallow_adds = True
        pending = [writer.append_nowait(b"x") for _ in range(3)]
        with pytest.raises(QuorumTimeout) as flushed:
            await writer.flush(timeout=10)
        assert flushed.value.outcome == "unknown"
        assert flushed.value.entry_id == 2
        assert {str(one.exception()) for one in pending} == {str(flushed.value)}
        with pytest.raises(QuorumTimeout):
            await writer.close()
