"""Reads around bookies that are slow, silent, busy or away: whom a reader asks, and for how long (INV-B1)."""

from __future__ import annotations

import asyncio
import time

import pytest

from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import SUSPECT_S, KnownBookies
from fastbk.client.ledger_reader import AVOID_S, ReadOrder
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    DigestMismatch,
    NoSuchEntry,
    NotEnoughBookies,
)
from fastbk.wire.statuses import Status
from tests.fixtures.fake_bookie import FakeBookie
from tests.unit.client.fake_cluster import fake_cluster, numbers, written

PATIENT_S = 30.0
"""A timeout that no test waits for."""
SOON_S = 10.0


async def stop_all(fakes: list[FakeBookie]) -> None:
    for fake in fakes:
        await fake.stop()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_whoever_fails_or_is_slow_comes_last_for_a_while() -> None:
    known = KnownBookies(ClientConfig())
    order = ReadOrder(known, 1, is_striped=False)
    assert list(order.at(0.0)(["a", "b", "c"])) == ["b", "c", "a"]
    order.were_slow(["b"])
    assert list(order(["a", "b", "c"])) == ["c", "a", "b"]
    known.failed("c", 0.0)
    assert list(order(["a", "b", "c"])) == ["a", "b", "c"], "slow is better than failing"
    later_s = max(AVOID_S, SUSPECT_S) + 1
    assert list(order.at(later_s)(["a", "b", "c"])) == ["b", "c", "a"]
    striped = ReadOrder(known, 1, is_striped=True)
    assert list(striped.at(later_s)(["a", "b", "c"])) == ["a", "b", "c"], "the longest run first"
    assert list(order([])) == []


@pytest.mark.slow
@pytest.mark.uvloop_too
@pytest.mark.parametrize("how", [{"speculative_read": 0.05}, {"parallel_reads": True}])
async def test_a_read_does_not_wait_for_a_silent_bookie(how: dict[str, object]) -> None:
    async with fake_cluster(read_timeout=PATIENT_S, **how) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append_many(numbers(0, 20))
        await writer.close()
        for silent in fakes:
            silent.faults.silent = True
            for _ in range(3):  # whomever the reader begins with
                reader = await client.open_ledger(writer.ledger_id)
                async with asyncio.timeout(PATIENT_S / 6):
                    found = [bytes(one.data) async for one in reader.read()]
                assert found == numbers(0, 20)
            silent.faults.silent = False
            silent.cut()  # a hello that it swallowed is not answered later


@pytest.mark.slow
async def test_without_speculation_the_silent_one_costs_its_share_of_the_time() -> None:
    async with fake_cluster(read_timeout=4.0, speculative_read=0) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        await writer.close()
        for fake in fakes[:2]:
            fake.faults.silent = True
        reader = await client.open_ledger(writer.ledger_id)
        began_s = time.monotonic()
        (entry,) = [one async for one in reader.read()]
        assert bytes(entry.data) == b"x"
        assert time.monotonic() - began_s < 4.0


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with fake_cluster(read_timeout=PATIENT_S) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.read_status = Status.NOT_READY
        opening = asyncio.create_task(client.open_ledger(writer.ledger_id))
        done, _ = await asyncio.wait([opening], timeout=0.1)
        assert not done
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(opening, 5)
        assert not client.pool.runs


async def test_a_ledger_with_a_weak_quorum_is_made_with_one_warning() -> None:
    from fastbk.errors import WeakQuorumWarning

    async with fake_cluster() as (client, _, _):
        with pytest.warns(WeakQuorumWarning, match="losing 1 may lose") as told:
            first = await client.create_ledger(3, 3, 1)
        assert [one.filename for one in told] == [__file__]
        second = await client.create_ledger(3, 3, 1)  # a second warning would be an error
        await first.close()
        await second.close()
        with pytest.raises(ConfigError):
            await client.create_ledger(3, 3, 0)
