"""Copies that a replaced bookie lacks: given to its replacement, or marked. INV-E1, INV-E3, INV-M1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.actions import MarkReplicas, UpdateMetadata
from fastbk.replication.options import ChangePolicy
from fastbk.replication.under_replication import OwedShare, split
from tests.unit.replication.writer_harness import FRAME, Rig, metadata_of, run


def marks(rig: Rig) -> list[tuple[str, int, int | None]]:
    return [(one.bookie_id, one.first_entry_id, one.last_entry_id) for one in rig.store.marked]


def missing(rig: Rig) -> set[tuple[str, int]]:
    """(bookie, entry) of every acknowledged entry that a bookie lacks though the metadata names it."""
    metadata = rig.store.now.metadata
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    return {
        (bookie_id, entry_id)
        for entry_id in range(rig.writer.adds.head)
        for index, bookie_id in enumerate(metadata.fragment_of(entry_id).ensemble)
        if (index - entry_id) % size < quorum and entry_id not in rig.stored.get(bookie_id, ())
    }


def is_marked(rig: Rig, bookie_id: str, entry_id: int) -> bool:
    return any(
        one.bookie_id == bookie_id and one.first_entry_id <= entry_id < one.end
        for one in rig.store.marked
    )


def check(rig: Rig) -> None:
    """Nothing acknowledged is missing without a mark."""
    rig.check_acknowledged()
    for bookie_id, entry_id in missing(rig):
        assert is_marked(rig, bookie_id, entry_id), (bookie_id, entry_id)


def replaced(**options: object) -> Rig:
    """A writer that has just replaced b2, which lacks the entries 4 to 9, by s0."""
    rig = Rig(**options)  # type: ignore[arg-type]
    rig.add(4)
    rig.ack("b0", "b1", "b2")
    rig.lose("b2")
    rig.add(6)
    rig.ack("b0", "b1")
    rig.pass_time(1.0)
    return rig


def test_a_bookie_that_is_back_within_ten_seconds_gets_what_it_lacks() -> None:
    rig = Rig(policy=ChangePolicy())
    rig.add(4)
    rig.ack("b0", "b1", "b2")
    rig.lose("b2")
    rig.add(6)
    rig.ack("b0", "b1")
    rig.pass_time(9.9)
    assert not rig.todo
    rig.connect("b2")
    rig.ack("b2")
    assert missing(rig) == set()
    assert rig.fragments() == [(0, ("b0", "b1", "b2"))]
    assert marks(rig) == []


def test_it_is_replaced_after_ten_seconds() -> None:
    rig = Rig(policy=ChangePolicy())
    rig.lose("b2")
    rig.add(1)
    rig.ack("b0", "b1")
    rig.pass_time(10.0)
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "s0")


def test_it_is_replaced_before_entries_would_be_given_up() -> None:
    rig = Rig(policy=ChangePolicy(), held_bytes_max=100 * FRAME)
    rig.lose("b2")
    rig.add(74)
    rig.ack("b0", "b1")
    rig.pass_time(1.0)
    assert not rig.todo
    rig.add(1)
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "s0")
    assert rig.writer.adds.under_replicated == [0, 0, 0]


def test_it_is_replaced_at_once_when_the_ack_quorum_needs_it() -> None:
    rig = Rig(policy=ChangePolicy())
    rig.add(1)
    rig.lose("b2")
    rig.lose("b1")
    rig.change()
    assert rig.writer.ensemble == ("b0", "s0", "s1")


def test_a_bookie_that_takes_what_was_held_for_it_is_not_silent() -> None:
    rig = Rig(policy=ChangePolicy())
    rig.lose("b2")
    rig.add(20)
    rig.ack("b0", "b1")
    rig.pass_time(9.0)
    rig.connect("b2")
    for entry_id in range(20):
        rig.pass_time(1.0)
        rig.ack("b2", first=entry_id)
    assert not rig.todo
    assert rig.writer.ensemble == ("b0", "b1", "b2")


def test_a_bookie_that_stops_taking_what_was_held_for_it_is_silent() -> None:
    rig = Rig(policy=ChangePolicy())
    rig.lose("b2")
    rig.add(20)
    rig.ack("b0", "b1")
    rig.connect("b2")
    rig.ack("b2", first=0)
    rig.pass_time(12.0)
    rig.change()
    assert rig.writer.ensemble == ("b0", "b1", "s0")


def test_the_replacement_is_named_for_what_it_was_given_and_nothing_else() -> None:
    rig = replaced()
    rig.change()
    assert rig.fragments() == [(0, ("b0", "b1", "b2")), (10, ("b0", "b1", "s0"))]
    assert marks(rig) == [("b2", 4, 9)]
    check(rig)
    rig.connect("s0")
    rig.ack("s0", first=4, count=5)
    rig.pass_time(1.0)
    rig.change()
    assert len(rig.fragments()) == 2, "its share is not whole"
    rig.ack("s0")
    rig.pass_time(1.0)
    rig.change()
    assert rig.fragments() == [
        (0, ("b0", "b1", "b2")),
        (4, ("b0", "b1", "s0")),
        (10, ("b0", "b1", "s0")),
    ]
    assert missing(rig) == set()
    assert marks(rig) == []


def test_copies_count_for_nothing_under_the_old_fragment() -> None:
    rig = Rig()
    rig.lose("b2")
    rig.add(4)
    rig.ack("b0", "b1")
    rig.add(2)
    rig.ack("b0")
    rig.pass_time(1.0)
    rig.change()
    rig.connect("s0")
    rig.ack("s0", first=0, count=4)
    assert rig.writer.adds.head == 4
    rig.ack("s0", first=4)
    assert rig.writer.adds.head == 5, "from there on it is a member"
    rig.check_acknowledged()


def test_shares_of_a_striped_ledger_are_copied() -> None:
    rig = Rig(5, 3, 2)
    rig.lose("b2")
    rig.add(50)
    rig.ack("b0", "b1", "b3", "b4")
    rig.pass_time(1.0)
    rig.change()
    check(rig)
    rig.connect("s0")
    assert set(rig.wire["s0"]) == {one for one in range(50) if (2 - one) % 5 < 3}
    rig.ack("s0")
    rig.pass_time(1.0)
    rig.change()
    assert missing(rig) == set()
    assert marks(rig) == []


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_a_ledger_that_is_not_open_any_more_keeps_its_mark(state: LedgerState) -> None:
    rig = replaced()
    rig.change()
    rig.connect("s0")
    rig.ack("s0")
    now = rig.store.now
    after = (
        now.metadata.closed(9, 1000)
        if state is LedgerState.CLOSED
        else replace(now.metadata, state=state)
    )
    rig.store.update(after, now.version)
    rig.pass_time(1.0)
    rig.change()
    assert rig.store.now.metadata == after
    assert marks(rig) == [("b2", 4, 9)]
    assert not rig.writer.is_finished


def test_a_repair_that_came_first_is_left_alone() -> None:
    rig = replaced()
    rig.change()
    rig.connect("s0")
    rig.ack("s0")
    now = rig.store.now
    fragments = (Fragment(0, ("b0", "b1", "r0")), now.metadata.fragments[1])
    repaired = replace(now.metadata, fragments=fragments)
    rig.store.update(repaired, now.version)
    rig.pass_time(1.0)
    rig.change()
    assert rig.store.now.metadata == repaired
    assert marks(rig) == [("b2", 4, 9)], "only a repair that verified the copies may remove it"


@pytest.mark.parametrize("takes_effect", [True, False])
def test_an_answer_that_was_lost_is_read_again(takes_effect: bool) -> None:
    rig = replaced()
    rig.change()
    rig.connect("s0")
    rig.ack("s0")
    rig.pass_time(1.0)
    assert isinstance(rig.todo[0], UpdateMetadata)
    rig.lose_reply(takes_effect=takes_effect)
    rig.change()
    assert [first for first, _ in rig.fragments()] == [0, 4, 10]
    assert marks(rig) == []


def test_a_mark_that_the_store_did_not_take_is_made_later() -> None:
    rig = replaced()
    while not isinstance(rig.todo[0], MarkReplicas):
        rig.answer()
    rig.answer(MetadataUnavailable("away"))
    assert not rig.todo
    rig.pass_time(1.0)
    rig.change()
    assert marks(rig) == [("b2", 4, 9)]


def test_a_replacement_that_fails_is_named_for_what_it_has() -> None:
    rig = replaced()
    rig.change()
    rig.connect("s0")
    rig.ack("s0", first=4, count=3)
    rig.lose("s0")
    rig.add(2)
    rig.ack("b0", "b1")
    rig.pass_time(1.0)
    rig.change()
    check(rig)
    assert rig.writer.ensemble == ("b0", "b1", "s1")
    rig.connect("s1")
    assert rig.wire["s1"] == [7, 8, 9, 10, 11]
    rig.ack("s1")
    rig.pass_time(1.0)
    rig.change()
    ensembles = [(0, "b2"), (4, "s0"), (7, "s1"), (10, "s1"), (12, "s1")]
    assert [(first, names[2]) for first, names in rig.fragments()] == ensembles
    assert missing(rig) == set()
    assert marks(rig) == []


def test_a_replacement_whose_data_is_lost_is_named_for_nothing() -> None:
    rig = replaced()
    rig.change()
    rig.connect("s0")
    rig.ack("s0", first=4, count=3)
    rig.add(1)
    rig.ack("b0", "b1")
    rig.stored["s0"].clear()
    rig.lose("s0", is_gone=True)
    rig.change()
    check(rig)
    rig.connect("s1")
    rig.ack("s1")
    rig.pass_time(1.0)
    rig.change()
    check(rig)
    assert missing(rig) <= {("b2", entry_id) for entry_id in range(4, 10)}


def test_what_a_lost_bookie_had_and_nobody_holds_any_more_is_marked() -> None:
    rig = Rig()
    rig.add(4)
    rig.ack("b0", "b1", "b2")
    rig.stored["b2"].clear()
    rig.lose("b2", is_gone=True)
    rig.change()
    assert marks(rig) == [("b2", 0, 3)]
    check(rig)


def test_a_lost_member_without_a_replacement_is_marked_for_everything() -> None:
    rig = Rig(spares=[])
    rig.add(4)
    rig.ack("b0", "b1", "b2")
    rig.stored["b2"].clear()
    rig.lose("b2", is_gone=True)
    rig.change()
    assert marks(rig) == [("b2", 0, None)]
    rig.writer.stop(rig.now_s)
    rig.take()
    run(rig.writer.closing(10.0), rig)  # type: ignore[arg-type]
    assert marks(rig) == [("b2", 0, 3)]


def test_entries_that_were_given_up_are_marked_at_once_and_exactly_at_the_close() -> None:
    rig = Rig(spares=[], held_bytes_max=10 * FRAME)
    rig.add(4)
    rig.ack("b0", "b1", "b2")
    rig.lose("b2")
    for _ in range(30):
        rig.add(1)
        rig.ack("b0", "b1")
    rig.pass_time(2.0)
    rig.change()
    assert marks(rig) == [("b2", 4, None)]
    check(rig)
    rig.connect("b2")
    rig.ack("b2")
    closing = rig.writer.closing(10.0)
    rig.writer.stop(rig.now_s)
    rig.take()
    run(closing, rig)  # type: ignore[arg-type]
    assert closing.error is None
    check(rig)
    ((bookie_id, first, last),) = marks(rig)
    assert (bookie_id, first) == ("b2", 4)
    assert {entry_id for _, entry_id in missing(rig)} == set(range(4, (last or 0) + 1))


def test_a_split_passes_by_what_it_must_not_touch() -> None:
    metadata = metadata_of()
    share = OwedShare(2, "s0", 3, 8, frozenset({"b2"}))
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
