"""The writer against fake bookies: order, quorums, failures and their outcomes, bounds, close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from fastbk.client import LedgerWriter
from fastbk.client.request_ids import SLOT_MAX
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    Error,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    RecordTooLarge,
)
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.entry import DigestType
from fastbk.model.ledger import LedgerState
from tests.fixtures.entries import parse_entry
from tests.fixtures.fake_bookie import FakeBookie
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import (
    by_id,
    fake_cluster,
    numbers,
    read_all,
    some_turns,
    taken_over,
)

FENCED = 20


@pytest.mark.uvloop_too
async def test_appends_are_acknowledged_in_order_and_stored_everywhere() -> None:
    async with fake_cluster() as (client, fakes, _):
        async with await client.create_ledger() as writer:
            assert await writer.append(b"zero") == 0
            assert await writer.append_many([b"one", bytearray(b"two"), memoryview(b"three")]) == (
                1,
                3,
            )
            futures = [writer.append_nowait(b"%d" % one) for one in range(4, 500)]
            assert await asyncio.gather(*futures) == list(range(4, 500))
            assert writer.last_add_confirmed == 499
            await writer.force()
        info = await client.ledger_info(writer.ledger_id)
        assert info.metadata.state is LedgerState.CLOSED
        assert info.metadata.last_entry_id == 499
        assert info.metadata.length == writer.stats().bytes
        for fake in fakes:
            assert fake.ids(writer.ledger_id) == list(range(500))
            entries = fake.ledgers[writer.ledger_id].entries
            length = 0
            for entry_id in range(500):
                found = parse_entry(entries[entry_id], DigestType.CRC32C)
                length += len(found.data)
                assert found.length == length
                assert found.last_add_confirmed < entry_id


async def test_done_callbacks_run_in_entry_order() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        seen: list[int] = []
        for _ in range(300):
            writer.append_nowait(b"x").add_done_callback(
                lambda future: seen.append(future.result())
            )
        await writer.flush()
        await asyncio.sleep(0)
        assert seen == list(range(300))
        await writer.close()


@pytest.mark.parametrize(
    ("ensemble", "write_quorum", "ack_quorum"), [(3, 2, 2), (4, 2, 2), (5, 3, 2)]
)
async def test_striping_stores_each_entry_on_its_write_set(
    ensemble: int, write_quorum: int, ack_quorum: int
) -> None:
    async with fake_cluster(ensemble) as (client, fakes, _):
        writer = await client.create_ledger(ensemble, write_quorum, ack_quorum)
        await writer.append_many(numbers(0, 100))
        await writer.close()
        names = writer.metadata.fragments[0].ensemble
        for index, name in enumerate(names):
            expected = [one for one in range(100) if (index - one) % ensemble < write_quorum]
            assert by_id(fakes, name).ids(writer.ledger_id) == expected
        assert await read_all(client, writer.ledger_id) == numbers(0, 100)


async def test_one_silent_bookie_of_three_costs_nothing_and_is_reported() -> None:
    async with fake_cluster(laggard_wait=0.01) as (client, fakes, _):
        writer = await client.create_ledger()
        fakes[1].faults.swallow_adds = True
        await writer.append_many([b"x"] * 10, timeout=2)
        assert writer.stats().lagging["b1"] == 10
        assert writer.stats().is_under_replicated
        fakes[1].faults.swallow_adds = False
        fakes[1].cut()
        await wait_until_async(lambda: fakes[1].ids(writer.ledger_id) == list(range(10)), "resent")
        await wait_until_async(lambda: not writer.stats().is_under_replicated, "acknowledged")
        assert writer.stats().entries_resent == 10
        assert writer.stats().held_bytes == 0
        await writer.close()


async def test_a_bookie_that_comes_back_gets_what_it_missed() -> None:
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        await fakes[0].stop()
        await writer.append_many([b"y"] * 100)
        assert "b0" in writer.stats().trouble
        await fakes[0].start()
        await wait_until_async(lambda: len(fakes[0].ids(writer.ledger_id)) == 101, "caught up")
        # A writer that is closed before the last answers came counts what they would have told.
        await wait_until_async(lambda: "b0" not in writer.stats().trouble, "and answered")
        await writer.close()
        assert writer.stats().under_replicated["b0"] == 0


async def test_a_lone_bookie_may_restart_under_a_writer() -> None:
    async with fake_cluster(1) as (client, fakes, _):
        writer = await client.create_ledger(1, 1)
        await writer.append(b"x")
        await fakes[0].stop()
        future = writer.append_nowait(b"y")
        await asyncio.sleep(0)
        assert not future.done()
        await fakes[0].start()
        assert await future == 1
        await writer.close()


async def test_memory_for_a_missing_bookie_is_bounded() -> None:
    async with fake_cluster(held_bytes_max=20_000) as (client, fakes, _):
        writer = await client.create_ledger()
        await fakes[2].stop()
        for _ in range(100):
            await writer.append(b"x" * 1000)
        stats = writer.stats()
        assert stats.held_bytes <= 20_000
        assert stats.under_replicated["b2"] >= 80
        await fakes[2].start()
        left = 100 - stats.under_replicated["b2"]
        await wait_until_async(lambda: len(fakes[2].ids(writer.ledger_id)) == left, "the rest")
        await writer.close()
        assert client.stats()["under_replicated"] == stats.under_replicated["b2"]


async def test_a_full_buffer_says_so_and_append_waits() -> None:
    async with fake_cluster(entries_in_flight_max=10) as (client, fakes, _):
        writer = await client.create_ledger()
        for fake in fakes:
            fake.faults.swallow_adds = True
        futures = [writer.append_nowait(b"x") for _ in range(10)]
        with pytest.raises(BufferFull) as caught:
            writer.append_nowait(b"x")
        assert caught.value.retryable
        assert caught.value.outcome == "not_written"
        waiting = asyncio.ensure_future(writer.append(b"y"))
        ready = asyncio.ensure_future(writer.ready())
        await some_turns()
        assert not waiting.done()
        assert not ready.done()
        with pytest.raises(BufferFull):
            writer.append_nowait(b"x")
        for fake in fakes:
            fake.faults.swallow_adds = False
            fake.cut()
        assert await asyncio.gather(*futures) == list(range(10))
        assert await waiting == 10
        await ready
        await writer.close()


async def test_bytes_in_flight_are_bounded_and_one_large_entry_goes_alone() -> None:
    async with fake_cluster(bytes_in_flight_max=1000) as (client, _, _):
        writer = await client.create_ledger()
        future = writer.append_nowait(b"x" * 5000)
        with pytest.raises(BufferFull):
            writer.append_nowait(b"")
        assert await future == 0
        writer.append_nowait(b"x" * 400)
        writer.append_nowait(b"x" * 400)
        with pytest.raises(BufferFull):
            writer.append_nowait(b"x" * 400)
        await writer.close()


async def test_append_many_beyond_the_bounds_keeps_its_ids_together() -> None:
    async with fake_cluster(entries_in_flight_max=20) as (client, fakes, _):
        writer = await client.create_ledger()

        async def many(name: bytes) -> None:
            first, last = await writer.append_many([name] * 100)
            assert last - first == 99
            entries = fakes[0].ledgers[writer.ledger_id].entries
            for fake in fakes:
                await wait_until_async(
                    lambda fake=fake: last in fake.ledgers[writer.ledger_id].entries, ""
                )
            assert {entries[one][36:] for one in range(first, last + 1)} == {name}

        async def one(count: int) -> None:
            for _ in range(count):
                await writer.append(b"single")

        await asyncio.gather(many(b"a"), one(30), many(b"b"), one(30))
        assert writer.last_add_confirmed == 259
        await writer.close()


@pytest.mark.slow
async def test_too_large_an_entry_is_refused_before_it_is_sent() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        with pytest.raises(RecordTooLarge, match="at most"):
            await writer.append(bytes(6 * 1024 * 1024))
        with pytest.raises(RecordTooLarge, match="at most"):
            await writer.append_many([b"x", bytes(6 * 1024 * 1024)])
        with pytest.raises(ConfigError, match="at least one"):
            await writer.append_many([])
        assert await writer.append(bytes(5 * 1024 * 1024)) == 0
        await writer.close()


async def test_closing_twice_is_fine_and_appending_afterwards_is_not() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        futures = [writer.append_nowait(b"x") for _ in range(10)]
        await writer.close()
        await writer.close()
        assert [future.result() for future in futures] == list(range(10))
        with pytest.raises(LedgerClosed):
            writer.append_nowait(b"x")
        with pytest.raises(LedgerClosed):
            await writer.append(b"x")
        with pytest.raises(LedgerClosed):
            await writer.force()
        with pytest.raises(LedgerClosed):
            await writer.write_last_add_confirmed()


async def test_closing_a_ledger_that_was_deleted_says_so_once() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        await client.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedger):
            await writer.close()
        await writer.close()
        assert not client.pool.runs and not client.pool.slots


async def test_an_exception_inside_async_with_still_closes_and_is_not_hidden() -> None:
    async with fake_cluster() as (client, fakes, store):
        with pytest.raises(KeyError):
            async with await client.create_ledger() as writer:
                await writer.append(b"x")
                raise KeyError("mine")
        assert store.read_ledger(writer.ledger_id).metadata.last_entry_id == 0
        with pytest.raises(KeyError):
            async with await client.create_ledger() as writer:
                taken_over(store, writer.ledger_id)
                for fake in fakes:
                    fake.faults.refuse_adds = lambda *_: FENCED
                with pytest.raises(LedgerFenced):
                    await writer.append(b"x")
                raise KeyError("mine")


Tell = Callable[[LedgerWriter], Awaitable[object]]


async def _told_by_nowait(writer: LedgerWriter) -> object:
    with suppress(LedgerFenced, NoSuchLedger):
        await writer.append_nowait(b"x")
    return writer.append_nowait(b"x")


async def _told_by_flush(writer: LedgerWriter) -> object:
    writer.append_nowait(b"x").add_done_callback(lambda future: future.exception())
    return await writer.flush()


async def _told_by_ready(writer: LedgerWriter) -> object:
    with suppress(LedgerFenced, NoSuchLedger):
        await writer.append_nowait(b"x")
    return await writer.ready()


async def _told_by_lac(writer: LedgerWriter) -> object:
    with suppress(LedgerFenced, NoSuchLedger):
        await writer.append_nowait(b"x")
    return await writer.write_last_add_confirmed()


def _taken_away(
    store: MemoryStore, fakes: list[FakeBookie], ledger_id: int, *, is_deleted: bool
) -> type[Error]:
    """Another client has begun to recover the ledger, or has deleted it; return what its writer is told."""
    if is_deleted:
        store.delete_ledger(ledger_id, store.read_ledger(ledger_id).version)
    else:
        taken_over(store, ledger_id)
    for fake in fakes:
        fake.faults.refuse_adds = lambda *_: FENCED
    return NoSuchLedger if is_deleted else LedgerFenced


@pytest.mark.parametrize("is_deleted", [False, True], ids=["fenced", "deleted"])
@pytest.mark.parametrize(
    "tell",
    [
        lambda writer: writer.append(b"x"),
        lambda writer: writer.append(b"x", timeout=10),
        lambda writer: writer.append_many([b"x", b"y"]),
        _told_by_nowait,
        _told_by_flush,
        _told_by_ready,
        _told_by_lac,
    ],
)
async def test_the_end_of_a_block_says_nothing_that_was_said_before(
    tell: Tell, is_deleted: bool
) -> None:
    async with fake_cluster() as (client, fakes, store):
        async with await client.create_ledger() as writer:
            await writer.append(b"kept")
            error = _taken_away(store, fakes, writer.ledger_id, is_deleted=is_deleted)
            with pytest.raises(error):
                await tell(writer)
        other = await client.create_ledger()
        error = _taken_away(store, fakes, other.ledger_id, is_deleted=is_deleted)
        with pytest.raises(error):
            await tell(other)
        with pytest.raises(error):
            await other.close()  # who calls this asks for it


@pytest.mark.parametrize("is_deleted", [False, True], ids=["fenced", "deleted"])
async def test_the_end_of_a_block_says_what_nobody_was_told(is_deleted: bool) -> None:
    async with fake_cluster() as (client, fakes, store):
        with pytest.raises(NoSuchLedger if is_deleted else LedgerFenced):
            async with await client.create_ledger() as writer:
                _taken_away(store, fakes, writer.ledger_id, is_deleted=is_deleted)
                lost = writer.append_nowait(b"lost")
        assert lost.exception() is not None
        for fake in fakes:
            fake.faults.refuse_adds = None
        with pytest.raises(KeyError) as mine:
            async with await client.create_ledger() as writer:
                _taken_away(store, fakes, writer.ledger_id, is_deleted=is_deleted)
                lost = writer.append_nowait(b"lost")
                raise KeyError("mine")
        assert lost.exception() is not None
        (note,) = mine.value.__notes__
        assert note.startswith("Closing failed, too: ") and f"ledger {writer.ledger_id}" in note


async def test_closing_the_client_fails_what_its_writers_still_wait_for() -> None:
    async with fake_cluster() as (client, fakes, store):
        writer = await client.create_ledger()
        for fake in fakes:
            fake.faults.swallow_adds = True
        future = writer.append_nowait(b"x")
        await client.close()
        with pytest.raises(ClientClosed) as caught:
            await future
        assert caught.value.outcome == "unknown"
        with pytest.raises(ClientClosed):
            await writer.append(b"x")
        with pytest.raises(ClientClosed):
            await client.create_ledger()
        await client.close()
        assert not store.read_ledger(writer.ledger_id).metadata.is_closed


async def test_a_forked_child_is_told_to_make_its_own_client() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        await writer.append(b"x")

        def child() -> int:
            with pytest.raises(ClientClosed, match="fork"):
                writer.append_nowait(b"y")
            return 42

        assert exit_code_of_fork(child) == 42
        assert await writer.append(b"y") == 1
        await writer.close()


async def test_slots_come_around_and_pass_over_those_in_use() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        (first,) = client.pool.slots
        client.pool._slot = SLOT_MAX - 1
        last = await client.create_ledger()
        again = await client.create_ledger()
        assert sorted(client.pool.slots) == [first, first + 1, SLOT_MAX]
        for one in (writer, last, again):
            assert await one.append(b"x") == 0
