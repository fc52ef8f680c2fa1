"""Looks for a seed whose world finds a planted fault, and asks whether one still does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import count

from fastbk.errors import InvariantError
from tests.simulation.checks import INVARIANTS
from tests.simulation.finders import FINDERS, SCRIPTED
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
    end_s = time.process_time() + seconds_max
    with planted(MUTATIONS[name]):
        for number in count():
            result = run_seed(first + number)
            # A planted fault that merely raises proves nothing about the checks.
            if result.violation in INVARIANTS:
                return result, number + 1
            if time.process_time() > end_s:
                return None, number + 1
    return None, 0


def look_for_finders(first: int, only: str, seconds_each: float) -> int:
    """Print a finder for each fault whose name contains `only`; return the exit code.

    1: one has none, neither a new seed nor its recorded one. No world is looked for that finds what only a script does,
    unless `only` names it.
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
            recorded, _ = find(name, FINDERS[name], 0) if name in FINDERS else (None, 0)
            missed += recorded is None
            how = (
                "not found"
                if recorded is None
                else f"found by its recorded seed {recorded.seed} and"
            )
            print(f"    # {name}: {how} by none of {seeds} new ones", flush=True)
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
    """Print for each fault whose name contains `only` the seed of the quickest world found; return the exit code.

    1: one has none, neither a new seed nor its recorded one.
    """
    missed = 0
    for mutation in mutations:
        if only not in mutation.name:
            continue
        try:
            best = _quickest(mutation, run, first, seconds_each)
            is_known = best is not None or is_found(mutation, run, mutation.seed)
        except NotPlantable as error:
            missed += 1
            print(f"    # {mutation.name}: {error}", flush=True)
            continue
        missed += not is_known
        if best is not None:
            print(f"    {mutation.name}: seed={best[1]},  # {best[0]:.2f} s", flush=True)
        else:
            how = f"found only by its recorded seed {mutation.seed}" if is_known else "not found"
            print(f"    # {mutation.name}: {how}, {seconds_each:g} s", flush=True)
    return 1 if missed else 0


def _quickest(
    mutation: Mutation, run: Callable[[int], object], first: int, seconds_max: float
) -> tuple[float, int] | None:
    """Return seconds and seed of the quickest world from `first` on that finds the fault; None: there was none."""
    best: tuple[float, int] | None = None
    end_s = time.process_time() + seconds_max
    for seed in count(first):
        began_s = time.process_time()
        found = is_found(mutation, run, seed)
        now_s = time.process_time()
        if found:
            best = min(best or (now_s - began_s, seed), (now_s - began_s, seed))
        if now_s > end_s or (best is not None and best[0] < QUICK_S):
            break
    return best
