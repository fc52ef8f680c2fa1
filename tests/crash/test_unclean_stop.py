"""P23: a bookie that acknowledges without syncs and loses power denies nothing, and completes no old writer's quorum.

On the fake disk: what a power cut leaves of an unsynced journal is an ordinary tail, whatever was kept of it. Live: the
mark of an unclean stop, and the limbo and the refusals that follow from it.
"""

from __future__ import annotations

import random

import pytest

import fastbk
from fastbk.devcluster import Bookie
from fastbk.native import client_codec as codec
from fastbk.storage.unclean import NAME
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import OK
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.storage_harness import Book, Life, format_disk

SETTINGS = {"gc": {"interval": "1h"}}


class UnsyncedLife(Life):
    unsynced = True


def write(life: Life, rng: random.Random) -> None:
    """Some 600 KiB, over several journal files of 192 KiB, most of it not flushed."""
    for n in range(40):
        for ledger_id in range(3):
            life.add(ledger_id, n, rng.randbytes(rng.choice([10, 3000, 9000])))
        life.settle()
        if n == 12:
            life.flush()


def readable(life: Life) -> dict[tuple[int, int], bytes]:
    found = {}
    for key, raws in life.book.sent.items():
        answer = life.ask(life.harness.read(*key))
        if answer.status == OK:
            assert answer.entry in raws, f"{key}: nobody sent this"
            found[key] = answer.entry
    return found


@pytest.mark.no_service
@pytest.mark.parametrize("mode", ["lose", "keep", "random"])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_power_cut_leaves_of_an_unsynced_journal_is_no_damage(mode: str, seed: int) -> None:
    """A hole in it proves nothing (A10): the ledgers are in limbo anyway, and the bookie stays of use."""
    with FakeDisk(seed=seed) as fake:
        format_disk(fake)
        book = Book()
        life = UnsyncedLife(fake, book)
        write(life, random.Random(seed))
        flushed = life.checkpoint.manifest.mark
        life.close()
        fake.cut()
        fake.restart(mode, seed)
        life = UnsyncedLife(fake, book)
        assert flushed > 0
        assert not life.replayed.is_damaged, life.replayed.end.damage
        found = readable(life)
        assert {key for key in book.acked if key[1] <= 12} <= found.keys(), (
            "what was flushed is durable"
        )
        if mode == "keep":
            assert found.keys() == book.acked.keys()
        life.add(7, 0, b"alive")
        life.settle()
        assert (7, 0) in book.acked
        life.close()


@pytest.mark.no_service
def test_a_kill_without_a_power_cut_loses_nothing() -> None:
    with FakeDisk(seed=1) as fake:
        format_disk(fake)
        book = Book()
        life = UnsyncedLife(fake, book)
        write(life, random.Random(1))
        life.close()
        life = UnsyncedLife(fake, book)
        assert readable(life) == book.acked
        life.close()


async def ledger_of(cluster: LocalCluster) -> int:
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(1, 1, 1)
        for n in range(5):
            await writer.append(b"%d" % n)
        await writer.close()
        return writer.ledger_id


async def statuses(bookie: Bookie, ledger_id: int) -> tuple[Status, Status, Status]:
    """What it says of an entry that it has, of one that it has not, and to an old writer's add."""
    raw = await raw_bookie(bookie)
    try:
        return (
            await raw.status(codec.put_read, ledger_id, 0),
            await raw.status(codec.put_read, ledger_id, 60),
            await raw.add(ledger_id, 50, b"old writer's"),
        )
    finally:
        raw.close()


WHOLE = (Status.OK, Status.NO_ENTRY, Status.OK)
LIMBO = (Status.OK, Status.CANNOT_TELL, Status.FENCED)


async def test_p23_after_a_crash_without_syncs_its_ledgers_are_in_limbo() -> None:
    async with LocalCluster(1, settings=SETTINGS | {"journal": {"sync": "never"}}) as cluster:
        bookie = cluster.bookies[0]
        mark = bookie.directory / "ledgers" / NAME
        assert mark.exists()
        first = await ledger_of(cluster)
        await cluster.stop_bookie_async(0)
        assert not mark.exists(), "a clean stop"
        await cluster.start_bookie_async(0)
        assert await statuses(bookie, first) == WHOLE
        second = await ledger_of(cluster)
        await cluster.kill_async(0, "journal")
        await cluster.wait_ready_async(0, bookie.boots + 1)
        assert await statuses(bookie, second) == WHOLE, "the kernel has what a killed child wrote"
        await cluster.kill_async(0)
        await cluster.start_bookie_async(0)
        for ledger_id in (first, second):
            assert await statuses(bookie, ledger_id) == LIMBO
        assert '"bookie.unclean_stop"' in bookie.log_tail(60)
        third = await ledger_of(cluster)
        assert await statuses(bookie, third) == WHOLE, "what came since is in no doubt"
        await cluster.stop_bookie_async(0)
        await cluster.start_bookie_async(0)
        assert await statuses(bookie, first) == LIMBO, "it stays so over a clean stop"


async def test_a_fence_that_was_lost_in_a_damaged_journal_still_fences() -> None:
    """INV-F2: of a ledger without entries here only the journal knew it; metadata knows that the ledger was ours."""
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        bookie = cluster.bookies[0]
        async with fastbk.connect(cluster.metadata_uri) as client:
            writer = await client.create_ledger(1, 1, 1)
        raw = await raw_bookie(bookie)
        await raw.fence(writer.ledger_id, 0, flags=codec.FLAG_HIGH_PRIORITY)
        for n in range(5):
            assert (
                await raw.add(77, n, b"later batches prove that the first was durable") == Status.OK
            )
        raw.close()
        await cluster.kill_async(0)
        journal = min((bookie.directory / "journal").glob("*.journal"))
        with journal.open("r+b") as file:
            file.seek(2 * 4096 + 120)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        await cluster.start_bookie_async(0)
        assert '"journal.damaged"' in bookie.log_path.read_text()
        absent, add = (await statuses(bookie, writer.ledger_id))[1:]
        assert (absent, add) == (Status.CANNOT_TELL, Status.FENCED)
        third = await ledger_of(cluster)
        assert (await statuses(bookie, third))[2] == Status.OK, "a new ledger is in no doubt"
        boots = bookie.boots
        await cluster.kill_async(0)
        await cluster.start_bookie_async(0)
        assert bookie.boots == boots + 1
        assert (await statuses(bookie, writer.ledger_id))[2] == Status.FENCED
