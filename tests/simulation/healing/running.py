"""`./dev sim HEALING=n`: n worlds that heal themselves, from SEED on. With REPLAY=seed the calls of one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar
from unittest.mock import patch

from fastbk.meta import MetadataStore
from tests.simulation.healing.mutations import MUTATIONS
from tests.simulation.healing.process import SimulatedCalls
from tests.simulation.healing.world import live_world
from tests.simulation.planting import planted

T = TypeVar("T")

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
                f"seed {seed}: {type(error).__name__}: {error}  (./dev sim HEALING=1 REPLAY={seed})",
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


def replay_healing(seed: int, mutation: str | None = None) -> int:
    """Print the calls of metadata of a seed's world; return the exit code. `mutation`: a planted fault."""
    faults = {one.name: one for one in MUTATIONS}
    if mutation and mutation not in faults:
        print(f"no such mutation: {mutation}; there are {', '.join(faults)}")
        return 2
    logging.getLogger("fastbk").setLevel(logging.CRITICAL)
    print(f"healing, seed {seed}\n{'seconds':>10}  process     call; which bookies are down")
    with planted(faults[mutation]) if mutation else nullcontext(), traced():
        try:
            live_world(seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            print(f"{type(error).__name__}: {error}")
            return 1
    print("no violation")
    return 0


@contextmanager
def traced() -> Iterator[None]:
    """Print each call of metadata when it has ended, in simulated time, meanwhile."""
    untraced = SimulatedCalls.call

    async def call(
        calls: SimulatedCalls, call: Callable[[MetadataStore], T], timeout_s: float | None = None
    ) -> T:
        outcome = ""
        try:
            return await untraced(calls, call, timeout_s)
        except BaseException as error:
            outcome = f"{type(error).__name__} {error}".strip()
            raise
        finally:
            process = calls._process
            world = process.world
            what = (
                getattr(call, "func", call)
                .__qualname__.replace(".<locals>.<lambda>", "")
                .replace(".<locals>", "")
            )
            down = [one.name for one in world.cluster.bookies.values() if not one.is_up]
            print(
                f"{world.now_s:10.3f}  {process.name:10}  {what}; {' '.join(down)} {outcome}".rstrip()
            )

    with patch.object(SimulatedCalls, "call", call):
        yield
