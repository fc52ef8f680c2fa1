"""Journal files that adopt and are left before they are full are cut, and nothing is lost by it."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.native.journal import NO_END
from fastbk.storage.check import DirectoryCheck
from fastbk.storage.directories import JOURNAL_LOG, JOURNALS
from fastbk.storage.journal_files import ReplayFile
from tests.crash.test_bookie_storage import (
    check_all,
    check_fences,
    check_restart,
    formatted,
    restart,
    run,
    runs,
)
from tests.fixtures.fake_disk import FOREVER
from tests.fixtures.storage_harness import (
    FILE_BYTES,
    INCARNATION,
    JOURNAL,
    LEDGERS,
    SMALL_FILE_BYTES,
    AdoptingLife,
    Book,
    LeavingLife,
    Life,
)

if TYPE_CHECKING:
    from tests.fixtures.fake_disk import FakeDisk

pytestmark = pytest.mark.no_service

WORKLOAD = "left_early"


def sizes(fake: FakeDisk, life: Life) -> dict[int, tuple[int, int]]:
    """Return where the last batch of each sealed log among the journal's files ends, and how long the file is."""
    disk = fake.disk()
    found = {}
    for log in life.checkpoint.manifest.logs:
        if not (log.is_journal_file and log.sealed):
            continue
        file_id = log.log_id ^ JOURNAL_LOG
        path = JOURNALS.path(JOURNAL, file_id)
        with ReplayFile(file_id, path, NO_END).scan(disk, INCARNATION, 0) as scan:
            assert all(batch.sequence for batch in scan)
            end = scan.end
        assert end.kind in ("closing", "tail")
        assert log.durable_bytes <= end.end_bytes
        found[file_id] = end.end_bytes, len(disk.read_file(path))
    disk.destroy()
    return found


def check_files(fake: FakeDisk) -> None:
    """The offline check finds nothing."""
    disk, journal_disk = fake.disk(), fake.disk()
    checked = DirectoryCheck(disk, LEDGERS, journal_disk, JOURNAL, INCARNATION).run()
    assert [each.text for each in checked.findings if each.severity == "damage"] == []
    assert checked.runs > 0
    disk.destroy()
    journal_disk.destroy()


def lived(fake: FakeDisk, book: Book, kind: type[Life] = LeavingLife) -> dict[int, tuple[int, int]]:
    """One life that is killed when all that it has is flushed; return its logs' ends and sizes."""
    life = kind(fake, book)
    runs(life, random.Random(5))
    life.flush()
    life.look_at_the_end()
    found = sizes(fake, life)
    life.close()
    return found


def test_what_a_file_that_is_left_early_has_unused_is_given_back() -> None:
    with formatted() as fake:
        book = Book()
        found = lived(fake, book)
        assert len(found) > 3
        assert all(size_bytes == end_bytes < FILE_BYTES for end_bytes, size_bytes in found.values())
        check_files(fake)
        check_restart(fake, book, "cut", WORKLOAD)


def test_a_start_cuts_the_last_file_of_the_one_before() -> None:
    """That one ended without a closing batch, and its file had only begun."""
    with formatted() as fake:
        book = Book()
        life = AdoptingLife(fake, book)
        for entry_id in range(12):
            life.add(1, entry_id, bytes(3000))
        life.settle()
        last = life.journal.status.file_id
        used_bytes = life.journal.status.offset_bytes
        life.look_at_the_end()
        life.close()
        path = JOURNALS.path(JOURNAL, last)
        assert len(fake.disk().read_file(path)) == FILE_BYTES
        for _ in range(2):  # the second start reads a file that was cut
            life = AdoptingLife(fake, book)
            assert len(fake.disk().read_file(path)) == used_bytes < FILE_BYTES
            check_all(life, "cut by a start")
            life.close()
            check_files(fake)
        check_restart(fake, book, "cut by a start", WORKLOAD)


@pytest.mark.parametrize(
    "fault", [{"action": "fail", "errno": errno.EIO}, {"action": "fail", "errno": errno.ENOSPC}]
)
def test_files_that_cannot_be_cut_are_just_larger(fault: dict[str, Any]) -> None:
    with formatted() as fake:
        fake.fault(kind="truncate", times=FOREVER, **fault)
        book = Book()
        assert run(fake, book, WORKLOAD, 5) is None
        found = lived(fake, book)
        assert {size_bytes for _, size_bytes in found.values()} == {FILE_BYTES, SMALL_FILE_BYTES}
        check_restart(fake, book, "not cut", WORKLOAD)


@pytest.mark.parametrize("mode", ["lose", "keep", "random"])
def test_the_power_goes_with_each_cut(mode: str) -> None:
    """Or behind it, before anything has made it durable: then the file is as long as it was."""
    with formatted() as pristine:
        with pristine.copy() as fake:
            lived(fake, Book())
            cuts = fake.operations("truncate")
        assert cuts > 3
        for nth in range(1, cuts + 1):
            with pristine.copy() as fake:
                book = Book()
                fake.fault("cut", "truncate", nth=nth)
                assert run(fake, book, WORKLOAD, 5) is not None
                restart(fake, mode, nth)
                check_restart(fake, book, f"cut {nth} of {cuts}, then {mode}", WORKLOAD)
                check_files(fake)


def test_a_file_that_was_cut_is_taken_again_at_its_size() -> None:
    with formatted() as fake:
        book = Book()
        life = LeavingLife(fake, book)
        life.settles_a_roll = 7
        runs(life, random.Random(5))
        life.flush()
        some = {size_bytes for _, size_bytes in sizes(fake, life).values()}
        small = {each for each in some if SMALL_FILE_BYTES < each < FILE_BYTES}
        assert small
        for ledger_id in {ledger for ledger, _ in book.sent} - book.deleted:
            life.delete(ledger_id)
        for _ in range(4):
            life.flusher.poll()
            life.loop.poll_files()
        recycled, of_sizes = life.pool.recycled, set()
        for entry_id in range(120):
            life.add(50, entry_id, bytes(3000))
            life.settle()
            of_sizes.add(life.journal.status.file_size_bytes)
            if entry_id % 20 == 0:
                life.flush()
        life.flush()
        assert life.pool.recycled > recycled
        assert of_sizes & small
        check_all(life, "taken again")
        life.look_at_the_end()
        life.close()
        life = LeavingLife(fake, book)
        check_all(life, "taken again, and started")
        check_fences(life, "taken again")
        life.close()
