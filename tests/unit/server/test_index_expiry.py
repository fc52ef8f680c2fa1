"""Ledgers that have expired leave no tombstone (INV-G5), soon, whenever they expired and whatever else is going on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from fastbk.native.store import Store
from fastbk.server.index import maintenance
from fastbk.storage import maintenance as storage_maintenance
from fastbk.storage.checkpoint import Change
from fastbk.storage.maintenance import LocationsMerge
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.storage_harness import Book, Life, format_disk

DAY_S = 24 * 3600
NOW_S = 100 * DAY_S
STEP_S = 5.0


class Timed(Life):
    """Its clock stands still but for `pass_time`."""

    def _tick(self) -> float:
        return self.clock_s


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk() as made:
        format_disk(made)
        yield made


def start(fake: FakeDisk, book: Book) -> Timed:
    life = Timed(fake, book)
    life.clock_s = NOW_S
    life.flusher.resume_leftovers()
    return life


@pytest.fixture
def life(fake: FakeDisk) -> Iterator[Timed]:
    made = start(fake, Book())
    yield made
    made.close()


def haunt(life: Timed, *ledger_ids: int, fenced: Sequence[int] = ()) -> None:
    """Make ledgers, fence some, and have the journal take nothing to them any more."""
    for ledger_id in ledger_ids:
        life.add(ledger_id, 0, b"of %d" % ledger_id)
    life.settle()
    for ledger_id in fenced:
        life.fence(ledger_id)
    life.settle()
    assert life.index.begin_expiry(ledger_ids) == len(ledger_ids)
    life.journal.step(0)
    life.settle()


def expire(life: Timed, *ledger_ids: int) -> None:
    assert life.flusher.expire_ledgers(ledger_ids, "never listed") == len(ledger_ids)


def in_memory(life: Timed) -> tuple[int, int]:
    """Ledgers that index and journal know."""
    return life.index.status.ledgers, life.journal.status.ledgers


def run(life: Timed) -> None:
    """Do what can be done at this time."""
    for _ in range(6):
        life.index_step()
        life.journal.step(0)


def pass_time(life: Timed, seconds: float) -> None:
    end_s = life.clock_s + seconds
    while life.clock_s < end_s:
        life.clock_s += STEP_S
        run(life)


def test_ledgers_that_expire_one_look_later_are_forgotten_soon_too(life: Timed) -> None:
    """Before: ten minutes later, the pause between two merges of everything."""
    haunt(life, 1, 2, 3, 4)
    expire(life, 1, 2)
    run(life)
    assert in_memory(life) == (2, 2)
    expire(life, 3, 4)
    pass_time(life, 30)
    assert in_memory(life) == (0, 0)


def test_a_fenced_ledger_that_metadata_has_deleted_is_remembered_for_ten_minutes(
    life: Timed,
) -> None:
    """INV-G8. Before: forgotten at once, and its writer began the ledger anew."""
    haunt(life, 1, 2, 3, fenced=(2, 3))
    assert life.flusher.expire_ledgers([1, 2], "deleted", is_proven=True) == 2
    expire(life, 3)
    pass_time(life, 500)
    assert in_memory(life) == (1, 1), (
        "not the one that was not fenced, nor the one of which nothing is proven"
    )
    assert list(life.flusher.upkeep.deleted) == [2]
    haunt(life, 4, fenced=(4,))
    assert life.flusher.expire_ledgers([4], "deleted", is_proven=True) == 1
    pass_time(life, 150)
    assert in_memory(life) == (1, 1), "each has its own time"
    pass_time(life, 600)
    assert in_memory(life) == (0, 0)


def test_ledgers_that_expire_during_a_flush_are_forgotten_soon_too(life: Timed) -> None:
    """Before: a day later, and only with many others; the flush that began before them took their hurry with it."""
    haunt(life, 1, 2, 3, 4)
    expire(life, 1, 2)
    life.flusher.begin()  # done, but its results are not taken yet
    expire(life, 3, 4)
    pass_time(life, 30)
    assert in_memory(life) == (0, 0)


def test_ledgers_that_expired_before_a_restart_are_forgotten_soon_too(fake: FakeDisk) -> None:
    """Before: a day later, and only with many others."""
    life = start(fake, Book())
    haunt(life, *range(1, 31))
    life.flusher.delete_ledgers([30], "an ordinary tombstone stays")
    expire(life, 1, 2)
    life.flusher.begin()
    life.close()
    again = start(fake, life.book)
    try:
        assert in_memory(again) == (30, 30)
        pass_time(again, 30)
        assert in_memory(again) == (28, 28)
        assert list(again.flusher.upkeep.deleted) == [30]
        again.flusher.delete_ledgers(range(3, 10), "so many that their states go in the end")
        run(again)
        again.clock_s += 8 * DAY_S
        run(again)
        assert in_memory(again) == (20, 20), "the daily look goes on as ever"
    finally:
        again.close()


def test_another_merge_under_way_delays_forgetting_shortly(
    life: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: ten minutes."""
    haunt(life, 1, 2)
    real = life.checkpoint.plan_merge
    monkeypatch.setattr(life.checkpoint, "plan_merge", lambda *_, **__: None)
    expire(life, 1, 2)
    pass_time(life, 5)
    assert in_memory(life) == (2, 2)
    monkeypatch.setattr(life.checkpoint, "plan_merge", real)
    pass_time(life, 30)
    assert in_memory(life) == (0, 0)


@pytest.mark.parametrize(("merge_s", "merges_max"), [(5.0, 36), (60.0, 6)])
def test_somebody_who_makes_ghosts_all_the_time_does_not_keep_the_disk_busy(
    life: Timed, monkeypatch: pytest.MonkeyPatch, merge_s: float, merges_max: int
) -> None:
    """One merge of everything in ten minutes, or all of them together a twentieth of the time."""
    begun: list[float] = []
    real = life.checkpoint.commit_merge

    def commit(store: Store, merging: LocationsMerge) -> Change:
        begun.append(life.clock_s)
        life.clock_s += merge_s
        return real(store, merging)

    monkeypatch.setattr(life.checkpoint, "commit_merge", commit)
    # here a recount lasts as long as its merge
    monkeypatch.setattr(maintenance, "RECOUNT_SHARE", 0)
    monkeypatch.setattr(storage_maintenance, "FILES_MAX", 1 << 30)
    monkeypatch.setattr(storage_maintenance, "MERGE_FILES_MIN", 1 << 30)
    end_s, ledger_id = life.clock_s + 3600, 0
    while life.clock_s < end_s:
        ledger_id += 1
        haunt(life, ledger_id)
        expire(life, ledger_id)
        pass_time(life, 10)
    assert 1 < len(begun) <= merges_max
    assert in_memory(life)[0] <= (600 + merge_s) / 10 + 2, "those of the last pause"


def test_a_merge_that_fails_is_tried_again_ever_later(
    fake: FakeDisk, life: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    haunt(life, 1, 2)
    tries: list[float] = []
    monkeypatch.setattr(life.flusher.upkeep, "room_bytes", lambda: tries.append(life.clock_s) or 0)
    expire(life, 1, 2)
    pass_time(life, 3000)
    pauses = [b - a for a, b in pairwise(tries)]
    assert pauses[0] == 10
    assert pauses[-1] == 600
    assert pauses == sorted(pauses)
    monkeypatch.setattr(life.flusher.upkeep, "room_bytes", lambda: 1 << 40)
    pass_time(life, 610)
    assert in_memory(life) == (0, 0)
