"""Small rules over all files, each with what to do instead. Sizes are ratchets: what is over the limit is listed
with its reason and its size, and may shrink but not grow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.native.build_native import MODULES, NATIVE, ffi_of, stub_text
from tests.style.tree import ROOT, SKIPPED, asked_once, statements, walk

# A file holds one whole concept: each split makes names public that nobody else should use.
FILE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 70
FILE_BYTES_MAX = 512 * 1024
TEXT = (".py", ".pyi", ".c", ".h", ".md", ".toml", ".txt", ".fbs", ".in", "")

# Functions over the limit, as file:function, with lines and reason.
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}

# (what it is and what to do instead, where it applies, where not, pattern). Patterns are written so that they
# do not find themselves.
BANNED: list[tuple[str, str, tuple[str, ...], str]] = [
    ("work left without an issue number", "", (), r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\)|.*#\d+)"),
    ("a path of one machine", "", (), r"(?<![\w.$}/-])/(?:work|root|home/\w+)/"),
    (
        "a package registry's host",
        "",
        (),
        r"(?:pypi|pythonhosted|debian|npmjs|crates)\.(?:org/(?:simple|debian)|io/api)|deb\.debian\.org",
    ),
    (
        "output or exit in C: return a status",
        "fastbk/native/src/",
        ("fastbk/native/src/base/base.h",),  # the broken invariant's last words
        r"(?<!\w)(?:printf|fprintf|puts|perror|exit|_exit)\s*\(",
    ),
    (
        "Python.h in a source that is tested without Python",
        "fastbk/native/src/",
        (),
        r"<Python\.h>",
    ),
    ("a lock of the shell's kind on /usr/bin/env python", "", (), r"^#!/usr/bin/env python"),
    (
        "a pause that doubles: use fastbk.retry",
        "fastbk/",
        ("fastbk/retry.py", "fastbk/native/src/"),
        r"\b2 \* [\w.]*(?:pause|delay|wait)_s\b.*\)|(?:pause|delay|wait)_s \*= 2|backoff\w* \* ?2\b",
    ),
    (
        "msgspec's own errors only: of what is no UTF-8 it raises UnicodeDecodeError, so catch ValueError",
        "fastbk/",
        (),
        r"except .*msgspec\.(?:DecodeError|MsgspecError)",
    ),
]
# These speak about the rules.
RULES_THEMSELVES = ("tests/style/",)


def lines_matching(pattern: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of each line of `text` that `pattern` finds."""
    compiled = re.compile(pattern, re.MULTILINE)
    if not compiled.search(text):
        return  # a search of the whole takes a tenth of one a line
    for number, line in enumerate(text.splitlines(), 1):
        if compiled.search(line):
            yield number, line.strip()


@pytest.mark.parametrize("rule", BANNED, ids=[rule[0].split(":")[0] for rule in BANNED])
def test_nothing_banned(rule: tuple[str, str, tuple[str, ...], str]) -> None:
    what, under, excepted, pattern = rule
    faults = [
        f"{relative}:{number}: {what}: {line[:120]}"
        for relative, path in walk(TEXT, under)
        if not relative.startswith((*RULES_THEMSELVES, *excepted, "LICENSE"))
        for number, line in lines_matching(pattern, path.read_text(errors="replace"))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (0, "# TO" + "DO: later"),
        (1, 'open("/wo' + 'rk/main/x")'),
        (2, "pip install --index-url https://py" + "pi.org/simple"),
        (3, 'printf("%d", 1);'),
        (4, "#include <Python.h>"),
        (6, "pause_s = min(2 * pause_s, 1.0)"),
        (6, "self._delay_s *= 2"),
        (7, "    except (msgspec.DecodeError, RecursionError) as error:"),
    ],
)
def test_each_rule_finds_its_fault(number: int, line: str) -> None:
    assert list(lines_matching(BANNED[number][3], line))


def blind_sleeps(text: str) -> Iterator[int]:
    """Yield the lines of sleeps that are not the pause of a loop which looks whether it may go on."""

    def visit(node: ast.AST, in_loop: bool) -> Iterator[int]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            module = node.func.value
            is_sleep = node.func.attr == "sleep" and isinstance(module, ast.Name)
            length = ast.unparse(node.args[0]) if node.args else ""
            # A random pause hopes for nothing: it picks where in time a fault strikes.
            if is_sleep and not in_loop and length != "0" and not length.startswith("rng."):
                yield node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            in_loop = False
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_loop or isinstance(node, ast.While))

    yield from visit(ast.parse(text), False)


def test_no_sleep_stands_in_for_a_condition() -> None:
    faults = [
        f"{relative}:{line}: wait_until(condition, what) of tests/fixtures/wait.py instead"
        for relative, path in walk((".py",), "tests")
        # Fixtures may be slow on purpose: a peer that delays its answers is one, a slow disk another.
        if not relative.startswith(("tests/fixtures/", *RULES_THEMSELVES))
        and relative != "tests/rigs/fuse_file.py"
        if "sleep(" in (text := path.read_text())
        for line in blind_sleeps(text)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("time.sleep(1)", 1),
        ("async def f():\n    await asyncio.sleep(0.1)", 1),
        ("while x:\n    def f():\n        time.sleep(1)", 1),
        ("await_it = asyncio.sleep(0)", 0),
        ("time.sleep(rng.random())", 0),
        ("while not done():\n    time.sleep(0.01)", 0),
    ],
)
def test_the_rule_on_sleeps_finds_its_faults(text: str, count: int) -> None:
    assert len(list(blind_sleeps(text))) == count


def test_files_are_short() -> None:
    faults = []
    for relative, path in walk((".py", ".c", ".h")):
        lines = path.read_text().count("\n")
        if lines > FILE_LINES_MAX:
            faults.append(
                f"{relative}: {lines} lines, at most {FILE_LINES_MAX}: is it one concept?"
            )
    assert not faults, "\n".join(faults)


def python_functions(tree: ast.Module) -> list[tuple[str, int]]:
    """Return (name, lines) of each function of a module, its docstring not counted."""
    found = []
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                first = node.body[0]
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            found.append((node.name, lines))
    return found


functions_of = asked_once(python_functions)


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield (name, lines) of each function of C source in our layout: `{` and `}` alone in the first column."""
    start: int | None = None
    name = "?"
    for number, line in enumerate(text.splitlines(), 1):
        if (
            start is None
            and "(" in line
            and (found := re.search(r"(\w+)$", line.partition("(")[0]))
        ):
            name = found[1]
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            yield name, number - start + 1
            start = None


def test_functions_are_short() -> None:
    faults = []
    for relative, path in walk((".py", ".c", ".h")):
        is_python = path.suffix == ".py"
        for name, lines in functions_of(path) if is_python else c_functions(path.read_text()):
            limit = LONG_FUNCTIONS.get(f"{relative}:{name}", (FUNCTION_LINES_MAX, ""))[0]
            if lines > limit:
                faults.append(f"{relative}:{name}: {lines} lines, at most {limit}")
    assert not faults, "\n".join(faults)


def test_listed_exceptions_exist_and_have_reasons() -> None:
    known = {relative for relative, _ in walk()}
    for key, (_, reason) in LONG_FUNCTIONS.items():
        assert key.split(":")[0] in known, f"{key} is gone: take it off the list"
        assert reason, key


def test_folders_that_git_ignores_are_nobodys_faults() -> None:
    """Whoever has tried the README's commands has bookies' data beside the code, and runs the tests next."""
    ignored = re.findall(r"^/?([^/.*\n]+)/$", (ROOT / ".gitignore").read_text(), re.MULTILINE)
    assert {"build", "my-data"} <= set(ignored) <= SKIPPED


def test_no_blobs() -> None:
    large = [relative for relative, path in walk() if path.stat().st_size > FILE_BYTES_MAX]
    assert not large


def test_every_c_source_is_built() -> None:
    built = {source for module in MODULES for source in module.sources}
    there = {str(path.relative_to(NATIVE / "src")) for path in (NATIVE / "src").rglob("*.c")}
    assert there - built == set(), "in no module of build_native.py"
    fragments = {fragment for module in MODULES for fragment in module.boundary}
    assert {path.name for path in (NATIVE / "boundary").glob("*.h")} - fragments == set()


@pytest.mark.parametrize("module", MODULES, ids=[module.name for module in MODULES])
def test_stubs_are_those_of_the_boundary(module: object) -> None:
    current = next(m for m in MODULES if m is module)
    stub = Path(NATIVE / f"{current.name}.pyi").read_text()
    assert stub == stub_text(ffi_of(current)), "run ./dev setup and commit the stubs"
