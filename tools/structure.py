"""`./dev structure`: how the product is cut: modules, lines, functions, modules that only a neighbour imports.

`AGAINST=commit` prints the same of another commit beside it.
"""

from __future__ import annotations

import ast
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import ROOT

GENERATED = "fastbk/wire/generated/"


@dataclass
class Module:
    """One file of the product."""

    path: str
    """Path from the root."""
    text: str
    tree: ast.Module
    importers: set[str]
    """Paths of the modules that import it."""

    @property
    def folder(self) -> str:
        """The folder that it lies in."""
        return self.path.rpartition("/")[0]

    @property
    def lines(self) -> int:
        """Lines, empty ones and comments included."""
        return self.text.count("\n")


def read_modules(root: Path) -> dict[str, Module]:
    """Return the product's modules by their names with dots, with their importers filled in."""
    modules: dict[str, Module] = {}
    for file in sorted((root / "fastbk").rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if not path.startswith(GENERATED):
            text = file.read_text()
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules[name] = Module(path, text, ast.parse(text), set())
    for module in modules.values():
        for name in _imported_names(module, modules):
            if modules[name] is not module:
                modules[name].importers.add(module.path)
    return modules


def _imported_names(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    """Yield the names of the modules that it imports anywhere, in functions, too."""
    for node in _statements(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module.path}:{node.lineno}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                name = full if full in modules else node.module or ""
                if name in modules:
                    yield name


def _statements(tree: ast.Module) -> list[ast.AST]:
    """Return all statements: none is in an expression, and those are nine nodes of ten."""
    found: list[ast.AST] = [tree]
    for node in found:
        children = ast.iter_child_nodes(node)
        found += [child for child in children if not isinstance(child, ast.expr)]
    return found


def lone_modules(modules: dict[str, Module]) -> dict[str, str]:
    """Return path -> path of its importer, of modules with one importer, which lies in the same folder."""
    lone = {}
    for module in modules.values():
        if len(module.importers) == 1 and not module.path.endswith("__init__.py"):
            (importer,) = module.importers
            if importer.rpartition("/")[0] == module.folder:
                lone[module.path] = importer
    return lone


def function_lines(modules: dict[str, Module]) -> list[int]:
    """Return the lines of each function and method."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def python_lines(folder: Path) -> int:
    """Return the lines of all Python files below a folder."""
    return sum(file.read_text().count("\n") for file in folder.rglob("*.py"))


def figures(root: Path) -> dict[str, float]:
    """Return what the command prints of one tree."""
    modules = read_modules(root)
    lone = lone_modules(modules)
    functions = function_lines(modules)
    importers = [len(module.importers) for module in modules.values()]
    tools = root / "tools" if (root / "tools").is_dir() else root / "tests" / "tools"
    tools_lines = python_lines(tools)
    return {
        "modules": len(modules),
        "lines": sum(module.lines for module in modules.values()),
        "lines a module, median": statistics.median(module.lines for module in modules.values()),
        "functions": len(functions),
        "lines a function, median": statistics.median(functions),
        "lines a function, mean": round(statistics.mean(functions), 1),
        "modules with one importer": sum(count == 1 for count in importers),
        "… which lies beside them": len(lone),
        "lines of tests": python_lines(root / "tests")
        - (tools_lines if tools.parent.name == "tests" else 0),
        "lines of tools": tools_lines,
    }


def by_folder(root: Path) -> dict[str, tuple[int, int]]:
    """Return modules and lines of each folder."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for module in read_modules(root).values():
        counts[module.folder][0] += 1
        counts[module.folder][1] += module.lines
    return {folder: (count, lines) for folder, (count, lines) in sorted(counts.items())}


def main() -> int:
    """Print the figures, beside those of AGAINST if it is given."""
    now, folders = figures(ROOT), by_folder(ROOT)
    against = os.environ.get("AGAINST", "")
    if not against:
        for name, value in now.items():
            print(f"{name:28}{value:>10,}")
        print()
        for folder, (count, lines) in folders.items():
            print(f"{folder:32}{count:>6,} modules{lines:>8,} lines")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", against, "fastbk", "tests"], cwd=ROOT, capture_output=True
        )
        if packed.returncode:
            sys.exit(f"structure: git does not give {against}: {packed.stderr.decode().strip()}")
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
            files.extractall(folder)
        before = figures(Path(folder))
    print(f"{'':28}{against[:10]:>12}{'this tree':>12}")
    for name, value in now.items():
        print(f"{name:28}{before[name]:>12,}{value:>12,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
