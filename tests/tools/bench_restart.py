"""`./dev bench restart`: from `kill -9` under load to the first accepted write, with little and with much to replay.

1. As configured by default: killed in the middle of appends, TRIALS times.
2. With GIB of journal behind the mark: the bookie that writes it has caches so large, and limits so high, that it never
   flushes; the one that replays it has the usual ones, and flushes as it goes.

Seconds are counted from the start of the supervisor process to the acknowledgement of an add.

Environment: GIB=2, TRIALS=5, OUT=build/bench-restart.json. GIB of memory and twice that of disk are needed.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from fastbk.native.load import Load, LoadError
from fastbk.units import GIB
from tests.tools.one_bookie import ENTRY_BYTES, OneBookie, one_bookie

ROOT = Path(__file__).resolve().parent.parent.parent
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
    """Start the killed bookie; return seconds until it is ready and until it acknowledged an add."""
    began_s = time.perf_counter()
    bookie.cluster.start(READY_TIMEOUT_S)
    ready_s = time.perf_counter() - began_s
    ledger_id = bookie.create_ledger()
    with bookie.load([ledger_id]) as load:
        load.append(0.0001)
        if load.entry_counts()[0] == 0:
            raise SystemExit("bench: the add was not acknowledged")
    return {"ready_s": round(ready_s, 3), "first_write_s": round(time.perf_counter() - began_s, 3)}


def replayed(bookie: OneBookie) -> str:
    """Return what the index said about its last replay, empty if nothing."""
    found = REPLAYED.findall(bookie.bookie.log_path.read_text("utf-8", "replace"))
    if not found:
        return ""
    said = json.loads(found[-1])
    return f"replayed {said['records']:,} records, {said['size_kib'] / 1024:.1f} MiB, in {said['took_ms']:,} ms"


def text(figures: dict[str, float]) -> str:
    """Return one start's figures for people."""
    return f"ready after {figures['ready_s']:.2f} s, first write after {figures['first_write_s']:.2f} s"


def default(folder: Path, trials: int) -> list[dict[str, float]]:
    """Kill and start a bookie as configured by default."""
    figures = []
    with one_bookie(folder) as bookie:
        for _ in range(trials):
            acknowledged = kill_under_load(bookie)
            one = start_and_write(bookie)
            one["acknowledged_before"] = acknowledged
            figures.append(one)
            print(f"{text(one)}; {replayed(bookie)}", flush=True)
    return figures


def much(folder: Path, gib: float) -> dict[str, object]:
    """Kill a bookie with that much of journal behind its mark, and start it with the usual settings."""
    size_bytes = int(gib * GIB)
    room = f"{int(gib * 1024 * 3) + 256}MiB"
    settings: dict[str, dict[str, object]] = {
        "bookie": {"memory_total": "256GiB"},
        "journal": {"limit": f"{int(gib * 1024 * 8)}MiB"},
        "ledgers": {"write_cache_size": room, "flush_interval": "3600s"},
    }
    with one_bookie(folder, settings) as bookie:
        count = bookie.write(bookie.create_ledger(), size_bytes // ENTRY_BYTES)
        bookie.bookie.kill()
        for section, keys in settings.items():
            for key in keys:
                if key != "limit":
                    del bookie.bookie.sections[section][key]
        one = start_and_write(bookie)
        said = replayed(bookie)
    print(f"{count:,} entries of 1 KiB behind the mark: {text(one)}; {said}", flush=True)
    return {**one, "entries": count, "replayed": said}


def main() -> int:
    """Measure and write the JSON."""
    gib, trials = float(os.environ.get("GIB", "2")), int(os.environ.get("TRIALS", "5"))
    out = Path(os.environ.get("OUT", ROOT / "build" / "bench-restart.json"))
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as scratch:
        few = default(Path(scratch) / "default", trials)
        writes = [one["first_write_s"] for one in few]
        print(
            f"first write after kill -9: median {statistics.median(writes):.2f} s, at most {max(writes):.2f} s"
        )
        many = much(Path(scratch) / "much", gib)
    out.write_text(json.dumps({"default": few, "much": many}, indent=1))
    print(f"written: {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
