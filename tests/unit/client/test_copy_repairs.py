"""A client repairs what was missing when it closed a ledger, once the bookie is back; before, it is marked."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

import fastbk.sync
from fastbk.meta.sqlite import MemoryStore
from fastbk.wire.statuses import Status
from tests.fixtures.fake_bookie import FakeBookie
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until, wait_until_async
from tests.unit.client.fake_cluster import by_id, fake_cluster


def lacking(fake: FakeBookie, ledger_id: int, entries: int) -> int:
    return entries - len(fake.ids(ledger_id))


def marks(store: MemoryStore) -> list[tuple[int, str]]:
    return [(mark.ledger_id, one.bookie_id) for mark in store.marks.list() for one in mark.missing]


async def test_what_a_bookie_lacks_at_the_close_is_marked_and_then_repaired() -> None:
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = await client.create_ledger()
        fakes[1].faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        await writer.append_many([b"%d" % one for one in range(10)])
        await writer.close()
        assert marks(store) == [(writer.ledger_id, fakes[1].bookie_id)]
        assert lacking(fakes[1], writer.ledger_id, 10) > 0
        fakes[1].faults.refuse_adds = None
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "the repair")
        assert marks(store) == []
        assert lacking(fakes[1], writer.ledger_id, 10) == 0


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [
        (one.event.removeprefix("ledger.copies_"), one.fields)  # type: ignore[attr-defined]
        for one in caplog.records
        if getattr(one, "event", "").startswith("ledger.copies_")
    ]


async def test_the_log_reports_why_a_repair_fails_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "fastbk")
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, _):
        writer = await client.create_ledger()
        fakes[1].faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        await writer.append_many([b"%d" % one for one in range(10)])
        await writer.close()
        fakes[1].faults.refuse_adds = lambda *_: Status.IO_ERROR
        await client.repairs._try_all()
        await client.repairs._try_all()
        io_errors = [one for _, one in said(caplog) if "IO_ERROR" in str(one["reason"])]
        assert len(io_errors) == 1
        found = {name: io_errors[0][name] for name in ("ledger_id", "bookie", "last_entry_id")}
        expected = {"ledger_id": writer.ledger_id, "bookie": fakes[1].bookie_id, "last_entry_id": 9}
        assert found == expected
        fakes[1].faults.refuse_adds = None
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "the repair")
        assert said(caplog)[-1][0] == "repaired"


async def test_a_fault_in_one_repair_does_not_end_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of all repairs ended with it, and what waited was never tried again."""
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        run_procedure = client.run_procedure
        ledgers: list[int] = []

        async def run(ledger_id: int, *rest: object) -> object:
            if ledger_id == ledgers[0]:
                raise RuntimeError("a fault of ours")
            return await run_procedure(ledger_id, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(client, "run_procedure", run)
        fakes[1].faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        for _ in range(2):
            writer = await client.create_ledger()
            ledgers.append(writer.ledger_id)
            await writer.append(b"x")
            await writer.close()
        fakes[1].faults.refuse_adds = None
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 1, "the other repair")
        assert marks(store) == [(ledgers[0], fakes[1].bookie_id)]
        assert "a fault of ours" in caplog.text
        monkeypatch.undo()
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "the first repair")


async def test_a_client_that_is_closed_first_leaves_the_mark() -> None:
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = await client.create_ledger()
        fakes[1].faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        await writer.append(b"x")
        await writer.close()
        await client.close()
        assert marks(store) == [(writer.ledger_id, fakes[1].bookie_id)]


async def test_a_ledger_that_was_deleted_waits_no_longer() -> None:
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = await client.create_ledger()
        fakes[1].faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        await writer.append(b"x")
        await writer.close()
        await client.delete_ledger(writer.ledger_id)
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "nothing to wait for")
        assert marks(store) == []


async def test_a_read_only_bookie_is_repaired_once_it_is_writable() -> None:
    """The room that it has left is for recoveries, and for fences."""
    async with fake_cluster(3) as (client, fakes, store):
        writer = await client.create_ledger()
        fakes[1].faults.refuse_adds = lambda *_: Status.READ_ONLY
        lease = fakes[1].register(store, writable=False)
        await writer.append_many([b"%d" % one for one in range(10)])
        await writer.close()
        fakes[1].faults.refuse_adds = None  # as of recovery adds
        had = len(fakes[1].ids(writer.ledger_id))
        assert had < 10
        await client.repairs._try_all()
        assert marks(store) == [(writer.ledger_id, fakes[1].bookie_id)]
        assert len(fakes[1].ids(writer.ledger_id)) == had
        lease.set_writable(True)
        client.repairs.bookies_changed()
        await wait_until_async(lambda: not marks(store), "the repair")
        assert lacking(fakes[1], writer.ledger_id, 10) == 0


async def test_a_close_does_not_wait_for_a_read_only_bookie() -> None:
    """It takes nothing within the time that a slow bookie is given; each roll of a stream would wait for it."""
    async with fake_cluster(3, laggard_wait=60.0) as (client, fakes, _):
        writer = await client.create_ledger()
        fakes[1].faults.refuse_adds = lambda *_: Status.READ_ONLY
        await writer.append(b"x")
        await wait_until_async(
            lambda: "READ_ONLY" in writer.stats().trouble.get(fakes[1].bookie_id, ""), "the refusal"
        )
        await asyncio.wait_for(writer.close(), 10.0)


def test_a_close_of_a_blocking_writer_does_not_wait_for_a_read_only_bookie() -> None:
    with sync_cluster(laggard_wait=60.0) as (client, fakes, _):
        writer = client.create_ledger()
        fakes.fakes[1].faults.refuse_adds = lambda *_: Status.READ_ONLY
        writer.append(b"x")
        began_s = time.monotonic()
        writer.close(timeout=30.0)
        assert time.monotonic() - began_s < 10.0
def test_a_ledger_of_a_writer_without_await_heals_over_a_restart() -> None:
    with sync_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = client.create_ledger()
        writer.append(b"0")
        fakes.do(fakes.fakes[1].stop())
        writer.append_many([b"%d" % one for one in range(1, 10)])
        writer.close()
        ledger_id = writer.ledger_id
        assert marks(store) == [(ledger_id, fakes.fakes[1].bookie_id)]
        fakes.do(fakes.fakes[1].start())
        # No call of the client: it repairs between calls.
        wait_until(lambda: not marks(store), "the repair")
        assert lacking(fakes.fakes[1], ledger_id, 10) == 0


def test_what_is_recovered_without_await_is_checked_and_repaired() -> None:
    with sync_cluster(3) as (client, fakes, store), fastbk.sync.connect(store) as other:
        writer = client.create_ledger()
        writer.append_many([b"x"] * 5)
        lost = by_id(fakes.fakes, writer.metadata.fragments[0].ensemble[1])
        lost.faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        writer.append_many([b"y"] * 20)
        other.open_ledger(writer.ledger_id)
        wait_until(lambda: marks(store) == [(writer.ledger_id, lost.bookie_id)], "a mark")
        lost.faults.refuse_adds = None
        wait_until(lambda: not marks(store), "a repair")
        assert lacking(lost, writer.ledger_id, 25) == 0
