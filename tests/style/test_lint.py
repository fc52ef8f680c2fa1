"""ruff and clang-format, as tests. mypy is in test_typing.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.style.tree import ROOT, walk


def run(*arguments: str) -> None:
    """Run a Python tool of the virtual environment at the root; fail with what it printed."""
    run_program(sys.executable, "-m", *arguments)


def run_program(*arguments: str) -> None:
    """Run it at the root; fail with what it printed."""
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", "--output-format", "concise", ".")


def test_python_has_the_form_that_ruff_gives_it() -> None:
    """`.venv/bin/ruff format .` mends it."""
    run("ruff", "format", "--check", ".")


def test_c_has_the_form_that_clang_format_gives_it() -> None:
    """`./dev format` mends it."""
    sources = [str(path) for _, path in walk((".c", ".h"))]
    assert len(sources) > 200
    run_program(str(Path(sys.executable).parent / "clang-format"), "--dry-run", "-Werror", *sources)
