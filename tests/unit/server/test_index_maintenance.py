"""Deleted ledgers go out of files and out of the tables of index and journal, and their ids may come again."""

from __future__ import annotations

from array import array
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from fastbk.native.index import ids_without
from fastbk.server.index import maintenance
from fastbk.server.index.maintenance import DELETED_KEPT_S
from fastbk.storage import maintenance as storage_maintenance
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import NO_ENTRY, NO_LEDGER, OK
from tests.fixtures.storage_harness import Book, Life, formatted_disk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastbk.native.store import Store
    from fastbk.storage.checkpoint import Change
    from fastbk.storage.maintenance import LocationsMerge

LEDGERS_MAX = 300
LOOKS_MAX = 200


fake = formatted_disk


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
    change.install(life.store)
    assert life.store.ledger_bytes(1), "it is not merged away"
    assert sum(log.live_bytes for log in life.checkpoint.manifest.logs) > 0
    answer = life.ask(life.harness.read(1, 0))
    assert answer.status == OK
    assert answer.entry is not None
    assert answer.entry.endswith(b"new")
    life.close()
    with closing(Life(fake, life.book, ledgers_max=LEDGERS_MAX)) as again:
        assert again.ask(again.harness.read(1, 0)).status == OK
        assert again.ask(again.harness.read(1, 1)).status == NO_ENTRY
        assert again.ask(again.harness.read(2, 0)).status == NO_LEDGER


def test_a_crash_before_memory_forgot_is_harmless(fake: FakeDisk, life: Life) -> None:
    fill(life, 1, 4)
    delete(life, 1, 2, 3)
    forget_on_disk(life)
    life.close()
    with closing(Life(fake, life.book, ledgers_max=LEDGERS_MAX)) as again:
        assert in_memory(again) == (1, 1)
        assert again.ask(again.harness.read(1, 0)).status == NO_LEDGER
        again.book.acked.pop((1, 0))
        assert is_acked(again, 1, 0), "as it is without the crash"


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


# Ledgers that have expired leave no tombstone (INV-G5), soon, whenever they expired and whatever
# else is going on.


DAY_S = 24 * 3600
NOW_S = 100 * DAY_S
STEP_S = 5.0


class Timed(Life):
    """Its clock stands still but for `pass_time`."""

    def _tick(self) -> float:
        return self.clock_s


def start(fake: FakeDisk, book: Book) -> Timed:
    timed = Timed(fake, book)
    timed.clock_s = NOW_S
    timed.flusher.resume_leftovers()
    return timed


@pytest.fixture
def timed(fake: FakeDisk) -> Iterator[Timed]:
    made = start(fake, Book())
    yield made
    made.close()


def haunt(timed: Timed, *ledger_ids: int, fenced: Sequence[int] = ()) -> None:
    """Make ledgers, fence some, and have the journal take nothing to them any more."""
    for ledger_id in ledger_ids:
        timed.add(ledger_id, 0, b"of %d" % ledger_id)
    timed.settle()
    for ledger_id in fenced:
        timed.fence(ledger_id)
    timed.settle()
    assert timed.index.begin_expiry(ledger_ids) == len(ledger_ids)
    timed.journal.step(0)
    timed.settle()


def expire(timed: Timed, *ledger_ids: int) -> None:
    assert timed.flusher.expire_ledgers(ledger_ids, "never listed") == len(ledger_ids)


def run_now(timed: Timed) -> None:
    """Do what can be done at this time."""
    for _ in range(6):
        timed.index_step()
        timed.journal.step(0)


def pass_time(timed: Timed, seconds: float) -> None:
    end_s = timed.clock_s + seconds
    while timed.clock_s < end_s:
        timed.clock_s += STEP_S
        run_now(timed)


def test_ledgers_that_expire_one_look_later_are_forgotten_soon_too(timed: Timed) -> None:
    """Before: ten minutes later, the pause between two merges of everything."""
    haunt(timed, 1, 2, 3, 4)
    expire(timed, 1, 2)
    run_now(timed)
    assert in_memory(timed) == (2, 2)
    expire(timed, 3, 4)
    pass_time(timed, 30)
    assert in_memory(timed) == (0, 0)


def test_a_fenced_ledger_that_metadata_has_deleted_is_remembered_for_ten_minutes(
    timed: Timed,
) -> None:
    """INV-G8. Before: forgotten at once, and its writer began the ledger anew."""
    haunt(timed, 1, 2, 3, fenced=(2, 3))
    assert timed.flusher.expire_ledgers([1, 2], "deleted", is_proven=True) == 2
    expire(timed, 3)
    pass_time(timed, 500)
    assert in_memory(timed) == (1, 1), (
        "not the one that was not fenced, nor the one of which nothing is proven"
    )
    assert list(timed.flusher.upkeep.deleted) == [2]
    haunt(timed, 4, fenced=(4,))
    assert timed.flusher.expire_ledgers([4], "deleted", is_proven=True) == 1
    pass_time(timed, 150)
    assert in_memory(timed) == (1, 1), "each has its own time"
    pass_time(timed, 600)
    assert in_memory(timed) == (0, 0)


def test_ledgers_that_expire_during_a_flush_are_forgotten_soon_too(timed: Timed) -> None:
    """Before: a day later, and only with many others; the flush that began before them took their hurry with it."""
    haunt(timed, 1, 2, 3, 4)
    expire(timed, 1, 2)
    timed.flusher.begin()  # done, but its results are not taken yet
    expire(timed, 3, 4)
    pass_time(timed, 30)
    assert in_memory(timed) == (0, 0)


def test_ledgers_that_expired_before_a_restart_are_forgotten_soon_too(fake: FakeDisk) -> None:
    """Before: a day later, and only with many others."""
    timed = start(fake, Book())
    haunt(timed, *range(1, 31))
    timed.flusher.delete_ledgers([30], "an ordinary tombstone stays")
    expire(timed, 1, 2)
    timed.flusher.begin()
    timed.close()
    with closing(start(fake, timed.book)) as again:
        assert in_memory(again) == (30, 30)
        pass_time(again, 30)
        assert in_memory(again) == (28, 28)
        assert list(again.flusher.upkeep.deleted) == [30]
        again.flusher.delete_ledgers(range(3, 10), "so many that their states go in the end")
        run_now(again)
        again.clock_s += 8 * DAY_S
        run_now(again)
        assert in_memory(again) == (20, 20), "the daily look goes on as ever"


def test_another_merge_under_way_delays_forgetting_shortly(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: ten minutes."""
    haunt(timed, 1, 2)
    real = timed.checkpoint.plan_merge
    monkeypatch.setattr(timed.checkpoint, "plan_merge", lambda *_, **__: None)
    expire(timed, 1, 2)
    pass_time(timed, 5)
    assert in_memory(timed) == (2, 2)
    monkeypatch.setattr(timed.checkpoint, "plan_merge", real)
    pass_time(timed, 30)
    assert in_memory(timed) == (0, 0)


@pytest.mark.parametrize(("merge_s", "merges_max"), [(5.0, 36), (60.0, 6)])
def test_somebody_who_makes_ghosts_all_the_time_does_not_keep_the_disk_busy(
    timed: Timed, monkeypatch: pytest.MonkeyPatch, merge_s: float, merges_max: int
) -> None:
    """One merge of everything in ten minutes, or all of them together a twentieth of the time."""
    begun: list[float] = []
    real = timed.checkpoint.commit_merge

    def commit(store: Store, merging: LocationsMerge) -> Change:
        begun.append(timed.clock_s)
        timed.clock_s += merge_s
        return real(store, merging)

    monkeypatch.setattr(timed.checkpoint, "commit_merge", commit)
    # here a recount lasts as long as its merge
    monkeypatch.setattr(maintenance, "RECOUNT_SHARE", 0)
    monkeypatch.setattr(storage_maintenance, "FILES_MAX", 1 << 30)
    monkeypatch.setattr(storage_maintenance, "MERGE_FILES_MIN", 1 << 30)
    end_s, ledger_id = timed.clock_s + 3600, 0
    while timed.clock_s < end_s:
        ledger_id += 1
        haunt(timed, ledger_id)
        expire(timed, ledger_id)
        pass_time(timed, 10)
    assert 1 < len(begun) <= merges_max
    assert in_memory(timed)[0] <= (600 + merge_s) / 10 + 2, "those of the last pause"


def test_a_merge_that_fails_is_tried_again_ever_later(fake: FakeDisk, timed: Timed) -> None:
    haunt(timed, 1, 2)
    tries: list[float] = []
    timed.room_bytes = lambda: tries.append(timed.clock_s) or 0
    expire(timed, 1, 2)
    pass_time(timed, 3000)
    pauses = [b - a for a, b in pairwise(tries)]
    assert pauses[0] == 10
    assert pauses[-1] == 600
    assert pauses == sorted(pauses)
    timed.room_bytes = lambda: 1 << 40
    pass_time(timed, 610)
    assert in_memory(timed) == (0, 0)
