"""Rig `full`: the disk of a bookie is filled to 100 % under load and emptied again, many times.

The bookie takes no adds while it is full, answers reads, and goes on by itself once there is room: nothing acknowledged
is lost, before or after a kill. What is deleted between the rounds gives its space back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from pathlib import Path

from fastbk.testing import LocalCluster
from fastbk.units import MIB
from tests.fixtures.wait import wait_until_async
from tests.rigs import mounts
from tests.rigs.churn import used_bytes
from tests.rigs.kill_points import SETTINGS
from tests.rigs.load import Load
from tests.rigs.recording import work_folder
from tests.rigs.report import Plan, Report

SIZE_BYTES = 320 * MIB
KINDS = ("ext4", "xfs")
ROUNDS_A_CLUSTER = 10
WRITERS = 2
LOAD_BYTES = 2 * MIB
FULL_S = 0.3
RECOVERS_S = 40.0
PIECES_BYTES = (16 * MIB, MIB, 65_536, 4096)
FULL_SETTINGS = {
    **SETTINGS,
    "disk": {
        "check_interval": "200ms", "near_check_interval": "50ms",
        "warn_ratio": 1.0, "full_ratio": 1.0, "low_water_ratio": 1.0,
    },
}  # fmt: skip
LEFT_BYTES_MAX = 16 * MIB
"""In the ledger directory, when all ledgers are deleted: the logs under way."""


def fill(filler: Path) -> None:
    """Take all room there is."""
    file = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size = 0
        for piece in PIECES_BYTES:
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file, size, piece)
                    size += piece
    finally:
        os.close(file)


async def one_round(
    cluster: LocalCluster, load: Load, place: Path, rng: random.Random, report: Report
) -> None:
    """Load, fill, wait, empty, and wait until it goes on."""
    writers = [asyncio.ensure_future(load.write_on()) for _ in range(WRITERS)]
    try:
        await until_acked(load, LOAD_BYTES, "load before the disk is full")
        await asyncio.to_thread(fill, place / "filler")
        end_s = time.monotonic() + FULL_S + rng.random() * FULL_S
        while time.monotonic() < end_s:  # whatever is accepted now has to be kept, too
            await asyncio.sleep(0.02)
        if rng.random() < 0.5:
            sample = rng.sample(load.ledgers(), min(2, len(load.ledgers())))
            report.lose(await load.compare(sample), "reads while the disk is full")
            report.counts["read_while_full"] += 1
        (place / "filler").unlink()
        if rng.random() < 0.3:
            await cluster.kill_async(0)
            await cluster.start_bookie_async(0)
            report.counts["kills"] += 1
        await until_acked(load, LOAD_BYTES, "adds once there is room")
    finally:
        load.stop()
        await asyncio.gather(*writers)
    ledgers = load.ledgers()
    report.lose(await load.compare(ledgers), f"round {report.cases}")
    report.counts["entries"] += len(load.acked)
    await load.delete(ledgers)


async def until_acked(load: Load, more_bytes: int, what: str) -> None:
    """Wait until so many more bytes are acknowledged."""
    wanted = load.acked_bytes + more_bytes
    await wait_until_async(lambda: load.acked_bytes >= wanted, what, RECOVERS_S)


async def run_cluster(plan: Plan, report: Report, folder: Path, kind: str, seed: int) -> None:
    """One bookie, some rounds; at the end its space has come back."""
    place = folder / "cluster" / "bookie-1"
    place.mkdir(parents=True)
    mounts.make_file_system(folder / "image", kind, SIZE_BYTES)
    rng = random.Random(seed)
    with mounts.mounted(folder / "image", place, kind):
        async with LocalCluster(1, data=folder / "cluster", settings=FULL_SETTINGS) as cluster:
            load = Load(cluster.metadata_uri)
            for _ in range(ROUNDS_A_CLUSTER):
                if report.cases and not plan.goes_on(report.cases):
                    break
                await one_round(cluster, load, place, rng, report)
                report.cases += 1
                report.counts[kind] += 1
            report.counts["refused"] += load.refused
            with contextlib.suppress(AssertionError):
                await wait_until_async(
                    lambda: used_bytes(place / "ledgers") <= LEFT_BYTES_MAX, "space", RECOVERS_S
                )
            used = used_bytes(place / "ledgers")
            if used > LEFT_BYTES_MAX:
                report.lose(
                    [f"{used} bytes left after all was deleted, allowed {LEFT_BYTES_MAX}"],
                    f"{kind} space",
                )


def run(plan: Plan) -> Report:
    """Fill until there are enough rounds; at least once."""
    report = Report("full", skipped=mounts.why_not())
    if report.skipped:
        return report
    began_s = time.monotonic()
    seed = plan.seed
    while plan.goes_on(report.cases) or not report.cases:
        with work_folder(plan) as folder:
            asyncio.run(run_cluster(plan, report, folder, KINDS[seed % len(KINDS)], seed))
        seed += 1
    report.seconds = time.monotonic() - began_s
    return report
