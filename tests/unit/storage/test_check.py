"""The offline check and the scrub of a bookie whose journal files are logs (the others: tests/crash/test_check.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastbk.native.scrub import take_damage
from fastbk.storage.check import Checked, DirectoryCheck
from fastbk.storage.directories import JOURNALS
from fastbk.storage.scrub import Damaged, ScrubCycle, Verify
from tests.fixtures.journal_logs import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    LOG_PATH,
    RUN_ENTRIES,
    JournalLogs,
    two_files,
)
from tests.fixtures.store_harness import CANNOT_TELL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.native.store import Store

SECOND_PATH = JOURNALS.path(JOURNAL, 2)


@pytest.fixture
def logs() -> Iterator[JournalLogs]:
    with two_files() as made:
        yield made


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
