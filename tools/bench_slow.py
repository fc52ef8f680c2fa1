"""`./dev bench slow`: an hour (SECONDS=3600) of appends with one of three bookies far too slow; memory must not grow.

The client is a process of its own; this one holds the cluster and the proxies, and samples the client's memory. The
slow bookie is one frame in 50 ms away, so it falls behind without end: what it misses is held up to `held_bytes_max`,
then dropped and counted. RATE=2000 appends a second at most, each awaited by one of 16 tasks.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

import fastbk
from fastbk.testing import LocalCluster
from tests.live.proxied_store import proxied
from tests.live.proxy import Direction, FrameProxy
from tools.part import percentile, rss_bytes, scratch, setting

ENTRY = b"x" * 1024
TASKS = 16
SLOW_S = 0.05
SAMPLE_S = 10.0


async def client(uri: str, ports: dict[str, int], seconds: float, rate: float) -> None:
    """Append until the time is over; print p50 and what was dropped, a line every ten seconds."""
    options = {"held_bytes_max": 16 * 1024 * 1024}
    async with fastbk.connect(proxied(uri, ports), **options) as connected:
        writer = await connected.create_ledger(3, 3, 2)
        end_s = time.monotonic() + seconds
        recent: list[float] = []
        count = 0

        async def append() -> None:
            nonlocal count
            pause_s = TASKS / rate
            while (began_s := time.monotonic()) < end_s:
                await writer.append(ENTRY)
                took_s = time.monotonic() - began_s
                recent.append(took_s)
                count += 1
                await asyncio.sleep(max(0.0, pause_s - took_s))

        async def report() -> None:
            while time.monotonic() < end_s:
                await asyncio.sleep(min(SAMPLE_S, max(0.0, end_s - time.monotonic())))
                p50_us = percentile(recent or [0.0], 0.5) * 1e6
                recent.clear()
                dropped = sum(writer.stats().under_replicated.values())
                print(json.dumps([count, round(p50_us, 1), dropped]), flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(append())
            group.create_task(report())


async def measure(folder: Path, seconds: float, rate: float) -> int:
    """Run it; return 0 if the memory of the last quarter is not above that of the second by more than 5 %."""
    async with LocalCluster(3, data=folder / "cluster") as cluster:
        proxies = []
        for bookie in cluster.bookies:
            proxies.append(FrameProxy(lambda one=bookie: one.port, random.Random(len(proxies))))  # type: ignore[misc]
            await proxies[-1].start()
        proxies[0].set(Direction(delay_s=SLOW_S), Direction())
        ports = {one.name: proxies[at].port for at, one in enumerate(cluster.bookies)}
        words = [cluster.metadata_uri, json.dumps(ports), str(seconds), str(rate)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tools.bench_slow", *words, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        samples = []
        while line := await process.stdout.readline():
            count, p50_us, dropped = json.loads(line)
            if process.returncode is None:
                samples.append(rss_bytes(process.pid) // 1024)
            print(
                f"{count:,} appends, p50 {p50_us} us, {dropped:,} not on the slow one,"
                f" client {samples[-1]:,} KiB",
                flush=True,
            )
        code = await process.wait()
        for proxy in proxies:
            await proxy.stop()
    quarter = max(1, len(samples) // 4)
    early, late = max(samples[quarter : 2 * quarter] or samples), max(samples[-quarter:])
    print(
        f"seconds={seconds:.0f} early_kib={early} late_kib={late} ratio={late / early:.3f} exit={code}"
    )
    return 0 if code == 0 and late <= 1.05 * early else 1


def main() -> int:
    with scratch() as folder:
        return asyncio.run(measure(folder, setting("SECONDS", 60.0), setting("RATE", 2000.0)))


if __name__ == "__main__":  # the client's process
    uri, ports, *numbers = sys.argv[1:]
    asyncio.run(client(uri, json.loads(ports), *map(float, numbers)))
