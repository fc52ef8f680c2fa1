"""Members that refuse adds as read-only: sent one entry a retry, and the rest once they take one."""

from __future__ import annotations

import pytest

from fastbk.model.quorum import write_set
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import FRAME, WriterHarness

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
