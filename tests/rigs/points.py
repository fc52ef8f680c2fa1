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
from collections.abc import Iterator
from pathlib import Path

from fastbk.errors import Error
from fastbk.testing import LocalCluster
from tests.fixtures.pairs import pair_settings
from tests.rigs.kill_points import ONCE, SETTINGS, NotReached, points, run_point
from tests.rigs.report import Plan, Report

PATIENCE_S = 30.0
"""A pass that takes longer is said to be out of reach."""
PASSES = 10
CASES_A_CLUSTER = 10
DONE_NAME = "kill-points.jsonl"
REACHED = "reached"


def cases() -> list[tuple[str, int]]:
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
    done = read_done(plan)
    wanted = [case for case in cases() if re.search(plan.only, case[0])]
    left = [case for case in wanted[plan.job :: plan.jobs] if case not in done]
    random.Random(plan.seed).shuffle(left)
    asyncio.run(_run_all(plan, report, left, done))
    report.seconds = time.monotonic() - began_s
    report.notes = _summary(done)
    return report


async def _run_all(
    plan: Plan, report: Report, left: list[tuple[str, int]], done: dict[tuple[str, int], str]
) -> None:
    while left and plan.goes_on(report.cases):
        folder = Path(tempfile.mkdtemp(prefix="fastbk-points-", dir=plan.folder))
        is_good = True
        # Every third bookie has two journals and two indexes: any of them may be the one that dies.
        pairs = random.Random(plan.seed + len(left)).choice((1, 1, 2))
        report.counts[f"of_{pairs}"] += 1
        settings = pair_settings(folder, pairs, SETTINGS) if pairs > 1 else SETTINGS
        async with LocalCluster(1, data=folder, settings=settings) as cluster:
            for _ in range(CASES_A_CLUSTER):
                if not (left and is_good and plan.goes_on(report.cases)):
                    break
                case = left.pop()
                done[case] = await _run_case(cluster, case, plan, report, folder)
                write_done(plan, case, done[case])
                is_good = done[case] == REACHED
        if not report.losses_count:
            shutil.rmtree(folder)


async def _run_case(
    cluster: LocalCluster, case: tuple[str, int], plan: Plan, report: Report, folder: Path
) -> str:
    point, number = case
    rng = random.Random(f"{plan.seed} {point} {number}")
    errors: list[BaseException] = []
    try:
        await run_point(cluster, point, number, rng, PATIENCE_S)
    except* (NotReached, AssertionError, OSError, Error) as group:
        errors = list(leaves(group))
    if any(isinstance(error, NotReached) for error in errors):
        report.counts["unreached"] += 1
        return "unreached"
    report.cases += 1
    what = [f"{type(error).__name__}: {error}" for error in errors]
    report.lose(what, f"{point}:{number}, see {folder}")
    return "lost" if what else REACHED


def leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group, however deep."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def read_done(plan: Plan) -> dict[tuple[str, int], str]:
    """What an earlier run in this folder did, when it is to be resumed."""
    path = plan.folder / DONE_NAME
    if not plan.is_resumed or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["point"], line["number"]): line["result"] for line in lines}


def write_done(plan: Plan, case: tuple[str, int], result: str) -> None:
    """Note a case."""
    if plan.is_resumed:
        with open(plan.folder / DONE_NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps({"point": case[0], "number": case[1], "result": result}) + "\n")


def _summary(done: dict[tuple[str, int], str]) -> list[str]:
    """How many passes of how many points, and what could not be reached."""
    wanted = Counter(point for point, _ in cases())
    reached = Counter(point for (point, _), result in done.items() if result == REACHED)
    whole = sum(reached[point] == wanted[point] for point in wanted)
    lines = [
        f"{len(wanted)} points with {wanted.total()} passes; reached {reached.total()},"
        f" of {whole} points all, of {len(wanted) - len(reached)} none yet"
    ]
    missed = sorted(case for case, result in done.items() if result == "unreached")
    if missed:
        lines.append("not reached: " + " ".join(f"{point}:{number}" for point, number in missed))
    return lines
