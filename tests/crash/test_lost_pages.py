"""What a start reads may not be on the disk: a sync failed, or its process died before it (INV-X7).

The kernel has the pages, takes them for written or will write them later, and shows them to the next start. Then the
power goes, at any operation of that start.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Iterator

import pytest

from fastbk.errors import Error
from fastbk.storage import manifest as manifests
from fastbk.storage.directories import make_ledger_directory, settle_names
from fastbk.storage.manifest import LogEntry, Manifest, ManifestSlots
from fastbk.storage.small_files import is_read_only_requested, write_read_only_request
from tests.crash.test_bookie_storage import check_restart
from tests.fixtures.fake_disk import FakeDisk, operations_to_fault
from tests.fixtures.storage_harness import Book, Life, format_disk

pytestmark = pytest.mark.no_service

STRIDE = 5
RESOLUTIONS = (("lose", 0), ("keep", 0), ("random", 1), ("random", 2), ("random", 3))
SEEDS = (1, 2, 908)
"""Of the disk: which sectors of a failed sync were written. With 908 a slot was torn that reads well."""


class Died(BaseException):
    """The process ended here, and the kernel has what it wrote."""


def generation(number: int) -> Manifest:
    """Return a manifest of some sectors, all of which another generation changes."""
    logs = tuple(
        LogEntry(log_id=one, salt=number << 32, durable_bytes=number, live_bytes=1, sealed=True)
        for one in range(1, 12)
    )
    return Manifest(generation=number, mark=number, logs=logs)


def commit_next(fake: FakeDisk) -> bool:
    """Begin as a start does, and commit; return whether both slots were written. Raises what the disk does."""
    slots = ManifestSlots(fake.disk(), "/")
    slots.load()
    return slots.commit(generation(slots.next_generation()))


def operations_of(fake: FakeDisk) -> int:
    with fake.copy() as disk:
        assert commit_next(disk)
        return disk.operations()


def ended_lives(seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeDisk, str]]:
    """Yield disks of lives that ended at each step of a commit, by an error and by a death, with the power on."""
    with FakeDisk(seed=seed) as pristine:
        assert ManifestSlots(pristine.disk(), "/").commit(generation(1))
        for nth in range(1, operations_of(pristine) + 1):
            for times in (1, 2):
                with pristine.copy() as fake:
                    fake.fault("fail", nth=nth, times=times, errno=errno.EIO)
                    with contextlib.suppress(OSError, Error):
                        commit_next(fake)
                    fake.clear_faults()
                    yield fake, f"seed {seed}, EIO at operation {nth}, {times} times"
        for nth in range(1, 6):
            with pristine.copy() as fake, monkeypatch.context() as patch:
                left = iter(range(nth, 0, -1))

                def die(name: str, left: Iterator[int] = left) -> None:
                    if next(left, 1) == 1:
                        raise Died(name)

                patch.setattr(manifests, "kill_point", die)
                with pytest.raises(Died):
                    commit_next(fake)
                patch.undo()
                yield fake, f"seed {seed}, death at point {nth}"


@pytest.mark.parametrize("seed", SEEDS)
def test_one_slot_outlives_a_power_cut_at_any_operation_of_the_next_start(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-X7: a failed or missing sync, and then the power."""
    cuts = 0
    for ended, case in ended_lives(seed, monkeypatch):
        believed = ManifestSlots(ended.disk(), "/").load()
        assert believed in (generation(1), generation(2)), case
        for nth in range(1, operations_of(ended) + 1):
            for mode, choice in RESOLUTIONS:
                with ended.copy() as fake:
                    fake.fault("cut", nth=nth)
                    with contextlib.suppress(OSError, Error):
                        commit_next(fake)
                    fake.restart(mode, choice)
                    found = ManifestSlots(fake.disk(), "/").load()
                    assert found == generation(found.generation), (case, nth, mode)
                    assert commit_next(fake), (case, nth, mode)
                    cuts += 1
    assert cuts > 300


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_settled_stays(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-X7: whoever changes another directory by what a manifest says may rely on it."""
    for ended, case in ended_lives(seed, monkeypatch):
        slots = ManifestSlots(ended.disk(), "/")
        believed = slots.load()
        slots.settle()
        before = ended.operations()
        slots.settle()
        assert ended.operations() == before, "once is enough"
        for mode, choice in RESOLUTIONS:
            with ended.copy() as fake:
                fake.restart(mode, choice)
                assert ManifestSlots(fake.disk(), "/").load() == believed, (case, mode)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_settling_that_fails_writes_nothing_over_the_other_slot(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ended, case in ended_lives(seed, monkeypatch):
        slots = ManifestSlots(ended.disk(), "/")
        slots.load()
        for kind in ("open", "write", "sync", "sync_directory"):
            ended.fault("fail", kind, errno=errno.EIO)
            with pytest.raises(manifests.CommitInDoubt):
                slots.commit(generation(slots.next_generation()))
            for mode, choice in RESOLUTIONS:
                with ended.copy() as fake:
                    fake.restart(mode, choice)
                    assert ManifestSlots(fake.disk(), "/").load().generation in (1, 2), (case, kind)
        assert slots.commit(generation(slots.next_generation())), case


@pytest.mark.parametrize("nth", range(1, 14))
def test_a_birth_that_goes_on_has_a_manifest_for_good(nth: int) -> None:
    """INV-X7: a directory with an identity always has one."""
    with FakeDisk(seed=nth) as fake:
        fake.disk().make_directory("/ledgers")
        fake.disk().sync_directory("/")
        fake.fault("fail", nth=nth, errno=errno.EIO)
        with contextlib.suppress(OSError, Error):
            make_ledger_directory(fake.disk(), "/ledgers")
        fake.clear_faults()
        make_ledger_directory(fake.disk(), "/ledgers")
        for mode, choice in RESOLUTIONS:
            with fake.copy() as copied:
                copied.restart(mode, choice)
                assert ManifestSlots(copied.disk(), "/ledgers").load() == Manifest(generation=1)


def test_small_files_are_believed_after_their_directory_is_synced() -> None:
    """INV-X7: a name that was given or taken just before a death."""
    with FakeDisk() as fake:
        disk = fake.disk()
        for is_read_only in (True, False):
            fake.fault("fail", "sync_directory", errno=errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                write_read_only_request(disk, "/", is_read_only=is_read_only)
            with fake.copy() as lost:
                lost.restart("lose")
                assert is_read_only_requested(lost.disk(), "/") is not is_read_only
            settle_names(disk, "/")
            fake.restart("lose")
            disk = fake.disk()
            assert is_read_only_requested(disk, "/") is is_read_only
        for number in (errno.ENOSPC, errno.EROFS):
            fake.fault("fail", "sync_directory", errno=number)
            settle_names(disk, "/")
        fake.fault("fail", "sync_directory", errno=errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            settle_names(disk, "/")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bookie_starts_after_a_failed_sync_and_a_power_cut_in_its_next_start(seed: int) -> None:
    """Each sync of a flush fails, so the life ends; the next one loses its power at each operation."""
    with FakeDisk(seed=seed) as pristine:
        format_disk(pristine)
        book = Book()
        life = Life(pristine, book)
        for entry_id in range(24):  # a manifest of some sectors
            life.add(1, entry_id, b"entry %d" % entry_id)
            life.settle()
            life.flush()
        life.add(1, 24, b"not flushed")
        life.settle()
        life.close()
        for nth in range(1, 5):  # of the log, of the locations, of each slot
            with pristine.copy() as fake:
                fake.fault("fail", "sync", nth=nth, times=4, errno=errno.EIO)
                with contextlib.suppress(OSError, Error):
                    Life(fake, copy.deepcopy(book)).close()
                fake.clear_faults()
                cut_in_the_next_start(fake, book, seed, f"EIO from sync {nth} on")


def cut_in_the_next_start(fake: FakeDisk, book: Book, seed: int, case: str) -> None:
    with fake.copy() as counted:
        Life(counted, copy.deepcopy(book)).close()
        total = counted.operations()
    for nth in operations_to_fault(total, STRIDE, seed):
        with fake.copy() as cut:
            cut.fault("cut", nth=nth)
            with contextlib.suppress(OSError, Error):
                Life(cut, copy.deepcopy(book)).close()
            cut.restart("random", seed + nth)
            check_restart(cut, copy.deepcopy(book), f"{case}, power cut at {nth} of {total}")
