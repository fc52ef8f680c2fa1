"""Members that are away or read-only: what they owe, and how little is sent to them. INV-E4."""

from __future__ import annotations

import pytest

from fastbk.model.quorum import write_set
from fastbk.replication.procedure import Choose, UpdateMetadata
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import FRAME, WriterHarness

B3 = ("b0", "b1", "b2")


def a_minute_without_a_member(*, is_read_only: bool = False) -> WriterHarness:
    """A writer that goes on for a minute; a member was never reached or refuses every add. Nothing waits for it."""
    harness = WriterHarness(away=("b2",), spares=[])
    if is_read_only:
        harness.connect("b2")
    else:
        harness.lose("b2")
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


def test_a_close_marks_exactly_what_a_member_lacks_that_never_came() -> None:
    harness = a_minute_without_a_member()
    harness.close()
    assert [one[0] for one in harness.marks()] == ["b2"]
    (mark,) = harness.store.marked
    assert (mark.first_entry_id, mark.end >= 600) == (0, True)


def test_a_member_that_comes_gets_what_is_held_and_a_close_removes_the_mark() -> None:
    harness = a_minute_without_a_member()
    harness.connect("b2")
    assert harness.wire["b2"] == list(range(600))
    harness.ack("b2")
    assert harness.writer.adds.is_replicated
    harness.change()
    # until the ledger is closed nobody knows what else it owes
    assert harness.marks() == [("b2", 0, None)]
    harness.close()
    assert harness.marks() == []


@pytest.mark.parametrize("is_read_only", [True, False])
def test_a_member_that_is_replaced_owes_nothing_once_its_replacement_has_all(
    is_read_only: bool,
) -> None:
    harness = a_minute_without_a_member(is_read_only=is_read_only)
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


def test_a_member_that_is_writable_again_gets_what_is_held_and_a_close_removes_the_mark() -> None:
    harness = a_minute_without_a_member(is_read_only=True)
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


BATCH = 5


def refuse_all(harness: WriterHarness, bookie_id: str) -> int:
    """Let a bookie refuse everything that it was sent; return how many entries that were."""
    count = len(harness.wire[bookie_id])
    for _ in range(count):
        assert harness.refuse(bookie_id, Status.READ_ONLY), "a retry is always asked for"
    return count


def refused_for_a_minute(harness: WriterHarness, bookie_id: str) -> int:
    """Add for a minute with a retry each second while one bookie refuses; return what was sent to it."""
    count = 0
    others = [one for one in harness.writer.ensemble if one != bookie_id]
    for at in range(600):
        harness.add(BATCH)
        harness.ack(*others)
        count += refuse_all(harness, bookie_id)
        assert (harness.writer.adds.head, harness.writer.failure) == (BATCH * (at + 1), None)
        harness.pass_time(0.1)
        harness.change()
        if at % 10 == 9:
            harness.writer.retry(bookie_id)
            harness.pump()
            count += refuse_all(harness, bookie_id)
    return count


def share_of(index: int, harness: WriterHarness) -> set[int]:
    adds = harness.writer.adds
    size, quorum = len(adds.ensemble), adds.write_quorum
    return {one for one in range(adds.next_entry_id) if index in write_set(one, size, quorum)}


@pytest.mark.parametrize("size", [3, 4])
def test_a_member_that_refuses_for_a_minute_is_sent_one_entry_a_retry(size: int) -> None:
    harness = WriterHarness(size, 3, 2, spares=[])
    # The first batch, which it was sent before it refused, and 60 probes.
    assert refused_for_a_minute(harness, "b2") <= BATCH + 60
    assert harness.writer.adds.entries_resent <= 60
    harness.writer.retry("b2")
    harness.pump()
    assert len(harness.wire["b2"]) == 1
    harness.ack("b2")
    harness.pump()
    harness.ack("b2")
    assert harness.stored["b2"] == share_of(2, harness)
    assert harness.writer.adds.is_replicated
    harness.check_acknowledged()


def test_a_probe_whose_entry_was_given_up_is_followed_by_another() -> None:
    harness = WriterHarness(spares=[], held_bytes_max=4 * BATCH * FRAME)
    assert refused_for_a_minute(harness, "b2") <= BATCH + 60
    adds = harness.writer.adds
    for status in (Status.READ_ONLY, Status.TOO_MANY_REQUESTS, Status.OK):
        harness.writer.retry("b2")
        harness.pump()
        (probe,) = harness.wire["b2"]
        for _ in range(8):
            harness.add(BATCH)
            harness.ack("b0", "b1")
        assert adds.given_up[2][-1][1] > probe
        assert harness.wire["b2"] == [probe]
        if status == Status.OK:
            harness.ack("b2")
        else:
            assert harness.refuse("b2", status)
    harness.change()
    harness.pump()
    harness.ack("b2")
    assert adds.is_replicated
    held = adds.given_up[2][-1][1]
    assert harness.stored["b2"] >= set(range(held, adds.next_entry_id))
    harness.check_acknowledged()


def test_an_idle_writer_probes_with_its_next_entry() -> None:
    harness = WriterHarness(spares=[], held_bytes_max=0)
    harness.add(BATCH)
    assert harness.refuse("b2", Status.READ_ONLY)
    harness.ack("b0", "b1")  # nothing is held for it any more
    refuse_all(harness, "b2")
    harness.writer.retry("b2")
    harness.pump()
    assert harness.wire["b2"] == []
    harness.add(BATCH)
    assert harness.wire["b2"] == [BATCH]
    harness.ack("b2")
    harness.pump()
    assert harness.wire["b2"] == list(range(BATCH + 1, 2 * BATCH))


def test_an_entry_that_needs_a_read_only_member_is_done_once_that_takes_adds() -> None:
    harness = WriterHarness(spares=[])
    harness.add(BATCH)
    refuse_all(harness, "b1")
    refuse_all(harness, "b2")
    harness.ack("b0")
    harness.writer.retry("b1")
    harness.pump()
    harness.ack("b1")
    assert harness.writer.adds.head == 1
    harness.pump()
    harness.ack("b1")
    assert harness.writer.adds.head == BATCH
    harness.check_acknowledged()


def test_a_member_that_connects_again_is_sent_everything() -> None:
    harness = WriterHarness(spares=[])
    harness.add(BATCH)
    refuse_all(harness, "b2")
    harness.lose("b2")
    harness.connect("b2")
    assert harness.wire["b2"] == list(range(BATCH))
