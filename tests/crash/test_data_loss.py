"""Bookies that come back under their name without their data: live, with real frames, and cut off at every step.

INV-X4: of a ledger that it held such a bookie says neither "no" nor a LAC, and it completes no old writer's quorum (P7,
P8): the two ways in which a wiped disk under a known name loses what others acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import Bookie
from fastbk.errors import Error
from fastbk.meta import open_store
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment
from fastbk.native import client_codec as codec
from fastbk.native.process import FILE_VARIABLE, POINT_VARIABLE
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until_async

WAIT_S = 60.0
SETTINGS = {"gc": {"interval": "200ms"}, "ledgers": {"flush_interval": "200ms"}}
ACCEPT = "--accept-data-loss"


@pytest.fixture(scope="module")
def bookies() -> Iterator[LocalCluster]:
    """Three of them, of all tests here."""
    with LocalCluster(3, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def cluster(bookies: LocalCluster) -> LocalCluster:
    """The bookies of this file; all run, also after a test that has failed."""
    for number, bookie in enumerate(bookies.bookies):
        if not bookie.is_running:
            bookies.start_bookie(number)
    return bookies


def wipe(bookie: Bookie) -> None:
    for name in ("journal", "ledgers"):
        shutil.rmtree(bookie.directory / name)


async def start_after_loss(cluster: LocalCluster, bookie: Bookie) -> None:
    boots = bookie.boots
    bookie.spawn(ACCEPT)
    await cluster.wait_ready_async(cluster.bookies.index(bookie), boots + 1)


async def assert_in_limbo(bookie: Bookie, ledger_id: int) -> None:
    """No "no", no LAC, no normal add; the fence is answered, and tells nothing either."""
    raw = await raw_bookie(bookie)
    assert await raw.add(ledger_id, 10**6, b"old writer's") == Status.FENCED
    for put, *arguments in (
        (codec.put_read, 0),
        (codec.put_read, -1),
        (codec.put_read, 5, codec.FLAG_HIGH_PRIORITY),
        (codec.put_read_batch, 0, 100, 100, 10**6),
        (codec.put_read_lac, -1),
        (codec.put_read_lac, -1, 30_000, codec.FLAG_PIGGYBACK),
        (codec.put_list_entries, 0, 100),
    ):
        assert await raw.status(put, ledger_id, *arguments) == Status.CANNOT_TELL, put.__name__
    for entry_id in (-1, 7):
        assert (
            await raw.fence(ledger_id, entry_id, flags=codec.FLAG_HIGH_PRIORITY)
            == Status.CANNOT_TELL
        )
    raw.close()


async def test_a_wiped_bookie_neither_denies_nor_completes_a_quorum(cluster: LocalCluster) -> None:
    lost = cluster.bookies[2]
    raw = await raw_bookie(lost)
    born = raw.incarnation
    raw.close()
    async with fastbk.connect(cluster.metadata_uri, append_timeout=3.0) as client:
        writer = await client.create_ledger(3, 3, 2)
        for n in range(20):
            await writer.append(b"%d" % n)
        ledger_id = writer.ledger_id
        await cluster.stop_bookie_async(2)  # a killed one's lease would have to run out first
        wipe(lost)
        lost.spawn()
        assert await asyncio.to_thread(lost.wait_gone) == 78
        assert ACCEPT in lost.log_tail(3), "the refusal says how to go on"
        await start_after_loss(cluster, lost)
        raw = await raw_bookie(lost)
        assert raw.incarnation != born
        raw.close()
        await assert_in_limbo(lost, ledger_id)
        await cluster.kill_async(1)
        with pytest.raises(Error):
            await writer.append(b"one bookie that has it, and one that lost it")
        await cluster.start_bookie_async(1)
    # What it is told now it keeps and serves; the rest stays untold, over crashes, flushes and clean stops.
    raw = await raw_bookie(lost)
    assert await raw.add(ledger_id, 3, b"repaired", recovery=True) == Status.OK
    assert await raw.read(ledger_id, 3) == b"repaired"
    assert await raw.status(codec.put_read, ledger_id, 4) == Status.CANNOT_TELL
    raw.close()
    await cluster.kill_async(2)
    await cluster.start_bookie_async(2)
    await assert_in_limbo(lost, ledger_id)
    await cluster.restart_bookie_async(2)
    await assert_in_limbo(lost, ledger_id)
    raw = await raw_bookie(lost)
    assert await raw.read(ledger_id, 3) == b"repaired"
    raw.close()
    # Whatever was acknowledged is with the two others; new ledgers are in no doubt.
    async with fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(3, 3, 3) as fresh:
            await fresh.append(b"all three")
        raw = await raw_bookie(lost)
        assert await raw.status(codec.put_read, fresh.ledger_id, 1) == Status.NO_ENTRY
        assert await raw.status(codec.put_read, 10**9, 0) == Status.NO_LEDGER
        raw.close()


async def test_recovery_takes_no_wiped_bookie_s_word(cluster: LocalCluster) -> None:
    """P7: the last entry was acknowledged by two of three, of which one lost it and the other is away. Whoever closes
    the ledger without it now loses it for good.
    """
    with_it, lost = cluster.bookies[1], cluster.bookies[2]
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(3, 3, 2)
        ledger_id = writer.ledger_id
        for _ in range(20):
            await writer.append(b"ten bytes!")
        for bookie in (with_it, lost):
            raw = await raw_bookie(bookie)
            assert await raw.add(ledger_id, 20, b"the last", lac=19, length=200) == Status.OK
            raw.close()
        await cluster.stop_bookie_async(2)
        wipe(lost)
        await start_after_loss(cluster, lost)
        await cluster.kill_async(1)
        async with fastbk.connect(
            cluster.metadata_uri, append_timeout=4.0, read_timeout=4.0, close_timeout=4.0
        ) as other:
            with pytest.raises(Error):
                await other.open_ledger(ledger_id)
        store = open_store(cluster.metadata_uri)
        assert not store.read_ledger(ledger_id).metadata.is_closed
        store.close()
        await cluster.start_bookie_async(1)
        async with fastbk.connect(cluster.metadata_uri) as other:
            reader = await other.open_ledger(ledger_id)
            assert reader.last_known == 20
            entries = [bytes(entry.data) async for entry in reader.read(0, 20)]
            assert entries == [*[b"ten bytes!"] * 20, b"the last"]


async def test_limbo_ends_with_the_ledger_or_its_repair(cluster: LocalCluster) -> None:
    """Both are heard of by gc, and by the journal within the same boot."""
    lost = cluster.bookies[1]
    ids = []
    async with fastbk.connect(cluster.metadata_uri) as client:
        for _ in range(3):
            writer = await client.create_ledger(3, 3, 3)
            await writer.append(b"once")
            ids.append(writer.ledger_id)
        deleted, repaired, kept = ids
        await cluster.stop_bookie_async(1)
        wipe(lost)
        await start_after_loss(cluster, lost)
        for ledger_id in ids:
            await assert_in_limbo(lost, ledger_id)
        await client.delete_ledger(deleted)
    # A repair names others in this bookie's place.
    store = open_store(cluster.metadata_uri)
    read = store.read_ledger(repaired)
    others = (
        BookieId(cluster.bookies[0].name),
        BookieId("bookie-9"),
        BookieId(cluster.bookies[2].name),
    )
    store.update_ledger(
        repaired, replace(read.metadata, fragments=(Fragment(0, others),)), read.version
    )
    store.close()
    raw = await raw_bookie(lost)

    async def answers(ledger_id: int, status: Status) -> bool:
        return await raw.status(codec.put_read, ledger_id, 0) == status

    await wait_until_async(lambda: answers(deleted, Status.NO_LEDGER), "it is deleted", WAIT_S)
    await wait_until_async(lambda: answers(repaired, Status.NO_ENTRY), "limbo is over", WAIT_S)

    async def refused() -> bool:
        return await raw.add(deleted, 0, b"too late", recovery=True) == Status.NO_LEDGER

    await wait_until_async(refused, "the journal knows", WAIT_S)
    # What is in limbo is fenced, and a fence says more to a writer than that the ledger is gone.
    assert await raw.add(deleted, 0, b"too late") == Status.FENCED
    raw.close()
    await assert_in_limbo(lost, kept)


@pytest.mark.parametrize(
    "point",
    [
        "rebirth.after_limbo",
        "rebirth.before_identity",
        "index.replay_before_flush",
        "index.replay_before_states",
    ],
)
async def test_a_rebirth_cut_off_anywhere_ends_in_limbo(cluster: LocalCluster, point: str) -> None:
    bookie = cluster.bookies[0]
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(3, 3, 3)
        await writer.append(b"once")
    await cluster.stop_bookie_async(0)
    wipe(bookie)
    died = cluster.data / f"died-{point}"
    boots = bookie.boots
    os.environ[POINT_VARIABLE], os.environ[FILE_VARIABLE] = f"{point}:1", str(died)
    try:
        bookie.spawn(ACCEPT)
    finally:
        del os.environ[POINT_VARIABLE], os.environ[FILE_VARIABLE]
    if point.startswith("rebirth."):
        await asyncio.to_thread(bookie.wait_gone)
        await start_after_loss(cluster, bookie)
    else:
        await cluster.wait_ready_async(0, boots + 1)
    assert died.read_text() == point
    assert not (Path(bookie.directory) / "ledgers" / "limbo.ids").exists()
    await assert_in_limbo(bookie, writer.ledger_id)
