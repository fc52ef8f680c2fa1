"""Ledgers whose members were away or read-only at their creation: written by the ack quorum, owed, marked. INV-E4."""

from __future__ import annotations

from fastbk.replication.actions import Choose, UpdateMetadata
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import Rig, run

B3 = ("b0", "b1", "b2")


def marks(rig: Rig) -> list[tuple[str, int, int | None]]:
    return [(one.bookie_id, one.first_entry_id, one.last_entry_id) for one in rig.store.marked]


def close(rig: Rig) -> None:
    rig.writer.stop(rig.now_s)
    run(rig.writer.closing(10.0), rig)  # type: ignore[arg-type]


def without_a_member() -> Rig:
    """A writer that goes on for a minute while a member was never reached; nothing it does waits for that one."""
    rig = Rig(away=("b2",), spares=[])
    rig.lose("b2")
    tries = 0
    for at in range(600):
        rig.add()
        rig.ack("b0", "b1")
        assert (rig.writer.adds.head, rig.writer.failure) == (at + 1, None)
        assert not rig.writer.adds.is_frozen
        rig.pass_time(0.1)
        tries += len(rig.pending(Choose))
        assert not rig.pending(UpdateMetadata)
        rig.change()
    assert tries <= 20
    assert rig.fragments() == [(0, B3)]
    assert marks(rig) == [("b2", 0, None)]
    return rig


def test_a_close_marks_exactly_what_a_member_lacks_that_never_came() -> None:
    rig = without_a_member()
    close(rig)
    assert [one[0] for one in marks(rig)] == ["b2"]
    (mark,) = rig.store.marked
    assert (mark.first_entry_id, mark.end >= 600) == (0, True)


def test_a_member_that_comes_gets_what_is_held_and_a_close_removes_the_mark() -> None:
    rig = without_a_member()
    rig.connect("b2")
    assert rig.wire["b2"] == list(range(600))
    rig.ack("b2")
    assert rig.writer.adds.is_replicated
    rig.change()
    assert marks(rig) == [("b2", 0, None)]  # until the ledger is closed nobody knows what else it owes
    close(rig)
    assert marks(rig) == []


def test_a_member_that_is_replaced_owes_nothing_once_its_replacement_has_all() -> None:
    rig = without_a_member()
    rig.spares.append("s0")
    rig.writer.bookies_changed(rig.now_s)
    rig.take()
    rig.change()
    assert rig.fragments() == [(0, B3), (600, ("b0", "b1", "s0"))]
    rig.connect("s0")
    rig.add()
    rig.ack("b0", "s0")
    assert rig.writer.adds.head == 601
    rig.check_acknowledged()
    rig.ack("b1")
    rig.pass_time(1.0)
    rig.change()
    close(rig)
    assert marks(rig) == []
    assert all("b2" not in ensemble for _, ensemble in rig.fragments())


def test_a_member_that_is_replaced_before_the_first_entry_owes_nothing() -> None:
    rig = Rig(away=("b2",))
    rig.lose("b2")
    rig.pass_time(10.0)
    rig.change()
    assert rig.fragments() == [(0, ("b0", "b1", "s0"))]
    close(rig)
    assert marks(rig) == []


def with_a_read_only_member() -> Rig:
    """A writer that goes on for a minute while a member refuses every add; it looks for another one now and then."""
    rig = Rig(away=("b2",), spares=[])
    rig.connect("b2")
    tries = 0
    for at in range(600):
        rig.add()
        rig.ack("b0", "b1")
        while rig.wire["b2"]:
            assert rig.refuse("b2", Status.READ_ONLY)
        assert (rig.writer.adds.head, rig.writer.failure) == (at + 1, None)
        assert not rig.writer.adds.is_frozen
        rig.pass_time(0.1)
        tries += len(rig.pending(Choose))
        assert not rig.pending(UpdateMetadata)
        rig.change()
    assert tries <= 20
    assert rig.fragments() == [(0, B3)]
    assert marks(rig) == [("b2", 0, None)]
    return rig


def test_a_member_that_is_writable_again_gets_what_is_held_and_a_close_removes_the_mark() -> None:
    rig = with_a_read_only_member()
    assert not rig.writer.health.takes_adds(2)
    rig.writer.retry("b2")
    rig.pump()
    assert rig.wire["b2"] == [0]
    rig.ack("b2")
    rig.pump()
    assert rig.wire["b2"] == list(range(1, 600))
    rig.ack("b2")
    assert rig.writer.health.takes_adds(2)
    assert rig.writer.adds.is_replicated
    rig.change()
    assert marks(rig) == [("b2", 0, None)]
    close(rig)
    assert marks(rig) == []


def test_another_bookie_takes_the_place_of_a_read_only_member_and_its_copies() -> None:
    rig = with_a_read_only_member()
    rig.spares.append("s0")
    rig.writer.bookies_changed(rig.now_s)
    rig.take()
    rig.change()
    assert rig.fragments() == [(0, B3), (600, ("b0", "b1", "s0"))]
    rig.connect("s0")
    rig.ack("s0")
    rig.check_acknowledged()
    rig.pass_time(1.0)
    rig.change()
    close(rig)
    assert marks(rig) == []
    assert all("b2" not in ensemble for _, ensemble in rig.fragments())
