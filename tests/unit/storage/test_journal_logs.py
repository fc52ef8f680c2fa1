"""Journal files that are logs, as the tools see them that check, scrub and rebuild a ledger directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fastbk.native.scrub import take_damage
from fastbk.storage.check import Checked, DirectoryCheck
from fastbk.storage.directories import JOURNAL_LOG, JOURNALS, locations_path
from fastbk.storage.manifest import SLOTS, Manifest, ManifestSlots
from fastbk.storage.rebuild import Rebuild, Rebuilt
from fastbk.storage.scrub import Damaged, ScrubCycle, Verify
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
)
from tests.fixtures.store_harness import CANNOT_TELL, OK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.native.store import Store

FIRST, SECOND = 1, 2
SECOND_LOG, SECOND_PATH = JOURNAL_LOG | 2, JOURNALS.path(JOURNAL, 2)


@pytest.fixture
def logs() -> Iterator[JournalLogs]:
    """Two files: one that the mark has passed, one that the journal is in; loose entries in both."""
    with FakeDisk(seed=4) as fake:
        logs = JournalLogs(fake)
        for _ in range(2):
            logs.begin_file()
            for loose in (3, 0, 20):
                logs.batch(FIRST, SECOND, loose=loose)
        logs.publish(sealed=False)
        yield logs
        logs.close()


def check(logs: JournalLogs) -> Checked:
    before = logs.fake.operations("write")
    directories = logs.fake.disk(), LEDGERS, logs.fake.disk(), JOURNAL, INCARNATION
    checked = DirectoryCheck(*directories).run()
    assert logs.fake.operations("write") == before
    return checked


def texts(checked: Checked, severity: str = "damage") -> list[tuple[str, str]]:
    return [(one.path, one.text) for one in checked.findings if one.severity == severity]


def scrub(logs: JournalLogs, store: Store) -> list[Damaged]:
    disk = logs.fake.disk()
    cycle = ScrubCycle(
        lambda: logs.manifest, (), disk, LEDGERS, disk, JOURNAL, INCARNATION
    )  # fmt: skip
    while cycle.step(store):
        pass
    assert (cycle.is_done, cycle.stopped) == (True, "")
    assert cycle.runs == 12 or cycle.found
    return list(cycle.found)


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


def test_what_is_whole_is_said_to_be(logs: JournalLogs) -> None:
    checked = check(logs)
    assert texts(checked) == []
    assert (checked.logs, checked.runs, checked.entries) == (2, 12, 12 * RUN_ENTRIES)
    assert checked.orphan_bytes == 0
    assert checked.live_bytes == sum(log.live_bytes for log in logs.manifest.logs)
    assert 0 < checked.dead_bytes < checked.live_bytes, "the loose entries"
    assert scrub(logs, logs.store()) == []


def test_a_damaged_run_is_named(logs: JournalLogs) -> None:
    victim = logs.runs(2)[3]
    logs.fake.corrupt(SECOND_PATH, victim.offset_bytes + victim.size_bytes - 50)
    ((path, text),) = texts(check(logs))
    assert path == SECOND_PATH
    assert text == (
        f"a damaged run of ledger {victim.ledger_id} at offset {victim.offset_bytes}: entries"
        f" {victim.last_entry_id} can't be read"
    )
    store = logs.store()
    (found,) = scrub(logs, store)
    assert (found.path, found.ledger_id) == (SECOND_PATH, victim.ledger_id)
    assert (found.first, found.last) == (victim.last_entry_id, victim.last_entry_id)
    store = logs.store()
    assert store.read(victim.ledger_id, found.last, found.last).status == CANNOT_TELL
    verify = Verify(take_damage(store), LEDGERS, JOURNAL, 0)
    while verify.step(store):
        pass
    assert [(one.path, one.first) for one in verify.found] == [(SECOND_PATH, found.first)]


def test_a_missing_journal_file_is_a_missing_log_and_what_to_do_is_said(logs: JournalLogs) -> None:
    logs.fake.disk().unlink(LOG_PATH)
    found = texts(check(logs))
    assert {path for path, _ in found} == {LOG_PATH}
    assert any("the manifest lists this journal file" in text for _, text in found)
    assert any("Put it back while the bookie is stopped" in text for _, text in found)
    (missing,) = {(one.path, one.reason) for one in scrub(logs, logs.store())}
    assert missing[0] == LOG_PATH
    assert "fastbk bookie repair" in missing[1]


def test_damage_of_loose_entries_behind_the_mark_is_harmless(logs: JournalLogs) -> None:
    last = logs.runs(1)[-1]
    logs.fake.corrupt(LOG_PATH, last.offset_bytes + last.size_bytes + 200)
    assert texts(check(logs)) == []
    assert scrub(logs, logs.store()) == []
    lose_locations(logs)
    report, _ = rebuild(logs)
    assert (report.runs, report.skipped_bytes) == (12, 0)


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
    assert texts(check(logs)) == []
    store = logs.store()
    for ledger_id in (FIRST, SECOND):
        for entry_id in range(0, 6 * RUN_ENTRIES, 7):
            assert store.read(ledger_id, entry_id, entry_id).entry == stored(ledger_id, entry_id)


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
