"""Rig `live`: kills, freezes and partitions against a live cluster; every history is checked (`tests/live`)."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from tests.live.torture import Torture
from tests.rigs.adopting import adopted_files
from tests.rigs.report import Plan, Report


def run(plan: Plan) -> Report:
    """Do `plan.cases` rounds, whatever time they take; the folder is kept when something is wrong."""
    report = Report("live")
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fastbk-torture-", dir=plan.folder))
    torture = Torture(folder, plan.seed, plan.cases)
    found = asyncio.run(torture.run())
    # Faults that struck no writer show nothing.
    report.cases = plan.cases if found.counts["added"] else 0
    report.counts.update(torture.counts)
    for name in ("ledgers", "added", "refused", "opened", "read"):
        report.counts[name] = found.counts[name]
    report.counts["adopted"] = adopted_files(folder)
    if not report.counts["adopted"]:
        report.lose(["no journal file stayed as a log"], "the rig itself")
    report.lose(
        [str(violation) for violation in found.violations], f"seed {plan.seed}, kept in {folder}"
    )
    if found.is_good:
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - began_s
    return report
