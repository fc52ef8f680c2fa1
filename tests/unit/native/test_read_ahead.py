"""What is read ahead, what stays in the read cache, and how many disk reads it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastbk.native.disk import Disk
from fastbk.native.store import FlushContents, FlushOptions, Store, StoreOptions
from tests.fixtures.store_harness import entry_bytes as front_bytes

KIB = 1024
ENTRY_BYTES = 4000
RUN_ENTRIES = 65
"""Of ENTRY_BYTES: a run is 256 KiB long."""


def entry_bytes(ledger_id: int, entry_id: int) -> bytes:
    return front_bytes(ledger_id, entry_id, 60).ljust(ENTRY_BYTES, b"+")


@contextmanager
def opened(folder: Path, read_cache_bytes: int) -> Iterator[Store]:
    for name in ("logs", "locations"):
        (folder / name).mkdir(exist_ok=True)
    with Disk(folder, "plain") as disk, Disk(folder, "plain") as reader_disk:
        options = StoreOptions(incarnation=3, read_cache_size_bytes=read_cache_bytes)
        store = Store(folder, disk, reader_disk, options)
        try:
            yield store
        finally:
            store.destroy()


def flush(
    store: Store, number: int, entries: list[tuple[int, int]], log_offset_bytes: int = 0
) -> int:
    """Flush entries into log 1 and locations file `number`; return the log's end."""
    items = FlushContents.from_entries(
        (ledger, entry, entry_bytes(ledger, entry)) for ledger, entry in entries
    )
    flush = store.begin_flush(FlushOptions(1, log_offset_bytes, 9, number, number, 1), items)
    while flush.step(1 << 20):
        pass
    end_bytes = flush.end().log_end_bytes
    store.add(number)
    return end_bytes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path, 16 * KIB * KIB) as made:
        yield made


def test_neighbours_come_in_few_disk_reads(store: Store) -> None:
    flush(store, 1, [(1, n) for n in range(30 * RUN_ENTRIES)])
    through, ends = store.read_ahead(1, 0, 4 * KIB * KIB)
    counts = store.counts()
    assert not ends
    assert 12 * RUN_ENTRIES <= through + 1 <= 17 * RUN_ENTRIES
    assert counts["ahead_runs"] * RUN_ENTRIES >= through + 1
    assert counts["ahead_reads"] <= counts["ahead_runs"] / 3
    for n in range(through + 1):
        assert store.cached(1, n) == entry_bytes(1, n)
    assert store.counts()["pinned_bytes"] == 0


def test_it_goes_on_where_it_ended_and_says_when_there_is_no_more(store: Store) -> None:
    flush(store, 1, [(1, n) for n in range(10 * RUN_ENTRIES)])
    at, rounds, ends = 0, 0, False
    while not ends:
        through, ends = store.read_ahead(1, at, 600 * KIB)
        assert through >= at or ends
        at, rounds = through + 1, rounds + 1
    assert at == 10 * RUN_ENTRIES
    assert rounds > 3
    runs = store.counts()["run_reads"]
    assert store.read_ahead(1, 0, 8 * KIB * KIB) == (10 * RUN_ENTRIES - 1, True)
    assert store.counts()["run_reads"] == runs, "what is in memory is not read again"


def test_only_the_ledger_asked_for_comes(store: Store) -> None:
    """Several files, several ledgers between each other, gaps."""
    end_bytes = flush(store, 1, [(ledger, 2 * n) for ledger in (1, 2, 3) for n in range(100)])
    flush(store, 2, [(ledger, 2 * n + 1) for ledger in (2, 3) for n in range(100)], end_bytes)
    assert store.read_ahead(2, 0, 8 * KIB * KIB) == (199, True)
    for n in range(200):
        assert store.cached(2, n) == entry_bytes(2, n)
        assert store.cached(1, n) is None
    assert store.read_ahead(4, 0, KIB) == (-1, True)


def test_a_damaged_run_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, n) for n in range(6 * RUN_ENTRIES)])
        with open(tmp_path / "logs" / f"{1:016x}.log", "r+b") as log:
            log.seek(4096 + 2 * 256 * KIB + 8)  # in the third run's header or items
            log.write(bytes(64))
        assert store.read_ahead(1, 0, 8 * KIB * KIB) == (6 * RUN_ENTRIES - 1, True)
        held = [n for n in range(6 * RUN_ENTRIES) if store.cached(1, n) is not None]
        assert 4 * RUN_ENTRIES <= len(held) < 6 * RUN_ENTRIES
        for n in held:
            assert store.cached(1, n) == entry_bytes(1, n)
        assert store.counts()["pinned_bytes"] == 0


def test_a_scan_does_not_push_out_what_is_read_singly(tmp_path: Path) -> None:
    """INV-B1: a scan has at most half of the cache, whatever it reads."""
    with opened(tmp_path, 4 * KIB * KIB) as store:
        end_bytes = flush(store, 1, [(1, n) for n in range(6 * RUN_ENTRIES)])
        flush(store, 2, [(2, n) for n in range(60 * RUN_ENTRIES)], end_bytes)
        kept = range(0, 6 * RUN_ENTRIES, RUN_ENTRIES)
        for n in kept:
            assert store.read(1, n, n).status == 0
        at = 0
        while at < 60 * RUN_ENTRIES:
            at = store.read_ahead(2, at, KIB * KIB)[0] + 1
            for n in kept:
                assert store.cached(1, n, scan=True) is not None
            assert store.counts()["cache_bytes"] <= 4 * KIB * KIB
        # The other way round: without the scan single reads may have all of it.
        for n in range(60 * RUN_ENTRIES):
            assert store.read(2, n, n).status == 0
        assert store.cached(1, 0) is None


def test_no_room_is_no_error(tmp_path: Path) -> None:
    """All that fits is pinned: nothing comes, nothing waits."""
    with opened(tmp_path, 300 * KIB) as store:
        flush(store, 1, [(1, n) for n in range(10 * RUN_ENTRIES)])
        through, ends = store.read_ahead(1, 0, 8 * KIB * KIB)
        assert (through, ends) == (RUN_ENTRIES - 1, False) or through < 10 * RUN_ENTRIES
        assert store.counts()["pinned_bytes"] == 0
