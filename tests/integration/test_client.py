"""The clients, async and sync, against real bookies: what the fakes promise has to hold there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import fastbk
import fastbk.sync
from fastbk.client import LedgerWriter
from fastbk.client.ledger_requests import LedgerRequests
from fastbk.errors import NoSuchEntry, ReplicationConflict
from fastbk.model.entry import DigestType
from fastbk.native import client_codec as codec
from fastbk.replication.options import WriterOptions
from fastbk.replication.writer_machine import WriterMachine
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until, wait_until_async


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running


def data_of(entry_id: int) -> bytes:
    return b"%d." % entry_id * (1 + entry_id % 50)


@pytest.mark.uvloop_too
@pytest.mark.parametrize(
    ("digest", "quorums"),
    [
        ("crc32c", (3, 3, 2)),
        ("crc32c", (1, 1, 1)),
        ("crc32", (3, 2, 2)),
        ("hmac", (3, 2, 2)),
        ("dummy", (3, 2, 2)),
    ],
)
async def test_what_is_appended_is_read_back(
    cluster: LocalCluster, digest: str, quorums: tuple[int, int, int]
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(*quorums, digest=digest, password=b"x") as writer:
            futures = [writer.append_nowait(data_of(one)) for one in range(3000)]
            assert await writer.append(data_of(3000)) == 3000
            assert [future.result() for future in futures] == list(range(3000))
            reader = await client.open_ledger(writer.ledger_id, recovery=False, password=b"x")
            unconfirmed = await reader.read_unconfirmed(2990, 2999)
            assert [one.entry_id for one in unconfirmed] == list(range(2990, 3000))
            await writer.force()
        reader = await client.open_ledger(writer.ledger_id, password=b"x")
        found = [(one.entry_id, bytes(one.data)) async for one in reader.read()]
        assert found == [(one, data_of(one)) for one in range(3001)]
        with pytest.raises(NoSuchEntry):
            _ = [one async for one in reader.read(3001, 3001)]


async def test_large_entries(cluster: LocalCluster) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        sizes = [0, 1, 4 * 1024 * 1024, 5 * 1024 * 1024 - 4096, 100]
        async with await client.create_ledger() as writer:
            await writer.append_many([bytes([size % 251]) * size for size in sizes])
        reader = await client.open_ledger(writer.ledger_id)
        assert [len(one.data) async for one in reader.read()] == sizes


async def test_a_tail_follows_a_real_writer(cluster: LocalCluster) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await reader.last_add_confirmed() == -1
        seen: list[int] = []

        async def follow() -> None:
            async for entry in reader.tail():
                seen.append(entry.entry_id)

        task = asyncio.create_task(follow())
        for one in range(20):
            await writer.append(data_of(one))
            await wait_until_async(
                lambda one=one: seen == list(range(one + 1)), "the idle writer's entry"
            )
        await writer.append_many([b"x"] * 500)
        await writer.close()
        await asyncio.wait_for(task, 60)
        assert seen == list(range(520))


async def test_two_writers_of_one_ledger_never_both_succeed(cluster: LocalCluster) -> None:
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        fastbk.connect(cluster.metadata_uri) as other,
    ):
        first = await client.create_ledger()
        await first.append(b"mine")
        requests = LedgerRequests(first.ledger_id, DigestType.CRC32C, b"")
        known = await other._store.read_ledger(first.ledger_id)
        machine = WriterMachine(first.ledger_id, known, WriterOptions())
        io = other._io(requests, known.metadata)
        second = LedgerWriter(machine, io, other.config, explicit_ids=False)
        with pytest.raises(ReplicationConflict):
            await second.append(b"theirs")
        await first.append(b"more")
        await first.close()
        reader = await other.open_ledger(first.ledger_id)
        assert [bytes(one.data) async for one in reader.read()] == [b"mine", b"more"]


def test_the_sync_client_on_real_bookies(cluster: LocalCluster) -> None:
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        with client.create_ledger() as writer:
            assert writer.append(b"zero") == 0
            assert writer.append_many([data_of(one) for one in range(1, 5000)]) == (1, 4999)
            writer.flush()
            reader = client.open_ledger(writer.ledger_id, recovery=False)
            assert reader.last_add_confirmed() == 4999
        reader = client.open_ledger(writer.ledger_id)
        found = [bytes(one.data) for one in reader.read(1)]
        assert found == [data_of(one) for one in range(1, 5000)]
        client.delete_ledger(writer.ledger_id)


async def test_a_killed_bookie_gets_what_it_missed_when_it_is_back(cluster: LocalCluster) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger()
        await writer.append_many([b"before"] * 100)
        await cluster.kill_async(1)
        await writer.append_many([b"while"] * 1000)
        name = next(iter(writer.stats().trouble))
        await cluster.start_bookie_async(1)
        await wait_until_async(lambda: writer.stats().lagging[name] == 0, "caught up", 20)
        assert not writer.stats().is_under_replicated
        await writer.close()
        alone = codec.LedgerCodec(writer.ledger_id, writer.metadata.digest_type)
        answer = await client.pool.peer(name).request(
            lambda request_id: codec.put_read_batch(
                request_id, writer.ledger_id, 0, 1099, 5000, 1 << 20
            ),
            5,
        )
        found = alone.check_entries(answer.entries, answer.extra)
        assert [one for one, _, _ in found] == list(range(1100))


def test_a_sync_writer_rides_through_a_restart(cluster: LocalCluster) -> None:
    with fastbk.sync.connect(cluster.metadata_uri, laggard_wait=10) as client:
        writer = client.create_ledger()
        writer.append(b"before")
        cluster.kill(2, "journal")
        for _ in range(50):
            writer.append(b"while")

        def caught_up() -> bool:
            writer.append(b".")
            return not any(writer.stats().lagging.values())

        wait_until(caught_up, "all copies", 20)
        writer.close()
        assert not writer.stats().is_under_replicated
        cluster.wait_ready(2, boots_min=1)
