"""ruff and mypy, as tests."""

from __future__ import annotations

import subprocess
import sys

from tests.style.tree import ROOT


def run(*arguments: str) -> None:
    """Run a tool of the virtual environment at the root; fail with what it printed."""
    result = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", "--output-format", "concise", ".")


def test_mypy_strict_finds_nothing() -> None:
    run("mypy", "--no-error-summary")
