"""`./dev bench reads`: sequential reads of 1 KiB entries by one client, from memory and from the disk.

1. From the bookie's caches: a ledger that is smaller than the write cache, read again and again.
2. From the kernel's page cache: a ledger larger than all caches of the bookie.
3. From the disk: the same ledger after a restart, with its files out of the page cache, read once; beside it what the
   disk gives one reader of large blocks that goes past the page cache.
4. The same through `fastbk.sync`, and two ledgers read by two connections.

Beside each rate stands the processor time an entry of the index process: on a machine with more cores than this one
its reciprocal is the ceiling.

Environment: MIB=1024 (size of the large ledger), SECONDS_EACH=3, OUT=build/bench-reads.json.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from fastbk import sync
from fastbk.units import MIB
from tests.tools.one_bookie import ENTRY_BYTES, OneBookie, one_bookie
from tests.tools.part import scratch, setting

SMALL_ENTRIES = 8_000
BATCH = 128
WINDOW = 8
PASS_SHARE = 0.9
"""Of a ledger that is read once: beyond its end it would be read again, from the page cache."""
Figures = dict[str, object]


def disk_mb_per_s(folder: Path, seconds: float) -> float:
    """Return the rate of one reader of 1 MiB blocks that goes past the page cache, in MB/s."""
    path = folder / "probe"
    with open(path, "wb") as file:
        for _ in range(256):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    block = mmap.mmap(-1, MIB)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    read = 0
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        read += os.preadv(handle, [block], read % (256 * MIB))
    took_s = time.perf_counter() - began_s
    os.close(handle)
    path.unlink()
    return round(read / took_s / 1e6, 1)


def measured(bookie: OneBookie, work: Callable[[], int]) -> Figures:
    """Run `work`, which returns how many entries it read, and return rates and processor time."""
    before = bookie.cpu_seconds()
    began_s = time.perf_counter()
    entries = work()
    took_s = time.perf_counter() - began_s
    spent = {name: value - before[name] for name, value in bookie.cpu_seconds().items()}
    return {
        "entries_per_s": round(entries / took_s),
        "mb_per_s": round(entries * ENTRY_BYTES / took_s / 1e6, 1),
        "index_cpu_us_an_entry": round(spent["index"] * 1e6 / entries, 3),
        "worker_cpu_us_an_entry": round(spent["worker.0"] * 1e6 / entries, 3),
        "entries": entries,
    }


def by_load(
    bookie: OneBookie, ledgers: dict[int, int], seconds: float, *, once: bool, batch: int = BATCH
) -> Figures:
    """Read ledgers (id → entries) with the load generator, one connection a ledger; every entry is checked."""
    wanted = int(sum(ledgers.values()) * PASS_SHARE)

    def work() -> int:
        window = (WINDOW if batch > 1 else 100) * len(ledgers)
        options = {"window": window, "entries_a_read": batch, "connections": len(ledgers)}
        with bookie.load(list(ledgers), **options) as load:
            end_s = time.perf_counter() + seconds
            while time.perf_counter() < end_s and not (once and load.result().entries >= wanted):
                load.read(0.1, list(ledgers.values()))
            result = load.result()
        if result.errors:
            raise SystemExit(f"bench: {result.errors} bad reads, the first: {result.first_error}")
        return result.entries

    return measured(bookie, work)


def by_client(bookie: OneBookie, ledger_id: int, count: int, seconds: float) -> Figures:
    """Read a ledger with `fastbk.sync`, once."""

    def work() -> int:
        with (
            sync.connect(bookie.cluster.metadata_uri) as client,
            client.open_ledger(ledger_id) as reader,
        ):
            end_s = time.perf_counter() + seconds
            entries = 0
            for entry in reader.read(0, int(count * PASS_SHARE)):
                entries += 1
                if entry.entry_id % 4096 == 0 and time.perf_counter() > end_s:
                    break
            return entries

    return measured(bookie, work)


def cold(bookie: OneBookie) -> None:
    """Have nothing of the ledgers in any memory."""
    bookie.restart()
    bookie.drop_page_cache()


def measure(folder: Path, size_mib: int, seconds: float) -> Figures:
    figures: Figures = {"disk_mb_per_s": disk_mb_per_s(folder, 1.0)}
    large = size_mib * MIB // ENTRY_BYTES

    def note(name: str, value: object) -> None:
        figures[name] = value
        print(f"{name:44} {value}", flush=True)

    print(f"{'disk, one reader of 1 MiB blocks: MB/s':44} {figures['disk_mb_per_s']}")
    with one_bookie(folder / "cluster") as bookie:
        one, other, small = (bookie.create_ledger() for _ in range(3))
        sizes = {one: bookie.write(one, large), other: bookie.write(other, large // 2)}
        hot = {small: bookie.write(small, SMALL_ENTRIES)}
        note("from the bookie's cache", by_load(bookie, hot, seconds, once=False))
        note("from the bookie's cache, singly", by_load(bookie, hot, seconds, once=False, batch=1))
        first = {one: sizes[one]}
        by_load(bookie, first, 60.0, once=True)
        note("from the page cache", by_load(bookie, first, seconds, once=False))
        note("from the page cache, fastbk.sync", by_client(bookie, one, sizes[one], seconds))
        cold(bookie)
        note("from the disk", by_load(bookie, first, 60.0, once=True))
        cold(bookie)
        note("from the disk, singly", by_load(bookie, first, 60.0, once=True, batch=1))
        cold(bookie)
        note("from the disk, two ledgers at once", by_load(bookie, sizes, 60.0, once=True))
        cold(bookie)
        note("from the disk, fastbk.sync", by_client(bookie, one, sizes[one], 60.0))
    return figures


def main() -> dict[str, object]:
    with scratch() as folder:
        return measure(folder, setting("MIB", 1024), setting("SECONDS_EACH", 3.0))
