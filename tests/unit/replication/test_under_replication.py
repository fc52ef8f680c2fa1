"""Copies that a replaced bookie lacks: given to its replacement, or marked. INV-E1, INV-E3, INV-M1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.options import ChangePolicy
from fastbk.replication.procedure import MarkReplicas, UpdateMetadata
from fastbk.replication.under_replication import UnderReplicatedShare, split
from tests.unit.replication.writer_harness import FRAME, WriterHarness, metadata_of


def missing(harness: WriterHarness) -> set[tuple[str, int]]:
    """(bookie, entry) of every acknowledged entry that a bookie lacks though the metadata names it."""
    metadata = harness.store.now.metadata
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    return {
        (bookie_id, entry_id)
        for entry_id in range(harness.writer.adds.head)
        for index, bookie_id in enumerate(metadata.fragment_of(entry_id).ensemble)
        if (index - entry_id) % size < quorum and entry_id not in harness.stored.get(bookie_id, ())
    }


def is_marked(harness: WriterHarness, bookie_id: str, entry_id: int) -> bool:
    return any(
        one.bookie_id == bookie_id and one.first_entry_id <= entry_id < one.end
        for one in harness.store.marked
    )


def check(harness: WriterHarness) -> None:
    """Nothing acknowledged is missing without a mark."""
    harness.check_acknowledged()
    for bookie_id, entry_id in missing(harness):
        assert is_marked(harness, bookie_id, entry_id), (bookie_id, entry_id)


def replaced(**options: object) -> WriterHarness:
    """A writer that has just replaced b2, which lacks the entries 4 to 9, by s0."""
    harness = WriterHarness(**options)  # type: ignore[arg-type]
    harness.add(4)
    harness.ack("b0", "b1", "b2")
    harness.lose("b2")
    harness.add(6)
    harness.ack("b0", "b1")
    harness.pass_time(1.0)
    return harness


def test_a_bookie_that_is_back_within_ten_seconds_gets_what_it_lacks() -> None:
    harness = WriterHarness(policy=ChangePolicy())
    harness.add(4)
    harness.ack("b0", "b1", "b2")
    harness.lose("b2")
    harness.add(6)
    harness.ack("b0", "b1")
    harness.pass_time(9.9)
    assert not harness.todo
    harness.connect("b2")
    harness.ack("b2")
    assert missing(harness) == set()
    assert harness.fragments() == [(0, ("b0", "b1", "b2"))]
    assert harness.marks() == []


def test_it_is_replaced_before_entries_would_be_given_up() -> None:
    harness = WriterHarness(policy=ChangePolicy(), held_bytes_max=100 * FRAME)
    harness.lose("b2")
    harness.add(74)
    harness.ack("b0", "b1")
    harness.pass_time(1.0)
    assert not harness.todo
    harness.add(1)
    harness.change()
    assert harness.writer.ensemble == ("b0", "b1", "s0")
    assert harness.writer.adds.under_replicated == [0, 0, 0]


def test_a_bookie_that_takes_what_was_held_for_it_is_not_silent() -> None:
    harness = WriterHarness(policy=ChangePolicy())
    harness.lose("b2")
    harness.add(20)
    harness.ack("b0", "b1")
    harness.pass_time(9.0)
    harness.connect("b2")
    for entry_id in range(20):
        harness.pass_time(1.0)
        harness.ack("b2", first=entry_id)
    assert not harness.todo
    assert harness.writer.ensemble == ("b0", "b1", "b2")


def test_a_bookie_that_stops_taking_what_was_held_for_it_is_silent() -> None:
    harness = WriterHarness(policy=ChangePolicy())
    harness.lose("b2")
    harness.add(20)
    harness.ack("b0", "b1")
    harness.connect("b2")
    harness.ack("b2", first=0)
    harness.pass_time(12.0)
    harness.change()
    assert harness.writer.ensemble == ("b0", "b1", "s0")


def test_the_replacement_is_named_for_what_it_was_given_and_nothing_else() -> None:
    harness = replaced()
    harness.change()
    assert harness.fragments() == [(0, ("b0", "b1", "b2")), (10, ("b0", "b1", "s0"))]
    assert harness.marks() == [("b2", 4, 9)]
    check(harness)
    harness.connect("s0")
    harness.ack("s0", first=4, count=5)
    harness.pass_time(1.0)
    harness.change()
    assert len(harness.fragments()) == 2, "its share is not whole"
    harness.ack("s0")
    harness.pass_time(1.0)
    harness.change()
    assert harness.fragments() == [
        (0, ("b0", "b1", "b2")),
        (4, ("b0", "b1", "s0")),
        (10, ("b0", "b1", "s0")),
    ]
    assert missing(harness) == set()
    assert harness.marks() == []


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_a_ledger_that_is_not_open_any_more_keeps_its_mark(state: LedgerState) -> None:
    harness = replaced()
    harness.change()
    harness.connect("s0")
    harness.ack("s0")
    before = harness.store.now.metadata
    is_closed = state is LedgerState.CLOSED
    after = before.closed(9, 1000) if is_closed else replace(before, state=state)
    harness.store.edit(after)
    harness.pass_time(1.0)
    harness.change()
    assert harness.store.now.metadata == after
    assert harness.marks() == [("b2", 4, 9)]
    assert not harness.writer.is_finished


def test_a_repair_that_came_first_is_left_alone() -> None:
    harness = replaced()
    harness.change()
    harness.connect("s0")
    harness.ack("s0")
    last = harness.store.now.metadata.fragments[1]
    harness.store.edit(fragments=(Fragment(0, ("b0", "b1", "r0")), last))
    repaired = harness.store.now.metadata
    harness.pass_time(1.0)
    harness.change()
    assert harness.store.now.metadata == repaired
    assert harness.marks() == [("b2", 4, 9)], "only a repair that verified the copies may remove it"


@pytest.mark.parametrize("takes_effect", [True, False])
def test_an_answer_that_was_lost_is_read_again(takes_effect: bool) -> None:
    harness = replaced()
    harness.change()
    harness.connect("s0")
    harness.ack("s0")
    harness.pass_time(1.0)
    assert isinstance(harness.todo[0], UpdateMetadata)
    harness.lose_reply(takes_effect=takes_effect)
    harness.change()
    assert [first for first, _ in harness.fragments()] == [0, 4, 10]
    assert harness.marks() == []


def test_a_mark_that_the_store_did_not_take_is_made_later() -> None:
    harness = replaced()
    while not isinstance(harness.todo[0], MarkReplicas):
        harness.answer()
    harness.answer(MetadataUnavailable("away"))
    assert not harness.todo
    harness.pass_time(1.0)
    harness.change()
    assert harness.marks() == [("b2", 4, 9)]


def test_a_replacement_that_fails_is_named_for_what_it_has() -> None:
    harness = replaced()
    harness.change()
    harness.connect("s0")
    harness.ack("s0", first=4, count=3)
    harness.lose("s0")
    harness.add(2)
    harness.ack("b0", "b1")
    harness.pass_time(1.0)
    harness.change()
    check(harness)
    assert harness.writer.ensemble == ("b0", "b1", "s1")
    harness.connect("s1")
    assert harness.wire["s1"] == [7, 8, 9, 10, 11]
    harness.ack("s1")
    harness.pass_time(1.0)
    harness.change()
    ensembles = [(0, "b2"), (4, "s0"), (7, "s1"), (10, "s1"), (12, "s1")]
    assert [(first, names[2]) for first, names in harness.fragments()] == ensembles
    assert missing(harness) == set()
    assert harness.marks() == []


def test_what_a_lost_bookie_had_and_nobody_holds_any_more_is_marked() -> None:
    harness = WriterHarness()
    harness.add(4)
    harness.ack("b0", "b1", "b2")
    harness.stored["b2"].clear()
    harness.lose("b2", is_gone=True)
    harness.change()
    assert harness.marks() == [("b2", 0, 3)]
    check(harness)


def test_a_lost_member_without_a_replacement_is_marked_for_everything() -> None:
    harness = WriterHarness(spares=[])
    harness.add(4)
    harness.ack("b0", "b1", "b2")
    harness.stored["b2"].clear()
    harness.lose("b2", is_gone=True)
    harness.change()
    assert harness.marks() == [("b2", 0, None)]
    harness.close()
    assert harness.marks() == [("b2", 0, 3)]


def test_entries_that_were_given_up_are_marked_at_once_and_exactly_at_the_close() -> None:
    harness = WriterHarness(spares=[], held_bytes_max=10 * FRAME)
    harness.add(4)
    harness.ack("b0", "b1", "b2")
    harness.lose("b2")
    for _ in range(30):
        harness.add(1)
        harness.ack("b0", "b1")
    harness.pass_time(2.0)
    harness.change()
    assert harness.marks() == [("b2", 4, None)]
    check(harness)
    harness.connect("b2")
    harness.ack("b2")
    assert harness.close().error is None
    check(harness)
    ((bookie_id, first, last),) = harness.marks()
    assert (bookie_id, first) == ("b2", 4)
    assert {entry_id for _, entry_id in missing(harness)} == set(range(4, (last or 0) + 1))


def test_a_split_passes_by_what_it_must_not_touch() -> None:
    metadata = metadata_of()
    share = UnderReplicatedShare(2, "s0", 3, 8, frozenset({"b2"}))
    assert split(metadata, [share]) == (metadata, ()), "the last fragment is being written"
    fragments = (
        Fragment(0, ("b0", "b1", "b2")),
        Fragment(4, ("s0", "b1", "b2")),
        Fragment(6, ("b0", "b1", "b3")),
        Fragment(7, ("b0", "b1", "b2")),
        Fragment(9, ("b0", "b1", "s0")),
    )
    found, freed = split(replace(metadata, fragments=fragments), [share])
    assert found.fragments == (
        Fragment(0, ("b0", "b1", "b2")),
        Fragment(3, ("b0", "b1", "s0")),
        *fragments[1:3],
        Fragment(7, ("b0", "b1", "s0")),
        Fragment(8, ("b0", "b1", "b2")),
        fragments[4],
    )
    assert freed == (MissingReplica("b2", 3, 3), MissingReplica("b2", 7, 7))
