"""Copies on real bookies: added together, also to one that has some of them; and what adds wait there meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

import fastbk
from fastbk.client import Client
from fastbk.client.bookie_requests import LedgerRequests
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId
from fastbk.replication.procedure import (
    AddEntries,
    AddEntry,
    BookieRequest,
    Found,
    ReadEntries,
    Reply,
)
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.wait import wait_until_async

LEDGER = 1 << 40


async def ask(
    client: Client, bookie_id: BookieId, requests: LedgerRequests, request: BookieRequest
) -> Reply:
    answer = await client.pool.peer(bookie_id).request(
        lambda one: requests.frame(request, one), 10.0
    )
    return requests.reply(request, answer)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Where nobody adds but these tests: answers say how long adds wait."""
    with LocalCluster(1) as made:
        yield made


@pytest.mark.parametrize("digest", DigestType)
async def test_copies_that_are_added_together_are_there_as_they_were(
    cluster: LocalCluster, digest: DigestType
) -> None:
    entries = [Found(one, one - 3, 10 * one, b"%d" % one * 50) for one in range(20, 60)]
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.list_bookies()
        requests = LedgerRequests(LEDGER + digest, digest, b"secret", creation_token=7)
        first = entries[3]
        alone = AddEntry(first.entry_id, first.lac, first.length, first.data)
        assert (await ask(client, "bookie-1", requests, alone)).status == Status.OK
        for _ in range(2):
            assert (
                await ask(client, "bookie-1", requests, AddEntries(entries))
            ).status == Status.OK
        other = [entries[-1], Found(60, 57, 700, b"new")]
        other[0] = other[0]._replace(data=b"other")
        assert (
            await ask(client, "bookie-1", requests, AddEntries(other))
        ).status == Status.CONFLICT
        read = await ask(client, "bookie-1", requests, ReadEntries(0, 59, 1000, 1 << 20))
        assert [one._replace(data=bytes(one.data)) for one in read.found] == entries
        # Nobody writes here.
        assert read.add_wait_s == 0


async def test_a_bookie_says_with_its_answers_to_copying_how_long_adds_wait(
    cluster: LocalCluster,
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.list_bookies()
        requests = LedgerRequests(LEDGER, DigestType.CRC32C, b"")
        copies = AddEntries([Found(one, -1, one, b"x") for one in range(2)])
        assert (await ask(client, "bookie-1", requests, copies)).add_wait_s == 0

        async def write() -> None:
            async with await client.create_ledger(1, 1, 1) as writer:
                while True:
                    await writer.append(b"data")

        writing = asyncio.create_task(write())
        waits: list[float] = []

        async def is_told() -> bool:
            for request in (copies, ReadEntries(0, 1, 2, 1000)):
                waits.append((await ask(client, "bookie-1", requests, request)).add_wait_s)
            return all(one > 0 for one in waits[-2:])

        await wait_until_async(is_told, "both answers say it")
        assert max(waits) < 60
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing

        async def is_over() -> bool:
            return (await ask(client, "bookie-1", requests, copies)).add_wait_s == 0

        await wait_until_async(is_over, "a wait of more than a second ago is none of now")
