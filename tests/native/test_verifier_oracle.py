"""wire/verify.c against flatbuffers' own C++ verifier, on fuzzed frames: both must agree on every input."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fastbk.native.build_native import ROOT
from fastbk.wire.generate import SCHEMA
from tests.native.compile import HERE, KINDS, SOURCES, compile_object
from tests.native.test_native import FUZZ_RUNS, WIRE_SOURCES, run

GOLDEN = HERE.parent / "golden" / "frames"


def build(folder: Path) -> Path:
    """Return the fuzz program with the oracle linked in."""
    subprocess.run(["flatc", "--cpp", "-o", str(folder), str(SCHEMA)], check=True)
    oracle = folder / "oracle.o"
    # The library itself reads numbers at any address.
    flags = [*KINDS["asan"], "-fno-sanitize=alignment", f"-I{folder}"]
    subprocess.run(
        ["g++", *flags, "-c", str(HERE / "verifier_oracle.cpp"), "-o", str(oracle)], check=True
    )
    objects = [compile_object(HERE / name, "asan") for name in ("fuzz_frame.c", "fuzz_driver.c")]
    objects += [compile_object(SOURCES / name, "asan") for name in WIRE_SOURCES]
    program = folder / "fuzz_frame_oracle"
    subprocess.run(
        ["g++", *KINDS["asan"], *map(str, objects), str(oracle), "-o", str(program)], check=True
    )
    return program


@pytest.mark.slow
def test_the_c_verifier_agrees_with_the_cpp_one(tmp_path: Path, seed: int) -> None:
    assert ROOT in GOLDEN.parents
    seeds = sorted(str(file) for file in GOLDEN.glob("*.bin"))
    assert len(seeds) >= 19
    runs = FUZZ_RUNS[os.environ.get("FASTBK_TIER", "fast")]
    folder = tmp_path / "run"
    folder.mkdir()
    run(build(tmp_path), [str(runs * 5), str(seed), *seeds], folder)
