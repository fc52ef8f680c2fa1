"""`./dev torture`: a short version of most fault rigs, in about two minutes; `attacks` and `spark` run by name.

It prints cases and losses. It ends with 1 after any loss, or if a rig ran no case: give more time
on a busy machine.

    N=20             that many times as much
    RIG=power        one of them (`./dev torture RIG=help` lists them)
    CASES=100000     stop there instead of at a time; with RIG=
    ROUNDS=500       rounds of the rig `live`, and nothing else; of another one with RIG=
    SEED=n           the same choices again (not the timing of real processes)
    ONLY=regex       of the kill points those whose names match; of RIG=spark its kinds: steps, zombie,
                     executor, orphan, bookie, metadata; of RIG=producers: hard (rolls, truncation, 10,000 names)
    METADATA=zookeeper   of RIG=rolling, RIG=roll and RIG=producers: ZooKeeper instead of sqlite
    JOBS=2           processes at once, for the rigs that can use them
    DATA=folder      where files go; what is kept after a loss lies there; kill points done there are not done again
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.rigs import (
    attacks,
    churn,
    durable,
    fake_disk,
    flips,
    full,
    gc_model,
    healing,
    live,
    outage,
    pipelines,
    points,
    power_cut,
    producers,
    racks,
    rebalance,
    rolling,
    shutdown,
    strangers,
    takeovers,
    upgrade,
    visibility,
)
from tests.rigs.children import ChildFailed, start_child
from tests.rigs.report import Plan, Report

SEEDS_A_JOB = 1_000_000
PATIENCE_S, DAY_S = 600.0, 86400.0


@dataclass(frozen=True)
class Rig:
    """One rig.

    Attributes:
        about: one line.
        seconds: of the 40 that N=1 takes, its end included.
        cases: with N=1, for rigs that can't stop by time; 0: by time.
        splits: several can run beside each other with seeds of their own.
        only_named: it is not one of those that are run without a name; it takes minutes.
        sum_up: what the parts of a run in one folder did together, for a rig that notes it there.
    """

    run: Callable[[Plan], Report]
    about: str
    seconds: float
    cases: int = 0
    splits: bool = False
    sum_up: Callable[[Plan], list[str]] | None = None
    only_named: bool = False


def _spark(plan: Plan) -> Report:
    from tests.rigs import spark_kills  # Spark and Arrow are loaded for this rig alone

    return spark_kills.run(plan)


RIGS = {
    "disk": Rig(
        fake_disk.run, "the fake disk: cuts at every moment, errors, short writes", 6.0, splits=True
    ),
    "power": Rig(power_cut.run, "images of ext4 and xfs after power cuts", 5.0, splits=True),
    "points": Rig(
        points.run,
        "a process of a bookie dies at a named point",
        4.0,
        splits=True,
        sum_up=points.sum_up,
    ),
    "shutdown": Rig(shutdown.run, "three bookies whose file systems are shut down at once", 2.0),
    "full": Rig(full.run, "a bookie's disk is filled to 100 % under load and emptied again", 3.0),
    "gc": Rig(gc_model.run, "deletions, compactions and crashes against a model", 3.0, splits=True),
    "flips": Rig(
        flips.run, "one bit of one file of a stopped bookie turned over", 2.0, splits=True
    ),
    "churn": Rig(churn.run, "writes and deletes many times what lives: space stays bounded", 5.0),
    "takeovers": Rig(
        takeovers.run, "writers of one stream are killed, and the next goes on", 6.0, cases=4
    ),
    "pipeline": Rig(
        pipelines.run, "pipelines are killed, and the next goes on: outputs are exact", 8.0, cases=4
    ),
    "visibility": Rig(
        visibility.run,
        "writers fail around an acknowledgement: seconds until readers see it",
        20.0,
        cases=28,
    ),
    "rolling": Rig(
        rolling.run, "bookies are restarted in turns under load: no copy is missing", 60.0, cases=2
    ),
    "roll": Rig(
        upgrade.run,
        "a roll from the released version to this one and back, under load",
        60.0,
        cases=1,
        only_named=True,
    ),
    "healing": Rig(
        healing.run,
        "bookies are lost for good: AutoRecovery brings every copy back",
        0.0,
        cases=5,
        only_named=True,
    ),
    "racks": Rig(
        racks.run,
        "bookies, racks and regions are lost: no write set of any ledger lies in one of them",
        600.0,
        cases=8,
        only_named=True,
    ),
    "rebalance": Rig(
        rebalance.run,
        "copies move to added bookies under load, and movers, sources and targets are killed",
        600.0,
        cases=2,
        only_named=True,
    ),
    "durable": Rig(
        durable.run,
        "a rack is lost at a random moment: what was acknowledged in two racks is there",
        60.0,
        cases=10,
        only_named=True,
    ),
    "producers": Rig(
        producers.run,
        "sixteen producers of one stream: they, services, bookies and ZooKeeper are killed and frozen",
        600.0,
        cases=30,
        only_named=True,
    ),
    "outage": Rig(outage.run, "ZooKeeper goes away under writers and readers of streams", 10.0),
    "spark": Rig(
        _spark,
        "processes of a query of Spark are killed, and what it stands on",
        0.0,
        cases=77,
        only_named=True,
    ),
    "attacks": Rig(
        attacks.run,
        "clients that try to take a bookie's memory, connections or time",
        0.0,
        cases=7,
        only_named=True,
    ),
    "strangers": Rig(
        strangers.run,
        "a bookie is shown tokens, certificates and hellos that nobody expects",
        6.0,
        splits=True,
    ),
    "live": Rig(live.run, "kills, freezes and partitions against a live cluster", 6.0, cases=2),
}


def main() -> int:
    """Run what the environment asks for; 0 only when nothing was lost and each rig did something."""
    name = os.environ.get("RIG") or ("live" if os.environ.get("ROUNDS") else "")
    if name and name not in RIGS:
        print("\n".join(f"{each:<10} {rig.about}" for each, rig in RIGS.items()))
        if name == "help":
            return 0
        print(f"torture: there is no rig {name!r}: give one of those above", file=sys.stderr)
        return 2
    seed = int(os.environ.get("SEED", str(secrets.randbelow(2**30))))
    times = float(os.environ.get("N", "1"))
    cases = int(os.environ.get("ROUNDS") or os.environ.get("CASES") or "0")
    folder = Path(os.environ.get("DATA") or tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    print(f"torture: SEED={seed}", flush=True)
    began_s = time.monotonic()
    reports = []
    for each, rig in RIGS.items():
        if each == name or not (name or rig.only_named):
            reports.append(run_one(each, rig, plan_of(rig, seed, times, cases, folder)))
            print(reports[-1].line(), flush=True)
            for note in reports[-1].notes:
                print(f"{'':<12} {note}", flush=True)
            for loss in reports[-1].losses:
                print(f"LOSS {loss}", flush=True)
    lost = sum(report.losses_count for report in reports)
    done = sum(report.cases for report in reports)
    took_s = time.monotonic() - began_s
    print(
        f"torture: {len(reports)} rigs, cases={done} losses={lost} seconds={took_s:.0f} SEED={seed}"
    )
    idle = [one.rig for one in reports if not (one.cases or one.skipped or one.losses_count)]
    if idle:
        print(f"torture: no case was done by: {', '.join(idle)}: give more time, N=5 for example")
    return 0 if done and not lost and not idle else 1


def plan_of(rig: Rig, seed: int, times: float, cases: int, folder: Path) -> Plan:
    """How much of a rig is run: so many cases when they are named, else its share of the time."""
    seconds = float("inf") if cases else rig.seconds * times
    if rig.cases and not cases:
        cases = max(1, round(rig.cases * times))
    return Plan(
        seed,
        cases,
        seconds,
        folder,
        is_resumed="DATA" in os.environ,
        only=os.environ.get("ONLY", ""),
        metadata=os.environ.get("METADATA", "sqlite"),
    )


def run_one(name: str, rig: Rig, plan: Plan) -> Report:
    """Run a rig, in several processes where it can; what it raises counts as a loss."""
    jobs = max(1, int(os.environ.get("JOBS", "1"))) if rig.splits else 1
    try:
        if jobs == 1:
            began_s = time.monotonic()
            report = rig.run(plan)
            report.seconds = report.seconds or time.monotonic() - began_s
            return report
        return run_jobs(name, rig, plan, jobs)
    except Exception as error:  # a rig that breaks down has proven nothing
        report = Report(name)
        report.lose([f"{type(error).__name__}: {error}"], "the rig itself")
        return report


def run_jobs(name: str, rig: Rig, plan: Plan, jobs: int) -> Report:
    """Split the cases over forked children, and add up what they say."""
    began_s = time.monotonic()
    shared = replace(plan, jobs=jobs, cases=-(-plan.cases // jobs), began_s=began_s)
    parts = [replace(shared, job=job, seed=plan.seed + job * SEEDS_A_JOB) for job in range(jobs)]
    whole = Report(name)
    children = [start_child(lambda part=part: rig.run(part)) for part in parts]  # type: ignore[misc]
    patience_s = PATIENCE_S + min(plan.seconds, DAY_S)
    for child in children:
        try:
            whole.add(child.result(patience_s))
        except ChildFailed as error:
            whole.lose([str(error)], "the rig itself")
    if rig.sum_up is not None and plan.is_resumed:
        whole.notes = rig.sum_up(plan)
    whole.seconds = time.monotonic() - began_s
    return whole


if __name__ == "__main__":
    sys.exit(main())
