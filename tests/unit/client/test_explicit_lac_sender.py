"""A writer tells its LAC also while a few entries are in flight: readers need not wait for a later entry's commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastbk.client import explicit_lac_sender
from fastbk.client.explicit_lac_sender import FEW_IN_FLIGHT
from fastbk.client.pending_request import PendingRequest
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import fake_cluster


async def _told(in_flight: int) -> list[int]:
    """Return the LACs that fakes know when the first entry is acknowledged, and so many behind it are not."""
    async with fake_cluster(explicit_lac_interval=0.0) as (client, fakes, _):
        for fake in fakes:
            fake.faults.drop_adds = lambda _, entry_id: entry_id > 0
        writer = await client.create_ledger()
        first, *late = [writer.append_nowait(b"x") for _ in range(1 + in_flight)]
        await first
        writer.send_lac_soon()
        held = [fake.ledgers[writer.ledger_id] for fake in fakes]
        if in_flight <= FEW_IN_FLIGHT:
            await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told")
        else:
            # What is asked on the same connections is answered behind what was told.
            reader = await client.open_ledger(writer.ledger_id, recovery=False)
            await reader.last_add_confirmed()
        found = [one.lac for one in held]
    await asyncio.gather(*late, return_exceptions=True)
    return found


@pytest.mark.parametrize("in_flight", [0, 1, FEW_IN_FLIGHT])
async def test_a_lac_is_told_while_a_few_entries_are_in_flight(in_flight: int) -> None:
    assert await _told(in_flight) == [0, 0, 0]


async def test_a_lac_is_not_told_while_many_entries_are_in_flight() -> None:
    assert await _told(FEW_IN_FLIGHT + 1) == [-1, -1, -1]


async def test_while_entries_are_in_flight_it_is_told_so_often_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explicit_lac_sender, "_SEND_INTERVAL_S", 60.0)
    async with fake_cluster(1, explicit_lac_interval=0.0) as (client, (fake,), _):
        writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        waiting = [writer.append_nowait(b"x")]
        for _ in range(30):
            waiting.append(writer.append_nowait(b"x"))
            assert await waiting.pop(0) >= 0
            writer.send_lac_soon()
            writer.send_lac_soon()
        tells_in_flight = fake.requests - fake.adds - fake.connections
        assert tells_in_flight <= 4
        await asyncio.gather(*waiting)
        # Idle it is told at once, however often it was told before.
        writer.send_lac_soon()
        ledger = fake.ledgers[writer.ledger_id]
        await wait_until_async(lambda: ledger.lac == 30, "the last one was told")
        assert fake.requests - fake.adds - fake.connections == 5


async def test_whoever_waits_for_an_acknowledgement_goes_on_before_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_cluster(1, explicit_lac_interval=0.0) as (client, (fake,), _):
        writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        sent: list[str] = []
        peer = writer._pipe.peers[0]
        ask, write = peer.send_request, peer.adds.write

        def asked(*arguments: Any) -> PendingRequest:
            sent.append("told")
            return ask(*arguments)

        def written(frames: bytes | bytearray | memoryview) -> None:
            sent.append("entry")
            write(frames)

        monkeypatch.setattr(peer, "send_request", asked)
        monkeypatch.setattr(peer.adds, "write", written)
        first = writer.append_nowait(b"0")
        first.add_done_callback(lambda _: writer.send_lac_soon())
        await first
        await writer.append(b"1")
        assert sent == ["entry", "entry", "told"]
        ledger = fake.ledgers[writer.ledger_id]
        await wait_until_async(lambda: ledger.lac == 0, "it was told")


async def test_bookies_that_were_restarted_learn_the_lac_of_an_idle_writer() -> None:
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"the last entry for a long time")
        held = [fake.ledgers[writer.ledger_id] for fake in fakes]
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told")
        for fake, ledger in zip(fakes, held, strict=True):
            ledger.lac, ledger.lac_body = -1, b""
            fake.cut()
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told again")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await reader.last_add_confirmed() == 0
