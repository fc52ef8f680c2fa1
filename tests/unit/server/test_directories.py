import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastbk.errors import ConfigError, StorageError
from fastbk.server.directories import disk_bytes, lock_all
from fastbk.server.disks.disk_watch import DirectoryProbe
from tests.fixtures.wait import wait_until


def test_a_locked_directory_is_refused_naming_its_process(tmp_path: Path) -> None:
    (lock,) = lock_all([str(tmp_path / "journal")])
    with pytest.raises(
        StorageError, match=f"in use by a running bookie \\(process {os.getpid()}\\)"
    ):
        lock_all([str(tmp_path / "journal")], wait_s=0.05)
    lock.close()
    (again,) = lock_all([str(tmp_path / "journal")], wait_s=0.05)
    again.close()


def test_a_failed_lock_leaves_the_others_free(tmp_path: Path) -> None:
    (taken,) = lock_all([str(tmp_path / "b")])
    with pytest.raises(StorageError):
        lock_all([str(tmp_path / "a"), str(tmp_path / "b")], wait_s=0.0)
    (free,) = lock_all([str(tmp_path / "a")], wait_s=0.0)
    free.close()
    taken.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/journal: cannot be used"):
        lock_all([str(tmp_path / "file" / "journal")])


def test_a_directory_that_nobody_may_make_is_a_person_s_business() -> None:
    """Starting again does not help: the error says what to do, and ends the start with 78."""
    with pytest.raises(
        ConfigError, match=r"/sys/fastbk: cannot be used: .*(own it|ReadWritePaths=)"
    ):
        lock_all(["/sys/fastbk"])


def test_what_a_lock_made_is_taken_back(tmp_path: Path) -> None:
    """A start that is refused leaves nothing behind, and removes nothing that was there."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo").write_text("")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "lock").write_text("")
    before = sorted(tmp_path.rglob("*"))
    names = ("disk/1/journal", "disk/1/ledgers", "foreign", "ours")
    locks = lock_all([str(tmp_path / name) for name in names])
    assert (tmp_path / "disk/1/ledgers/lock").exists()
    for lock in reversed(locks):
        lock.take_back()
        lock.close()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_with_something_in_it_stays(tmp_path: Path) -> None:
    (lock,) = lock_all([str(tmp_path / "a" / "b")])
    (tmp_path / "a" / "b" / "identity.json").write_text("")
    lock.take_back()
    lock.close()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["identity.json"]


def test_locks_that_were_not_all_to_be_had_leave_nothing(tmp_path: Path) -> None:
    (taken,) = lock_all([str(tmp_path / "b")])
    with pytest.raises(StorageError):
        lock_all([str(tmp_path / "a"), str(tmp_path / "b")], wait_s=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b" / "lock").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        lock_all([str(tmp_path / "new" / "c"), str(tmp_path / "file" / "d")])
    assert not (tmp_path / "new").exists()
    taken.close()


def test_a_lock_that_was_taken_back_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    """Else two would have it: one the file that is gone, the next one the one that is made anew."""
    (first,) = lock_all([str(tmp_path / "a")])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock_all, [str(tmp_path / "a")], 10.0)
        wait_until(lambda: len(open_locks(tmp_path)) == 2, "it waits")
        first.take_back()
        first.close()
        (second,) = waiting.result()
    with pytest.raises(StorageError, match="in use"):
        lock_all([str(tmp_path / "a")], wait_s=0.05)
    second.close()


def test_who_is_second_does_not_take_back_the_file_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found no file; the other was quicker to make it."""
    path = tmp_path / "lock"

    def late(name: Path, *rest: int, opened: Callable[..., int] = os.open) -> int:
        os.close(opened(path, os.O_RDWR | os.O_CREAT, 0o644))
        return opened(name, *rest)

    monkeypatch.setattr(os, "open", late)
    (lock,) = lock_all([str(tmp_path)])
    monkeypatch.undo()
    lock.take_back()
    lock.close()
    assert path.exists()


def test_a_directory_that_is_taken_back_before_its_lock_is_made_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused start took its empty directory back between the look at it and the lock of this one."""
    path = tmp_path / "new" / "lock"

    def late(name: Path, *rest: int, opened: Callable[..., int] = os.open) -> int:
        if name == path and not is_taken_back:
            is_taken_back.append(True)
            path.parent.rmdir()
        return opened(name, *rest)

    is_taken_back: list[bool] = []
    monkeypatch.setattr(os, "open", late)
    (lock,) = lock_all([str(path.parent)])
    monkeypatch.undo()
    assert is_taken_back
    assert path.exists()
    lock.take_back()
    lock.close()
    assert not path.parent.exists()


def test_a_directory_below_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    """No try makes it."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="link/journal: cannot be used"):
        lock_all([str(tmp_path / "link" / "journal")])


def test_another_file_in_the_place_of_the_lock_is_not_taken_back(tmp_path: Path) -> None:
    (lock,) = lock_all([str(tmp_path / "a")])
    (tmp_path / "other").write_text("precious")
    (tmp_path / "other").rename(tmp_path / "a" / "lock")
    lock.take_back()
    lock.close()
    assert (tmp_path / "a" / "lock").read_text() == "precious"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, is_there: bool) -> None:
    """A lock's file is emptied: nobody is to be led to another one."""
    (tmp_path / "a").mkdir()
    if is_there:
        (tmp_path / "other").write_text("precious")
    (tmp_path / "a" / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="cannot be used"):
        lock_all([str(tmp_path / "a")])
    assert (tmp_path / "other").exists() == is_there
    if is_there:
        assert (tmp_path / "other").read_text() == "precious"


def test_a_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (lock,) = lock_all([str(tmp_path / "link")])
    with pytest.raises(StorageError, match="in use"):
        lock_all([str(tmp_path / "disk")], wait_s=0.05)
    lock.take_back()
    lock.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    assert not list((tmp_path / "disk").iterdir())


def open_locks(folder: Path) -> list[str]:
    """What this process has open there."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(each.readlink()))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_the_lock_lives_as_long_as_any_process_that_was_handed_it(tmp_path: Path) -> None:
    (lock,) = lock_all([str(tmp_path)])
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=[lock.descriptor],
    )
    lock.close()
    with pytest.raises(StorageError):
        lock_all([str(tmp_path)], wait_s=0.05)
    child.communicate(b"", timeout=10)
    wait_until(lambda: child.poll() is not None, "the child's end")
    (again,) = lock_all([str(tmp_path)], wait_s=0.05)
    again.close()


def test_blocks_that_are_reserved_count_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cluster bookies` and `bookie disk` give one share of use, and a full disk is one of 100 %."""
    fields = list(os.statvfs(tmp_path))
    fields[2:5] = 1000, 50, 0  # blocks, free ones, free ones for whoever is not root
    full = os.statvfs_result(fields)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    (lock,) = lock_all([str(tmp_path)])
    look = DirectoryProbe(str(tmp_path), lock.descriptor).measure()
    lock.close()
    free_bytes, total_bytes = disk_bytes([str(tmp_path)])
    assert (free_bytes, total_bytes) == (look.free_bytes, look.used_bytes + look.free_bytes)
    assert 1 - free_bytes / total_bytes == look.used_ratio == 1.0
