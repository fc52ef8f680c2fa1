"""Closing a client ends whatever waits by it, at once and with ClientClosed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

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


@pytest.mark.parametrize("kind", ["ledger", "reader", "cursor", "pattern reader", "pattern cursor"])
async def test_whoever_waits_by_what_is_closed_itself_is_told(kind: str) -> None:
    async with fake_cluster(poll_interval=30.0) as (made, _, _):
        client = cast("Client", made)
        space = client.namespace("")
        async with space.stream("s").writer(create=True) as writer:
            await writer.append(b"x")
        made_by = {
            "reader": lambda: space.stream("s").reader(),
            "cursor": lambda: space.stream("s").cursor("c"),
            "pattern reader": lambda: space.reader("*"),
            "pattern cursor": lambda: space.cursor("*", "c"),
        }
        source: Any
        if kind == "ledger":
            ledger = await client.create_ledger()
            await ledger.append(b"x")
            source = await client.open_ledger(ledger.ledger_id, recovery=False)
            items = source.tail()
        else:
            source = items = made_by[kind]()
            await source.open()
        await anext(items)
        waiting = asyncio.ensure_future(anext(items))
        await wait_until_async(lambda: bool(client._store._callbacks), "it has begun to wait")
        await some_turns()
        assert not waiting.done()
        await source.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(waiting, IN_TIME_S)
        if kind == "ledger":
            await ledger.close()


async def test_a_close_that_was_cancelled_goes_on_and_can_be_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_cluster() as (client, _, _):
        reached, let_go, steps = asyncio.Event(), asyncio.Event(), list[str]()
        close_marks, close_store = client.marks.close, client._store.close

        async def marks_closed(timeout_s: float) -> None:
            reached.set()
            await let_go.wait()
            await close_marks(timeout_s)

        async def store_closed(timeout_s: float) -> None:
            await close_store(timeout_s)
            steps.append("closed")

        monkeypatch.setattr(client.marks, "close", marks_closed)
        monkeypatch.setattr(client._store, "close", store_closed)
        first = asyncio.ensure_future(client.close())
        await reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = asyncio.ensure_future(client.close())
        await some_turns()
        assert not again.done(), "it waits for the end"
        let_go.set()
        await asyncio.wait_for(again, IN_TIME_S)
        assert steps == ["closed"]
        await client.close()
        assert steps == ["closed"]
