"""`./dev sim STREAMS=n`: n worlds of streams of each kind, from SEED on; WORLDS names one kind."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.simulation.planting import Mutation
from tests.simulation.streams import mutations, mutations_names, mutations_patterns, mutations_whole
from tests.simulation.streams.naming import run_names
from tests.simulation.streams.patterns import run_patterns
from tests.simulation.streams.whole import run_whole
from tests.simulation.streams.world import run_seed

REPORTS_MAX = 10
KINDS: dict[str, Callable[[int], None]] = {
    "writers": run_seed,
    "whole": run_whole,
    "names": run_names,
    "patterns": run_patterns,
}
"""Worlds of writers alone, of all that uses a stream, of names that come, go and change, and of a pattern's cursor."""
MUTATIONS_OF: dict[str, tuple[Mutation, ...]] = {
    "writers": mutations.MUTATIONS,
    "whole": mutations_whole.MUTATIONS,
    "names": mutations_names.MUTATIONS,
    "patterns": mutations_patterns.MUTATIONS,
}
"""The planted faults of each kind, each with the seed of a world that finds it."""


def run_streams(first: int, seeds: int, only: str = "") -> int:
    """Live worlds one behind the other, and print what broke; return the exit code."""
    if only and only not in KINDS:
        print(f"no such worlds: {only}; there are {', '.join(KINDS)}")
        return 2
    kinds = [only] if only else list(KINDS)
    print(f"sim: streams, seeds {first} to {first + seeds - 1}, {', '.join(kinds)}", flush=True)
    began_s, broken = time.monotonic(), 0
    for seed in range(first, first + seeds):
        for kind in kinds:
            try:
                KINDS[kind](seed)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                broken += 1
                print(
                    f"seed {seed}: {type(error).__name__}: {error}"
                    f"  (./dev sim STREAMS=1 SEED={seed} WORLDS={kind})"
                )
        if broken >= REPORTS_MAX:
            break
    print(f"streams: {seeds} seeds, {broken} violations, {time.monotonic() - began_s:.1f} seconds")
    return 1 if broken else 0
