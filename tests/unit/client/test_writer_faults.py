"""The writer when bookies refuse or do not answer: what ends it, what is known then. INV-C2."""

from __future__ import annotations

import asyncio
import time

import pytest

import fastbk
from fastbk.client.connection import SEQUENCE_MAX
from fastbk.errors import (
    Error,
    LedgerFenced,
    MetadataOnHold,
    NoSuchLedger,
    QuorumTimeout,
    ReplicationConflict,
)
from fastbk.meta.rollback import new_hold, place_hold
from fastbk.model.ids import ID_MAX
from fastbk.model.ledger import LedgerState
from fastbk.native.client_codec import LedgerCodec
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import by_id, fake_cluster, taken_over

NO_LEDGER, FENCED, CONFLICT, READ_ONLY, TOO_MANY = 10, 20, 22, 24, 25


@pytest.mark.parametrize(
    ("status", "kind"), [(FENCED, LedgerFenced), (CONFLICT, ReplicationConflict)]
)
async def test_a_fatal_refusal_ends_the_writer_and_all_behind_it(
    status: int, kind: type[Error]
) -> None:
    async with fake_cluster() as (client, fakes, store):
        writer = await client.create_ledger()
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
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
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
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
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
        await writer.close()


async def test_the_default_deadline_ends_the_writer() -> None:
    async with fake_cluster(append_timeout=0.1) as (client, fakes, _):
        writer = await client.create_ledger()
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
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
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
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
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
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
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
    async with fake_cluster(backoff_max=0.02, append_timeout=30.0) as (client, fakes, _):
        writer = await client.create_ledger()
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
        await writer.close()


async def test_a_flush_that_fails_says_what_became_of_what_it_waited_for() -> None:
    async with fake_cluster(3, append_timeout=0.2, laggard_wait=0.01) as (client, fakes, _):
        writer = await client.create_ledger()
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
    async with fake_cluster(4, bookie_timeout=0.3) as (client, fakes, _):
        writer = await client.create_ledger()
        silent = by_id(fakes, writer.stats().ensemble[0])
        silent.faults.swallow_adds = True
        await writer.append(b"x")
        stand_still(0.6)
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        assert silent.bookie_id not in writer.stats().ensemble
        await writer.close()


async def test_the_writer_of_a_deleted_ledger_is_told_by_its_next_append() -> None:
    """INV-S19: the deletion fences."""
    async with fake_cluster() as (client, fakes, _):
        writer = await client.create_ledger()
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
    async with fake_cluster() as (client, fakes, store):
        writer = await client.create_ledger()
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
    async with fake_cluster() as (client, fakes, store):
        writer = await client.create_ledger()
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.silent = True
        await client.delete_ledger(writer.ledger_id)
        assert store.read_ledgers([writer.ledger_id]) == [None]


async def test_one_bookie_that_says_deleted_is_replaced_while_metadata_says_otherwise() -> None:
    """INV-E5: its word alone ends no writer."""
    async with fake_cluster(4) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        liar = by_id(fakes, writer.metadata.fragments[-1].ensemble[0])
        liar.faults.refuse_adds = lambda _, __: NO_LEDGER
        await writer.append(b"y")
        await wait_until_async(
            lambda: liar.bookie_id not in writer.metadata.fragments[-1].ensemble, "it was replaced"
        )
        await writer.append(b"z")
        await writer.close()


async def test_a_deletion_that_is_refused_fences_nobody() -> None:
    """INV-S19"""
    async with fake_cluster() as (client, fakes, store):
        writer = await client.create_ledger()
        await writer.append(b"x")
        place_hold(store, new_hold("rolled back"))
        with pytest.raises(MetadataOnHold):
            await client.delete_ledger(writer.ledger_id)
        assert not any(fake.ledgers[writer.ledger_id].fenced for fake in fakes)
        assert await writer.append(b"y") == 1
