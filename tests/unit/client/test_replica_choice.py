"""Reads around slow, silent and lost bookies: speculative, parallel, and whom a reader asks first."""

from __future__ import annotations

import asyncio
import time

import pytest

from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import SUSPECT_S, KnownBookies
from fastbk.client.read_order import AVOID_S, ReadOrder
from fastbk.errors import ClientClosed, ConfigError
from fastbk.wire.statuses import Status
from tests.unit.client.fake_cluster import fake_cluster, numbers

PATIENT_S = 30.0
"""A timeout that no test waits for."""


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
