"""Which C folder may include which, that no C files of a folder call each other in a circle, and what is exported."""

from __future__ import annotations

import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fastbk.native.build_native import MODULES, NATIVE

SOURCES = NATIVE / "src"
# Folder -> the folders that it may use, besides itself. `README.md` there says what each one is.
USES: dict[str, set[str]] = {
    "base": set(),
    "io": {"base"},
    "wire": {"base"},
    "apache": {"base"},
    "journal": {"base", "io"},
    "store": {"base", "io"},
    "index": {"base", "wire", "journal", "store"},
    "worker": {"base", "wire", "apache"},
    "client": {"base", "wire", "apache"},
    "stream": {"base"},
    "serve": {"base", "wire", "stream"},
    "load": {"base", "wire", "apache"},
}
# Its files still call each other both ways.
WITH_CYCLES = {"index"}


def without_comments(path: Path) -> str:
    """Return the text of a C file without its comments."""
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def calls(folder: str) -> dict[str, set[str]]:
    """Return for each C file of `folder` the files of it whose functions it uses."""
    texts = {path.name: without_comments(path) for path in (SOURCES / folder).glob("*.c")}
    homes = {
        name: file
        for file, text in texts.items()
        for kind, name in re.findall(r"^(\w[^\n;]*)\n(\w+)\(", text, re.MULTILINE)
        if not kind.startswith("static")
    }
    return {
        file: {homes[word] for word in re.findall(r"\w+", text) if homes.get(word, file) != file}
        for file, text in texts.items()
    }


def is_circular(folder: str) -> bool:
    """Return whether C files of `folder` call each other in a circle."""
    try:
        TopologicalSorter(calls(folder)).prepare()
    except CycleError:
        return True
    return False


def test_every_folder_has_its_place() -> None:
    assert {path.name for path in SOURCES.iterdir() if path.is_dir()} == set(USES)
    described = (SOURCES / "README.md").read_text()
    assert [folder for folder in USES if f"- **{folder}**: " not in described] == []
    TopologicalSorter(USES).prepare()


@pytest.mark.parametrize("folder", USES)
def test_includes_go_to_lower_folders(folder: str) -> None:
    faults = []
    for path in (SOURCES / folder).glob("*.[ch]"):
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            used = name.split("/")[0]
            if used != "boundary" and used not in USES[folder] | {folder}:
                faults.append(f"{folder}/{path.name} includes {name}")
    assert faults == []


@pytest.mark.parametrize("folder", USES)
def test_files_of_a_folder_call_in_one_direction(folder: str) -> None:
    assert is_circular(folder) == (folder in WITH_CYCLES), calls(folder)


def symbols(name: str, which: str) -> set[str]:
    """Return the dynamic symbols of an extension: `--defined-only` or `--undefined-only`."""
    path = NATIVE / f"{name}.abi3.so"
    listed = subprocess.run(
        ["nm", "-D", which, "--format=posix", str(path)], capture_output=True, text=True, check=True
    )
    return {line.split()[0].partition("@")[0] for line in listed.stdout.splitlines()}


@pytest.mark.parametrize("name", [module.name for module in MODULES])
def test_an_extension_exports_its_entry_and_nothing_else(name: str) -> None:
    """Two extensions hold the same C files: exported names of one would be taken by the other."""
    exported = symbols(name, "--defined-only")
    assert f"PyInit_{name}" in exported
    assert {symbol for symbol in exported if symbol.startswith(("fbk_", "io_uring"))} == set()


@pytest.mark.parametrize("name", [module.name for module in MODULES])
def test_an_extension_lacks_none_of_our_functions(name: str) -> None:
    """A source missing in build_native.py links all the same, and fails at import or at the first call."""
    needed = symbols(name, "--undefined-only")
    assert {symbol for symbol in needed if symbol.startswith(("fbk_", "io_uring"))} == set()
    assert not needed & {"exit", "_exit", "printf", "puts"}
