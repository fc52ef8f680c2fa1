"""`./dev bench replication`: what replication costs beside the disk's own limit, measured in one run on a real cluster.

1. `await append` at E=3 Qw=3 Qa=2, window 1, beside the commit of three writers at once on the same disk.
2. Recovery of open ledgers with one dead bookie, each by `open_ledger(recovery=True)`.

Environment: SECONDS_EACH=3, ROUNDS=3, LEDGERS=200, OUT=build/bench-replication.json.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import uvloop

import fastbk
from fastbk.client import Client
from fastbk.testing import LocalCluster
from tests.style.tree import ROOT
from tests.tools.part import latencies_us, scratch, setting

ENTRY = b"x" * 1024
_PROBE = """
import json, sys
from pathlib import Path
from fastbk.native.load import disk_probe
with disk_probe(Path(sys.argv[1])) as probe:
    probe.run(float(sys.argv[2]))
    print(json.dumps(probe.latencies.summary_us()))
"""


def three_writers_commit_us(folder: Path, seconds: float) -> float:
    """Return the mean p50 of three processes that commit 4 KiB each, all at once."""
    command = [sys.executable, "-c", _PROBE, str(folder), str(seconds)]
    probes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(3)
    ]
    results = [json.loads(probe.communicate(timeout=seconds + 60)[0]) for probe in probes]
    return float(statistics.mean(one["p50"] for one in results))


async def append_for(client: Client, seconds: float) -> list[float]:
    """Append one entry after the other; return how long each took in microseconds."""
    took: list[float] = []
    async with await client.create_ledger(3, 3, 2) as writer:
        for _ in range(50):
            await writer.append(ENTRY)
        end_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < end_s:
            await writer.append(ENTRY)
            took.append((time.perf_counter() - began_s) * 1e6)
    return took


async def recovery(cluster: LocalCluster, ledgers: int) -> dict[str, dict[str, float]]:
    """Leave ledgers open, kill one of their three bookies for good, then time one recovery after the other.

    Two kinds: of a writer that awaited each append (one entry behind the LAC, which is the last thing that bookies
    know), and of one that had 20 in flight at once (all of them are read and written again).
    """
    kinds = {"one entry to rewrite": [1] * 20, "twenty entries to rewrite": [20]}
    left: dict[str, list[int]] = {kind: [] for kind in kinds}
    async with fastbk.connect(cluster.metadata_uri, explicit_lac_interval=0.0) as client:
        for kind, chunks in kinds.items():
            for _ in range(ledgers // 2):
                writer = await client.create_ledger(3, 3, 2)
                for count in chunks:
                    await writer.append_many([ENTRY] * count)
                left[kind].append(writer.ledger_id)
    await cluster.kill_async(1)
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    async with fastbk.connect(cluster.metadata_uri) as client:
        # The first one finds out which bookie is dead.
        await client.open_ledger(left["one entry to rewrite"].pop())
        for kind, ledger_ids in left.items():
            for ledger_id in ledger_ids:
                began_s = time.perf_counter()
                reader = await client.open_ledger(ledger_id)
                took[kind].append((time.perf_counter() - began_s) * 1e6)
                assert reader.metadata.last_entry_id == 19
    return {kind: latencies_us(values) for kind, values in took.items()}


async def measure(folder: Path, seconds: float, rounds: int, ledgers: int) -> dict[str, object]:
    figures: dict[str, object] = {}
    async with LocalCluster(3, data=folder / "cluster") as cluster:
        pairs = []
        for _ in range(rounds):
            disk_us = await asyncio.to_thread(three_writers_commit_us, folder, seconds)
            async with fastbk.connect(cluster.metadata_uri) as client:
                append = latencies_us(await append_for(client, seconds))
            ratio = round(append["p50_us"] / disk_us, 2)
            pairs.append({"disk_p50_us": round(disk_us, 1), "append_us": append, "ratio": ratio})
            print(f"append E=3 Qw=3 Qa=2, window 1: {pairs[-1]}", flush=True)
        figures["append"] = pairs
        figures["recovery_us"] = await recovery(cluster, ledgers)
        print(f"recovery with one dead bookie: {figures['recovery_us']}", flush=True)
    return figures


def main() -> dict[str, object]:
    seconds, rounds = setting("SECONDS_EACH", 3.0), setting("ROUNDS", 3)
    with scratch() as folder:
        return uvloop.run(measure(folder, seconds, rounds, setting("LEDGERS", 200)))
