"""`./dev bench ledgers`: a bookie that holds very many ledgers of three entries each.

Its store is built directly, by the bookie's own checkpoints and merges but without a client, a journal or metadata;
then a real bookie is started on it. Printed: seconds until it is ready, memory of index and journal, what a ledger
costs, and how long single reads of random ledgers take (each of another ledger: nothing is found in a cache of runs),
with the files in the page cache and with them on the disk alone.

Environment: COUNT=1000000, SECONDS_EACH=3, OUT=build/bench-ledgers.json. Some 700 bytes of disk a ledger are needed,
and somewhat more while it is built.
"""

from __future__ import annotations

import array
import json
import random
import time
from pathlib import Path

from fastbk.model.entry import DigestType
from fastbk.native.disk import Disk
from fastbk.native.ffi import check
from fastbk.native.ledger_state import STATE, LedgerState, pack_state
from fastbk.native.store import FlushContents, Store, StoreOptions
from fastbk.storage.checkpoint import Checkpoint, CheckpointSettings
from fastbk.storage.manifest import ManifestSlots
from fastbk.units import GIB
from tests.fixtures import upkeep_at_once
from tools.one_bookie import OneBookie, one_bookie
from tools.part import scratch, setting

ENTRIES_A_LEDGER = 3
DATA_BYTES = 64
LEDGERS_A_FLUSH = 100_000
SAMPLE = 20_000


def flush_items(first_ledger_id: int, ledgers: int) -> FlushContents:
    """Return what one flush takes: entries and states of neighbouring ledgers."""
    from fastbk.native._bench import lib as bench
    from fastbk.native._bookie import ffi

    count = ledgers * ENTRIES_A_LEDGER
    memory = ffi.new("uint8_t[]", count * (DATA_BYTES + 64))
    crcs = ffi.new("uint32_t[]", count)
    entry_bytes = bench.fbk_load_entries(
        memory, crcs, first_ledger_id, ledgers, ENTRIES_A_LEDGER, DATA_BYTES, int(DigestType.CRC32C)
    )
    check(entry_bytes, "make entries")
    base = int(ffi.cast("uintptr_t", memory))
    items = array.array("q", bytes(32 * count))  # struct fbk_flush_item
    ids = range(first_ledger_id, first_ledger_id + ledgers)
    items[0::4] = array.array(
        "q", (ledger_id for ledger_id in ids for _ in range(ENTRIES_A_LEDGER))
    )
    items[1::4] = array.array("q", list(range(ENTRIES_A_LEDGER)) * ledgers)
    items[2::4] = array.array("q", range(base, base + count * entry_bytes, entry_bytes))
    items[3::4] = array.array("q", (entry_bytes | _signed(crc) << 32 for crc in crcs))
    states = b"".join(
        pack_state(LedgerState(ledger_id, ENTRIES_A_LEDGER - 1, -1, 0)) for ledger_id in ids
    )
    held = ffi.from_buffer("uint8_t[]", states)
    contents = ffi.new("struct fbk_flush_contents *")
    contents.items = ffi.cast("struct fbk_flush_item *", ffi.from_buffer("uint8_t[]", items))
    contents.item_count = count
    contents.states = ffi.cast("struct fbk_ledger_state *", held)
    contents.state_count = len(states) // STATE.size
    return FlushContents(contents, (items, memory, states, held))


def _signed(crc: int) -> int:
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def build(directory: Path, incarnation: int, count: int) -> None:
    """Fill a ledger directory that no bookie uses now with `count` ledgers, from 0 on."""
    with Disk(directory, "plain") as disk, Disk(directory, "plain") as reader_disk:
        slots = ManifestSlots(disk, str(directory))
        manifest = slots.load()
        store = Store(directory, disk, reader_disk, StoreOptions(incarnation=incarnation))
        settings = CheckpointSettings(entry_log_size_bytes=GIB)
        checkpoint = Checkpoint(disk, str(directory), slots, manifest, settings)
        checkpoint.load(store)
        try:
            for first in range(0, count, LEDGERS_A_FLUSH):
                items = flush_items(first, min(LEDGERS_A_FLUSH, count - first))
                changes = [checkpoint.run(store, items, manifest.mark)]
                while changes:
                    change = changes.pop()
                    change.install(store)
                    checkpoint.commits.clean_up(store, change)
                    merged = upkeep_at_once.merge_if_due(checkpoint, store)
                    changes += [merged] if merged else []
        finally:
            store.destroy()


def lookups(bookie: OneBookie, count: int, seconds: float) -> dict[str, float]:
    """Read entry 0 of random ledgers, one at a time."""
    sample = random.Random(count).sample(range(count), min(SAMPLE, count))
    with bookie.load(sample, size_bytes=DATA_BYTES) as load:
        load.read(seconds, [1] * len(sample))
        result = load.result()
    if result.errors:
        raise SystemExit(f"bench: {result.errors} bad reads, the first: {result.first_error}")
    return {"reads": result.entries, **result.latencies.summary_us()}


def measure(folder: Path, count: int, seconds: float) -> dict[str, object]:
    settings: dict[str, dict[str, object]] = {
        "bookie": {"memory_total": "64GiB"},
        "limits": {"ledgers_max": 2 * count},
        "gc": {"interval": "86400s"},
    }
    figures: dict[str, object] = {"ledgers": count, "entries_a_ledger": ENTRIES_A_LEDGER}

    def note(name: str, value: object) -> None:
        figures[name] = value
        print(f"{name:44} {value}", flush=True)

    with one_bookie(folder, settings) as bookie:
        empty = {name: bookie.pss_mb(name) for name in ("index", "journal")}
        identity = json.loads((bookie.ledger_directory / "identity.json").read_text())
        bookie.cluster.stop()
        began_s = time.perf_counter()
        build(bookie.ledger_directory, int(identity["incarnation"], 16), count)
        note("built in, s", round(time.perf_counter() - began_s, 1))
        sizes = (path.stat().st_size for path in folder.rglob("*") if path.is_file())
        note("disk, MB", round(sum(sizes) / 1e6))
        bookie.cluster.start(600.0)
        note("start, files in the page cache, s", round(bookie.bookie.start_s, 2))
        bookie.cluster.stop()
        bookie.drop_page_cache()
        bookie.cluster.start(600.0)
        note("start, files on the disk, s", round(bookie.bookie.start_s, 2))
        for name in ("index", "journal"):
            note(f"memory of the {name}, MB", bookie.pss_mb(name))
            grown = (bookie.pss_mb(name) - empty[name]) * 1e6
            note(f"bytes of it a ledger, in the {name}", round(grown / count, 1))
        note("single reads after that, µs", lookups(bookie, count, seconds))
        lookups(bookie, count, seconds)
        note("single reads, in the page cache, µs", lookups(bookie, count, seconds))
    return figures


def main() -> dict[str, object]:
    with scratch() as folder:
        return measure(
            folder / "cluster", setting("COUNT", 1_000_000), setting("SECONDS_EACH", 3.0)
        )
