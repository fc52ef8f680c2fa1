"""Batches that are read ahead, over sockets: bookies that are slow, damaged, silent, and readers that leave."""

from __future__ import annotations

import contextlib
import random

import pytest

from fastbk.errors import DigestMismatch
from fastbk.replication.reading import BATCHED_PARTS
from tests.fixtures.sync_cluster import sync_cluster
from tests.unit.client.fake_cluster import fake_cluster, some_turns

COUNT = 500
OPTIONS = {"read_batch_entries": 7, "prefetch_batches": 5, "read_timeout": 5.0}
DATAS = [b"entry %d" % one for one in range(COUNT)]


@pytest.mark.parametrize("speculative_read", [0.0, 0.02])
async def test_order_is_kept_whatever_bookies_do(speculative_read: float) -> None:
    rng = random.Random(7)
    async with fake_cluster(**OPTIONS, speculative_read=speculative_read) as (client, fakes, _):
        async with await client.create_ledger() as writer:
            await writer.append_many(DATAS)
        fakes[0].faults.damage_reads = lambda _, entry_id: entry_id % 40 == 2
        fakes[1].faults.hide = lambda _, entry_id: entry_id % 40 == 13
        for fake in fakes:
            fake.faults.delay_s = lambda: rng.choice([0, 0, 0, 0.001, 0.005])
        for _ in range(2):
            reader = await client.open_ledger(writer.ledger_id)
            batches = [batch async for batch in reader.read_batches()]
            assert [bytes(data) for batch in batches for data in batch.datas] == DATAS
            assert max(map(len, batches)) <= 7


async def test_a_bookie_that_falls_silent_while_it_is_read_costs_no_entry() -> None:
    async with fake_cluster(**OPTIONS, speculative_read=0.02) as (client, fakes, _):
        async with await client.create_ledger() as writer:
            await writer.append_many(DATAS)
        reader = await client.open_ledger(writer.ledger_id)
        found: list[bytes] = []
        async for entry in reader.read():
            if entry.entry_id == 100:
                asked = max(fakes, key=lambda fake: fake.requests)
                asked.faults.silent = True
            found.append(bytes(entry.data))
        assert found == DATAS


async def test_what_is_damaged_everywhere_comes_behind_all_that_is_before_it() -> None:
    async with fake_cluster(**OPTIONS) as (client, fakes, _):
        async with await client.create_ledger() as writer:
            await writer.append_many(DATAS)
        for fake in fakes:
            fake.faults.damage_reads = lambda _, entry_id: entry_id == 20
        reader = await client.open_ledger(writer.ledger_id)
        found: list[int] = []
        with pytest.raises(DigestMismatch) as caught:
            async for entry in reader.read():
                found.append(entry.entry_id)
        assert found == list(range(20))
        assert caught.value.entry_id == 20


async def test_a_reader_that_leaves_waits_for_no_answer() -> None:
    async with fake_cluster(**OPTIONS) as (client, fakes, _):
        async with await client.create_ledger() as writer:
            await writer.append_many(DATAS)
        reader = await client.open_ledger(writer.ledger_id)
        async with contextlib.aclosing(reader.read_batches()) as batches:
            async for batch in batches:
                if batch.last_entry_id > 50:
                    break
        asked = sum(fake.requests for fake in fakes)
        await some_turns()
        assert sum(fake.requests for fake in fakes) <= asked + BATCHED_PARTS
        assert [bytes(one.data) async for one in reader.read(400, 402)] == DATAS[400:403]


def test_without_a_loop_it_is_the_same() -> None:
    with sync_cluster(**OPTIONS) as (client, fakes, _):
        with client.create_ledger() as writer:
            writer.append_many(DATAS)
        reader = client.open_ledger(writer.ledger_id)
        left = reader.read_batches()
        assert [bytes(data) for data in next(left).datas] == DATAS[:7]
        next(left)
        left.close()
        pool = client._thread.call_plain(lambda: client._inner().pool)
        assert not pool.runs, "nothing is waited for"
        fakes.fakes[1].faults.damage_reads = lambda _, entry_id: entry_id % 30 == 4
        fakes.fakes[2].faults.hide = lambda _, entry_id: entry_id % 30 == 9
        for _ in range(2):
            again = client.open_ledger(writer.ledger_id)
            assert [bytes(one.data) for one in again.read()] == DATAS
        assert not pool.runs
