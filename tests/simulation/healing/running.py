"""`./dev sim HEALING=n`: n worlds that heal themselves, from SEED on."""

from __future__ import annotations

import logging
import time

from tests.simulation.healing.world import live_world

REPORTS_MAX = 10
REPORT_S = 60.0


def run_healing(first: int, seeds: int) -> int:
    """Live worlds one behind the other, and print what broke; return the exit code."""
    print(f"sim: healing, seeds {first} to {first + seeds - 1}", flush=True)
    logging.getLogger("fastbk").setLevel(logging.CRITICAL)  # lost bookies are what this is about
    began_s = report_s = time.monotonic()
    events = copies = double = broken = 0
    for seed in range(first, first + seeds):
        try:
            world = live_world(seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            broken += 1
            print(
                f"seed {seed}: {type(error).__name__}: {error}  (./dev sim HEALING=1 SEED={seed})",
                flush=True,
            )
        else:
            events += world.events
            copies += world.copies
            double += world.judge.double_copies
        if time.monotonic() - report_s > REPORT_S:
            report_s = time.monotonic()
            print(f"  {seed + 1 - first} seeds, {events} events", flush=True)
        if broken >= REPORTS_MAX:
            break
    print(
        f"healing: {seeds} seeds, {events} events, {copies} copies, {double} changes by processes whose session had"
        f" ended, {broken} violations, {time.monotonic() - began_s:.1f} seconds"
    )
    return 1 if broken else 0
