"""The repair of a marked ledger: checked again first, bookies that are up refilled, gone ones replaced."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.marked_repair import ClusterView, MarkedLedgerRepaired, RepairMarkedLedger
from fastbk.replication.procedure import ReadEntry, SendRequest
from fastbk.replication.repair_options import CopyRate, RepairOptions
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Client, FakeQuorum, copied_by, length_at, metadata_of

WHOLE = MissingReplica("b0", 0, None, "lost", 5)
OPTIONS = RepairOptions(patience_s=2.0, patience_after_s=0.1)


def closed(metadata: LedgerMetadata, last: int = 9) -> LedgerMetadata:
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=last, length=length_at(last))


def quorum_of(metadata: LedgerMetadata, last: int = 9, spare: int = 1) -> FakeQuorum:
    harness = FakeQuorum.of(metadata, spare)
    for entry_id in range(last + 1):
        harness.write(entry_id)
    return harness


def view_of(harness: FakeQuorum, *gone: str, away: tuple[str, ...] = ()) -> ClusterView:
    present = frozenset(harness.bookies) - set(gone) - set(away)
    return ClusterView(present, present, frozenset(gone))


def repair(
    harness: FakeQuorum, view: ClusterView, *, may_close: bool = False, seed: int = 0
) -> tuple[MarkedLedgerRepaired, Client]:
    for one in harness.bookies:
        harness.bookies[one].away = one not in view.present
    procedure = RepairMarkedLedger(LEDGER, harness.marked, view, OPTIONS, may_close=may_close)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(random.Random(seed))
    return procedure.value(), client


def test_a_gone_bookie_is_replaced_and_the_mark_goes() -> None:
    harness = quorum_of(closed(metadata_of(3, 2, 2, 5)))
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness, "b0"))
    assert repaired.is_whole
    assert repaired.entries == 3  # entries 0, 2 and 3 are of its share
    assert all("b0" not in one.ensemble for one in harness.metadata.fragments)
    assert harness.marked == ()


def test_a_bookie_that_is_away_and_not_gone_yet_is_waited_for() -> None:
    """Its delay gates this, too."""
    harness = quorum_of(closed(metadata_of(3, 2, 2)))
    harness.marked = (WHOLE,)
    repaired, client = repair(harness, view_of(harness, away=("b0",)))
    assert repaired.waits_for == {"b0"}
    assert not repaired.is_whole
    assert not [one for one in client.log if isinstance(one, SendRequest)]
    assert harness.marked == (WHOLE,)


def test_what_metadata_does_not_name_any_more_is_dropped_without_a_copy() -> None:
    """A stale mark: somebody has replaced the bookie already (BookKeeper #2766)."""
    harness = quorum_of(closed(metadata_of(3, 2, 2)))
    harness.marked = (MissingReplica("b9", 0, 9, "old"), MissingReplica("b1", 20, 30, "old"))
    repaired, client = repair(harness, view_of(harness, "b9"))
    assert repaired.stale == 2
    assert repaired.is_whole
    assert harness.marked == ()
    assert not [one for one in client.log if isinstance(one, SendRequest)]


def test_a_member_that_came_back_empty_is_refilled_where_it_is() -> None:
    """The ensemble is the whole cluster, so there is no other bookie (BookKeeper #3905)."""
    harness = quorum_of(closed(metadata_of(3, 3, 2)), spare=0)
    harness.marked = (WHOLE,)
    harness.bookies["b0"].entries.clear()
    repaired, _ = repair(harness, view_of(harness))
    assert repaired.is_whole
    assert repaired.entries == 10
    assert sorted(harness.bookies["b0"].entries) == list(range(10))
    assert harness.marked == ()


def test_copies_that_came_back_are_not_copied_again() -> None:
    harness = quorum_of(closed(metadata_of(3, 3, 2)))
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness))
    assert repaired.is_whole
    assert repaired.entries == 0
    assert harness.marked == ()


def test_without_a_source_the_ledger_is_stuck_and_the_mark_stays() -> None:
    harness = quorum_of(closed(metadata_of(3, 1, 1)))
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness, "b0"))
    assert repaired.is_stuck
    assert repaired.left
    assert harness.marked == (WHOLE,)
    assert harness.metadata.fragments[0].ensemble == ("b0", "b1", "b2")


def test_without_a_target_the_ledger_is_stuck_and_the_mark_stays() -> None:
    harness = quorum_of(closed(metadata_of(3, 3, 2)), spare=0)
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness, "b0"))
    assert repaired.is_stuck
    assert "no bookie to copy to" in repaired.left[0]
    assert harness.marked == (WHOLE,)


def test_a_silent_source_that_is_up_does_not_make_it_stuck() -> None:
    """It may answer in a moment: the ledger backs off instead."""
    harness = quorum_of(closed(metadata_of(3, 2, 2)))
    harness.marked = (WHOLE,)
    view = view_of(harness, "b0")
    for one in ("b1", "b2"):
        harness.bookies[one].read_status = Status.NOT_READY
    repaired, _ = repair(harness, view)
    assert repaired.left
    assert repaired.unanswered == {"b1"}  # the first that entry 0 can come from
    assert not repaired.is_stuck


def test_a_source_that_is_away_makes_it_stuck() -> None:
    harness = quorum_of(closed(metadata_of(2, 2, 2)))
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness, "b0", away=("b1",)))
    assert repaired.unanswered == {"b1"}
    assert repaired.is_stuck
    assert harness.marked == (WHOLE,)


def test_a_deleted_ledger_is_reported() -> None:
    harness = quorum_of(closed(metadata_of(3, 2, 2)))
    harness.marked = (WHOLE,)
    view = view_of(harness, "b0")
    harness.current = None
    repaired, _ = repair(harness, view)
    assert repaired.is_deleted
    assert harness.marked == (WHOLE,)  # whoever runs it forgets the whole mark


@pytest.mark.parametrize("seed", range(10))
def test_an_open_ledger_gets_its_grace_and_is_closed_without_the_gone_bookie(seed: int) -> None:
    """BookKeeper #2755: the gone bookie is not asked for its LAC."""
    harness = quorum_of(metadata_of(3, 3, 2, 5))
    harness.marked = (MissingReplica("b1", 0, None, "lost"),)
    view = view_of(harness, "b1")
    repaired, _ = repair(harness, view, seed=seed)
    assert repaired.needs_grace
    assert not repaired.left
    assert not harness.metadata.is_closed
    assert "b1" not in harness.metadata.fragments[0].ensemble  # finished ones do not wait
    repaired, client = repair(harness, view, may_close=True, seed=seed)
    asked = [one for one in client.log if isinstance(one, SendRequest) and one.bookie_id == "b1"]
    assert not [
        one
        for one in asked
        if isinstance(one.request, ReadEntry) and one.request.fence and one.request.entry_id < 0
    ]
    assert repaired.closed
    assert repaired.is_whole
    metadata = harness.metadata
    assert (metadata.is_closed, metadata.last_entry_id) == (True, 9)
    assert all("b1" not in one.ensemble for one in metadata.fragments)
    assert harness.marked == ()


def test_what_the_dead_writer_left_on_too_few_bookies_is_filled_with_the_close() -> None:
    """Entries below the LAC are not written again by a recovery, so the check behind it has to find them."""
    harness = quorum_of(metadata_of(3, 3, 2), spare=1)
    for entry_id in (2, 3):
        del harness.bookies["b2"].entries[entry_id]
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness, "b0"), may_close=True)
    assert repaired.closed
    assert repaired.is_whole
    assert sorted(harness.bookies["b2"].entries) == list(range(10))
    assert harness.marked == ()


def test_a_recovery_that_was_begun_and_not_ended_is_ended_after_its_grace() -> None:
    """All its bookies are back, so nobody is gone; without a writer its last fragment would stay as it is for ever."""
    harness = quorum_of(metadata_of(3, 3, 2))
    harness.edit(state=LedgerState.IN_RECOVERY)
    del harness.bookies["b0"].entries[9]
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness))
    assert repaired.needs_grace
    assert not harness.metadata.is_closed
    repaired, _ = repair(harness, view_of(harness), may_close=True)
    assert repaired.closed
    assert repaired.is_whole
    assert 9 in harness.bookies["b0"].entries
    assert harness.marked == ()


def test_a_writer_that_replaced_the_bookie_in_its_grace_is_not_fenced() -> None:
    harness = quorum_of(metadata_of(3, 3, 2))
    harness.marked = (WHOLE,)
    repaired, _ = repair(harness, view_of(harness, "b0"))
    assert repaired.needs_grace
    fragment = harness.metadata.fragments[0]
    harness.edit(
        fragments=(fragment, replace(fragment, first_entry_id=8, ensemble=("s0", "b1", "b2")))
    )
    repaired, _ = repair(harness, view_of(harness, "b0"), may_close=True)
    assert not repaired.closed
    assert not any(one.fenced for one in harness.bookies.values())
    assert harness.metadata.fragments[0].ensemble[0] != "b0"


def test_a_change_meanwhile_is_not_overwritten() -> None:
    """INV-M1: the repair names its bookie by compare-and-set."""
    harness = quorum_of(closed(metadata_of(3, 2, 2)))
    harness.marked = (WHOLE,)
    view = view_of(harness, "b0")
    harness.bookies["b0"].away = True
    procedure = RepairMarkedLedger(LEDGER, harness.marked, view, OPTIONS)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(
        until=lambda: any(
            isinstance(one, SendRequest) and copied_by(one.request) for one in client.log
        )
    )
    harness.edit(custom={"key": b"value"})
    client.run()
    assert procedure.value().is_whole
    assert harness.metadata.custom == {"key": b"value"}
    assert "b0" not in harness.metadata.fragments[0].ensemble


def test_a_shared_rate_holds_for_all_reads_and_may_change() -> None:
    rate = CopyRate(1000.0)
    rate.spend(500, 0.0)
    assert rate.wait_s(0.0) == 0.5
    rate.bytes_per_s = 0.0
    assert rate.wait_s(100.0) == 1.0
    rate.bytes_per_s = 100.0
    assert rate.wait_s(100.0) == 1.0
    assert rate.wait_s(104.75) == pytest.approx(0.25)
    assert rate.wait_s(106.0) == 0.0
    rate.end_s = 107.0
    assert rate.wait_s(106.9) == 0.0
    assert rate.wait_s(107.0) == 1.0  # a lease has ended
    rate.end_s = float("inf")
    rate.bytes_per_s = float("inf")
    rate.spend(10**12, 106.0)
    assert rate.wait_s(106.0) == 0.0
    assert rate.bytes_total == 10**12 + 500


def test_a_repair_waits_for_its_rate() -> None:
    harness = quorum_of(closed(metadata_of(3, 2, 2)))
    harness.marked = (WHOLE,)
    harness.bookies["b0"].away = True
    rate = CopyRate(0.0)
    options = replace(OPTIONS, rate=rate)
    procedure = RepairMarkedLedger(LEDGER, harness.marked, view_of(harness, "b0"), options)
    client = Client(harness, procedure)  # type: ignore[arg-type]
    client.run(until=lambda: client.now_s > 30)
    assert not [one for one in client.asks(object) if copied_by(one.request)]
    assert harness.marked
    rate.bytes_per_s = 100.0
    client.run()
    assert procedure.value().is_whole
    assert rate.bytes_total == procedure.value().size_bytes > 0


@pytest.mark.parametrize("seed", range(30))
def test_whatever_fails_the_mark_goes_only_with_whole_copies(seed: int) -> None:
    """Bookies away, empty, damaged or full, in any order of answers: an unmarked copy is there, and named."""
    chance = random.Random(seed)
    metadata = closed(metadata_of(4, 3, 2, *sorted(chance.sample(range(1, 9), 2))))
    harness = quorum_of(metadata, spare=2)
    names = sorted(harness.bookies)
    gone = chance.sample(names[:4], chance.randrange(2))
    empty = chance.choice([one for one in names[:4] if one not in gone])
    harness.bookies[empty].entries.clear()
    harness.marked = tuple(MissingReplica(one, 0, None, "", 1) for one in sorted({*gone, empty}))
    if chance.random() < 0.3:
        harness.bookies[chance.choice(names)].add_status = Status.READ_ONLY
    if chance.random() < 0.3:
        harness.bookies[chance.choice(names)].damaged = set(range(10))
    harness.current = VersionedLedger(metadata, 3)
    repaired, _ = repair(harness, view_of(harness, *gone), seed=seed)
    marked = {one.bookie_id for one in harness.marked}
    assert bool(marked) is not repaired.is_whole
    for entry_id in range(10):
        ensemble = harness.metadata.fragment_of(entry_id).ensemble
        for at in range(3):
            bookie_id = ensemble[(entry_id + at) % 4]
            if bookie_id not in marked:
                assert entry_id in harness.bookies[bookie_id].entries, (bookie_id, entry_id)
