"""A close with copies missing: marked before it, named with it where they are whole. INV-E3."""

from __future__ import annotations

from fastbk.errors import MetadataUnavailable
from fastbk.replication.actions import MarkReplicas
from fastbk.replication.copy_keeper import ChangeMark
from tests.unit.replication.test_under_replication import check, marks, missing, replaced
from tests.unit.replication.writer_harness import Rig, run


def test_a_close_marks_what_is_missing_before_it_closes() -> None:
    rig = Rig()
    rig.add(4)
    rig.ack("b0", "b1")
    rig.writer.stop(rig.now_s)
    rig.take()
    closing = rig.writer.closing(10.0)
    closing.start(0.0)
    (mark,) = closing.take_actions()
    assert isinstance(mark, MarkReplicas)
    closing.completed(mark.tag, MetadataUnavailable("away"), 0.0)
    assert not rig.store.now.metadata.is_closed
    (pause,) = closing.take_actions()
    closing.completed(pause.tag, None, 0.2)
    (mark,) = closing.take_actions()
    closing.completed(mark.tag, rig.perform(mark), 0.2)  # type: ignore[arg-type]
    assert marks(rig) == [("b2", 0, 3)]
    (update,) = closing.take_actions()
    closing.completed(update.tag, rig.perform(update), 0.2)  # type: ignore[arg-type]
    assert closing.value().metadata.is_closed
    check(rig)


def test_a_close_names_replacements_whose_shares_are_whole() -> None:
    rig = replaced()
    rig.change()
    rig.connect("s0")
    rig.ack("s0")
    rig.writer.stop(rig.now_s)
    rig.take()
    closing = rig.writer.closing(10.0)
    run(closing, rig)  # type: ignore[arg-type]
    assert rig.store.now.metadata.is_closed
    assert [first for first, _ in rig.fragments()] == [0, 4, 10]
    assert missing(rig) == set()
    assert marks(rig) == []


def test_a_close_in_the_middle_of_copying_leaves_the_mark() -> None:
    rig = replaced()
    rig.change()
    rig.connect("s0")
    rig.ack("s0", first=4, count=2)
    rig.writer.stop(rig.now_s)
    rig.take()
    run(rig.writer.closing(10.0), rig)  # type: ignore[arg-type]
    assert rig.store.now.metadata.is_closed
    assert marks(rig) == [("b2", 4, 9)]
    check(rig)


def test_copies_acknowledged_while_a_mark_shrinks_still_count_as_marked() -> None:
    rig = Rig()
    rig.add(4)
    rig.ack("b0", "b1")
    rig.writer.stop(rig.now_s)
    rig.take()
    closing = rig.writer.closing(10.0)
    closing.start(0.0)
    (mark,) = closing.take_actions()
    closing.completed(mark.tag, rig.perform(mark), 0.0)  # type: ignore[arg-type]
    rig.ack("b2", first=0, count=2)
    (update,) = closing.take_actions()
    closing.completed(update.tag, rig.perform(update), 0.0)  # type: ignore[arg-type]
    (unmark,) = closing.take_actions()
    outcome = rig.perform(unmark)  # type: ignore[arg-type]
    rig.ack("b2", first=2, count=2)
    closing.completed(unmark.tag, outcome, 0.0)
    assert closing.is_finished
    assert marks(rig) == [("b2", 2, 3)]
    left = [(one.bookie_id, one.first_entry_id, one.last_entry_id) for one in rig.writer.marked]
    assert left == marks(rig)


def close(rig: Rig) -> None:
    rig.writer.stop(rig.now_s)
    rig.take()
    run(rig.writer.closing(10.0), rig)  # type: ignore[arg-type]
    assert rig.store.now.metadata.is_closed


def test_a_mark_without_an_end_that_the_stop_of_the_writer_gives_up_is_removed() -> None:
    """The store made it, and the answer came too late: a closed ledger kept a mark without an end."""
    rig = Rig(spares=[])
    rig.add(4)
    rig.ack("b0", "b1", "b2")
    rig.lose("b2", is_gone=True)
    rig.add(2)
    rig.ack("b0", "b1")
    while not (rig.todo and isinstance(rig.todo[0], MarkReplicas)):
        rig.answer() if rig.todo else rig.pass_time(0.1)
    rig.perform(rig.todo[0])
    assert marks(rig) == [("b2", 0, None)]
    close(rig)
    assert marks(rig) == [("b2", 0, 5)]
    check(rig)


def test_what_a_given_up_removal_took_away_is_marked_again_when_it_is_missing_again() -> None:
    rig = replaced()
    rig.change()
    assert marks(rig) != []
    marked = rig.writer.marked
    keeper = rig.writer._keeper
    keeper._step = ChangeMark((), marked)
    rig.store.marked = ()  # the store did it, and the writer gave it up
    close(rig)
    assert missing(rig) != set()
    check(rig)
