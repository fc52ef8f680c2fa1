"""`./dev bench healing`: what the passes of AutoRecovery cost. COUNT=20000 ledgers, on three bookies.

A check of all ledgers, the scan for a lost bookie (which marks each of its ledgers), and a worker's reading of the
marks; in sqlite and in a real ZooKeeper. All as fast as they go: the auditor checks 500 ledgers a second. Every pass
reads ledgers in pages, so it grows linearly; what a million and a hundred million would take is that, not a
measurement.
"""

from __future__ import annotations

import asyncio
import math
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import fastbk
from fastbk.autorecovery.auditor import LEDGERS_PER_S, MarkingScan, Verification
from fastbk.autorecovery.state import ClusterState, clock_ms
from fastbk.autorecovery.worker import LEDGERS_MAX, MarkedLedgers
from fastbk.client import Client
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.meta.zookeeper.paths import Layout
from fastbk.replication.repair_options import CopyRate
from fastbk.testing import LocalCluster
from tools.bench_gc import counted
from tools.part import setting

SCALES = {"a million": 1_000_000, "a hundred million": 100_000_000}
WRITERS = 16
LOST = "bookie-1"


async def fill(client: Client, count: int) -> None:
    """Write closed ledgers of one entry."""
    left = iter(range(count))

    async def write() -> None:
        for number in left:
            async with await client.create_ledger(3, 3, 2) as writer:
                await writer.append(b"entry")
            if number % 5000 == 4999:
                print(f"wrote {number + 1:,} ledgers", flush=True)

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def timed(
    name: str, count: int, act: Callable[[], Awaitable[int]], limit_per_s: float = math.inf
) -> None:
    """Run a pass and print what it took, and what it would for more; `act` returns its requests to bookies."""
    memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with counted() as counts:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        requests = await act()
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    asked = sum(counts[one] for one in ("get_all", "children", "sync"))
    more_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib
    print(
        f"  {name:22} {took_s:.2f} s, CPU {cpu_s:.2f} s, {requests:,} requests to bookies, {asked:,} reads of"
        f" ZooKeeper, {more_kib / 1024:.0f} MiB more memory"
    )
    for scale, ledgers in SCALES.items():
        times = ledgers / count
        hours = max(took_s * times, ledgers / limit_per_s) / 3600
        print(
            f"    {scale:20} {hours:,.2f} h ({took_s * times / 3600:,.2f} h at full speed), CPU"
            f" {cpu_s * times / 3600:,.2f} h, {requests * times:,.0f} requests to bookies, {asked * times:,.0f} reads",
            flush=True,
        )


async def measure(client: Client, count: int) -> None:
    """Fill a cluster, and make each pass once."""
    await fill(client, count)
    state = ClusterState(client.records)
    verification = Verification(client, state, CopyRate(), ledgers_per_s=1e9)
    scan, marks = MarkingScan(client, state), MarkedLedgers(client)
    lost = {LOST: clock_ms()}

    async def check() -> int:
        while not verification.counts.cycles:
            await verification.run(frozenset, lambda: True)
        assert verification.counts.ledgers >= count
        return verification.counts.requests

    async def mark() -> int:
        while not scan.counts.scan_ms.count():
            await scan.run(lambda: lost, lambda: True)
        return 0

    async def read() -> int:
        await marks.read({"bookie-2", "bookie-3"})
        assert len(marks.live_copies) >= min(count, LEDGERS_MAX) - 500
        return 0

    await timed("check of all ledgers", count, check, LEDGERS_PER_S)
    await timed("scan for a bookie", count, mark)
    await timed("marks, read by a worker", min(count, LEDGERS_MAX), read)
    print(f"    a worker reads {LEDGERS_MAX:,} of them at most")


async def main_of(count: int) -> None:
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        print(f"sqlite, {count:,} ledgers")
        await measure(client, count)
    with tempfile.TemporaryDirectory(prefix="fastbk-bench-healing-") as folder:
        server = ZooKeeperServer(Path(folder), is_durable=False)
        server.start()
        try:
            location = ZooKeeperLocation((server.address,), "/bench/ledgers", Layout.HIERARCHICAL)
            zookeeper_admin.init(location)
            async with (
                LocalCluster(3, metadata_uri=location.uri),
                fastbk.connect(location.uri) as client,
            ):
                print(f"ZooKeeper, {count:,} ledgers")
                await measure(client, count)
        finally:
            server.stop()


def main() -> None:
    asyncio.run(main_of(setting("COUNT", 20_000)))
