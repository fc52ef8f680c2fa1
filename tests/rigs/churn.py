"""Rig `churn`: a bookie is written to and ledgers are deleted, many times what lives; its space stays bounded.

A few ledgers live at any time, and beside every fifth one a small one that lives to the end, so that no entry log dies
by itself. The bound at 8 MiB/s: twice what lives, and 80 MiB; once nothing is written any more, and 24 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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
"""Of a ledger: about a MiB."""
TIMES = 50
SURVIVOR_ENTRIES = 3
EVERY = 5
READ_SHARE = 0.2
BYTES_PER_S = 8 * MIB
GROWTH = 2
SLACK_BYTES, SETTLED_SLACK_BYTES = 80 * MIB, 24 * MIB
"""Beside what lives: while it goes on, what comes in between two compactions; at the end, the logs under way."""
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


class Space:
    """What is used, held against what lives."""

    def __init__(self, ledgers: Path, load: Load) -> None:
        self.ledgers = ledgers
        self._load = load
        self.peak_bytes = self.live_peak_bytes = 0

    def look(self) -> list[str]:
        """Note what is used now; return what is wrong with it."""
        live, used = bytes_of(self._load), used_bytes(self.ledgers)
        self.peak_bytes = max(self.peak_bytes, used)
        self.live_peak_bytes = max(self.live_peak_bytes, live)
        return self._over(used, GROWTH * live + SLACK_BYTES)

    async def settle(self) -> list[str]:
        """Wait until nothing more is won back; return what is wrong then."""
        allowed = GROWTH * bytes_of(self._load) + SETTLED_SLACK_BYTES
        with contextlib.suppress(AssertionError):
            await wait_until_async(lambda: used_bytes(self.ledgers) <= allowed, "space", SETTLES_S)
        return self._over(used_bytes(self.ledgers), allowed)

    def _over(self, used: int, allowed: int) -> list[str]:
        if used <= allowed:
            return []
        return [f"{used} bytes used where {bytes_of(self._load)} live, allowed {allowed}"]


async def churn(plan: Plan, report: Report, folder: Path) -> None:
    """Write until so many times the living bytes went through, or the time is over; then see what is left."""
    rng = random.Random(plan.seed)
    async with LocalCluster(1, data=folder, settings=SETTINGS) as cluster:
        load = Load(cluster.metadata_uri)
        space = Space(cluster.bookies[0].directory / "ledgers", load)
        living: list[int] = []
        began_s = time.monotonic()
        async with load.client() as client:
            for made in itertools.count(1):
                living.append(await load.write_ledger(client, 64, ENTRIES))
                if made % EVERY == 0:
                    await load.write_ledger(client, 1, SURVIVOR_ENTRIES)
                if len(living) > LIVING:
                    gone = living.pop(rng.randrange(len(living)))
                    if rng.random() < READ_SHARE:
                        report.lose(
                            await load.compare([gone]), f"ledger {gone} before its deletion"
                        )
                    await load.delete([gone])
                report.lose(space.look(), f"space after {load.acked_bytes} bytes")
                times = load.acked_bytes // max(space.live_peak_bytes, 1)
                if times >= TIMES or (made > 2 * LIVING and not plan.goes_on(0)):
                    break
                due_s = began_s + load.acked_bytes / BYTES_PER_S
                await wait_until_async(lambda due_s=due_s: time.monotonic() >= due_s, "its time")  # type: ignore[misc]
        report.lose(await space.settle(), "space at the end")
        report.lose(await load.compare(load.ledgers()), "what lives at the end")
        report.cases += 1
        report.counts.update(
            written_mib=load.acked_bytes // MIB, live_mib=space.live_peak_bytes // MIB, times=times,
            peak_used_mib=space.peak_bytes // MIB, used_mib=used_bytes(space.ledgers) // MIB,
        )  # fmt: skip


def run(plan: Plan) -> Report:
    """One churn: fifty times the living bytes, or as far as the time goes."""
    report = Report("churn")
    began_s = time.monotonic()
    with work_folder(plan) as folder:
        asyncio.run(churn(plan, report, folder / "cluster"))
    report.seconds = time.monotonic() - began_s
    return report
