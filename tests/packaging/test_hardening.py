"""What the compiler and the linker can do against attacks on the C code, and what its analyzer says of it. ALL tier.

`SECURITY.md` names this check.
"""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastbk.native.build_native import COMMON_FLAGS, NATIVE
from tests.style.tree import ROOT

pytestmark = pytest.mark.soak
SOURCES = NATIVE / "src"
WARNING = re.compile(r"src/(\S+?):\d+:\d+: warning: .*\[-Wanalyzer-(\S+)\]")
KNOWN = {
    # Guarded by what the analyzer does not see: another function's result, or an invariant that FBK_ASSERT holds.
    ("base/base.h", "null-dereference"),
    ("base/ledgers.c", "null-dereference"),
    ("index/check.c", "null-dereference"),
    ("journal/drain.c", "use-of-uninitialized-value"),
    ("store/run_fetch.c", "null-argument"),
    # Memory that is given back by the connection's, or the list's, end.
    ("worker/contexts.c", "malloc-leak"),
    ("worker/input.c", "malloc-leak"),
}
"""File and kind of findings that were read, and are none."""


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A release build of its own: that of the tests may have sanitizers."""
    folder = tmp_path_factory.mktemp("release")
    command = [
        str(ROOT / ".venv/bin/python"),
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(folder),
    ]
    command += ["--build-temp", str(folder / "objects")]
    environment = {"PATH": "/usr/bin:/bin", "FASTBK_BUILD": "release"}
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    found = sorted(folder.rglob("_*.so"))
    assert len(found) == 3
    return found


def test_addresses_are_read_only_and_stacks_hold_no_code(modules: list[Path]) -> None:
    for module in modules:
        segments = output_of("readelf", "-lW", str(module))
        dynamic = output_of("readelf", "-dW", str(module))
        assert "GNU_RELRO" in segments, module.name
        assert re.search(r"GNU_STACK.* RW ", segments), module.name
        assert "BIND_NOW" in dynamic or "NOW" in dynamic, module.name
        assert "TEXTREL" not in dynamic, module.name
        for line in segments.splitlines():
            assert not re.search(r"LOAD.*RWE", line), module.name


def test_stacks_are_guarded_and_copies_are_checked(modules: list[Path]) -> None:
    for module in modules:
        symbols = output_of("nm", "-D", str(module))
        assert "__stack_chk_fail" in symbols, module.name
        if module.name.startswith("_bookie"):  # the others copy with sizes that are known
            assert re.search(r"__\w+_chk", symbols.replace("__stack_chk_fail", "")), module.name


def analyzed(source: Path) -> set[tuple[str, str]]:
    command = [
        "gcc",
        *COMMON_FLAGS,
        "-O1",
        "-fanalyzer",
        f"-I{NATIVE}",
        f"-I{SOURCES}",
        "-c",
        "-o",
        "/dev/null",
    ]
    done = subprocess.run([*command, str(source)], check=True, stderr=subprocess.PIPE, text=True)
    return {(found[1], found[2]) for found in WARNING.finditer(done.stderr)}


def test_the_analyzer_finds_nothing_new() -> None:
    sources = sorted(SOURCES.rglob("*.c"))
    with ThreadPoolExecutor(2) as pool:
        found = set().union(*pool.map(analyzed, sources))
    assert found - KNOWN == set()
