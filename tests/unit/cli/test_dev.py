"""`fastbk dev` before it starts anything: a folder is one's own."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from fastbk.cli.__main__ import main


def test_a_folder_where_another_one_runs_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "dev.lock").open("w") as lock:
        lock.write("123\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["dev", "--data", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} is in use by another fastbk dev (process 123)" in said
    assert not list(tmp_path.glob("bookie-*"))
