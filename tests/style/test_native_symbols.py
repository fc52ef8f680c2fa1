"""What the built extensions export and need, as the linker sees it."""

from __future__ import annotations

import subprocess

import pytest

from fastbk.native.build_modules import MODULES
from fastbk.native.build_native import NATIVE


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
    """A source missing in build_modules.py links all the same, and fails at import or at the first call."""
    needed = symbols(name, "--undefined-only")
    assert {symbol for symbol in needed if symbol.startswith(("fbk_", "io_uring"))} == set()
    assert not needed & {"exit", "_exit", "printf", "puts"}
