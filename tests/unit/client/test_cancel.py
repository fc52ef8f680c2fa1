"""Cancels at random points: no answer ever reaches another caller, order is kept, connections stay healthy."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.errors import QuorumTimeout
from tests.fixtures.aio import LOOPS
from tests.unit.client.fake_cluster import fake_cluster, read_all, some_turns

pytestmark = pytest.mark.slow


def data_of(entry_id: int) -> bytes:
    return b"%d" % entry_id * (1 + entry_id % 7)


async def cancels(seed: int) -> None:
    rng = random.Random(seed)
    async with fake_cluster(entries_in_flight_max=8) as (client, fakes, _):
        for fake in fakes:
            # Answers overtake each other.
            fake.faults.delay_s = lambda: rng.choice([0, 0, 0.001, 0.004])
        written = await client.create_ledger()
        await written.append_many([data_of(one) for one in range(40)])
        await written.close()
        readers = [await client.open_ledger(written.ledger_id) for _ in range(3)]
        writer = await client.create_ledger()
        acknowledged: dict[int, bytes] = {}

        async def read() -> None:
            reader = rng.choice(readers)
            first = rng.randrange(40)
            last = rng.randrange(first, 40)
            found = [(one.entry_id, bytes(one.data)) async for one in reader.read(first, last)]
            assert found == [(one, data_of(one)) for one in range(first, last + 1)]

        async def append(name: bytes) -> None:
            if rng.random() < 0.3:
                first, last = await writer.append_many([name + b"%d" % one for one in range(12)])
                assert last == first + 11
                for one in range(12):
                    acknowledged[first + one] = name + b"%d" % one
            elif rng.random() < 0.3:
                with contextlib.suppress(QuorumTimeout):
                    entry_id = await writer.append(name, timeout=rng.choice([0.0005, 0.002]))
                    acknowledged[entry_id] = name
            else:
                acknowledged[await writer.append(name)] = name

        tasks = [
            asyncio.create_task(read() if rng.random() < 0.5 else append(b"task %d " % one))
            for one in range(25)
        ]
        for task in tasks:
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.003]))
                task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)
        for fake in fakes:
            fake.faults.delay_s = None
        # The pipe goes on behind what was cancelled.
        last = await writer.append(b"last")
        acknowledged[last] = b"last"
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        stored = {one.entry_id: bytes(one.data) async for one in reader.read()}
        assert sorted(stored) == list(range(last + 1))
        assert all(stored[one] == data for one, data in acknowledged.items())
        assert all(fake.connections <= 2 for fake in fakes)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
@pytest.mark.parametrize("kind", LOOPS)
def test_random_cancels_misdeliver_nothing(kind: str, seed: int) -> None:
    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        runner.run(cancels(seed))


async def test_a_cancelled_wait_for_room_sends_nothing() -> None:
    async with fake_cluster(entries_in_flight_max=1) as (client, fakes, _):
        writer = await client.create_ledger()
        for fake in fakes:
            fake.faults.swallow_adds = True
        future = writer.append_nowait(b"first")
        waiting = asyncio.create_task(writer.append(b"never"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for fake in fakes:
            fake.faults.swallow_adds = False
            fake.cut()
        await future
        assert await writer.append(b"second") == 1
        await writer.close()
        assert writer.last_add_confirmed == 1


async def test_a_cancelled_append_stays_in_the_pipe() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        task = asyncio.create_task(writer.append(b"cancelled"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await writer.append(b"after") == 1
        await writer.close()
        assert await read_all(client, writer.ledger_id) == [b"cancelled", b"after"]


async def test_a_cancelled_close_can_be_finished() -> None:
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
        for fake in fakes:
            fake.faults.swallow_adds = True
        future = writer.append_nowait(b"x")
        closing = asyncio.create_task(writer.close())
        await some_turns()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        for fake in fakes:
            fake.faults.swallow_adds = False
            fake.cut()
        assert await future == 0
        await writer.close()
        assert (await client.ledger_info(writer.ledger_id)).metadata.last_entry_id == 0
