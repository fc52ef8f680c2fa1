"""Directories of a bookie are emptied; those of others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.admin.bookie_identity import empty_directories, things_in
from fastbk.errors import StorageError


def filled(directory: Path, *names: str) -> str:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return str(directory)


def test_everything_goes_but_the_lock(tmp_path: Path) -> None:
    journal = filled(tmp_path / "j", "identity.json", "1.journal", "current/VERSION", "lock")
    ledgers = filled(tmp_path / "l", "identity.json", "logs/1.log", "lost+found/x")
    empty_directories([journal, ledgers, str(tmp_path / "missing")])
    assert sorted(path.name for path in Path(journal).iterdir()) == ["lock"]
    assert sorted(path.name for path in Path(ledgers).iterdir()) == ["lost+found"]


def test_a_strange_directory_keeps_all_of_them_whole(tmp_path: Path) -> None:
    journal = filled(tmp_path / "j", "identity.json", "1.journal")
    strange = filled(tmp_path / "l", "current/0.log")
    with pytest.raises(StorageError, match=r"no identity\.json"):
        empty_directories([journal, strange])
    assert things_in(journal) == ["1.journal", "identity.json"]
    assert things_in(strange) == ["current"]


def test_a_journal_in_a_folder_of_the_ledger_directory(tmp_path: Path) -> None:
    ledgers = filled(tmp_path / "l", "identity.json", "logs/1.log")
    journal = filled(tmp_path / "l" / "journal", "identity.json", "1.journal")
    empty_directories([journal, ledgers])
    assert things_in(ledgers) == ["journal"]
    assert things_in(journal) == []
