"""What a build takes from an earlier one: objects of these very sources, never of another checkout's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.tree import ROOT

BUILDER = ("native/build_native.py", "native/ffi.py", "observe/names.py")
"""What a build imports."""
BUILD = """
from fastbk.native.build_native import NativeModule, build_in_place
build_in_place([NativeModule(name="_answer", boundary=["answer.h"], sources=["base/answer.c"])])
"""
ANSWER = "from fastbk.native._answer import lib; print(lib.fbk_answer())"


def python(checkout: Path, code: str) -> str:
    """Run Python code in a checkout; return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "FASTBK_BUILD"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def write_answer(checkout: Path, answer: int) -> Path:
    source = checkout / "fastbk/native/src/base/answer.c"
    source.write_text(
        f'#include "fastbk/native/boundary/answer.h"\nint fbk_answer(void) {{ return {answer}; }}\n'
    )
    return source


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the builder, and one module whose function returns 1."""
    folder = tmp_path / "first"
    for name in BUILDER:
        (folder / "fastbk" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / "fastbk" / name, folder / "fastbk" / name)
    for package in ("", "native", "observe"):
        (folder / "fastbk" / package / "__init__.py").touch()
    for part in ("boundary", "src/base"):
        (folder / "fastbk/native" / part).mkdir(parents=True)
    (folder / "fastbk/native/boundary/answer.h").write_text("int fbk_answer(void);\n")
    write_answer(folder, 1)
    return folder


def test_a_build_folder_copied_from_another_checkout_is_made_anew(
    checkout: Path, tmp_path: Path
) -> None:
    """Its sources are older than the objects, as those of a branch that was checked out before are."""
    python(checkout, BUILD)
    assert python(checkout, ANSWER) == "1"
    other = tmp_path / "second"
    shutil.copytree(checkout, other)  # with times, as `cp -a` does
    source = write_answer(other, 2)
    os.utime(source, (0, 0))
    python(other, BUILD)
    assert python(other, ANSWER) == "2"
    assert python(checkout, ANSWER) == "1"


def test_an_object_is_made_once(checkout: Path) -> None:
    python(checkout, BUILD)
    objects = {path: path.stat().st_mtime_ns for path in (checkout / "build").rglob("*.o")}
    assert len(objects) == 2, objects
    python(checkout, BUILD)
    assert {path: path.stat().st_mtime_ns for path in objects} == objects
    write_answer(checkout, 3)
    python(checkout, BUILD)
    assert python(checkout, ANSWER) == "3"
