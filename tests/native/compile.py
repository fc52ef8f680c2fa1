"""Compiles C programs for the tests: each source once a kind of build, and again only when it changed.

Objects and programs lie in build/tests/<kind>. Two test processes may compile the same file at once: each writes
a file of its own and renames it into place.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from fastbk.native.build_native import COMMON_FLAGS, NATIVE, ROOT, WARNING_FLAGS, is_fresh

HERE = Path(__file__).resolve().parent
SOURCES = NATIVE / "src"
UNOBSERVED = HERE / "unobserved"
MEASURING = ROOT / "tools" / "native"

KINDS = {
    "release": ["-O2"],
    # Counts nothing: the same names as in src/, found first.
    "unobserved": ["-O2", f"-I{UNOBSERVED}"],
    "asan": [
        "-O1",
        "-g1",
        "-DFBK_DEBUG",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
    "tsan": ["-O1", "-g1", "-DFBK_DEBUG", "-fsanitize=thread"],
    # Coverage-guided: only clang has it.
    "fuzz": [
        "-O1",
        "-DFBK_DEBUG",
        "-fsanitize=fuzzer-no-link,address,undefined",
        "-fno-sanitize-recover=all",
    ],
}
FUZZ_LINK = ["-fsanitize=fuzzer,address,undefined"]
URING = ("-l:liburing.a",)


def compiler(kind: str) -> str:
    """Return the C compiler for this kind of build."""
    return "clang" if kind == "fuzz" else os.environ.get("CC", "gcc")


def compile_object(source: Path, kind: str) -> Path:
    """Return the object of `source` in this kind of build, compiled if it is not there or out of date."""
    folder = ROOT / "build" / "tests" / kind
    folder.mkdir(parents=True, exist_ok=True)
    flags = [
        *COMMON_FLAGS,
        *WARNING_FLAGS,
        "-Werror",
        *KINDS[kind],
        f"-I{SOURCES}",
        f"-I{NATIVE}",
        f"-I{HERE}",
    ]
    if kind == "fuzz":
        flags.remove("-Werror")  # another compiler, other opinions
    target = folder / f"{source.parent.name}-{source.stem}.o"
    depends = target.with_suffix(".d")
    noted = target.with_suffix(".command")
    command = [compiler(kind), *flags, "-MMD", "-c", str(source)]
    if is_fresh(target, depends, command):
        return target
    mine = {
        path: path.with_suffix(f"{path.suffix}.{os.getpid()}") for path in (target, depends, noted)
    }
    started_ns = time.time_ns()
    result = subprocess.run(
        [*command, "-MF", str(mine[depends]), "-o", str(mine[target])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{source.name} ({kind}):\n{result.stderr}"
    os.utime(mine[target], ns=(started_ns, started_ns))
    mine[noted].write_text("\n".join(command))
    for path in (depends, noted, target):
        mine[path].replace(path)
    return target


def build_program(
    files: Sequence[str], sources: Sequence[str], kind: str, libraries: Sequence[str] = ()
) -> Path:
    """Return the program of `files` and `sources` (of fastbk/native/src) in this kind of build.

    `files` are in this folder, or in tools/native where they measure.
    """
    objects = [
        compile_object(next(one for one in (HERE / name, MEASURING / name) if one.exists()), kind)
        for name in files
    ]
    # Every file of the bookie may have kill points.
    objects += [
        compile_object(SOURCES / name, kind) for name in dict.fromkeys([*sources, "base/fault.c"])
    ]
    link = FUZZ_LINK if kind == "fuzz" else KINDS[kind]
    command = [compiler(kind), *map(str, objects), *link, *libraries, "-lpthread"]
    # A program is found again by what it was linked from; times would lie after a change of branch.
    digest = hashlib.sha256(repr(command).encode())
    for path in objects:
        digest.update(path.read_bytes())
    target = ROOT / "build" / "tests" / kind / f"{Path(files[0]).stem}-{digest.hexdigest()[:16]}"
    if not target.exists():
        mine = target.with_suffix(f".{os.getpid()}")
        result = subprocess.run(
            [*command, "-o", str(mine)], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{files[0]} ({kind}):\n{result.stderr}"
        for old in target.parent.glob(f"{Path(files[0]).stem}-{'?' * 16}"):
            old.unlink(missing_ok=True)
        mine.replace(target)
    return target
