"""The `dev` script: quick when there is nothing to do, and plain about what it does not know."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from tests.style.tree import ROOT


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `./dev` as a developer would, from a folder that is not the project's."""
    return subprocess.run(
        [str(ROOT / "dev"), *arguments],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
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


def test_help_names_every_command() -> None:
    text = dev("help").stdout
    for command in ("setup", "run", "pipeline", "test", "bench", "fuzz", "model", "load", "wheels", "help"):
        assert f"./dev {command} " in text


@pytest.mark.parametrize("arguments", [["tset"], ["setup", "lower case=1"], ["setup", "A-B=1"]])
def test_what_it_does_not_know_it_refuses(arguments: list[str]) -> None:
    result = dev(*arguments)
    assert result.returncode != 0
    assert "dev: " in result.stderr
