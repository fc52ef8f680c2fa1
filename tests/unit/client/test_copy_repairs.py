"""A client marks copies that are missing when it closes or recovers a ledger, and repairs them later."""

from __future__ import annotations

import asyncio
import logging

import pytest

import fastbk
from fastbk.client import Client, LedgerWriter
from fastbk.errors import MetadataUnavailable
from fastbk.meta.replica_marks import LedgerMark
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.wire.statuses import Status
from tests.fixtures.fake_bookie import FakeBookie
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import by_id, fake_cluster, numbers, one_ledger


def marks(store: MemoryStore) -> list[tuple[int, str]]:
    return [(mark.ledger_id, one.bookie_id) for mark in store.marks.list() for one in mark.missing]


async def closed_without(fake: FakeBookie, client: Client) -> LedgerWriter:
    """Close a ledger of ten entries of which that bookie lacks some."""
    writer = await client.create_ledger()
    fake.faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
    await writer.append_many(numbers(0, 10))
    await writer.close()
    return writer


async def test_what_a_bookie_lacks_at_the_close_is_marked_and_then_repaired() -> None:
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = await closed_without(fakes[1], client)
        assert marks(store) == [(writer.ledger_id, fakes[1].bookie_id)]
        assert len(fakes[1].ids(writer.ledger_id)) < 10
        fakes[1].faults.refuse_adds = None
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "the repair")
        assert marks(store) == []
        assert fakes[1].ids(writer.ledger_id) == list(range(10))


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
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
        writer = await closed_without(fakes[1], client)
        fakes[1].faults.refuse_adds = lambda *_: Status.IO_ERROR
        await client.repairs._try_all()
        await client.repairs._try_all()
        io_errors = [one for _, one in logged(caplog) if "IO_ERROR" in str(one["reason"])]
        assert len(io_errors) == 1
        found = {name: io_errors[0][name] for name in ("ledger_id", "bookie", "last_entry_id")}
        expected = {"ledger_id": writer.ledger_id, "bookie": fakes[1].bookie_id, "last_entry_id": 9}
        assert found == expected
        fakes[1].faults.refuse_adds = None
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "the repair")
        assert logged(caplog)[-1][0] == "repaired"


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
        for _ in range(2):
            ledgers.append((await closed_without(fakes[1], client)).ledger_id)
        fakes[1].faults.refuse_adds = None
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 1, "the other repair")
        assert marks(store) == [(ledgers[0], fakes[1].bookie_id)]
        assert "a fault of ours" in caplog.text
        monkeypatch.undo()
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "the first repair")


@pytest.mark.slow
@pytest.mark.parametrize("takes_adds", [True, False])
async def test_a_client_that_is_closed_repairs_what_it_can_and_leaves_the_mark_of_the_rest(
    takes_adds: bool,
) -> None:
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = await closed_without(fakes[1], client)
        if takes_adds:
            fakes[1].faults.refuse_adds = None
        await client.close()
        left = [] if takes_adds else [(writer.ledger_id, fakes[1].bookie_id)]
        assert marks(store) == left
        assert (fakes[1].ids(writer.ledger_id) == list(range(10))) is takes_adds


async def test_a_ledger_that_was_deleted_waits_no_longer() -> None:
    async with fake_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = await closed_without(fakes[1], client)
        await client.delete_ledger(writer.ledger_id)
        client.repairs.bookies_changed()
        await wait_until_async(lambda: client.repairs.waiting == 0, "nothing to wait for")
        assert marks(store) == []


async def test_a_read_only_bookie_is_repaired_once_it_is_writable() -> None:
    """The room that it has left is for recoveries, and for fences."""
    async with one_ledger(3) as (client, fakes, store, writer):
        fakes[1].faults.refuse_adds = lambda *_: Status.READ_ONLY
        lease = fakes[1].register(store, writable=False)
        await writer.append_many(numbers(0, 10))
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
        assert fakes[1].ids(writer.ledger_id) == list(range(10))


async def test_a_close_does_not_wait_for_a_read_only_bookie() -> None:
    """It takes nothing within the time that a slow bookie is given; each roll of a stream would wait for it."""
    async with one_ledger(3, laggard_wait=60.0) as (_, fakes, _, writer):
        fakes[1].faults.refuse_adds = lambda *_: Status.READ_ONLY
        await writer.append(b"x")
        await wait_until_async(
            lambda: "READ_ONLY" in writer.stats().trouble.get(fakes[1].bookie_id, ""), "the refusal"
        )
        await asyncio.wait_for(writer.close(), 10.0)


# --- after a recovery ------------------------------------------------------------------------------------------------


async def test_what_a_dead_writer_left_missing_is_marked_and_repaired() -> None:
    async with fake_cluster(3) as (client, fakes, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        lost = by_id(fakes, writer.metadata.fragments[0].ensemble[1])
        await wait_until_async(lambda: len(lost.ids(writer.ledger_id)) == 5, "all copies")
        lost.faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        await writer.append_many([b"y"] * 20)
        await writer.append_many([b"z"] * 5)
        assert (await other.open_ledger(writer.ledger_id)).is_closed
        await wait_until_async(lambda: marks(store), "a mark")
        assert set(marks(store)) == {(writer.ledger_id, lost.bookie_id)}
        lost.faults.refuse_adds = None
        other.repairs.bookies_changed()
        await wait_until_async(lambda: not marks(store), "a repair")
        assert len(lost.ids(writer.ledger_id)) == 30


async def test_a_whole_ledger_gets_no_mark() -> None:
    async with fake_cluster(3) as (client, fakes, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        await wait_until_async(
            lambda: all(len(one.ids(writer.ledger_id)) == 5 for one in fakes), "all copies"
        )
        await other.open_ledger(writer.ledger_id)
        await wait_until_async(lambda: not other.repairs.is_checking, "the check")
        assert marks(store) == []


async def test_the_log_reports_a_check_that_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the dead writer left missing is neither marked nor repaired then."""

    def is_away(ledger_id: int) -> LedgerMark:
        raise MetadataUnavailable(f"no answer about ledger {ledger_id}")

    async with fake_cluster(3) as (client, _, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        monkeypatch.setattr(store.marks, "read", is_away)
        await other.open_ledger(writer.ledger_id)
        await wait_until_async(lambda: not other.repairs.is_checking, "the check")
        ((kind, fields),) = logged(caplog)
        assert (kind, fields["ledger_id"]) == ("unchecked", writer.ledger_id)
        assert "no answer" in str(fields["reason"])
