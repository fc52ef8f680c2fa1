"""Three bookies under load while processes of every kind are killed: histories of writers and readers are checked."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import fastbk
from fastbk.client import Client
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async

KINDS = ["worker.0", "journal", "index", "gc", "supervisor"]
WRITERS = 3


@dataclass
class History:
    """What one writer was told, in the order in which it was told."""

    ledger_id: int = -1
    acknowledged: list[bytes] = field(default_factory=list)
    lacs: list[int] = field(default_factory=list)


async def write(client: Client, history: History, stop: asyncio.Event, rng: random.Random) -> None:
    writer = await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
    history.ledger_id = writer.ledger_id
    async with writer:
        while not stop.is_set():
            chunk = [
                rng.randbytes(rng.choice([16, 900, 9000])) for _ in range(rng.choice([1, 7, 50]))
            ]
            first, last = await writer.append_many(chunk)
            # INV-C1: consecutive, in order, nothing twice.
            assert (first, last) == (
                len(history.acknowledged), len(history.acknowledged) + len(chunk) - 1)  # fmt: skip
            history.acknowledged += chunk
            history.lacs.append(writer.last_add_confirmed)
            assert writer.last_add_confirmed >= last


async def follow(client: Client, history: History, stop: asyncio.Event) -> list[bytes]:
    """Tail a ledger while it is written; what is seen must be what was acknowledged, in order."""
    await wait_until_async(lambda: history.ledger_id >= 0, "the ledger")
    seen: list[bytes] = []
    async with await client.open_ledger(history.ledger_id, recovery=False) as reader:
        async for entry in reader.tail(0):
            assert entry.entry_id == len(seen)
            seen.append(bytes(entry.data))
    return seen


async def read_all(uri: str, ledger_id: int) -> list[bytes]:
    async with (
        fastbk.connect(uri) as client,
        await client.open_ledger(ledger_id, recovery=False) as reader,
    ):
        return [bytes(entry.data) async for entry in reader.read()]


async def test_writers_go_on_and_nothing_acknowledged_is_lost() -> None:
    """With Qa=2 of 3 one bookie at a time may break down in any way: no append fails."""
    rng = random.Random(11)
    histories = [History() for _ in range(WRITERS)]
    stop = asyncio.Event()
    async with LocalCluster(3) as cluster:
        async with fastbk.connect(cluster.metadata_uri) as client, asyncio.TaskGroup() as group:
            for number, history in enumerate(histories):
                group.create_task(write(client, history, stop, random.Random(number)))
            tail = group.create_task(follow(client, histories[0], stop))
            for kind in KINDS:
                at = [len(one.acknowledged) for one in histories]
                await wait_until_async(
                    lambda at=at: all(  # type: ignore[misc]
                        len(one.acknowledged) > before + 100
                        for one, before in zip(histories, at, strict=True)
                    ),
                    f"appends before the end of {kind}",
                    30.0,
                )
                bookie = rng.randrange(3)
                boots = cluster.bookies[bookie].boots
                await cluster.kill_async(bookie, kind)
                if kind == "supervisor":
                    await cluster.start_bookie_async(bookie)
                else:
                    await cluster.wait_ready_async(bookie, boots + 1)
            stop.set()
        assert all(one.lacs == sorted(one.lacs) for one in histories)
        # Two of three have it whatever was killed (INV-J1, INV-A1): any one bookie may be gone.
        for bookie in range(3):
            await cluster.kill_async(bookie)
            for history in histories:
                found = await read_all(cluster.metadata_uri, history.ledger_id)
                assert found == history.acknowledged
            await cluster.start_bookie_async(bookie)
        assert tail.result() == histories[0].acknowledged
