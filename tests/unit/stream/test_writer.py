"""The writer on ledgers in memory: takeovers at random moments, metadata that is away, crashes.

INV-S1, INV-S3, INV-S5, INV-S6, INV-S8.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from fastbk.errors import Error
from fastbk.meta.records import Change
from fastbk.stream.chain import Chain, put_chain
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.records import chunk_of
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, RandomPlan


def context_of(client: FakeClient, policy: StreamPolicy) -> StreamContext:
    async def current() -> StreamPolicy:
        return policy

    return StreamContext(client, ChainStore(client.records, "ab", 10.0), "test/ab", current)  # type: ignore[arg-type]


async def new_stream(cluster: Cluster) -> None:
    await cluster.client().records.change(Change(chain_path("ab"), put_chain(Chain("ab"))))


async def payloads_of(cluster: Cluster) -> list[tuple[int, int, bytes]]:
    """Return sequence number, transaction id and payload of all that a reader would find, once all is closed."""
    client = cluster.client()
    await StreamWriter(context_of(client, StreamPolicy()), WriterOptions()).open()
    chain = (await ChainStore(client.records, "ab", 10.0).read()).chain  # type: ignore[arg-type]
    found = []
    for row in chain.rows:
        datas = cluster.ledger(row.ledger_id).entries[: row.last_entry_id + 1]
        chunk = chunk_of(row.number, 0, datas, row.base_seq, row.base_txid)
        found += [(one.seq, one.txid, bytes(one.payload)) for one in chunk]
    return found


async def write_some(
    client: FakeClient, policy: StreamPolicy, kept: dict[int, bytes], rng: random.Random
) -> None:
    """Write until something ends it, or it is done; `kept` gets what was acknowledged, by transaction id."""
    writer = StreamWriter(
        context_of(client, policy), WriterOptions(entries_in_flight=rng.randint(1, 5))
    )
    futures: list[tuple[int, bytes, asyncio.Future[object]]] = []

    def note() -> None:
        good = (one for one in futures if one[2].done() and one[2].exception() is None)
        kept.update((txid, payload) for txid, payload, _ in good)

    try:
        await writer.open()
        for _ in range(rng.randrange(40)):
            txid = writer.last_txid + rng.randint(1, 3)
            payload = b"%s %d" % (client.name.encode(), txid)
            futures.append((txid, payload, writer.append_nowait(payload, txid=txid)))  # type: ignore[arg-type]
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            note()
        await writer.flush()
        note()
        if rng.random() < 0.5:
            await writer.close()
    except Error:
        pass
    finally:
        note()


async def end_all_but(spared: set[asyncio.Task[object]]) -> None:
    """What processes that are gone had under way is gone, too."""
    others = asyncio.all_tasks() - spared
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def life(seed: int) -> None:
    rng, spared = random.Random(seed), asyncio.all_tasks()
    cluster = Cluster(RandomPlan(rng, away=rng.choice([0, 0.1]), lost=rng.choice([0, 0.1])))
    policy = StreamPolicy(roll_bytes=rng.choice([200, 1000, 10**6]))
    setup, cluster.plan = cluster.plan, Cluster().plan
    await new_stream(cluster)
    cluster.plan = setup
    kept: dict[int, bytes] = {}
    for turn in range(rng.randint(1, 5)):
        clients = [cluster.client(f"{turn}{name}") for name in "ab"[: rng.randint(1, 2)]]
        tasks = [asyncio.ensure_future(write_some(one, policy, kept, rng)) for one in clients]
        for _ in range(rng.randrange(400)):
            await asyncio.sleep(0)
        for client, task in zip(clients, tasks, strict=True):
            if rng.random() < 0.5:
                client.crash()
                task.cancel()
        await asyncio.wait(tasks)
        for client in clients:
            client.crash()
        await end_all_but(spared)
    cluster.plan = Cluster().plan
    found = await payloads_of(cluster)
    assert [seq for seq, _, _ in found] == list(range(len(found)))
    txids = [txid for _, txid, _ in found]
    assert txids == sorted(set(txids))
    there = {txid: payload for _, txid, payload in found}
    assert {txid: there.get(txid) for txid in kept} == kept, "INV-S1: acknowledged and not there"
    chain = (await ChainStore(cluster.client().records, "ab", 10.0).read()).chain  # type: ignore[arg-type]
    assert set(cluster.ledgers) <= {row.ledger_id for row in chain.rows} | {
        *chain.doomed,
        chain.reserved,
    }, "INV-S8"
    await end_all_but(spared)


@pytest.mark.slow
async def test_no_order_of_takeovers_crashes_and_outages_loses_a_record(rng: random.Random) -> None:
    for _ in range(60):
        seed = rng.getrandbits(32)
        try:
            await asyncio.wait_for(life(seed), 20)
        except BaseException:
            print(f"seed {seed}")
            raise
