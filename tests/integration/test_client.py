"""The client against real bookies: what the fakes promise has to hold there.

Kills, recoveries and both clients under load: the rigs `live` and `rolling`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fastbk
from fastbk.client import Client, LedgerWriter
from fastbk.client.bookie_requests import LedgerRequests
from fastbk.errors import NoSuchEntry, ReplicationConflict
from fastbk.model.entry import DigestType
from fastbk.replication.options import WriterOptions
from fastbk.replication.writer_machine import WriterMachine
from fastbk.testing import LocalCluster
from tests.fixtures.metadata import new_cluster
from tests.fixtures.namespaces import Host, hosts, skip_without_namespaces
from tests.fixtures.wait import wait_until_async


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
        io = await other._io(requests, known.metadata)
        second = LedgerWriter(machine, io, other.config, explicit_ids=False)
        with pytest.raises(ReplicationConflict):
            await second.append(b"theirs")
        await first.append(b"more")
        await first.close()
        reader = await other.open_ledger(first.ledger_id)
        assert [bytes(one.data) async for one in reader.read()] == [b"mine", b"more"]


async def test_a_writer_goes_on_when_a_bookie_is_killed_for_good() -> None:
    async with (
        LocalCluster(4) as cluster,
        fastbk.connect(cluster.metadata_uri, replace_after=0.5) as client,
    ):
        writer = await client.create_ledger()
        acknowledged: list[int] = []

        async def write() -> None:
            while writer.stats().ensemble_changes == 0 or len(acknowledged) < 2000:
                _, last = await writer.append_many([b"%d" % len(acknowledged)] * 10)
                acknowledged.extend(range(last - 9, last + 1))

        task = asyncio.create_task(write())
        await wait_until_async(lambda: len(acknowledged) > 200, "some entries")
        lost = writer.stats().ensemble[1]
        await cluster.kill_async([one.name for one in cluster.bookies].index(lost))
        await asyncio.wait_for(task, 30)
        assert lost not in writer.stats().ensemble
        await writer.close()
        metadata = (await client.ledger_info(writer.ledger_id)).metadata
        former, *later = metadata.fragments
        assert lost in former.ensemble
        assert later
        assert not any(lost in one.ensemble for one in later)

        async def is_unmarked() -> bool:
            return await client.marks.list() == []

        # Where the writer held too little of it, the client copies what is missing, and then takes the mark back.
        await wait_until_async(is_unmarked, "the replacement has what the lost bookie lacks")
        reader = await client.open_ledger(writer.ledger_id)
        found = [one.entry_id async for one in reader.read()]
        assert found == acknowledged


QUICK_REPLACEMENT = {
    "bookie_timeout": 0.5,
    "replace_after": 0.2,
    "connect_timeout": 2.0,
    "probe_timeout": 1.0,
}


@asynccontextmanager
async def isolated_cluster(folder: Path, count: int) -> AsyncIterator[tuple[list[Host], str]]:
    """Start bookies on hosts of their own, whose links can be cut: packets vanish, nothing is reset."""
    skip_without_namespaces()
    uri = new_cluster(folder / "metadata.sqlite")
    with hosts(count, folder) as made:
        for host in made:
            host.start(uri)
        async with fastbk.connect(uri) as client:
            try:
                await wait_until_async(
                    lambda: _all_there(client, count), "all bookies are registered", 30
                )
            except AssertionError:
                pytest.fail("\n".join(f"{one.name}: {one.log()}" for one in made))
        yield made, uri


async def _all_there(client: Client, count: int) -> bool:
    return len(await client.list_bookies()) == count


async def test_a_silent_host_is_replaced_and_comes_back_as_a_stranger_to_nobody(
    tmp_path: Path,
) -> None:
    async with (
        isolated_cluster(tmp_path, 4) as (made, uri),
        fastbk.connect(uri, **QUICK_REPLACEMENT) as client,
    ):
        writer = await client.create_ledger(3, 3, 2)
        await writer.append(b"0")
        ensemble = writer.metadata.fragments[-1].ensemble
        silent = next(one for one in made if one.bookie_id == ensemble[0])
        silent.cut()
        slowest_s = 0.0
        count = 1
        async with asyncio.timeout(30):
            while (
                silent.bookie_id
                in (await client.ledger_info(writer.ledger_id)).metadata.fragments[-1].ensemble
            ):
                began_s = time.monotonic()
                await writer.append(b"%d" % count)
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                count += 1
        # Two of three answer all the time: nobody waited for the silent one's timeout and the change together.
        assert slowest_s < 5
        await writer.append(b"%d" % count)
        await writer.close()
        silent.mend()
        reader = await client.open_ledger(writer.ledger_id)
        entries = [bytes(one.data) async for one in reader.read()]
        assert entries == [b"%d" % one for one in range(count + 1)]
