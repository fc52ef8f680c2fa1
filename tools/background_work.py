"""A bookie's background work, for benches that measure what appends feel of it: begun on demand, and counted."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from fastbk.admin.page_client import AdminClient
from fastbk.devcluster import wait_for
from fastbk.native.disk import Disk
from fastbk.server.gc_messages import LEDGERS, MAJOR
from fastbk.storage.manifest import ManifestSlots
from fastbk.units import MIB
from tools import ROOT
from tools.bench_costs import counters_of
from tools.one_bookie import ENTRY_BYTES, OneBookie

Settings = dict[str, dict[str, object]]

CACHED: Settings = {
    "bookie": {"memory_total": "4GiB"},
    "journal": {"limit": "8GiB", "first_file_size": "1536MiB"},
    "ledgers": {"write_cache_size": "1536MiB", "flush_interval": "3600s"},
}
"""A bookie that neither flushes nor makes a journal file while it is measured."""
MERGED: Settings = {"ledgers": {"write_cache_size": "16MiB"}}
"""A bookie that flushes, and so merges, three times as often as usual: 15 MiB is the least."""
SCRUBBED: Settings = {"scrub": {"cycle": "1s", "rate": "16MiB"}}
"""A bookie whose scrub never rests: always at its default rate."""
COMPACTED: Settings = {
    "ledgers": {"entry_log_size": "128MiB"},
    "gc": {"major_ratio_max": 0.9},
}
"""A bookie whose logs are worth a compaction when half of what is in them was deleted."""
BEGINS_S = 30.0
GC_PAUSE_S = 1.0
"""Pause between two checks, each of which is over by then: gc steps its compactions when nothing more is asked of it.
"""
DELETED_LEDGERS = 200
"""Deleted while gc is measured."""
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
COUNTERS = {
    "flushes": "fastbk_index_flushes_total",
    "merges": "fastbk_index_merges_total",
    "scrub_mb": "fastbk_index_scrub_bytes_total",
    "gc_cycles": "fastbk_gc_cycles_total",
    "gc_deleted": "fastbk_gc_deleted_total",
}
"""What a bookie's metrics tell of its background work; the rest is measured by who begins it."""

Progress = Callable[[], int]
"""Returns how many bytes of a work are done."""
Begin = Callable[[], AbstractContextManager[dict[str, Progress]]]
"""Begins works, which end with the context; the progress of those that no counter of the bookie's tells, by name."""


@dataclass(frozen=True)
class Work:
    """One kind of background work, or several.

    Attributes:
        prepare: fills a bookie with so many MiB to work on.
        proofs: counts that must grow while it is measured; else it did not run.
    """

    name: str
    prepare: Callable[[OneBookie, int], Begin]
    settings: Settings = field(default_factory=dict)
    proofs: tuple[str, ...] = ()


def work_counts(bookie: OneBookie) -> dict[str, float]:
    """Return what the bookie's metrics tell of its background work so far."""
    found = counters_of(bookie)
    return {
        short: found.get(name, 0.0) / (1e6 if short.endswith("_mb") else 1)
        for short, name in COUNTERS.items()
    }


# --- compaction -------------------------------------------------------------------------------------------------


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
    run_gc(bookie)  # sees both listed; of others it would not know that they were deleted
    delete(bookie, ledger_ids[1:])
    for _ in range(2):  # the first look finds it, the second one deletes it
        run_gc(bookie)


@contextlib.contextmanager
def compaction(bookie: OneBookie) -> Iterator[Progress]:
    """Compact what is half dead; yields how many bytes were written so far.

    At the end it is cut off, which undoes it: it can be done again. Raises SystemExit if it was over before.
    """
    client = admin(bookie)
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
    wait_for(lambda: written_bytes() > 0, BEGINS_S, "a compaction to begin")
    try:
        yield written_bytes
        if not is_running():
            raise SystemExit("bench: the compaction was over before the adds were: set MIB higher")
    finally:
        client.post("/gc/suspend", {"what": [MAJOR]})
        wait_for(lambda: not is_running(), BEGINS_S, "the compaction to end")


# --- garbage collection -----------------------------------------------------------------------------------------


def admin(bookie: OneBookie) -> AdminClient:
    return AdminClient("127.0.0.1", bookie.bookie.http_port or 0)


def delete(bookie: OneBookie, ledger_ids: list[int]) -> None:
    """Delete ledgers in metadata."""
    for ledger_id in ledger_ids:
        bookie.store.delete_ledger(ledger_id, bookie.store.read_ledger(ledger_id).version)


def run_gc(bookie: OneBookie) -> None:
    """Have deleted ledgers looked for once, and wait for its end."""
    client = admin(bookie)
    number = client.post("/gc/run", {"what": [LEDGERS], "force": True})["number"]
    wait_for(lambda: client.get("/gc").get("run_done", 0) >= number, 60.0, "gc")


@contextlib.contextmanager
def collection(bookie: OneBookie, ledger_ids: list[int]) -> Iterator[None]:
    """Delete these ledgers and look for deleted ones again and again: the first look finds them, the next deletes."""
    delete(bookie, ledger_ids)
    client, what = admin(bookie), {"what": [LEDGERS], "force": True}
    is_over = threading.Event()

    def look() -> None:
        client.post("/gc/run", what)
        while not is_over.wait(GC_PAUSE_S):
            client.post("/gc/run", what)

    thread = threading.Thread(target=look, name="gc")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# --- catch-up reads ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def catch_up(bookie: OneBookie, ledger_ids: list[int], count: int) -> Iterator[Progress]:
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
            end_s = time.monotonic() + BEGINS_S
            while read_bytes() == 0 and time.monotonic() < end_s and reader.poll() is None:
                time.sleep(0.02)
            yield read_bytes
        finally:
            reader.kill()
            reader.wait()


# --- what can be chosen -----------------------------------------------------------------------------------------


def nothing(bookie: OneBookie, size_mib: int) -> Begin:
    """The bookie does by itself what is to be measured."""
    return lambda: nullcontext({})


def scrub(bookie: OneBookie, size_mib: int) -> Begin:
    bookie.write(bookie.create_ledger(), size_mib * MIB // 2 // ENTRY_BYTES)
    return nothing(bookie, size_mib)


def compact(bookie: OneBookie, size_mib: int) -> Begin:
    make_half_dead(bookie, size_mib)

    @contextlib.contextmanager
    def begin() -> Iterator[dict[str, Progress]]:
        with compaction(bookie) as written_bytes:
            yield {"compacted_mb": written_bytes}

    return begin


def small_ledgers(bookie: OneBookie) -> list[int]:
    """Return ledgers of a few entries, closed, to be deleted."""
    ledger_ids = [bookie.create_ledger() for _ in range(DELETED_LEDGERS)]
    with bookie.load(ledger_ids, window=DELETED_LEDGERS) as load:
        while min(load.entry_counts()) == 0:
            load.append(0.01)
        counts = load.entry_counts()
    for ledger_id, count in zip(ledger_ids, counts, strict=True):
        bookie.close_ledger(ledger_id, count)
    run_gc(bookie)  # sees them listed; of others it would not know that they were deleted
    return ledger_ids


def collect(bookie: OneBookie, size_mib: int) -> Begin:
    @contextlib.contextmanager
    def begin() -> Iterator[dict[str, Progress]]:
        with collection(bookie, small_ledgers(bookie)):
            yield {}

    return begin


def read_history(bookie: OneBookie, size_mib: int) -> Begin:
    count = size_mib * MIB // 2 // ENTRY_BYTES
    ledger_ids = [bookie.create_ledger() for _ in range(2)]
    count = min(bookie.write(ledger_id, count) for ledger_id in ledger_ids)

    @contextlib.contextmanager
    def begin() -> Iterator[dict[str, Progress]]:
        with catch_up(bookie, ledger_ids, count) as read_bytes:
            yield {"caught_up_mb": read_bytes}

    return begin


def do_all(bookie: OneBookie, size_mib: int) -> Begin:
    """All that a bookie does by itself: catch-up reads are a client's."""
    begin_compaction = compact(bookie, size_mib)

    @contextlib.contextmanager
    def begin() -> Iterator[dict[str, Progress]]:
        ledger_ids = small_ledgers(bookie)
        with begin_compaction() as progress, collection(bookie, ledger_ids):
            yield progress

    return begin


NOTHING = Work("nothing", nothing, CACHED)
FLUSHES = Work("flushes", nothing, proofs=("flushes",))
ALL = Work(
    "all of it",
    do_all,
    {**SCRUBBED, **COMPACTED},
    ("flushes", "merges", "scrub_mb", "compacted_mb", "gc_cycles", "gc_deleted"),
)
WORKS = (
    NOTHING,
    FLUSHES,
    Work("flushes, merges three times as often", nothing, MERGED, ("flushes", "merges")),
    Work("flushes, scrub", scrub, SCRUBBED, ("flushes", "scrub_mb")),
    Work("flushes, compaction", compact, COMPACTED, ("flushes", "compacted_mb")),
    Work("flushes, gc", collect, proofs=("flushes", "gc_cycles", "gc_deleted")),
    Work("flushes, catch-up reads", read_history, proofs=("flushes", "caught_up_mb")),
    ALL,
)
"""Flushes go on under everything that is appended for longer than the write caches take."""
