"""When a writer asks for other bookies, and what it does when there are none. INV-C2, INV-E1."""

from __future__ import annotations

import pytest

from fastbk.errors import (
    LedgerClosed,
    MetadataUnavailable,
    NotEnoughBookies,
)
from fastbk.replication.actions import Choose, ReadMetadata, Replaced, UpdateMetadata
from fastbk.replication.options import ChangePolicy
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import Rig

B3 = ("b0", "b1", "b2")


def test_a_bookie_that_stays_away_is_replaced_from_the_lac_on() -> None:
    rig = Rig()
    rig.add(5)
    rig.ack("b0", "b1", "b2")
    rig.add(2)
    rig.ack("b0")
    rig.lose("b2")
    assert not rig.todo
    rig.pass_time(1.0)
    rig.change()
    assert rig.fragments() == [(0, B3), (5, ("b0", "b1", "s0"))]
    assert rig.writer.ensemble == ("b0", "b1", "s0")
    assert rig.writer.ensemble_version == rig.writer.changes == 1
    rig.connect("s0")
    assert rig.wire["s0"] == [5, 6]
    rig.ack("s0")
    assert rig.writer.adds.head == 7
    rig.check_acknowledged()


def test_a_bookie_that_is_soon_back_is_not_replaced() -> None:
    rig = Rig()
    rig.add()
    rig.lose("b2")
    rig.pass_time(0.9)
    rig.connect("b2")
    rig.pass_time(5.0 - 0.9 - 0.001)
    assert not rig.todo
    assert rig.wire["b2"] == [0]


def test_an_absence_is_counted_from_its_beginning_however_often_it_is_told() -> None:
    rig = Rig()
    rig.lose("b2")
    rig.pass_time(0.7)
    rig.lose("b2")
    rig.pass_time(0.3)
    assert rig.pending(Choose)


def test_a_bookie_that_an_entry_needs_is_replaced_at_once() -> None:
    rig = Rig()
    rig.lose("b1")
    rig.lose("b2")
    assert not rig.todo
    rig.add()
    (choose,) = rig.pending(Choose)
    assert isinstance(choose, Choose)
    assert choose.bad == {1, 2}
    rig.answer()
    # An entry waits for it anyway: no probe.
    assert rig.pending(UpdateMetadata)


@pytest.mark.parametrize(
    "status", [Status.READ_ONLY, Status.IO_ERROR, Status.NO_LEDGER, Status.CANNOT_TELL]
)
def test_a_bookie_that_says_it_cannot_store_is_replaced_at_once(status: Status) -> None:
    rig = Rig()
    rig.add()
    assert rig.refuse("b1", status)
    rig.change()
    assert rig.writer.ensemble == ("b0", "s0", "b2")
    rig.connect("s0")
    rig.ack("s0", "b0")
    assert rig.writer.adds.head == 1


@pytest.mark.parametrize("status", [Status.TOO_MANY_REQUESTS, Status.NOT_READY])
def test_a_passing_refusal_replaces_only_when_it_lasts(status: Status) -> None:
    rig = Rig()
    rig.add()
    assert rig.refuse("b1", status)
    for _ in range(4):
        rig.pass_time(1.0)
        rig.writer.retry("b1")
        rig.pump()
        assert rig.refuse("b1", status)
        assert not rig.todo
    rig.pass_time(1.0)
    assert rig.pending(Choose)


def test_a_passing_refusal_that_has_passed_is_forgotten() -> None:
    rig = Rig()
    rig.add()
    rig.refuse("b1", Status.TOO_MANY_REQUESTS)
    rig.pass_time(3.0)
    rig.writer.retry("b1")
    rig.pump()
    rig.ack("b0", "b1", "b2")
    rig.pass_time(9.0)
    assert not rig.todo


def test_an_add_that_is_left_unanswered_for_too_long_counts_as_a_failure() -> None:
    rig = Rig()
    rig.add()
    rig.ack("b0", "b1")
    rig.pass_time(4.9)
    assert not rig.todo
    rig.pass_time(0.1)
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "s0")
    assert rig.writer.adds.lagging(2) == 1, "the replacement is given the entry"


def test_the_first_connection_has_as_long_as_an_answer() -> None:
    rig = Rig()
    rig.add()
    rig.refuse("b2", Status.READ_ONLY)
    rig.change()
    rig.ack("b0", "b1")
    rig.pass_time(4.9)
    assert not rig.todo
    rig.pass_time(0.1)
    assert rig.pending(Choose)


def test_another_incarnation_is_replaced_at_once_and_never_taken_again() -> None:
    """P8: it has marked the ledger fenced; whatever it acknowledged before is lost."""
    rig = Rig(spares=["b2"])
    rig.lose("b2", is_gone=True)
    assert rig.pending(Choose)
    rig.answer(Replaced({2: "b2"}))
    rig.pass_time(0.4)
    rig.connect("b2")
    rig.add()
    assert rig.wire["b2"] == []
    rig.pass_time(2.0)
    assert not rig.fragments()[1:]
    rig.spares = ["b2", "s0"]
    rig.writer.bookies_changed(rig.now_s)
    rig.take()
    rig.change()
    rig.lose("s0", is_gone=True)
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "s0")
    rig.pass_time(100.0)
    assert "b2" not in rig.writer.ensemble


def test_p32_a_ledger_with_deferred_sync_ends_rather_than_change() -> None:
    rig = Rig(is_deferred=True)
    rig.add(1)
    rig.ack("b0", "b1", "b2")
    rig.add(1)
    rig.lose("b2")
    rig.pass_time(0.9)
    assert rig.writer.failure is None
    rig.pass_time(0.1)
    assert isinstance(rig.writer.failure, NotEnoughBookies)
    assert rig.writer.failure.replicas == {"b2": "cut"}
    assert rig.writer.last_add_confirmed == -1
    assert rig.writer.length_confirmed == 0
    assert not rig.todo


def test_a_store_that_is_away_freezes_no_writer_that_can_do_without_it() -> None:
    rig = Rig()
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.answer()
    assert rig.pending(ReadMetadata)
    for _ in range(30):
        rig.add(1)
        rig.ack("b0", "b1")
        if rig.pending(ReadMetadata):
            rig.answer(MetadataUnavailable("away"))
        elif rig.todo:
            rig.answer()
        rig.pass_time(1.0)
    assert rig.writer.adds.head == 30
    rig.pass_time(5.0)
    rig.change()
    assert rig.fragments() == [(0, B3), (30, ("b0", "b1", "s0"))]


def test_a_bookie_that_came_back_while_others_were_looked_for_stays() -> None:
    rig = Rig()
    rig.add(1)
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.connect("b2")
    rig.change()
    assert rig.fragments() == [(0, B3)]
    rig.ack("b0", "b2")
    assert rig.writer.adds.head == 1


def test_without_a_replacement_the_writer_goes_on_and_looks_again() -> None:
    rig = Rig(spares=[])
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.answer()
    rig.add(1)
    rig.ack("b0", "b1")
    assert rig.writer.adds.head == 1
    looks = 0
    for _ in range(200):
        rig.pass_time(0.1)
        if rig.todo:
            looks += 1
            rig.answer()
    assert 4 <= looks <= 12
    rig.spares = ["s0"]
    rig.writer.bookies_changed(rig.now_s)
    rig.take()
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "s0")


def test_an_entry_that_comes_to_need_a_bookie_does_not_wait_for_the_next_look() -> None:
    rig = Rig(spares=[])
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.answer()
    rig.lose("b1")
    rig.add(1)
    assert rig.pending(Choose)


def test_without_a_replacement_the_timeout_names_every_bookie() -> None:
    rig = Rig(spares=[])
    rig.lose("b1")
    rig.add(1)
    rig.ack("b0")
    rig.lose("b2")
    rig.change()
    for _ in range(101):
        rig.pass_time(0.1)
        rig.change()
    assert isinstance(rig.writer.failure, NotEnoughBookies)
    assert rig.writer.failure.replicas == {"b1": "cut", "b2": "cut", "s9": "read-only"}
    assert rig.writer.failure.outcome == "unknown"
    assert rig.writer.adds.head == 0


def test_after_the_last_change_that_is_allowed_none_is_made() -> None:
    rig = Rig(policy=ChangePolicy(changes_max=1, replace_after_s=1.0))
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.change()
    rig.lose("s0")
    rig.pass_time(30.0)
    assert not rig.todo
    rig.add(1)
    rig.ack("b0", "b1")
    assert rig.writer.adds.head == 1
    assert len(rig.fragments()) == 1


def test_a_bookie_that_was_replaced_is_not_taken_again_at_once() -> None:
    rig = Rig(spares=["b2", "s0"])
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.change()
    rig.lose("s0")
    rig.pass_time(1.0)
    choose = rig.todo[0]
    assert isinstance(choose, Choose)
    assert choose.exclude == frozenset()
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "b2")
    rig.lose("b2")
    rig.pass_time(1.0)
    rig.change()
    rig.connect("s0")
    rig.lose("s0")
    rig.pass_time(1.0)
    choose = rig.todo[0]
    assert isinstance(choose, Choose)
    assert choose.exclude == {"b2"}


def test_delayed_only_more_failures_than_the_quorums_bear_make_a_change() -> None:
    rig = Rig(policy=ChangePolicy(delayed=True))
    rig.lose("b2")
    rig.pass_time(60.0)
    rig.add(1)
    assert not rig.todo
    rig.lose("b1")
    choose = rig.todo[0]
    assert isinstance(choose, Choose)
    assert choose.bad == {1, 2}


def test_delayed_a_read_only_bookie_is_replaced_all_the_same() -> None:
    rig = Rig(policy=ChangePolicy(delayed=True))
    rig.add(2)
    rig.refuse("b1", Status.IO_ERROR)
    assert not rig.todo
    rig.refuse("b2", Status.READ_ONLY)
    assert rig.pending(Choose)


def test_stop_gives_a_change_up() -> None:
    rig = Rig()
    rig.add(1)
    rig.ack("b0", "b1", "b2")
    rig.fail("b2")
    rig.writer.stop(rig.now_s)
    rig.take()
    assert not rig.todo
    assert rig.writer.is_finished
    rig.lose("b1")
    rig.pass_time(60.0)
    assert not rig.todo
    assert rig.writer.wake_s is None


def test_an_end_from_outside_gives_a_change_up() -> None:
    rig = Rig()
    rig.add(1)
    rig.fail("b2")
    rig.writer.end(LedgerClosed("left"), rig.now_s)
    rig.take()
    assert not rig.todo
    with pytest.raises(LedgerClosed):
        rig.writer.value()
