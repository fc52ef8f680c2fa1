"""AutoRecovery on real bookies: lost copies come back without an operator, and not before their delay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import fastbk
from fastbk.admin.cluster import under_replicated
from fastbk.autorecovery.auditor import AuditorOptions
from fastbk.autorecovery.healer import Healer
from fastbk.autorecovery.state import Settings
from fastbk.autorecovery.worker import WorkerOptions
from fastbk.client import Client
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.registrations import until_down
from tests.fixtures.wait import wait_until_async

pytestmark = pytest.mark.waits

ENTRIES = 100
FAST = AuditorOptions(
    bookie_interval_s=0.5, verify_interval_s=0.5, cycle_interval_s=2.0, confirm_after_s=1.0
)
WORKER = WorkerOptions(refresh_interval_s=0.5, grace_s=2.0)


def data_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d/" % (ledger_id, entry_id) * (entry_id % 7 + 1)


async def fill(client: Client, ensemble: int = 3, write_quorum: int = 2) -> int:
    async with await client.create_ledger(ensemble, write_quorum, min(2, write_quorum)) as writer:
        await writer.append_many([data_of(writer.ledger_id, one) for one in range(ENTRIES)])
    return writer.ledger_id


async def check(client: Client, ledger_id: int) -> None:
    reader = await client.open_ledger(ledger_id, recovery=False)
    entries = [bytes(one.data) async for one in reader.read()]
    assert entries == [data_of(ledger_id, one) for one in range(ENTRIES)]


@asynccontextmanager
async def healing(client: Client, name: str) -> AsyncIterator[Healer]:
    healer, stop = Healer(client, name, FAST, WORKER), asyncio.Event()
    task = asyncio.create_task(healer.run(stop))
    try:
        yield healer
    finally:
        stop.set()
        await task


async def misses_nothing(client: Client) -> bool:
    return not [one async for one in under_replicated(client)]


async def set_delay(client: Client, seconds: int) -> None:
    await client.call_store(lambda store: store.coordination.set_lost_bookie_delay(seconds))


async def until(condition: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    await wait_until_async(condition, what, deadline_s)


async def test_after_a_loss_copies_come_back_open_ledgers_close_and_what_has_no_source_is_parked() -> (
    None
):
    """Not before the delay, and what cannot be healed blocks nobody."""
    async with LocalCluster(4) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        whole = [await fill(client) for _ in range(10)]
        single = [await fill(client, 4, 1) for _ in range(4)]
        left = await _left_open(cluster.metadata_uri, "bookie-1")
        await set_delay(client, 4)
        async with healing(client, "healer-1") as healer:
            await until(lambda: healer.auditor, "it is elected")
            await cluster.kill_async(0)
            await until_down(client, "bookie-1")
            await until(lambda: healer.worker.counts.repaired, "a ledger is repaired")
            audit = await healer.state.audit.read()
            code, answer, _ = await Cli(cluster.metadata_uri).answer_async(
                "cluster", "under-replicated"
            )
            # All ledgers that can be may be repaired by now.
            assert (code, answer["known"]["lost_bookies"]) == (
                int(bool(answer["missing"])),
                {"bookie-1": 0},
            )
            assert audit.due == ("bookie-1",)

            async def is_marked() -> bool:
                return (await healer.state.lost_bookies.read()).lost["bookie-1"].is_marked

            await until(is_marked, "the pass that marks it has ended")
            lost = (await healer.state.lost_bookies.read()).lost["bookie-1"]
            marks = [one async for page in client.marks.pages() for one in page]
            assert marks
            assert all(
                each.marked_ms - lost.lost_ms >= 4000 for one in marks for each in one.missing
            )
            await until(lambda: healer.worker.parked, "a ledger is parked")
            for ledger_id in (*whole, left):
                await until(lambda: is_without(client, ledger_id, "bookie-1"), "it is healed")  # noqa: B023
                await check(client, ledger_id)
            await until(
                lambda: healer.worker.counts.ledgers_closed, "the ledger without a writer is closed"
            )
            assert (await client.ledger_info(left)).metadata.is_closed
            parked = healer.worker.report().parked
            assert {one.ledger_id for one in parked} <= set(single)
            assert all("write quorum is 1" in one.reason for one in parked)
            # It comes back, and with it the only copies.
            await cluster.start_bookie_async(0)
            await until(lambda: not healer.worker.parked, "nothing is parked")
            await until(lambda: misses_nothing(client), "nothing misses copies")
            for ledger_id in (*whole, *single, left):
                await check(client, ledger_id)
            assert await client.call_store(lambda store: list(store.coordination.locks())) == []


async def _left_open(uri: str, member: str) -> int:
    """Write a ledger with a copy on that bookie whose writer goes without closing it."""
    async with fastbk.connect(uri) as client:
        while True:
            writer = await client.create_ledger(3, 3, 2)
            if member in writer.metadata.fragments[0].ensemble:
                break
            await writer.close()
        await writer.append_many([data_of(writer.ledger_id, one) for one in range(ENTRIES)])
        return writer.ledger_id


@pytest.mark.soak
async def test_a_bookie_that_returns_within_its_delay_costs_nothing() -> None:
    async with LocalCluster(4) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        await fill(client, 4)
        await set_delay(client, 3600)
        async with healing(client, "healer-1") as healer:
            await until(lambda: healer.auditor, "it is elected")
            await cluster.kill_async(0)
            auditor = healer.auditor
            assert auditor is not None
            await until(lambda: auditor.counts.losses, "the loss is noticed")
            await until(lambda: auditor.verification.counts.unsure, "a check does not know")
            await cluster.start_bookie_async(0)
            await until(lambda: auditor.counts.losses_cancelled, "the return is noticed")
            assert (await healer.state.lost_bookies.read()).lost == {}
            assert await client.marks.list() == []
            assert healer.worker.counts.attempts == 0


@pytest.mark.soak
async def test_another_auditor_goes_on_where_the_first_one_was() -> None:
    """INV-H1 and INV-H3: the delay is counted on, and the same scan is continued."""
    async with (
        LocalCluster(4) as cluster,
        fastbk.connect(cluster.metadata_uri) as first,
        fastbk.connect(cluster.metadata_uri) as second,
    ):
        ledger_ids = [await fill(first, 3) for _ in range(8)]
        await set_delay(first, 8)
        async with healing(second, "healer-2") as successor:
            async with healing(first, "healer-1") as healer:
                await until(lambda: healer.auditor or successor.auditor, "one is elected")
                was_first = healer.auditor is not None
                await cluster.kill_async(0)
                await until_down(first, "bookie-1")
                state = healer.state
                await until(lambda: _is_lost(healer), "the loss is stored")
                lost_ms = (await state.lost_bookies.read()).lost["bookie-1"].lost_ms
            await until(lambda: successor.auditor, "the other is elected")
            await until(lambda: successor.worker.counts.repaired, "a ledger is repaired")
            assert (await state.lost_bookies.read()).lost["bookie-1"].lost_ms == lost_ms
            await until(lambda: misses_nothing(second), "nothing misses copies")
            assert not was_first or successor.elections == 1
        for ledger_id in ledger_ids:
            await check(second, ledger_id)


async def _is_lost(healer: Healer) -> bool:
    return bool((await healer.state.lost_bookies.read()).lost)


async def is_without(client: Client, ledger_id: int, bookie_id: str) -> bool:
    metadata = (await client.ledger_info(ledger_id)).metadata
    return all(bookie_id not in one.ensemble for one in metadata.fragments)


async def test_holes_without_a_lost_bookie_are_found_and_filled() -> None:
    """Apache's check reads the first and the last entry (BookKeeper #3887): the middle is missing here."""
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        ledger_id = await fill(client, 3, 3)
        await set_delay(client, 3600)
        # The ledger names a bookie that never got these entries: one that lost its data does so, too.
        await cluster.kill_async(0)
        await until_down(client, "bookie-1")
        async with fastbk.connect(cluster.metadata_uri) as writing:
            # This client would fill the hole itself, later.
            other = await _with_hole(writing)
        await cluster.start_bookie_async(0)
        async with healing(client, "healer-1") as healer:
            await until(lambda: _holes(healer), "a hole is found")
            await until(lambda: misses_nothing(client), "nothing misses copies")
            await check(client, ledger_id)
            await check(client, other)
            assert not healer.worker.parked
            # The cycle that found the hole does not say that the ledger is whole; the next one does.
            await until(lambda: _is_known_whole(healer, other), "a cycle has found it whole")
            code, answer, _ = await Cli(cluster.metadata_uri).answer_async(
                "cluster", "under-replicated"
            )
            assert (code, answer["missing"], answer["known"]["auditor"]) == (0, [], "healer-1")
            code, answer, _ = await Cli(cluster.metadata_uri).answer_async(
                "ledger", "show", str(other)
            )
            assert (code, answer["missing_copies_on"]) == (0, [])
            assert answer["known_whole_ms"] > answer["created_ms"]


async def _is_known_whole(healer: Healer, ledger_id: int) -> bool:
    metadata = (await healer.client.ledger_info(ledger_id)).metadata
    audit = await healer.state.audit.read()
    return audit.known_whole_ms(ledger_id, metadata.created_ms or 0) > 0


def _holes(healer: Healer) -> int:
    return 0 if healer.auditor is None else healer.auditor.verification.counts.holes


async def _with_hole(client: Client) -> int:
    """Write a ledger whose metadata names bookie-1, which is away, without a mark of that."""
    writer = await client.create_ledger(3, 3, 2, allow_missing_bookies=True)
    async with writer:
        await writer.append_many([data_of(writer.ledger_id, one) for one in range(ENTRIES)])
    mark = await client.marks.read(writer.ledger_id)
    assert mark.missing
    await client.marks.update(writer.ledger_id, remove=mark.missing)
    return writer.ledger_id


@pytest.mark.soak
async def test_paused_nothing_is_copied_and_resumed_it_is() -> None:
    async with LocalCluster(5) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        await fill(client, 4)
        await set_delay(client, 1)
        await client.call_store(lambda store: store.coordination.disable())
        async with healing(client, "healer-1") as healer:
            await cluster.kill_async(0)
            await until(lambda: _is_due(healer), "the bookie is due")
            passes = healer.auditor.counts.bookie_passes if healer.auditor else 0
            await until(
                lambda: healer.auditor and healer.auditor.counts.bookie_passes > passes + 3,
                "further passes end",
            )
            assert await client.marks.list() == []
            assert healer.worker.counts.attempts == 0
            await client.call_store(lambda store: store.coordination.enable())
            await until(lambda: misses_nothing(client), "nothing misses copies")


@pytest.mark.soak
async def test_what_a_pause_has_cut_off_is_repaired_after_it() -> None:
    """INV-H2: the lock is given back, too."""
    async with LocalCluster(5) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        ledger_id = await fill(client, 4)
        await set_delay(client, 1)
        members = (await client.ledger_info(ledger_id)).metadata.fragments[0].ensemble
        async with healing(client, "healer-1") as healer:
            await healer.state.settings.put(Settings(bytes_per_s=1.0))
            await cluster.kill_async(int(members[0].rpartition("-")[2]) - 1)
            await until(lambda: healer.worker.report().active, "the repair has begun")
            await client.call_store(lambda store: store.coordination.disable())
            await until(lambda: not healer.worker.report().active, "the repair is cut off")
            assert await client.locks.holder_of(ledger_id) is None
            await healer.state.settings.put(Settings(bytes_per_s=0.0))
            await client.call_store(lambda store: store.coordination.enable())
            await until(lambda: misses_nothing(client), "nothing misses copies")
            await check(client, ledger_id)


async def _is_due(healer: Healer) -> bool:
    return bool((await healer.state.audit.read()).due)
