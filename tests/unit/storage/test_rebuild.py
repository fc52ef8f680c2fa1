"""Rebuilding locations from journal files that are logs (of whole lives: tests/crash/test_rebuild.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fastbk.storage.check import DirectoryCheck
from fastbk.storage.directories import JOURNAL_LOG, JOURNALS, locations_path
from fastbk.storage.manifest import SLOTS, Manifest, ManifestSlots
from fastbk.storage.rebuild import Rebuild, Rebuilt
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_logs import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    LOG,
    LOG_PATH,
    RUN_ENTRIES,
    JournalLogs,
    stored,
    two_files,
)
from tests.fixtures.store_harness import OK

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND = 1, 2
SECOND_LOG, SECOND_PATH = JOURNAL_LOG | 2, JOURNALS.path(JOURNAL, 2)


@pytest.fixture
def logs() -> Iterator[JournalLogs]:
    with two_files() as made:
        yield made


def rebuild(logs: JournalLogs) -> tuple[Rebuilt, Manifest]:
    disk = logs.fake.disk()
    run = Rebuild(disk, LEDGERS, logs.fake.disk(), JOURNAL, INCARNATION)
    run.survey()
    report = run.run(lambda: [FIRST, SECOND])
    logs.manifest = ManifestSlots(disk, LEDGERS).load()
    return report, logs.manifest


def lose_locations(logs: JournalLogs) -> None:
    for entry in logs.manifest.locations:
        logs.fake.disk().unlink(locations_path(LEDGERS, entry.file_id))


def lose_manifest(logs: JournalLogs) -> None:
    lose_locations(logs)
    for slot in SLOTS:
        logs.fake.disk().unlink(f"{LEDGERS}/{slot}")


@pytest.mark.parametrize("lost", ["locations", "nothing"])
def test_a_rebuild_finds_the_runs_up_to_the_end_that_the_manifest_names(
    logs: JournalLogs, lost: str
) -> None:
    before = logs.manifest
    logs.batch(FIRST, loose=5)  # behind the mark: replay has it
    if lost == "locations":
        lose_locations(logs)
    report, manifest = rebuild(logs)
    assert (report.logs, report.runs, report.entries) == (2, 12, 12 * RUN_ENTRIES)
    assert (report.skipped_bytes, report.unreadable_bytes) == (0, 0)
    assert len(report.doubts) == (lost == "locations"), "the states are lost"
    assert manifest.logs == before.logs
    assert (manifest.mark, manifest.next_log_id) == (before.mark, before.next_log_id)
    directories = logs.fake.disk(), LEDGERS, logs.fake.disk(), JOURNAL, INCARNATION
    assert DirectoryCheck(*directories).run().is_whole
    store = logs.store()
    for ledger_id in (FIRST, SECOND):
        for entry_id in range(0, 6 * RUN_ENTRIES, 7):
            assert store.read(ledger_id, entry_id, entry_id).entry == stored(ledger_id, entry_id)


def test_damage_of_loose_entries_is_no_doubt(logs: JournalLogs) -> None:
    last = logs.runs(1)[-1]
    logs.fake.corrupt(LOG_PATH, last.offset_bytes + last.size_bytes + 200)
    report, _ = rebuild(logs)
    assert (report.runs, report.skipped_bytes, report.doubts) == (12, 0, [])


def test_a_rebuild_without_a_listed_journal_file_is_in_doubt(logs: JournalLogs) -> None:
    logs.fake.disk().unlink(LOG_PATH)
    report, manifest = rebuild(logs)
    (doubt,) = report.doubts
    assert doubt.startswith(f"{LOG_PATH} is missing: the manifest lists this journal file")
    assert [log.log_id for log in manifest.logs] == [SECOND_LOG]
    assert report.limbo == 2


def test_a_lost_run_is_a_doubt(logs: JournalLogs) -> None:
    victim = logs.runs(1)[2]
    logs.fake.corrupt(LOG_PATH, victim.offset_bytes + 20)
    report, _ = rebuild(logs)
    assert report.runs == 11
    assert report.skipped_bytes == victim.size_bytes
    assert len(report.doubts) == 1


def test_without_a_manifest_files_that_replay_does_not_read_are_logs() -> None:
    """File 1 stayed as a log while file 2 was taken again; replay begins at file 3, and publishes the runs itself."""
    with FakeDisk(seed=4) as fake:
        logs = JournalLogs(fake)
        for adopts in (True, False, True, True):
            logs.begin_file(adopts=adopts)
            logs.batch(FIRST, SECOND, loose=2)
        logs.publish()
        before = logs.manifest
        passed = logs.last_sequences[2]
        lose_manifest(logs)
        fake.disk().unlink(SECOND_PATH)
        report, manifest = rebuild(logs)
        assert report.limbo == 2, "nobody knows what was lost"
        (log,) = manifest.logs
        closing_bytes = 4096
        assert log == msgspec.structs.replace(
            before.logs[0],
            durable_bytes=before.logs[0].durable_bytes + closing_bytes,
            created_s=log.created_s,
        )
        assert log.log_id == LOG
        assert manifest.mark == passed
        store = logs.store()
        assert store.read(SECOND, 5, 5).entry == stored(SECOND, 5)
        assert store.read(SECOND, 3 * RUN_ENTRIES, 3 * RUN_ENTRIES).status != OK
        logs.close()


def test_without_a_manifest_nothing_is_passed_over_that_may_be_above_the_mark() -> None:
    with FakeDisk(seed=4) as fake:
        logs = JournalLogs(fake)
        for adopts in (True, False, True):
            logs.begin_file(adopts=adopts)
            logs.batch(FIRST)
        logs.publish()
        lose_manifest(logs)
        _, manifest = rebuild(logs)
        assert (manifest.mark, manifest.logs) == (0, ())
        logs.close()
