"""`./dev compat`: see README.md, or tests/compat/sections.py for what it runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.compat.bench import bench
from tests.compat.jars import BUILD, NotAvailable, programs
from tests.compat.results import Results
from tests.compat.rig import Rig
from tests.compat.sections import chosen_sections


def main() -> int:
    """Run what the environment asks for; return 1 if a cell failed or there was none."""
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        ours = programs()
    except NotAvailable as error:
        print(f"Apache's jars cannot be had: {error}")
        return 1
    results = Results()
    folder = Path(tempfile.mkdtemp(prefix="fastbk-compat-"))
    try:
        with Rig(folder, ours) as rig:
            if os.environ.get("BENCH"):
                return bench(rig, os.environ)
            for section in chosen_sections(os.environ):
                for result in section(rig):
                    results.add(result)
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        if results.failed or os.environ.get("KEEP"):
            print(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    results.write(BUILD / "results.json")
    (BUILD / "table.md").write_text(results.table() + "\n")
    print(f"\n{results.table()}\n\n{results.summary()}")
    return 1 if results.failed or not results.all else 0


if __name__ == "__main__":
    sys.exit(main())
