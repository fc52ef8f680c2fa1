"""Ledgers that no metadata lists: they are kept from taking all the room, and go by themselves (INV-G4 to INV-G6)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import fastbk
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import metrics, page
from tests.fixtures.raw_bookie import RawBookie, raw_bookie
from tests.fixtures.wait import crowd, wait_until_async
from tests.fixtures.zookeeper import ZooKeeperPlace

pytestmark = pytest.mark.waits

LEDGERS_MAX = 200
GHOSTS = LEDGERS_MAX // 2
"""As many unconfirmed ledgers as there is room for."""


def settings(unconfirmed_age: str) -> dict[str, dict[str, object]]:
    return {
        "limits": {"ledgers_max": LEDGERS_MAX},
        "gc": {"interval": "200ms", "unconfirmed_age": unconfirmed_age},
        "ledgers": {"flush_interval": "200ms"},
    }


def metric(cluster: LocalCluster, name: str) -> float:
    return metrics(cluster.bookies[0])[f"fastbk_journal_{name}"]


def is_confirmed(cluster: LocalCluster) -> bool:
    """Return whether metadata was seen to list all ledgers of the first bookie, and there are some."""
    return metric(cluster, "ledgers") > 0 == metric(cluster, "ledgers_unconfirmed")


async def haunt(bookie: RawBookie, first_id: int) -> list[int]:
    """Make ledgers that metadata does not list until the bookie refuses one; return their ids."""
    made = []
    for ledger_id in range(first_id, first_id + 2 * LEDGERS_MAX):
        status = await bookie.add(ledger_id, 0, b"ghost", password=b"ghost")
        if status == Status.TOO_MANY_REQUESTS:
            return made
        assert status == Status.OK
        made.append(ledger_id)
    raise AssertionError("the bookie took every ledger")


async def write_and_read(client: fastbk.Client) -> int:
    async with await client.create_ledger(1, 1, 1, password=b"real") as writer:
        await writer.append(b"kept")
    reader = await client.open_ledger(writer.ledger_id, password=b"real")
    assert [bytes(entry.data) async for entry in reader.read(0, 0)] == [b"kept"]
    return writer.ledger_id


async def test_ghosts_leave_room_for_real_ledgers_and_go_also_after_a_restart() -> None:
    """Before: they filled `ledgers_max`, for good; gc refused to delete more than half of what was here."""
    async with LocalCluster(1, settings=settings("1500ms")) as cluster:
        async with fastbk.connect(cluster.metadata_uri) as client:
            first = await write_and_read(client)
            await wait_until_async(lambda: is_confirmed(cluster), "it is confirmed", 20.0)
            ghosts = await haunt(await raw_bookie(cluster.bookies[0]), 1_000_000)
            assert len(ghosts) >= GHOSTS, "more where some expired and were forgotten meanwhile"
            await write_and_read(client)
            assert (
                await client.open_ledger(first, password=b"real")
            ).last_add_confirmed is not None
        cluster.kill(0, "journal")
        await wait_until_async(lambda: cluster.bookies[0].boots == 2, "the bookie is back", 30.0)
        async with fastbk.connect(cluster.metadata_uri) as client:
            await write_and_read(client)
            await wait_until_async(
                lambda: metric(cluster, "ledgers") == 3, "all ghosts are forgotten", 120.0
            )
            bookie = await raw_bookie(cluster.bookies[0])
            assert await bookie.add(ghosts[0], 0, b"new", password=b"new") == Status.OK, (
                "no tombstone"
            )
            deletions = json_lines(cluster.bookies[0].directory / "ledgers" / "audit.log")
            expired = [one for line in deletions for one in line.get("expired", ())]
            assert set(ghosts) <= set(expired)
            assert first not in expired


async def test_a_bookie_without_room_for_new_ledgers_says_so_and_stays_writable() -> None:
    async with (
        LocalCluster(1, settings=settings("1h")) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        writer = await client.create_ledger(1, 1, 1)
        await writer.append(b"before")
        await wait_until_async(lambda: is_confirmed(cluster), "it is confirmed", 20.0)
        bookie = await raw_bookie(cluster.bookies[0])
        ghosts = await haunt(bookie, 1_000_000)
        await wait_until_async(
            lambda: metric(cluster, "takes_no_new_ledgers") == 1, "it says so", 20.0
        )
        await wait_until_async(
            lambda: "takes no new ledgers" in page(cluster.bookies[0], "/readyz")[1],
            "/readyz says so",
            20.0,
        )
        assert (await bookie.info()).writable, "writers that are here are not moved"
        assert await bookie.add(ghosts[0], 1, b"more", password=b"ghost") == Status.OK
        await writer.append(b"after")
        await writer.close()
        await asyncio.gather(*(write_and_read(client) for _ in range(5)))


async def test_writers_outlast_those_who_used_their_ids_before() -> None:
    """Before: Unauthorized, or refused for `unconfirmed_age`."""
    async with LocalCluster(1, settings=settings("1h")) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        async with fastbk.connect(cluster.metadata_uri, append_timeout=120.0) as client:
            used = await write_and_read(client)
            for ledger_id in range(used + 1, used + 6):
                mark = 7 * (ledger_id % 2)  # with a mark, and without one
                status = await bookie.add(ledger_id, 0, b"mine", password=b"x", creation_mark=mark)
                assert status == Status.OK
            written = await asyncio.gather(write_and_read(client), write_and_read(client))
            assert sorted(written) == [used + 1, used + 2]


async def test_an_id_squatted_with_another_key_is_free_again() -> None:
    async with LocalCluster(1, settings=settings("1h")) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        async with fastbk.connect(cluster.metadata_uri) as client:
            used = await write_and_read(client)
            squatted = range(used + 1, used + 6)
            for ledger_id in squatted:
                assert await bookie.add(ledger_id, 0, b"mine", password=b"squatter") == Status.OK
            writer = await client.create_ledger(1, 1, 1, password=b"real")
            assert writer.ledger_id == squatted[0]
            status = await bookie.add(writer.ledger_id, 0, b"x", password=b"real")
            assert status in (Status.UNAUTHORIZED, Status.TOO_MANY_REQUESTS)

            async def takes_it() -> bool:
                return await bookie.add(squatted[0], 0, b"x", password=b"real") == Status.OK

            await wait_until_async(takes_it, "the squatter is forgotten", 60.0)
            reader = await client.open_ledger(writer.ledger_id, password=b"real")
            assert [bytes(one.data) async for one in reader.read(0, 0)] == [b"x"]


async def test_a_ledger_that_is_deleted_soon_after_it_was_made_is_gone_within_seconds(
    zookeeper: ZooKeeperPlace, tmp_path: Path
) -> None:
    """INV-G7, with Apache's `gcWaitTime=1000`. Before: after `unconfirmed_age`, ten minutes."""
    uri = zookeeper.uri()
    options = {"gc": {"interval": "1s"}}
    async with (
        LocalCluster(1, data=tmp_path / "data", metadata_uri=uri, settings=options) as cluster,
        fastbk.connect(uri) as client,
    ):
        kept = await write_and_read(client)
        gone, writers = [], []
        async with fastbk.connect(uri) as other:
            for _ in range(3):
                writer = await client.create_ledger(1, 1, 1)
                await writer.append(b"soon gone")
                await other.delete_ledger(writer.ledger_id)
                gone.append(writer.ledger_id)
                writers.append(writer)
        began_s = time.monotonic()
        for bookie in cluster.bookies:
            raw = await raw_bookie(bookie)

            async def is_forgotten(raw: RawBookie = raw) -> bool:
                statuses = [await raw.status(codec.put_read, one, 0) for one in gone]
                return statuses == [Status.NO_LEDGER] * len(gone)

            await wait_until_async(
                is_forgotten, "the bookie says that there is no such ledger", 60.0
            )
        assert time.monotonic() - began_s < 20 * crowd()
        for (
            writer
        ) in writers:  # INV-G8: before, a bookie that had forgotten the ledger acknowledged this
            with pytest.raises((fastbk.NoSuchLedger, fastbk.LedgerFenced)):
                await writer.append(b"of a writer that nobody told")
        reader = await client.open_ledger(kept, password=b"real")
        assert [bytes(entry.data) async for entry in reader.read(0, 0)] == [b"kept"]
