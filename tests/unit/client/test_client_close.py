"""Closing a client ends whatever waits by it, at once and with ClientClosed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from fastbk.errors import ClientClosed
from fastbk.stream.client import Client
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import fake_cluster, some_turns

IN_TIME_S = 5.0
"""Less than anybody waits by a clock, and more than a turn of a busy machine."""


async def _tail_a_ledger(client: Client) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    reader = await client.open_ledger(writer.ledger_id, recovery=False)
    async for _ in reader.tail():
        pass


async def _watch_a_ledger(client: Client) -> None:
    writer = await client.create_ledger()
    async for _ in client.watch_ledger(writer.ledger_id):
        pass


async def _iterate(client: Client) -> None:
    async with client.namespace("").stream("s").reader() as reader:
        async for _ in reader:
            pass


async def _read(client: Client) -> None:
    async with client.namespace("").stream("s").reader() as reader:
        while True:
            await reader.read()


async def _wait_caught_up(client: Client) -> None:
    async with client.namespace("").stream("s").reader() as reader:
        await reader.wait_caught_up()


async def _hold_a_cursor(client: Client) -> None:
    cursor = client.namespace("").stream("s").cursor("c")
    await cursor.open()
    try:
        async for _ in cursor:
            pass
    finally:
        await cursor.abort()


async def _watch_a_namespace(client: Client) -> None:
    async for _ in client.namespace("").watch():
        pass


@pytest.mark.parametrize(
    "wait",
    [
        _tail_a_ledger,
        _watch_a_ledger,
        _iterate,
        _read,
        _wait_caught_up,
        _hold_a_cursor,
        _watch_a_namespace,
    ],
)
async def test_whoever_waits_is_told(wait: Callable[[Client], Awaitable[None]]) -> None:
    async with fake_cluster(poll_interval=30.0) as (made, _, _):
        client = cast("Client", made)
        async with client.namespace("").stream("s").writer(create=True) as writer:
            await writer.append(b"x")
        waiting = asyncio.ensure_future(wait(client))
        await wait_until_async(lambda: bool(client._store._callbacks), "it has begun to wait")
        await some_turns()
        assert not waiting.done()
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(waiting, IN_TIME_S)
