"""Journal files that stay as logs: how they come into the manifest, are sealed, die and are given back."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import msgspec
import pytest

from fastbk.errors import InvariantError
from fastbk.native.store import FlushContents, LedgerState
from fastbk.storage.checkpoint import CheckpointFailed, CheckpointSettings
from fastbk.storage.commits import DeletionLog, journal_files_of, split_dead, with_journal_files
from fastbk.storage.directories import JOURNAL_LOG
from fastbk.storage.manifest import JOURNAL, SLOTS, LogEntry, ManifestSlots
from tests.fixtures import upkeep_at_once
from tests.fixtures.adopted_runs import Run, salt_of, with_runs
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import DIRECTORY, Life, StoreHarness, entry_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.storage.checkpoint import Change


@pytest.fixture
def harness() -> Iterator[StoreHarness]:
    with FakeDisk() as fake:
        harness = StoreHarness(
            fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1 << 20)
        )
        harness.birth()
        harness.start()
        yield harness
        harness.end()


@pytest.fixture
def life(harness: StoreHarness) -> Life:
    assert harness.life is not None
    return harness.life


def adopted(*runs: Run, entries: tuple[tuple[int, int], ...] = ()) -> FlushContents:
    items = [(*one, entry_bytes(*one)) for one in entries]
    ledger_ids = {run.ledger_id for run in runs} | {ledger_id for ledger_id, _ in entries}
    states = [LedgerState(ledger_id, 99, flags=1) for ledger_id in sorted(ledger_ids)]
    return with_runs(FlushContents.from_entries(items, states), *runs)


def flush(life: Life, contents: FlushContents, mark: int, file_id: int) -> Change:
    change = life.checkpoint.run(life.store, contents, mark, passed_file_id=file_id)
    change.install(life.store)
    life.checkpoint.commits.clean_up(life.store, change)
    return change


def recount(life: Life, *deleted: int) -> Change:
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
    change = flush(life, adopted(Run(5, 1, 0), Run(5, 2, 0, offset_bytes=65536)), 7, 5)
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
    flush(life, adopted(Run(5, 1, 0), entries=((9, 0),)), 7, 5)
    flush(life, adopted(Run(5, 1, 4, offset_bytes=65536), entries=((9, 1),)), 8, 5)
    log = log_of(life, 5)
    assert (log.durable_bytes, log.live_bytes, log.sealed) == (105_536, 80_000, False)
    assert [one.sealed for one in life.checkpoint.manifest.logs] == [False, False]
    flush(life, FlushContents.from_entries([]), 9, 6)
    assert log_of(life, 5).sealed, "also by a flush of nothing"
    assert msgspec.structs.replace(log_of(life, 5), sealed=False) == log
    assert not life.checkpoint.manifest.logs[0].sealed, "the entry log is appended to as before"


def test_a_file_that_is_still_written_to_is_neither_sealed_nor_dead(life: Life) -> None:
    flush(life, adopted(Run(5, 1, 0), entries=((1, 50),)), 7, 5)
    change = recount(life, 1)
    assert [log.log_id for log in change.dead_logs] == [1]
    log = log_of(life, 5)
    assert (log.live_bytes, log.sealed) == (0, False)
    assert life.checkpoint.commits.take_free_files() == []
    flush(life, adopted(Run(5, 2, 0, offset_bytes=65536), entries=((2, 50),)), 8, 5)
    assert (log_of(life, 5).live_bytes, log_of(life, 5).sealed) == (40_000, False)


def test_a_sealed_one_in_which_nothing_lives_is_given_back_and_not_unlinked(
    harness: StoreHarness, life: Life
) -> None:
    """INV-J3, INV-X5: with its line in the deletion log."""
    flush(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    before = life.disk.list("/")
    change = recount(life, 1)
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
    flush(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    change = upkeep_at_once.recount(life.checkpoint, life.store, [1])
    assert change is not None
    change.install(life.store)
    harness.fake.fault("fail", "create", errno=errno.EIO)
    assert life.checkpoint.commits.clean_up(life.store, change)
    assert life.checkpoint.commits.take_free_files() == []
    flush(life, FlushContents.from_entries([]), 8, 8)
    assert life.checkpoint.commits.take_free_files() == [5]


def test_none_is_given_back_while_the_other_slot_lists_it(
    harness: StoreHarness, life: Life
) -> None:
    """INV-J3: the loss of either slot brings no manifest back that lists a file which was taken again."""
    flush(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    harness.fake.fault("fail", "sync", nth=2, errno=errno.EIO)
    change = recount(life, 1)
    assert not change.is_mirrored
    assert change.listed_files == {5, 6}
    assert life.checkpoint.commits.take_free_files() == []
    for slot in SLOTS:
        with harness.fake.copy() as copy:
            copy.corrupt(f"/{DIRECTORY}/{slot}".replace("//", "/"), 0, 4096)
            left = ManifestSlots(copy.disk(), DIRECTORY).load()
            assert journal_files_of(left) <= change.listed_files
    change = flush(life, FlushContents.from_entries([]), 8, 8)
    assert change.listed_files == {6}
    assert life.checkpoint.commits.take_free_files() == [5]
    for slot in SLOTS:
        with harness.fake.copy() as copy:
            copy.corrupt(f"/{DIRECTORY}/{slot}".replace("//", "/"), 0, 4096)
            left = ManifestSlots(copy.disk(), DIRECTORY).load()
            assert journal_files_of(left) == {6}


def test_a_commit_in_doubt_keeps_what_it_names(harness: StoreHarness, life: Life) -> None:
    """INV-X2: after a restart its manifest may count."""
    flush(life, adopted(Run(5, 1, 0)), 7, 5)
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
    flush(life, adopted(Run(5, 1, 0)), 7, 6)
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
    flush(life, adopted(Run(5, 1, 0)), 7, 6)
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
    flush(life, adopted(Run(5, 1, 0), Run(6, 2, 0)), 7, 7)
    life.checkpoint.commits.is_held = True
    change = recount(life, 1)
    assert change.listed_files == {5, 6}
    assert change.dead_logs == ()
    assert life.checkpoint.commits.take_free_files() == []
