"""Copies that nobody counts on: which ledgers are settled, and what an add meets while they are dropped (INV-G2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.native.index import SETTLED_END
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import NO_ENTRY, OK, RECOVERY
from tests.fixtures.storage_harness import Book, Life, format_disk


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk() as made:
        format_disk(made)
        yield made


@pytest.fixture
def life(fake: FakeDisk) -> Iterator[Life]:
    made = Life(fake, Book())
    for ledger_id in (1, 2):
        for entry_id in range(3):
            made.add(ledger_id, entry_id, bytes(300))
    made.settle()
    made.flush()
    yield made
    made.close()


def settled(life: Life) -> dict[int, int]:
    ids, changed, cursor = life.index.list_settled(0)
    assert cursor == SETTLED_END
    return dict(zip(ids, changed, strict=True))


def begin(life: Life, *ledger_ids: int) -> tuple[list[int], list[int]]:
    marks = settled(life)
    return life.index.begin_drop(ledger_ids, [marks[each] for each in ledger_ids])


def drop(life: Life, ledger_id: int) -> None:
    ids, marks = begin(life, ledger_id)
    change = upkeep_at_once.merge_all(life.checkpoint, life.store, dropped=ids)
    assert change is not None
    life.checkpoint.install(life.store, change)
    life.index.end_drop(ids, marks, is_dropped=True)


def is_acked(life: Life, ledger_id: int, entry_id: int) -> bool:
    """Write a copy as a repair does; return whether the bookie vouches for it."""
    life.book.acked.pop((ledger_id, entry_id), None)
    life.recovery_add(ledger_id, entry_id, bytes(300))
    life.settle()
    return (ledger_id, entry_id) in life.book.acked


def test_only_what_is_flushed_is_settled(life: Life) -> None:
    assert settled(life).keys() == {1, 2}
    life.add(1, 3, b"more")
    life.fence(3)
    life.settle()
    assert settled(life).keys() == {2}
    life.flush()
    assert settled(life).keys() == {1, 2}, "a fence alone holds nothing"
    life.index.put_in_limbo([1])
    life.flusher.delete_ledgers([2], "test")
    life.flush()
    assert settled(life) == {}


def test_a_copy_that_stores_nothing_changes_the_mark_all_the_same(life: Life) -> None:
    """A repair may be told "here already" of all that it brings: it counts on that from then on."""
    before = settled(life)
    assert is_acked(life, 1, 2)
    life.flush()
    after = settled(life)
    assert after[1] > before[1]
    assert after[2] == before[2]
    assert life.index.begin_drop([1, 2], [before[1], before[2]])[0] == [2]


def test_nothing_that_goes_is_vouched_for(life: Life) -> None:
    begin(life, 1)
    assert not is_acked(life, 1, 0), "about to go"
    assert is_acked(life, 2, 0)
    assert life.ask(life.harness.read(1, 0)).status == OK, "still there"
    assert settled(life).keys() == set()


def test_dropped_copies_are_gone_and_may_come_back(life: Life, fake: FakeDisk) -> None:
    life.fence(1)
    life.settle()
    life.flush()
    drop(life, 1)
    assert life.ask(life.harness.read(1, 0)).status == NO_ENTRY
    assert life.store.ledger_bytes(1) == {}
    assert life.ask(life.harness.read(2, 0)).status == OK
    life.flush()
    assert settled(life).keys() == {2}, "not dropped twice"
    life.stop()
    again = Life(fake, Book())
    try:
        assert settled(again).keys() == {2}, "nor after a restart"
        assert not is_acked_normal(again, 1, 7), "its fence stays"
        assert is_acked(again, 1, 0)
        assert again.ask(again.harness.read(1, 0)).status == OK
        again.flush()
        assert settled(again).keys() == {1, 2}
    finally:
        again.close()


def is_acked_normal(life: Life, ledger_id: int, entry_id: int) -> bool:
    life.add(ledger_id, entry_id, b"normal")
    life.settle()
    return (ledger_id, entry_id) in life.book.acked


def test_what_comes_behind_the_end_meanwhile_stays(life: Life) -> None:
    """An id above all others needs no look: it is acknowledged while the rest goes, and lies behind what is dropped."""
    ids, marks = begin(life, 1)
    assert is_acked(life, 1, 3)
    change = upkeep_at_once.merge_all(life.checkpoint, life.store, dropped=ids)
    assert change is not None
    life.checkpoint.install(life.store, change)
    life.index.end_drop(ids, marks, is_dropped=True)
    assert life.ask(life.harness.read(1, 0)).status == NO_ENTRY
    life.flush()
    assert life.ask(life.harness.read(1, 3)).status == OK
    assert 1 in settled(life)


def test_a_flushed_cache_vouches_for_nothing_that_went(life: Life) -> None:
    drop(life, 1)
    assert is_acked(life, 1, 2), "written anew"
    life.flush()
    assert life.store.ledger_bytes(1) != {}


def test_no_drop_begins_while_a_flush_is_under_way(life: Life) -> None:
    marks = settled(life)
    life.index.seal()
    assert life.index.begin_drop([1], [marks[1]]) == ([], [])


def test_a_drop_that_is_given_up_leaves_all(life: Life) -> None:
    ids, marks = begin(life, 1, 2)
    life.index.end_drop(ids, marks, is_dropped=False)
    assert settled(life).keys() == {1, 2}
    assert is_acked(life, 1, 0)


def test_no_drop_begins_while_an_add_is_compared(life: Life) -> None:
    for entry_id in range(2):  # else the caches that were flushed answer at once
        life.add(2, 10 + entry_id, b"x")
        life.settle()
        life.flush()
    mark = settled(life)[1]
    life.harness.add(1, 0, bytes(300), flags=RECOVERY)
    while not life.journal.status.in_flight and life.journal.status.waiting_bytes:
        life.journal.step(5)
    while life.journal.status.in_flight:
        life.journal.step(5)
    while not life.index.status.checks:
        life.index.step(0)
    assert life.index.begin_drop([1], [mark])[0] == []
    life.settle()
    life.flush()
    assert life.index.begin_drop([1], [mark])[0] == [], "and it has changed the mark"
