"""`./dev compat BENCH=1`: Apache's Java client on a bookie of ours beside the same client on one of Apache's.

One bookie each, one ledger, entries of 1 KiB, each run in a Java of its own that is warmed up first. Runs take turns
(ours, Apache's, ours ...), so that what else the machine does falls on both. Apache's bookie has a heap of 1 GiB and
commits as soon as its queue is empty, which is its best for latency. What bounds a run is told from processor time.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from fastbk.devcluster import memory_pss_bytes
from tests.compat.jars import BUILD
from tests.compat.rig import Cluster, Rig

BENCH_MAIN = "fastbk.compat.Bench"
LEDGERS_MAIN = "fastbk.compat.LedgerBench"
JAVA_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC", "-Dfastbk.compat.log=warn")
BOOKIE_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-Dfastbk.compat.log=warn")
APACHE_SETTINGS = {
    "journalMaxGroupWaitMSec": 1,
    "journalFlushWhenQueueEmpty": "true",
    "dbStorage_writeCacheMaxSizeMb": 256,
    "dbStorage_readAheadCacheMaxSizeMb": 64,
    "journalPreAllocSizeMB": 16,
}
COLUMNS = {
    "adds_per_s": ",.0f", "p50_us": ",.0f", "p99_us": ",.0f",
    "client_cpu_us": ".1f", "bookie_cpu_us": ".1f", "client_cores": ".2f",
}  # fmt: skip
"""Of the table: what of a run, and how it is written."""
WARM_UP_S = 5.0
ENTRY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Run:
    bookie: str
    protocol: str
    window: int
    adds_per_s: float
    p50_us: int
    p99_us: int
    client_cpu_us: float
    """Processor time an entry, of the whole Java client."""
    bookie_cpu_us: float
    client_cores: float
    """Processors that the client kept busy."""
    memory_mb: float
    """Of all bookies, proportional."""


def bench(rig: Rig, environment: Mapping[str, str]) -> int:
    """Measure, print a table of medians, keep all runs in build/compat/bench.json; return 1 if adds failed."""
    seconds = float(environment.get("SECONDS", "") or 6)
    repeats = int(environment.get("REPEATS", "") or 3)
    runs: list[Run] = []
    with (
        rig.cluster(ours=1) as ours,
        rig.cluster(
            apache=1, apache_settings=APACHE_SETTINGS, java_options=BOOKIE_OPTIONS
        ) as apache,
    ):
        for _ in range(repeats):
            for window in (1, 1000):
                for protocol in ("v2", "v3"):
                    for name, cluster in (("ours", ours), ("Apache's", apache)):
                        run = java_append(cluster, protocol, window, seconds, name=name)
                        print(run, flush=True)
                        runs.append(run)
    (BUILD / "bench.json").write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    print(_table(runs))
    return 0


def java_append(
    cluster: Cluster,
    protocol: str,
    window: int,
    seconds: float,
    *,
    quorum: tuple[int, int, int] = (1, 1, 1),
    name: str = "Apache's",
) -> Run:
    """Append by Apache's Java client, warmed up, to a ledger of that ensemble, write quorum and ack quorum."""
    numbers = [window, WARM_UP_S, seconds, ENTRY_BYTES, 1, *quorum]
    arguments = [cluster.metadata_uri, protocol, *map(str, numbers)]
    with _java(cluster, BENCH_MAIN, arguments) as process:
        _line(process, "READY")
        before_s = sum(member.cpu_s() for member in cluster.members)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        words = _line(process, "BENCH").split()[1:]
        bookie_cpu_s = sum(member.cpu_s() for member in cluster.members) - before_s
    entries, took_s, p50_us, p99_us, cpu_s, failed = (float(word) for word in words)
    if failed or not entries:
        raise SystemExit(f"{failed:.0f} adds failed; see {cluster.folder}")
    return Run(
        name,
        protocol,
        window,
        round(entries / took_s, 1),
        int(p50_us),
        int(p99_us),
        round(cpu_s / entries * 1e6, 2),
        round(bookie_cpu_s / entries * 1e6, 2),
        round(cpu_s / took_s, 2),
        _memory_mb(cluster),
    )


def java_ledger_calls(cluster: Cluster, protocol: str, count: int) -> dict[str, float]:
    """Create, close, open and recover that many ledgers of ten entries, E3/Qw3/Qa2, by Apache's Java client."""
    arguments = [cluster.metadata_uri, protocol, str(count), str(ENTRY_BYTES)]
    with _java(cluster, LEDGERS_MAIN, arguments) as process:
        _line(process, "READY")
        before_s = sum(member.cpu_s() for member in cluster.members)
        words = _line(process, "LEDGERS").split()[1:]
        bookie_cpu_s = sum(member.cpu_s() for member in cluster.members) - before_s
    *medians_us, cpu_s = (float(word) for word in words)
    names = ("create_p50_us", "close_p50_us", "open_p50_us", "recover_p50_us")
    return {
        **dict(zip(names, medians_us, strict=True)),
        "bookie_us": bookie_cpu_s / (2 * count) * 1e6,
        "client_us": cpu_s / (2 * count) * 1e6,
        "memory_mb": _memory_mb(cluster),
    }


def _memory_mb(cluster: Cluster) -> float:
    pids = [pid for member in cluster.members for pid in member.processes().values()]
    return round(memory_pss_bytes(pids) / 1e6, 1)


@contextlib.contextmanager
def _java(
    cluster: Cluster, main_class: str, arguments: Sequence[str]
) -> Iterator[subprocess.Popen[str]]:
    with open(cluster.folder / "bench.log", "ab") as log:
        process = subprocess.Popen(
            cluster.programs.command(main_class, *arguments, options=JAVA_OPTIONS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def _line(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise SystemExit(f"the client ended with {process.wait()} before it said {start}")


def _table(runs: list[Run]) -> str:
    lines = [
        f"\n{os.cpu_count()} processors; medians of {len(runs) // 8} runs each",
        "| window | protocol | bookie | adds/s | p50 µs | p99 µs | CPU µs an entry: client | bookie | client's cores |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for window in (1, 1000):
        for protocol in ("v2", "v3"):
            for name in ("ours", "Apache's"):
                one = [
                    r for r in runs if (r.window, r.protocol, r.bookie) == (window, protocol, name)
                ]
                cells = [
                    format(statistics.median(getattr(r, name) for r in one), how)
                    for name, how in COLUMNS.items()
                ]
                lines.append(f"| {window:,} | {protocol} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
