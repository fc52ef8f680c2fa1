"""A writer's close: P27, lost answers, and two that close. INV-M1.

Copies that are missing are marked before it, and named with it where they are whole. INV-E3.
"""

from __future__ import annotations

import pytest

from fastbk.errors import LedgerClosed, MetadataUnavailable, NoSuchLedger
from fastbk.model.ledger import LedgerState
from fastbk.replication.procedure import Action, MarkReplicas, ReadMetadata, Sleep, UpdateMetadata
from fastbk.replication.under_replication import ChangeMark
from fastbk.replication.writer_machine import CloseLedger
from tests.unit.replication.test_under_replication import check, missing, replaced
from tests.unit.replication.writer_harness import WriterHarness, run


def rig_with(entries: int) -> WriterHarness:
    harness = WriterHarness()
    harness.add(entries)
    harness.ack("b0", "b1", "b2")
    return harness


def next_of(closing: CloseLedger) -> tuple[int, Action]:
    """Return the one action that a close asks for now, and its tag."""
    (asked,) = closing.take_actions()
    return asked


def test_a_close_is_one_update_that_says_where_the_ledger_ends() -> None:
    harness = rig_with(3)
    closing = harness.stop()
    closing.start(0.0)
    tag, update = next_of(closing)
    assert isinstance(update, UpdateMetadata)
    closing.completed(tag, harness.store.update(update.metadata, update.version), 0.0)
    metadata = harness.store.now.metadata
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 2, 300)
    assert closing.value() == harness.store.now


@pytest.mark.parametrize(("last", "length"), [(1, 200), (2, 299), (5, 600)])
def test_p27_a_ledger_that_was_closed_elsewhere_is_an_error_that_names_both_ends(
    last: int, length: int
) -> None:
    harness = rig_with(3)
    harness.store.edit(harness.store.now.metadata.closed(last, length))
    closing = harness.close()
    assert isinstance(closing.error, LedgerClosed)
    assert f"at entry {last} ({length} bytes)" in str(closing.error)
    assert "last is 2 (300 bytes)" in str(closing.error)
    assert harness.store.now.metadata.last_entry_id == last


def test_a_ledger_that_was_closed_just_so_is_success() -> None:
    harness = rig_with(3)
    harness.store.edit(harness.store.now.metadata.closed(2, 300))
    closing = harness.close()
    assert closing.value() == harness.store.now
    assert harness.store.now.version == 1


@pytest.mark.parametrize("takes_effect", [True, False])
def test_an_answer_that_was_lost_is_read_again(takes_effect: bool) -> None:
    harness = rig_with(3)
    closing = harness.stop()
    closing.start(0.0)
    tag, update = next_of(closing)
    assert isinstance(update, UpdateMetadata)
    if takes_effect:
        harness.store.update(update.metadata, update.version)
    closing.completed(tag, MetadataUnavailable("no answer"), 0.0)
    tag, sleep = next_of(closing)
    assert isinstance(sleep, Sleep)
    closing.completed(tag, None, 0.1)
    tag, read = next_of(closing)
    assert isinstance(read, ReadMetadata)
    closing.completed(tag, harness.store.now, 0.1)
    for tag, again in closing.take_actions():
        assert isinstance(again, UpdateMetadata)
        closing.completed(tag, harness.store.update(again.metadata, again.version), 0.2)
    assert closing.value().metadata.last_entry_id == 2
    assert harness.store.now.version == 1


def test_a_store_that_stays_away_ends_the_close_with_an_unknown_outcome() -> None:
    harness = rig_with(3)
    harness.stop()
    closing = harness.writer.closing(1.0)
    closing.start(0.0)
    now_s = 0.0
    for _ in range(100):
        if closing.is_finished:
            break
        for tag, action in closing.take_actions():
            now_s += action.pause_s if isinstance(action, Sleep) else 0.0
            outcome = None if isinstance(action, Sleep) else MetadataUnavailable("away")
            assert isinstance(action, Sleep | ReadMetadata | UpdateMetadata)
            closing.completed(tag, outcome, now_s)
    assert isinstance(closing.error, MetadataUnavailable)
    assert closing.error.outcome == "unknown"
    assert 0.5 < now_s <= 1.0


def test_a_deleted_ledger_cannot_be_closed() -> None:
    closing = CloseLedger(7, None, 2, 300, 1.0)
    closing.start(0.0)
    tag, read = next_of(closing)
    assert isinstance(read, ReadMetadata)
    closing.completed(tag, NoSuchLedger("deleted"), 0.0)
    assert isinstance(closing.error, NoSuchLedger)


def test_a_change_that_was_given_up_may_still_reach_the_store_before_the_close() -> None:
    harness = WriterHarness()
    harness.add(3)
    harness.ack("b0", "b1")
    harness.fail("b2")
    update = harness.todo[0]
    assert isinstance(update, UpdateMetadata)
    closing = harness.stop()
    harness.store.update(update.metadata, update.version)
    run(closing, harness)  # type: ignore[arg-type]
    assert harness.store.now.metadata.last_entry_id == 2
    assert harness.fragments()[-1] == (3, ("b0", "b1", "s0"))


def test_a_close_marks_what_is_missing_before_it_closes() -> None:
    harness = WriterHarness()
    harness.add(4)
    harness.ack("b0", "b1")
    closing = harness.stop()
    closing.start(0.0)
    tag, mark = next_of(closing)
    assert isinstance(mark, MarkReplicas)
    closing.completed(tag, MetadataUnavailable("away"), 0.0)
    assert not harness.store.now.metadata.is_closed
    tag, _ = next_of(closing)
    closing.completed(tag, None, 0.2)
    tag, mark = next_of(closing)
    closing.completed(tag, harness.perform(mark), 0.2)  # type: ignore[arg-type]
    assert harness.marks() == [("b2", 0, 3)]
    tag, update = next_of(closing)
    closing.completed(tag, harness.perform(update), 0.2)  # type: ignore[arg-type]
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


def test_copies_acknowledged_while_a_mark_shrinks_still_count_as_marked() -> None:
    harness = WriterHarness()
    harness.add(4)
    harness.ack("b0", "b1")
    closing = harness.stop()
    closing.start(0.0)
    tag, mark = next_of(closing)
    closing.completed(tag, harness.perform(mark), 0.0)  # type: ignore[arg-type]
    harness.ack("b2", first=0, count=2)
    tag, update = next_of(closing)
    closing.completed(tag, harness.perform(update), 0.0)  # type: ignore[arg-type]
    tag, unmark = next_of(closing)
    outcome = harness.perform(unmark)  # type: ignore[arg-type]
    harness.ack("b2", first=2, count=2)
    closing.completed(tag, outcome, 0.0)
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
