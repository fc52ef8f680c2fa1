"""Fences and the largest ids on a real bookie that is killed right after each answer, flushed, and made to recycle.

INV-F1, INV-F2 (P8, P9, P10, P15, P16): a fence that was answered, whatever the read with it found, refuses normal adds
for ever, with its key, in the journal, after replay, and from the ledger states once the journal is gone. P25: entry
and ledger ids up to 2^63-1 go everywhere.
"""

from __future__ import annotations

import asyncio
import functools
import random
import struct
from contextlib import suppress

import fastbk
from fastbk.devcluster import Bookie
from fastbk.native import client_codec as codec
from fastbk.native.client_codec import LIST_ENTRIES_REPLY
from fastbk.native.ffi import CorruptDataError
from fastbk.storage import manifest
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures import frames
from tests.fixtures.confirmed import wait_until_confirmed
from tests.fixtures.raw_bookie import KEY, raw_bookie
from tests.fixtures.wait import wait_until_async

WAIT_S = 60.0
MIB = 1 << 20
LAST_ID = 2**63 - 1
SETTINGS = {
    "limits": {"frame_size_max": "256KiB"},
    "journal": {"first_file_size": "4MiB", "file_size": "16MiB", "limit": "32MiB"},
    "ledgers": {"flush_interval": "200ms", "write_cache_size": "8MiB"},
    "gc": {"interval": "1h"},  # these ledgers are in no metadata
}
KNOWN, UNKNOWN, LAST_UNKNOWN, FOUND = 1, 2**62 + 1, LAST_ID, 3
FENCED = (KNOWN, UNKNOWN, LAST_UNKNOWN, FOUND)
PASSWORD = b"first"


async def assert_fenced(bookie: Bookie) -> None:
    """Refused with the key, refused otherwise without it; recovery adds pass; nothing of it is a second fence."""
    raw = await raw_bookie(bookie)
    for ledger_id in FENCED:
        assert await raw.add(ledger_id, 100, b"late", password=PASSWORD) == Status.FENCED
        assert await raw.add(ledger_id, LAST_ID, b"late", password=PASSWORD) == Status.FENCED
        assert await raw.add(ledger_id, 100, b"late", password=b"other") == Status.UNAUTHORIZED
        assert await raw.fence(ledger_id, password=b"other") == Status.UNAUTHORIZED
        repaired = await raw.add(ledger_id, 9, b"repair", recovery=True, password=PASSWORD)
        assert repaired == Status.OK
    raw.close()


def last_flush(bookie: Bookie) -> int:
    """The generation of the last flush that a manifest names."""
    found = 0
    for slot in manifest.SLOTS:
        with suppress(CorruptDataError):  # it is being written
            named = manifest.decode((bookie.directory / "ledgers" / slot).read_bytes()).locations
            found = max([found, *(one.last_generation for one in named)])
    return found


async def until_flushed(bookie: Bookie) -> None:
    """Until a manifest names what was flushed after now, deletions included."""
    raw = await raw_bookie(bookie)
    # The first of them may have begun before now.
    for entry_id in range(2):
        before = last_flush(bookie)
        assert await raw.add(77, entry_id, b"to be flushed") == Status.OK
        await wait_until_async(lambda before=before: last_flush(bookie) > before, "a flush", WAIT_S)
    raw.close()


async def until_recycled(cluster: LocalCluster, bookie: Bookie) -> None:
    """Write until the journal files of before are gone under their names."""
    folder = bookie.directory / "journal"
    before = {path.name for path in folder.glob("*.journal")}
    async with (
        fastbk.connect(cluster.metadata_uri, append_timeout=60.0) as client,
        await client.create_ledger(1, 1, 1) as writer,
    ):
        for _ in range(40):
            if not before & {path.name for path in folder.glob("*.journal")}:
                return
            await asyncio.gather(*(writer.append_nowait(bytes(64 * 1024)) for _ in range(64)))
    raise AssertionError("no journal file was recycled")


async def test_answered_fences_are_for_ever() -> None:
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        bookie = cluster.bookies[0]
        raw = await raw_bookie(bookie)
        for ledger_id in (KNOWN, FOUND):
            assert await raw.add(ledger_id, 0, b"first", password=PASSWORD) == Status.OK
        raw.close()
        for ledger_id, entry_id, found in (
            (KNOWN, 5, Status.NO_ENTRY),
            (FOUND, -1, Status.OK),
            (UNKNOWN, -1, Status.NO_ENTRY),
            (LAST_UNKNOWN, LAST_ID, Status.NO_ENTRY),
        ):
            raw = await raw_bookie(bookie)
            answer = await raw.fence(ledger_id, entry_id, password=PASSWORD)
            await cluster.kill_async(0)  # with the answer on the wire, and nothing else
            assert answer == found
            await cluster.start_bookie_async(0)
        await assert_fenced(bookie)
        await until_flushed(bookie)
        await cluster.kill_async(0, "index")
        await cluster.wait_ready_async(0, bookie.boots + 1)
        await assert_fenced(bookie)
        await until_recycled(cluster, bookie)
        await cluster.kill_async(0)
        await cluster.start_bookie_async(0)
        await assert_fenced(bookie)
        await cluster.restart_bookie_async(0)
        await assert_fenced(bookie)


async def test_no_add_passes_a_fence_whatever_the_interleaving(rng: random.Random) -> None:
    """P10: several connections of two workers add while one fences. What is acknowledged was before the fence, which
    found it; what is refused was behind it, and is nowhere.
    """
    settings = {**SETTINGS, "bookie": {"workers": 2}}
    seen = set()
    async with LocalCluster(1, settings=settings) as cluster:
        connections = [await raw_bookie(cluster.bookies[0]) for _ in range(6)]
        for ledger_id in range(300, 400):
            adds = [
                rng.choice(connections).add(ledger_id, entry_id, b"%d" % entry_id)
                for entry_id in range(12)
            ]
            fence = rng.choice(connections).ask(
                codec.put_read, ledger_id, -1, codec.FLAG_FENCE, KEY
            )
            at = rng.randrange(13)
            first, answer, second = await asyncio.gather(
                asyncio.gather(*adds[:at]), fence, asyncio.gather(*adds[at:])
            )
            statuses = [*first, *second]
            assert set(statuses) <= {Status.OK, Status.FENCED}
            seen.update(statuses)
            taken = [n for n, status in enumerate(statuses) if status == Status.OK]
            if taken:
                assert (answer.status, answer.entry_id) == (Status.OK, taken[-1])
            else:
                assert answer.status == Status.NO_ENTRY
            raw = rng.choice(connections)
            assert await raw.add(ledger_id, 500, b"late") == Status.FENCED
            assert await raw.status(codec.put_read, ledger_id, 500) == Status.NO_ENTRY
        for raw in connections:
            raw.close()
    assert seen == {Status.OK, Status.FENCED}, "both kinds happened"


async def test_after_fence_and_deletion_nothing_is_taken() -> None:
    """P9, within one boot and after a kill."""
    settings = {**SETTINGS, "gc": {"interval": "200ms"}}
    async with LocalCluster(1, settings=settings) as cluster:
        bookie = cluster.bookies[0]
        async with fastbk.connect(cluster.metadata_uri) as client:
            ids = []
            for _ in range(2):
                async with await client.create_ledger(1, 1, 1) as writer:
                    await writer.append(b"once")
                ids.append(writer.ledger_id)
            raw = await raw_bookie(bookie)
            assert await raw.fence(ids[0]) == Status.OK
            await wait_until_confirmed(cluster.bookies)
            for ledger_id in ids:
                await client.delete_ledger(ledger_id)

        async def is_refused(ledger_id: int, recovery: bool) -> bool:
            status = await raw.add(ledger_id, 7, b"late", recovery=recovery)
            assert status in (Status.OK, Status.FENCED, Status.NO_LEDGER)
            return status == expected(ledger_id, recovery)

        def expected(ledger_id: int, recovery: bool) -> Status:
            """A fence says more to a writer than that the ledger is gone."""
            is_fenced = ledger_id == ids[0] and not recovery
            return Status.FENCED if is_fenced else Status.NO_LEDGER

        for ledger_id in ids:
            for recovery in (True, False):
                await wait_until_async(
                    lambda i=ledger_id, r=recovery: is_refused(i, r), "it is deleted", WAIT_S
                )
            assert await raw.status(codec.put_read, ledger_id, 7) == Status.NO_LEDGER
        assert bookie.boots == 1
        raw.close()
        await until_flushed(bookie)
        await cluster.kill_async(0)
        await cluster.start_bookie_async(0)
        raw = await raw_bookie(bookie)
        for ledger_id in ids:
            for recovery in (True, False):
                status = await raw.add(ledger_id, 8, b"late", recovery=recovery)
                assert status == expected(ledger_id, recovery)
        raw.close()


IDS = (0, 2**31 - 1, 2**31, 2**32, 2**40, LAST_ID - 1, LAST_ID)


async def assert_all_there(bookie: Bookie) -> None:
    raw = await raw_bookie(bookie)
    for ledger_id in IDS:
        for entry_id in IDS:
            assert await raw.read(ledger_id, entry_id) == b"%d/%d" % (ledger_id, entry_id)
        answer = await raw.ask(codec.put_read, ledger_id, -1)
        assert (answer.status, answer.entry_id, answer.lac) == (Status.OK, LAST_ID, LAST_ID - 1)
        lac = await raw.ask(codec.put_read_lac, ledger_id, -1)
        assert (lac.lac, lac.entry_id) == (LAST_ID - 1, LAST_ID)
        listed = await raw.ask(codec.put_list_entries, ledger_id, 0, 100)
        ranges = struct.iter_unpack("<qq", listed.extra)
        assert listed.kind == LIST_ENTRIES_REPLY
        assert list(ranges) == [
            (0, 0),
            (2**31 - 1, 2**31),
            (2**32, 2**32),
            (2**40, 2**40),
            (LAST_ID - 1, LAST_ID),
        ]
        batch = await raw.ask(codec.put_read_batch, ledger_id, LAST_ID - 1, LAST_ID, 10, MIB)
        assert (batch.status, len(batch.extra) // 4) == (Status.OK, 2)
        batch = await raw.ask(codec.put_read_batch, ledger_id, 2**31, 2**32, 10, MIB)
        assert (batch.status, len(batch.extra) // 4) == (Status.OK, 2)
        assert await raw.status(codec.put_read, ledger_id, LAST_ID - 2) == Status.NO_ENTRY
    batch = await raw.ask(codec.put_read_batch, frames.LEDGER, LAST_ID - 5, LAST_ID, 10, MIB)
    assert (batch.status, len(batch.extra) // 4, batch.entry_id) == (Status.OK, 3, LAST_ID)
    raw.close()


async def test_the_largest_ids_go_everywhere() -> None:
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        bookie = cluster.bookies[0]
        raw = await raw_bookie(bookie)
        for ledger_id in IDS:
            for entry_id in IDS:
                data = b"%d/%d" % (ledger_id, entry_id)
                assert await raw.add(ledger_id, entry_id, data, lac=entry_id - 1) == Status.OK
                assert await raw.add(ledger_id, entry_id, data, recovery=True) == Status.OK
                assert await raw.add(ledger_id, entry_id, b"other") == Status.CONFLICT
        entries = [frames.entry_bytes(LAST_ID - n) for n in (2, 1, 0)]
        batch = functools.partial(frames.add_batch, first_entry_id=LAST_ID - 2, entries=entries)
        assert await raw.status(batch) == Status.OK
        assert await raw.status(batch) == Status.OK
        too_far = functools.partial(frames.add_batch, first_entry_id=LAST_ID, entries=entries[:2])
        assert await raw.status(too_far) == Status.BAD_REQUEST
        raw.close()
        await assert_all_there(bookie)
        await cluster.kill_async(0)
        await cluster.start_bookie_async(0)
        await assert_all_there(bookie)
        await until_flushed(bookie)
        await assert_all_there(bookie)
        await cluster.restart_bookie_async(0)
        await assert_all_there(bookie)
