"""`./dev compat`: see README.md, or tests/compat/sections.py for what it runs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.compat.jars import BUILD, NotAvailable, programs
from tests.compat.results import Result, Results
from tests.compat.rig import Rig
from tests.compat.sections import Section, chosen_sections
from tools.bench_compat import bench
from tools.bench_compat_healing import heal_bench

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run what the environment asks for; return 1 if a cell failed or there was none, 130 if it was interrupted."""
    # Bookies, brokers and ZooKeeper end with us, also where `timeout` ends us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        ours = programs()
    except NotAvailable as error:
        print(f"Apache's jars cannot be had: {error}")
        return 1
    results, is_interrupted = Results(), False
    folder = Path(tempfile.mkdtemp(prefix="fastbk-compat-"))
    try:
        with Rig(folder, ours) as rig:
            if os.environ.get("BENCH") == "heal":
                return heal_bench(rig, os.environ)
            if os.environ.get("BENCH"):
                return bench(rig, os.environ)
            for name, section in chosen_sections(os.environ):
                run_part(name, section, rig, results)
    except KeyboardInterrupt:
        print("interrupted")
        is_interrupted = True
    finally:
        if results.failed or os.environ.get("KEEP"):
            print(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    results.write(BUILD / "results.json")
    (BUILD / "table.md").write_text(results.table() + "\n")
    print(f"\n{results.table()}\n\n{results.summary()}")
    if is_interrupted:
        return EXIT_INTERRUPTED
    return 1 if results.failed or not results.all else 0


def run_part(name: str, section: Section, rig: Rig, results: Results) -> None:
    """Run one part. What it cannot begin or go on with is a failed cell: the other parts are run all the same."""
    started_s = time.monotonic()
    try:
        for result in section(rig):
            results.add(result)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        results.add(Result(name, f"part {name}", "fail", time.monotonic() - started_s, reason))


if __name__ == "__main__":
    sys.exit(main())
