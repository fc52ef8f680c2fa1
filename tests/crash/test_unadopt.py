"""The way back from journal files that are logs: whole, cut off anywhere, and refused where something would be lost."""

from __future__ import annotations

import copy
import errno
import random
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.errors import Error, StorageError
from fastbk.storage.checkpoint import Checkpoint
from fastbk.storage.directories import JOURNALS
from fastbk.storage.manifest import SLOTS, VERSION_WITHOUT_JOURNALS, ManifestSlots
from fastbk.storage.offline_store import KEPT_FREE_BYTES, OfflineStore
from fastbk.storage.unadopt import Unadopt, Unadopted
from tests.crash.test_bookie_storage import check_all, check_fences, formatted, runs
from tests.fixtures.fake_disk import FakeDisk, operations_to_fault
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    KIB,
    LEDGERS,
    AdoptingLife,
    Book,
    LeavingLife,
    Life,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_service

STRIDE = 5
"""Of the operations that are faulted; ALL=1 faults all."""
VERSIONS_BEFORE = {"journal": {2}, "locations": {2}, "manifest": {VERSION_WITHOUT_JOURNALS}}
FAULTS = {
    "cut": {"action": "cut"},
    "eio": {"action": "fail", "errno": errno.EIO},
    "enospc": {"action": "fail", "errno": errno.ENOSPC},
}


@pytest.fixture(autouse=True)
def _does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails gets some seconds; the fake one needs none."""
    monkeypatch.setitem(Checkpoint.__init__.__kwdefaults__, "wait", lambda _: None)


def adopted(fake: FakeDisk, *, stops: bool = True) -> Book:
    """Live a bookie whose files are logs, some of them more than once; end it."""
    book = Book()
    for number in range(2):
        life = (LeavingLife if number == 0 else AdoptingLife)(fake, book)
        if number == 0:
            runs(life, random.Random(5))
        else:
            for entry_id in range(30):
                life.add(9, entry_id, bytes(3000 + entry_id))
                life.settle()
        if number == 0 or stops:
            life.stop()
        else:
            life.look_at_the_end()
            life.close()
    return book


def unadopt(
    fake: FakeDisk, *, free: Callable[[str], int] = lambda _: 1 << 40, **how: Any
) -> Unadopted:
    disk, reader_disk, journal_disk = (fake.disk() for _ in range(3))
    opened = None
    try:
        opened = OfflineStore(disk, reader_disk, LEDGERS, JOURNAL, INCARNATION, 0)
        run = Unadopt(opened, journal_disk, JOURNAL, INCARNATION, free=free, **how)
        run.check()
        return run.run()
    finally:
        if opened is not None:
            opened.close()
        for each in (disk, reader_disk, journal_disk):
            each.destroy()


def versions(fake: FakeDisk) -> dict[str, set[int]]:
    """Return the versions of all files that have one; 0, of journal files without a header, is left out."""
    disk = fake.disk()
    folders = {"journal": JOURNAL, "locations": f"{LEDGERS}/locations"}
    paths = {
        kind: [f"{folder}/{name}" for name in disk.list(folder)] for kind, folder in folders.items()
    }
    paths["manifest"] = [f"{LEDGERS}/{slot}" for slot in SLOTS]
    found = {
        kind: {int.from_bytes(disk.read_file(path)[8:12], "little") for path in some} - {0}
        for kind, some in paths.items()
    }
    disk.destroy()
    return found


def check_is_back(fake: FakeDisk, book: Book, note: str = "") -> None:
    """No file is of the new version, no manifest names one, and a bookie that does not adopt has everything."""
    assert versions(fake) == VERSIONS_BEFORE, note
    check_serves(fake, book, note)


def check_serves(fake: FakeDisk, book: Book, note: str, kind: type[Life] = Life) -> None:
    life = kind(fake, book)
    try:
        assert not life.checkpoint.manifest.damage, note
        check_all(life, note)
        check_fences(life, note)
        life.flush()
        check_all(life, f"{note}, flushed")
    finally:
        life.close()


def test_afterwards_every_file_is_of_the_version_before() -> None:
    with formatted() as fake:
        book = adopted(fake)
        assert {kind: max(some) for kind, some in versions(fake).items()} == {
            "journal": 3,
            "locations": 3,
            "manifest": 3,
        }
        report = unadopt(fake)
        assert report.logs >= 2 and report.entries > 50 and report.bad_entries == 0
        assert report.moved_bytes and report.removed_files >= report.logs
        check_is_back(fake, book)


def test_once_more_changes_nothing_that_counts() -> None:
    with formatted() as fake:
        book = adopted(fake)
        unadopt(fake)
        report = unadopt(fake)
        assert (report.logs, report.entries, report.removed_files) == (0, 0, 0)
        check_is_back(fake, book)


def test_a_bookie_that_adopted_again_may_go_back_again() -> None:
    """A journal's ids, sequences and chain go on over the file that takes the others' place."""
    with formatted() as fake:
        book = adopted(fake)
        unadopt(fake)
        life = AdoptingLife(fake, book)
        for entry_id in range(40, 60):
            life.add(9, entry_id, bytes(3000 + entry_id))
            life.settle()
        life.stop()
        assert unadopt(fake).logs
        check_is_back(fake, book)


def test_logs_are_moved_some_at_a_time() -> None:
    with formatted() as fake:
        book = adopted(fake)
        seen: list[int] = []
        report = unadopt(
            fake, at_once_bytes=1, on_progress=lambda now: seen.append(now.moved_bytes)
        )
        assert report.logs >= 2
        assert seen == sorted(seen) and seen[-1] == report.moved_bytes
        check_is_back(fake, book)


@pytest.mark.parametrize(("fault", "mode"), [
    ("cut", "lose"), ("cut", "keep"), ("cut", "random"), ("eio", "random"), ("enospc", "keep"),
])  # fmt: skip
def test_cut_off_anywhere_it_is_done_again(fault: str, mode: str, seed: int) -> None:
    """Whatever is left: a bookie of this version has everything, and so has the way back when it is gone again."""
    with formatted() as pristine:
        known = adopted(pristine)
        with pristine.copy() as fake:
            before = fake.operations()
            unadopt(fake, at_once_bytes=1)
            total = fake.operations() - before
        assert total > 50
        for nth in operations_to_fault(total, STRIDE, seed):
            with pristine.copy() as fake:
                note = f"{fault} at operation {nth} of {total}, then {mode}"
                fake.fault(nth=nth, **FAULTS[fault])
                try:
                    unadopt(fake, at_once_bytes=1)
                except (OSError, Error):
                    pass
                fake.clear_faults()
                if not fake.is_off:
                    fake.cut()
                fake.restart(mode, nth)
                with fake.copy() as served:
                    check_serves(served, copy.deepcopy(known), note, AdoptingLife)
                unadopt(fake)
                check_is_back(fake, copy.deepcopy(known), note)


def test_what_is_not_flushed_is_refused() -> None:
    with formatted() as fake:
        book = adopted(fake, stops=False)
        with pytest.raises(StorageError, match="start the bookie, and stop it by SIGTERM"):
            unadopt(fake)
        check_serves(fake, book, "refused", AdoptingLife)


def test_without_room_for_one_file_it_stops_and_goes_on_later() -> None:
    with formatted() as fake:
        book = adopted(fake)
        with pytest.raises(StorageError, match="Make room there"):
            unadopt(fake, free=lambda _: KEPT_FREE_BYTES + KIB)
        unadopt(fake)
        check_is_back(fake, book)


def test_a_file_that_is_missing_is_named_and_nothing_of_it_is_given_up() -> None:
    with formatted() as fake:
        book = adopted(fake)
        disk = fake.disk()
        logs = ManifestSlots(disk, LEDGERS).load().logs
        lost = next(log for log in logs if log.is_journal_file)
        path = JOURNALS.path(JOURNAL, lost.log_id & ~(1 << 63))
        disk.rename(path, "/aside")
        disk.sync_directory(JOURNAL)
        disk.destroy()
        with pytest.raises(StorageError, match="cannot be read"):
            unadopt(fake)
        disk = fake.disk()
        disk.rename("/aside", path)
        disk.destroy()
        unadopt(fake)
        check_is_back(fake, book)
