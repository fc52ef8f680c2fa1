"""A bookie process checks what Apache's clients add by the digest that metadata has for their ledger, once it knows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import struct
from dataclasses import replace

import pytest

from fastbk.meta import open_store
from fastbk.model.entry import DigestType, master_key
from fastbk.testing import LocalCluster
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import EBADREQ, EOK, LEDGER, hear_v2, hear_v3
from tests.fixtures.metadata import metadata
from tests.fixtures.pages import metrics
from tests.fixtures.wait import wait_until_async
from tests.fixtures.worker_harness import Client, connected

KEY = master_key(b"")
ADDS_MAX = 2000
"""By then a bookie that is not told which digest it is would have been told long ago: some 10 ms suffice."""


def entry(entry_id: int, digest_type: DigestType) -> bytes:
    data = b"%06d" % entry_id * 20
    return apache.whole_entry(entry_id, data, lac=-1, digest_type=int(digest_type))


def damaged(body: bytes) -> bytes:
    return body[:-1] + b"!"


def create(cluster: LocalCluster, digest_type: DigestType) -> None:
    with contextlib.closing(open_store(cluster.metadata_uri)) as store:
        store.create_ledger(LEDGER, replace(metadata(), digest_type=digest_type))


async def add(client: Client, version: int, body: bytes) -> int:
    """Return the status in version 3's numbers."""
    if version == 2:
        client.send(apache.v2_add(0, body=body, key=KEY))
        return {0: EOK, 100: EBADREQ}[(await hear_v2(client)).error]
    client.send(apache.v3_add(1, 0, body=body, key=KEY))
    return (await hear_v3(client)).status


async def until_refused(client: Client, version: int, digest_type: DigestType, first: int) -> int:
    """Add damaged entries until one is refused; return its id."""
    for entry_id in range(first, first + ADDS_MAX):
        status = await add(client, version, damaged(entry(entry_id, digest_type)))
        if status != EOK:
            assert status == EBADREQ
            return entry_id
    raise AssertionError("damaged entries are taken for good")


@pytest.mark.parametrize(
    ("version", "digest_type"), [(2, DigestType.CRC32C), (3, DigestType.CRC32)]
)
async def test_a_damaged_add_is_refused_and_leaves_nothing(
    version: int, digest_type: DigestType
) -> None:
    async with LocalCluster(1) as cluster:
        create(cluster, digest_type)
        client = await connected(cluster.bookies[0].port)
        assert await add(client, version, entry(0, digest_type)) == EOK
        refused = await until_refused(client, version, digest_type, 1)
        counts = await asyncio.to_thread(metrics, cluster.bookies[0])
        unverified = counts["fastbk_worker_adds_unverified_total"]
        assert unverified == refused, "all that was taken so far"
        assert counts["fastbk_worker_bad_digest_total"] == 1
        client.send(apache.v2_read(refused) + apache.v2_read(refused - 1) + apache.v2_read(-1))
        read = [await hear_v2(client) for _ in range(3)]
        assert [one.error for one in read] == [2, 0, 0], "no such entry; those before it are there"
        assert struct.unpack_from(">q", read[2].rest, 8)[0] == refused - 1
        other = await connected(cluster.bookies[0].port)
        assert await add(other, 5 - version, entry(refused, digest_type)) == EOK
        await until_refused(other, 5 - version, digest_type, refused + 1)
        for one in (client, other):
            await one.close()


async def test_without_metadata_adds_go_on_unverified() -> None:
    async with LocalCluster(1) as cluster:
        create(cluster, DigestType.CRC32C)
        log = cluster.bookies[0].log_path
        path = cluster.metadata_uri.removeprefix("sqlite:")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("ALTER TABLE ledgers RENAME TO hidden")
            client = await connected(cluster.bookies[0].port)
            for entry_id in range(200):
                assert await add(client, 3, damaged(entry(entry_id, DigestType.CRC32C))) == EOK
            await wait_until_async(
                lambda: b"digests.not_to_be_had" in log.read_bytes(), "the word of it"
            )
            for entry_id in range(200, 300):
                assert await add(client, 2, damaged(entry(entry_id, DigestType.CRC32C))) == EOK
            counts = await asyncio.to_thread(metrics, cluster.bookies[0])
            assert counts["fastbk_worker_adds_unverified_total"] == 300
            assert counts["fastbk_worker_bad_digest_total"] == 0
            db.execute("ALTER TABLE hidden RENAME TO ledgers")
        ids = itertools.count(300)

        async def is_refused() -> bool:
            body = damaged(entry(next(ids), DigestType.CRC32C))
            return await add(client, 3, body) == EBADREQ

        await wait_until_async(is_refused, "it is asked again, seconds after the last time", 30)
        await client.close()
