"""Looks for a seed whose world finds a planted fault, and asks whether one still does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import count

from fastbk.errors import InvariantError
from tests.simulation.checks import INVARIANTS
from tests.simulation.finders import SCRIPTED
from tests.simulation.mutations import MUTATIONS
from tests.simulation.planting import Mutation, NotPlantable, planted
from tests.simulation.streams.facts import Broken
from tests.simulation.streams.loop import Stuck
from tests.simulation.world import Result, run_seed

FOUND = (Broken, InvariantError, Stuck)
"""What a world of streams or of healing raises that has found something; all else is the simulator's own fault."""
QUICK_S = 0.05
"""A world that takes so long is quick enough: no better one is looked for."""


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
    """Print a finder for each fault whose name contains `only`; return the exit code.

    No world is looked for that finds what only a script does, unless `only` names it.
    """
    missed = 0
    for name in MUTATIONS:
        if only not in name:
            continue
        if name in SCRIPTED and name != only:
            print(f"    # {name}: tests/simulation/scripts finds it", flush=True)
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


def is_found(mutation: Mutation, run: Callable[[int], object], seed: int) -> bool:
    """Return whether the world of a seed, which `run` runs, finds the planted fault."""
    with planted(mutation):
        try:
            run(seed)
        except FOUND:
            return True
    return False


def look_for_seeds(
    mutations: Iterable[Mutation],
    run: Callable[[int], object],
    first: int,
    only: str,
    seconds_each: float,
) -> int:
    """Print for each fault whose name contains `only` the seed of the quickest world found; return the exit code."""
    missed = 0
    for mutation in mutations:
        if only not in mutation.name:
            continue
        best: tuple[float, int] | None = None
        end_s = time.process_time() + seconds_each
        for seed in count(first):
            began_s = time.process_time()
            try:
                found = is_found(mutation, run, seed)
            except NotPlantable as error:
                print(f"    # {mutation.name}: {error}", flush=True)
                break
            now_s = time.process_time()
            if found:
                best = min(best or (now_s - began_s, seed), (now_s - began_s, seed))
            if now_s > end_s or (best is not None and best[0] < QUICK_S):
                break
        if best is None:
            missed += 1
            print(f"    # {mutation.name}: not found in {seconds_each:g} s", flush=True)
        else:
            print(f"    {mutation.name}: seed={best[1]},  # {best[0]:.2f} s", flush=True)
    return 1 if missed else 0
