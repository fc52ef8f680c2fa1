"""Repairs of what bookies lack of closed ledgers, and the order in which a client takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication import ledger_repair
from fastbk.replication.ledger_repair import PAUSE_MAX_S, PAUSE_MIN_S, RepairMissing, RepairQueue
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Bookie, Client, FakeQuorum, metadata_of


def world_without(*missing: int, is_closed: bool = True) -> FakeQuorum:
    """A ledger of ten entries of which b1 lacks some; all of it is marked there."""
    metadata = metadata_of(3, 3, 2)
    if is_closed:
        metadata = replace(metadata, state=LedgerState.CLOSED, last_entry_id=9, length=1)
    harness = FakeQuorum(
        VersionedLedger(metadata, 1), {f"b{one}": Bookie() for one in range(3)}, [metadata]
    )
    for entry_id in range(10):
        harness.write(entry_id)
    for entry_id in missing:
        del harness.bookies["b1"].entries[entry_id]
    harness.marked = (MissingReplica("b1", 0, 9),)
    return harness


def repair(harness: FakeQuorum, missing: MissingReplica) -> bool:
    procedure = RepairMissing(LEDGER, missing)
    Client(harness, procedure).run()
    assert bool(procedure.reason) is not procedure.value()
    return procedure.value()


@pytest.mark.parametrize("last", [9, None])
def test_what_is_missing_is_copied_and_unmarked(last: int | None) -> None:
    harness = world_without(2, 3, 9)
    harness.marked = (MissingReplica("b1", 0, last),)
    assert repair(harness, harness.marked[0])
    assert harness.marked == ()
    assert sorted(harness.bookies["b1"].entries) == list(range(10))


def test_a_copy_that_nobody_can_give_stays_marked() -> None:
    harness = world_without(2)
    for name in ("b0", "b2"):
        harness.bookies[name].read_status = Status.NOT_READY
    assert not repair(harness, harness.marked[0])
    assert harness.marked == (MissingReplica("b1", 0, 9),)


def test_a_repair_reports_why_something_is_left() -> None:
    harness = world_without(2)
    for name in ("b0", "b2"):
        del harness.bookies[name].entries[2]
    procedure = RepairMissing(LEDGER, harness.marked[0])
    Client(harness, procedure).run()
    assert not procedure.value()
    assert procedure.reason == "nobody has a good copy of 1 entries"


def test_a_ledger_that_is_open_stays_marked() -> None:
    harness = world_without(2, is_closed=False)
    assert not repair(harness, harness.marked[0])
    assert harness.marked == (MissingReplica("b1", 0, 9),)


def test_a_deleted_ledger_needs_nothing() -> None:
    harness = world_without(2)
    harness.current = None
    assert repair(harness, harness.marked[0])


def test_a_store_that_is_away_is_an_error() -> None:
    harness = world_without(2)
    harness.store_away = True
    with pytest.raises(MetadataUnavailable):
        repair(harness, harness.marked[0])


def test_a_round_takes_what_is_registered_and_pauses_grow() -> None:
    queue = RepairQueue()
    first, second = MissingReplica("b1", 0, 1), MissingReplica("b2", 0, 1)
    queue.add(1, (first, second))
    queue.add(2, ())
    assert len(queue) == 1
    pauses = []
    for _ in range(8):
        queue.begin_round({"b2"}, 100.0)
        assert queue.next() == (1, second)
        assert queue.next() is None
        pauses.append(queue.due_s - 100.0)
    assert pauses[:2] == [PAUSE_MIN_S, 2 * PAUSE_MIN_S]
    assert pauses[-1] == PAUSE_MAX_S
    queue.hurry()
    assert queue.due_s == 0.0
    queue.repaired(1, second)
    queue.begin_round({"b1", "b2"}, 100.0)
    assert queue.next() == (1, first)
    queue.repaired(1, first)
    assert len(queue) == 0


def test_a_queue_that_is_full_takes_no_other_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_repair, "LEDGERS_MAX", 1)
    queue = RepairQueue()
    one, other = MissingReplica("b1", 0, 1), MissingReplica("b1", 0, 5)
    queue.add(1, (one,))
    queue.add(2, (one,))
    queue.add(1, (other,))
    queue.begin_round({"b1"}, 0.0)
    assert queue.next() == (1, other)
    assert queue.next() is None
    queue.deleted(1)
    assert len(queue) == 0
