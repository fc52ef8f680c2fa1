"""Deleted ledgers go out of files and out of the tables of index and journal, and their ids may come again."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from fastbk.native.index import ids_without
from fastbk.server.index.maintenance import DELETED_KEPT_S
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import NO_ENTRY, NO_LEDGER, OK
from tests.fixtures.storage_harness import Book, Life, format_disk

LEDGERS_MAX = 300
LOOKS_MAX = 200


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk() as made:
        format_disk(made)
        yield made


@pytest.fixture
def life(fake: FakeDisk) -> Iterator[Life]:
    made = Life(fake, Book(), ledgers_max=LEDGERS_MAX)
    yield made
    made.close()


def fill(life: Life, first: int, count: int, *, entry_id: int = 0) -> None:
    for ledger_id in range(first, first + count):
        life.add(ledger_id, entry_id, b"of %d" % ledger_id)
        if ledger_id % 50 == 0:
            life.settle()
    life.settle()


def delete(life: Life, *ledger_ids: int) -> None:
    life.flusher.delete_ledgers(ledger_ids, "gone from metadata")
    life.flush()


def in_memory(life: Life) -> tuple[int, int]:
    """Ledgers that index and journal know."""
    return life.index.status.ledgers, life.journal.status.ledgers


def is_acked(life: Life, ledger_id: int, entry_id: int, data: bytes = b"new") -> bool:
    life.add(ledger_id, entry_id, data)
    life.settle()
    return (ledger_id, entry_id) in life.book.acked


def on_disk(life: Life) -> set[int]:
    return {
        state.ledger_id
        for entry in life.checkpoint.manifest.locations
        for state in life.store.states(entry.file_id)
    }


def forget_on_disk(life: Life, *, days: int = 8) -> None:
    """Let time pass until the merge of everything is installed; memory is as before."""
    life.clock_s += days * 24 * 3600
    for _ in range(LOOKS_MAX):
        life.flusher.poll()
        if life.flusher.upkeep.forgetting.is_installed:
            return
    raise AssertionError("nothing was forgotten")


def run(life: Life, steps: int = LOOKS_MAX) -> None:
    """Let index and journal work until nothing is being forgotten any more."""
    for _ in range(steps):
        if not life.flusher.upkeep.forgetting.is_planned:
            return
        life.index_step()
        life.journal.step(0)
    raise AssertionError("it does not end")


def test_a_full_bookie_takes_new_ledgers_again_without_a_restart(life: Life) -> None:
    fill(life, 1, LEDGERS_MAX)
    assert not is_acked(life, 1000, 0)
    delete(life, *range(1, LEDGERS_MAX))
    assert not is_acked(life, 1000, 1)
    assert in_memory(life) == (LEDGERS_MAX, LEDGERS_MAX)
    forget_on_disk(life)
    assert on_disk(life) == {LEDGERS_MAX}
    assert in_memory(life) == (LEDGERS_MAX, LEDGERS_MAX), "not before nothing can find them"
    run(life)
    assert in_memory(life) == (1, 1)
    assert list(life.flusher.upkeep.deleted) == []
    assert life.ask(life.harness.read(5, 0)).status == NO_LEDGER
    assert life.ask(life.harness.read(LEDGERS_MAX, 0)).status == OK, "it lives"
    fill(life, 2000, LEDGERS_MAX - 1)
    assert in_memory(life) == (LEDGERS_MAX, LEDGERS_MAX)
    assert {(each, 0) for each in range(2000, 2000 + LEDGERS_MAX - 1)} <= life.book.acked.keys()
    life.flush()
    for ledger_id in (2000, 2000 + LEDGERS_MAX - 2):
        assert life.ask(life.harness.read(ledger_id, 0)).status == OK


def test_an_id_that_comes_again_is_a_new_ledger_s(fake: FakeDisk, life: Life) -> None:
    """Nothing of the old one is found, and nothing takes the new one for deleted: neither now nor after a restart."""
    fill(life, 1, 3)
    life.add(1, 1, b"the old one's")
    life.settle()
    assert life.ask(life.harness.write_lac(1, 1)).status == OK
    life.flush()
    assert life.ask(life.harness.read(1, 1)).status == OK, "a cached run"
    delete(life, 1, 2)
    forget_on_disk(life)
    run(life)
    life.book.acked.pop((1, 0))
    assert is_acked(life, 1, 0, b"new")
    assert life.ask(life.harness.read(1, 1)).status == NO_ENTRY
    lac = life.ask(life.harness.read_lac(1))
    assert (lac.lac, lac.body) == (-1, b"")
    life.flush()
    life.flusher.upkeep.recount()
    for _ in range(20):
        life.flusher.poll()
    change = upkeep_at_once.merge_all(life.checkpoint, life.store, life.flusher.upkeep.deleted)
    assert change is not None
    life.checkpoint.install(life.store, change)
    assert life.store.ledger_bytes(1), "it is not merged away"
    assert sum(log.live_bytes for log in life.checkpoint.manifest.logs) > 0
    answer = life.ask(life.harness.read(1, 0))
    assert answer.status == OK
    assert answer.entry is not None
    assert answer.entry.endswith(b"new")
    life.close()
    again = Life(fake, life.book, ledgers_max=LEDGERS_MAX)
    try:
        assert again.ask(again.harness.read(1, 0)).status == OK
        assert again.ask(again.harness.read(1, 1)).status == NO_ENTRY
        assert again.ask(again.harness.read(2, 0)).status == NO_LEDGER
    finally:
        again.close()


def test_a_crash_before_memory_forgot_is_harmless(fake: FakeDisk, life: Life) -> None:
    fill(life, 1, 4)
    delete(life, 1, 2, 3)
    forget_on_disk(life)
    life.close()
    again = Life(fake, life.book, ledgers_max=LEDGERS_MAX)
    try:
        assert in_memory(again) == (1, 1)
        assert again.ask(again.harness.read(1, 0)).status == NO_LEDGER
        again.book.acked.pop((1, 0))
        assert is_acked(again, 1, 0), "as it is without the crash"
    finally:
        again.close()


def test_what_was_deleted_lately_or_changed_since_stays(life: Life) -> None:
    fill(life, 1, 40)
    delete(life, *range(1, 31))
    life.clock_s += DELETED_KEPT_S
    delete(life, 31)
    forget_on_disk(life, days=1)
    life.fence(2)  # written, and on its way to the index when the journal is asked
    life.journal.step(0)
    life.index.step(0)
    run(life)
    life.settle()
    assert in_memory(life) == (11, 11), "29 are gone: not 2, nor 31, nor those that live"
    assert not is_acked(life, 2, 7), "its fence, and its deletion, stay"
    assert not is_acked(life, 31, 7)
    assert is_acked(life, 3, 7)
    assert list(life.flusher.upkeep.deleted) == [2, 31]
    life.flush()
    assert 2 in on_disk(life), "or a restart would forget its fence"


def test_adds_behind_the_journal_s_answer_are_a_new_ledger_s(life: Life) -> None:
    """The index may be batches behind: it forgets at the place in the order where the journal did."""
    fill(life, 1, 20)
    delete(life, *range(1, 20))
    forget_on_disk(life)
    for _ in range(3):
        life.flusher.poll()
    life.index.step(0)  # asks
    life.book.acked.clear()
    life.fence(7)  # of a ledger that is known as deleted until the journal has looked at the notice
    life.journal.step(0)
    for ledger_id in range(1, 20):
        life.add(ledger_id, 0, b"new %d" % ledger_id)
        while life.journal.status.waiting_bytes or life.journal.status.in_flight:
            life.journal.step(5)
    assert in_memory(life)[0] == 20, "the index has seen none of it"
    run(life)
    life.settle()
    for ledger_id in range(1, 20):
        if (ledger_id, 0) not in life.book.acked:
            assert ledger_id == 7, "fenced, before or after it was forgotten"
            continue
        answer = life.ask(life.harness.read(ledger_id, 0))
        assert answer.status == OK
        assert answer.entry is not None
        assert answer.entry.endswith(b"new %d" % ledger_id)
    assert len(life.book.acked) >= 18


def test_nothing_is_merged_while_ids_are_between_deleted_and_unknown(life: Life) -> None:
    fill(life, 1, 20)
    delete(life, *range(1, 20))
    forget_on_disk(life)
    upkeep = life.flusher.upkeep
    life.flusher.poll()
    assert upkeep.forgetting.is_begun
    logs = [log.log_id for log in life.checkpoint.manifest.logs]
    assert not upkeep.compact(logs, 1 << 30, 60.0)
    generation = life.checkpoint.manifest.generation
    for _ in range(20):
        upkeep.recount()
    assert life.checkpoint.manifest.generation == generation
    assert upkeep._wants_recount, "it waits"
    run(life)
    assert not upkeep.forgetting.is_begun


def test_a_deletion_whose_flush_is_under_way_meanwhile(life: Life) -> None:
    """The list of deleted ledgers that comes with its end was made before others were forgotten."""
    fill(life, 1, 20)
    delete(life, *range(1, 18))
    forget_on_disk(life)
    life.flusher.delete_ledgers([18], "test")
    life.flusher.begin()  # done, but its results are not taken yet
    life.flusher.upkeep.poll()
    while life.flusher.upkeep.forgetting.is_planned:
        life.index.step(0)
        life.journal.step(0)
        life.flusher.upkeep.poll()
    assert in_memory(life) == (3, 3)
    life.flush()
    assert list(life.flusher.upkeep.deleted) == [18]


def test_ids_without_others() -> None:
    assert ids_without(array("q", [1, 2, 3, 7]), array("q", [0, 2, 7, 9])) == array("q", [1, 3])
    assert ids_without(array("q"), array("q", [1])) == array("q")
    assert ids_without(array("q", [1]), array("q")) == array("q", [1])
    given = array("q", [5, 6])
    assert ids_without(given, array("q", [5, 6])) == array("q")
    assert given == array("q", [5, 6])
