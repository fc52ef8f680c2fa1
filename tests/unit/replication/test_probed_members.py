"""Members that refuse adds as read-only: sent one entry a retry, and the rest once they take one."""

from __future__ import annotations

import pytest

from fastbk.model.quorum import write_set
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import FRAME, Rig

BATCH = 5


def refuse_all(rig: Rig, bookie_id: str) -> int:
    """Let a bookie refuse everything that it was sent; return how many entries that were."""
    count = len(rig.wire[bookie_id])
    for _ in range(count):
        assert rig.refuse(bookie_id, Status.READ_ONLY), "a retry is always asked for"
    return count


def refused_for_a_minute(rig: Rig, bookie_id: str) -> int:
    """Add for a minute with a retry each second while one bookie refuses; return what was sent to it."""
    count = 0
    others = [one for one in rig.writer.ensemble if one != bookie_id]
    for at in range(600):
        rig.add(BATCH)
        rig.ack(*others)
        count += refuse_all(rig, bookie_id)
        assert (rig.writer.adds.head, rig.writer.failure) == (BATCH * (at + 1), None)
        rig.pass_time(0.1)
        rig.change()
        if at % 10 == 9:
            rig.writer.retry(bookie_id)
            rig.pump()
            count += refuse_all(rig, bookie_id)
    return count


def share_of(index: int, rig: Rig) -> set[int]:
    adds = rig.writer.adds
    size, quorum = len(adds.ensemble), adds.write_quorum
    return {one for one in range(adds.next_entry_id) if index in write_set(one, size, quorum)}


@pytest.mark.parametrize("size", [3, 4])
def test_a_member_that_refuses_for_a_minute_is_sent_one_entry_a_retry(size: int) -> None:
    rig = Rig(size, 3, 2, spares=[])
    # The first batch, which it was sent before it refused, and 60 probes.
    assert refused_for_a_minute(rig, "b2") <= BATCH + 60
    assert rig.writer.adds.entries_resent <= 60
    rig.writer.retry("b2")
    rig.pump()
    assert len(rig.wire["b2"]) == 1
    rig.ack("b2")
    rig.pump()
    rig.ack("b2")
    assert rig.stored["b2"] == share_of(2, rig)
    assert rig.writer.adds.is_replicated
    rig.check_acknowledged()


def test_a_probe_whose_entry_was_given_up_is_followed_by_another() -> None:
    rig = Rig(spares=[], held_bytes_max=4 * BATCH * FRAME)
    assert refused_for_a_minute(rig, "b2") <= BATCH + 60
    adds = rig.writer.adds
    for status in (Status.READ_ONLY, Status.TOO_MANY_REQUESTS, Status.OK):
        rig.writer.retry("b2")
        rig.pump()
        (probe,) = rig.wire["b2"]
        for _ in range(8):
            rig.add(BATCH)
            rig.ack("b0", "b1")
        assert adds.given_up[2][-1][1] > probe
        assert rig.wire["b2"] == [probe]
        if status == Status.OK:
            rig.ack("b2")
        else:
            assert rig.refuse("b2", status)
    rig.change()
    rig.pump()
    rig.ack("b2")
    assert adds.is_replicated
    held = adds.given_up[2][-1][1]
    assert rig.stored["b2"] >= set(range(held, adds.next_entry_id))
    rig.check_acknowledged()


def test_an_idle_writer_probes_with_its_next_entry() -> None:
    rig = Rig(spares=[], held_bytes_max=0)
    rig.add(BATCH)
    assert rig.refuse("b2", Status.READ_ONLY)
    rig.ack("b0", "b1")  # nothing is held for it any more
    refuse_all(rig, "b2")
    rig.writer.retry("b2")
    rig.pump()
    assert rig.wire["b2"] == []
    rig.add(BATCH)
    assert rig.wire["b2"] == [BATCH]
    rig.ack("b2")
    rig.pump()
    assert rig.wire["b2"] == list(range(BATCH + 1, 2 * BATCH))


def test_an_entry_that_needs_a_read_only_member_is_done_once_that_takes_adds() -> None:
    rig = Rig(spares=[])
    rig.add(BATCH)
    refuse_all(rig, "b1")
    refuse_all(rig, "b2")
    rig.ack("b0")
    rig.writer.retry("b1")
    rig.pump()
    rig.ack("b1")
    assert rig.writer.adds.head == 1
    rig.pump()
    rig.ack("b1")
    assert rig.writer.adds.head == BATCH
    rig.check_acknowledged()


def test_a_member_that_connects_again_is_sent_everything() -> None:
    rig = Rig(spares=[])
    rig.add(BATCH)
    refuse_all(rig, "b2")
    rig.lose("b2")
    rig.connect("b2")
    assert rig.wire["b2"] == list(range(BATCH))
