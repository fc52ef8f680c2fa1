"""`./dev mutants`: makes small mistakes in the product, one at a time, and counts those that its unit tests find.

Tests go when others find all that they find (decision 175).

    ./dev mutants N=60 SEED=1                 draw mutants in this tree, and run the tests that import their modules
    ./dev mutants LIST=build/mutants.json     the same mutants again, wherever their functions lie now
    ./dev mutants TREE=path                   those of another checkout that is set up, with its own tests
    ONLY=fastbk/stream,fastbk/client          draw in files below these
    AGAINST=path                              draw in functions that stand unchanged in another file of this checkout
    SIM=30                                    try those that no test finds with so many simulated worlds, too
    SECONDS_EACH=120                          how long tests of one mutant may take; more is "late"
    RESUME=1 SECONDS=450                      go on behind those that are in OUT already; end after these seconds

A mutant is known by its function, its kind, and its number among those of that kind in the function.
So two trees that cut their files differently can be compared. `build/mutants.json`, or OUT, keeps what was
drawn and what became of it.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tools import ROOT

RESULT = ROOT / "build" / "mutants.json"
TEST_FOLDERS = ("tests/unit", "tests/property")
TEST_FILES_MAX = 12
OUTCOMES = ("found", "survived", "untested", "late", "gone")
"""`untested`: no test names the module. `late`: its tests took too long. `gone`: the function is not there."""
WORLDS_OF = {
    "fastbk/replication/": "SEEDS",
    "fastbk/placement/": "SEEDS",
    "fastbk/stream/": "STREAMS",
    "fastbk/autorecovery/": "HEALING",
}
"""Which worlds of `./dev sim` run a folder's code."""
COPIED = ("fastbk", "tests", "tools", "loadtest", "docs", "pyspark_fastbk", "pyproject.toml")
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+"}


@dataclass(frozen=True)
class Site:
    """A place that can be changed: what it is called, and what stands there in its place."""

    function: str
    """`Class.method` or `function`."""
    kind: str
    number: int
    """Among those of its kind in its function."""
    path: str
    """Path from the root of its tree."""
    start: int
    end: int
    """Characters of its file that go."""
    text: str
    """What comes instead."""

    @property
    def name(self) -> str:
        """What it is called in each tree that has its function."""
        return f"{self.function} {self.kind} {self.number}"


def sites_of(path: str, text: str) -> Iterator[Site]:
    """Yield every place of a file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def offset(line: int, column: int) -> int:
        # ast counts columns in bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    for function, node in _functions(ast.parse(text), ""):
        counts: dict[str, int] = {}
        for kind, found, replacement in _changes(node, text, span):
            counts[kind] = counts.get(kind, -1) + 1
            yield Site(function, kind, counts[kind], path, *found, replacement)


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions and methods of a module with their names; those inside functions belong to these."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node


def _changes(function, text, span):
    """Yield (kind, characters, replacement) of each change of one function."""
    docstrings = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Expr)}
    for node in ast.walk(function):
        if id(node) in docstrings:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = span(node.left), span(node.comparators[0])
            yield "comparison", (left[1], right[0]), f" {COMPARISONS[type(node.ops[0])]} "
        elif isinstance(node, ast.BoolOp):
            first, second = span(node.values[0]), span(node.values[1])
            if text[first[1] : second[0]].strip() in ("and", "or"):
                other = "or" if isinstance(node.op, ast.And) else "and"
                yield "boolean", (first[1], second[0]), f" {other} "
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = span(node.left), span(node.right)
            if len(text[left[1] : right[0]].strip()) == 1:
                yield "arithmetic", (left[1], right[0]), f" {ARITHMETIC[type(node.op)]} "
        elif isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
        ):
            yield "statement", span(node), "pass"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "negation", (span(node)[0], span(node.operand)[0]), ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield "truth", span(node), str(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield "number", span(node), str(node.value + 1)


def read_sites(tree: Path, only: tuple[str, ...]) -> dict[str, Site]:
    """Return the places of a tree by name; names that two functions share are left out."""
    sites: dict[str, Site] = {}
    double: set[str] = set()
    for file in sorted((tree / "fastbk").rglob("*.py")):
        path = file.relative_to(tree).as_posix()
        if "generated" in path or (only and not path.startswith(only)):
            continue
        for site in sites_of(path, file.read_text()):
            if site.name in sites:
                double.add(site.name)
            sites[site.name] = site
    return {name: site for name, site in sites.items() if name not in double}


def moved(tree: Path, other: Path) -> set[str]:
    """Return the functions that are the same in both trees, docstrings aside, and stand in another file."""
    here, there = _functions_of(tree), _functions_of(other)
    return {
        name
        for name, (path, text) in here.items()
        if name in there and there[name][1] == text and there[name][0] != path
    }


def _functions_of(tree: Path) -> dict[str, tuple[str, str]]:
    """Return (path, text) of each function of a tree whose name no other one has."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted((tree / "fastbk").rglob("*.py")):
        for name, node in _functions(ast.parse(file.read_text()), ""):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            found.setdefault(name, []).append((file.relative_to(tree).as_posix(), ast.dump(node)))
    return {name: places[0] for name, places in found.items() if len(places) == 1}


def tests_of(tree: Path, path: str) -> list[str]:
    """Return the test files that name the module; those first that name it most."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    counts = {}
    for folder in TEST_FOLDERS:
        for file in sorted((tree / folder).rglob("test_*.py")):
            text = file.read_text()
            count = text.count(module) + text.count(
                f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]}"
            )
            if count:
                counts[file.relative_to(tree).as_posix()] = count
    return sorted(counts, key=lambda test: -counts[test])[:TEST_FILES_MAX]


def run_mutant(tree: Path, folder: Path, site: Site, seconds: float, worlds: int) -> str:
    """Make the mistake in the copy of a tree and run its tests; return one of OUTCOMES.

    `worlds`: so many simulated ones judge a mutant that no test finds.
    """
    tests = tests_of(tree, site.path)
    file = folder / site.path
    text = file.read_text()
    file.write_text(text[: site.start] + site.text + text[site.end :])
    python = [str(tree / ".venv/bin/python"), "-P", "-m"]
    commands = [[*python, "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]] if tests else []
    of_folder = [kind for name, kind in WORLDS_OF.items() if site.path.startswith(name)]
    if worlds and of_folder:
        commands.append([*python, "tools.sim"])
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(of_folder, str(worlds)),
        "SEED": "1",
        "JOBS": "1",
    }
    try:
        for command in commands:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, timeout=seconds
            )
            if done.returncode:
                return "found"
        return "survived" if commands else "untested"
    except subprocess.TimeoutExpired:
        return "late"
    finally:
        file.write_text(text)


def draw(sites: dict[str, Site], count: int, seed: str) -> list[str]:
    """Return so many names, the same for a seed, whatever the order of files."""
    names = sorted(sites)
    return sorted(random.Random(seed).sample(names, min(count, len(names))))


def copy_of(tree: Path, folder: Path) -> None:
    """Copy what tests need of a tree."""
    for part in COPIED:
        if (tree / part).is_dir():
            shutil.copytree(tree / part, folder / part, symlinks=True)
        elif (tree / part).exists():
            shutil.copy(tree / part, folder / part)


def chosen(tree: Path, sites: dict[str, Site]) -> list[str]:
    """Return the names of the mutants that the environment wants."""
    listed = os.environ.get("LIST", "")
    if listed:
        return [row["name"] for row in json.loads(Path(listed).read_text())]
    other = os.environ.get("AGAINST", "")
    if other:
        functions = moved(tree, Path(other).resolve())
        sites = {name: site for name, site in sites.items() if site.function in functions}
    return draw(sites, int(os.environ.get("N", "60")), os.environ.get("SEED", "1"))


def main() -> int:
    """Draw, run, print and keep."""
    tree = Path(os.environ.get("TREE") or ROOT).resolve()
    only = tuple(word for word in os.environ.get("ONLY", "").split(",") if word)
    sites = read_sites(tree, only)
    names = chosen(tree, sites)
    seconds, worlds = float(os.environ.get("SECONDS_EACH", "120")), int(os.environ.get("SIM", "0"))
    end_s = time.monotonic() + float(os.environ.get("SECONDS", "inf"))
    out = Path(os.environ.get("OUT") or RESULT)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = json.loads(out.read_text()) if os.environ.get("RESUME") and out.exists() else []
    done = {row["name"] for row in rows}
    with tempfile.TemporaryDirectory(prefix="fastbk-mutants-") as name:
        folder = Path(name)
        copy_of(tree, folder)
        for mutant in names:
            if mutant in done:
                continue
            if time.monotonic() > end_s:
                break
            site = sites.get(mutant)
            outcome = "gone" if site is None else run_mutant(tree, folder, site, seconds, worlds)
            rows.append(
                {"name": mutant, "outcome": outcome, **({} if site is None else asdict(site))}
            )
            out.write_text(json.dumps(rows, indent=1))
            print(f"{outcome:9} {mutant}{'' if site is None else f'  ({site.path})'}", flush=True)
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    print(f"{len(rows)} of {len(names)} done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
