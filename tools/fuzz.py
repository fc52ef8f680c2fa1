"""`./dev fuzz`: every harness of tests/native/test_native.py under libFuzzer, one after the other.

SECONDS_EACH=60 is how long each runs; ONLY=name picks harnesses whose file name contains it. What libFuzzer finds
interesting is kept in build/fuzz/<harness>/corpus, so that the next run goes on from there; an input that
breaks a harness lies in build/fuzz/<harness> and its path is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.native.compile import build_program
from tests.native.test_native import FUZZERS
from tools import ROOT


def main() -> int:
    """Run the harnesses; return 1 if one of them found something, or if there was none to run."""
    seconds = int(os.environ.get("SECONDS_EACH", "60"))
    only = os.environ.get("ONLY", "")
    chosen = [fuzzer for fuzzer in FUZZERS if only in fuzzer.file]
    broken = []
    for fuzzer in chosen:
        name = Path(fuzzer.file).stem
        folder = ROOT / "build" / "fuzz" / name
        corpora = [folder / "corpus"]
        corpora[0].mkdir(parents=True, exist_ok=True)
        if fuzzer.corpus:
            corpora.append(ROOT / "tests" / "golden" / fuzzer.corpus)
        program = build_program([fuzzer.file], fuzzer.sources, "fuzz", fuzzer.libraries)
        print(f"{name}: {seconds} s", flush=True)
        code = subprocess.call(
            [str(program), f"-max_total_time={seconds}", "-max_len=65536", "-print_final_stats=1"]
            + [f"-artifact_prefix={folder}/", *map(str, corpora)],
            cwd=folder,
        )
        if code != 0:
            broken.append(f"{name}: inputs in {folder}")
    for line in broken:
        print(line)
    if not chosen:
        print(f"no harness has {only!r} in its name" if only else "there is no harness")
    print(f"{len(chosen) - len(broken)} passed, {len(broken)} failed")
    return 1 if broken or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
