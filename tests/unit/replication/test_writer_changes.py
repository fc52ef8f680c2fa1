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
from tests.unit.replication.writer_harness import Rig

B3 = ("b0", "b1", "b2")


def test_p3_nothing_is_acknowledged_before_the_metadata_has_changed() -> None:
    """#1591: replaced locally first, entries were acknowledged by bookies that no metadata named."""
    rig = Rig(2, 2, 2)
    rig.add(3)
    rig.ack("b0")
    rig.lose("b1")
    rig.answer()
    assert rig.pending(UpdateMetadata)
    rig.connect("b1")
    rig.ack("b1")
    assert rig.stored["b0"] == rig.stored["b1"] == {0, 1, 2}
    assert rig.writer.is_changing
    assert rig.writer.adds.head == 0
    rig.change()
    assert rig.writer.adds.head == 0
    rig.connect("s0")
    rig.ack("s0")
    assert rig.writer.adds.head == 3
    rig.check_acknowledged()


def test_p3_a_store_that_stands_still_is_waited_for_while_all_bookies_fail_in_turn() -> None:
    rig = Rig()
    rig.add(2)
    rig.ack("b0", first=0)
    rig.fail("b1")
    rig.lose("b2")
    rig.lose("b0")
    rig.pass_time(3.0)
    assert len(rig.todo) == 1
    assert rig.writer.adds.head == 0
    rig.change()
    for bookie_id in rig.writer.ensemble:
        rig.connect(bookie_id)
    assert rig.writer.ensemble == ("s1", "s0", "s2")
    assert rig.fragments() == [(0, ("s1", "s0", "s2"))]
    rig.ack("s0", "s1")
    assert rig.writer.adds.head == 2
    rig.check_acknowledged()


@pytest.mark.parametrize("takes_effect", [True, False])
def test_p4_an_unknown_result_is_never_assumed(takes_effect: bool) -> None:
    """BOOKKEEPER-584; the reply of the compare-and-set is lost, and the store is away for a while."""
    rig = Rig()
    rig.add(3)
    rig.ack("b0", "b1", first=0)
    rig.fail("b2")
    rig.lose_reply(takes_effect=takes_effect)
    for _ in range(20):
        assert rig.writer.is_changing
        rig.ack("b0", "b1")
        assert rig.writer.adds.head == 1
        sleep = rig.answer()
        assert isinstance(sleep, Sleep)
        assert isinstance(rig.answer(MetadataUnavailable("away")), ReadMetadata)
        rig.now_s = 2.0
    rig.change()
    assert len(rig.store.versions) == 2
    assert rig.fragments() == [(0, B3), (1, ("b0", "b1", "s0"))]
    assert rig.writer.adds.head == 3
    rig.check_acknowledged()


def test_p4_a_change_that_took_effect_and_was_edited_by_others_is_recognised() -> None:
    rig = Rig()
    rig.add(3)
    rig.fail("b2")
    rig.lose_reply(takes_effect=True)
    now = rig.store.now
    rig.store.update(replace(now.metadata, custom={"k": b"v"}), now.version)
    rig.change()
    assert len(rig.store.versions) == 3
    assert rig.writer.ensemble == ("b0", "b1", "s0")
    assert rig.writer.known == rig.store.now


def test_a_conflict_over_something_else_is_decided_anew() -> None:
    rig = Rig()
    rig.add(3)
    rig.fail("b2")
    now = rig.store.now
    rig.store.update(replace(now.metadata, custom={"k": b"v"}), now.version)
    rig.change()
    assert rig.fragments() == [(0, ("b0", "b1", "s0"))]
    assert rig.store.now.metadata.custom == {"k": b"v"}
    assert not rig.writer.is_changing


def test_a_ledger_that_was_closed_meanwhile_ends_the_writer() -> None:
    rig = Rig()
    rig.add(3)
    rig.fail("b2")
    now = rig.store.now
    rig.store.update(now.metadata.closed(-1, 0), now.version)
    rig.change()
    rig.ack("b0", "b1")
    assert isinstance(rig.writer.failure, LedgerClosed)
    assert rig.writer.failure.outcome == "unknown"
    assert rig.writer.adds.head == 0
    assert rig.writer.is_finished
    assert rig.writer.wake_s is None


def test_a_ledger_in_recovery_ends_the_writer_as_fenced() -> None:
    rig = Rig()
    rig.add(3)
    rig.fail("b2")
    now = rig.store.now
    rig.store.update(replace(now.metadata, state=LedgerState.IN_RECOVERY), now.version)
    rig.change()
    rig.ack("b0", "b1")
    assert isinstance(rig.writer.failure, LedgerFenced)
    assert rig.writer.adds.head == 0


def test_a_deleted_ledger_ends_the_writer() -> None:
    rig = Rig()
    rig.add(1)
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.answer()
    rig.answer(NoSuchLedger("deleted"))
    assert isinstance(rig.writer.failure, NoSuchLedger)


def test_p11_the_new_fragment_starts_at_the_frozen_lac_whatever_is_acknowledged_meanwhile() -> None:
    """#4097, #4651, #4194: E=4, Qw=2, two failures together, acks between choice and success."""
    rig = Rig(4, 2, 2)
    rig.add(7)
    rig.ack("b0", "b1", "b2", "b3", first=0, count=2)
    rig.ack("b2", first=2)
    assert rig.writer.adds.head == 2
    rig.lose("b0")
    rig.lose("b3")
    rig.ack("b1", "b2", first=1, count=3)
    rig.answer()
    start = rig.writer.adds.head
    rig.ack("b1", "b2")
    rig.connect("b0")
    rig.ack("b0")
    assert rig.writer.adds.head == start == 2
    rig.change()
    rig.check_acknowledged()
    assert rig.fragments() == [(0, ("b0", "b1", "b2", "b3")), (start, ("s0", "b1", "b2", "s1"))]
    for bookie_id in ("s0", "s1"):
        rig.connect(bookie_id)
        rig.ack(bookie_id)
    assert rig.writer.adds.head == 7
    rig.check_acknowledged()


def test_p12_an_ack_does_not_outlive_the_bookie_that_gave_it() -> None:
    """#3005: entry 1 had its quorum behind entry 0; then a bookie of that quorum was replaced."""
    rig = Rig()
    rig.add(2)
    rig.ack("b0", "b1", first=1)
    rig.ack("b0", first=0)
    assert rig.writer.adds.head == 0
    rig.fail("b1")
    rig.change()
    rig.ack("b2", first=0)
    assert rig.writer.adds.head == 1
    rig.check_acknowledged()
    rig.connect("s0")
    rig.ack("s0")
    assert rig.writer.adds.head == 2
    rig.check_acknowledged()


def test_p13_a_change_that_replaced_nothing_lets_the_writer_go_on() -> None:
    """#4261: somebody else had replaced the bookie; the writer was stuck."""
    rig = Rig()
    rig.add(3)
    rig.fail("b2")
    now = rig.store.now
    rig.store.update(
        replace(now.metadata, fragments=(Fragment(0, ("b0", "b1", "x")),)), now.version
    )
    rig.ack("b0", "b1")
    rig.change()
    assert len(rig.store.versions) == 2
    assert rig.writer.ensemble == ("b0", "b1", "x")
    assert rig.writer.adds.head == 3
    rig.connect("x")
    assert rig.wire["x"] == [0, 1, 2]
    rig.add(1)
    rig.ack("x", "b0")
    assert rig.writer.adds.head == 4


def test_p13_one_index_is_replaced_again_when_its_new_bookie_fails_too() -> None:
    """#1857, #1886."""
    rig = Rig(2, 2, 2)
    rig.add(3)
    rig.ack("b0")
    for name in ("b1", "s0", "s1"):
        rig.lose(name)
        rig.change()
    assert rig.writer.ensemble == ("b0", "s2")
    assert rig.fragments() == [(0, ("b0", "s2"))]
    rig.connect("s2")
    rig.ack("s2")
    assert rig.writer.adds.head == 3


def test_what_fails_during_a_change_is_replaced_before_anything_is_released() -> None:
    rig = Rig()
    rig.add(3)
    rig.fail("b2")
    rig.ack("b0", "b1", first=0)
    rig.add(1)
    rig.refuse("b1", Status.IO_ERROR)
    rig.answer()
    assert rig.writer.changes == 1
    assert rig.writer.is_changing
    assert rig.writer.adds.head == 0
    assert isinstance(rig.todo[0], Choose)
    rig.change()
    assert rig.writer.ensemble == ("b0", "s1", "s0")
    assert not rig.writer.is_changing


def test_p24_answers_of_a_bookie_that_was_replaced_count_for_nothing() -> None:
    rig = Rig()
    rig.add(3)
    rig.fail("b2")
    rig.change()
    assert not rig.writer.acknowledged("b2", 0, 3, rig.now_s)
    rig.ack("b0")
    assert not rig.writer.acknowledged("b2", 0, 3, rig.now_s)
    assert not rig.writer.refused("b2", 0, 1, Status.FENCED, rig.now_s)
    assert rig.writer.failure is None
    assert rig.writer.adds.head == 0


def test_an_ensemble_that_somebody_else_turned_round_is_followed() -> None:
    rig = Rig()
    rig.add(2)
    rig.ack("b0", first=0)
    rig.fail("b2")
    now = rig.store.now
    turned = replace(now.metadata, fragments=(Fragment(0, ("b1", "b0", "x")),))
    rig.store.update(turned, now.version)
    rig.change()
    assert rig.writer.ensemble == ("b1", "b0", "x")
    assert rig.writer.adds.head == 0
    assert sorted(rig.wire["b0"]) == [0, 1, 1]
    rig.ack("b0", "b1")
    assert rig.writer.adds.head == 2
    rig.check_acknowledged()


@pytest.mark.parametrize(
    "fragments",
    [
        (Fragment(0, B3), Fragment(2, ("b0", "b1", "x"))),
        (Fragment(0, ("b0", "b1", "b0")),),
    ],
)
def test_metadata_that_no_writer_can_follow_ends_it(fragments: tuple[Fragment, ...]) -> None:
    rig = Rig()
    rig.add(3)
    rig.ack("b0", "b1", first=0)
    rig.fail("b2")
    now = rig.store.now
    rig.store.update(replace(now.metadata, fragments=fragments), now.version)
    rig.change()
    assert isinstance(rig.writer.failure, MetadataConflict)
    assert rig.writer.adds.head == 1


def test_metadata_older_than_what_is_known_is_read_again() -> None:
    """A lagging replica of the store names a bookie that this writer has itself replaced."""
    rig = Rig()
    rig.add(1)
    rig.fail("b2")
    rig.change()
    old = VersionedLedger(rig.store.versions[0], 0)
    rig.connect("s0")
    rig.fail("s0")
    rig.lose_reply(takes_effect=False)
    rig.answer()
    assert isinstance(rig.answer(old), ReadMetadata)
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "s1")
    assert rig.store.now == rig.writer.known
    assert len(rig.store.versions) == 3
