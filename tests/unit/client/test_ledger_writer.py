"""The writer against fake bookies: order, quorums, failures and their outcomes, bounds, close."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import fastbk
from fastbk.client import LedgerWriter
from fastbk.client.connection import SEQUENCE_MAX, SLOT_MAX
from fastbk.client.ledger_writer import ReorderBuffer
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    DuplicateEntryId,
    Error,
    LedgerClosed,
    LedgerFenced,
    MetadataOnHold,
    NoSuchLedger,
    NotEnoughBookies,
    QuorumTimeout,
    RecordTooLarge,
    ReplicationConflict,
)
from fastbk.meta.rollback import new_hold, place_hold
from fastbk.model.entry import DigestType
from fastbk.model.ids import ID_MAX
from fastbk.model.ledger import LedgerState
from fastbk.native.client_codec import LedgerCodec
from fastbk.wire.statuses import Status
from tests.fixtures.entries import parse_entry
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import (
    by_id,
    fake_cluster,
    numbers,
    one_ledger,
    read_all,
    some_turns,
    taken_over,
)

if TYPE_CHECKING:
    from fastbk.meta.sqlite.store import MemoryStore
    from tests.fixtures.fake_bookie import FakeBookie


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
    async with one_ledger(closes=True) as (_, _, _, writer):
        seen: list[int] = []
        for _ in range(300):
            writer.append_nowait(b"x").add_done_callback(
                lambda future: seen.append(future.result())
            )
        await writer.flush()
        await asyncio.sleep(0)
        assert seen == list(range(300))


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
    async with one_ledger(laggard_wait=0.01, closes=True) as (_, fakes, _, writer):
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


async def test_a_bookie_that_comes_back_gets_what_it_missed() -> None:
    async with one_ledger() as (_, fakes, _, writer):
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
    async with one_ledger(held_bytes_max=20_000) as (client, fakes, _, writer):
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
    async with one_ledger(entries_in_flight_max=10, closes=True) as (_, fakes, _, writer):
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


async def test_bytes_in_flight_are_bounded_and_one_large_entry_goes_alone() -> None:
    async with one_ledger(bytes_in_flight_max=1000, closes=True) as (_, _, _, writer):
        future = writer.append_nowait(b"x" * 5000)
        with pytest.raises(BufferFull):
            writer.append_nowait(b"")
        assert await future == 0
        writer.append_nowait(b"x" * 400)
        writer.append_nowait(b"x" * 400)
        with pytest.raises(BufferFull):
            writer.append_nowait(b"x" * 400)


async def test_append_many_beyond_the_bounds_keeps_its_ids_together() -> None:
    async with one_ledger(entries_in_flight_max=20, closes=True) as (_, fakes, _, writer):

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


@pytest.mark.slow
async def test_too_large_an_entry_is_refused_before_it_is_sent() -> None:
    async with one_ledger(closes=True) as (_, _, _, writer):
        with pytest.raises(RecordTooLarge, match="at most"):
            await writer.append(bytes(6 * 1024 * 1024))
        with pytest.raises(RecordTooLarge, match="at most"):
            await writer.append_many([b"x", bytes(6 * 1024 * 1024)])
        with pytest.raises(ConfigError, match="at least one"):
            await writer.append_many([])
        assert await writer.append(bytes(5 * 1024 * 1024)) == 0


async def test_closing_twice_is_fine_and_appending_afterwards_is_not() -> None:
    async with one_ledger() as (_, _, _, writer):
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
    async with one_ledger() as (client, _, _, writer):
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
    async with one_ledger() as (client, fakes, store, writer):
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
    async with one_ledger(closes=True) as (_, _, _, writer):
        await writer.append(b"x")

        def child() -> int:
            with pytest.raises(ClientClosed, match="fork"):
                writer.append_nowait(b"y")
            return 42

        assert exit_code_of_fork(child) == 42
        assert await writer.append(b"y") == 1


async def test_slots_come_around_and_pass_over_those_in_use() -> None:
    async with one_ledger() as (client, _, _, writer):
        (first,) = client.pool.slots
        client.pool._slot = SLOT_MAX - 1
        last = await client.create_ledger()
        again = await client.create_ledger()
        assert sorted(client.pool.slots) == [first, first + 1, SLOT_MAX]
        for one in (writer, last, again):
            assert await one.append(b"x") == 0


# The writer when bookies refuse or do not answer: what ends it, what is known then. INV-C2.


NO_LEDGER, FENCED, CONFLICT, READ_ONLY, TOO_MANY = 10, 20, 22, 24, 25


@pytest.mark.parametrize(
    ("status", "kind"), [(FENCED, LedgerFenced), (CONFLICT, ReplicationConflict)]
)
async def test_a_fatal_refusal_ends_the_writer_and_all_behind_it(
    status: int, kind: type[Error]
) -> None:
    async with one_ledger() as (_, fakes, store, writer):
        await writer.append_many([b"x"] * 5)
        if status == FENCED:
            taken_over(store, writer.ledger_id)
        for fake in fakes:
            fake.faults.refuse_adds = lambda _, entry_id: status if entry_id == 7 else 0
        futures = [writer.append_nowait(b"y") for _ in range(10)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        good = [one for one in results if isinstance(one, int)]
        assert good in ([5, 6], [5], [])
        for one in results[len(good) :]:
            assert isinstance(one, kind)
            assert one.outcome in ("unknown", "not_written")
            assert one.ledger_id == writer.ledger_id
            assert set(one.replicas) <= {"b0", "b1", "b2"}
        with pytest.raises(kind):
            await writer.append(b"z")
        with pytest.raises(kind):
            await writer.append_many([b"z"])
        with pytest.raises(kind):
            await writer.flush()
        with pytest.raises(kind):
            await writer.close()
        await writer.close()
        state = store.read_ledger(writer.ledger_id).metadata
        if kind is LedgerFenced:
            assert state.state is LedgerState.IN_RECOVERY
        else:
            assert state.last_entry_id == 4 + len(good)


async def test_busy_bookies_are_tried_again() -> None:
    async with one_ledger() as (_, fakes, _, writer):
        refusals = [0]

        def busy(_: int, entry_id: int) -> int:
            refusals[0] += 1
            return TOO_MANY if entry_id % 3 == 1 and refusals[0] < 60 else 0

        for fake in fakes:
            fake.faults.refuse_adds = busy
        assert await writer.append_many([b"x"] * 30) == (0, 29)
        await writer.close()
        assert all(fake.ids(writer.ledger_id) == list(range(30)) for fake in fakes)


async def test_a_timeout_of_one_append_leaves_it_in_the_pipe() -> None:
    async with one_ledger(closes=True) as (_, fakes, _, writer):
        for fake in fakes:
            fake.faults.swallow_adds = True
        with pytest.raises(QuorumTimeout) as caught:
            await writer.append(b"slow", timeout=0.02)
        assert caught.value.outcome == "unknown"
        for fake in fakes:
            fake.faults.swallow_adds = False
            fake.cut()
        assert await writer.append(b"next") == 1
        assert sum(fake.ids(writer.ledger_id)[:2] == [0, 1] for fake in fakes) >= 2


async def test_the_default_deadline_ends_the_writer() -> None:
    async with one_ledger(append_timeout=0.1) as (client, fakes, _, writer):
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.swallow_adds = True
        first, second = writer.append_nowait(b"a"), writer.append_nowait(b"b")
        with pytest.raises(QuorumTimeout) as caught:
            await first
        assert caught.value.entry_id == 1
        assert caught.value.outcome == "unknown"
        with pytest.raises(QuorumTimeout):
            await second
        with pytest.raises(QuorumTimeout):
            await writer.close()
        assert (await client.ledger_info(writer.ledger_id)).metadata.last_entry_id == 0


@pytest.mark.parametrize("start", [SEQUENCE_MAX - 3, 7 * SEQUENCE_MAX - 1, ID_MAX - 40])
async def test_entry_ids_go_on_where_request_ids_wrap(start: int) -> None:
    """INV-Q1: adds, resends and answers mean the right entries for every id up to 2^63-1."""
    async with one_ledger() as (client, fakes, _, writer):
        pipe, adds = writer._pipe, writer._adds
        # As if all entries before had been written.
        pipe.next_entry_id = pipe._released = adds.next_entry_id = adds.head = start
        adds._frontier = [start] * 3
        assert await writer.append(b"first") == start
        fakes[1].faults.swallow_adds = True
        futures = [writer.append_nowait(b"%d" % one) for one in range(20)]
        assert [await one for one in futures] == list(range(start + 1, start + 21))
        fakes[1].faults.swallow_adds = False
        fakes[1].cut()
        assert await writer.append(b"last") == start + 21
        expected = list(range(start, start + 22))
        await wait_until_async(
            lambda: all(fake.ids(writer.ledger_id) == expected for fake in fakes), "all copies"
        )
        await wait_until_async(lambda: not writer.stats().is_under_replicated, "all acks")
        await writer.close()
        assert (await client.ledger_info(writer.ledger_id)).metadata.last_entry_id == start + 21


async def test_a_ledger_ends_with_the_highest_id() -> None:
    async with one_ledger() as (_, _, _, writer):
        pipe, adds = writer._pipe, writer._adds
        pipe.next_entry_id = pipe._released = adds.next_entry_id = adds.head = ID_MAX
        adds._frontier = [ID_MAX] * 3
        assert await writer.append(b"last") == ID_MAX
        with pytest.raises(Error, match="2\\^63-1") as caught:
            await writer.append(b"one more")
        assert caught.value.outcome == "not_written"


async def test_what_could_not_be_encoded_is_never_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-C2: else the next entry would take its id, and its ack."""
    async with one_ledger() as (_, fakes, _, writer):
        assert await writer.append(b"zero") == 0

        def out_of_memory(*_: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(LedgerCodec, "encode_adds", out_of_memory)
            futures = [writer.append_nowait(b"lost")]
        with pytest.raises(Error, match="MemoryError"):
            await writer.append(b"next")
        async with asyncio.timeout(5):
            (said,) = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(said, Error)
        assert said.outcome == "not_written"
        assert all(fake.ids(writer.ledger_id) in ([], [0]) for fake in fakes)


async def test_a_bookie_that_refuses_for_long_is_probed_and_gets_the_rest_once_it_takes_adds() -> (
    None
):
    async with one_ledger(backoff_max=0.02, append_timeout=30.0, closes=True) as (
        _,
        fakes,
        _,
        writer,
    ):
        await writer.append(b"x")
        refused: list[int] = []

        def refuse(_: int, entry_id: int) -> int:
            refused.append(entry_id)
            return READ_ONLY

        fakes[0].faults.refuse_adds = refuse
        for _ in range(20):
            await writer.append_many([b"y"] * 50)
        await wait_until_async(lambda: len(refused) >= 60, "it was probed ten times")
        # One entry a retry, but for the batch that it was sent before it refused anything.
        assert set(refused) <= set(range(1, 51))
        assert set(refused[50:]) == {1}
        fakes[0].faults.refuse_adds = None
        # Without another add.
        await wait_until_async(lambda: not writer.stats().is_under_replicated, "it got the rest")
        assert fakes[0].ids(writer.ledger_id) == list(range(1001))


async def test_a_flush_that_fails_says_what_became_of_what_it_waited_for() -> None:
    async with one_ledger(3, append_timeout=0.2, laggard_wait=0.01) as (_, fakes, _, writer):
        for fake in fakes:
            fake.faults.swallow_adds = True
        pending = [writer.append_nowait(b"x") for _ in range(3)]
        with pytest.raises(QuorumTimeout) as flushed:
            await writer.flush(timeout=10)
        assert flushed.value.outcome == "unknown"
        assert flushed.value.entry_id == 2
        assert {str(one.exception()) for one in pending} == {str(flushed.value)}
        with pytest.raises(QuorumTimeout):
            await writer.close()


# --- a loop that stands still for longer than every timeout -----------------------------------------------------------


def stand_still(for_s: float) -> None:
    """Let time pass without a turn of the running loop."""
    end_s = time.monotonic() + for_s
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(left_s)


@pytest.mark.slow
@pytest.mark.uvloop_too
async def test_a_loop_that_stood_still_hears_its_sockets_first() -> None:
    """The bookies, in a thread of their own, have answered meanwhile: that is not silence."""
    with sync_cluster(4) as (_, _, store):
        async with fastbk.connect(store, append_timeout=0.3, bookie_timeout=0.3) as client:
            writer = await client.create_ledger()
            await writer.append(b"x")
            for _ in range(2):
                future = writer.append_nowait(b"y")
                await asyncio.sleep(0)
                stand_still(0.6)
                await future
            assert writer.stats().ensemble_changes == 0
            await writer.close()


@pytest.mark.slow
async def test_a_bookie_that_stays_silent_meanwhile_is_found_all_the_same() -> None:
    async with one_ledger(4, bookie_timeout=0.3, closes=True) as (_, fakes, _, writer):
        silent = by_id(fakes, writer.stats().ensemble[0])
        silent.faults.swallow_adds = True
        await writer.append(b"x")
        stand_still(0.6)
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        assert silent.bookie_id not in writer.stats().ensemble


async def test_the_writer_of_a_deleted_ledger_is_told_by_its_next_append() -> None:
    """INV-S19: the deletion fences."""
    async with one_ledger() as (client, fakes, _, writer):
        await writer.append(b"x")
        await client.delete_ledger(writer.ledger_id)
        assert all(fake.ledgers[writer.ledger_id].fenced for fake in fakes)
        begun_s = time.monotonic()
        with pytest.raises(NoSuchLedger, match="was deleted"):
            await writer.append(b"y")
        assert time.monotonic() - begun_s < 1.0
        with pytest.raises(NoSuchLedger):
            await writer.close()


async def test_bookies_that_have_deleted_a_ledger_end_its_writer_at_once() -> None:
    """Also where somebody has deleted it who fences nobody."""
    async with one_ledger() as (_, fakes, store, writer):
        await writer.append(b"x")
        store.delete_ledger(writer.ledger_id)
        for fake in fakes:
            fake.faults.refuse_adds = lambda _, __: NO_LEDGER
        begun_s = time.monotonic()
        with pytest.raises(NoSuchLedger, match="was deleted"):
            await writer.append(b"y")
        assert time.monotonic() - begun_s < 1.0


async def test_a_ledger_whose_bookies_are_silent_is_deleted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastbk.client.client.FENCE_S", 0.05)
    async with one_ledger() as (client, fakes, store, writer):
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.silent = True
        await client.delete_ledger(writer.ledger_id)
        assert store.read_ledgers([writer.ledger_id]) == [None]


async def test_one_bookie_that_says_deleted_is_replaced_while_metadata_says_otherwise() -> None:
    """INV-E5: its word alone ends no writer."""
    async with one_ledger(4, closes=True) as (_, fakes, _, writer):
        await writer.append(b"x")
        liar = by_id(fakes, writer.metadata.fragments[-1].ensemble[0])
        liar.faults.refuse_adds = lambda _, __: NO_LEDGER
        await writer.append(b"y")
        await wait_until_async(
            lambda: liar.bookie_id not in writer.metadata.fragments[-1].ensemble, "it was replaced"
        )
        await writer.append(b"z")


async def test_a_deletion_that_is_refused_fences_nobody() -> None:
    """INV-S19"""
    async with one_ledger() as (client, fakes, store, writer):
        await writer.append(b"x")
        place_hold(store, new_hold("rolled back"))
        with pytest.raises(MetadataOnHold):
            await client.delete_ledger(writer.ledger_id)
        assert not any(fake.ledgers[writer.ledger_id].fenced for fake in fakes)
        assert await writer.append(b"y") == 1


# Entries whose ids the caller names; deferred sync; what readers see then. INV-C1.


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
