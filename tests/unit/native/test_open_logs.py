"""Journal files that are logs: read, scanned and judged as entry logs are, while the journal goes on in them."""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fastbk.native.disk import Disk
from fastbk.native.hashes import crc32c
from fastbk.native.journal import JournalScan
from fastbk.native.scrub import take_damage
from fastbk.native.store import Compact, CompactOptions, Scope, Store
from fastbk.storage.directories import JOURNALS, log_path
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
from tests.fixtures.store_harness import CANNOT_TELL, NO_ENTRY, OK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST, SECOND = 1, 2


def overwrite(logs: JournalLogs, at: int, data: bytes) -> None:
    disk = logs.fake.disk()
    file = disk.open(LOG_PATH)
    disk.write_all(file, data, at)
    disk.close(file)


@pytest.fixture
def logs() -> Iterator[JournalLogs]:
    """One file of four batches: two ledgers with a run in each, and loose entries in two of them."""
    with FakeDisk(seed=4) as fake:
        logs = JournalLogs(fake)
        logs.begin_file()
        for loose in (0, 3, 0, 30):
            logs.batch(FIRST, SECOND, loose=loose)
        logs.publish()
        yield logs
        logs.close()


@contextmanager
def real_logs(path: Path) -> Iterator[JournalLogs]:
    """Begin a file on a real disk."""
    disks: list[Disk] = []

    def new_disk() -> Disk:
        disks.append(Disk(path, "plain"))
        return disks[-1]

    with FakeDisk() as fake:
        logs = JournalLogs(fake, str(path), new_disk)
        logs.begin_file()
        yield logs
        logs.close()
    for disk in disks:
        disk.destroy()


def test_the_path_of_a_log_that_is_a_journal_file() -> None:
    assert log_path(LEDGERS, 5) == f"{LEDGERS}/logs/0000000000000005.log"
    assert log_path(LEDGERS, LOG, JOURNAL) == LOG_PATH == f"{JOURNAL}/0000000000000001.journal"


def test_its_runs_are_found_by_their_headers_and_what_lies_between_is_no_damage(
    logs: JournalLogs,
) -> None:
    with logs.scan() as scan:
        runs = list(scan)
        status = scan.status
    assert [(run.ledger_id, run.first_entry_id, run.entry_count) for run in runs] == [
        (ledger_id, RUN_ENTRIES * n, RUN_ENTRIES) for n in range(4) for ledger_id in (FIRST, SECOND)
    ]
    assert all(run.log_id == LOG and run.damaged == 0 for run in runs)
    assert [run.lac for run in runs] == [run.last_entry_id - 1 for run in runs]
    assert (status.skipped_bytes, status.unreadable_bytes, status.header_damaged) == (0, 0, False)


def test_what_lies_behind_the_end_that_counts_is_not_taken(logs: JournalLogs) -> None:
    end_bytes = logs.ends[1]
    logs.batch(FIRST)
    assert len(logs.runs()) == 9
    with logs.scan(end_bytes=end_bytes) as scan:
        assert len(list(scan)) == 8
    with logs.scan(end_bytes=0) as scan:
        assert len(list(scan)) == 9
        assert scan.status.skipped_bytes == 0, "zeros"


def test_entries_are_read_alone_and_in_order(logs: JournalLogs) -> None:
    store = logs.store()
    for ledger_id in (FIRST, SECOND):
        for entry_id in (0, 39, 40, 100, 159):
            assert store.read(ledger_id, entry_id, entry_id).entry == stored(ledger_id, entry_id)
        assert store.read(ledger_id, 160, 160).status == NO_ENTRY
        assert store.list(ledger_id).ranges == ((0, 159),)
        for entry_id in range(160):
            found = store.read(ledger_id, entry_id, entry_id, scan=True)
            assert found.entry == stored(ledger_id, entry_id)
    assert store.read(99, 0, 0).status == NO_ENTRY, "loose entries are not stored here"
    assert take_damage(store) == []


def test_reading_ahead_takes_runs_of_several_batches_together(logs: JournalLogs) -> None:
    store = logs.store()
    assert store.read_ahead(FIRST, 0, 1 << 20) == (159, True)
    counts = store.counts()
    assert (counts["ahead_runs"], counts["run_reads"]) == (4, 4)
    assert counts["ahead_reads"] < 4
    assert store.cached(FIRST, 120, scan=True) == stored(FIRST, 120)


def test_it_is_read_while_the_journal_writes_on(logs: JournalLogs) -> None:
    store = logs.store()
    for n in range(4, 8):
        logs.batch(FIRST, SECOND, loose=n)
        logs.publish(sealed=False)
        newer = logs.store()
        assert newer.read(FIRST, 40 * n, 40 * n).entry == stored(FIRST, 40 * n)
        assert store.read(FIRST, 7, 7).entry == stored(FIRST, 7)
        with logs.scan() as scan:
            assert scan.verify(logs.runs()) == []


def test_the_page_cache_beside_direct_writes(tmp_path: Path) -> None:
    """INV-J7: each batch is read through the page cache at once, while blocks behind it are still to be written."""
    with real_logs(tmp_path) as logs:
        for n in range(12):
            logs.batch(FIRST, SECOND, loose=n % 3)
            logs.publish(sealed=False)
            store = logs.store()
            for ledger_id in (FIRST, SECOND):
                for entry_id in (40 * n, 40 * n + 39):
                    found = store.read(ledger_id, entry_id, entry_id)
                    assert found.entry == stored(ledger_id, entry_id)
            store.read_ahead(FIRST, 0, 1 << 20)
            assert store.cached(FIRST, 0, scan=True) == stored(FIRST, 0)
            assert take_damage(store) == []


def test_a_file_is_opened_anew_when_the_journal_has_left_it(tmp_path: Path) -> None:
    """While it is written to nothing is read ahead in it; from then on it is read ahead as entry logs are."""

    def read(store: Store, entry_id: int) -> str:
        """Return the descriptor by which it is read; others have the file open, too."""
        before = descriptors()
        assert store.read(FIRST, entry_id, entry_id).entry == stored(FIRST, entry_id)
        return "".join(descriptors() - before)

    def descriptors() -> set[str]:
        folder = "/proc/self/fd"
        links = {one: os.path.realpath(f"{folder}/{one}") for one in os.listdir(folder)}
        return {one for one, path in links.items() if path.endswith(JOURNALS.name(1))}

    with real_logs(tmp_path) as logs:
        for _ in range(6):
            logs.batch(FIRST, SECOND)
        logs.publish()
        store = logs.store()
        first = read(store, 0)
        assert first, "it is opened"
        for written in (0, 1, 1):
            store.set_journal_file(written)
            assert first in descriptors() and not read(store, 40), "the journal may write to it"
        store.set_journal_file(2)
        assert first not in descriptors(), "nobody reads it: it was closed"
        again = read(store, 80)
        assert again
        store.set_journal_file(9)
        assert again in descriptors() and not read(store, 120), "it was opened for what it is"


@pytest.mark.parametrize("has_closing_batch", [True, False])
def test_a_file_that_was_cut_behind_its_last_batch_is_read_as_before(
    tmp_path: Path, has_closing_batch: bool
) -> None:
    """The journal cuts what it left early; without a closing batch a run may end where the file does."""
    disks: list[Disk] = []

    def new_disk() -> Disk:
        disks.append(Disk(tmp_path, "plain"))
        return disks[-1]

    with FakeDisk() as fake:
        logs = JournalLogs(fake, str(tmp_path), new_disk)
        logs.begin_file()
        for _ in range(4):
            logs.batch(FIRST, SECOND)
        logs.begin_file()
        logs.batch(FIRST, SECOND)
        path = JOURNALS.path(logs.journal, 1)
        before = logs.runs(1)
        os.truncate(path, logs.ends[1] + (4096 if has_closing_batch else 0))
        logs.publish()
        store = logs.store()
        for ledger_id in (FIRST, SECOND):
            for entry_id in range(200):
                found = store.read(ledger_id, entry_id, entry_id)
                assert found.entry == stored(ledger_id, entry_id)
        store.read_ahead(SECOND, 0, 1 << 20)
        assert store.cached(SECOND, 159, scan=True) == stored(SECOND, 159)
        assert take_damage(store) == []
        assert logs.runs(1) == before
        with logs.scan(1, end_bytes=0) as scan:
            assert list(scan) == before
            assert (scan.status.skipped_bytes, scan.status.unreadable_bytes) == (0, 0)
        with JournalScan(disks[0], path, 1, INCARNATION) as batches:
            assert len([batch for batch in batches if batch.record_count]) == 4
            assert batches.end.kind == ("closing" if has_closing_batch else "tail")
        logs.close()
    for disk in disks:
        disk.destroy()


@pytest.mark.parametrize("place", ["header", "entry"])
def test_a_damaged_run_is_quarantined_as_in_an_entry_log(logs: JournalLogs, place: str) -> None:
    victim = logs.runs()[2]
    assert victim.ledger_id == FIRST
    at = 8 if place == "header" else victim.size_bytes - 100
    logs.fake.corrupt(LOG_PATH, victim.offset_bytes + at)
    store = logs.store()
    hit = victim.last_entry_id if place == "entry" else victim.first_entry_id
    assert store.read(FIRST, hit, hit).status == CANNOT_TELL
    assert [(run.log_id, run.offset_bytes) for run in take_damage(store)] == [
        (LOG, victim.offset_bytes)
    ]
    assert store.read(FIRST, victim.first_entry_id + 1, victim.first_entry_id + 1).status == (
        CANNOT_TELL if place == "header" else OK
    )
    assert store.read(FIRST, 0, 0).entry == stored(FIRST, 0)
    with logs.scan() as scan:
        found = list(scan)
        skipped = scan.status.skipped_bytes
        (bad,) = scan.verify([victim])
    assert (bad.damaged > 0) == (place == "entry")
    if place == "header":
        assert (len(found), skipped) == (7, victim.size_bytes)
    else:
        assert [run.offset_bytes for run in found if run.damaged == 1] == [victim.offset_bytes]
        assert (len(found), skipped) == (8, 0)


def test_runs_under_another_salt_are_not_this_log_s(logs: JournalLogs) -> None:
    """As in a file that was taken again: what an earlier use left is nobody's run (INV-J7)."""
    runs = logs.runs()
    header = bytearray(logs.fake.disk().read_file(LOG_PATH)[:240])
    struct.pack_into("<Q", header, 24, 99)
    struct.pack_into("<I", header, 236, crc32c(bytes(header[:236])))
    for at in (0, 4096):
        overwrite(logs, at, bytes(header))
    with logs.scan(salt=0) as scan:
        assert list(scan) == []
        assert not scan.status.header_damaged
        assert len(scan.verify(runs)) == len(runs)
    store = logs.store()
    assert store.read(FIRST, 0, 0).status == CANNOT_TELL


@pytest.mark.parametrize("copies", [1, 2])
def test_one_header_is_enough_and_without_any_runs_are_judged_by_themselves(
    logs: JournalLogs, copies: int
) -> None:
    for at in (0, 4096)[:copies]:
        logs.fake.corrupt(LOG_PATH, at + 40)
    store = logs.store()
    assert store.read(FIRST, 50, 50).entry == stored(FIRST, 50)
    with logs.scan(salt=0) as scan:
        assert len(list(scan)) == 8
        assert scan.status.header_damaged == (copies == 2)
        assert scan.status.skipped_bytes == 0


def test_a_file_that_may_not_stay_is_no_log() -> None:
    """One of version 2 has the same id in its header, and no runs."""
    with FakeDisk() as fake:
        logs = JournalLogs(fake)
        logs.begin_file(adopts=False)
        logs.batch(FIRST)
        with logs.scan() as scan:
            assert list(scan) == []
            assert scan.status.header_damaged
        logs.close()


def test_a_missing_file_is_a_missing_log(logs: JournalLogs) -> None:
    logs.fake.disk().unlink(LOG_PATH)
    for directory in (JOURNAL, ""):
        store = logs.store(journal_directory=directory)
        assert store.read(FIRST, 3, 3).status == CANNOT_TELL
        assert [run.log_id for run in take_damage(store)] == [LOG]


@pytest.mark.parametrize("victim", ["batch header", "run's record", "first loose record"])
def test_damage_outside_of_runs_hides_none_of_them(logs: JournalLogs, victim: str) -> None:
    runs = logs.runs()
    in_batch = [run for run in runs if run.first_entry_id == 3 * RUN_ENTRIES]
    at = {
        "batch header": in_batch[0].offset_bytes - 96 - 88,
        "run's record": in_batch[0].offset_bytes - 96,
        "first loose record": in_batch[1].offset_bytes + in_batch[1].size_bytes,
    }[victim]
    logs.fake.corrupt(LOG_PATH, at + 20)
    with logs.scan() as scan:
        assert list(scan) == runs
        # What a damaged record was, a run or not, nobody can tell.
        assert (scan.status.skipped_bytes > 0) == (victim == "first loose record")


def test_a_run_that_a_record_names_and_that_is_gone_is_missed(logs: JournalLogs) -> None:
    victim = logs.runs()[5]
    overwrite(logs, victim.offset_bytes, bytes(victim.size_bytes))
    with logs.scan() as scan:
        assert len(list(scan)) == 7
        assert scan.status.skipped_bytes == victim.size_bytes


@pytest.mark.parametrize("is_harmed", [False, True])
def test_compaction_moves_its_runs_into_an_entry_log(logs: JournalLogs, is_harmed: bool) -> None:
    victim = logs.runs()[4]
    if is_harmed:
        logs.fake.corrupt(LOG_PATH, victim.offset_bytes + victim.size_bytes - 100)
    store = logs.store()
    runs = store.log_runs(Scope([1], [LOG], [SECOND]))
    assert {run.log_id for run in (runs[n] for n in range(len(runs)))} == {LOG}
    compact = Compact(
        store, CompactOptions(log_id=1, log_salt=5, created_s=1, window_bytes=1 << 20)
    )
    at = 0
    while at < len(runs):
        taken = compact.step(runs, at)
        assert taken is not None
        at += taken
    while compact.write_rest():
        pass
    compact.end_log()
    assert compact.counts.entries_moved == 4 * RUN_ENTRIES - is_harmed
    assert compact.counts.bad_entries == is_harmed
    compact.write_locations(2, 50)
    compact.free()
    store.add(2)
    store.set_logs([1])
    for entry_id in range(4 * RUN_ENTRIES):
        found = store.read(FIRST, entry_id, entry_id)
        if is_harmed and entry_id == victim.last_entry_id:
            assert found.status == CANNOT_TELL
        else:
            assert found.entry == stored(FIRST, entry_id)
    assert store.read(SECOND, 0, 0).status == NO_ENTRY, (
        "it lay in a log that is not listed any more"
    )


def test_a_place_in_such_a_log_is_one_to_go_on_at(logs: JournalLogs) -> None:
    store = logs.store()
    scope = Scope([1], [LOG])
    found, place = [], (0, 0)
    while True:
        runs = store.log_runs(scope, place, 3)
        found += [runs[n].offset_bytes for n in range(len(runs))]
        if runs.is_all:
            break
        place = runs.next_place
    assert found == [run.offset_bytes for run in logs.runs()]
    assert store.log_bytes(scope) == {LOG: sum(run.size_bytes for run in logs.runs())}
