"""Looks for a seed whose world finds a planted fault: the mutation gate's finders."""

from __future__ import annotations

import time
from itertools import count

from tests.simulation.checks import INVARIANTS
from tests.simulation.mutations import MUTATIONS
from tests.simulation.planting import NotPlantable, planted
from tests.simulation.world import Result, run_seed


def find(name: str, first: int, seconds_max: float) -> tuple[Result | None, int]:
    """Return the first result that shows the fault, None when time is over; and how many seeds were run."""
    end_s = time.monotonic() + seconds_max
    with planted(MUTATIONS[name]):
        for number in count():
            result = run_seed(first + number)
            # A planted fault that merely raises proves nothing about the checks.
            if result.violation in INVARIANTS:
                return result, number + 1
            if time.monotonic() > end_s:
                return None, number + 1
    return None, 0


def look_for_finders(first: int, only: str, seconds_each: float) -> int:
    """Print a finder for each fault whose name contains `only`; return the exit code."""
    missed = 0
    for name in MUTATIONS:
        if only not in name:
            continue
        try:
            result, seeds = find(name, first, seconds_each)
        except NotPlantable as error:
            missed += 1
            print(f"    # {name}: {error}", flush=True)
            continue
        if result is None:
            missed += 1
            print(f"    # {name}: not found by {seeds} seeds", flush=True)
        else:
            found_by = f"{result.violation}, {seeds} seeds"
            print(f'    "{name}": {result.seed},  # {found_by}', flush=True)
    return 1 if missed else 0
