"""Files for their owner alone, whatever the umask is, and never through a symbolic link."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastbk.cli.dev import _alone
from fastbk.errors import StorageError
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.native.disk import Disk
from fastbk.safe_files import is_open_to_others, make_directory, replaced, tighten, write_text
from fastbk.server.directories import lock_all
from fastbk.server.disks.disk_reports import PROBE_NAME, why_not_writable

if TYPE_CHECKING:
    from collections.abc import Iterator


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous_umask")
def test_directories_and_files_are_made_for_their_owner(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    write_text(tmp_path / "a" / "b" / "file", "content")
    assert rights(tmp_path / "a") == rights(tmp_path / "a" / "b") == 0o700
    assert rights(tmp_path / "a" / "b" / "file") == 0o600
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "a" / "b" / "file" / "c")


@pytest.mark.usefixtures("generous_umask")
def test_metadata_is_made_for_its_owner_and_tightened_where_it_was_not(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(str(path))
    assert {rights(one) for one in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 3, "the file, its log and its shared memory"
    store.close()
    path.chmod(0o664)
    SqliteStore(str(path), may_make=False).close()
    assert rights(path) == 0o664, "a client changes nothing"
    SqliteStore(str(path)).close()
    assert rights(path) == 0o660, "its group keeps what it was given"


@pytest.mark.usefixtures("generous_umask")
def test_a_bookies_directory_is_tightened_by_its_lock(tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    there.mkdir(0o755)
    for lock in lock_all([str(made), str(there)]):
        lock.close()
    assert (rights(made), rights(there)) == (0o700, 0o750)
    assert {rights(one) for one in (*made.iterdir(), *there.iterdir())} == {0o600}


@pytest.mark.usefixtures("generous_umask")
def test_files_of_the_native_part_are_made_for_their_owner(tmp_path: Path) -> None:
    with Disk(tmp_path, "plain") as disk:
        disk.make_directory(tmp_path / "folder")
        disk.replace_file(tmp_path / "file", b"x")
    assert rights(tmp_path / "folder") == 0o700
    assert rights(tmp_path / "file") == 0o600


@pytest.mark.usefixtures("generous_umask")
def test_what_others_may_do_is_taken_and_links_are_left_alone(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.touch(0o646)
    link.symlink_to(tmp_path / "nothing")
    tighten(link)
    assert is_open_to_others(path)
    tighten(path)
    assert rights(path) == 0o640
    assert not is_open_to_others(path)


@pytest.mark.usefixtures("generous_umask")
@pytest.mark.parametrize("name", ["dev.lock", "file"])
def test_no_link_is_followed_and_emptied(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    with pytest.raises((OSError, StorageError)):
        _alone(tmp_path) if name == "dev.lock" else write_text(tmp_path / name, "")
    assert victim.read_text() == "precious"


@pytest.mark.usefixtures("generous_umask")
def test_the_probe_of_a_directory_empties_no_other_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / PROBE_NAME).symlink_to(victim)
    assert why_not_writable(str(folder)) == ""
    assert victim.read_text() == "precious"
    assert list(folder.iterdir()) == []


# A file that is replaced is whole at any time, and durable when the block is left.


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed, in order."""
    found: list[str] = []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        found.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).suffix or 'folder'}")
        sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        found.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    return found


def test_the_file_is_synced_before_it_has_the_name_and_the_folder_after(
    tmp_path: Path, steps: list[str]
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replaced(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old" and steps == []
    assert steps == ["sync .part", "rename", "sync folder"]
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file"]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replaced(path) as draft:
        draft.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replaced(tmp_path / "none" / "file"):
        raise AssertionError
