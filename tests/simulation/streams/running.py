"""`./dev sim STREAMS=n`: n worlds of streams, from SEED on."""

from __future__ import annotations

import time

from tests.simulation.streams.world import run_seed

REPORTS_MAX = 10


def run_streams(first: int, seeds: int) -> int:
    """Live worlds one behind the other, and print what broke; return the exit code."""
    print(f"sim: streams, seeds {first} to {first + seeds - 1}", flush=True)
    began_s, broken = time.monotonic(), 0
    for seed in range(first, first + seeds):
        try:
            run_seed(seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            broken += 1
            print(f"seed {seed}: {type(error).__name__}: {error}  (./dev sim STREAMS=1 SEED={seed})")
            if broken == REPORTS_MAX:
                break
    print(f"streams: {seeds} seeds, {broken} violations, {time.monotonic() - began_s:.1f} seconds")
    return 1 if broken else 0
