"""Which files of the project the style tests look at."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

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
