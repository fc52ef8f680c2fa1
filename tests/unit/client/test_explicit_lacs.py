"""How a tail learns of an entry: when a writer tells its LAC, and what a tail's polls cost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fastbk.client import explicit_lac_sender, ledger_reader
from fastbk.client.explicit_lac_sender import FEW_IN_FLIGHT
from fastbk.client.pending_request import PendingRequest
from fastbk.errors import ClientClosed, NotEnoughBookies
from fastbk.meta.api import VersionedLedger
from fastbk.replication.batch import Buffer
from fastbk.replication.polling import PollOptions
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import fake_cluster, some_turns


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
        peer, adds = writer._pipe.peers[0], writer._pipe.adds
        ask, next_to_send = peer.send_request, adds.next_to_send

        def asked(*arguments: Any) -> PendingRequest:
            sent.append("told")
            return ask(*arguments)

        def taken(index: int) -> Buffer | None:
            frames = next_to_send(index)
            if frames is not None:
                sent.append("entry")
            return frames

        monkeypatch.setattr(peer, "send_request", asked)
        monkeypatch.setattr(adds, "next_to_send", taken)
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


ENTRIES = 20


async def test_an_entry_that_is_told_at_once_costs_a_tail_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However slow the machine is, the carrier is in time.
    patient = functools.partial(PollOptions, grace_s=30.0)
    monkeypatch.setattr(ledger_reader, "PollOptions", patient)
    async with fake_cluster(explicit_lac_interval=0.0, poll_interval=60.0) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"0")
        await writer.write_last_add_confirmed()
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        async with contextlib.aclosing(reader.tail(1)) as tail:
            waiting = asyncio.ensure_future(anext(tail))
            await some_turns()
            before = sum(fake.requests for fake in fakes)
            for entry_id in range(1, ENTRIES + 1):
                await writer.append(b"%d" % entry_id)
                writer.send_lac_soon()
                entry = await waiting
                assert (entry.entry_id, bytes(entry.data)) == (entry_id, b"%d" % entry_id)
                waiting = asyncio.ensure_future(anext(tail))
            of_the_writer = 2 * 3 * ENTRIES  # each entry, and its LAC, to three bookies
            assert sum(fake.requests for fake in fakes) - before - of_the_writer <= ENTRIES
            waiting.cancel()
            await asyncio.wait([waiting])
        await writer.close()


async def test_a_change_that_comes_while_a_poll_ends_is_not_forgotten() -> None:
    async with fake_cluster(poll_interval=60.0) as (client, _, _):
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        store, asked, may_answer = reader._io.store, 0, asyncio.Event()

        async def held(ledger_id: int) -> VersionedLedger:
            nonlocal asked
            asked += 1
            await may_answer.wait()
            return await store.read_ledger(ledger_id)

        async with contextlib.aclosing(reader.tail()) as tail:
            assert (await anext(tail)).entry_id == 0
            waiting = asyncio.ensure_future(anext(tail))
            await some_turns()
            reader._io = replace(reader._io, store=SimpleNamespace(read_ledger=held))  # type: ignore[arg-type]
            await client.edit_metadata(writer.ledger_id, {"owner": b"somebody"})
            await wait_until_async(lambda: asked == 1, "the watch has told of it")
            await writer.append(b"1")
            assert (await waiting).entry_id == 1
            assert "owner" not in reader.metadata.custom
            may_answer.set()
            waiting = asyncio.ensure_future(anext(tail))
            await wait_until_async(
                lambda: "owner" in reader.metadata.custom, "the next poll looks again"
            )
            waiting.cancel()
            await asyncio.wait([waiting])
        await writer.close()


@pytest.mark.parametrize("ends_client", [False, True])
async def test_telling_the_lac_ends_when_the_writer_is_closed(ends_client: bool) -> None:
    async with fake_cluster(explicit_lac_interval=0) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.silent = True
        telling = asyncio.ensure_future(writer.write_last_add_confirmed())
        await asyncio.sleep(0)
        await (client.close() if ends_client else writer.close())
        with pytest.raises(ClientClosed if ends_client else NotEnoughBookies):
            await asyncio.wait_for(telling, 2)
