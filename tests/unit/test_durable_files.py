"""A file that is replaced is whole at any time, and durable when the block is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastbk.safe_files import replaced


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
