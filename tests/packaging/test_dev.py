"""The `dev` script: quick when there is nothing to do, and plain about what it does not know."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.style.tree import ROOT
from tests.unit.tools.test_pins import wheel


def dev(*arguments: str, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `./dev` as a developer would, from a folder that is not the project's."""
    return subprocess.run(
        [str(root / "dev"), *arguments],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_setup_with_nothing_to_do_is_quick_and_silent() -> None:
    first = dev("setup")
    assert first.returncode == 0, first.stderr
    started = time.monotonic()
    second = dev("setup")
    took_s = time.monotonic() - started
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert took_s < 2


@pytest.mark.long
@pytest.mark.slow
def test_setup_takes_no_package_without_its_hash(tmp_path: Path) -> None:
    """In a folder that has little more than `dev` and requirements: what comes first is installed first."""
    for name in ("dev", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/run.txt").write_text("")
    wheel(tmp_path)
    # One environment for both: making it takes longer than what is tested.
    for hashed in ("", "--hash=sha256:" + "0" * 64):
        (tmp_path / "requirements/build.txt").write_text(f"tiny==1 {hashed}\n")
        done = dev("setup", root=tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
        assert done.returncode != 0
        assert "hash" in done.stderr.lower(), done.stderr
        assert not list((tmp_path / ".venv").rglob("tiny.py"))


def test_help_names_every_command() -> None:
    text = dev("help").stdout
    for command in (
        "setup", "run", "pipeline", "test", "bench", "fuzz", "model", "load", "wheels", "audit", "pins", "help",
    ):  # fmt: skip
        assert f"./dev {command} " in text


@pytest.mark.parametrize("arguments", [["tset"], ["setup", "lower case=1"], ["setup", "A-B=1"]])
def test_what_it_does_not_know_it_refuses(arguments: list[str]) -> None:
    result = dev(*arguments)
    assert result.returncode != 0
    assert "dev: " in result.stderr
