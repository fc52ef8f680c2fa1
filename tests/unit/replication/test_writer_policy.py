"""When a writer asks for other bookies, and what it does when there are none. INV-C2, INV-E1."""

from __future__ import annotations

import pytest

from fastbk.errors import LedgerClosed, MetadataUnavailable, NotEnoughBookies
from fastbk.replication.options import ChangePolicy
from fastbk.replication.procedure import Choose, ReadMetadata, Replaced, UpdateMetadata
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import WriterHarness

B3 = ("b0", "b1", "b2")


def test_a_bookie_that_stays_away_is_replaced_from_the_lac_on() -> None:
    harness = WriterHarness()
    harness.add(5)
    harness.ack("b0", "b1", "b2")
    harness.add(2)
    harness.ack("b0")
    harness.lose("b2")
    assert not harness.todo
    harness.pass_time(1.0)
    harness.change()
    assert harness.fragments() == [(0, B3), (5, ("b0", "b1", "s0"))]
    assert harness.writer.ensemble == ("b0", "b1", "s0")
    assert harness.writer.ensemble_version == harness.writer.changes == 1
    harness.connect("s0")
    assert harness.wire["s0"] == [5, 6]
    harness.ack("s0")
    assert harness.writer.adds.head == 7
    harness.check_acknowledged()


def test_an_absence_is_counted_from_its_beginning_however_often_it_is_told() -> None:
    harness = WriterHarness()
    harness.lose("b2")
    harness.pass_time(0.7)
    harness.lose("b2")
    harness.pass_time(0.3)
    assert harness.pending(Choose)


def test_a_bookie_that_an_entry_needs_is_replaced_at_once() -> None:
    harness = WriterHarness()
    harness.lose("b1")
    harness.lose("b2")
    assert not harness.todo
    harness.add()
    (choose,) = harness.pending(Choose)
    assert isinstance(choose, Choose)
    assert choose.bad == {1, 2}
    harness.answer()
    # An entry waits for it anyway: no probe.
    assert harness.pending(UpdateMetadata)


@pytest.mark.parametrize(
    "status", [Status.READ_ONLY, Status.IO_ERROR, Status.NO_LEDGER, Status.CANNOT_TELL]
)
def test_a_bookie_that_says_it_cannot_store_is_replaced_at_once(status: Status) -> None:
    harness = WriterHarness()
    harness.add()
    assert harness.refuse("b1", status)
    harness.change()
    assert harness.writer.ensemble == ("b0", "s0", "b2")
    harness.connect("s0")
    harness.ack("s0", "b0")
    assert harness.writer.adds.head == 1


@pytest.mark.parametrize("status", [Status.TOO_MANY_REQUESTS, Status.NOT_READY])
def test_a_passing_refusal_replaces_only_when_it_lasts(status: Status) -> None:
    harness = WriterHarness()
    harness.add()
    assert harness.refuse("b1", status)
    for _ in range(4):
        harness.pass_time(1.0)
        harness.writer.retry("b1")
        harness.pump()
        assert harness.refuse("b1", status)
        assert not harness.todo
    harness.pass_time(1.0)
    assert harness.pending(Choose)


def test_a_passing_refusal_that_has_passed_is_forgotten() -> None:
    harness = WriterHarness()
    harness.add()
    harness.refuse("b1", Status.TOO_MANY_REQUESTS)
    harness.pass_time(3.0)
    harness.writer.retry("b1")
    harness.pump()
    harness.ack("b0", "b1", "b2")
    harness.pass_time(9.0)
    assert not harness.todo


def test_an_add_that_is_left_unanswered_for_too_long_counts_as_a_failure() -> None:
    harness = WriterHarness()
    harness.add()
    harness.ack("b0", "b1")
    harness.pass_time(4.9)
    assert not harness.todo
    harness.pass_time(0.1)
    harness.change()
    assert harness.writer.ensemble == ("b0", "b1", "s0")
    assert harness.writer.adds.lagging(2) == 1, "the replacement is given the entry"


def test_the_first_connection_has_as_long_as_an_answer() -> None:
    harness = WriterHarness()
    harness.add()
    harness.refuse("b2", Status.READ_ONLY)
    harness.change()
    harness.ack("b0", "b1")
    harness.pass_time(4.9)
    assert not harness.todo
    harness.pass_time(0.1)
    assert harness.pending(Choose)


def test_another_incarnation_is_replaced_at_once_and_never_taken_again() -> None:
    """P8: it has marked the ledger fenced; whatever it acknowledged before is lost."""
    harness = WriterHarness(spares=["b2"])
    harness.lose("b2", is_gone=True)
    assert harness.pending(Choose)
    harness.answer(Replaced({2: "b2"}))
    harness.pass_time(0.4)
    harness.connect("b2")
    harness.add()
    assert harness.wire["b2"] == []
    harness.pass_time(2.0)
    assert not harness.fragments()[1:]
    harness.spares = ["b2", "s0"]
    harness.writer.bookies_changed(harness.now_s)
    harness.take()
    harness.change()
    harness.lose("s0", is_gone=True)
    harness.change()
    assert harness.writer.ensemble == ("b0", "b1", "s0")
    harness.pass_time(100.0)
    assert "b2" not in harness.writer.ensemble


def test_a_store_that_is_away_freezes_no_writer_that_can_do_without_it() -> None:
    harness = WriterHarness()
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.answer()
    assert harness.pending(ReadMetadata)
    for _ in range(30):
        harness.add(1)
        harness.ack("b0", "b1")
        if harness.pending(ReadMetadata):
            harness.answer(MetadataUnavailable("away"))
        elif harness.todo:
            harness.answer()
        harness.pass_time(1.0)
    assert harness.writer.adds.head == 30
    harness.pass_time(5.0)
    harness.change()
    assert harness.fragments() == [(0, B3), (30, ("b0", "b1", "s0"))]


def test_a_bookie_that_came_back_while_others_were_looked_for_stays() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.connect("b2")
    harness.change()
    assert harness.fragments() == [(0, B3)]
    harness.ack("b0", "b2")
    assert harness.writer.adds.head == 1


def test_without_a_replacement_the_writer_goes_on_and_looks_again() -> None:
    harness = WriterHarness(spares=[])
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.answer()
    harness.add(1)
    harness.ack("b0", "b1")
    assert harness.writer.adds.head == 1
    looks = 0
    for _ in range(200):
        harness.pass_time(0.1)
        if harness.todo:
            looks += 1
            harness.answer()
    assert 4 <= looks <= 12
    harness.spares = ["s0"]
    harness.writer.bookies_changed(harness.now_s)
    harness.take()
    harness.change()
    assert harness.writer.ensemble == ("b0", "b1", "s0")


def test_an_entry_that_comes_to_need_a_bookie_does_not_wait_for_the_next_look() -> None:
    harness = WriterHarness(spares=[])
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.answer()
    harness.lose("b1")
    harness.add(1)
    assert harness.pending(Choose)


def test_without_a_replacement_the_timeout_names_every_bookie() -> None:
    harness = WriterHarness(spares=[])
    harness.lose("b1")
    harness.add(1)
    harness.ack("b0")
    harness.lose("b2")
    harness.change()
    for _ in range(101):
        harness.pass_time(0.1)
        harness.change()
    assert isinstance(harness.writer.failure, NotEnoughBookies)
    assert harness.writer.failure.replicas == {"b1": "cut", "b2": "cut", "s9": "read-only"}
    assert harness.writer.failure.outcome == "unknown"
    assert harness.writer.adds.head == 0


def test_after_the_last_change_that_is_allowed_none_is_made() -> None:
    harness = WriterHarness(policy=ChangePolicy(changes_max=1, replace_after_s=1.0))
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.change()
    harness.lose("s0")
    harness.pass_time(30.0)
    assert not harness.todo
    harness.add(1)
    harness.ack("b0", "b1")
    assert harness.writer.adds.head == 1
    assert len(harness.fragments()) == 1


def test_a_bookie_that_was_replaced_is_not_taken_again_at_once() -> None:
    harness = WriterHarness(spares=["b2", "s0"])
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.change()
    harness.lose("s0")
    harness.pass_time(1.0)
    choose = harness.todo[0]
    assert isinstance(choose, Choose)
    assert choose.exclude == frozenset()
    harness.change()
    assert harness.writer.ensemble == ("b0", "b1", "b2")
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.change()
    harness.connect("s0")
    harness.lose("s0")
    harness.pass_time(1.0)
    choose = harness.todo[0]
    assert isinstance(choose, Choose)
    assert choose.exclude == {"b2"}


def test_delayed_only_more_failures_than_the_quorums_bear_make_a_change() -> None:
    harness = WriterHarness(policy=ChangePolicy(delayed=True))
    harness.lose("b2")
    harness.pass_time(60.0)
    harness.add(1)
    assert not harness.todo
    harness.lose("b1")
    choose = harness.todo[0]
    assert isinstance(choose, Choose)
    assert choose.bad == {1, 2}


def test_delayed_a_read_only_bookie_is_replaced_all_the_same() -> None:
    harness = WriterHarness(policy=ChangePolicy(delayed=True))
    harness.add(2)
    harness.refuse("b1", Status.IO_ERROR)
    assert not harness.todo
    harness.refuse("b2", Status.READ_ONLY)
    assert harness.pending(Choose)


def test_stop_gives_a_change_up() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.ack("b0", "b1", "b2")
    harness.fail("b2")
    harness.writer.stop(harness.now_s)
    harness.take()
    assert not harness.todo
    assert harness.writer.is_finished
    harness.lose("b1")
    harness.pass_time(60.0)
    assert not harness.todo
    assert harness.writer.wake_s is None


def test_an_end_from_outside_gives_a_change_up() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.fail("b2")
    harness.writer.end(LedgerClosed("left"), harness.now_s)
    harness.take()
    assert not harness.todo
    with pytest.raises(LedgerClosed):
        harness.writer.value()
