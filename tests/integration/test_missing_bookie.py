"""Streams and ledgers go on without one of three bookies, away or read-only, which owes its copies.

Failover, rolls, recovery; its return, and its repair.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack

import pytest

import fastbk
from fastbk.admin.cluster import MissingCopies, under_replicated
from fastbk.admin.cluster import marked as marks_of
from fastbk.admin.healing import BookieRepair
from fastbk.devcluster import Bookie
from fastbk.errors import AppendUnknown, NotEnoughBookies, WriterFenced
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tests.fixtures.pages import page
from tests.fixtures.registrations import until_down
from tests.fixtures.shared_cluster import renewed_cluster
from tests.fixtures.wait import wait_until_async

Client = fastbk.Client
QUICK_S = 4.0
"""A tenth of a second is usual. A wait for the missing bookie would take five seconds or more, the former error 30."""


cluster = renewed_cluster


async def missing(client: Client) -> list[MissingCopies]:
    return [one async for one in under_replicated(client)]


async def texts(stream: fastbk.Stream) -> list[bytes]:
    async with stream.reader("earliest", tail=False) as reader:
        return [bytes(one.payload) async for one in reader]


async def refuse_adds(bookie: Bookie, refuses: bool) -> None:
    """Make the bookie read-only, or writable again; its registration says so on return."""
    path, body = "/api/v1/bookie/state/readonly", json.dumps({"readOnly": refuses})
    assert (await asyncio.to_thread(page, bookie, path, "PUT", body))[0] == 200


async def marked(client: Client) -> dict[int, str]:
    """Return by ledger which bookie a mark says lacks copies there."""
    return {one.ledger_id: one.bookie_id async for one in marks_of(client)}


async def append_quickly(writer: StreamWriter, name: str) -> list[bytes]:
    began_s = time.monotonic()
    written = [f"{name} {number}".encode() for number in range(50)]
    await asyncio.gather(*(writer.append(one) for one in written))
    assert time.monotonic() - began_s < QUICK_S
    return written


async def fail_over(
    client: Client, space: str, former: StreamWriter, away: str, name: str
) -> tuple[StreamWriter, list[bytes]]:
    """Open the stream with another client, in place of `former`; return its writer, and what it wrote."""
    began_s = time.monotonic()
    writer = client.namespace(space).stream("orders").writer()
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
    assert set((await marked(client)).values()) == {away}
    return writer, written


async def test_a_new_leader_writes_with_two_of_three_bookies_and_the_third_is_repaired(
    cluster: LocalCluster, own_name: str
) -> None:
    async with AsyncExitStack() as clients:
        first, second, third = [
            await clients.enter_async_context(fastbk.connect(cluster.metadata_uri)) for _ in "123"
        ]
        namespace = first.namespace(own_name)
        await namespace.create()
        stream = await namespace.create_stream("orders")
        leader = stream.writer()
        await leader.open()
        wanted = [b"first %d" % number for number in range(50)]
        await asyncio.gather(*(leader.append(one) for one in wanted))
        # Killed, a bookie stays registered for a while: first it is not reached, and later not registered.
        away = cluster.bookies[2].name
        await cluster.kill_async(2)
        leader, written = await fail_over(second, own_name, leader, away, "second")
        wanted += written
        await until_down(first, away)
        # This client never saw it registered, and names it by its identity.
        leader, written = await fail_over(third, own_name, leader, away, "third")
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
        assert await missing(first) == []
        assert await texts(stream) == wanted


async def test_a_member_that_returns_gets_what_it_owes_and_the_mark_goes(
    cluster: LocalCluster,
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        await cluster.stop_bookie_async(1)
        away = cluster.bookies[1].name
        await until_down(client, away)
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger(3, 3, 2)  # a plain ledger asks for it
        writer = await client.create_ledger(3, 3, 2, allow_missing_bookies=True)
        await asyncio.wait_for(writer.append_many([b"%d" % one for one in range(100)]), QUICK_S)
        assert await marked(client) == {writer.ledger_id: away}
        await cluster.start_bookie_async(1)

        async def is_replicated() -> bool:
            await writer.append(b"more")
            return not writer.stats().is_under_replicated

        await wait_until_async(is_replicated, "the member has all copies")
        await writer.close()
        assert writer.stats().ensemble_changes == 0
        assert await missing(client) == []
        # Recovery of a ledger whose writer has died, with the missing bookie still away.
        await cluster.stop_bookie_async(1)
        await until_down(client, away)
        other = fastbk.connect(cluster.metadata_uri)
        left = await other.create_ledger(3, 3, 2, allow_missing_bookies=True)
        last = (await left.append_many([b"%d" % one for one in range(10)]))[1]
        await other.close()
        reader = await client.open_ledger(left.ledger_id)
        assert reader.metadata.last_entry_id == last
        assert (left.ledger_id, away) in {(m.ledger_id, m.bookie_id) for m in await missing(client)}
        await cluster.start_bookie_async(1)
        assert (await BookieRepair(client, away).run()).is_whole
        assert await missing(client) == []


async def test_a_writer_that_cannot_write_fences_nobody(
    cluster: LocalCluster, own_name: str
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        namespace = client.namespace(own_name)
        await namespace.create(PolicyPatch(allow_missing_bookies=False))
        strict = await namespace.create_stream("strict")
        leader = strict.writer()
        await leader.open()
        await leader.append(b"before")
        await cluster.stop_bookie_async(2)
        await until_down(client, cluster.bookies[2].name)
        async with fastbk.connect(cluster.metadata_uri) as other:
            began_s = time.monotonic()
            with pytest.raises(NotEnoughBookies):
                await other.namespace(own_name).stream("strict").writer().open()
            assert time.monotonic() - began_s < QUICK_S
        await leader.append(b"the leader goes on")
        await leader.close()
        assert await texts(strict) == [b"before", b"the leader goes on"]


async def test_failover_and_rolls_go_on_while_one_of_three_bookies_is_read_only(
    cluster: LocalCluster, own_name: str
) -> None:
    async with AsyncExitStack() as clients:
        first, second, third = [
            await clients.enter_async_context(fastbk.connect(cluster.metadata_uri)) for _ in "123"
        ]
        namespace = first.namespace(own_name)
        await namespace.create()
        stream = await namespace.create_stream("orders")
        leader = stream.writer()
        await leader.open()
        wanted = await append_quickly(leader, "before")
        full = cluster.bookies[2]
        await refuse_adds(full, True)
        wanted += await append_quickly(leader, "read-only")

        other, written = await fail_over(second, own_name, leader, full.name, "failover")
        wanted += written
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
        last = third.namespace(own_name).stream("orders").writer()
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
        assert await missing(first) == []
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
        await until_down(client, bookies[0].name)
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
        assert await missing(client) == []
        await refuse_adds(bookies[0], True)
        await refuse_adds(bookies[1], True)
        with pytest.raises(NotEnoughBookies) as caught:
            await client.create_ledger(3, 3, 2, allow_missing_bookies=True)
        said = [why for why in caught.value.replicas.values() if "read-only" in why]
        assert len(said) == 3, caught.value.replicas
