"""Files for their owner alone, whatever the umask is, and never through a symbolic link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.cli.dev import _alone
from fastbk.errors import StorageError
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.native.disk import Disk
from fastbk.safe_files import is_open_to_others, make_directory, tighten, write_text
from fastbk.server.directories import lock_all
from fastbk.server.disks.disk_reports import PROBE_NAME, why_not_writable


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_directories_and_files_are_made_for_their_owner(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    write_text(tmp_path / "a" / "b" / "file", "content")
    assert rights(tmp_path / "a") == rights(tmp_path / "a" / "b") == 0o700
    assert rights(tmp_path / "a" / "b" / "file") == 0o600
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "a" / "b" / "file" / "c")


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


def test_a_bookies_directory_is_tightened_by_its_lock(tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    there.mkdir(0o755)
    for lock in lock_all([str(made), str(there)]):
        lock.close()
    assert (rights(made), rights(there)) == (0o700, 0o750)
    assert {rights(one) for one in (*made.iterdir(), *there.iterdir())} == {0o600}


def test_files_of_the_native_part_are_made_for_their_owner(tmp_path: Path) -> None:
    with Disk(tmp_path, "plain") as disk:
        disk.make_directory(tmp_path / "folder")
        disk.replace_file(tmp_path / "file", b"x")
    assert rights(tmp_path / "folder") == 0o700
    assert rights(tmp_path / "file") == 0o600


def test_what_others_may_do_is_taken_and_links_are_left_alone(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.touch(0o646)
    link.symlink_to(tmp_path / "nothing")
    tighten(link)
    assert is_open_to_others(path)
    tighten(path)
    assert rights(path) == 0o640
    assert not is_open_to_others(path)


@pytest.mark.parametrize("name", ["dev.lock", "file"])
def test_no_link_is_followed_and_emptied(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    with pytest.raises((OSError, StorageError)):
        _alone(tmp_path) if name == "dev.lock" else write_text(tmp_path / name, "")
    assert victim.read_text() == "precious"


def test_the_probe_of_a_directory_empties_no_other_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / PROBE_NAME).symlink_to(victim)
    assert why_not_writable(str(folder)) == ""
    assert victim.read_text() == "precious"
    assert list(folder.iterdir()) == []
