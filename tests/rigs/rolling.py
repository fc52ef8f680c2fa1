"""Rig `rolling`: bookies are restarted in turns under load, and no copy is missing at the end.

Several writers write at a steady rate with Qw = 3 and Qa = 2: ledgers with both clients, on every
bookie or striped, and a stream. Some write one ledger all the time. Others go on in new ones after
a while; of these every second one is left by a client that ends, and recovered by another. Each
bookie in turn is stopped or killed, stays away for a moment, and is started again. Some clients
replace a bookie sooner than it is back, so that ensembles change where there are spares. Then the
writers end, and `cluster under-replicated --verify` must be empty without anybody's help. INV-C1,
INV-E3.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import fastbk
import fastbk.sync
from fastbk.admin.cluster import under_replicated
from fastbk.client import Client
from fastbk.client.client import CopyRepairs
from fastbk.devcluster.cluster import ZooKeeperServer, find_jars
from fastbk.errors import ConfigError
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.stream.records import Record
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.rigs.report import Plan, Report
from tests.rigs.rolling_writers import (
    LOADS,
    NAMESPACE,
    Load,
    Round,
    data_of,
    write,
    write_blocking,
    write_stream,
)

REPAIRS_S = 60.0
ENDS_S = 60.0
BACK_S = 60.0
"""How long a bookie that was started may take until clients see it."""
SESSION_TIMEOUT_S = 4.0
"""Of clients of ZooKeeper: a bookie that was killed is registered for so long at most."""


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


async def roll(
    cluster: LocalCluster,
    life: Round,
    bookies: Sequence[int],
    loads: Sequence[Load] = LOADS,
    *,
    waits_for_repairs: bool = True,
) -> None:
    """Restart bookies in turns under load; then end everything, after the clients' repairs or without them."""
    async with under_load(life, loads, waits_for_repairs=waits_for_repairs):
        for bookie in bookies:
            await restart(cluster, bookie, life)


@asynccontextmanager
async def under_load(
    life: Round, loads: Sequence[Load] = LOADS, *, waits_for_repairs: bool = True
) -> AsyncIterator[None]:
    """Have all loads written while the block runs; then end them, after the clients' repairs or without them."""
    async with AsyncExitStack() as stack:
        clients: list[Client] = []
        blocking: list[fastbk.sync.Client] = []
        writers: list[asyncio.Task[Counter[str] | None]] = []
        for load in loads:
            if load.kind == "blocking":
                keeper = fastbk.sync.connect(life.uri, replace_after=load.replace_after_s)
                stack.push_async_callback(asyncio.to_thread, keeper.close)
                blocking.append(keeper)
                work = asyncio.to_thread(write_blocking, keeper, life, load)
                writers.append(asyncio.create_task(work))
                continue
            client = fastbk.connect(life.uri, replace_after=load.replace_after_s)
            clients.append(await stack.enter_async_context(client))
            make = write_stream if load.kind == "stream" else write
            writers.append(asyncio.create_task(make(client, life, load)))
        ledgers = [load for load in loads if load.kind != "stream"]
        try:
            await wait_until_async(lambda: len(life.acknowledged) >= len(ledgers), "all writers")
            yield
        finally:
            life.is_over = True
            for counts in await asyncio.wait_for(asyncio.gather(*writers), ENDS_S):
                life.counts += counts or Counter()
        if waits_for_repairs:
            await repaired(life, clients, blocking)


async def repaired(
    life: Round, clients: Sequence[Client], blocking: Sequence[fastbk.sync.Client]
) -> None:
    """Wait until the clients have repaired what was missing of ended ledgers."""
    repairs: list[CopyRepairs] = [one.repairs for one in clients]
    repairs += [one.repairs for one in blocking]

    def is_done() -> bool:
        return not any(one.waiting or one.is_checking for one in repairs)

    life.counts["ledgers that waited for repairs at the end"] += sum(one.waiting for one in repairs)
    end_s = time.monotonic() + REPAIRS_S
    while not is_done() and time.monotonic() < end_s:
        await asyncio.sleep(0.05)


async def _missing_bookies(cluster: LocalCluster, client: Client) -> list[str]:
    """Wait until all bookies are registered; return those that still are not after BACK_S."""
    end_s = time.monotonic() + BACK_S
    while True:
        there = {info.service.bookie_id for info in await client.list_bookies()}
        missing = [bookie.name for bookie in cluster.bookies if bookie.name not in there]
        if not missing or time.monotonic() > end_s:
            return missing
        await asyncio.sleep(0.1)


async def judge(cluster: LocalCluster, life: Round, *, restarted: bool = True) -> list[str]:
    """Return what is missing, marked or unreadable. `restarted`: all bookies are there, or will be at once."""
    wrong = []
    async with fastbk.connect(life.uri) as client:
        if restarted and (missing := await _missing_bookies(cluster, client)):
            return [f"not there {BACK_S:.0f} s after the last restart: {', '.join(missing)}"]
        async for one in under_replicated(client):
            wrong.append(
                f"ledger {one.ledger_id} from entry {one.first_entry_id}: {one.bookie_id}:"
                f" {one.reason} ({one.count})"
            )
        for ledger_id, count in life.acknowledged.items():
            reader = await client.open_ledger(ledger_id, recovery=False)
            found = [bytes(one.data) async for one in reader.read()]
            if found[:count] != [data_of(ledger_id, one) for one in range(count)]:
                wrong.append(f"ledger {ledger_id}: not all of its {count} entries are read")
        if life.records:
            stream = client.namespace(NAMESPACE).stream("records")
            async with stream.reader("earliest") as records:
                for number in range(life.records):
                    record = await anext(records)
                    assert isinstance(record, Record), "nothing is lost, so there is no gap"
                    if bytes(record.payload) != data_of(-1, number):
                        wrong.append(f"record {number} of {life.records} is another one")
                        break
    return wrong


@asynccontextmanager
async def metadata_in(
    folder: Path,
    kind: str,
    make: Callable[[ZooKeeperLocation], object] = zookeeper_admin.init,
) -> AsyncIterator[str | None]:
    """Run a cluster's metadata, made by `make`; yield its URI, None for sqlite in the cluster's folder."""
    if kind == "sqlite":
        yield None
        return
    if kind != "zookeeper":
        raise ConfigError(f"there is no metadata {kind!r}: give sqlite or zookeeper")
    server = ZooKeeperServer(folder, tick_ms=100, session_timeout_max_s=SESSION_TIMEOUT_S)
    await asyncio.to_thread(server.start)
    try:
        location = ZooKeeperLocation((server.address,), "/rolling/ledgers", None)
        await asyncio.to_thread(make, location)
        yield location.uri
    finally:
        await asyncio.to_thread(server.stop)


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    loads = [load for load in LOADS if re.search(plan.only, load.name)]
    while plan.goes_on(report.cases):
        bookies = (5, 3)[report.cases % 2]
        data = folder / f"case-{report.cases}"
        async with (
            metadata_in(folder / f"metadata-{report.cases}", plan.metadata) as uri,
            LocalCluster(bookies, data=data, metadata_uri=uri) as cluster,
        ):
            life = Round(cluster.metadata_uri, bookies, rng)
            await roll(cluster, life, [*range(bookies)] * 2, loads)
            wrong = await judge(cluster, life)
        report.lose(wrong, f"seed {plan.seed}, {bookies} bookies, kept in {data}")
        report.counts += life.counts
        report.cases += 1
        if not wrong:
            shutil.rmtree(data)


def run(plan: Plan) -> Report:
    """Restart bookies of clusters of 5 and of 3; the folder is kept when copies are missing."""
    report = Report("rolling")
    if plan.metadata == "zookeeper":
        try:
            find_jars()
        except ConfigError as error:
            report.skipped = str(error)
            return report
    with report.folder(plan) as folder:
        asyncio.run(_run(plan, report, folder))
    return report
