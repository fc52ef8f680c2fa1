import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastbk.errors import StorageError
from fastbk.server.directories import lock_all
from tests.fixtures.wait import wait_until


def test_a_locked_directory_is_refused_naming_its_process(tmp_path: Path) -> None:
    (lock,) = lock_all([str(tmp_path / "journal")])
    with pytest.raises(StorageError, match=f"in use by a running bookie \\(process {os.getpid()}\\)"):
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
