"""The auditor's rounds over all closed ledgers: what they find, when they begin, and what they say of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from fastbk.autorecovery import placement_audit
from fastbk.autorecovery.placement_audit import INTERVAL_S, MisplacedLedger, PlacementAudit
from fastbk.client import Client
from fastbk.meta.api import BookieService, Check, Endpoint, Lease
from fastbk.meta.health_records import PLACEMENT_FAULTS_PATH, read_placement_faults
from fastbk.meta.placement_record import change_rules
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import ClusterRules, custom_rule
from tests.fixtures.placed import TABLE, know, make_ledger, register

_numbers = count()
RACKS = PlacementConfig(policy="rack", enforce=True)
SOFT = PlacementConfig(policy="rack")
MISPLACED, WELL = ("b1", "b2"), ("b1", "b3")


class Clock:
    """Stands in for the wall clock of the rounds."""

    ms = 1_000_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(placement_audit, "clock_ms", clock)
    return clock


@asynccontextmanager
async def cluster(
    rule: PlacementConfig, table: dict[str, str] | None = None
) -> AsyncIterator[tuple[Client, MemoryStore]]:
    """Four bookies: b1 and b2 are in one rack."""
    store = MemoryStore(f"placement {next(_numbers)}")
    register(store, "b1", "b2", "b3", "b4")
    change_rules(store, lambda _: ClusterRules(rule, TABLE if table is None else table))
    async with Client(store) as client:
        yield client, store
    store.close()


async def run(audit: PlacementAudit) -> None:
    await audit.run(lambda: True)


async def test_a_round_finds_what_breaks_the_rule_of_its_ledger_the_worst_first() -> None:
    """Open ledgers, and those that nobody can read, are left out."""
    async with cluster(SOFT) as (client, store):
        make_ledger(store, 1, MISPLACED)
        make_ledger(store, 2, WELL)
        make_ledger(store, 3, MISPLACED, custom={**custom_rule(RACKS), "fastbk.namespace": b"shop"})
        make_ledger(store, 4, MISPLACED, last=None)
        make_ledger(store, 5, WELL, MISPLACED)
        audit = PlacementAudit(client)
        assert audit.misplaced == ()
        await run(audit)
        reason = "the write set b1, b2 spans 1 rack (/eu/r1), the minimum is 2"
        assert (audit.misplaced[0].reason, audit.misplaced[0].namespace) == (reason, "shop")
        assert [(one.ledger_id, one.is_enforced) for one in audit.misplaced] == [
            (3, True),
            (1, False),
            (5, False),
        ]
        counts = audit.counts
        assert (counts.rounds, counts.ledgers, counts.enforced, counts.soft) == (1, 4, 1, 2)
        found = read_placement_faults(store)
        assert found is not None
        assert (found.ledgers, found.enforced, found.soft) == (4, 1, 2)
        assert (found.first, found.reason) == ((3, 1, 5), reason)
        audit.mended(1)
        assert [one.ledger_id for one in audit.misplaced] == [3, 5]


async def test_what_is_kept_is_bounded_and_what_is_counted_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement_audit, "MISPLACED_KEPT_MAX", 4)
    monkeypatch.setattr(placement_audit, "PAGE_LEDGERS", 2)
    async with cluster(SOFT) as (client, store):
        for ledger_id in range(5):
            make_ledger(store, ledger_id, MISPLACED)
        for ledger_id in range(5, 8):
            make_ledger(store, ledger_id, MISPLACED, custom=custom_rule(RACKS))
        audit = PlacementAudit(client)
        await run(audit)
        assert [one.ledger_id for one in audit.misplaced] == [5, 6, 0, 1], "each kind has its turns"
        assert (audit.counts.enforced, audit.counts.soft) == (3, 5)


async def test_a_round_begins_at_once_after_the_interval_and_when_it_is_wanted(
    clock: Clock,
) -> None:
    async with cluster(RACKS) as (client, store):
        audit = PlacementAudit(client)

        async def rounds() -> int:
            await run(audit)
            return audit.counts.rounds

        assert await rounds() == 1
        assert store.coordination.check_time_ms(Check.PLACEMENT) == clock.ms
        clock.ms += int(INTERVAL_S * 1000) - 1
        assert await rounds() == 1
        clock.ms += 1
        assert await rounds() == 2
        audit.request()
        assert await rounds() == 3
        assert await rounds() == 3
        # Apache's `forceauditchecks -ppc`
        store.coordination.set_check_time(Check.PLACEMENT, 5)
        assert await rounds() == 4
        # Another auditor knows nothing of the ledgers that this one found.
        other = PlacementAudit(client)
        await run(other)
        assert other.counts.rounds == 1


async def test_without_an_interval_there_are_no_rounds() -> None:
    async with cluster(RACKS) as (client, store):
        make_ledger(store, 1, MISPLACED)
        audit = PlacementAudit(client, interval_s=0)
        await run(audit)
        assert (audit.misplaced, audit.counts.rounds) == ((), 0)


async def test_a_change_of_rules_or_bookies_begins_a_round_after_a_pause(clock: Clock) -> None:
    async with cluster(SOFT) as (client, store):
        make_ledger(store, 1, MISPLACED)
        audit = PlacementAudit(client)
        await run(audit)
        assert [one.is_enforced for one in audit.misplaced] == [False]
        change_rules(store, lambda rules: ClusterRules(RACKS, rules.locations))
        clock.ms += 59_999
        await run(audit)
        assert audit.counts.rounds == 1
        clock.ms += 1
        await run(audit)
        assert [one.is_enforced for one in audit.misplaced] == [True]
        register(store, "b9", location="/asia/r1")
        clock.ms += 60_000
        await run(audit)
        assert audit.counts.rounds == 3


async def test_a_bookie_that_restarts_is_where_it_was(clock: Clock) -> None:
    """Nobody but the bookie says where it is: it neither mends a ledger nor begins a round by going away."""
    async with cluster(RACKS, {}) as (client, store):
        know(store, "x1", "x2")
        leases = _registered(store, x1="/eu/r1", x2="/eu/r1")
        make_ledger(store, 1, ("x1", "x2"))
        audit = PlacementAudit(client)
        await run(audit)
        assert [one.ledger_id for one in audit.misplaced] == [1]
        for lease in leases:
            lease.close()
        clock.ms += 120_000
        await run(audit)
        assert audit.counts.rounds == 1
        audit.request()
        await run(audit)
        assert (audit.counts.rounds, audit.counts.unsure) == (2, 0)
        assert [one.ledger_id for one in audit.misplaced] == [1]
        # One that begins now has never seen them, and cannot say.
        other = PlacementAudit(client)
        await run(other)
        assert (other.misplaced, other.counts.unsure) == ((), 1)


def _registered(store: MemoryStore, **locations: str) -> list[Lease]:
    return [
        store.register_bookie(
            BookieService(BookieId(name), 1, (Endpoint("host", 1),), {"location": location}),
            writable=True,
        )
        for name, location in locations.items()
    ]


async def test_one_event_tells_of_a_round_that_found_something_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "fastbk.autorecovery")
    async with cluster(RACKS) as (client, store):
        for ledger_id in range(100):
            make_ledger(store, ledger_id, MISPLACED)
        audit = PlacementAudit(client)

        async def told() -> list[dict[str, object]]:
            caplog.clear()
            audit.request()
            await run(audit)
            return [
                {"event": record.event, **record.fields}  # type: ignore[attr-defined]
                for record in caplog.records
            ]

        (first,) = await told()
        assert first["event"] == "autorecovery.ledgers_misplaced"
        assert (first["enforced"], first["appeared"], first["mended"]) == (100, 100, 0)
        assert first["first"] == list(range(20))
        assert await told() == []
        store.delete_ledger(7, 0)
        make_ledger(store, 200, MISPLACED)
        (second,) = await told()
        assert (second["enforced"], second["appeared"], second["mended"]) == (100, 1, 1)
        # An auditor that takes over tells nothing of what the one before has told.
        audit = PlacementAudit(client)
        assert await told() == []
        change_rules(store, lambda rules: ClusterRules(PlacementConfig(), rules.locations))
        (last,) = await told()
        assert last == {"event": "autorecovery.placement_mended", "ledgers": 100}
        assert audit.misplaced == ()


async def test_a_round_that_is_paused_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_audit, "PAGE_LEDGERS", 2)
    async with cluster(RACKS) as (client, store):
        for ledger_id in range(5):
            make_ledger(store, ledger_id, MISPLACED)
        audit = PlacementAudit(client)
        pages = count()
        await audit.run(lambda: next(pages) < 1)
        assert (audit.counts.ledgers, audit.counts.rounds) == (2, 0)
        await run(audit)
        assert (audit.counts.ledgers, audit.counts.rounds) == (5, 1)
        assert len(audit.misplaced) == 5
        assert isinstance(audit.misplaced[0], MisplacedLedger)


async def test_a_record_that_nobody_can_read_is_written_anew() -> None:
    async with cluster(RACKS) as (client, store):
        make_ledger(store, 1, MISPLACED)
        store.records.change([Change(PLACEMENT_FAULTS_PATH, b"{")])
        assert read_placement_faults(store) is None
        await run(PlacementAudit(client))
        found = read_placement_faults(store)
        assert found is not None
        assert found.first == (1,)
