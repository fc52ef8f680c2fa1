"""Kill points: armed by the environment only, at the given pass, once; counted with pass 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from fastbk.native.process import arm_from_environment, kill_point
arm_from_environment()
for n in range(5):
    kill_point("test.other")
    kill_point("test.place")
    print(n, flush=True)
"""


def run(point: str | None, path: Path) -> tuple[int, int]:
    """Return the exit code and how many rounds the program made."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FASTBK_KILL")}
    if point is not None:
        environment |= {"FASTBK_KILL_POINT": point, "FASTBK_KILL_POINT_FILE": str(path)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, len(result.stdout.split())


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_process_dies_at_the_given_pass_and_only_once(tmp_path: Path, number: int) -> None:
    died = tmp_path / "died"
    assert run(f"test.place:{number}", died) == (-signal.SIGKILL, number - 1)
    assert died.read_text() == "test.place"
    assert run(f"test.place:{number}", died) == (0, 5), "the next life dies again"


def test_passes_are_counted(tmp_path: Path) -> None:
    count = tmp_path / "count"
    assert run("test.place:0", count) == (0, 5)
    assert count.stat().st_size == 5


def test_nothing_happens_unarmed_or_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "died"
    assert run(None, path) == (0, 5)
    assert run("test.place:6", path) == (0, 5)
    assert run("test.nowhere:1", path) == (0, 5)
    assert not path.exists()


def test_a_broken_setting_is_refused(tmp_path: Path) -> None:
    assert run("test.place", tmp_path / "died")[0] == 1
    assert run("test.place:x", tmp_path / "died")[0] == 1
