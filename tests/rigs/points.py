"""Rig `points`: every named point of a bookie's processes, each with its first ten passes (`kill_points.py`).

What is done is noted in a file of the rig's folder, so that a long run can be resumed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from fastbk.errors import Error
from fastbk.testing import LocalCluster
from tests.fixtures.pairs import Settings, pair_settings
from tests.rigs.adopting import adopted_files, adopting
from tests.rigs.kill_points import (
    ADOPTS,
    BOOTS,
    BRISK,
    BRISK_SETTINGS,
    DIRECTORIES,
    ONCE,
    PATIENT_SETTINGS,
    PREWRITES,
    PREWRITING_SETTINGS,
    RECYCLES,
    RECYCLING_SETTINGS,
    SETTINGS,
    NotReached,
    points,
    run_point,
)
from tests.rigs.report import Plan, Report

PATIENCE_S = 120.0
"""A pass that takes longer is said to be out of reach, and tried again by the next run in the folder."""
PASSES = 10
CASES_A_CLUSTER = 10
ADOPTING_SHARE = 0.5
"""Of the bookies: of these the journal files stay as logs."""
DONE_NAME = "kill-points.jsonl"
REACHED, LOST, UNREACHED = "reached", "lost", "unreached"
SETTINGS_OF = {
    "brisk": BRISK_SETTINGS,
    "patient": PATIENT_SETTINGS,
    "prewriting": PREWRITING_SETTINGS,
    "adopting": BRISK_SETTINGS,
    "recycling": RECYCLING_SETTINGS,
}
MANY_PAIRS = 5
"""With ten directories."""
Case = tuple[str, int]
"""A point, and the number of the pass at which its process dies."""


def cases() -> list[Case]:
    """All points, each with its first ten passes; with one where a process passes it only once."""
    return [
        (point, number)
        for point in points()
        for number in range(1, 2 if ONCE.match(point) else PASSES + 1)
    ]


def run(plan: Plan) -> Report:
    """Do cases in any order; with `plan.is_resumed` only those that the file in the folder does not name."""
    report = Report("points")
    began_s = time.monotonic()
    done = {case: result for case, result in read_done(plan).items() if result != UNREACHED}
    wanted = [case for case in cases() if re.search(plan.only, case[0])]
    left = [case for case in wanted[plan.job :: plan.jobs] if case not in done]
    if done and all(case in done for case in wanted):
        report.skipped = "each case was done before in this folder"
    tried: dict[Case, str] = {}
    asyncio.run(_run_all(plan, report, left, tried))
    if report.counts["adopting"] and not report.counts["adopted"]:
        report.lose(["no journal file stayed as a log"], "the rig itself")
    report.seconds = time.monotonic() - began_s
    report.notes = summary({**done, **tried})
    return report


def kind_of(point: str) -> str:
    """The kind of cluster that brings a process to the point soon."""
    if point == DIRECTORIES:
        return "directories"
    if BOOTS.match(point):
        return "patient"
    if ADOPTS.match(point):
        return "adopting"
    if RECYCLES.match(point):
        return "recycling"
    if PREWRITES.match(point):
        return "prewriting"
    return "brisk" if BRISK.match(point) else "usual"


def settings_for(point: str) -> Settings:
    """The settings of a bookie that brings a process to the point soon."""
    return SETTINGS_OF.get(kind_of(point), SETTINGS)


def _settings(kind: str, folder: Path, rng: random.Random) -> tuple[int, Settings]:
    """Pairs and settings of a bookie. Every third has two journals and indexes: any may be the one that dies."""
    pairs = MANY_PAIRS if kind == "directories" else rng.choice((1, 1, 2))
    settings = SETTINGS_OF.get(kind, SETTINGS)
    return pairs, pair_settings(folder, pairs, settings) if pairs > 1 else settings


def _batches(left: list[Case], rng: random.Random) -> list[list[Case]]:
    """Cases that can share a bookie, in any order."""
    rng.shuffle(left)
    batches: list[list[Case]] = []
    for kind in sorted({kind_of(point) for point, _ in left}):
        alike = [case for case in left if kind_of(case[0]) == kind]
        batches += [alike[n : n + CASES_A_CLUSTER] for n in range(0, len(alike), CASES_A_CLUSTER)]
    rng.shuffle(batches)
    return batches


async def _run_all(plan: Plan, report: Report, left: list[Case], tried: dict[Case, str]) -> None:
    rng = random.Random(plan.seed)
    for batch in _batches(left, rng):
        while batch and plan.begins(report.cases):
            folder = Path(tempfile.mkdtemp(prefix="fastbk-points-", dir=plan.folder))
            pairs, settings = _settings(kind_of(batch[0][0]), folder, rng)
            adopts = kind_of(batch[0][0]) == "adopting" or rng.random() < ADOPTING_SHARE
            report.counts[f"of_{pairs}"] += 1
            report.counts["adopting"] += adopts
            async with AsyncExitStack() as stack:
                stack.enter_context(adopting(adopts))
                cluster = await stack.enter_async_context(
                    LocalCluster(1, data=folder, settings=settings)
                )
                is_good = True
                while batch and is_good and plan.begins(report.cases):
                    case, case_began_s = batch.pop(), time.monotonic()
                    tried[case], what = await _run_case(cluster, case, plan)
                    if tried[case] == UNREACHED:
                        report.counts[UNREACHED] += 1
                    else:
                        report.cases += 1
                        report.lose(what, f"{case[0]}:{case[1]}, see {folder}")
                    write_done(plan, case, tried[case], time.monotonic() - case_began_s, what)
                    is_good = tried[case] == REACHED
            report.counts["adopted"] += adopted_files(folder)
            if not report.losses_count:
                shutil.rmtree(folder)


async def _run_case(cluster: LocalCluster, case: Case, plan: Plan) -> tuple[str, list[str]]:
    """Return the result, and in words what was wrong."""
    point, number = case
    rng = random.Random(f"{plan.seed} {point} {number}")
    errors: list[BaseException] = []
    try:
        await run_point(cluster, point, number, rng, PATIENCE_S)
    except* (NotReached, AssertionError, OSError, Error) as group:
        errors = list(leaves(group))
    what = [f"{type(error).__name__}: {error}" for error in errors]
    if any(isinstance(error, NotReached) for error in errors):
        return UNREACHED, what
    return LOST if what else REACHED, what


def leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group, however deep."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def read_done(plan: Plan) -> dict[Case, str]:
    """What runs in this folder did so far, when it is to be resumed: the last result of each case."""
    path = plan.folder / DONE_NAME
    if not plan.is_resumed or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["point"], line["number"]): line["result"] for line in lines}


def write_done(
    plan: Plan, case: Case, result: str, seconds: float, what: Sequence[str] = ()
) -> None:
    """Note a case, how long it took, and what was wrong."""
    if plan.is_resumed:
        line: dict[str, object] = {"point": case[0], "number": case[1], "result": result}
        line |= {"seconds": round(seconds, 1), "what": list(what)}
        with open(plan.folder / DONE_NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def sum_up(plan: Plan) -> list[str]:
    """What all runs in this folder did, of several processes, too."""
    return summary(read_done(plan))


def summary(done: dict[Case, str]) -> list[str]:
    """How many passes of how many points, and what could not be reached."""
    wanted = Counter(point for point, _ in cases())
    reached = Counter(point for (point, _), result in done.items() if result == REACHED)
    whole = sum(reached[point] == wanted[point] for point in wanted)
    lost = sorted(case for case, result in done.items() if result == LOST)
    lines = [
        f"{len(wanted)} points with {wanted.total()} passes; reached {reached.total()}, lost {len(lost)},"
        f" of {whole} points all, of {len(wanted) - len(reached)} none yet",
        "passed once in the life of a process, so with one pass each: "
        + " ".join(point for point in wanted if wanted[point] == 1),
    ]
    missed = sorted(case for case, result in done.items() if result == UNREACHED)
    for what, those in (("lost", lost), ("not reached", missed)):
        if those:
            lines.append(f"{what}: " + " ".join(f"{point}:{number}" for point, number in those))
    return lines
