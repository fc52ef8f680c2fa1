"""Which files of the project the style tests look at."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]

# Made by tools, or by people who try the README's commands, never committed.
SKIPPED = {"__pycache__", "build", "dist", "fastbk-data", "fastbk.egg-info", "my-data"}
# Written by flatc.
GENERATED = "fastbk/wire/generated/"


def walk(suffixes: tuple[str, ...] = (), under: str = "") -> Iterator[tuple[str, Path]]:
    """Yield (path from the root, file) of every file of ours with one of `suffixes`, all if none is given."""
    for folder, names, files in os.walk(ROOT / under):
        names[:] = sorted(
            name
            for name in names
            if name not in SKIPPED and (not name.startswith(".") or name == ".ci")
        )
        for name in sorted(files):
            path = Path(folder) / name
            relative = path.relative_to(ROOT).as_posix()
            if (
                relative.startswith((GENERATED, ".git"))
                or path.suffix == ".so"
                or path.is_symlink()
            ):
                continue
            if not suffixes or path.suffix in suffixes:
                yield relative, path


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a module, outer ones first: a tenth of the nodes, since none is in an expression."""
    found = [tree]
    for node in found:
        for part in ("body", "handlers", "cases", "orelse", "finalbody"):
            found += getattr(node, part, ())
        yield node


_rules: list[tuple[Callable[[ast.Module], Any], tuple[str, ...]]] = []


def asked_once(rule: Callable[[ast.Module], T], *folders: str) -> Callable[[Path], T]:
    """Return what gives the answer to `rule` of a file in these folders, in any if none is given.

    Whoever asks first of a file parses it, and asks all rules: that takes a fraction of a parse for each of them, while
    a tree takes too much memory to be kept.
    """
    _rules.append((rule, folders or ("",)))
    return lambda path: _answers(path)[rule]  # type: ignore[no-any-return]


@cache
def _answers(path: Path) -> dict[Callable[[ast.Module], Any], Any]:
    tree = ast.parse(path.read_text())
    folder = path.relative_to(ROOT).parts[0]
    return {rule: rule(tree) for rule, folders in _rules if folder in folders or "" in folders}
