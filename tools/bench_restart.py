"""`./dev bench restart`: from `kill -9` under load to the first accepted write, with little and with much to replay.

1. As configured by default: killed in the middle of appends, TRIALS times.
2. With GIB of journal behind the mark, which is held (FASTBK_HOLD_MARK) while it is written: what was flushed does
   not count. Then the bookie starts as configured by default, with none of it in the page cache.

Seconds are counted from the start of the supervisor process to the acknowledgement of an add. Processor time is that of
the index when the add was acknowledged: what replay costs where it does not have the machine for itself.

Environment: GIB=2, TRIALS=5, OUT=build/bench-restart.json. Up to four times GIB of disk are needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fastbk.native.load import Load, LoadError
from fastbk.server.index.process import VARIABLE
from fastbk.units import GIB, MIB
from tools.one_bookie import ENTRY_BYTES, OneBookie, one_bookie
from tools.part import scratch, setting

READY_TIMEOUT_S = 600.0
UNDER_LOAD_S = 2.0
REPLAYED = re.compile(r'^\{.*"event":"journal\.replayed".*\}$', re.MULTILINE)


def kill_under_load(bookie: OneBookie) -> int:
    """Kill the supervisor in the middle of appends; return how many were acknowledged."""
    ledger_id = bookie.create_ledger()

    def append(load: Load) -> None:
        try:
            load.append(600.0)
        except LoadError:
            pass  # the bookie is gone, as it should be

    with bookie.load([ledger_id], window=1000) as load:
        writer = threading.Thread(target=append, args=(load,))
        writer.start()
        time.sleep(UNDER_LOAD_S)
        bookie.bookie.kill()
        writer.join()
        return load.entry_counts()[0]


def start_and_write(bookie: OneBookie) -> dict[str, float]:
    """Start the killed bookie; return seconds until it is ready and until it acknowledged an add, and its replay."""
    began_s = time.perf_counter()
    bookie.cluster.start(READY_TIMEOUT_S)
    ready_s = time.perf_counter() - began_s
    ledger_id = bookie.create_ledger()
    with bookie.load([ledger_id]) as load:
        load.append(0.0001)
        if load.entry_counts()[0] == 0:
            raise SystemExit("bench: the add was not acknowledged")
    return {
        "ready_s": round(ready_s, 3),
        "first_write_s": round(time.perf_counter() - began_s, 3),
        "index_cpu_s": round(bookie.cpu_seconds()["index"], 2),
        "bookie_cpu_s": round(sum(bookie.cpu_seconds().values()), 2),
        "memory_mb": bookie.memory_mb(),
        "load_average": os.getloadavg()[0],
        **replayed(bookie),
    }


def replayed(bookie: OneBookie) -> dict[str, float]:
    """Return what the index said about its last replay: records, MiB, seconds, MB (10⁶ bytes) a second."""
    said = json.loads(REPLAYED.findall(bookie.bookie.log_path.read_text("utf-8", "replace"))[-1])
    seconds = said["took_ms"] / 1e3
    return {
        "replayed_records": said["records"],
        "replayed_mib": round(said["size_kib"] / 1024, 1),
        "replay_s": seconds,
        "replay_mb_per_s": round(said["size_kib"] * 1024 / 1e6 / max(seconds, 1e-3)),
    }


def text(figures: dict[str, float]) -> str:
    return (
        f"ready after {figures['ready_s']:.2f} s, first write after {figures['first_write_s']:.2f} s; replayed"
        f" {figures['replayed_records']:,} records, {figures['replayed_mib']:,.1f} MiB, in {figures['replay_s']:.2f} s:"
        f" {figures['replay_mb_per_s']:,} MB/s; processor time of the index {figures['index_cpu_s']:.2f} s;"
        f" load {figures['load_average']:.1f}"
    )


def default(folder: Path, trials: int) -> list[dict[str, float]]:
    """Kill and start a bookie as configured by default."""
    figures = []
    with one_bookie(folder) as bookie:
        for _ in range(trials):
            acknowledged = kill_under_load(bookie)
            one = start_and_write(bookie)
            one["acknowledged_before"] = acknowledged
            figures.append(one)
            print(text(one), flush=True)
    return figures


@contextlib.contextmanager
def held_mark() -> Iterator[None]:
    """Have bookies that are started meanwhile hold their mark."""
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def much(folder: Path, gib: float) -> dict[str, float]:
    """Kill a bookie with that much of journal behind its mark, and start it."""
    settings = {"journal": {"limit": f"{int(gib * 1024 * 1.5) + 1024}MiB"}}
    with contextlib.ExitStack() as stack:
        with held_mark():
            bookie = stack.enter_context(one_bookie(folder, settings))
        count = bookie.write(bookie.create_ledger(), int(gib * GIB) // ENTRY_BYTES)
        bookie.bookie.kill()
        del bookie.bookie.sections["journal"]["limit"]
        bookie.drop_page_cache()
        one = start_and_write(bookie)
    # In bytes: a run is one record, however many entries it has.
    if one["replayed_mib"] * MIB < count * ENTRY_BYTES:
        raise SystemExit(f"bench: {count:,} entries were acknowledged, {text(one)}")
    print(f"{count:,} entries of 1 KiB behind the mark: {text(one)}", flush=True)
    return {**one, "entries": count}


def main() -> dict[str, object]:
    with scratch() as folder:
        few = default(folder / "default", setting("TRIALS", 5))
        writes = [one["first_write_s"] for one in few]
        print(
            f"first write after kill -9: median {statistics.median(writes):.2f} s, at most {max(writes):.2f} s"
        )
        return {"default": few, "much": much(folder / "much", setting("GIB", 2.0))}
