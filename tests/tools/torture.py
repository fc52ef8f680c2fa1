"""`./dev torture ROUNDS=n`: kills, freezes and partitions against a live cluster; every history is checked.

SEED=s repeats the choices (not the timing). The folder with all histories and logs is kept when something is wrong.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.live.torture import Torture


def main() -> int:
    """Run and report; 0 only without any violation."""
    rounds = int(os.environ.get("ROUNDS", "100"))
    seed = int(os.environ.get("SEED", str(secrets.randbelow(2**32))))
    folder = Path(tempfile.mkdtemp(prefix="fastbk-torture-", dir=os.environ.get("DATA")))
    print(f"torture: {rounds} rounds, SEED={seed}, in {folder}", flush=True)
    began_s = time.monotonic()
    torture = Torture(folder, seed, rounds)
    report = asyncio.run(torture.run())
    took_s = time.monotonic() - began_s
    faults = ", ".join(f"{name} {count}" for name, count in sorted(torture.counts.items()))
    print(f"faults: {faults}")
    for violation in report.violations[:50]:
        print(f"VIOLATION {violation}")
    counts = report.counts
    print(
        f"rounds={rounds} ledgers={counts['ledgers']} added={counts['added']} refused={counts['refused']}"
        f" recovered={counts['opened']} reads={counts['read']} violations={len(report.violations)}"
        f" seconds={took_s:.0f}"
    )
    if report.is_good:
        shutil.rmtree(folder)
        return 0
    print(f"kept: {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
