"""Ledgers whose members were away or read-only at their creation: written by the ack quorum, owed, marked. INV-E4."""

from __future__ import annotations

from fastbk.replication.actions import Choose, UpdateMetadata
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import WriterHarness

B3 = ("b0", "b1", "b2")


def without_a_member() -> WriterHarness:
    """A writer that goes on for a minute while a member was never reached; nothing it does waits for that one."""
    harness = WriterHarness(away=("b2",), spares=[])
    harness.lose("b2")
    tries = 0
    for at in range(600):
        harness.add()
        harness.ack("b0", "b1")
        assert (harness.writer.adds.head, harness.writer.failure) == (at + 1, None)
        assert not harness.writer.adds.is_frozen
        harness.pass_time(0.1)
        tries += len(harness.pending(Choose))
        assert not harness.pending(UpdateMetadata)
        harness.change()
    assert tries <= 20
    assert harness.fragments() == [(0, B3)]
    assert harness.marks() == [("b2", 0, None)]
    return harness


def test_a_close_marks_exactly_what_a_member_lacks_that_never_came() -> None:
    harness = without_a_member()
    harness.close()
    assert [one[0] for one in harness.marks()] == ["b2"]
    (mark,) = harness.store.marked
    assert (mark.first_entry_id, mark.end >= 600) == (0, True)


def test_a_member_that_comes_gets_what_is_held_and_a_close_removes_the_mark() -> None:
    harness = without_a_member()
    harness.connect("b2")
    assert harness.wire["b2"] == list(range(600))
    harness.ack("b2")
    assert harness.writer.adds.is_replicated
    harness.change()
    assert harness.marks() == [("b2", 0, None)]  # until the ledger is closed nobody knows what else it owes
    harness.close()
    assert harness.marks() == []


def test_a_member_that_is_replaced_owes_nothing_once_its_replacement_has_all() -> None:
    harness = without_a_member()
    harness.spares.append("s0")
    harness.writer.bookies_changed(harness.now_s)
    harness.take()
    harness.change()
    assert harness.fragments() == [(0, B3), (600, ("b0", "b1", "s0"))]
    harness.connect("s0")
    harness.add()
    harness.ack("b0", "s0")
    assert harness.writer.adds.head == 601
    harness.check_acknowledged()
    harness.ack("b1")
    harness.pass_time(1.0)
    harness.change()
    harness.close()
    assert harness.marks() == []
    assert all("b2" not in ensemble for _, ensemble in harness.fragments())


def test_a_member_that_is_replaced_before_the_first_entry_owes_nothing() -> None:
    harness = WriterHarness(away=("b2",))
    harness.lose("b2")
    harness.pass_time(10.0)
    harness.change()
    assert harness.fragments() == [(0, ("b0", "b1", "s0"))]
    harness.close()
    assert harness.marks() == []


def with_a_read_only_member() -> WriterHarness:
    """A writer that goes on for a minute while a member refuses every add; it looks for another one now and then."""
    harness = WriterHarness(away=("b2",), spares=[])
    harness.connect("b2")
    tries = 0
    for at in range(600):
        harness.add()
        harness.ack("b0", "b1")
        while harness.wire["b2"]:
            assert harness.refuse("b2", Status.READ_ONLY)
        assert (harness.writer.adds.head, harness.writer.failure) == (at + 1, None)
        assert not harness.writer.adds.is_frozen
        harness.pass_time(0.1)
        tries += len(harness.pending(Choose))
        assert not harness.pending(UpdateMetadata)
        harness.change()
    assert tries <= 20
    assert harness.fragments() == [(0, B3)]
    assert harness.marks() == [("b2", 0, None)]
    return harness


def test_a_member_that_is_writable_again_gets_what_is_held_and_a_close_removes_the_mark() -> None:
    harness = with_a_read_only_member()
    assert not harness.writer.health.takes_adds(2)
    harness.writer.retry("b2")
    harness.pump()
    assert harness.wire["b2"] == [0]
    harness.ack("b2")
    harness.pump()
    assert harness.wire["b2"] == list(range(1, 600))
    harness.ack("b2")
    assert harness.writer.health.takes_adds(2)
    assert harness.writer.adds.is_replicated
    harness.change()
    assert harness.marks() == [("b2", 0, None)]
    harness.close()
    assert harness.marks() == []


def test_another_bookie_takes_the_place_of_a_read_only_member_and_its_copies() -> None:
    harness = with_a_read_only_member()
    harness.spares.append("s0")
    harness.writer.bookies_changed(harness.now_s)
    harness.take()
    harness.change()
    assert harness.fragments() == [(0, B3), (600, ("b0", "b1", "s0"))]
    harness.connect("s0")
    harness.ack("s0")
    harness.check_acknowledged()
    harness.pass_time(1.0)
    harness.change()
    harness.close()
    assert harness.marks() == []
    assert all("b2" not in ensemble for _, ensemble in harness.fragments())
