"""Compaction: what is moved, joined and given up; damage, unreadable logs, deadlines; what a crash leaves."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest

from fastbk.native.store import Scope
from fastbk.storage.checkpoint import CheckpointFailed, CheckpointSettings
from fastbk.storage.commits import DeletionLog
from fastbk.storage.directories import log_path
from fastbk.storage.maintenance import Compaction, CompactionSettings
from fastbk.storage.manifest import COMPACTION, ManifestSlots
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FOREVER, FakeDisk
from tests.fixtures.store_harness import (
    CANNOT_TELL,
    DIRECTORY,
    NO_ENTRY,
    OK,
    Life,
    StoreHarness,
    entry_bytes,
    life_of_harness,
)

LAST = 2**63 - 1


@pytest.fixture
def harness() -> Iterator[StoreHarness]:
    """Four logs of two ledgers and one of a third, each log from one flush; a fifth that is not sealed."""
    with FakeDisk() as fake:
        made = StoreHarness(fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1))
        made.birth()
        made.start()
        for part in range(4):
            ids = range(10 * part, 10 * part + 10)
            made.flush([(ledger_id, i) for ledger_id in (1, 2) for i in ids])
        made.flush([(3, 0)])
        yield made
        made.end()


life = life_of_harness


def logs_of(life: Life) -> list[int]:
    return [log.log_id for log in life.checkpoint.manifest.logs]


def runs_of(life: Life, ledger_id: int) -> list[tuple[int, int]]:
    files = [entry.file_id for entry in life.checkpoint.manifest.locations]
    runs = life.store.log_runs(Scope(files, logs_of(life)))
    return sorted(
        (run.first_entry_id, run.last_entry_id) for run in runs if run.ledger_id == ledger_id
    )


def corrupt(harness: StoreHarness, life: Life, ledger_id: int, entry_id: int) -> None:
    """Change a byte of an entry on the disk."""
    files = [entry.file_id for entry in life.checkpoint.manifest.locations]
    for run in life.store.log_runs(Scope(files, logs_of(life))):
        if run.ledger_id == ledger_id and run.first_entry_id <= entry_id <= run.last_entry_id:
            path = log_path(DIRECTORY, run.log_id)
            raw = life.disk.read_file(path)
            at = raw.index(entry_bytes(ledger_id, entry_id), run.offset_bytes)
            harness.fake.corrupt(path, at + 20)
            life.store.forget_log(run.log_id)
            return
    raise AssertionError("no such entry")


def test_what_lives_is_moved_and_the_logs_go(harness: StoreHarness, life: Life) -> None:
    harness.delete(2)
    before = sum(log.durable_bytes for log in life.checkpoint.manifest.logs)
    harness.compact(1, 2, 3, 4)
    assert logs_of(life) == [5, 6]
    new = life.checkpoint.manifest.logs[1]
    assert (new.kind, new.sealed) == (COMPACTION, True)
    assert new.durable_bytes < before
    harness.check()
    harness.check_files()
    assert life.store.read(2, 0, LAST).status == NO_ENTRY
    lines = DeletionLog(life.disk, DIRECTORY).read()
    assert [line["deleted"] for line in lines] == [log_path(DIRECTORY, i) for i in (1, 2, 3, 4)]
    assert lines[0]["reason"] == f"compacted into {6:016x}"
    harness.restart()
    harness.check()


def test_neighbours_are_joined(harness: StoreHarness, life: Life) -> None:
    """Runs of four flushes, in windows of one log each; within a window what belongs together lies together."""
    assert len(runs_of(life, 1)) == 4
    harness.compact(1, 2, 3, 4)
    assert len(runs_of(life, 1)) == 4, "a window does not reach over logs"
    with FakeDisk() as fake:
        other = StoreHarness(fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1 << 20))
        other.birth()
        one = other.start()
        for part in range(4):
            other.flush([(1, i) for i in range(10 * part, 10 * part + 10)])
        other.restart()
        other.flush([(2, 0)])
        one = other.start()
        other.compact(1)
        assert runs_of(one, 1) == [(0, 39)]
        other.check()
        other.end()


def test_locations_are_not_rewritten(harness: StoreHarness, life: Life) -> None:
    """INV-X5: the old ones are void, the new ones come in a file of their own, until a merge drops what is void."""
    before = life.checkpoint.manifest.locations
    harness.compact(1, 2)
    after = life.checkpoint.manifest.locations
    assert set(before) < set(after)
    assert len(after) == len(before) + 1
    harness.merge_all()
    (merged,) = life.checkpoint.manifest.locations
    assert sum(1 for _ in life.store.log_runs(Scope([merged.file_id], None))) == 9
    harness.check()


def test_nothing_lives_in_them(harness: StoreHarness, life: Life) -> None:
    harness.maybe_deleted = {1, 2}
    harness.flush([])
    change = upkeep_at_once.compact(life.checkpoint, life.store, [1, 2, 3, 4], harness.deleted)
    assert change is not None
    assert change.add == ()
    harness.take(change)
    assert logs_of(life) == [5]
    harness.check_files()


def test_a_damaged_entry_stops_nothing_and_stays_cannot_tell(
    harness: StoreHarness, life: Life
) -> None:
    corrupt(harness, life, 1, 13)
    assert life.store.read(1, 13, 13).status == CANNOT_TELL
    plan = life.checkpoint.plan_compaction([1, 2, 3, 4])
    assert plan is not None
    while plan.step(life.store):
        pass
    harness.take(life.checkpoint.commit_compaction(life.store, plan))
    assert plan.counts.bad_ranges == [(1, 13, 13)]
    assert (plan.counts.bad_runs, plan.counts.bad_entries) == (1, 1)
    for merged in (False, True):
        if merged:
            harness.merge_all()
        assert life.store.read(1, 13, 13).status == CANNOT_TELL
        assert life.store.read(1, 12, LAST).entry_id == 12
        assert life.store.read(1, 14, LAST).entry_id == 14
        assert life.store.list(1).status == CANNOT_TELL
        assert life.store.list(2).ranges == ((0, 39),)
    # A repair gives a good copy: then it is told.
    harness.pending = [(1, 13)]
    harness.flush([])
    assert life.store.read(1, 13, 13).entry == entry_bytes(1, 13)
    assert life.store.read(1, 0, LAST).status == OK
    assert life.store.list(1).ranges == ((0, 39),)
    harness.merge_all()
    assert life.store.read(1, 13, 13).status == OK
    assert life.store.list(1).ranges == ((0, 39),)
    harness.compact()
    harness.check()


def test_a_striped_ledger_s_damage_is_over_once_it_is_repaired(
    harness: StoreHarness, life: Life
) -> None:
    """Ids that were never here are not taken for damaged ones."""
    mine = [(9, i) for i in range(0, 20, 2)]
    harness.flush(mine)
    harness.flush([(3, 1)])
    for entry_id in (6, 8):
        corrupt(harness, life, 9, entry_id)
    harness.compact()
    assert [life.store.read(9, i, i).status for i in (6, 7, 8)] == [
        CANNOT_TELL,
        NO_ENTRY,
        CANNOT_TELL,
    ]
    harness.pending = [(9, 6), (9, 8)]
    harness.flush([])
    assert life.store.list(9).ranges == tuple((i, i) for i in range(0, 20, 2))
    assert life.store.read(9, 7, LAST).entry_id == 8
    harness.check(never=[(9, i) for i in range(1, 20, 2)])


def test_a_run_whose_table_is_damaged_is_cannot_tell_as_a_whole(
    harness: StoreHarness, life: Life
) -> None:
    run = next(run for run in life.store.log_runs(Scope([2], [2])) if run.ledger_id == 2)
    harness.fake.corrupt(log_path(DIRECTORY, 2), run.offset_bytes + 8)
    life.store.forget_log(2)
    harness.compact(1, 2, 3, 4)
    assert logs_of(life) == [5, 6]
    statuses = [life.store.read(2, i, i).status for i in (9, 10, 15, 19, 20)]
    assert statuses == [OK, CANNOT_TELL, CANNOT_TELL, CANNOT_TELL, OK]
    assert life.store.read(1, 10, 10).status == OK


def test_a_log_that_cannot_be_read_stays(harness: StoreHarness, life: Life) -> None:
    """The disk's bad moment is no reason to write anything off."""
    plan = life.checkpoint.plan_compaction([1, 2, 3, 4])
    assert plan is not None
    plan.step(life.store)  # the pass over locations
    harness.fake.fault("fail", "read", times=4, errno=errno.EIO)
    while plan.step(life.store):
        pass
    harness.take(life.checkpoint.commit_compaction(life.store, plan))
    assert plan.unreadable == [1]
    assert plan.counts.bad_entries == 0
    assert logs_of(life) == [1, 5, 6]
    harness.check()
    harness.compact(1)
    assert 1 not in logs_of(life)
    harness.check()


def test_when_none_can_be_read_nothing_changes(harness: StoreHarness, life: Life) -> None:
    before = life.checkpoint.manifest
    life.disk.unlink(log_path(DIRECTORY, 1))
    with pytest.raises(CheckpointFailed, match="none of these"):
        upkeep_at_once.compact(life.checkpoint, life.store, [1])
    assert life.checkpoint.manifest is before
    assert not life.checkpoint.has_compaction
    assert life.store.read(1, 0, 0).status == CANNOT_TELL


def test_a_disk_that_gives_wrong_bytes_everywhere_is_not_believed() -> None:
    """So much damage is the disk's fault or ours: better keep the logs."""
    with FakeDisk() as fake:
        harness = StoreHarness(
            fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1 << 20)
        )
        harness.birth()
        one = harness.start()
        harness.flush([(ledger_id, 0) for ledger_id in range(100)])
        harness.restart()
        one = harness.start()
        harness.flush([(200, 0)])
        for ledger_id in range(100):
            corrupt(harness, one, ledger_id, 0)
        before = one.checkpoint.manifest
        with pytest.raises(CheckpointFailed, match="can be read"):
            upkeep_at_once.compact(one.checkpoint, one.store, [1])
        assert one.checkpoint.manifest is before
        harness.end()


def test_a_log_full_of_damage_keeps_no_other_from_being_compacted() -> None:
    with FakeDisk() as fake:
        harness = StoreHarness(fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1))
        harness.birth()
        one = harness.start()
        for part in range(3):
            harness.flush([(100 * part + ledger_id, 0) for ledger_id in range(100)])
        harness.flush([(500, 0)])
        for ledger_id in range(100, 200):
            corrupt(harness, one, ledger_id, 0)
        corrupt(harness, one, 250, 0)
        plan = one.checkpoint.plan_compaction([1, 2, 3])
        assert plan is not None
        while plan.step(one.store):
            pass
        harness.take(one.checkpoint.commit_compaction(one.store, plan))
        assert plan.unreadable == [2]
        assert logs_of(one) == [2, 4, 5]
        assert one.store.read(50, 0, 0).status == OK
        assert one.store.read(150, 0, 0).status == CANNOT_TELL
        assert one.store.read(250, 0, 0).status == CANNOT_TELL, "little damage is written off"
        assert one.store.read(251, 0, 0).status == OK
        harness.end()


def test_behind_the_deadline_no_log_is_begun(harness: StoreHarness, life: Life) -> None:
    plan = life.checkpoint.plan_compaction([1, 2, 3, 4], deadline_s=0.0)
    assert plan is not None
    while plan.step(life.store):
        pass
    assert plan.done == (1,)
    harness.take(life.checkpoint.commit_compaction(life.store, plan))
    assert logs_of(life) == [2, 3, 4, 5, 6]
    harness.check()
    harness.check_files()


def test_new_logs_are_bounded(harness: StoreHarness, life: Life) -> None:
    settings = CompactionSettings(window_bytes=4096, log_size_bytes=4096, runs_max=3)
    plan = life.checkpoint.plan_compaction([1, 2, 3, 4], settings=settings)
    assert plan is not None
    while plan.step(life.store):
        pass
    assert len(plan.logs) > 1
    harness.take(life.checkpoint.commit_compaction(life.store, plan))
    harness.check()
    harness.check_files()
    harness.merge_all()
    harness.check()


def test_only_sealed_logs_and_one_at_a_time(harness: StoreHarness, life: Life) -> None:
    harness.settings = CheckpointSettings(attempts_max=1, entry_log_size_bytes=1 << 20)
    life = harness.start()
    harness.flush([(9, 0)])
    open_log = logs_of(life)[-1]
    assert life.checkpoint.plan_compaction([open_log, 77]) is None
    plan = life.checkpoint.plan_compaction([1, open_log])
    assert plan is not None
    assert plan.log_ids == (1,)
    assert life.checkpoint.plan_compaction([2]) is None
    life.checkpoint.abandon(life.store, plan)
    assert not life.checkpoint.has_compaction


def test_flushes_merges_and_recounts_go_on_beside_it(harness: StoreHarness, life: Life) -> None:
    plan = life.checkpoint.plan_compaction([1, 2, 3, 4])
    assert plan is not None
    steps = 0
    while plan.step(life.store):
        steps += 1
        harness.flush([(1, 100 + steps), (7, steps)])
        harness.merge()
        harness.recount()
    assert steps > 4
    harness.take(life.checkpoint.commit_compaction(life.store, plan))
    harness.check()
    harness.check_files()
    harness.recount()
    harness.restart()
    harness.check()


def test_what_is_dropped_meanwhile_does_not_come_back(harness: StoreHarness, life: Life) -> None:
    plan = life.checkpoint.plan_compaction([1, 2, 3, 4])
    assert plan is not None
    while plan.step(life.store):
        pass
    harness.upkeep(lambda it: upkeep_at_once.merge_all(it.checkpoint, it.store, dropped=[2]))
    with pytest.raises(CheckpointFailed, match="dropped"):
        life.checkpoint.commit_compaction(life.store, plan)
    life.checkpoint.abandon(life.store, plan)
    assert life.store.read(2, 0, LAST).status == NO_ENTRY
    harness.check_files()


def test_a_full_disk_ends_it_without_a_trace(harness: StoreHarness, life: Life) -> None:
    before = life.checkpoint.manifest
    harness.fake.fault("fail", "create", times=FOREVER, errno=errno.ENOSPC)
    with pytest.raises(CheckpointFailed, match="No space left"):
        upkeep_at_once.compact(life.checkpoint, life.store, [1])
    harness.fake.clear_faults()
    assert life.checkpoint.manifest is before
    harness.check()
    harness.check_files()


def test_readers_see_nothing_of_it(harness: StoreHarness, life: Life) -> None:
    """INV-X5: a reader that still looks under the old set when its log goes, looks again."""
    entries = [(ledger_id, i) for ledger_id in (1, 2) for i in range(40)]
    failures: list[str] = []
    rounds = 30

    def move() -> None:
        for _ in range(rounds):
            sealed = [log.log_id for log in life.checkpoint.manifest.logs if log.sealed]
            harness.compact(*sealed[:2])

    mover = threading.Thread(target=move)
    mover.start()
    while mover.is_alive():
        for ledger_id, entry_id in entries:
            result = life.store.read(ledger_id, entry_id, entry_id)
            if result.status != OK or result.entry != entry_bytes(ledger_id, entry_id):
                failures.append(f"{ledger_id}/{entry_id}: {result}")
    mover.join()
    assert not failures, failures[:3]
    assert min(set(logs_of(life)) - {5}) > rounds, "all was moved, again and again"
    harness.check()


@pytest.mark.parametrize("mode", ["lose", "keep"])
def test_before_its_commit_the_old_logs_count(harness: StoreHarness, life: Life, mode: str) -> None:
    plan = life.checkpoint.plan_compaction([1, 2, 3, 4])
    assert isinstance(plan, Compaction)
    while plan.step(life.store):
        pass
    harness.fake.cut()
    plan.abandon()
    harness.end()
    harness.fake.restart(mode)
    life = harness.start()
    assert logs_of(life) == [1, 2, 3, 4, 5]
    harness.check()
    harness.replay()
    harness.flush([(60, 0)])
    harness.check_files()
    assert ManifestSlots(life.disk, DIRECTORY).load().next_log_id > 6
