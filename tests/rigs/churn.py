"""Rig `churn`: a bookie is written to and ledgers are deleted, many times what lives; its space stays bounded.

A few ledgers live at any time, and beside every fifth one a small one that lives to the end, so that no entry log dies
by itself. The bound: what lives, twice (an entry log is compacted when half of it is dead), and the logs under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

from fastbk.testing import LocalCluster
from fastbk.units import MIB
from tests.fixtures.wait import wait_until_async
from tests.rigs.kill_points import SETTINGS
from tests.rigs.load import Load
from tests.rigs.recording import work_folder
from tests.rigs.report import Plan, Report

LIVING = 6
ENTRIES = 250
TIMES = 50
SURVIVOR_ENTRIES = 3
EVERY = 5
SLACK_BYTES = 24 * MIB
SETTLES_S = 30.0


def used_bytes(folder: Path) -> int:
    """What a ledger directory's files take."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def bytes_of(load: Load) -> int:
    """What lives, as clients see it."""
    return sum(map(len, load.acked.values()))


async def churn(plan: Plan, report: Report, folder: Path, times: int) -> None:
    """Write until so many times the living bytes went through."""
    rng = random.Random(plan.seed)
    async with LocalCluster(1, data=folder, settings=SETTINGS) as cluster:
        load = Load(cluster.metadata_uri)
        ledgers = cluster.bookies[0].directory / "ledgers"
        living: list[int] = []
        made = peak_bytes = live_peak_bytes = 0
        async with load.client() as client:
            while report.cases == 0 or plan.goes_on(report.cases):
                made += 1
                living.append(await load.write_ledger(client, 64, ENTRIES))
                if made % EVERY == 0:
                    await load.write_ledger(client, 1, SURVIVOR_ENTRIES)
                if len(living) > LIVING:
                    gone = living.pop(rng.randrange(len(living)))
                    if rng.random() < 0.2:
                        report.lose(await load.compare([gone]), f"ledger {gone} before its deletion")
                    await load.delete([gone])
                live_peak_bytes = max(live_peak_bytes, bytes_of(load))
                peak_bytes = max(peak_bytes, used_bytes(ledgers))
                if load.acked_bytes >= times * live_peak_bytes and len(living) >= LIVING:
                    report.cases += 1
                    break
        bound_bytes = 2 * bytes_of(load) + SLACK_BYTES
        with contextlib.suppress(AssertionError):
            await wait_until_async(lambda: used_bytes(ledgers) <= bound_bytes, "space", SETTLES_S)
        report.lose(await load.compare(load.ledgers()), "what lives at the end")
        used = used_bytes(ledgers)
        if used > bound_bytes:
            report.lose([f"{used} bytes used for {bytes_of(load)} that live, allowed {bound_bytes}"], "space")
        report.counts.update(
            written_mib=load.acked_bytes // MIB, live_mib=live_peak_bytes // MIB,
            peak_used_mib=peak_bytes // MIB, used_mib=used // MIB,
        )  # fmt: skip


def run(plan: Plan) -> Report:
    """One churn; `plan.cases` of them, each fifty times the living bytes (or as far as the time goes)."""
    report = Report("churn")
    began_s = time.monotonic()
    with work_folder(plan) as folder:
        asyncio.run(churn(plan, report, folder / "cluster", TIMES))
    report.seconds = time.monotonic() - began_s
    return report
