"""The clients against bookies that speak Apache's protocols only: all operations in both versions, and what goes wrong.

The fakes answer as Apache's bookies do; `seen` tells what was asked of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

import fastbk
from fastbk.client.bookie_requests import bookie_info, stored_ranges
from fastbk.errors import ConfigError, LedgerFenced, NotEnoughBookies, Unauthorized
from tests.fixtures import fake_apache_frames as frames
from tests.fixtures.fake_apache_bookie import FakeApacheBookie
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import (
    VERSIONS,
    apache_cluster,
    asked,
    by_id,
    fake_cluster,
    numbers,
    read_all,
    written,
)

CANNOT_TELL, READ_ONLY, TOO_MANY = 12, 24, 25


@pytest.mark.slow
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
        reader = await written(client, numbers(0, 640), 1, 1)
        assert len([one async for one in reader.read(0, 639)]) == 640
        reads = [one for one in asked(fakes, frames.READ) if one.entry_id >= 0]
        assert len(reads) == (10 if version == "v2" else 640)


@pytest.mark.parametrize("version", VERSIONS)
async def test_answers_keep_to_the_size_that_was_wanted(version: str) -> None:
    async with apache_cluster(1, version, read_batch_bytes=20_000) as (client, fakes, _):
        reader = await written(client, [bytes(3000)] * 100 + [bytes(100_000)] * 2, 1, 1)
        batches = [batch async for batch in reader.read_batches(0, 101)]
        sizes = [sum(len(one) for one in batch.datas) for batch in batches]
        assert sum(sizes) == 500_000
        assert max(sizes[:-2]) <= 20_000
        assert sizes[-2:] == [100_000, 100_000]
        # Single reads go on as sizes suggest: little is asked for in vain.
        assert len(asked(fakes, frames.READ)) <= 150


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
async def test_recovery_fences_and_closes_with_what_is_there(version: str, digest: str) -> None:
    async with apache_cluster(3, version) as (client, fakes, store):
        writer = await client.create_ledger(3, 2, 2, digest=digest, password=b"p")
        await writer.append_many(numbers(0, 20))
        async with fastbk.connect(store, apache_protocol=version) as other:
            assert await read_all(other, writer.ledger_id, digest=digest, password=b"p") == numbers(
                0, 20
            )
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

        def polls() -> list[frames.Asked]:
            return [one for one in asked(fakes, frames.READ) if one.previous_lac is not None]

        async with asyncio.timeout(20):
            tailing = asyncio.create_task(tail(10))
            # The one that is to bring the entry brings nothing for a moment, so all are asked to wait.
            await wait_until_async(
                lambda: any(not one.is_piggyback and one.timeout_ms for one in polls()),
                "the others are asked, too",
            )
            assert any(one.is_piggyback for one in polls())
            for one in range(10):
                await writer.append(b"%d" % one)
            assert await tailing == numbers(0, 10)
        await writer.close()


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
    apaches = [FakeApacheBookie("apache-1"), FakeApacheBookie("apache-2")]
    async with fake_cluster(2, apache_protocol=version) as (client, ours, store):
        try:
            for fake in apaches:
                await fake.start()
                fake.register(store)
            writer = await client.create_ledger(4, 2, 2)
            await writer.append_many(numbers(0, 100))
            async with fastbk.connect(store, apache_protocol=version) as other:
                assert await read_all(other, writer.ledger_id) == numbers(0, 100)
            with pytest.raises(LedgerFenced):
                await writer.append(b"late")
            for fake in (*ours, *apaches):
                assert len(fake.ids(writer.ledger_id)) == 50
        finally:
            for fake in apaches:
                await fake.stop()


# --- when they fail, refuse, lie or go ------------------------------------------------------------------------------


async def test_a_bookie_without_reads_of_several_entries_is_asked_singly_from_then_on() -> None:
    async with apache_cluster(1, "v2") as (client, fakes, _):
        fakes[0].has_batches = False
        reader = await written(client, [b"x"] * 50, 1, 1)
        assert len([one async for one in reader.read(0, 49)]) == 50
        before = fakes[0].connections
        assert len([one async for one in reader.read(0, 49)]) == 50
        assert fakes[0].connections == before
        assert not any(one.is_batch for one in fakes[0].seen)


@pytest.mark.parametrize("version", VERSIONS)
async def test_another_password_is_refused(version: str) -> None:
    async with apache_cluster(3, version) as (client, fakes, _):
        writer = await client.create_ledger(password=b"right")
        await writer.append(b"x")
        for fake in fakes:
            fake.ledgers[writer.ledger_id].key = bytes(20)
        with pytest.raises(Unauthorized):
            await writer.append(b"y")
        with pytest.raises(Unauthorized):
            await client.open_ledger(writer.ledger_id, password=b"right")


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_bare_number_proves_no_entry_acknowledged(version: str) -> None:
    async with apache_cluster(3, version, explicit_lac_interval=0) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append_many([b"a", b"b"])
        for fake in fakes:
            fake.faults.lac_lie = 1000
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await reader.last_add_confirmed() <= 1
        assert await reader.try_last_add_confirmed() <= 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                async for entry in reader.tail():
                    assert entry.entry_id < 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_limbo_is_no_proof_of_absence(version: str) -> None:
    async with apache_cluster(3, version, read_timeout=0.3) as (client, fakes, _):
        writer = await client.create_ledger(3, 3, 2)
        await writer.append_many([b"x"] * 3)
        await wait_until_async(
            lambda: all(len(one.ids(writer.ledger_id)) == 3 for one in fakes), "all have all"
        )
        for fake in fakes[:2]:
            fake.faults.read_status = CANNOT_TELL
        with pytest.raises(NotEnoughBookies) as caught:
            await client.open_ledger(writer.ledger_id)
        assert "CANNOT_TELL" in str(caught.value.replicas)
        for fake in fakes[:2]:
            fake.faults.read_status = 0
        reader = await client.open_ledger(writer.ledger_id)
        assert len([one async for one in reader.read()]) == 3


@pytest.mark.parametrize("version", VERSIONS)
async def test_busy_and_read_only_bookies_are_waited_for_and_left(version: str) -> None:
    async with apache_cluster(4, version) as (client, fakes, _):
        writer = await client.create_ledger()
        first = by_id(fakes, writer.metadata.fragments[0].ensemble[0])
        refusals = itertools.count()
        first.faults.refuse_adds = lambda *_: TOO_MANY if next(refusals) < 3 else 0
        await writer.append_many([b"x"] * 10)
        await wait_until_async(lambda: len(first.ids(writer.ledger_id)) == 10, "it has all")
        first.faults.refuse_adds = lambda *_: READ_ONLY
        await writer.append_many([b"y"] * 10)
        await wait_until_async(
            lambda: first.bookie_id not in writer.metadata.fragments[-1].ensemble,
            "another has its place",
        )
        await writer.close()
        found = await read_all(client, writer.ledger_id)
        assert found == [b"x"] * 10 + [b"y"] * 10


async def test_answers_to_nobody_are_dropped() -> None:
    """A bookie that repeats its hello would be sent all that it has not acknowledged, each time."""
    async with apache_cluster(1) as (client, fakes, _):
        writer = await client.create_ledger(1, 1)
        fakes[0].strange_answers = 20
        for _ in range(20):
            await writer.append(b"x")
        await writer.close()
        assert sorted(one.entry_id for one in asked(fakes, frames.ADD, 3)) == list(range(20))
        assert len(await read_all(client, writer.ledger_id)) == 20


@pytest.mark.parametrize("version", VERSIONS)
async def test_late_answers_reach_nobody_else(version: str) -> None:
    delays = itertools.cycle([0.15, 0.0, 0.02])
    async with apache_cluster(3, version, speculative_read=0.01) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append_many(numbers(0, 60))
        await writer.close()
        for fake in fakes:
            fake.faults.delay_s = lambda: next(delays)
        reader = await client.open_ledger(writer.ledger_id)

        async def one_range(first: int) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05 if first % 3 else 10):
                    found = [one async for one in reader.read(first, first + 9)]
                    assert [bytes(one.data) for one in found] == [
                        b"%d" % one for one in range(first, first + 10)
                    ]

        await asyncio.gather(*(one_range(first) for first in range(50)))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_bookie_that_wants_authentication_is_refused(version: str) -> None:
    async with apache_cluster(1, version) as (client, fakes, _):
        fakes[0].auth_plugin = "sasl"
        with pytest.raises(NotEnoughBookies) as caught:
            await client.create_ledger(1, 1)
        assert "authentication" in caught.value.replicas["b0"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_silent_bookie_does_not_come_up(version: str) -> None:
    async with apache_cluster(1, version, connect_timeout=0.1) as (client, fakes, _):
        fakes[0].faults.silent = True
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger(1, 1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_largest_entry_fits_into_apaches_largest_frame(version: str) -> None:
    async with apache_cluster(1, version) as (client, _, _):
        writer = await client.create_ledger(1, 1)
        with pytest.raises(ConfigError, match="at most") as caught:
            await writer.append(bytes(6 * 1024 * 1024))
        largest = int(str(caught.value).split("at most ")[1].split()[0])
        await writer.append(bytes(largest))
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert [len(one.data) async for one in reader.read()] == [largest]


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="v2 or v3"):
        fastbk.connect("memory:x", apache_protocol="v4")
    with pytest.raises(ConfigError, match="4 KiB"):
        fastbk.connect("memory:x", apache_frame_size_bytes_max=100)
