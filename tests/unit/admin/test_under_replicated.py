"""Which copies are missing, by the lists of bookies and without them: Apache's give none with DbLedgerStorage."""

from __future__ import annotations

import time

import pytest

from fastbk.admin.cluster import SILENT_TIMEOUT_S, MissingCopies, under_replicated
from fastbk.client import Client
from tests.fixtures import fake_apache_frames as frames
from tests.unit.client.fake_cluster import apache_cluster, asked

WAIT_S = 0.3


async def lacking(client: Client, unlisted: set[str]) -> list[tuple[int, str, tuple[int, ...]]]:
    found: list[MissingCopies] = [
        one async for one in under_replicated(client, timeout_s=WAIT_S, unlisted=unlisted)
    ]
    return [(one.ledger_id, one.bookie_id, one.ids) for one in found]


async def write(client: Client, entries: int, write_quorum: int = 3) -> int:
    writer = await client.create_ledger(3, write_quorum, 2)
    for one in range(entries):
        await writer.append(b"%d" % one)
    await writer.close()
    return writer.ledger_id


@pytest.mark.slow
async def test_bookies_without_lists_are_asked_for_the_ends_of_their_shares() -> None:
    async with apache_cluster(3) as (client, fakes, _):
        await write(client, 0)
        whole, striped = await write(client, 10), await write(client, 10, write_quorum=2)
        fakes[0].has_lists = fakes[1].has_lists = False
        unlisted: set[str] = set()
        assert await lacking(client, unlisted) == []
        assert unlisted == {"b0", "b1"}
        assert [len(asked([fake], frames.LIST)) for fake in fakes] == [1, 1, 2], "once in vain each"
        fakes[0].ledgers[whole].entries.pop(9)
        fakes[1].ledgers.pop(striped)
        fakes[2].ledgers[whole].entries.pop(5)
        found = await lacking(client, set())
        assert (whole, "b0", (9,)) in found
        assert (whole, "b2", (5,)) in found, "one with a list misses nothing of it"
        (ids,) = [ids for ledger_id, bookie, ids in found if (ledger_id, bookie) == (striped, "b1")]
        assert len(ids) == 2
        assert len(found) == 3


@pytest.mark.slow
async def test_one_that_answers_nothing_is_not_taken_for_one_without_lists() -> None:
    async with apache_cluster(3) as (client, fakes, _):
        ledger_id = await write(client, 10)
        fakes[1].faults.silent = True
        unlisted: set[str] = set()
        assert await lacking(client, unlisted) == [(ledger_id, "b1", ())]
        assert unlisted == set()


@pytest.mark.slow
async def test_a_frozen_bookie_is_waited_for_once() -> None:
    async with apache_cluster(3) as (client, fakes, _):
        for _ in range(8):
            await write(client, 3)
        fakes[1].faults.silent = True
        began_s = time.monotonic()
        found = [one async for one in under_replicated(client, timeout_s=4 * SILENT_TIMEOUT_S)]
        assert [one.bookie_id for one in found] == ["b1"] * 8
        assert time.monotonic() - began_s < 8 * 4 * SILENT_TIMEOUT_S - 1
