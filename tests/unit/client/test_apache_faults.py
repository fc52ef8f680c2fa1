"""The clients against bookies that speak Apache's protocols only, when these fail, refuse, lie or go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

import fastbk
import fastbk.sync
from fastbk.errors import (
    ConfigError,
    DigestMismatch,
    NotEnoughBookies,
    Unauthorized,
)
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_apache_cluster import VERSIONS, apache_cluster

CANNOT_TELL, READ_ONLY, TOO_MANY = 12, 24, 25


async def test_a_bookie_without_reads_of_several_entries_is_asked_singly_from_then_on() -> None:
    async with apache_cluster(1, "v2") as (client, fakes, _):
        fakes[0].has_batches = False
        writer = await client.create_ledger(1, 1)
        await writer.append_many([b"x"] * 50)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
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
async def test_a_damaged_copy_is_read_from_another_bookie(version: str) -> None:
    async with apache_cluster(3, version) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append_many([b"%d" % one for one in range(30)])
        await wait_until_async(
            lambda: all(len(one.ids(writer.ledger_id)) == 30 for one in fakes), "all have all"
        )
        await writer.close()
        for fake in fakes[:2]:
            fake.faults.damage_reads = lambda _, entry_id: entry_id % 7 == 3
        reader = await client.open_ledger(writer.ledger_id)
        assert [bytes(one.data) async for one in reader.read()] == [
            b"%d" % one for one in range(30)
        ]
        fakes[2].faults.damage_reads = fakes[0].faults.damage_reads
        with pytest.raises(DigestMismatch):
            [one async for one in reader.read()]


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
async def test_a_lost_bookie_is_replaced_and_nothing_is_lost(version: str) -> None:
    async with apache_cluster(4, version, replace_after=0.05) as (client, fakes, _):
        writer = await client.create_ledger()
        futures = [writer.append_nowait(b"%d" % one) for one in range(100)]
        gone = writer.metadata.fragments[0].ensemble[1]
        await next(fake for fake in fakes if fake.bookie_id == gone).stop()
        futures += [writer.append_nowait(b"%d" % one) for one in range(100, 200)]
        await asyncio.gather(*futures)
        await wait_until_async(
            lambda: gone not in writer.metadata.fragments[-1].ensemble, "another has its place"
        )
        await writer.append(b"200")
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert [bytes(one.data) async for one in reader.read()] == [
            b"%d" % one for one in range(201)
        ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_busy_and_read_only_bookies_are_waited_for_and_left(version: str) -> None:
    async with apache_cluster(4, version) as (client, fakes, _):
        writer = await client.create_ledger()
        first = next(
            one for one in fakes if one.bookie_id == writer.metadata.fragments[0].ensemble[0]
        )
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
        reader = await client.open_ledger(writer.ledger_id)
        found = [bytes(one.data) async for one in reader.read()]
        assert found == [b"x"] * 10 + [b"y"] * 10


async def test_answers_to_nobody_are_dropped() -> None:
    async with apache_cluster(1) as (client, fakes, _):
        writer = await client.create_ledger(1, 1)
        fakes[0].strange_answers = 5
        await writer.append_many([b"x"] * 20)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len([one async for one in reader.read()]) == 20


@pytest.mark.parametrize("version", VERSIONS)
async def test_late_answers_reach_nobody_else(version: str) -> None:
    delays = itertools.cycle([0.15, 0.0, 0.02])
    async with apache_cluster(3, version, speculative_read=0.01) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append_many([b"%d" % one for one in range(60)])
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
