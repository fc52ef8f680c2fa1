"""Checkpoints: order, retries, what a failure leaves behind, deletions and their lines."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import msgspec
import pytest

from fastbk.errors import InvariantError
from fastbk.native.store import DELETED, FlushContents, LedgerState, Scope
from fastbk.storage.checkpoint import Change, Checkpoint, CheckpointFailed, CheckpointSettings
from fastbk.storage.commits import DeletionLog, journal_files_of, split_dead, with_journal_files
from fastbk.storage.directories import JOURNAL_LOG, locations_path
from fastbk.storage.maintenance import MERGE_FILES_MIN, Recount
from fastbk.storage.manifest import JOURNAL, SLOTS, Damage, LogEntry, ManifestSlots
from tests.fixtures import upkeep_at_once
from tests.fixtures.adopted_runs import Run, salt_of, with_runs
from tests.fixtures.fake_disk import FOREVER, FakeDisk
from tests.fixtures.store_harness import (
    DIRECTORY,
    NO_ENTRY,
    OK,
    Life,
    StoreHarness,
    entry_bytes,
    life_of_harness,
    started_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


harness = started_store
life = life_of_harness


def items_of(*ids: tuple[int, int]) -> FlushContents:
    return FlushContents.from_entries([(*an_id, entry_bytes(*an_id)) for an_id in ids])


NOTHING = FlushContents.from_entries([])


def test_what_is_committed_is_not_searched_before_it_is_installed(
    harness: StoreHarness, life: Life
) -> None:
    change = life.checkpoint.run(life.store, items_of((1, 0)), 5)
    assert change.manifest.mark == 5
    assert life.store.read(1, 0, 0).status == NO_ENTRY
    change.install(life.store)
    assert life.store.read(1, 0, 0).status == OK


def test_installing_reads_no_disk(harness: StoreHarness, life: Life) -> None:
    """The main loop never waits for a disk (A15)."""
    change = life.checkpoint.run(life.store, items_of((1, 0)), 5)
    before = harness.fake.operations()
    change.install(life.store)
    assert harness.fake.operations() == before


def test_a_mark_alone_writes_only_the_manifest(harness: StoreHarness, life: Life) -> None:
    change = life.checkpoint.run(life.store, NOTHING, 7, clean=True)
    assert change.add == ()
    manifest = ManifestSlots(life.disk, DIRECTORY).load()
    assert (manifest.mark, manifest.clean, manifest.locations) == (7, True, ())
    assert not life.checkpoint.run(life.store, NOTHING, 8).manifest.clean


def test_states_alone_need_no_log(harness: StoreHarness, life: Life) -> None:
    states = FlushContents.from_entries([], [LedgerState(4, flags=1)])
    harness.take(life.checkpoint.run(life.store, states, 1))
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    assert life.store.states(1) == [LedgerState(4, flags=1)]


def test_damage_is_remembered(harness: StoreHarness, life: Life) -> None:
    first, second = (
        Damage(what="journal", file_id=i, first_sequence=1, last_sequence=2, found_s=3)
        for i in (1, 2)
    )
    life.checkpoint.run(life.store, NOTHING, 1, damage=iter([first]))
    life.checkpoint.run(life.store, NOTHING, 2)
    life.checkpoint.run(life.store, NOTHING, 3, damage=[second])
    assert ManifestSlots(life.disk, DIRECTORY).load().damage == (first, second)


def test_a_log_is_appended_to_until_it_is_full(harness: StoreHarness) -> None:
    harness.settings = CheckpointSettings(entry_log_size_bytes=20_000)
    life = harness.start()
    for i in range(6):
        harness.take(life.checkpoint.run(life.store, items_of((1, i)), i + 1))
    logs = life.checkpoint.manifest.logs
    # A header block, then one block a flush: full with the fourth.
    assert [(log.durable_bytes, log.sealed) for log in logs] == [(20480, True), (12288, False)]


def test_a_new_life_begins_a_new_log(harness: StoreHarness, life: Life) -> None:
    harness.flush([(1, 0)])
    harness.restart()
    harness.flush([(1, 1)])
    assert harness.life is not None
    assert [log.sealed for log in harness.life.checkpoint.manifest.logs] == [True, False]


def test_a_failed_flush_begins_a_new_log(harness: StoreHarness, life: Life) -> None:
    harness.flush([(1, 0)])
    harness.fake.fault("fail", "sync", errno=errno.EIO)
    harness.flush([(1, 1)])
    harness.check()
    assert [log.log_id for log in life.checkpoint.manifest.logs] == [1, 2]
    harness.check_files()


def test_attempts_are_bounded_and_wait_longer_each_time() -> None:
    waits: list[float] = []
    with FakeDisk() as fake:
        harness = StoreHarness(fake)
        harness.birth()
        life = harness.start()
        checkpoint = Checkpoint(
            life.disk,
            DIRECTORY,
            life.checkpoint._slots,
            life.checkpoint.manifest,
            CheckpointSettings(attempts_max=4, retry_delay_s=0.5),
            wait=waits.append,
        )
        fake.fault("fail", "create", times=FOREVER, errno=errno.ENOSPC)
        with pytest.raises(CheckpointFailed, match="No space left") as caught:
            checkpoint.run(life.store, items_of((1, 0)), 1)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.retryable
        assert waits == [0.5, 1.0, 2.0]
        fake.clear_faults()
        assert checkpoint.run(life.store, items_of((1, 0)), 1).manifest.mark == 1
        harness.end()


def test_whoever_paces_a_flush_may_end_it(harness: StoreHarness, life: Life) -> None:
    class Stop(Exception):
        pass

    def pause(size_bytes: int) -> None:
        raise Stop

    harness.settings = CheckpointSettings(step_bytes=4096)
    life = harness.start()
    many = items_of(*((1, i) for i in range(400)))
    with pytest.raises(Stop):
        life.checkpoint.run(life.store, many, 1, pause=pause)
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    paced: list[int] = []
    harness.take(life.checkpoint.run(life.store, many, 1, pause=paced.append))
    assert paced == [4096]
    assert life.store.list(1).ranges == ((0, 399),)


def test_files_of_a_commit_in_doubt_stay_until_the_next_one(harness: StoreHarness) -> None:
    harness.settings = CheckpointSettings(attempts_max=1)
    life = harness.start()
    harness.flush([(1, 0)])
    # log, locations, then the manifest's first slot
    harness.fake.fault("fail", "sync", nth=3, errno=errno.EIO)
    harness.flush([(1, 1)])
    assert harness.committed == 1
    assert len(life.disk.list(f"{DIRECTORY}/locations")) == 2
    for mode in ("lose", "keep"):
        copy = StoreHarness(harness.fake.copy(), marks=harness.marks, committed=1, attempted=2)
        copy.fake.restart(mode)
        copy.start()
        copy.check()
        copy.end()
    harness.flush([(1, 2)])
    harness.check()
    harness.check_files()


def test_a_dead_log_goes_with_a_line_in_the_deletion_log(harness: StoreHarness) -> None:
    harness.settings = CheckpointSettings(entry_log_size_bytes=1)
    life = harness.start()
    harness.flush([(1, 0), (2, 0)])
    harness.flush([(1, 1)])
    harness.delete(1)
    assert [log.log_id for log in life.checkpoint.manifest.logs] == [1]
    assert life.store.read(2, 0, 0).status == OK
    assert life.store.read(1, 1, 1).status == NO_ENTRY
    (line,) = DeletionLog(life.disk, DIRECTORY).read()
    assert line["deleted"] == f"{DIRECTORY}/logs/0000000000000002.log"
    assert line["reason"] == "nothing that is not deleted lies in it"
    harness.delete(2)
    harness.check_files()
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    assert len(DeletionLog(life.disk, DIRECTORY).read()) == 2


def test_nothing_is_deleted_without_its_line(harness: StoreHarness) -> None:
    harness.settings = CheckpointSettings(entry_log_size_bytes=1)
    life = harness.start()
    harness.flush([(1, 0)])
    change = upkeep_at_once.recount(life.checkpoint, life.store, [1])
    assert change is not None
    change.install(life.store)
    harness.fake.fault("fail", "create", errno=errno.EIO)
    assert "deletion log" in life.checkpoint.commits.clean_up(life.store, change)[0]
    assert life.disk.list(f"{DIRECTORY}/logs") == ["0000000000000001.log"]
    harness.maybe_deleted = {1}
    harness.restart()
    harness.flush([(3, 0)])
    harness.check_files()


def test_a_full_disk_has_room_made_before_the_line(harness: StoreHarness) -> None:
    """Where not even a line fits in, only dead logs can make room for it."""
    harness.settings = CheckpointSettings(entry_log_size_bytes=1)
    life = harness.start()
    harness.flush([(1, 0)])
    change = upkeep_at_once.recount(life.checkpoint, life.store, [1])
    assert change is not None
    change.install(life.store)
    harness.fake.fault("fail", "create", errno=errno.ENOSPC)
    assert "deletion log" in life.checkpoint.commits.clean_up(life.store, change)[0]
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    (line,) = DeletionLog(life.disk, DIRECTORY).read()
    assert line["deleted"] == f"{DIRECTORY}/logs/0000000000000001.log"


def test_a_recount_that_changes_nothing_commits_nothing(harness: StoreHarness, life: Life) -> None:
    harness.flush([(1, 0)])
    generation = life.checkpoint.manifest.generation
    assert upkeep_at_once.recount(life.checkpoint, life.store) is None
    assert life.checkpoint.manifest.generation == generation


def test_what_flushes_bring_meanwhile_is_added_to_a_count(
    harness: StoreHarness, life: Life
) -> None:
    harness.flush([(1, 0), (2, 0)])
    recount = Recount(life.checkpoint.commits, [1])
    recount.run(life.store)
    harness.flush([(3, 0)])
    change = life.checkpoint.commit_recount(life.store, recount)
    assert change is not None
    scope = Scope([1, 2], [1], [1])
    assert {log.log_id: log.live_bytes for log in change.manifest.logs} == life.store.log_bytes(
        scope
    )
    harness.flush([(4, 0)])
    assert [log.log_id for log in life.checkpoint.manifest.logs] == [1], "appended to as before"


def test_a_deletion_rewrites_nothing(harness: StoreHarness, life: Life) -> None:
    """The ledger's state is the tombstone; locations go with the next merge that meets them."""
    harness.flush([(1, 0), (2, 0)])
    files = life.checkpoint.manifest.locations
    harness.delete(1)
    assert life.checkpoint.manifest.locations[: len(files)] == files
    assert life.store.states(2)[0].flags == DELETED
    assert life.store.ledger_bytes(1)
    harness.merge_all()
    assert life.store.ledger_bytes(1) == {}
    (merged,) = life.checkpoint.manifest.locations
    assert [state.flags for state in life.store.states(merged.file_id)] == [DELETED, 1]


def test_states_of_deleted_ledgers_are_forgotten_in_time(harness: StoreHarness, life: Life) -> None:
    states = [
        LedgerState(1, flags=4, deleted_s=100),
        LedgerState(2, flags=4, deleted_s=200),
        LedgerState(3),
    ]
    harness.take(life.checkpoint.run(life.store, FlushContents.from_entries([], states), 1))
    assert life.store.count_states([1], 150) == (3, 1)
    change = upkeep_at_once.merge_all(
        life.checkpoint, life.store, [1, 2], forget_deleted_before_s=150
    )
    assert change is not None
    harness.take(change)
    assert life.store.states(change.add[0]) == states[1:]


def test_dropped_copies_are_gone_and_may_come_again(harness: StoreHarness, life: Life) -> None:
    harness.flush([(1, 0), (2, 0)])
    harness.upkeep(lambda it: upkeep_at_once.merge_all(it.checkpoint, it.store, dropped=[1]))
    assert life.store.read(1, 0, 0).status == NO_ENTRY
    assert life.store.read(2, 0, 0).status == OK
    harness.pending = [(1, 0)]
    harness.flush([])
    assert life.store.read(1, 0, 0).status == OK


def test_a_merge_goes_on_beside_flushes_and_other_merges(harness: StoreHarness, life: Life) -> None:
    for i in range(MERGE_FILES_MIN):
        harness.flush([(1, i)])
    first = life.checkpoint.plan_merge()
    assert first is not None
    assert life.checkpoint.plan_merge() is None, "the same files are merged once"
    for i in range(MERGE_FILES_MIN):
        harness.flush([(2, i)])
    second = life.checkpoint.plan_merge()
    assert second is not None
    assert not set(first.chosen) & set(second.chosen)
    while second.step(life.store):
        pass
    harness.take(life.checkpoint.commit_merge(life.store, second))
    while first.step(life.store):
        pass
    harness.take(life.checkpoint.commit_merge(life.store, first))
    generations = [entry.first_generation for entry in life.checkpoint.manifest.locations]
    assert generations == sorted(generations)
    assert len(generations) == 2
    harness.check()
    harness.check_files()
    harness.restart()
    harness.check()


@pytest.mark.parametrize("part", [1, 2])
def test_a_file_that_rots_in_service_keeps_the_others_from_nothing(
    harness: StoreHarness, life: Life, part: int
) -> None:
    """A block of its locations, or of its states."""
    for i in range(MERGE_FILES_MIN // 2):
        harness.flush([(1, i)])
    rotten = life.checkpoint.manifest.locations[1].file_id
    harness.fake.corrupt(locations_path(DIRECTORY, rotten), part * 4096 + 10)
    for i in range(2 * MERGE_FILES_MIN):
        harness.flush([(2, i)])
        harness.merge()
    assert life.checkpoint.damaged == {rotten}
    assert len(life.checkpoint.manifest.locations) < MERGE_FILES_MIN + 2
    for i in range(2 * MERGE_FILES_MIN):
        assert life.store.read(2, i, i).status == OK
    assert life.store.read(1, 0, 0).status == OK


def test_a_disk_that_reads_nothing_is_no_file_s_fault(harness: StoreHarness, life: Life) -> None:
    for i in range(MERGE_FILES_MIN):
        harness.flush([(1, i)])
    harness.fake.fault("fail", "read", times=FOREVER, errno=errno.EIO)
    with pytest.raises(CheckpointFailed):
        upkeep_at_once.merge_if_due(life.checkpoint, life.store)
    harness.fake.clear_faults()
    assert life.checkpoint.damaged == set()
    harness.merge()
    assert len(life.checkpoint.manifest.locations) == 1
    harness.check()


class CommittedBetween(list[object]):
    """The flush thread commits what is in the list just when the main loop looks into it."""

    def __init__(self, plans: Sequence[object], commit: Callable[[], object]) -> None:
        super().__init__(plans)
        self.commit: Callable[[], object] | None = commit

    def __iter__(self) -> Iterator[object]:
        commit, self.commit = self.commit, None
        if commit is not None:
            commit()
        return super().__iter__()


def test_what_is_committed_while_the_next_merge_is_planned_is_not_merged_twice(
    harness: StoreHarness, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(MERGE_FILES_MIN):
        harness.flush([(1, i)])
    first = life.checkpoint.plan_merge()
    assert first is not None
    while first.step(life.store):
        pass
    for i in range(MERGE_FILES_MIN):
        harness.flush([(2, i)])
    between = CommittedBetween(
        life.checkpoint._merges,
        lambda: harness.take(life.checkpoint.commit_merge(life.store, first)),
    )
    monkeypatch.setattr(life.checkpoint, "_merges", between)
    second = life.checkpoint.plan_merge()
    assert between.commit is None
    assert second is not None
    assert not set(first.chosen) & set(second.chosen)
    while second.step(life.store):
        pass
    harness.take(life.checkpoint.commit_merge(life.store, second))
    harness.check()
    harness.check_files()


def test_a_merge_that_is_given_up_leaves_nothing(harness: StoreHarness, life: Life) -> None:
    for i in range(MERGE_FILES_MIN):
        harness.flush([(1, i)])
    merging = life.checkpoint.plan_merge()
    assert merging is not None
    merging.step(life.store)
    life.checkpoint.abandon(life.store, merging)
    harness.check_files()
    again = life.checkpoint.plan_merge()
    assert again is not None
    assert again.chosen == merging.chosen
    life.checkpoint.abandon(life.store, again)


# What a checkpoint does while its commits are held (`fastbk.server.index.process`).


def test_held_commits_count_in_this_life_alone() -> None:
    with FakeDisk() as fake:
        harness = StoreHarness(fake, CheckpointSettings(entry_log_size_bytes=1))
        harness.birth()
        life = harness.start()
        for i in range(MERGE_FILES_MIN - 1):
            harness.flush([(1, i), (2, i)])
        names = [
            sorted(life.disk.list(f"{DIRECTORY}/{folder}")) for folder in ("logs", "locations")
        ]
        life.checkpoint.commits.is_held = True
        harness.flush([(1, 100)])
        harness.merge_all()
        harness.delete(1)
        harness.compact()
        # Searched as ever, and what the manifest on disk names is still there (INV-X2).
        assert life.store.read(2, 0, 0).status == OK
        assert life.store.read(1, 100, 100).status == NO_ENTRY
        assert len(life.checkpoint.manifest.logs) < MERGE_FILES_MIN
        for folder, had in zip(("logs", "locations"), names, strict=True):
            assert set(had) <= set(life.disk.list(f"{DIRECTORY}/{folder}"))
        harness.committed, harness.deleted = MERGE_FILES_MIN - 1, set()
        harness.restart()
        assert harness.life is not None
        assert harness.life.checkpoint.manifest.mark == MERGE_FILES_MIN - 1
        harness.check(never=[(1, 100)])
        harness.flush([])
        harness.check()
        harness.check_files()
        harness.end()


# What dead entry logs give back counts once they are gone, and a log that can't be unlinked is a
# failure.


def test_a_log_that_stays_counts_when_the_next_commit_has_unlinked_it() -> None:
    with FakeDisk() as fake:
        harness = StoreHarness(fake, CheckpointSettings(entry_log_size_bytes=1))
        harness.birth()
        life = harness.start()
        harness.flush([(1, 0)])
        harness.flush([(2, 0)])
        sizes = {log.log_id: log.durable_bytes for log in life.checkpoint.manifest.logs}
        change = upkeep_at_once.recount(life.checkpoint, life.store, [1])
        assert change is not None
        change.install(life.store)
        reclaimed = life.checkpoint.commits.reclaimed
        fake.fault("fail", "unlink", errno=errno.EIO)
        assert life.checkpoint.commits.clean_up(life.store, change)
        assert (reclaimed.freed_bytes, reclaimed.failures) == (0, 1)
        harness.maybe_deleted = {1}
        harness.flush([(3, 0)])
        assert (reclaimed.freed_bytes, reclaimed.failures) == (sizes[1], 1)
        harness.end()


# ---- journal files that stay as logs: how they come into the manifest, are sealed, die and are given back


def adopted(*runs: Run, entries: tuple[tuple[int, int], ...] = ()) -> FlushContents:
    items = [(*one, entry_bytes(*one)) for one in entries]
    ledger_ids = {run.ledger_id for run in runs} | {ledger_id for ledger_id, _ in entries}
    states = [LedgerState(ledger_id, 99, flags=1) for ledger_id in sorted(ledger_ids)]
    return with_runs(FlushContents.from_entries(items, states), *runs)


def flush_adopted(life: Life, contents: FlushContents, mark: int, file_id: int) -> Change:
    change = life.checkpoint.run(life.store, contents, mark, passed_file_id=file_id)
    change.install(life.store)
    life.checkpoint.commits.clean_up(life.store, change)
    return change


def recount_adopted(life: Life, *deleted: int) -> Change:
    change = upkeep_at_once.recount(life.checkpoint, life.store, deleted)
    assert change is not None
    change.install(life.store)
    life.checkpoint.commits.clean_up(life.store, change)
    return change


def log_of(life: Life, file_id: int) -> LogEntry:
    (log,) = [log for log in life.checkpoint.manifest.logs if log.log_id == JOURNAL_LOG | file_id]
    return log


def test_adopted_runs_alone_write_no_entry_log(life: Life) -> None:
    """INV-X3: the manifest that has the mark lists the file, too."""
    change = flush_adopted(life, adopted(Run(5, 1, 0), Run(5, 2, 0, offset_bytes=65536)), 7, 5)
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    (log,) = ManifestSlots(life.disk, DIRECTORY).load().logs
    assert log == LogEntry(
        log_id=JOURNAL_LOG | 5, salt=salt_of(5), durable_bytes=105_536, live_bytes=80_000,
        sealed=False, kind=JOURNAL, created_s=1_700_000_000,
    )  # fmt: skip
    assert (change.manifest.mark, change.listed_files) == (7, {5})


def test_a_file_grows_from_flush_to_flush_and_is_sealed_once_the_mark_has_passed_it(
    life: Life,
) -> None:
    flush_adopted(life, adopted(Run(5, 1, 0), entries=((9, 0),)), 7, 5)
    flush_adopted(life, adopted(Run(5, 1, 4, offset_bytes=65536), entries=((9, 1),)), 8, 5)
    log = log_of(life, 5)
    assert (log.durable_bytes, log.live_bytes, log.sealed) == (105_536, 80_000, False)
    assert [one.sealed for one in life.checkpoint.manifest.logs] == [False, False]
    flush_adopted(life, FlushContents.from_entries([]), 9, 6)
    assert log_of(life, 5).sealed, "also by a flush of nothing"
    assert msgspec.structs.replace(log_of(life, 5), sealed=False) == log
    assert not life.checkpoint.manifest.logs[0].sealed, "the entry log is appended to as before"


def test_a_file_that_is_still_written_to_is_neither_sealed_nor_dead(life: Life) -> None:
    flush_adopted(life, adopted(Run(5, 1, 0), entries=((1, 50),)), 7, 5)
    change = recount_adopted(life, 1)
    assert [log.log_id for log in change.dead_logs] == [1]
    log = log_of(life, 5)
    assert (log.live_bytes, log.sealed) == (0, False)
    assert life.checkpoint.commits.take_free_files() == []
    flush_adopted(life, adopted(Run(5, 2, 0, offset_bytes=65536), entries=((2, 50),)), 8, 5)
    assert (log_of(life, 5).live_bytes, log_of(life, 5).sealed) == (40_000, False)


def test_a_sealed_one_in_which_nothing_lives_is_given_back_and_not_unlinked(
    harness: StoreHarness, life: Life
) -> None:
    """INV-J3, INV-X5: with its line in the deletion log."""
    flush_adopted(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    before = life.disk.list("/")
    change = recount_adopted(life, 1)
    assert [log.log_id for log in change.dead_logs] == [JOURNAL_LOG | 5]
    assert (change.unlink, change.listed_files) == ((), {6})
    assert life.checkpoint.commits.take_free_files() == [5]
    assert life.checkpoint.commits.take_free_files() == [], "once"
    assert life.checkpoint.commits.reclaimed.freed_bytes == 48_192
    (line,) = DeletionLog(life.disk, DIRECTORY).read()
    assert line["deleted"] == "/journal/0000000000000005.journal"
    assert life.disk.list("/") == before


def test_without_its_line_in_the_deletion_log_none_is_given_back(
    harness: StoreHarness, life: Life
) -> None:
    flush_adopted(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    change = upkeep_at_once.recount(life.checkpoint, life.store, [1])
    assert change is not None
    change.install(life.store)
    harness.fake.fault("fail", "create", errno=errno.EIO)
    assert life.checkpoint.commits.clean_up(life.store, change)
    assert life.checkpoint.commits.take_free_files() == []
    flush_adopted(life, FlushContents.from_entries([]), 8, 8)
    assert life.checkpoint.commits.take_free_files() == [5]


def test_none_is_given_back_while_the_other_slot_lists_it(
    harness: StoreHarness, life: Life
) -> None:
    """INV-J3: the loss of either slot brings no manifest back that lists a file which was taken again."""
    flush_adopted(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    harness.fake.fault("fail", "sync", nth=2, errno=errno.EIO)
    change = recount_adopted(life, 1)
    assert not change.is_mirrored
    assert change.listed_files == {5, 6}
    assert life.checkpoint.commits.take_free_files() == []
    for slot in SLOTS:
        with harness.fake.copy() as copy:
            copy.corrupt(f"/{DIRECTORY}/{slot}".replace("//", "/"), 0, 4096)
            left = ManifestSlots(copy.disk(), DIRECTORY).load()
            assert journal_files_of(left) <= change.listed_files
    change = flush_adopted(life, FlushContents.from_entries([]), 8, 8)
    assert change.listed_files == {6}
    assert life.checkpoint.commits.take_free_files() == [5]
    for slot in SLOTS:
        with harness.fake.copy() as copy:
            copy.corrupt(f"/{DIRECTORY}/{slot}".replace("//", "/"), 0, 4096)
            left = ManifestSlots(copy.disk(), DIRECTORY).load()
            assert journal_files_of(left) == {6}


def test_a_commit_in_doubt_keeps_what_it_names(harness: StoreHarness) -> None:
    """INV-X2: after a restart its manifest may count."""
    harness.settings = CheckpointSettings(attempts_max=1, entry_log_size_bytes=1 << 20)
    life = harness.start()
    flush_adopted(life, adopted(Run(5, 1, 0)), 7, 5)
    for nth in range(1, 9):
        harness.fake.clear_faults()
        harness.fake.fault("fail", "sync", nth=nth, errno=errno.EIO)
        try:
            life.checkpoint.run(life.store, adopted(Run(6, 2, 0)), 8, passed_file_id=6)
        except CheckpointFailed as error:
            if "manifest" in str(error):
                break
    else:
        raise AssertionError("no commit was in doubt")
    harness.fake.clear_faults()
    merged = upkeep_at_once.merge_all(life.checkpoint, life.store)
    assert merged is not None
    assert merged.listed_files == {5}, "both slots are written: the one in doubt is gone"


def test_a_compacted_one_is_given_back_and_counts_as_moved(life: Life) -> None:
    flush_adopted(life, adopted(Run(5, 1, 0)), 7, 6)
    manifest = life.checkpoint.manifest
    change = life.checkpoint.commits.commit(
        life.store,
        msgspec.structs.replace(manifest, logs=()),
        life.checkpoint.commits.files.attempt(life.checkpoint._slots.next_generation()),
        dead_logs=manifest.logs,
        reason="compacted into nothing",
    )
    change.install(life.store)
    life.checkpoint.commits.clean_up(life.store, change)
    assert life.checkpoint.commits.take_free_files() == [5]
    assert life.checkpoint.commits.reclaimed.freed_bytes == 0


def test_a_file_that_is_sealed_gets_no_more_runs(life: Life) -> None:
    """INV-J7."""
    flush_adopted(life, adopted(Run(5, 1, 0)), 7, 6)
    manifest = life.checkpoint.manifest
    with pytest.raises(InvariantError, match="INV-J7"):
        with_journal_files(manifest.logs, adopted(Run(5, 1, 4)).adopted, 6, 1)
    with pytest.raises(InvariantError, match="INV-J7"):
        other = msgspec.structs.replace(adopted(Run(5, 1, 4)).adopted[0], salt=1)
        with_journal_files([msgspec.structs.replace(manifest.logs[0], sealed=False)], [other], 6, 1)


@pytest.mark.parametrize(
    ("sealed", "live_bytes", "is_dead"),
    [(True, 0, True), (False, 0, False), (True, 1, False), (False, 1, False)],
)
def test_which_are_dead(sealed: bool, live_bytes: int, is_dead: bool) -> None:
    log = LogEntry(
        log_id=JOURNAL_LOG | 5, salt=1, durable_bytes=1, live_bytes=live_bytes, sealed=sealed,
        kind=JOURNAL,
    )  # fmt: skip
    assert split_dead([log]) == (((), (log,)) if is_dead else ((log,), ()))


def test_a_held_commit_gives_nothing_back(life: Life) -> None:
    """What the manifest on disk names is needed by the next start."""
    flush_adopted(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    life.checkpoint.commits.is_held = True
    change = recount_adopted(life, 1)
    assert change.listed_files == {5, 6}
    assert change.dead_logs == ()
    assert life.checkpoint.commits.take_free_files() == []
