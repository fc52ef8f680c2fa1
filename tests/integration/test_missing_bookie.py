"""Failover with two of three bookies up: a stream goes on without the third one, which owes its copies."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

import fastbk
from fastbk.admin.bookie_recovery import BookieRecovery
from fastbk.admin.bookie_repair import BookieRepair
from fastbk.admin.cluster import MissingCopies, under_replicated
from fastbk.errors import AppendUnknown, NotEnoughBookies, WriterFenced
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async

Client = fastbk.Client
QUICK_S = 4.0
"""A tenth of a second is usual. A wait for the missing bookie would take five seconds or more, the former error 30."""

PAUSE_S = 0.01


async def missing(client: Client, *, verify: bool = False) -> list[MissingCopies]:
    return [one async for one in under_replicated(client, verify=verify)]


async def texts(stream: fastbk.Stream) -> list[bytes]:
    async with stream.reader("earliest", tail=False) as reader:
        return [bytes(one.payload) async for one in reader]


async def fail_over(
    client: Client, former: StreamWriter, away: str, name: str
) -> tuple[StreamWriter, list[bytes]]:
    """Open the stream with another client, in place of `former`; return its writer, and what it wrote."""
    began_s = time.monotonic()
    writer = client.namespace("shop").stream("orders").writer()
    await writer.open()
    written = [f"{name} {number}".encode() for number in range(50)]
    await writer.append(written[0])
    assert time.monotonic() - began_s < QUICK_S
    await asyncio.gather(*(writer.append(one) for one in written[1:]))
    with pytest.raises((WriterFenced, AppendUnknown)):
        await former.append(b"too late")
    former.abort()
    (ledger_id,) = client.stats()["writers"]  # type: ignore[misc]
    metadata = (await client.ledger_info(ledger_id)).metadata
    assert (metadata.ensemble_size, away in metadata.fragments[0].ensemble) == (3, True)
    marked = {one.bookie_id for one in await missing(client) if "marked" in one.reason}
    assert marked == {away}
    return writer, written


async def test_a_new_leader_writes_with_two_of_three_bookies_and_the_third_is_repaired() -> None:
    async with LocalCluster(3) as cluster, AsyncExitStack() as clients:
        first, second, third = [
            await clients.enter_async_context(fastbk.connect(cluster.metadata_uri)) for _ in "123"
        ]
        namespace = first.namespace("shop")
        await namespace.create()
        stream = await namespace.create_stream("orders")
        leader = stream.writer()
        await leader.open()
        wanted = [b"first %d" % number for number in range(50)]
        await asyncio.gather(*(leader.append(one) for one in wanted))
        # Killed, a bookie stays registered for a while: first it is not reached, and later not registered.
        away = cluster.bookies[2].name
        await cluster.kill_async(2)
        leader, written = await fail_over(second, leader, away, "second")
        wanted += written
        await _until_down(first, away)
        # This client never saw it registered, and names it by its identity.
        leader, written = await fail_over(third, leader, away, "third")
        wanted += written
        leader.abort()
        assert await texts(stream) == wanted
        await cluster.start_bookie_async(2)
        leader = stream.writer()  # ends the segment that was open
        await leader.open()
        await leader.close()
        assert {one.bookie_id for one in await missing(first)} == {away}
        healed = await BookieRepair(first, away).run()
        assert healed.is_whole, (healed.failed, healed.parked)
        assert await missing(first, verify=True) == []
        assert await texts(stream) == wanted


async def test_a_member_that_returns_gets_what_it_owes_and_the_mark_goes() -> None:
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        await cluster.stop_bookie_async(1)
        away = cluster.bookies[1].name
        await _until_down(client, away)
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger(3, 3, 2)  # a plain ledger asks for it
        writer = await client.create_ledger(3, 3, 2, allow_missing_bookies=True)
        await asyncio.wait_for(writer.append_many([b"%d" % one for one in range(100)]), QUICK_S)
        assert [one.bookie_id for one in await missing(client) if "marked" in one.reason] == [away]
        await cluster.start_bookie_async(1)
        async with asyncio.timeout(30):
            while writer.stats().is_under_replicated:
                await writer.append(b"more")
                await asyncio.sleep(PAUSE_S)
        await writer.close()
        assert writer.stats().ensemble_changes == 0
        assert await missing(client, verify=True) == []
        # Recovery of a ledger whose writer has died, with the missing bookie still away.
        await cluster.stop_bookie_async(1)
        await _until_down(client, away)
        other = fastbk.connect(cluster.metadata_uri)
        left = await other.create_ledger(3, 3, 2, allow_missing_bookies=True)
        last = (await left.append_many([b"%d" % one for one in range(10)]))[1]
        await other.close()
        reader = await client.open_ledger(left.ledger_id)
        assert reader.metadata.last_entry_id == last
        assert (left.ledger_id, away) in {(m.ledger_id, m.bookie_id) for m in await missing(client)}
        await cluster.start_bookie_async(1)
        assert (await BookieRepair(client, away).run()).is_whole
        assert await missing(client, verify=True) == []


async def test_a_place_that_is_missing_is_taken_by_another_bookie_and_the_lost_one_is_recovered() -> (
    None
):
    async with LocalCluster(4) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        for one in (2, 3):
            await cluster.stop_bookie_async(one)
            await _until_down(client, cluster.bookies[one].name)
        writer = await client.create_ledger(4, 3, 2, allow_missing_bookies=True)
        assert writer.metadata.ensemble_size == 3
        (away,) = {one.name for one in cluster.bookies[2:]} & set(writer.stats().ensemble)
        spare = 5 - [one.name for one in cluster.bookies].index(away)
        await writer.append(b"one")
        await cluster.start_bookie_async(spare)
        async with asyncio.timeout(60):
            while away in writer.stats().ensemble:
                await writer.append(b"more")
                await asyncio.sleep(PAUSE_S)
        await writer.close()
        # The writer still held what was owed, and gave it to the new member.
        assert await missing(client, verify=True) == []
        await cluster.stop_bookie_async(spare)
        await _until_down(client, cluster.bookies[spare].name)
        async with await client.create_ledger(3, 3, 2, allow_missing_bookies=True) as writer:
            await writer.append(b"owed")
        (lost,) = {one.bookie_id for one in await missing(client) if "marked" in one.reason}
        await cluster.start_bookie_async(5 - [one.name for one in cluster.bookies].index(lost))
        progress = await BookieRecovery(client, lost).run()
        assert progress.is_whole, (progress.failed, progress.parked)
        found = await missing(client, verify=True)
        assert [one for one in found if one.ledger_id == writer.ledger_id] == []


async def test_a_writer_that_cannot_write_fences_nobody() -> None:
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        namespace = client.namespace("shop")
        await namespace.create(PolicyPatch(allow_missing_bookies=False))
        strict = await namespace.create_stream("strict")
        leader = strict.writer()
        await leader.open()
        await leader.append(b"before")
        await cluster.stop_bookie_async(2)
        await _until_down(client, cluster.bookies[2].name)
        async with fastbk.connect(cluster.metadata_uri) as other:
            began_s = time.monotonic()
            with pytest.raises(NotEnoughBookies):
                await other.namespace("shop").stream("strict").writer().open()
            assert time.monotonic() - began_s < QUICK_S
        await leader.append(b"the leader goes on")
        await leader.close()
        assert await texts(strict) == [b"before", b"the leader goes on"]


async def _until_down(client: Client, bookie_id: str) -> None:
    async def is_down() -> bool:
        return bookie_id not in {one.service.bookie_id for one in await client.list_bookies()}

    await wait_until_async(is_down, f"{bookie_id} is not registered", 60.0)
