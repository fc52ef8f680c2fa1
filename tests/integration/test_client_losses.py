"""Real bookies that are killed for good, and writers that are: what was acknowledged is read, by whoever comes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

import fastbk
import fastbk.sync
from fastbk.errors import LedgerFenced, Unauthorized
from fastbk.model.ledger import LedgerState
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async

# Each of the first two tests kills one for good, and three have to be left.
BOOKIES = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(BOOKIES) as running:
        yield running


def number_of(cluster: LocalCluster, bookie_id: str) -> int:
    return [one.name for one in cluster.bookies].index(bookie_id)


WRITE_FOR_EVER = """
import asyncio, sys, fastbk
async def main():
    client = fastbk.connect(sys.argv[1])
    writer = await client.create_ledger(password=b"pw")
    print(writer.ledger_id, flush=True)
    while True:
        first, last = await writer.append_many([b"entry"] * 20)
        print(last, flush=True)
asyncio.run(main())
"""


async def test_a_writer_goes_on_when_a_bookie_is_killed_for_good(cluster: LocalCluster) -> None:
    async with fastbk.connect(cluster.metadata_uri, replace_after=0.5) as client:
        writer = await client.create_ledger()
        acknowledged: list[int] = []

        async def write() -> None:
            while writer.stats().ensemble_changes == 0 or len(acknowledged) < 2000:
                _, last = await writer.append_many([b"%d" % len(acknowledged)] * 10)
                acknowledged.extend(range(last - 9, last + 1))

        task = asyncio.create_task(write())
        await wait_until_async(lambda: len(acknowledged) > 200, "some entries")
        lost = writer.stats().ensemble[1]
        await cluster.kill_async(number_of(cluster, lost))
        await asyncio.wait_for(task, 30)
        assert lost not in writer.stats().ensemble
        await writer.close()
        metadata = (await client.ledger_info(writer.ledger_id)).metadata
        former, *later = metadata.fragments
        assert lost in former.ensemble
        assert later
        assert not any(lost in one.ensemble for one in later)
        assert await client.marks.list() == [], "the replacement has what the lost bookie lacks"
        reader = await client.open_ledger(writer.ledger_id)
        found = [one.entry_id async for one in reader.read()]
        assert found == acknowledged
    with fastbk.sync.connect(cluster.metadata_uri) as sync_client:
        sync_reader = sync_client.open_ledger(writer.ledger_id)
        assert [one.entry_id for one in sync_reader.read()] == acknowledged


async def test_clients_that_compete_recover_what_a_killed_writer_had_acknowledged(
    cluster: LocalCluster,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WRITE_FOR_EVER,
        cluster.metadata_uri,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        ledger_id = int(await asyncio.wait_for(process.stdout.readline(), 20))
        for _ in range(20):
            await asyncio.wait_for(process.stdout.readline(), 20)
    finally:
        process.kill()
        rest, _ = await process.communicate()
    last_acknowledged = int(rest.split()[-1]) if rest.split() else 399
    # One of its bookies is gone as well.
    async with fastbk.connect(cluster.metadata_uri) as client:
        open_metadata = (await client.ledger_info(ledger_id)).metadata
        assert open_metadata.state is LedgerState.OPEN
        with pytest.raises(Unauthorized):
            await client.open_ledger(ledger_id, password=b"wrong")
        await cluster.kill_async(number_of(cluster, open_metadata.fragments[0].ensemble[0]))
    others = [fastbk.connect(cluster.metadata_uri) for _ in range(3)]
    try:
        readers = await asyncio.gather(
            *(one.open_ledger(ledger_id, password=b"pw") for one in others)
        )
        ends = {(one.metadata.last_entry_id, one.metadata.length) for one in readers}
        assert len(ends) == 1
        ((last, length),) = ends
        assert last >= last_acknowledged
        assert length == 5 * (last + 1)
        for reader in readers:
            assert [bytes(one.data) async for one in reader.read()] == [b"entry"] * (last + 1)
    finally:
        for one in others:
            await one.close()


async def test_a_recovery_ends_the_writer_whose_ledger_it_is(cluster: LocalCluster) -> None:
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        fastbk.connect(cluster.metadata_uri) as other,
    ):
        writer = await client.create_ledger(password=b"pw", digest="hmac")
        acknowledged = -1

        async def write() -> None:
            nonlocal acknowledged
            while True:
                _, acknowledged = await writer.append_many([b"x"] * 20)

        task = asyncio.create_task(write())
        await wait_until_async(lambda: acknowledged > 100, "some entries")
        reader = await other.open_ledger(writer.ledger_id, password=b"pw")
        with pytest.raises(LedgerFenced):
            await task
        assert reader.metadata.last_entry_id >= acknowledged
        assert len([one async for one in reader.read()]) == reader.metadata.last_entry_id + 1
        with pytest.raises(LedgerFenced):
            await writer.close()
