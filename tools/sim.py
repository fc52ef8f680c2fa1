"""`./dev sim`: simulated clusters by the thousand, from seeds; `tests/simulation/` has all of it.

    SEEDS=1000         how many worlds; SEED=n the first (random), JOBS=2 processes
    MUTATION=name      with a planted fault: it must end with a violation, and so with 1
    REPLAY=seed        one world as a readable trace, one column a node; with HEALING=1 or STREAMS=1 the calls of theirs
    SHRINK=seed        the fewest faults and pieces of work that still break the same invariant; not of theirs
    TRACES=n OUT=dir   traces for the TLA+ model of the worlds from SEED on, dir/traces.jsonl
    HEALING=n          worlds of AutoRecovery instead
    STREAMS=n          worlds of streams instead; WORLDS=writers|whole|names|patterns|producers  of one kind
    MUTATIONS=1        looks for a seed that finds each planted fault (ONLY=text, SECONDS_EACH=60): for finders.py;
                       with HEALING=1 or STREAMS=1 for a quick one of theirs: for mutations*.py there

A branch is a distinct (role, event, the node's event before, what the node is at); a counted seed has at least 200
events and three kinds of fault. The last line of a run is `seeds=N events=N violations=N seconds=S`; it ends with 1
on any violation.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.simulation.batches import Total, run_many
from tests.simulation.columns import columns, head_of, items_of
from tests.simulation.finding import look_for_finders, look_for_seeds
from tests.simulation.healing import mutations as healing_mutations
from tests.simulation.healing.running import replay_healing, run_healing
from tests.simulation.healing.world import live_world
from tests.simulation.model_trace import write_traces
from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import draw_plan
from tests.simulation.planting import planted
from tests.simulation.shrinking import shrink
from tests.simulation.streams.running import KINDS, MUTATIONS_OF, replay_streams, run_streams
from tests.simulation.world import run_plan, run_seed

SHRINK_S = 120.0
REPORT_S = 10.0


def _command(seed: int, mutation: str | None) -> str:
    planted_too = f" MUTATION={mutation}" if mutation else ""
    return f"./dev sim REPLAY={seed}{planted_too}"


def run(seeds: int, first: int, jobs: int, mutation: str | None) -> int:
    """Run many worlds; return the exit code."""
    total = Total()
    told = 0
    report_s = time.monotonic() + REPORT_S
    print(f"sim: seeds {first} to {first + seeds - 1}, {jobs} processes", flush=True)
    for total in run_many(first, seeds, jobs, mutation=mutation):
        for seed, _, text in total.failed[told:]:
            print(
                f"violation, seed {seed}: {text.strip()}\n  {_command(seed, mutation)}", flush=True
            )
        told = len(total.failed)
        if time.monotonic() > report_s:
            report_s += REPORT_S
            print(f"  {total.seeds} seeds, {total.events} events", flush=True)
        if mutation and total.failed:
            break
    seconds = max(total.seconds, 1e-9)
    struck = ", ".join(f"{kind} {count}" for kind, count in sorted(total.faults.items()))
    print(f"faults that struck: {struck}")
    print(f"branches: {len(total.branches)} distinct, {len(total.branches) / seconds:.1f} a second")
    print(
        f"rates: {total.events / seconds:.0f} events a second, {total.seeds / seconds:.1f} seeds a second;"
        f" {total.counted} of {total.seeds} seeds counted"
    )
    # Worlds in which too little happened do not count, but their violations do.
    print(
        f"seeds={total.counted} events={total.events_counted} violations={len(total.failed)} seconds={seconds:.1f}"
    )
    return 1 if total.failed else 0


def replay(seed: int, mutation: str | None) -> int:
    """Print one world; return the exit code."""
    with planted(MUTATIONS[mutation] if mutation else None):
        result = run_seed(seed, is_traced=True)
    plan = draw_plan(seed)
    print("\n".join((head_of(plan), *items_of(plan), *columns(result))))
    return 1 if result.violation else 0


def shrink_seed(seed: int, mutation: str | None) -> int:
    """Print the smallest plan that fails like the seed's; return the exit code."""
    with planted(MUTATIONS[mutation] if mutation else None):
        result = run_seed(seed)
        if result.violation is None:
            print(f"seed {seed} breaks nothing")
            return 0
        plan, result = shrink(draw_plan(seed), result.violation, SHRINK_S)
        result = run_plan(plan, is_traced=True)
    print(head_of(plan))
    print(f"{len(plan.faults)} faults, {len(plan.work)} pieces of work left")
    print("\n".join((*items_of(plan), *columns(result))))
    return 1


def look_for_mutations(first: int, settings: Mapping[str, str]) -> int:
    """Print seeds that find planted faults; return the exit code."""
    seconds_each = float(settings.get("SECONDS_EACH") or 60)
    only = settings.get("ONLY", "")
    if settings.get("HEALING"):
        return look_for_seeds(healing_mutations.MUTATIONS, live_world, first, only, seconds_each)
    if settings.get("STREAMS"):
        codes = [
            look_for_seeds(MUTATIONS_OF[kind], run, first, only, seconds_each)
            for kind, run in KINDS.items()
            if settings.get("WORLDS", kind) in ("", kind)
        ]
        return max(codes, default=2)
    return look_for_finders(first, only, seconds_each)


def first_of(settings: Mapping[str, str]) -> int:
    """Return the first seed."""
    return int(settings.get("SEED") or secrets.randbelow(2**40))


def of_other_worlds(settings: Mapping[str, str], mutation: str | None) -> int:
    """Do what the settings name with worlds of AutoRecovery or of streams; return the exit code."""
    worlds = settings.get("WORLDS") or ""
    for name in ("SHRINK", "TRACES"):
        if settings.get(name):
            print(f"{name} is for worlds of ledgers: leave out HEALING and STREAMS")
            return 2
    if settings.get("REPLAY"):
        seed = int(settings["REPLAY"])
        if settings.get("HEALING"):
            return replay_healing(seed, mutation)
        return replay_streams(seed, worlds, mutation)
    if mutation is not None:
        print("MUTATION needs REPLAY=seed here; MUTATIONS=1 ONLY=name looks for a seed")
        return 2
    if settings.get("MUTATIONS"):
        return look_for_mutations(first_of(settings), settings)
    if settings.get("HEALING"):
        return run_healing(first_of(settings), int(settings["HEALING"]))
    return run_streams(first_of(settings), int(settings["STREAMS"]), worlds)


def main(settings: Mapping[str, str] = os.environ) -> int:
    """Do what the settings name; return the exit code."""
    mutation = settings.get("MUTATION") or None
    if settings.get("HEALING") or settings.get("STREAMS"):
        return of_other_worlds(settings, mutation)
    if mutation is not None and mutation not in MUTATIONS:
        print(f"no such mutation: {mutation}; there are {', '.join(MUTATIONS)}")
        return 2
    first = first_of(settings)
    jobs = int(settings.get("JOBS") or min(2, os.cpu_count() or 1))
    if settings.get("REPLAY"):
        return replay(int(settings["REPLAY"]), mutation)
    if settings.get("SHRINK"):
        return shrink_seed(int(settings["SHRINK"]), mutation)
    if settings.get("TRACES"):
        file = Path(settings.get("OUT") or "build/traces") / "traces.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        count = write_traces(file, first, int(settings["TRACES"]))
        print(f"{count} traces in {file}")
        return 0
    if settings.get("MUTATIONS"):
        return look_for_mutations(first, settings)
    return run(int(settings.get("SEEDS") or 1000), first, jobs, mutation)


if __name__ == "__main__":
    sys.exit(main())
