"""The writer's ensemble change: what Apache's bugs and the scenarios P3 to P24 taught.

INV-C1, INV-C2, INV-E1, INV-E2, INV-M1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.errors import (
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
)
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.actions import Choose, ReadMetadata, Sleep, UpdateMetadata
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import WriterHarness

B3 = ("b0", "b1", "b2")


def test_p3_nothing_is_acknowledged_before_the_metadata_has_changed() -> None:
    """#1591: replaced locally first, entries were acknowledged by bookies that no metadata named."""
    harness = WriterHarness(2, 2, 2)
    harness.add(3)
    harness.ack("b0")
    harness.lose("b1")
    harness.answer()
    assert harness.pending(UpdateMetadata)
    harness.connect("b1")
    harness.ack("b1")
    assert harness.stored["b0"] == harness.stored["b1"] == {0, 1, 2}
    assert harness.writer.is_changing
    assert harness.writer.adds.head == 0
    harness.change()
    assert harness.writer.adds.head == 0
    harness.connect("s0")
    harness.ack("s0")
    assert harness.writer.adds.head == 3
    harness.check_acknowledged()


def test_p3_a_store_that_stands_still_is_waited_for_while_all_bookies_fail_in_turn() -> None:
    harness = WriterHarness()
    harness.add(2)
    harness.ack("b0", first=0)
    harness.fail("b1")
    harness.lose("b2")
    harness.lose("b0")
    harness.pass_time(3.0)
    assert len(harness.todo) == 1
    assert harness.writer.adds.head == 0
    harness.change()
    for bookie_id in harness.writer.ensemble:
        harness.connect(bookie_id)
    assert harness.writer.ensemble == ("s1", "s0", "s2")
    assert harness.fragments() == [(0, ("s1", "s0", "s2"))]
    harness.ack("s0", "s1")
    assert harness.writer.adds.head == 2
    harness.check_acknowledged()


@pytest.mark.parametrize("takes_effect", [True, False])
def test_p4_an_unknown_result_is_never_assumed(takes_effect: bool) -> None:
    """BOOKKEEPER-584; the reply of the compare-and-set is lost, and the store is away for a while."""
    harness = WriterHarness()
    harness.add(3)
    harness.ack("b0", "b1", first=0)
    harness.fail("b2")
    harness.lose_reply(takes_effect=takes_effect)
    for _ in range(20):
        assert harness.writer.is_changing
        harness.ack("b0", "b1")
        assert harness.writer.adds.head == 1
        sleep = harness.answer()
        assert isinstance(sleep, Sleep)
        assert isinstance(harness.answer(MetadataUnavailable("away")), ReadMetadata)
        harness.now_s = 2.0
    harness.change()
    assert len(harness.store.versions) == 2
    assert harness.fragments() == [(0, B3), (1, ("b0", "b1", "s0"))]
    assert harness.writer.adds.head == 3
    harness.check_acknowledged()


def test_p4_a_change_that_took_effect_and_was_edited_by_others_is_recognised() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    harness.lose_reply(takes_effect=True)
    now = harness.store.now
    harness.store.update(replace(now.metadata, custom={"k": b"v"}), now.version)
    harness.change()
    assert len(harness.store.versions) == 3
    assert harness.writer.ensemble == ("b0", "b1", "s0")
    assert harness.writer.known == harness.store.now


def test_a_conflict_over_something_else_is_decided_anew() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    now = harness.store.now
    harness.store.update(replace(now.metadata, custom={"k": b"v"}), now.version)
    harness.change()
    assert harness.fragments() == [(0, ("b0", "b1", "s0"))]
    assert harness.store.now.metadata.custom == {"k": b"v"}
    assert not harness.writer.is_changing


def test_a_ledger_that_was_closed_meanwhile_ends_the_writer() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    now = harness.store.now
    harness.store.update(now.metadata.closed(-1, 0), now.version)
    harness.change()
    harness.ack("b0", "b1")
    assert isinstance(harness.writer.failure, LedgerClosed)
    assert harness.writer.failure.outcome == "unknown"
    assert harness.writer.adds.head == 0
    assert harness.writer.is_finished
    assert harness.writer.wake_s is None


def test_a_ledger_in_recovery_ends_the_writer_as_fenced() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    now = harness.store.now
    harness.store.update(replace(now.metadata, state=LedgerState.IN_RECOVERY), now.version)
    harness.change()
    harness.ack("b0", "b1")
    assert isinstance(harness.writer.failure, LedgerFenced)
    assert harness.writer.adds.head == 0


def test_a_deleted_ledger_ends_the_writer() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.answer()
    harness.answer(NoSuchLedger("deleted"))
    assert isinstance(harness.writer.failure, NoSuchLedger)


def test_p11_the_new_fragment_starts_at_the_frozen_lac_whatever_is_acknowledged_meanwhile() -> None:
    """#4097, #4651, #4194: E=4, Qw=2, two failures together, acks between choice and success."""
    harness = WriterHarness(4, 2, 2)
    harness.add(7)
    harness.ack("b0", "b1", "b2", "b3", first=0, count=2)
    harness.ack("b2", first=2)
    assert harness.writer.adds.head == 2
    harness.lose("b0")
    harness.lose("b3")
    harness.ack("b1", "b2", first=1, count=3)
    harness.answer()
    start = harness.writer.adds.head
    harness.ack("b1", "b2")
    harness.connect("b0")
    harness.ack("b0")
    assert harness.writer.adds.head == start == 2
    harness.change()
    harness.check_acknowledged()
    assert harness.fragments() == [(0, ("b0", "b1", "b2", "b3")), (start, ("s0", "b1", "b2", "s1"))]
    for bookie_id in ("s0", "s1"):
        harness.connect(bookie_id)
        harness.ack(bookie_id)
    assert harness.writer.adds.head == 7
    harness.check_acknowledged()


def test_p12_an_ack_does_not_outlive_the_bookie_that_gave_it() -> None:
    """#3005: entry 1 had its quorum behind entry 0; then a bookie of that quorum was replaced."""
    harness = WriterHarness()
    harness.add(2)
    harness.ack("b0", "b1", first=1)
    harness.ack("b0", first=0)
    assert harness.writer.adds.head == 0
    harness.fail("b1")
    harness.change()
    harness.ack("b2", first=0)
    assert harness.writer.adds.head == 1
    harness.check_acknowledged()
    harness.connect("s0")
    harness.ack("s0")
    assert harness.writer.adds.head == 2
    harness.check_acknowledged()


def test_p13_a_change_that_replaced_nothing_lets_the_writer_go_on() -> None:
    """#4261: somebody else had replaced the bookie; the writer was stuck."""
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    now = harness.store.now
    harness.store.update(
        replace(now.metadata, fragments=(Fragment(0, ("b0", "b1", "x")),)), now.version
    )
    harness.ack("b0", "b1")
    harness.change()
    assert len(harness.store.versions) == 2
    assert harness.writer.ensemble == ("b0", "b1", "x")
    assert harness.writer.adds.head == 3
    harness.connect("x")
    assert harness.wire["x"] == [0, 1, 2]
    harness.add(1)
    harness.ack("x", "b0")
    assert harness.writer.adds.head == 4


def test_p13_one_index_is_replaced_again_when_its_new_bookie_fails_too() -> None:
    """#1857, #1886."""
    harness = WriterHarness(2, 2, 2)
    harness.add(3)
    harness.ack("b0")
    for name in ("b1", "s0", "s1"):
        harness.lose(name)
        harness.change()
    assert harness.writer.ensemble == ("b0", "s2")
    assert harness.fragments() == [(0, ("b0", "s2"))]
    harness.connect("s2")
    harness.ack("s2")
    assert harness.writer.adds.head == 3


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


def test_p24_answers_of_a_bookie_that_was_replaced_count_for_nothing() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.fail("b2")
    harness.change()
    assert not harness.writer.acknowledged("b2", 0, 3, harness.now_s)
    harness.ack("b0")
    assert not harness.writer.acknowledged("b2", 0, 3, harness.now_s)
    assert not harness.writer.refused("b2", 0, 1, Status.FENCED, harness.now_s)
    assert harness.writer.failure is None
    assert harness.writer.adds.head == 0


def test_an_ensemble_that_somebody_else_turned_round_is_followed() -> None:
    harness = WriterHarness()
    harness.add(2)
    harness.ack("b0", first=0)
    harness.fail("b2")
    now = harness.store.now
    turned = replace(now.metadata, fragments=(Fragment(0, ("b1", "b0", "x")),))
    harness.store.update(turned, now.version)
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
    now = harness.store.now
    harness.store.update(replace(now.metadata, fragments=fragments), now.version)
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
