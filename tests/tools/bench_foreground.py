"""`./dev bench foreground`: what adds and tail reads feel of the work behind them, all measured in one run.

An open loop of adds at 30 % of the peak, every 16th entry read as soon as it is acknowledged. First on a bookie that
has nothing else to do (its caches take all that is written meanwhile); then on one whose caches are of the usual size,
so that it flushes and merges all the time; then with a scrub that never rests; then with a compaction, at the default
rate, of entry logs of which half was deleted; then with catch-up reads: two connections read ledgers that are in no
memory, as fast as they get them, from a process that leaves the processors to everybody else (in reality a client of
history is somewhere else).

Printed are p50 and p99 of both, and their ratio to the first phase, p99 also to the second; and how fast history was
read, or compacted logs were written. The phases take turns, ROUNDS times, and each figure is the median: these machines
are noisy.

Environment: ROUNDS=3, SECONDS_EACH=4, MIB=1024 (of history), OUT=build/bench-foreground.json.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fastbk.cli.admin_client import AdminClient
from fastbk.devcluster import wait_for
from fastbk.native.disk import Disk
from fastbk.native.load import LoadResult
from fastbk.server.gc_messages import LEDGERS, MAJOR
from fastbk.storage.manifest import ManifestSlots
from fastbk.units import MIB
from tests.style.tree import ROOT
from tests.tools.one_bookie import ENTRY_BYTES, OneBookie, one_bookie
from tests.tools.part import scratch, setting

SHARE_OF_PEAK = 0.3
TAIL_EVERY = 16
WINDOW = 2000
QUIET: dict[str, dict[str, object]] = {
    "bookie": {"memory_total": "4GiB"},
    "journal": {"limit": "8GiB", "first_file_size": "1536MiB"},
    "ledgers": {"write_cache_size": "1536MiB", "flush_interval": "3600s"},
}
"""A bookie that neither flushes nor makes a journal file while it is measured."""
SCRUBBED: dict[str, dict[str, object]] = {"scrub": {"cycle": "1s", "rate": "16MiB"}}
"""A bookie whose scrub never rests: always at its default rate."""
COMPACTED: dict[str, dict[str, object]] = {
    "ledgers": {"entry_log_size": "128MiB"},
    "gc": {"major_ratio_max": 0.9},
}
"""A bookie whose logs are worth a compaction when half of what is in them was deleted."""
COMPACTION_BEGINS_S = 30.0
FLUSHES = "flushes and merges"
SETTLE_S = 2.0
"""After its start: the next journal file is made ahead."""
_HISTORY = """
import os, sys, time
from pathlib import Path
from fastbk.model.entry import master_key
from fastbk.native.load import Load, LoadOptions
from fastbk.wire.messages import Hello, encode_hello
port, count, ledgers = int(sys.argv[1]), int(sys.argv[2]), list(map(int, sys.argv[3:]))
os.nice(19)
options = LoadOptions(host="127.0.0.1", port=port, master_key=master_key(b""), window=8 * len(ledgers),
                      connections=len(ledgers), entries_a_read=128)
load = Load(options, ledgers, encode_hello(0, Hello(client_name="bench")))
print("reading", flush=True)
while os.getppid() > 1:
    load.read(0.2, [count] * len(ledgers))
    print(load.result().entries, load.result().errors, flush=True)
"""


def foreground(bookie: OneBookie, rate_per_s: int, seconds: float) -> LoadResult:
    """Add at that rate with tail reads, and return the result. Raises SystemExit when something was answered badly."""
    ledger_id = bookie.create_ledger()
    options = {"window": WINDOW, "rate_per_s": rate_per_s, "tail_every": TAIL_EVERY}
    with bookie.load([ledger_id], **options) as load:
        load.append(seconds)
        result = load.result()
        count = load.entry_counts()[0]
    if result.errors:
        raise SystemExit(f"bench: {result.errors} bad answers, the first: {result.first_error}")
    bookie.close_ledger(ledger_id, count)
    return result


def peak_per_s(bookie: OneBookie, seconds: float) -> float:
    """Return the adds a second of a closed loop."""
    ledger_id = bookie.create_ledger()
    with bookie.load([ledger_id], window=1000) as load:
        load.append(seconds)
        result = load.result()
        bookie.close_ledger(ledger_id, load.entry_counts()[0])
    return result.entries / result.busy_s


@contextlib.contextmanager
def catch_up(bookie: OneBookie, ledger_ids: list[int], count: int) -> Iterator[Callable[[], int]]:
    """Read ledgers of `count` entries from the disk in another process; yields how many bytes came so far."""
    bookie.drop_page_cache()
    arguments = [str(bookie.bookie.port), str(count), *map(str, ledger_ids)]
    with tempfile.TemporaryFile("w+") as out:
        reader = subprocess.Popen(
            [sys.executable, "-c", _HISTORY, *arguments], stdout=out, cwd=ROOT
        )

        def read_bytes() -> int:
            out.seek(0)
            lines = out.read().splitlines()
            if len(lines) > 1 and lines[-1].split()[1] != "0":
                raise SystemExit(f"bench: bad answers to the readers of history: {lines[-1]}")
            return int(lines[-1].split()[0]) * ENTRY_BYTES if len(lines) > 1 else 0

        try:
            end_s = time.monotonic() + 20.0
            while read_bytes() == 0 and time.monotonic() < end_s and reader.poll() is None:
                time.sleep(0.02)
            yield read_bytes
        finally:
            reader.kill()
            reader.wait()


def make_half_dead(bookie: OneBookie, size_mib: int) -> None:
    """Fill entry logs with two ledgers, run by run, and delete one of them."""
    ledger_ids = [bookie.create_ledger() for _ in range(2)]
    with bookie.load(ledger_ids, window=1000) as load:
        while sum(load.entry_counts()) < size_mib * MIB // ENTRY_BYTES:
            load.append(0.1)
        counts = load.entry_counts()
    for ledger_id, count in zip(ledger_ids, counts, strict=True):
        bookie.close_ledger(ledger_id, count)
    bookie.restart()  # every log is sealed
    bookie.store.delete_ledger(ledger_ids[1], bookie.store.read_ledger(ledger_ids[1]).version)
    client = AdminClient("127.0.0.1", bookie.bookie.http_port or 0)
    for _ in range(2):  # the first look finds it, the second one deletes it
        number = client.post("/gc/run", {"what": [LEDGERS], "force": True})["number"]
        wait_for(lambda n=number: client.get("/gc").get("run_done", 0) >= n, 60.0, "gc")


@contextlib.contextmanager
def compaction(bookie: OneBookie) -> Iterator[Callable[[], int]]:
    """Compact what is half dead; yields how many bytes were written so far.

    At the end it is cut off, which undoes it: it can be done again. Raises SystemExit if it was over before.
    """
    client = AdminClient("127.0.0.1", bookie.bookie.http_port or 0)
    logs = bookie.ledger_directory / "logs"
    bookie.drop_page_cache()

    def written_bytes() -> int:
        """Into logs that no manifest names yet."""
        folder = str(bookie.ledger_directory)
        with Disk(folder, "plain", only_reads=True) as disk:
            named = {f"{log.log_id:016x}.log" for log in ManifestSlots(disk, folder).load().logs}
        return sum(path.stat().st_size for path in logs.iterdir() if path.name not in named)

    def is_running() -> bool:
        return any(run["running"] for run in client.get("/gc").get("compactions", ()))

    client.post("/gc/resume", {"what": [MAJOR]})
    client.post("/gc/run", {"what": [MAJOR]})
    wait_for(lambda: written_bytes() > 0, COMPACTION_BEGINS_S, "a compaction to begin")
    try:
        yield written_bytes
        if not is_running():
            raise SystemExit("bench: the compaction was over before the adds were: set MIB higher")
    finally:
        client.post("/gc/suspend", {"what": [MAJOR]})
        wait_for(lambda: not is_running(), COMPACTION_BEGINS_S, "the compaction to end")


def figures_of(result: LoadResult) -> dict[str, float]:
    """Return what is compared, in microseconds."""
    adds, tails = result.latencies, result.tail_latencies
    return {
        "adds_per_s": round(result.entries / result.busy_s),
        "add_p50": adds.percentile_us(50),
        "add_p99": adds.percentile_us(99),
        "tail_p50": tails.percentile_us(50),
        "tail_p99": tails.percentile_us(99),
    }


def measure(folder: Path, rounds: int, seconds: float, size_mib: int) -> dict[str, object]:
    found: dict[str, list[dict[str, float]]] = {}
    with (
        one_bookie(folder / "quiet", QUIET) as quiet,
        one_bookie(folder / "scrubbed", SCRUBBED) as scrubbed,
        one_bookie(folder / "compacted", COMPACTED) as compacted,
        one_bookie(folder / "busy") as busy,
    ):
        count = size_mib * MIB // 2 // ENTRY_BYTES
        history = [busy.create_ledger() for _ in range(2)]
        count = min(busy.write(ledger_id, count) for ledger_id in history)
        scrubbed.write(scrubbed.create_ledger(), count)
        make_half_dead(compacted, size_mib)
        rate = int(SHARE_OF_PEAK * peak_per_s(busy, 2.0))
        print(f"30 % of the peak: {rate:,} adds of 1 KiB a second", flush=True)

        def during(
            name: str, bookie: OneBookie, work: AbstractContextManager[Callable[[], int] | None]
        ) -> None:
            with work as done_bytes:
                before, began_s = done_bytes() if done_bytes else 0, time.monotonic()
                one = figures_of(foreground(bookie, rate, seconds))
                if done_bytes:
                    rate_bytes = (done_bytes() - before) / (time.monotonic() - began_s)
                    one["behind_mb_per_s"] = round(rate_bytes / 1e6, 1)
            one["load_average"] = os.getloadavg()[0]
            found.setdefault(name, []).append(one)

        for number in range(rounds):
            print(f"round {number + 1}/{rounds}", file=sys.stderr)
            quiet.restart()
            foreground(quiet, rate, 0.5)
            time.sleep(SETTLE_S)
            during("nothing else", quiet, nullcontext())
            during(FLUSHES, busy, nullcontext())
            during("and a scrub", scrubbed, nullcontext())
            during("and a compaction", compacted, compaction(compacted))
            during("and catch-up reads", busy, catch_up(busy, history, count))
    return {"rate_per_s": rate, "phases": found}


def table(phases: dict[str, list[dict[str, float]]]) -> str:
    """Return medians, each with its ratio to the first phase, and of p99 to flushes alone: they never rest."""
    first = next(iter(phases))
    lines = [
        f"{'':24}"
        + "".join(f"{name:>22}" for name in ("add p50", "add p99", "tail p50", "tail p99"))
    ]
    for name, rounds in phases.items():
        row = f"{name:24}"
        for key in ("add_p50", "add_p99", "tail_p50", "tail_p99"):
            value = statistics.median(one[key] for one in rounds)
            base = statistics.median(one[key] for one in phases[first])
            row += f"{f'{value:,.0f} µs ({value / base:.2f})':>22}"
        if name not in (first, FLUSHES):
            ratios = [
                statistics.median(one[key] for one in rounds)
                / statistics.median(one[key] for one in phases[FLUSHES])
                for key in ("add_p99", "tail_p99")
            ]
            row += f"   p99 to flushes alone ({ratios[0]:.2f}, {ratios[1]:.2f})"
        if "behind_mb_per_s" in rounds[0]:
            row += f"   behind it {statistics.median(one['behind_mb_per_s'] for one in rounds):,.0f} MB/s"
        lines.append(row)
    return "\n".join(lines)


def main() -> dict[str, object]:
    with scratch() as folder:
        figures = measure(
            folder, setting("ROUNDS", 3), setting("SECONDS_EACH", 4.0), setting("MIB", 1024)
        )
    print(table(figures["phases"]))  # type: ignore[arg-type]
    return figures
