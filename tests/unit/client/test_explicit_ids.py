"""Entries whose ids the caller names; deferred sync; what readers see then. INV-C1."""

from __future__ import annotations

import asyncio
import random

import pytest

from fastbk.client.ledger_writer import ReorderBuffer
from fastbk.errors import (
    BufferFull,
    ConfigError,
    DuplicateEntryId,
    Error,
    LedgerClosed,
    NotEnoughBookies,
    QuorumTimeout,
)
from fastbk.wire.statuses import Status
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import (
    by_id,
    fake_cluster,
    numbers,
    read_all,
    some_turns,
    taken_over,
)


def test_what_is_held_comes_out_in_order_and_is_bounded() -> None:
    held: ReorderBuffer[str] = ReorderBuffer(1, entries_max=3, bytes_max=100)
    held.hold(2, 0, b"c", "two")
    held.hold(1, 0, b"b" * 50, "one")
    assert (len(held), held.size_bytes) == (2, 51)
    for entry_id, data, error in (
        (2, b"", DuplicateEntryId),
        (9, b"x" * 50, BufferFull),
        (-1, b"", ConfigError),
        (2**63, b"", ConfigError),
    ):
        with pytest.raises(error):
            held.hold(entry_id, 0, data, "no")
    held.hold(7, 0, b"h", "seven")
    with pytest.raises(BufferFull, match="append that one"):
        held.hold(8, 0, b"", "no")
    held.hold(0, 0, b"a" * 100, "zero")  # the next one always has room, or nothing would ever go on
    assert held.pop(0) == (b"a" * 100, "zero")
    with pytest.raises(DuplicateEntryId):
        held.hold(0, 1, b"", "no")
    assert held.size_of(1) == 50
    assert held.size_of(3) is None
    assert held.pop_all() == ["one", "two", "seven"]
    assert (len(held), held.size_bytes) == (0, 0)


@pytest.mark.uvloop_too
async def test_entries_in_any_order_are_stored_densely_and_acknowledged_in_theirs() -> None:
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger(explicit_ids=True)
        order = list(range(50))
        random.Random(4).shuffle(order)
        done: list[int] = []
        seen: list[int] = []

        async def append(entry_id: int) -> None:
            assert await writer.append(b"%d" % entry_id, entry_id=entry_id) == entry_id
            done.append(entry_id)

        tasks = []
        for entry_id in order:
            tasks.append(asyncio.create_task(append(entry_id)))
            await some_turns()
            for fake in fakes:
                ids = fake.ids(writer.ledger_id)
                assert ids == list(range(len(ids))), "never a gap on any bookie (P33)"
            seen.append(len(fakes[0].ids(writer.ledger_id)))
        await asyncio.gather(*tasks)
        assert done == list(range(50))
        assert seen != sorted(order), "some were held"
        await writer.close()
        assert await read_all(client, writer.ledger_id) == numbers(0, 50)


async def test_an_id_that_was_given_before_is_refused_and_harms_nothing() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger(explicit_ids=True)
        assert await writer.append(b"0", entry_id=0) == 0
        held = writer.append_nowait(b"2", entry_id=2)
        for entry_id in (0, 2):
            with pytest.raises(DuplicateEntryId) as caught:
                await writer.append(b"again", entry_id=entry_id)
            assert caught.value.outcome == "not_written"
            assert caught.value.entry_id == entry_id
        assert await writer.append(b"1", entry_id=1) == 1
        assert await held == 2
        await writer.close()


async def test_ids_are_named_where_the_ledger_asks_for_it_and_only_there() -> None:
    async with fake_cluster() as (client, _, _):
        explicit = await client.create_ledger(explicit_ids=True)
        counting = await client.create_ledger()
        with pytest.raises(ConfigError, match="entry_id="):
            await explicit.append(b"x")
        with pytest.raises(ConfigError, match="entry_id="):
            await explicit.append_many([b"x"])
        with pytest.raises(ConfigError, match="explicit_ids=True"):
            await counting.append(b"x", entry_id=0)
        await explicit.close()
        await counting.close()


async def test_what_waits_for_a_gap_when_the_writer_ends_was_never_written() -> None:
    async with fake_cluster() as (client, fakes, store):
        writer = await client.create_ledger(explicit_ids=True)
        await writer.append(b"0", entry_id=0)
        held = writer.append_nowait(b"5", entry_id=5)
        await writer.close()
        with pytest.raises(LedgerClosed) as caught:
            await held
        assert caught.value.outcome == "not_written"
        assert store.read_ledger(writer.ledger_id).metadata.last_entry_id == 0
        assert all(5 not in fake.ids(writer.ledger_id) for fake in fakes)
        fenced = await client.create_ledger(explicit_ids=True)
        held = fenced.append_nowait(b"5", entry_id=5)
        for fake in fakes:
            fake.faults.refuse_adds = lambda *_: Status.FENCED
        taken_over(store, fenced.ledger_id)
        with pytest.raises(Error):
            await fenced.append(b"0", entry_id=0)
        with pytest.raises(Error) as ended:
            await held
        assert ended.value.outcome == "not_written"


async def test_an_append_whose_predecessors_never_come_ends() -> None:
    """By default, too; the writer goes on, and the entry waits for its turn."""
    async with fake_cluster(append_timeout=0.2) as (client, fakes, _):
        writer = await client.create_ledger(explicit_ids=True)
        await writer.append(b"0", entry_id=0)
        async with asyncio.timeout(20):
            with pytest.raises(
                QuorumTimeout, match=r"entry 2 waits for entry 1.* append entry 1"
            ) as caught:
                await writer.append(b"2", entry_id=2)
        assert (caught.value.outcome, caught.value.entry_id) == ("not_written", 2)
        assert all(2 not in fake.ids(writer.ledger_id) for fake in fakes)
        assert await writer.append(b"1", entry_id=1) == 1
        assert await writer.append(b"3", entry_id=3) == 3
        await writer.close()
        assert await read_all(client, writer.ledger_id) == [b"0", b"1", b"2", b"3"]


async def test_held_entries_go_on_as_room_comes() -> None:
    async with fake_cluster(entries_in_flight_max=4) as (client, fakes, _):
        writer = await client.create_ledger(explicit_ids=True)
        for fake in fakes:
            fake.faults.swallow_adds = True
        futures = [writer.append_nowait(b"x", entry_id=one) for one in range(8)]
        with pytest.raises(BufferFull):
            writer.append_nowait(b"x", entry_id=8)
        for fake in fakes:
            fake.faults.swallow_adds = False
            fake.cut()
        assert await asyncio.gather(*futures) == list(range(8))
        await writer.close()


# --- deferred sync -----------------------------------------------------------------------------------------------


@pytest.mark.uvloop_too
async def test_deferred_entries_count_only_once_they_are_forced() -> None:
    async with fake_cluster() as (client, _, store):
        writer = await client.create_ledger(deferred_sync=True)
        assert await writer.append_many([b"abc"] * 5) == (0, 4)
        assert writer.last_add_confirmed == -1
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await writer.write_last_add_confirmed() == -1
        assert await reader.last_add_confirmed() == -1
        await writer.force()
        assert writer.last_add_confirmed == 4
        await writer.write_last_add_confirmed()
        assert await reader.last_add_confirmed() == 4
        await writer.append(b"unforced")
        await writer.close()
        metadata = store.read_ledger(writer.ledger_id).metadata
        assert (metadata.last_entry_id, metadata.length) == (4, 15)


async def test_a_force_of_deferred_entries_needs_every_bookie() -> None:
    async with fake_cluster(append_timeout=0.5, replace_after=30) as (client, fakes, store):
        writer = await client.create_ledger(deferred_sync=True)
        await writer.append(b"x")
        away = by_id(fakes, writer.stats().ensemble[0])
        await away.stop()
        await writer.append(b"y")
        with pytest.raises(NotEnoughBookies) as caught:
            await writer.force()
        assert away.bookie_id in caught.value.replicas
        assert writer.last_add_confirmed == -1
        await away.start()

        async def forced() -> bool:
            try:
                await writer.force()
            except NotEnoughBookies:
                return False
            return True

        await wait_until_async(forced, "all are back")
        assert writer.last_add_confirmed == 1
        await writer.close()
        assert store.read_ledger(writer.ledger_id).metadata.last_entry_id == 1


async def test_a_deferred_ledger_ends_rather_than_change_its_bookies() -> None:
    """P32: the acks of those that stay cover nothing that was not forced."""
    async with fake_cluster(4) as (client, fakes, store):
        writer = await client.create_ledger(deferred_sync=True)
        await writer.append(b"x")
        await writer.force()
        for name in writer.stats().ensemble[:2]:
            by_id(fakes, name).faults.refuse_adds = lambda *_: Status.READ_ONLY
        with pytest.raises(Error):
            await writer.append(b"y")
        assert writer.stats().ensemble_changes == 0
        with pytest.raises(Error):
            await writer.close()
        assert store.read_ledger(writer.ledger_id).metadata.last_entry_id == 0
