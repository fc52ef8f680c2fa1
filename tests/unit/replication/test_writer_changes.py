"""The writer's ensemble change beside others that change the metadata. INV-C1, INV-C2, INV-E1, INV-E2, INV-M1.

The known ways to get it wrong, P3 to P32, are scripts of the simulator (tests/simulation/scripts/writing.py).
"""

from __future__ import annotations

import pytest

from fastbk.errors import (
    Error,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    NoSuchLedger,
)
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.actions import Choose, ReadMetadata
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
def test_a_ledger_that_was_taken_over_ends_the_writer(state: LedgerState, kind: type[Error]) -> None:
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
    [
        (Fragment(0, B3), Fragment(2, ("b0", "b1", "x"))),
        (Fragment(0, ("b0", "b1", "b0")),),
    ],
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
