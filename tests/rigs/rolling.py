"""Rig `rolling`: bookies are restarted one after the other under load, and no copy may be missing at the end.

Several writers write at a steady rate with E = 3, Qw = 3 and Qa = 2. Some write one ledger all the time, others close
theirs after a while and go on in new ones. Each bookie in turn is stopped or killed, stays away for a moment, and is
started again. Some clients replace a bookie sooner than it is back, so that ensembles change where there are spares.
Then the writers close, and `cluster under-replicated --verify` must be empty without anybody's help. INV-C1, INV-E3.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fastbk
from fastbk.admin.cluster import under_replicated
from fastbk.client import Client
from fastbk.errors import NotEnoughBookies
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.rigs.report import Plan, Report

WRITERS = 3
ENTRY_BYTES = 1000
BATCH = 20
PAUSE_S = 0.02
"""Between batches of one writer: 1 MB/s each, so that what a restart leaves out fits into the writer's memory."""
SOON_S = 0.5
"""How long some clients wait before they replace a bookie."""


@dataclass
class Round:
    """One cluster's life.

    Attributes:
        acknowledged: ledger id -> how many entries were acknowledged.
        counts: what happened.
    """

    rng: random.Random
    is_over: bool = False
    acknowledged: dict[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def data_of(ledger_id: int, entry_id: int) -> bytes:
    """Return the bytes of an entry."""
    return (b"%d/%d " % (ledger_id, entry_id)).ljust(ENTRY_BYTES, b".")


async def write(client: Client, life: Round, ledger_s: float) -> None:
    """Write ledgers until the round is over, each for about `ledger_s` seconds."""
    while not life.is_over:
        try:
            writer = await client.create_ledger(3, 3, 2)
        except NotEnoughBookies:
            await asyncio.sleep(0.1)
            continue
        count, end_s = 0, time.monotonic() + ledger_s
        while not life.is_over and time.monotonic() < end_s:
            await writer.append_many(
                [data_of(writer.ledger_id, count + one) for one in range(BATCH)]
            )
            count += BATCH
            life.acknowledged[writer.ledger_id] = count
            await asyncio.sleep(PAUSE_S)
        life.counts["ensemble changes"] += writer.stats().ensemble_changes
        await writer.close()
        life.counts["ledgers"] += 1
        life.counts["entries"] += count


async def restart(cluster: LocalCluster, bookie: int, life: Round) -> None:
    """Stop or kill a bookie, and start it again after a moment."""
    rng = life.rng
    if rng.random() < 0.5:
        await cluster.stop_bookie_async(bookie)
    else:
        await cluster.kill_async(bookie)
    await asyncio.sleep(rng.choice((0.0, 0.5, 2.0)))
    await cluster.start_bookie_async(bookie)
    await cluster.wait_ready_async(bookie)
    life.counts["restarts"] += 1


async def roll(cluster: LocalCluster, life: Round, bookies: Sequence[int]) -> None:
    """Restart bookies, one after the other, under load; then close everything and wait for repairs."""
    uri = cluster.metadata_uri
    async with (
        fastbk.connect(uri) as patient,
        fastbk.connect(uri, replace_after=SOON_S) as hasty,
    ):
        lives = [(patient, 1e9), (patient, 2.0), (hasty, 1e9), (hasty, 2.0)]
        writers = [asyncio.create_task(write(client, life, long_s)) for client, long_s in lives]
        try:
            await wait_until_async(lambda: len(life.acknowledged) >= len(lives), "all writers")
            for bookie in bookies:
                await restart(cluster, bookie, life)
            life.is_over = True
            await asyncio.wait_for(asyncio.gather(*writers), 60)
            life.counts["ledgers closed with missing copies"] += await repaired(patient, hasty)
        finally:
            for one in writers:
                one.cancel()


async def repaired(*clients: Client) -> int:
    """Wait until the clients have repaired what they closed while a bookie was away; return how many ledgers."""
    count = sum(one.repairs.waiting for one in clients)
    await wait_until_async(
        lambda: not any(one.repairs.waiting for one in clients), "the clients' repairs", 60
    )
    return count


async def judge(cluster: LocalCluster, life: Round) -> list[str]:
    """Return what is missing, marked or unreadable."""
    wrong = []
    async with fastbk.connect(cluster.metadata_uri) as client:
        while len(await client.list_bookies()) < len(cluster.bookies):
            await asyncio.sleep(0.1)
        async for one in under_replicated(client, verify=True):
            wrong.append(
                f"ledger {one.ledger_id} from entry {one.first_entry_id}: {one.bookie_id}:"
                f" {one.reason} ({one.count})"
            )
        for ledger_id, count in life.acknowledged.items():
            reader = await client.open_ledger(ledger_id, recovery=False)
            found = [bytes(one.data) async for one in reader.read()]
            if found[:count] != [data_of(ledger_id, one) for one in range(count)]:
                wrong.append(f"ledger {ledger_id}: not all of its {count} entries are read")
    return wrong


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    while plan.goes_on(report.cases):
        bookies = (3, 5)[report.cases % 2]
        life = Round(rng)
        data = folder / f"case-{report.cases}"
        async with LocalCluster(bookies, data=data) as cluster:
            await roll(cluster, life, [*range(bookies)] * 2)
            wrong = await judge(cluster, life)
        report.lose(wrong, f"seed {plan.seed}, {bookies} bookies, kept in {data}")
        report.counts += life.counts
        report.cases += 1
        if not wrong:
            shutil.rmtree(data)


def run(plan: Plan) -> Report:
    """Restart bookies of clusters of 3 and of 5 in turns; a cluster's folder is kept when copies are missing."""
    report, began_s = Report("rolling"), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fastbk-rolling-", dir=plan.folder))
    asyncio.run(_run(plan, report, folder))
    if report.is_good:
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - began_s
    return report
