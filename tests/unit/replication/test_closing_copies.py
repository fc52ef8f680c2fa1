"""A close with copies missing: marked before it, named with it where they are whole. INV-E3."""

from __future__ import annotations

from fastbk.errors import MetadataUnavailable
from fastbk.replication.actions import MarkReplicas
from fastbk.replication.copy_keeper import ChangeMark
from tests.unit.replication.test_under_replication import check, missing, replaced
from tests.unit.replication.writer_harness import WriterHarness


def test_a_close_marks_what_is_missing_before_it_closes() -> None:
    harness = WriterHarness()
    harness.add(4)
    harness.ack("b0", "b1")
    closing = harness.stop()
    closing.start(0.0)
    (mark,) = closing.take_actions()
    assert isinstance(mark, MarkReplicas)
    closing.completed(mark.tag, MetadataUnavailable("away"), 0.0)
    assert not harness.store.now.metadata.is_closed
    (pause,) = closing.take_actions()
    closing.completed(pause.tag, None, 0.2)
    (mark,) = closing.take_actions()
    closing.completed(mark.tag, harness.perform(mark), 0.2)  # type: ignore[arg-type]
    assert harness.marks() == [("b2", 0, 3)]
    (update,) = closing.take_actions()
    closing.completed(update.tag, harness.perform(update), 0.2)  # type: ignore[arg-type]
    assert closing.value().metadata.is_closed
    check(harness)


def test_a_close_names_replacements_whose_shares_are_whole() -> None:
    harness = replaced()
    harness.change()
    harness.connect("s0")
    harness.ack("s0")
    harness.close()
    assert harness.store.now.metadata.is_closed
    assert [first for first, _ in harness.fragments()] == [0, 4, 10]
    assert missing(harness) == set()
    assert harness.marks() == []


def test_a_close_in_the_middle_of_copying_leaves_the_mark() -> None:
    harness = replaced()
    harness.change()
    harness.connect("s0")
    harness.ack("s0", first=4, count=2)
    harness.close()
    assert harness.store.now.metadata.is_closed
    assert harness.marks() == [("b2", 4, 9)]
    check(harness)


def test_copies_acknowledged_while_a_mark_shrinks_still_count_as_marked() -> None:
    harness = WriterHarness()
    harness.add(4)
    harness.ack("b0", "b1")
    closing = harness.stop()
    closing.start(0.0)
    (mark,) = closing.take_actions()
    closing.completed(mark.tag, harness.perform(mark), 0.0)  # type: ignore[arg-type]
    harness.ack("b2", first=0, count=2)
    (update,) = closing.take_actions()
    closing.completed(update.tag, harness.perform(update), 0.0)  # type: ignore[arg-type]
    (unmark,) = closing.take_actions()
    outcome = harness.perform(unmark)  # type: ignore[arg-type]
    harness.ack("b2", first=2, count=2)
    closing.completed(unmark.tag, outcome, 0.0)
    assert closing.is_finished
    assert harness.marks() == [("b2", 2, 3)]
    assert tuple(harness.writer.marked) == harness.store.marked


def test_a_mark_without_an_end_that_the_stop_of_the_writer_gives_up_is_removed() -> None:
    """The store made it, and the answer came too late: a closed ledger kept a mark without an end."""
    harness = WriterHarness(spares=[])
    harness.add(4)
    harness.ack("b0", "b1", "b2")
    harness.lose("b2", is_gone=True)
    harness.add(2)
    harness.ack("b0", "b1")
    while not (harness.todo and isinstance(harness.todo[0], MarkReplicas)):
        harness.answer() if harness.todo else harness.pass_time(0.1)
    harness.perform(harness.todo[0])
    assert harness.marks() == [("b2", 0, None)]
    harness.close()
    assert harness.store.now.metadata.is_closed
    assert harness.marks() == [("b2", 0, 5)]
    check(harness)


def test_what_a_given_up_removal_took_away_is_marked_again_when_it_is_missing_again() -> None:
    harness = replaced()
    harness.change()
    assert harness.marks() != []
    marked = harness.writer.marked
    keeper = harness.writer._keeper
    keeper._step = ChangeMark((), marked)
    harness.store.marked = ()  # the store did it, and the writer gave it up
    harness.close()
    assert harness.store.now.metadata.is_closed
    assert missing(harness) != set()
    check(harness)
