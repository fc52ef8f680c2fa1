"""The clients against bookies that speak Apache's protocols only: all operations in both versions, and what goes wrong.

The fakes answer as Apache's bookies do; `seen` tells what was asked of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator

import pytest

import fastbk
import fastbk.sync
from fastbk.client.bookie_queries import bookie_info, stored_ranges
from fastbk.errors import (
    LedgerFenced,
)
from fastbk.meta.sqlite import MemoryStore
from tests.fixtures import fake_apache_frames as frames
from tests.fixtures.fake_apache_bookie import FakeApacheBookie, fake_apache_bookies
from tests.fixtures.fake_bookie import fake_bookies
from tests.unit.client.fake_apache_cluster import VERSIONS, apache_cluster, asked

READ_ONLY = 24
_names = itertools.count()


@pytest.mark.uvloop_too
@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_appended_is_read_back(version: str) -> None:
    async with apache_cluster(5, version) as (client, fakes, _):
        for ensemble, write_quorum in ((3, 3), (5, 3)):
            writer = await client.create_ledger(ensemble, write_quorum, 2, password=b"secret")
            futures = [writer.append_nowait(b"%d" % one * 50) for one in range(400)]
            assert await asyncio.gather(*futures) == list(range(400))
            await writer.append(b"")
            await writer.force()
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id, password=b"secret")
            entries = [entry async for entry in reader.read()]
            assert [entry.entry_id for entry in entries] == list(range(401))
            assert all(bytes(one.data) == b"%d" % one.entry_id * 50 for one in entries[:-1])
        number = int(version[1])
        assert {one.version for one in asked(fakes, frames.ADD)} == {number}
        assert {one.version for one in asked(fakes, frames.READ)} == {number}
        assert len(asked(fakes, frames.FORCE, 3)) == 8


@pytest.mark.parametrize("version", VERSIONS)
async def test_few_answers_bring_many_entries_where_the_bookie_can(version: str) -> None:
    async with apache_cluster(1, version, read_batch_entries=64) as (client, fakes, _):
        writer = await client.create_ledger(1, 1)
        await writer.append_many([b"%d" % one for one in range(640)])
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len([one async for one in reader.read(0, 639)]) == 640
        reads = [one for one in asked(fakes, frames.READ) if one.entry_id >= 0]
        assert len(reads) == (10 if version == "v2" else 640)


@pytest.mark.parametrize("version", VERSIONS)
async def test_answers_keep_to_the_size_that_was_wanted(version: str) -> None:
    async with apache_cluster(1, version, read_batch_bytes=20_000) as (client, fakes, _):
        writer = await client.create_ledger(1, 1)
        await writer.append_many([bytes(3000)] * 100 + [bytes(100_000)] * 2)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        batches = [batch async for batch in reader.read_batches(0, 101)]
        sizes = [sum(len(one) for one in batch.datas) for batch in batches]
        assert sum(sizes) == 500_000
        assert max(sizes[:-2]) <= 20_000
        assert sizes[-2:] == [100_000, 100_000]
        # Single reads go on as sizes suggest: little is asked for in vain.
        assert len(asked(fakes, frames.READ)) <= 150


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
async def test_recovery_fences_and_closes_with_what_is_there(version: str, digest: str) -> None:
    async with apache_cluster(3, version) as (client, fakes, store):
        writer = await client.create_ledger(3, 2, 2, digest=digest, password=b"p")
        await writer.append_many([b"%d" % one for one in range(20)])
        async with fastbk.connect(store, apache_protocol=version) as other:
            reader = await other.open_ledger(writer.ledger_id, digest=digest, password=b"p")
            assert [bytes(one.data) async for one in reader.read()] == [
                b"%d" % one for one in range(20)
            ]
        with pytest.raises(LedgerFenced):
            await writer.append(b"too late")
        fences = [one for one in asked(fakes, frames.READ) if one.is_fencing]
        assert all(one.version == 3 and one.is_high_priority for one in fences)
        assert {one.entry_id for one in fences} >= {-1, 20}
        again = [one for one in asked(fakes, frames.ADD) if one.is_recovery]
        assert again
        assert all(one.version == 3 and one.is_high_priority for one in again)
        with contextlib.suppress(LedgerFenced):
            await writer.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_tail_follows_within_the_poll_not_at_its_end(version: str) -> None:
    async with apache_cluster(3, version, poll_interval=30.0) as (client, fakes, _):
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id, recovery=False)

        async def tail(count: int) -> list[bytes]:
            found = []
            async for entry in reader.tail():
                found.append(bytes(entry.data))
                if len(found) == count:
                    break
            return found

        async with asyncio.timeout(20):
            tailing = asyncio.create_task(tail(10))
            for one in range(10):
                await writer.append(b"%d" % one)
            assert await tailing == [b"%d" % one for one in range(10)]
        await writer.close()
        polls = [one for one in asked(fakes, frames.READ) if one.previous_lac is not None]
        assert any(one.is_piggyback for one in polls)
        assert any(not one.is_piggyback and one.timeout_ms for one in polls)


@pytest.mark.parametrize("version", VERSIONS)
async def test_operators_questions(version: str) -> None:
    async with apache_cluster(1, version) as (client, fakes, _):
        info = await bookie_info(client.pool, "b0", 5.0)
        assert (info.disk_total_bytes, info.disk_free_bytes, info.writable) == (1000, 400, True)
        writer = await client.create_ledger(1, 1)
        await writer.append_many([b"x"] * 30)
        for entry_id in (3, 4, 17):
            del fakes[0].ledgers[writer.ledger_id].entries[entry_id]
        ranges = await stored_ranges(client.pool, "b0", writer.ledger_id, 5.0)
        assert ranges == [(0, 2), (5, 16), (18, 29)]
        assert await stored_ranges(client.pool, "b0", 4711, 5.0) == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_deferred_sync_is_not_left_to_bookies_that_forget_and_confirm(version: str) -> None:
    async with apache_cluster(3, version) as (client, fakes, _):
        writer = await client.create_ledger(3, 3, 3, deferred_sync=True)
        await writer.append(b"x")
        assert writer.last_add_confirmed == -1
        await writer.force()
        assert writer.last_add_confirmed == 0
        assert {one.write_flags for one in asked(fakes, frames.ADD)} == {0}
        assert len(asked(fakes, frames.FORCE, 3)) == 3
        await writer.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_ensembles_may_be_mixed(version: str) -> None:
    store = MemoryStore("mixed")
    apaches = [FakeApacheBookie("apache-1"), FakeApacheBookie("apache-2")]
    try:
        async with fake_bookies(store, 2) as ours:
            for fake in apaches:
                await fake.start()
                fake.register(store)
            async with fastbk.connect(store, apache_protocol=version) as client:
                writer = await client.create_ledger(4, 2, 2)
                await writer.append_many([b"%d" % one for one in range(100)])
                async with fastbk.connect(store, apache_protocol=version) as other:
                    reader = await other.open_ledger(writer.ledger_id)
                    assert [bytes(one.data) async for one in reader.read()] == [
                        b"%d" % one for one in range(100)
                    ]
                with pytest.raises(LedgerFenced):
                    await writer.append(b"late")
            for fake in (*ours, *apaches):
                assert len(fake.ids(writer.ledger_id)) == 50
    finally:
        for fake in apaches:
            await fake.stop()
        store.close()


# --- without await ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_a_thread(bookies: int) -> Iterator[tuple[MemoryStore, list[FakeApacheBookie]]]:
    """Give fakes that run on a loop in a thread of their own."""
    store = MemoryStore(f"apache fakes {next(_names)}")
    made: list[FakeApacheBookie] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_ready = threading.Event()

    async def serve() -> None:
        async with fake_apache_bookies(store, bookies) as fakes:
            made.extend(fakes)
            loops.append((asyncio.get_running_loop(), asyncio.Event()))
            is_ready.set()
            await loops[0][1].wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert is_ready.wait(10)
        yield store, made
    finally:
        loop, end = loops[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(10)
        store.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_without_await_does_the_same(version: str) -> None:
    with (
        in_a_thread(4) as (store, fakes),
        fastbk.sync.connect(store, apache_protocol=version, replace_after=0.05) as client,
    ):
        writer = client.create_ledger()
        for one in range(50):
            writer.append(b"%d" % one)
        gone = writer.metadata.fragments[0].ensemble[0]
        fake = next(fake for fake in fakes if fake.bookie_id == gone)
        fake.faults.refuse_adds = lambda *_: READ_ONLY
        writer.append_many([b"%d" % one for one in range(50, 100)])
        reader = client.open_ledger(writer.ledger_id)
        assert [bytes(one.data) for one in reader.read()] == [b"%d" % one for one in range(100)]
        with pytest.raises(LedgerFenced):
            writer.append(b"late")
        with contextlib.suppress(LedgerFenced):
            writer.close()
        tailed = client.create_ledger()
        tailed.append_many([b"%d" % one for one in range(5)])
        tailed.write_last_add_confirmed()
        following = client.open_ledger(tailed.ledger_id, recovery=False)
        assert following.last_add_confirmed() == 4
        tailed.close()
        assert [bytes(one.data) for one in following.tail()] == [b"%d" % one for one in range(5)]


def test_a_second_hello_is_an_answer_to_nobody() -> None:
    """Else a bookie that repeats it would be sent all that it has not acknowledged, each time."""
    with in_a_thread(1) as (store, fakes), fastbk.sync.connect(store) as client:
        writer = client.create_ledger(1, 1)
        fakes[0].strange_answers = 20
        for _ in range(20):
            writer.append(b"x")
        writer.close()
        sent = [one.entry_id for one in asked(fakes, frames.ADD, 3)]
        assert sorted(sent) == list(range(20))
