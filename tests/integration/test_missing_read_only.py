"""Failover and rolls while one of three bookies is read-only: segments begin without it, and it owes its copies."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from contextlib import AsyncExitStack

import pytest

import fastbk
from fastbk.admin.bookie_repair import BookieRepair
from fastbk.devcluster import Bookie
from fastbk.errors import AppendUnknown, NotEnoughBookies, WriterFenced
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.integration.test_missing_bookie import QUICK_S, missing, texts

Client = fastbk.Client


async def refuse_adds(bookie: Bookie, refuses: bool) -> None:
    """Make the bookie read-only, or writable again; its registration says so on return."""

    def put() -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{bookie.http_port}/api/v1/bookie/state/readonly",
            data=json.dumps({"readOnly": refuses}).encode(),
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            status: int = answer.status
            return status

    assert await asyncio.to_thread(put) == 200


async def marked(client: Client) -> dict[int, str]:
    """Return by ledger which bookie a mark says lacks copies there."""
    return {one.ledger_id: one.bookie_id for one in await missing(client) if "marked" in one.reason}


async def append_quickly(writer: StreamWriter, name: str) -> list[bytes]:
    began_s = time.monotonic()
    written = [f"{name} {number}".encode() for number in range(50)]
    await asyncio.gather(*(writer.append(one) for one in written))
    assert time.monotonic() - began_s < QUICK_S
    return written


async def test_failover_and_rolls_go_on_while_one_of_three_bookies_is_read_only() -> None:
    async with LocalCluster(3) as cluster, AsyncExitStack() as clients:
        first, second, third = [
            await clients.enter_async_context(fastbk.connect(cluster.metadata_uri)) for _ in "123"
        ]
        namespace = first.namespace("shop")
        await namespace.create()
        stream = await namespace.create_stream("orders")
        leader = stream.writer()
        await leader.open()
        wanted = await append_quickly(leader, "before")
        full = cluster.bookies[2]
        await refuse_adds(full, True)
        wanted += await append_quickly(leader, "read-only")

        began_s = time.monotonic()
        other = second.namespace("shop").stream("orders").writer()
        await other.open()
        assert time.monotonic() - began_s < QUICK_S
        wanted += await append_quickly(other, "failover")
        with pytest.raises((WriterFenced, AppendUnknown)):
            await leader.append(b"too late")
        leader.abort()
        for number in range(2):
            began_s = time.monotonic()
            await other.roll()
            wanted += await append_quickly(other, f"roll {number}")
            assert time.monotonic() - began_s < QUICK_S
        ledger_id = max(second.stats()["writers"])  # type: ignore[call-overload]
        metadata = (await second.ledger_info(ledger_id)).metadata
        assert (metadata.ensemble_size, len(metadata.fragments)) == (3, 1)
        assert full.name in metadata.fragments[0].ensemble
        assert len(marks := await marked(first)) >= 3
        assert set(marks.values()) == {full.name}

        # A writer that dies leaves its mark to clients that recover the ledger and to `bookie repair`.
        other.abort()
        last = third.namespace("shop").stream("orders").writer()
        await last.open()
        wanted += await append_quickly(last, "again")
        assert await texts(stream) == wanted
        ledger_id = max(third.stats()["writers"])  # type: ignore[call-overload]
        await refuse_adds(full, False)
        await wait_until_async(lambda: _is_replicated(third, ledger_id), "the bookie takes adds")
        await last.close()
        assert ledger_id not in await marked(first), "the writer gave it what it owed"
        healed = await BookieRepair(first, full.name).run()
        assert healed.is_whole, (healed.failed, healed.parked)
        assert await missing(first, verify=True) == []
        assert await texts(stream) == wanted


def _is_replicated(client: Client, ledger_id: int) -> bool:
    writers: dict[int, object] = client.stats()["writers"]  # type: ignore[assignment]
    return not writers[ledger_id].is_under_replicated  # type: ignore[attr-defined]


async def test_a_read_only_bookie_is_named_below_the_write_quorum_and_another_takes_its_place() -> (
    None
):
    async with LocalCluster(4) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        bookies = cluster.bookies
        await refuse_adds(bookies[3], True)
        async with await client.create_ledger(4, 3, 2, allow_missing_bookies=True) as writer:
            await writer.append(b"smaller")
        assert set(writer.stats().ensemble) == {one.name for one in bookies[:3]}
        assert await marked(client) == {}
        # It answers reads and fences, so it is named rather than one that does not answer.
        await cluster.stop_bookie_async(0)
        await wait_until_async(lambda: _is_down(client, bookies[0].name), "the bookie is gone")
        writer = await client.create_ledger(4, 3, 2, allow_missing_bookies=True)
        assert set(writer.stats().ensemble) == {one.name for one in bookies[1:]}
        await writer.append_many([b"%d" % one for one in range(100)])
        assert await marked(client) == {writer.ledger_id: bookies[3].name}
        with pytest.raises(NotEnoughBookies, match="read-only"):
            await client.create_ledger(3, 3, 2)
        # Another one that takes adds gets the place, and the copies.
        await cluster.start_bookie_async(0)

        async def is_replaced() -> bool:
            await writer.append(b"more")
            return bookies[3].name not in writer.stats().ensemble

        await wait_until_async(is_replaced, "the writer takes the bookie that came")
        await writer.close()
        assert await missing(client, verify=True) == []
        await refuse_adds(bookies[0], True)
        await refuse_adds(bookies[1], True)
        with pytest.raises(NotEnoughBookies) as caught:
            await client.create_ledger(3, 3, 2, allow_missing_bookies=True)
        said = [why for why in caught.value.replicas.values() if "read-only" in why]
        assert len(said) == 3, caught.value.replicas


async def _is_down(client: Client, bookie_id: str) -> bool:
    return bookie_id not in {one.service.bookie_id for one in await client.list_bookies()}
