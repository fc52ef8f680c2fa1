"""The end of a worker: what is under way is answered, nothing new is taken, and it does not wait for ever."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures import frames
from tests.fixtures.frames import answer_of
from tests.fixtures.worker_harness import MIB, READ, Client, Served, WorkerHarness, served, until

OK = 0


async def greeted(bookie: Served) -> Client:
    client = await bookie.connect()
    client.send(frames.hello())
    assert answer_of(await client.frame()) == (1, OK)
    return client


async def answered(client: Client, request_ids: range) -> None:
    got = [answer_of(await client.frame()) for _ in request_ids]
    assert got == [(request_id, OK) for request_id in request_ids]


async def test_drain_answers_what_is_under_way_and_closes() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await greeted(bookie)
            client.send(frames.add(2, 0) + frames.read_lac(3, 9, 60_000))
            await bookie.take(1)
            await bookie.take_request()
            drained = asyncio.ensure_future(bookie.network.drain(5.0))
            await until(lambda: not bookie.network.connections[0]._transport.is_reading())
            client.send(frames.add(4, 1))  # too late: never placed
            worker_harness.publish()
            assert answer_of(await client.frame()) == (2, OK)
            assert await drained == 0
            assert await client.is_closed() == b""
            assert worker_harness.next() is None
            with pytest.raises(OSError, match=r"refused|Connect"):
                await bookie.connect()
            await client.close()


@pytest.mark.slow
async def test_drain_writes_what_a_slow_client_has_not_read_yet() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, reply_backlog_bytes_max=64 * MIB) as bookie:
            client = await greeted(bookie)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            client.send(b"".join(frames.read(100 + i, 0) for i in range(40)))
            for i in range(40):
                record = await bookie.take_request()
                pending = bookie.worker.pending
                worker_harness.reply(
                    frames.read_reply(100 + i, 0, bytes(1_000_000)), record.connection_id, READ
                )
                await until(lambda before=pending: bookie.worker.pending < before)  # type: ignore[misc]
            connection = next(iter(bookie.network.connections.values()))
            drained = asyncio.ensure_future(bookie.network.drain(5.0))
            await until(connection._transport.is_closing)
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            await answered(client, range(100, 140))
            assert await drained == 0
            await client.close()


async def test_drain_ends_at_its_deadline() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await greeted(bookie)
            client.send(frames.add(2, 0))
            await bookie.take(1)
            assert await bookie.network.drain(0.01) == 1
            assert await client.is_closed() == b""
            await client.close()
