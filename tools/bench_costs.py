"""`./dev bench costs`: what an entry costs a bookie, by process, in counts that do not depend on the disk's hour.

For each load: processor time, sleeps, reads and writes of each process (from /proc), batches, bells, and bytes to disk
(from the bookie's own counters). docs/performance.md explains them. SECONDS=2 LOADS=1,100,1000 change the loads.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path

from tests.native.compile import build_program
from tools.one_bookie import ENTRY_BYTES, OneBookie, one_bookie
from tools.part import print_table, scratch, setting

ROLES = {"worker.0": "worker", "journal": "journal", "index": "index"}
BELLS = {
    "bells worker→journal": "fastbk_worker_journal_bells_total",
    "bells journal→worker": "fastbk_journal_worker_bells_total",
    "bells journal→index": "fastbk_journal_index_bells_total",
    "batches": "fastbk_journal_batches_total",
    "receives": "fastbk_worker_receive_bytes_count",
    "sends": "fastbk_worker_sends_total",
    "polls": "fastbk_worker_polls_total",
    "worker wakes": "fastbk_worker_wakes_total",
}
BYTES = {
    "journal bytes": "fastbk_journal_bytes_total",
    "of them padding": "fastbk_journal_padding_bytes_total",
    "write cache bytes": "fastbk_index_entry_bytes_total",
}
COPIED = "fastbk_index_flush_copied_bytes_total"
"""Bytes of entries that flushes copied on their way to an entry log."""


def counters_of(bookie: OneBookie) -> dict[str, float]:
    """Return the bookie's counters by name, summed over its processes."""
    with urllib.request.urlopen(f"http://127.0.0.1:{bookie.bookie.http_port}/metrics") as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("fastbk_"):
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def sleeps_of(pid: int) -> int:
    """Return how often the main thread of a process has given up its processor by itself, to wait."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(
        int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")
    )


def written_of(pid: int) -> int:
    """Return the bytes that a process has had written to disks."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def network_calls(costs: dict[str, float]) -> float:
    """Return a worker's system calls for an entry: a receive and a send, and what it waits with and wakes others by.

    A poll is two calls, the event loop's and its own; a wake is the loop's and a read of the bell.
    """
    waiting = 2 * costs["polls"] + 2 * costs["worker wakes"]
    return costs["receives"] + costs["sends"] + waiting + costs["bells worker→journal"]


def entry_costs(
    bookie: OneBookie, window: int, seconds: float, connections: int = 1
) -> dict[str, float]:
    """Return what one entry costs under this load."""
    ids = [bookie.create_ledger() for _ in range(connections)]
    pids = {role: bookie.bookie.pids[name] for name, role in ROLES.items()}
    with bookie.load(ids, window=window, connections=connections, size_bytes=ENTRY_BYTES) as load:
        load.append(seconds / 4)
        before = sum(load.entry_counts())
        counters, cpu = counters_of(bookie), bookie.cpu_seconds()
        sleeps = {role: sleeps_of(pid) for role, pid in pids.items()}
        written, began_s = written_of(pids["index"]), time.monotonic()
        load.append(seconds)
        took_s = time.monotonic() - began_s
        entries = sum(load.entry_counts()) - before
        after, cpu_after = counters_of(bookie), bookie.cpu_seconds()
    found = {"entries a second": round(entries / took_s)}
    for name, role in ROLES.items():
        found[f"{role} µs"] = round((cpu_after[name] - cpu[name]) * 1e6 / entries, 3)
        found[f"{role} sleeps"] = round((sleeps_of(pids[role]) - sleeps[role]) / entries, 4)
    for shown, name in (BELLS | BYTES).items():
        found[shown] = round((after[name] - counters[name]) / entries, 4)
    taken_in = after[BYTES["write cache bytes"]] - counters[BYTES["write cache bytes"]]
    found["part that the flush copied"] = round((after[COPIED] - counters[COPIED]) / taken_in, 4)
    found["entry log bytes"] = round((written_of(pids["index"]) - written) / entries, 1)
    return found


def cache_line_ns() -> float:
    """Return how long a cache line takes from one processor to another and back: on a virtual machine it changes."""
    program = build_program(["measure_cache_line.c"], [], "release", ("-pthread",))
    answer = subprocess.run([program, "0.02"], capture_output=True, check=True, timeout=10)
    found: float = json.loads(answer.stdout)["round_trip_ns"]
    return found


def costs_of(
    bookie: OneBookie, window: int, seconds: float, connections: int = 1
) -> dict[str, float]:
    """Return what one entry costs under this load, and where the host had the processors before and behind it."""
    before_ns = cache_line_ns()
    found = entry_costs(bookie, window, seconds, connections)
    return found | {"cache line, ns": before_ns, "behind it, ns": cache_line_ns()}


def main() -> dict[str, dict[str, float]]:
    seconds = setting("SECONDS", 2.0)
    figures = {}
    with scratch() as folder, one_bookie(folder) as bookie:
        for window in map(int, setting("LOADS", "1,100,1000").split(",")):
            figures[f"window {window:,}"] = costs_of(bookie, window, seconds)
        for count in (100, 1000):
            figures[f"{count:,} connections, 1 in flight each"] = costs_of(
                bookie, count, seconds, count
            )
    print_table(figures)
    return figures
