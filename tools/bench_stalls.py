"""`./dev bench stalls`: `await append` at window 1 on one bookie for SECONDS=60; what stalled, and why.

Each append over 10 ms is a stall. The bookie's flight recorder (`/slow`) explains it: disk, ring,
wake-up, processor, or stopped. Where the recorder has nothing for that moment, the time was lost
outside of what it sees: in this client, which may have waited for a processor itself, or between
client and worker. SIZE=100 bytes an entry. DATA=folder, on the disk in question. Prints a summary,
and writes all stalls into OUT=build/bench-stalls.json.

It also lists slow periods: half a second and more with fewer than 50 appends a second.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import shutil
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fastbk
from fastbk.devcluster.processes import Bookie
from fastbk.testing import LocalCluster
from tools.part import BUILD, setting

SLOW_NS = 10_000_000
SAMPLE_NS = 20_000_000
PERIOD_NS = 500_000_000
PERIOD_RATE = 50
STALLS_MAX = 10_000
POLL_S = 0.5


@dataclass
class Stall:
    """One slow append, in nanoseconds of the monotonic clock; `own_delay_ns`: this client waited for a processor."""

    began_ns: int
    ended_ns: int
    own_delay_ns: int
    own_processor_ns: int
    worker_delay_ns: int
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def took_ns(self) -> int:
        return self.ended_ns - self.began_ns

    @property
    def verdict(self) -> str:
        """What the bookie's longest record in that time says, else what is known of the processes outside of it."""
        if self.records:
            return str(max(self.records, key=lambda one: float(one["took_ms"]))["verdict"])
        if 2 * self.own_delay_ns >= self.took_ns:
            return "client waited for a processor"
        if 2 * self.worker_delay_ns >= self.took_ns:
            return "worker waited for a processor before it received"
        if 2 * self.own_processor_ns >= self.took_ns:
            return "client worked"
        return "outside of the recorder"


def delay_ns(pid: int | str) -> int:
    """Return how long a process's first thread has waited for processors."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0


class Hunt:
    def __init__(self, bookie: Bookie) -> None:
        self.bookie = bookie
        self.stalls: list[Stall] = []
        self.records: dict[tuple[str, int], dict[str, Any]] = {}
        self.appends = self.slow_appends = 0
        self.took_us: collections.Counter[int] = collections.Counter()
        self.periods: list[tuple[int, int, int]] = []
        self._sample = (0, 0, 0, 0)

    def sample(self, now_ns: int) -> tuple[int, int, int, int]:
        """Return now, and what client and worker had used of processors."""
        worker = delay_ns(self.bookie.pids["worker.0"])
        return now_ns, delay_ns("self"), time.thread_time_ns(), worker

    async def append(self, writer: fastbk.client.LedgerWriter, data: bytes, seconds: float) -> None:
        end_ns = time.monotonic_ns() + int(seconds * 1e9)
        period_ns, in_period = time.monotonic_ns(), 0
        while (began_ns := time.monotonic_ns()) < end_ns:
            if began_ns - self._sample[0] >= SAMPLE_NS:
                self._sample = self.sample(began_ns)
            await writer.append(data)
            ended_ns = time.monotonic_ns()
            self.appends += 1
            in_period += 1
            self.took_us[(ended_ns - began_ns) // 10_000 * 10] += 1
            is_slow = ended_ns - began_ns >= SLOW_NS
            self.slow_appends += is_slow
            if is_slow and len(self.stalls) < STALLS_MAX:
                now = self.sample(ended_ns)
                used = [after - before for after, before in zip(now, self._sample, strict=True)][1:]
                self.stalls.append(Stall(began_ns, ended_ns, *used))
                self._sample = now
            if ended_ns - period_ns >= PERIOD_NS:
                if in_period * 1e9 / (ended_ns - period_ns) < PERIOD_RATE:
                    self.periods.append((period_ns, ended_ns, in_period))
                period_ns, in_period = ended_ns, 0

    def fetch(self) -> None:
        """Take in what the bookie has recorded; it keeps the newest only."""
        url = f"http://127.0.0.1:{self.bookie.http_port}/slow"
        with urllib.request.urlopen(url, timeout=10) as answer:
            for one in json.loads(answer.read())["records"]:
                self.records[one["process"], one["ended_ns"]] = one

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self.fetch)

    def join(self) -> None:
        """Give each stall the records of its time. What an index took in late delayed no answer."""
        for record in self.records.values():
            if record["event"] == "index.slow_intake":
                continue
            ended_ns = record["ended_ns"]
            began_ns = ended_ns - int(record["took_ms"] * 1e6)
            for stall in self.stalls:
                if began_ns < stall.ended_ns and ended_ns > stall.began_ns:
                    stall.records.append(record)

    def percentile_us(self, share: float) -> int:
        """Return what that share of all appends did not exceed."""
        seen = 0
        for took_us, times in sorted(self.took_us.items()):
            seen += times
            if seen >= share * self.appends:
                return took_us + 10
        return 0

    def report(self, seconds: float) -> dict[str, Any]:
        by_verdict: dict[str, list[float]] = {}
        for stall in self.stalls:
            by_verdict.setdefault(stall.verdict, []).append(stall.took_ns / 1e6)
        slow = [
            {
                "seconds": round((ended - began) / 1e9, 2),
                "appends": count,
                "verdicts": dict(
                    collections.Counter(
                        one.verdict
                        for one in self.stalls
                        if one.began_ns < ended and one.ended_ns > began
                    )
                ),
            }
            for began, ended, count in self.periods
        ]
        return {
            "seconds": seconds,
            "appends": self.appends,
            "p50_us": self.percentile_us(0.5),
            "p99_us": self.percentile_us(0.99),
            "p999_us": self.percentile_us(0.999),
            "load": os.getloadavg(),
            "slow_appends": self.slow_appends,
            "slow_appends_explained": len(self.stalls),
            "stalls": {
                cause: {
                    "count": len(took),
                    "longest_ms": round(max(took), 1),
                    "sum_ms": round(sum(took)),
                }
                for cause, took in sorted(by_verdict.items(), key=lambda one: -len(one[1]))
            },
            "slow_periods": slow,
        }


async def run(seconds: float, data: Path, size_bytes: int) -> tuple[Hunt, dict[str, Any]]:
    async with (
        LocalCluster(1, data=data) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        hunt = Hunt(cluster.bookies[0])
        writer = await client.create_ledger(1, 1, 1)
        await writer.append(b"warm")
        following = asyncio.create_task(hunt.follow())
        await hunt.append(writer, b"x" * size_bytes, seconds)
        await asyncio.sleep(2 * POLL_S)  # the last records
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        hunt.fetch()
        await writer.close()
    hunt.join()
    return hunt, hunt.report(seconds)


def main() -> dict[str, object]:
    data = Path(setting("DATA", str(BUILD / "stalls")))
    shutil.rmtree(data, ignore_errors=True)
    try:
        hunt, report = asyncio.run(run(setting("SECONDS", 60.0), data, setting("SIZE", 100)))
    finally:
        shutil.rmtree(data, ignore_errors=True)
    print(json.dumps(report, indent=2))
    stalls = [asdict(one) | {"verdict": one.verdict} for one in hunt.stalls]
    return {"report": report, "stalls": stalls}
