"""Files ahead of need: made, held, taken again, never too many."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.native.disk import Disk
from fastbk.native.journal import ALLOCATES, Prewrite
from fastbk.storage.journal_files import OldFile, find_files, name_of
from fastbk.storage.journal_pool import NAMED_A_TURN, JournalPool, ReadyFile
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.wait import DEADLINE_S, wait_until

SIZE = 256 * 1024


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk() as fake:
        disk = fake.disk()
        disk.make_directory("/j")
        disk.sync_directory("/")
        yield fake


def pool_on(disk: Disk, directory: str = "/j", **more: object) -> JournalPool:
    arguments: dict[str, object] = {
        "next_file_id": 1,
        "file_size_bytes": SIZE,
        "first_file_size_bytes": SIZE // 2,
        "limit_bytes": 4 * SIZE,
        "in_background": False,
    }
    return JournalPool(disk, directory, **{**arguments, **more})  # type: ignore[arg-type]


def use(
    pool: JournalPool, closed_sequence: int, *, adopts: bool = False, end_bytes: int = 0
) -> ReadyFile:
    file = pool.take()
    assert file is not None
    pool.used(file, closed_sequence, adopts=adopts, end_bytes=end_bytes)
    return file


def test_the_first_file_is_small_and_the_next_one_is_ready(fake: FakeDisk) -> None:
    disk = fake.disk()
    pool = pool_on(disk)
    pool.update(0)
    first = use(pool, 0)
    assert (first.file_id, first.size_bytes) == (1, SIZE // 2)
    pool.update(0)
    assert pool.has_ready
    assert pool.next_size_bytes == SIZE
    assert sorted(disk.list("/j")) == [name_of(1), name_of(2)]
    assert pool.behind_bytes == SIZE // 2
    second = use(pool, 10)
    assert second.salt != first.salt
    assert pool.behind_bytes == SIZE // 2 + SIZE


def test_a_file_is_taken_again_only_behind_the_mark(fake: FakeDisk) -> None:
    """INV-J3."""
    disk = fake.disk()
    pool = pool_on(disk)
    use(pool, 0)
    use(pool, 10)  # file 1 ends at batch 10
    pool.update(9)
    use(pool, 20)
    pool.update(9)
    assert pool.recycled == 0
    use(pool, 30)
    pool.update(10)
    assert pool.recycled == 1
    assert name_of(1) not in disk.list("/j")
    assert use(pool, 40).file_id == 5


def test_a_file_that_adopts_is_kept_whatever_the_mark_until_it_is_released(fake: FakeDisk) -> None:
    """INV-J3: it may be a log. It counts no more against the journal's limit."""
    disk = fake.disk()
    pool = pool_on(disk, first_file_size_bytes=SIZE)
    use(pool, 0, adopts=True)
    use(pool, 10)  # file 1 ends at batch 10
    pool.update(9)
    assert (pool.behind_bytes, pool.kept_bytes) == (2 * SIZE, 0)
    pool.update(10)
    assert (pool.behind_bytes, pool.kept_bytes) == (SIZE, SIZE)
    use(pool, 20)
    pool.update(20)
    assert pool.recycled == 1, "file 2, which does not adopt"
    assert name_of(1) in disk.list("/j")
    pool.release([1, 2, 3, 99])
    assert pool.kept_bytes == 0
    pool.update(20)
    use(pool, 30)
    pool.update(20)
    assert pool.recycled == 2
    assert name_of(1) not in disk.list("/j")


def test_a_file_may_be_released_before_the_journal_has_seen_the_mark(fake: FakeDisk) -> None:
    """INV-J3: then the mark frees it."""
    disk = fake.disk()
    pool = pool_on(disk)
    use(pool, 0, adopts=True)
    use(pool, 10)
    pool.release([1])
    pool.update(9)
    use(pool, 20)
    pool.update(9)
    assert name_of(1) in disk.list("/j")
    use(pool, 30)
    pool.update(10)
    assert pool.recycled == 1
    assert name_of(1) not in disk.list("/j")


def make_file(disk: Disk, file_id: int, size: int = SIZE) -> OldFile:
    file = disk.open(f"/j/{name_of(file_id)}", create=True)
    disk.preallocate(file, 0, size)
    disk.close(file)
    return OldFile(file_id, f"/j/{name_of(file_id)}", 0, size)


def test_a_log_of_an_earlier_start_is_free_once_it_is_released(fake: FakeDisk) -> None:
    """Nobody told the pool of it: a bookie may have tens of thousands."""
    disk = fake.disk()
    make_file(disk, 1)
    old = [OldFile(2, "/j/x", 7, SIZE, kept=True)]
    pool = pool_on(disk, next_file_id=5, old_files=old, first_file_size_bytes=SIZE)
    use(pool, 7)
    pool.update(7)
    use(pool, 8)
    pool.update(8)
    assert (pool.recycled, pool.behind_bytes) == (1, SIZE)
    assert name_of(1) in disk.list("/j")
    pool.release([1, 3])
    assert pool.free_bytes == 2 * SIZE
    use(pool, 9)
    pool.update(7)
    assert pool.recycled == 2
    assert name_of(1) not in disk.list("/j")
    pool.release([1, 5, 6, 7, 8])
    assert pool.free_bytes == SIZE, "files of this start are known; the one that is written is none"


def test_thousands_of_files_that_are_released_at_once_hold_nobody_up(fake: FakeDisk) -> None:
    """A ledger of a terabyte was deleted. The journal commits between two turns."""
    disk = fake.disk()
    for file_id in range(1, 41):
        make_file(disk, file_id, 4096)
    pool = pool_on(disk, next_file_id=50, limit_bytes=1 << 40)
    use(pool, 0)
    before = fake.operations()
    pool.release(range(1, 41))
    assert fake.operations() - before <= 4 * NAMED_A_TURN
    while pool._named:
        before = fake.operations("open")
        pool._find_named()
        assert fake.operations("open") - before <= NAMED_A_TURN
    assert pool.free_bytes == 40 * 4096


def pool_with_surplus(disk: Disk, folder: Path) -> JournalPool:
    """A pool with six files of an earlier start, which are more than its limit has room for."""
    old = []
    for file_id in range(1, 7):
        path = folder / name_of(file_id)
        path.write_bytes(bytes(SIZE))
        old.append(OldFile(file_id, str(path), 0, SIZE))
    pool = pool_on(
        disk,
        str(folder),
        in_background=True,
        next_file_id=7,
        old_files=old,
        first_file_size_bytes=SIZE,
    )
    use(pool, 0)
    return pool


def test_surplus_is_removed_beside_the_journals_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Disk, "unlink")  # milliseconds in which nothing is committed
    with Disk(tmp_path) as disk:
        pool = pool_with_surplus(disk, tmp_path)
        pool.update(0)

        def is_small() -> bool:
            pool.update(0)
            return len(os.listdir(tmp_path)) == 4

        wait_until(is_small, "the files that are too many")
        pool.close()


def test_what_is_to_be_removed_is_not_freed_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named again while it waits, it would be taken for the next file, and go then."""
    gate, unlink = threading.Event(), os.unlink

    def unlink_later(path: str) -> None:
        gate.wait(10)
        unlink(path)

    monkeypatch.setattr(os, "unlink", unlink_later)
    with Disk(tmp_path) as disk:
        pool = pool_with_surplus(disk, tmp_path)

        def has_surplus() -> bool:
            pool.update(0)
            return bool(pool._remover.given_ids)

        try:
            wait_until(has_surplus, "more than the limit has room for")
            free_bytes = pool.free_bytes
            pool.release(range(1, 7))
            pool._find_named()
            assert pool.free_bytes == free_bytes
        finally:
            gate.set()
            pool.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[JournalPool]:
    with Disk(tmp_path) as disk:
        pool = pool_on(disk, str(tmp_path), in_background=True, first_file_size_bytes=SIZE // 2)
        yield pool
        pool.close()


def is_cut(pool: JournalPool, path: str, size_bytes: int) -> None:
    def has_size() -> bool:
        pool.update(0)
        return os.path.getsize(path) == size_bytes and not pool._cutting

    wait_until(has_size, "the file that is cut")


def test_a_file_that_adopts_and_is_left_early_gives_the_rest_back(on_disk: JournalPool) -> None:
    use(on_disk, 0)
    left = use(on_disk, 1, adopts=True)
    use(on_disk, 10, end_bytes=SIZE // 2 + 4096)
    is_cut(on_disk, left.path, SIZE // 2 + 4096)
    assert on_disk.behind_bytes == SIZE // 2 + SIZE // 2 + 4096 + SIZE
    on_disk.update(10)
    assert on_disk.kept_bytes == SIZE // 2 + 4096
    on_disk.release([left.file_id])
    assert on_disk.kept_bytes == 0


@pytest.mark.parametrize(
    ("adopts", "end_bytes"), [(False, SIZE // 2), (True, SIZE - SIZE // 8), (True, 0)]
)
def test_a_file_that_does_not_adopt_or_is_nearly_full_stays_as_it_is(
    on_disk: JournalPool, adopts: bool, end_bytes: int
) -> None:
    use(on_disk, 0)
    left = use(on_disk, 1, adopts=adopts)
    use(on_disk, 10, end_bytes=end_bytes)
    assert not on_disk._cutting
    on_disk.close()
    assert os.path.getsize(left.path) == SIZE


def test_a_file_is_not_taken_again_while_it_is_cut(
    on_disk: JournalPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what the journal writes there next would be cut off."""
    may_cut = threading.Event()
    cut = on_disk.disk.cut

    def wait_and_cut(path: str, size_bytes: int) -> int:
        may_cut.wait(DEADLINE_S)
        return cut(path, size_bytes)

    monkeypatch.setattr(on_disk.disk, "cut", wait_and_cut)
    use(on_disk, 0)
    left = use(on_disk, 1, adopts=True)
    use(on_disk, 10, end_bytes=SIZE // 2)
    on_disk.update(10)
    on_disk.release([left.file_id])
    on_disk.update(10)
    assert on_disk.kept_bytes == SIZE
    assert os.path.exists(left.path)
    may_cut.set()

    def is_taken_again() -> bool:
        on_disk.update(10)
        return on_disk.kept_bytes == 0

    wait_until(is_taken_again, "the file that was named while it was cut")


def test_a_log_of_an_earlier_start_is_cut_and_can_be_named_meanwhile(on_disk: JournalPool) -> None:
    path = Path(on_disk.directory, name_of(0))
    path.write_bytes(bytes(SIZE))
    on_disk.cut_earlier(0, SIZE // 2)
    on_disk.update(0)
    assert not on_disk._cutting, "the first header of this start comes first"
    use(on_disk, 0)
    on_disk.update(0)  # the next file is being made: this one is not taken again
    on_disk.release([0])
    is_cut(on_disk, str(path), SIZE // 2)


def test_a_log_of_an_earlier_start_that_is_named_first_is_taken_again_as_it_is(
    on_disk: JournalPool,
) -> None:
    """Where the disk was full at the start, its first file comes late."""
    path = Path(on_disk.directory, name_of(0))
    path.write_bytes(bytes(SIZE))
    on_disk.cut_earlier(0, SIZE // 2)
    on_disk.release([0])
    use(on_disk, 0)
    assert not on_disk._cutting
    file = use(on_disk, 1)
    assert on_disk.recycled == 1
    assert file.size_bytes == os.path.getsize(file.path) == SIZE
    assert not path.exists()


def test_a_file_that_cannot_be_cut_is_just_larger(
    on_disk: JournalPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, size_bytes: int) -> int:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(on_disk.disk, "cut", fail)
    use(on_disk, 0)
    left = use(on_disk, 1, adopts=True)
    use(on_disk, 10, end_bytes=SIZE // 2)
    is_cut(on_disk, left.path, SIZE)
    on_disk.update(10)
    assert on_disk.kept_bytes == SIZE


def test_a_file_that_cannot_be_removed_stays_free(fake: FakeDisk) -> None:
    disk = fake.disk()
    old = [make_file(disk, file_id) for file_id in range(1, 7)]
    pool = pool_on(disk, next_file_id=7, old_files=old, first_file_size_bytes=SIZE)
    use(pool, 0)
    fake.fault("fail", "unlink", errno=errno.EIO)
    pool.update(0)
    pool.update(0)
    assert len(disk.list("/j")) == 5
    fake.clear_faults()
    pool.update(0)
    assert len(disk.list("/j")) == 4


def test_nothing_is_released_twice(fake: FakeDisk) -> None:
    """A file that replay said is free may be named again: it was given up just then."""
    disk = fake.disk()
    old = [make_file(disk, 1), make_file(disk, 2)]
    pool = pool_on(disk, next_file_id=5, old_files=old)
    pool.release([1])
    pool.update(0)
    pool.release([1, 2])
    names = disk.list("/j")
    assert len(names) == len(set(names)) == 2
    assert pool.free_bytes == 2 * SIZE


def test_the_last_used_file_of_an_earlier_start_waits_for_the_next_header(fake: FakeDisk) -> None:
    """Without it nothing on the disk would say how far the journal got."""
    disk = fake.disk()
    file = disk.open(f"/j/{name_of(2)}", create=True)
    disk.preallocate(file, 0, SIZE)
    disk.close(file)
    pool = pool_on(disk, next_file_id=3, old_files=[OldFile(2, f"/j/{name_of(2)}", 9, SIZE)])
    pool.update(9)
    assert sorted(disk.list("/j")) == [name_of(2), name_of(3)]
    use(pool, 9)
    pool.update(9)
    assert sorted(disk.list("/j")) == [name_of(3), name_of(4)]
    assert (pool.made, pool.recycled) == (1, 1)


def test_the_last_used_file_is_kept_beside_one_that_was_made_ahead(fake: FakeDisk) -> None:
    """The ordinary state after any stop: the file with the highest id is ready and was never written to."""
    disk = fake.disk()
    for file_id in (2, 3):
        file = disk.open(f"/j/{name_of(file_id)}", create=True)
        disk.preallocate(file, 0, SIZE)
        disk.close(file)
    old = [OldFile(2, f"/j/{name_of(2)}", 9, SIZE), OldFile(3, f"/j/{name_of(3)}", 0, SIZE)]
    pool = pool_on(disk, next_file_id=4, old_files=old)
    pool.update(9)
    assert sorted(disk.list("/j")) == [name_of(2), name_of(4)]
    use(pool, 9)
    pool.update(9)
    assert sorted(disk.list("/j")) == [name_of(4), name_of(5)]


def test_short_files_are_removed_and_free_ones_kept_within_the_limit(fake: FakeDisk) -> None:
    disk = fake.disk()
    for file_id, size in ((1, 4096), (2, SIZE), (3, SIZE), (4, SIZE), (5, SIZE), (6, SIZE)):
        file = disk.open(f"/j/{name_of(file_id)}", create=True)
        disk.preallocate(file, 0, size)
        disk.close(file)
    old = [
        OldFile(file_id, f"/j/{name_of(file_id)}", 0, 4096 if file_id == 1 else SIZE)
        for file_id in range(1, 7)
    ]
    pool = pool_on(disk, next_file_id=7, old_files=old)
    for _ in range(3):
        pool.update(0)
    names = disk.list("/j")
    assert name_of(1) not in names
    assert sum(SIZE for _ in names) <= 4 * SIZE
    assert name_of(7) in names


@pytest.mark.parametrize(("is_nearly_full", "left"), [(False, 4), (True, 3)])
def test_free_files_go_first_where_ledgers_need_the_room(
    fake: FakeDisk, is_nearly_full: bool, left: int
) -> None:
    """Decision 15: two stay for fences and recovery adds, beside the one that is written to."""
    disk = fake.disk()
    old = [make_file(disk, file_id) for file_id in range(1, 7)]
    pool = pool_on(disk, next_file_id=7, old_files=old, first_file_size_bytes=SIZE)
    use(pool, 0)
    pool.is_disk_nearly_full = is_nearly_full
    for _ in range(3):
        pool.update(0)
    assert len(disk.list("/j")) == left
    assert pool.has_ready


def test_a_crash_between_rename_and_header_leaves_an_unused_file(fake: FakeDisk) -> None:
    disk = fake.disk()
    pool = pool_on(disk)
    use(pool, 0)
    use(pool, 10)
    pool.update(10)
    fake.cut()
    fake.restart("lose")
    states = {file.file_id: file.header.state for file in find_files(fake.disk(), "/j")}
    assert set(states.values()) == {"unused"}


@pytest.mark.parametrize("kind", ["create", "preallocate", "sync_directory", "open"])
def test_a_next_file_that_cannot_be_made_is_told_and_tried_again(fake: FakeDisk, kind: str) -> None:
    """Nothing hangs on it yet: the journal goes on in its current file."""
    disk = fake.disk()
    pool = pool_on(disk)
    use(pool, 0)
    before = disk.list("/j")
    fake.fault("fail", kind, errno=errno.EIO)
    pool.update(0)
    assert pool.take() is None
    assert "Input/output" in pool.failure
    assert pool.no_room == ""
    assert disk.list("/j") == before
    pool._no_file_until_s = 0.0
    pool.update(0)
    assert pool.has_ready
    assert pool.failure == ""


@pytest.mark.parametrize("in_background", [False, True])
def test_a_directory_without_room_for_a_name_is_tried_again(
    fake: FakeDisk, in_background: bool
) -> None:
    disk = fake.disk()
    pool = pool_on(disk, in_background=in_background)
    use(pool, 0)
    use(pool, 10)
    before = disk.list("/j")
    fake.fault("fail", "rename", errno=errno.ENOSPC)
    pool.update(10)
    assert pool.take() is None
    assert "has no room" in pool.no_room
    assert disk.list("/j") == before
    pool._no_file_until_s = 0.0
    pool.update(10)
    taken = pool.take()
    assert taken is not None
    assert pool.recycled == 1
    pool.give_back(taken)
    pool.close()


def test_a_full_disk_leaves_nothing_half_made(fake: FakeDisk) -> None:
    disk = fake.disk()
    pool = pool_on(disk)
    use(pool, 0)
    fake.set_capacity(fake.used_bytes + SIZE // 2)
    pool.update(0)
    assert pool.take() is None
    assert disk.list("/j") == [name_of(1)]
    assert pool.made == 1


def test_made_by_a_thread_on_a_real_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ("rename", "sync_directory"):
        monkeypatch.delattr(Disk, call)  # both would stop the journal's commits
    with Disk(tmp_path) as disk:
        pool = pool_on(disk, str(tmp_path), in_background=True)
        first = use(pool, 0)
        assert (tmp_path / name_of(1)).stat().st_size == SIZE // 2
        pool.update(0)
        second = pool.take()  # hurries the thread and waits
        assert second is not None
        path = tmp_path / name_of(2)
        assert path.stat().st_size == SIZE
        assert path.stat().st_blocks * 512 >= SIZE, "written, not only named"
        assert path.read_bytes() == bytes(SIZE)
        assert second.size_bytes == SIZE
        disk.set_lock_timeout(10)
        with pytest.raises(TimeoutError):
            disk.open(first.path, lock=True)
        pool.used(second, 3)
        pool.update(3)  # file 1 is free: renamed by a thread
        third = pool.take()
        assert third is not None
        assert third.file_id == 3
        assert pool.recycled == 1
        assert sorted(disk.list(tmp_path)) == [name_of(2), name_of(3)]
        pool.give_back(third)
        pool.close()


@pytest.mark.parametrize(
    ("kind", "nth", "in_background"),
    [
        ("rename", 1, False),
        ("sync_directory", 1, False),
        ("rename", 1, True),
        ("sync_directory", 1, True),
        ("open", 2, True),
    ],
)
def test_a_recycled_file_whose_name_is_in_doubt_ends_the_journal(
    fake: FakeDisk, kind: str, nth: int, in_background: bool
) -> None:
    disk = fake.disk()
    pool = pool_on(disk, in_background=in_background)
    use(pool, 0)
    use(pool, 10)
    fake.fault("fail", kind, nth=nth, errno=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        pool.update(10)
        pool.take()
    pool.close()


def test_a_thread_that_fails_is_told(tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        pool = pool_on(disk, str(tmp_path), in_background=True)
        (tmp_path / name_of(1)).write_bytes(b"in the way")
        with pytest.raises(FileExistsError):
            pool.take()
        assert (tmp_path / name_of(1)).read_bytes() == b"in the way", "it may be anything"
        pool.close()


def finish(pool: JournalPool) -> None:
    def is_ready() -> bool:
        pool._finish_prewrite()
        return pool.has_ready

    wait_until(is_ready, "the next file")


def update(pool: JournalPool, mark_sequence: int, *, is_burst: bool = False) -> bool:
    """Return whether a file is ready behind it."""
    pool.update(mark_sequence, is_burst=is_burst)
    return pool.has_ready


@pytest.mark.parametrize("kind", ["open", "preallocate"])
def test_a_file_that_cannot_be_filled_is_replaced(fake: FakeDisk, kind: str) -> None:
    """It is free and holds nothing: neither this journal ends with it nor the next start."""
    disk = fake.disk()
    pool = pool_on(disk, in_background=True)
    use(pool, 0)
    pool.hurry()
    pool.update(0, is_burst=True)
    finish(pool)
    burst = use(pool, 10)
    use(pool, 20)
    fake.fault("fail", kind, errno=errno.EIO)
    pool.update(20)

    def has_failed() -> bool:
        pool._finish_prewrite()
        return "Input/output" in pool.failure

    wait_until(has_failed, "the thread's failure")
    assert os.path.basename(burst.path) not in disk.list("/j")
    pool._no_file_until_s = 0.0
    assert use(pool, 30).is_written
    assert pool.failure == ""
    pool.close()


def test_in_a_burst_the_next_file_is_not_filled_with_zeros(allocating: Path) -> None:
    """INV-J5: zeros would take half of the disk from the large batches that come; they follow afterwards."""
    with Disk(allocating, "plain") as disk:
        pool = pool_on(disk, str(allocating), in_background=True)
        use(pool, 0)
        pool.hurry()
        pool.update(0, is_burst=True)
        finish(pool)
        assert (pool.made, pool.allocated) == (2, 1)
        assert update(pool, 0, is_burst=True), "it is good enough as long as the burst lasts"
        assert update(pool, 0), "it may be needed at once"
        pool.fill()
        assert not update(pool, 0)
        finish(pool)
        assert (pool.made, pool.recycled, pool.allocated) == (2, 1, 1)
        after = use(pool, 10)
        assert (after.is_written, after.size_bytes) == (True, SIZE)
        assert disk.read(after.file, SIZE, 0) == bytes(SIZE)
        assert holes_of(Path(after.path)) == 0
        pool.close()


def test_a_short_burst_only_puts_zeros_off(allocating: Path) -> None:
    with Disk(allocating, "plain") as disk:
        pool = pool_on(disk, str(allocating), in_background=True)
        use(pool, 0)
        pool.update(0)
        pool.update(0, is_burst=True)
        pool.update(0)
        finish(pool)
        assert (pool.made, pool.allocated) == (2, 0)
        pool.close()


def test_in_a_burst_a_file_that_becomes_free_comes_before_a_new_one(allocating: Path) -> None:
    with Disk(allocating, "plain") as disk:
        pool = pool_on(disk, str(allocating), in_background=True)
        use(pool, 0)
        use(pool, 10)
        pool.update(0, is_burst=True)
        assert not pool.is_making, "the file that is written to now has room"
        pool.update(10, is_burst=True)
        finish(pool)
        assert (use(pool, 20).is_written, pool.recycled, pool.made) == (True, 1, 2)
        pool.close()


def test_a_file_that_a_burst_took_is_filled_before_it_is_taken_again(allocating: Path) -> None:
    with Disk(allocating, "plain") as disk:
        pool = pool_on(disk, str(allocating), in_background=True)
        use(pool, 0)
        pool.hurry()
        pool.update(0, is_burst=True)
        finish(pool)
        begins = [pool.unwritten_from_bytes]  # the file that is written to now is whole
        burst = use(pool, 10)
        assert holes_of(Path(burst.path)) == SIZE
        begins.append(pool.unwritten_from_bytes)  # there is no better one yet
        pool.update(9)
        finish(pool)
        begins.append(pool.unwritten_from_bytes)
        use(pool, 20)
        begins.append(pool.unwritten_from_bytes)
        assert begins == [None, None, 0, None]
        pool.update(20)
        finish(pool)
        again = use(pool, 30)
        assert pool.recycled == 1
        assert (again.is_written, holes_of(Path(again.path))) == (True, 0)
        pool.close()


@pytest.fixture
def allocating(tmp_path: Path) -> Path:
    """Give a folder whose file system allocates blocks without writing them, and can tell which these are."""
    probe = tmp_path / "probe"
    with Disk(tmp_path, "plain") as disk:
        prewrite = Prewrite(disk, str(tmp_path), str(probe), SIZE, haste=ALLOCATES)
        wait_until(prewrite.is_done, "the probe")
        if prewrite.written_bytes == SIZE or holes_of(probe) == 0:
            pytest.skip("this file system does not allocate without writing, or does not tell")
    probe.unlink()
    return tmp_path


def holes_of(path: Path) -> int:
    """Return the bytes of a file that were never written."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        holes = at = 0
        while at < size and (hole := os.lseek(file.fileno(), at, os.SEEK_HOLE)) < size:
            try:
                at = os.lseek(file.fileno(), hole, os.SEEK_DATA)
            except OSError:
                at = size
            holes += at - hole
    return holes


def test_a_file_that_is_needed_at_once_gets_no_more_zeros(allocating: Path) -> None:
    """Clients wait for it: 256 MiB of zeros would be half a second."""
    with Disk(allocating, "plain") as disk:
        pool = pool_on(disk, str(allocating), in_background=True, file_size_bytes=256 << 20)
        use(pool, 0)
        taken: list[ReadyFile] = []

        def take() -> bool:
            file = pool.take(wait=False)
            if file is not None:
                taken.append(file)
            return file is not None

        wait_until(take, "the next file")
        (file,) = taken
        assert (file.size_bytes, file.is_written) == (256 << 20, False)
        pool.used(file, 10)
        pool.close()
