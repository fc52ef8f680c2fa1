"""What a tail's polls cost, and that none of them loses a change of the metadata."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from dataclasses import replace

import pytest

from fastbk.client import ledger_reader
from fastbk.meta.api import VersionedLedger
from fastbk.replication.polling import PollOptions
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import fake_cluster, some_turns

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
        read_metadata, asked, may_answer = reader._io.read_metadata, 0, asyncio.Event()

        async def held(ledger_id: int) -> VersionedLedger:
            nonlocal asked
            asked += 1
            await may_answer.wait()
            return await read_metadata(ledger_id)

        async with contextlib.aclosing(reader.tail()) as tail:
            assert (await anext(tail)).entry_id == 0
            waiting = asyncio.ensure_future(anext(tail))
            await some_turns()
            reader._io = replace(reader._io, read_metadata=held)
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
