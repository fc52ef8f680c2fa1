"""The writer's ensemble change beside others that change the metadata. INV-C1, INV-C2, INV-E1, INV-E2, INV-E5, INV-M1.

The known ways to get it wrong, P3 to P32, are scripts of the simulator (tests/simulation/scripts/writing.py).
"""

from __future__ import annotations

import pytest

from fastbk.errors import (
    Error,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
)
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.options import ChangePolicy
from fastbk.replication.procedure import Choose, ReadMetadata
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import WriterHarness

B3 = ("b0", "b1", "b2")


def test_a_conflict_over_something_else_is_decided_anew() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    harness.store.edit(custom={"k": b"v"})
    harness.change()
    assert harness.fragments() == [(0, ("b0", "b1", "s0"))]
    assert harness.store.now.metadata.custom == {"k": b"v"}
    assert not harness.writer.is_changing


@pytest.mark.parametrize(
    ("state", "kind"), [(LedgerState.IN_RECOVERY, LedgerFenced), (LedgerState.CLOSED, LedgerClosed)]
)
def test_a_ledger_that_was_taken_over_ends_the_writer(
    state: LedgerState, kind: type[Error]
) -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    harness.store.edit(state=state)
    harness.change()
    harness.ack("b0", "b1")
    assert isinstance(harness.writer.failure, kind)
    assert harness.writer.failure.outcome == "unknown"
    assert harness.writer.adds.head == 0
    assert harness.writer.is_finished
    assert harness.writer.wake_s is None


def test_a_deleted_ledger_ends_the_writer() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.answer()
    harness.answer(NoSuchLedger("deleted"))
    assert isinstance(harness.writer.failure, NoSuchLedger)


def test_what_fails_during_a_change_is_replaced_before_anything_is_released() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    harness.ack("b0", "b1", first=0)
    harness.add(1)
    harness.refuse("b1", Status.IO_ERROR)
    harness.answer()
    assert harness.writer.changes == 1
    assert harness.writer.is_changing
    assert harness.writer.adds.head == 0
    assert isinstance(harness.todo[0], Choose)
    harness.change()
    assert harness.writer.ensemble == ("b0", "s1", "s0")
    assert not harness.writer.is_changing


def test_an_ensemble_that_somebody_else_turned_round_is_followed() -> None:
    harness = WriterHarness()
    harness.add(2)
    harness.ack("b0", first=0)
    harness.fail("b2")
    harness.store.edit(fragments=(Fragment(0, ("b1", "b0", "x")),))
    harness.change()
    assert harness.writer.ensemble == ("b1", "b0", "x")
    assert harness.writer.adds.head == 0
    assert sorted(harness.wire["b0"]) == [0, 1, 1]
    harness.ack("b0", "b1")
    assert harness.writer.adds.head == 2
    harness.check_acknowledged()


@pytest.mark.parametrize(
    "fragments",
    [(Fragment(0, B3), Fragment(2, ("b0", "b1", "x"))), (Fragment(0, ("b0", "b1", "b0")),)],
)
def test_metadata_that_no_writer_can_follow_ends_it(fragments: tuple[Fragment, ...]) -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.ack("b0", "b1", first=0)
    harness.fail("b2")
    harness.store.edit(fragments=fragments)
    harness.change()
    assert isinstance(harness.writer.failure, MetadataConflict)
    assert harness.writer.adds.head == 1


def test_metadata_older_than_what_is_known_is_read_again() -> None:
    """A lagging replica of the store names a bookie that this writer has itself replaced."""
    harness = WriterHarness()
    harness.add(1)
    harness.fail("b2")
    harness.change()
    old = VersionedLedger(harness.store.versions[0], 0)
    harness.connect("s0")
    harness.fail("s0")
    harness.lose_reply(takes_effect=False)
    harness.answer()
    assert isinstance(harness.answer(old), ReadMetadata)
    harness.change()
    assert harness.writer.ensemble == ("b0", "b1", "s1")
    assert harness.store.now == harness.writer.known
    assert len(harness.store.versions) == 3


# --- a bookie that refuses adds as fenced --------------------------------------------------------------------------


def test_a_bookie_that_refuses_as_fenced_is_replaced_while_metadata_says_open() -> None:
    """INV-E5: a bookie in limbo refuses so, and the writer ended with "another client has taken the ledger over"."""
    harness = WriterHarness()
    harness.add(1)
    assert harness.refuse("b0", Status.FENCED)
    assert isinstance(harness.todo[0], ReadMetadata), "before anything else"
    harness.change()
    assert harness.writer.failure is None
    assert harness.fragments() == [(0, ("s0", "b1", "b2"))]
    harness.connect("s0")
    harness.ack("s0", "b1")
    assert harness.writer.adds.head == 1


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
@pytest.mark.parametrize("spares", [["s0"], []])
def test_a_ledger_that_somebody_took_over_fences_its_writer(
    state: LedgerState, spares: list[str]
) -> None:
    harness = WriterHarness(spares=spares)
    harness.add(2)
    harness.store.edit(state=state)
    harness.refuse("b0", Status.FENCED)
    harness.change()
    failure = harness.writer.failure
    assert isinstance(failure, LedgerFenced) and failure.outcome == "unknown"
    assert "FENCED" in failure.replicas["b0"]
    harness.ack("b1", "b2")
    assert harness.writer.adds.head == 0
    assert harness.writer.is_finished


def test_a_fenced_writer_hears_that_its_ledger_was_deleted_too() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.refuse("b0", Status.FENCED)
    harness.answer(NoSuchLedger("deleted"))
    assert isinstance(harness.writer.failure, NoSuchLedger)


def test_metadata_that_is_away_lets_a_writer_go_on_beside_one_bookie_that_says_fenced() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.refuse("b0", Status.FENCED)
    harness.answer(MetadataUnavailable("away"))
    assert harness.writer.failure is None and not harness.writer.is_changing
    harness.ack("b1", "b2")
    assert harness.writer.adds.head == 1
    harness.pass_time(1.0)
    harness.change()
    assert harness.fragments()[-1] == (1, ("s0", "b1", "b2"))


@pytest.mark.parametrize("is_deferred", [True, False])
def test_a_writer_that_may_replace_nobody_still_hears_that_it_is_fenced(is_deferred: bool) -> None:
    harness = WriterHarness(
        is_deferred=is_deferred, policy=ChangePolicy(replace_after_s=1.0, changes_max=0)
    )
    harness.add(1)
    harness.store.edit(state=LedgerState.IN_RECOVERY)
    harness.refuse("b0", Status.FENCED)
    harness.change()
    assert isinstance(harness.writer.failure, LedgerFenced)


def test_a_writer_that_may_replace_nobody_goes_on_beside_a_bookie_in_limbo() -> None:
    harness = WriterHarness(policy=ChangePolicy(replace_after_s=1.0, changes_max=0))
    harness.add(1)
    harness.refuse("b0", Status.FENCED)
    harness.change()
    assert harness.writer.failure is None
    harness.ack("b1", "b2")
    assert harness.writer.adds.head == 1


# --- a bookie that is to be emptied --------------------------------------------------------------------------------


def test_a_writer_that_appends_nothing_replaces_a_bookie_that_is_registered_as_read_only() -> None:
    """Who empties a bookie closes the open ledgers that name it: also those prepared for a stream's next segment."""
    harness = WriterHarness()
    harness.writer.bookies_changed(harness.now_s, {"b1"})
    harness.take()
    harness.change()
    assert harness.fragments() == [(0, ("b0", "s0", "b2"))]


def test_a_bookie_that_is_writable_again_stays() -> None:
    harness = WriterHarness(spares=[])
    harness.writer.bookies_changed(harness.now_s, {"b1"})
    harness.take()
    harness.change()
    harness.writer.bookies_changed(harness.now_s, ())
    harness.spares = ["s0"]
    harness.pass_time(10.0)
    harness.change()
    assert harness.fragments() == [(0, B3)]
