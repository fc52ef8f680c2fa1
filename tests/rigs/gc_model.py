"""Rig `gc`: deletions, recounts, merges, compactions and crashes in any order, against a model of what lives.

The model is `run_gc_model` of `tests/property/test_gc_model.py`; a case is one of its steps.
"""

from __future__ import annotations

import time

from tests.property.test_gc_model import run_gc_model
from tests.rigs.report import Plan, Report

STEPS = 1000


def run(plan: Plan) -> Report:
    """Run seeds until there are enough steps."""
    report = Report("gc")
    began_s = time.monotonic()
    seed = plan.seed
    while plan.goes_on(report.cases):
        try:
            report.counts.update(run_gc_model(seed, STEPS))
        except (
            Exception
        ) as error:  # of the model, too: it has proven nothing, and the seed says where to look
            report.lose([f"{type(error).__name__}: {error}"], f"seed {seed}")
        report.cases += STEPS
        seed += 1
    report.counts.pop("steps", None)
    report.seconds = time.monotonic() - began_s
    return report
