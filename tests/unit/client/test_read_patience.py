"""Reads while bookies are away or busy: they go on asking until their time is over, and only then (INV-B1)."""

from __future__ import annotations

import asyncio
import time

import pytest

from fastbk.errors import (
    DigestMismatch,
    NoSuchEntry,
    NotEnoughBookies,
)
from fastbk.wire.statuses import Status
from tests.fixtures.fake_bookie import FakeBookie
from tests.unit.client.fake_cluster import fake_cluster, numbers, written

PATIENT_S = 30.0
"""A read timeout that no test waits for."""
SOON_S = 10.0


async def stop_all(fakes: list[FakeBookie]) -> None:
    for fake in fakes:
        await fake.stop()


async def test_a_read_outlives_the_absence_of_every_bookie() -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        reader = await written(client, numbers(0, 50))
        await stop_all(fakes)

        async def read() -> list[bytes]:
            return [bytes(entry.data) async for entry in reader.read()]

        reading = asyncio.create_task(read())
        done, _ = await asyncio.wait([reading], timeout=0.3)
        assert not done, "nobody is there: it waits"
        for fake in fakes[1:]:
            await fake.start()
        assert await asyncio.wait_for(reading, SOON_S) == numbers(0, 50)


async def test_the_lac_of_an_open_ledger_is_asked_for_until_enough_bookies_are_back() -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        writer = await client.create_ledger(write_quorum=3, ack_quorum=2)
        for one in range(5):  # each carries the LAC before it
            await writer.append(b"%d" % one)
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        await stop_all(fakes)
        asking = asyncio.create_task(reader.last_add_confirmed())
        done, _ = await asyncio.wait([asking], timeout=0.2)
        assert not done
        for fake in fakes[:2]:
            await fake.start()
        assert await asyncio.wait_for(asking, SOON_S) >= 3
        fakes[1].faults.read_status = fakes[2].faults.read_status = Status.CANNOT_TELL
        await fakes[2].start()
        with pytest.raises(NotEnoughBookies) as caught:
            await asyncio.wait_for(reader.last_add_confirmed(), SOON_S)
        assert caught.value.replicas["b1"] == "CANNOT_TELL"


@pytest.mark.parametrize("status", [Status.NOT_READY, Status.TOO_MANY_REQUESTS])
async def test_a_read_outlives_busy_bookies(status: int) -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        reader = await written(client, [b"x"])
        for fake in fakes:
            fake.faults.read_status = status
        reading = asyncio.create_task(reader.read_unconfirmed(0, 0))
        done, _ = await asyncio.wait([reading], timeout=0.2)
        assert not done
        fakes[2].faults.read_status = 0
        (entry,) = await asyncio.wait_for(reading, SOON_S)
        assert bytes(entry.data) == b"x"


async def test_bookies_that_stay_away_end_a_read_with_its_time_and_their_reasons() -> None:
    async with fake_cluster(read_timeout=0.5) as (client, fakes, _):
        reader = await written(client, [b"x"])
        await stop_all(fakes)
        began_s = time.monotonic()
        with pytest.raises(NotEnoughBookies) as caught:
            _ = [entry async for entry in reader.read()]
        assert time.monotonic() - began_s >= 0.4
        assert set(caught.value.replicas) == {"b0", "b1", "b2"}
        assert all("127.0.0.1:" in said for said in caught.value.replicas.values())


async def test_bad_digests_and_proven_absence_are_not_waited_for() -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        reader = await written(client, [b"x"])
        for fake in fakes:
            fake.faults.damage_reads = lambda _, entry_id: True
        async with asyncio.timeout(SOON_S):
            with pytest.raises(DigestMismatch):
                _ = [entry async for entry in reader.read()]
            await fakes[0].stop()
            fakes[1].faults.damage_reads = fakes[2].faults.damage_reads = None
            fakes[1].faults.hide = fakes[2].faults.hide = lambda _, entry_id: True
            with pytest.raises(NoSuchEntry):
                _ = [entry async for entry in reader.read()]
