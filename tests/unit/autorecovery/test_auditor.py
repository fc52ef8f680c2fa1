"""The auditor's passes on a store in memory: which bookies it misses, and the scan that marks ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from fastbk.autorecovery import auditor
from fastbk.autorecovery.auditor import Auditor, AuditorOptions, MarkingScan
from fastbk.autorecovery.lost_bookies import HealingHold, LostBookie, LostBookies
from fastbk.autorecovery.state import (
    SUSPECTS_MAX,
    Audit,
    ClusterState,
    Cycle,
    LiveWorkers,
    Maintenance,
    WorkerReport,
    clock_ms,
)
from fastbk.client import Client
from fastbk.meta.api import BookieService, Endpoint
from fastbk.meta.health_records import LISTED_MAX, note_recoveries, unfinished_recoveries
from fastbk.meta.health_records import RECOVERIES_PATH as RECOVERIES
from fastbk.meta.placement_record import read_rules
from fastbk.meta.records import Change
from fastbk.meta.replica_marks import path_of
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.repair_options import CopyRate
from tests.fixtures.wait import wait_until_async

_numbers = count()
LEDGERS = 6


def service(name: str) -> BookieService:
    return BookieService(name, 1, (Endpoint("127.0.0.1", 1, "bookie-rpc"),))


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Client, MemoryStore]]:
    """Ledgers 0 to 5 on b1 and b2, all closed with ten entries."""
    store = MemoryStore(f"auditor {next(_numbers)}")
    for ledger_id in range(LEDGERS):
        metadata = LedgerMetadata(
            ensemble_size=2, write_quorum=2, ack_quorum=2, fragments=(Fragment(0, ("b1", "b2")),)
        )
        store.create_ledger(ledger_id, metadata.closed(9, 100))
    async with Client(store) as client:
        yield client, store
    store.close()


async def test_apaches_bookie_that_has_no_identity_of_ours_is_missed() -> None:
    async with cluster() as (client, store):
        lease = store.register_bookie(service("apache"), writable=True)
        auditor = Auditor(client, "a", CopyRate())
        await auditor.audit_bookies()
        state = ClusterState(client.records)
        assert (await state.lost_bookies.read()).lost == {}
        lease.close()
        await auditor.audit_bookies()
        assert set((await state.lost_bookies.read()).lost) == {"apache"}
        # Another auditor has never seen it registered: it knows it from what is stored.
        await Auditor(client, "b", CopyRate()).audit_bookies()
        assert set((await state.lost_bookies.read()).lost) == {"apache"}


async def test_the_auditor_keeps_the_table_of_locations_by_its_own_script(tmp_path: Path) -> None:
    """Decision 169: the file is one of this machine's options; metadata only gets what it prints."""
    script = tmp_path / "racks"
    script.write_text("#!/bin/sh\ncat " + str(tmp_path / "answer"))
    script.chmod(0o755)
    answer = tmp_path / "answer"
    async with cluster() as (client, store):
        store.register_bookie(service("b1"), writable=True)
        options = AuditorOptions(topology_script=script, locations_interval_s=0.0)
        auditor = Auditor(client, "a", CopyRate(), options)
        running = asyncio.create_task(auditor.run())
        for rack in ("/eu/r1", "/eu/r2"):
            answer.write_text(rack)
            await wait_until_async(
                lambda: read_rules(store).locations == {"b1": rack},  # noqa: B023
                "what the script says is in the table",
            )
        answer.write_text("nowhere")
        await wait_until_async(lambda: auditor.counts.failed_passes > 0, "a pass that failed")
        assert read_rules(store).locations == {"b1": "/eu/r2"}
        running.cancel()
        await asyncio.wait([running])


async def test_the_auditor_goes_by_the_hold_that_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INV-H6. Its beginning and its end are events."""
    caplog.set_level("INFO", "fastbk.autorecovery")
    async with cluster() as (client, store):
        store.coordination.set_lost_bookie_delay(1)
        store.register_bookie(service("b1"), writable=True).close()
        state = ClusterState(client.records)
        store.register_bookie(service("b2"), writable=True)
        store.register_bookie(service("b3"), writable=True)
        auditor = Auditor(client, "a", CopyRate())
        lost = LostBookies({"b1": LostBookie(1)})
        await state.lost_bookies.put(lost)
        await state.hold.put(HealingHold(clock_ms() + 60_000, "a roll"))
        await auditor.audit_bookies()
        await auditor.audit_bookies()
        audit = await state.audit.read()
        assert audit.due == () and audit.held == {"b1": "a roll"}
        await state.hold.put(HealingHold(clock_ms(), "a roll"))
        await auditor.audit_bookies()
        assert (await state.audit.read()).due == ("b1",)
        await state.maintenance.put(
            Maintenance({BookieId("b2"): HealingHold(clock_ms() + 60_000, "a new disk")})
        )
        await auditor.audit_bookies()
        await state.maintenance.put(Maintenance())
        await auditor.audit_bookies()
        kept = [one for one in caplog.messages if one.startswith("autorecovery.maintenance_")]
        assert ["a new disk" in one for one in kept] == [True, False]
        assert all("bookie=b2" in one for one in kept)
        holds = [one for one in caplog.messages if one.startswith("autorecovery.hold_")]
        assert ["a roll" in one or "ended" in one for one in holds] == [True, True]


async def test_a_bookie_that_only_ledgers_name_is_missed_and_one_that_none_names_is_forgotten() -> (
    None
):
    async with cluster() as (client, store):
        auditor = Auditor(client, "a", CopyRate())
        state = ClusterState(client.records)
        store.register_bookie(service("other"), writable=True).close()
        lease = store.register_bookie(service("spare"), writable=True)
        await auditor.audit_bookies()
        lease.close()
        await auditor.audit_bookies()
        assert set((await state.lost_bookies.read()).lost) == {"spare"}
        # A cycle in the same millisecond as the loss would prove nothing.
        lost_ms = (await state.lost_bookies.read()).lost["spare"].lost_ms
        await auditor.verification.run(frozenset, lambda: True)
        assert auditor.verification.named_last == {"b1", "b2"}
        auditor.verification.named_last_ms = lost_ms + 1
        await auditor.audit_bookies()
        assert set((await state.lost_bookies.read()).lost) == {"b1", "b2"}


async def test_a_ledger_is_known_whole_since_the_check_that_found_all_its_copies_began() -> None:
    """Bookies that do not answer make every ledger a suspect: of none is known that it is whole."""
    async with cluster() as (client, store):
        del store
        auditor = Auditor(client, "a", CopyRate())
        state = ClusterState(client.records)
        await auditor.verification.run(frozenset, lambda: True)
        audit = await state.audit.read()
        assert audit.last_cycle.ended_ms
        assert audit.last_cycle.suspects == tuple(range(LEDGERS))
        assert {audit.known_whole_ms(one, 0) for one in range(LEDGERS)} == {0}


async def test_a_recovery_that_two_checks_met_is_unfinished_until_the_ledger_is_closed() -> None:
    async with cluster() as (client, store):
        verification = Auditor(
            client, "a", CopyRate(), AuditorOptions(cycle_interval_s=0.0)
        ).verification

        async def check() -> list[int]:
            await verification.run(frozenset, lambda: True)
            return unfinished_recoveries(store)

        assert await check() == []
        (record,) = store.records.read([RECOVERIES])
        assert record is None, "nothing is written where there is nothing to say"
        begun = replace(an_open_one(), state=LedgerState.IN_RECOVERY)
        for ledger_id in (10, 11):
            store.create_ledger(ledger_id, begun)
        store.create_ledger(12, an_open_one())
        assert await check() == [], "one check does not say how long it takes"
        assert await check() == [10, 11]
        store.update_ledger(10, begun.closed(9, 100), 0)
        assert unfinished_recoveries(store) == [11], "what was closed since the check is left out"
        store.delete_ledger(11, 0)
        assert unfinished_recoveries(store) == []
        await check()
        (record,) = store.records.read([RECOVERIES])
        assert record is not None and record.value == b'{"begun":[],"unfinished":[]}'


async def test_an_auditor_that_takes_over_forgets_no_recovery() -> None:
    """It has not read the ledgers that the one before it checked in this cycle."""
    async with cluster() as (_, store):
        store.create_ledger(10, replace(an_open_one(), state=LedgerState.IN_RECOVERY))
        note_recoveries(store, [10])
        note_recoveries(store, [])
        assert unfinished_recoveries(store) == [10]
        note_recoveries(store, [])
        assert unfinished_recoveries(store) == [10]


async def test_the_record_of_recoveries_is_bounded_and_a_damaged_one_is_written_anew() -> None:
    async with cluster() as (_, store):
        begun = replace(an_open_one(), state=LedgerState.IN_RECOVERY)
        for ledger_id in range(100, 100 + LISTED_MAX + 50):
            store.create_ledger(ledger_id, begun)
        for _ in range(2):
            note_recoveries(store, range(100, 100 + LISTED_MAX + 50))
        assert unfinished_recoveries(store) == list(range(100, 100 + LISTED_MAX))
        too_many = b'{"unfinished":[' + b",".join([b"1"] * (LISTED_MAX + 1)) + b"]}"
        for damaged in (b"{", b"[]", b'{"begun":[-1]}', b'{"unfinished":["x"]}', too_many):
            (found,) = store.records.read([RECOVERIES])
            assert found is not None
            store.records.change([Change(RECOVERIES, damaged, found.version)])
            assert unfinished_recoveries(store) == []
            note_recoveries(store, [100])
            assert unfinished_recoveries(store) == []


async def test_what_nobody_can_read_is_written_anew_also_with_what_holds_without_it() -> None:
    """`resume` has it readable again, though nothing is held either way."""
    async with cluster() as (client, store):
        state = ClusterState(client.records)
        for value in (state.hold, state.maintenance, state.lost_bookies):
            store.records.change([Change(value.path, b"{")])
        await state.release()
        for value in (state.hold, state.maintenance, state.lost_bookies):
            (found,) = store.records.read([value.path])
            assert found is not None
            assert found.value != b"{", value.path


def an_open_one() -> LedgerMetadata:
    """Return the metadata of an open ledger."""
    return LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, ("b1",)),)
    )


def test_of_what_a_cycle_is_known() -> None:
    last = Cycle(began_ms=1000, ended_ms=2000, after=9, suspects=(3,))
    audit = Audit(cycle=Cycle(began_ms=5000, after=4, suspects=(2,)), last_cycle=last)
    assert audit.known_whole_ms(1, 900) == 5000
    assert audit.known_whole_ms(2, 900) == 1000, "the cycle under way did not find it whole"
    assert audit.known_whole_ms(3, 900) == 5000
    assert audit.known_whole_ms(5, 900) == 1000, "the cycle under way has not come to it"
    assert audit.known_whole_ms(5, 1500) == 0, "it was made behind the cycle"
    assert audit.known_whole_ms(1, 4000) == 5000


def test_more_suspects_than_are_listed_leave_the_ledgers_behind_them_unknown() -> None:
    listed = tuple(range(0, 2 * SUSPECTS_MAX, 2))
    audit = Audit(last_cycle=Cycle(began_ms=1000, ended_ms=2000, suspects=listed))
    assert audit.known_whole_ms(1, 0) == 1000
    assert audit.known_whole_ms(2 * SUSPECTS_MAX + 1, 0) == 0


@pytest.mark.parametrize("returned_at", [1, 2])
async def test_a_scan_ends_for_a_bookie_that_returns(
    returned_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-H3: what was lost again meanwhile is not marked by a scan for the loss before."""
    monkeypatch.setattr(auditor, "PAGE_LEDGERS", 2)
    async with cluster() as (client, _):
        scan = MarkingScan(client, ClusterState(client.records))
        calls = count()

        def due() -> dict[str, int]:
            return {"b1": 5 if next(calls) <= returned_at else 7}

        await scan.run(due, lambda: True)
        marks = {one.ledger_id for one in await client.marks.list()}
        assert marks == set(range(2 * returned_at))
        await scan.run(lambda: {"b1": 7}, lambda: True)
        assert {one.ledger_id for one in await client.marks.list()} == set(range(LEDGERS))


async def test_a_scan_that_is_paused_goes_on_with_another_auditor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auditor, "PAGE_LEDGERS", 2)
    async with cluster() as (client, _):
        state = ClusterState(client.records)
        pages = count()
        await MarkingScan(client, state).run(lambda: {"b1": 5}, lambda: next(pages) < 1)
        assert (await state.audit.read()).marking.after == 1
        second = MarkingScan(client, state)
        await second.run(lambda: {"b1": 5}, lambda: True)
        assert second.counts.ledgers == LEDGERS - 2
        assert (await state.audit.read()).marking.bookies == {}
        assert len(await client.marks.list()) == LEDGERS


async def test_one_damaged_mark_stops_no_scan() -> None:
    async with cluster() as (client, store):
        store.records.change([Change(path_of(2), b"{")])
        await MarkingScan(client, ClusterState(client.records)).run(lambda: {"b2": 5}, lambda: True)
        assert {one.ledger_id for one in store.marks.list()} == set(range(LEDGERS))


def test_a_worker_is_alive_while_its_reports_change_whatever_its_clock_says() -> None:
    workers = LiveWorkers()
    first = {"a": WorkerReport(counter=1, report_ms=0), "b": WorkerReport(counter=9)}
    assert set(workers.alive(first, 100.0)) == {"a", "b"}
    assert set(workers.alive({**first, "a": WorkerReport(counter=2)}, 150.0)) == {"a", "b"}
    assert set(workers.alive({**first, "a": WorkerReport(counter=2)}, 170.0)) == {"a"}
    assert set(workers.alive({**first, "a": WorkerReport(counter=2)}, 211.0)) == set()
