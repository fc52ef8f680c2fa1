"""Single reads: what they read of a large run, what stays in the read cache, and what damage they see."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fastbk.native.store import FlushContents, FlushOptions
from fastbk.wire.statuses import Status
from tests.fixtures.store_harness import entry_bytes as front_bytes
from tests.unit.native.test_read_ahead import (
    ENTRY_BYTES,
    KIB,
    RUN_ENTRIES,
    entry_bytes,
    flush,
    opened,
)

SINGLES_MAX = 8
"""Entries of one run that are in the cache alone, at most; as in store/entry_fetch.c."""
HEADER_BYTES, ITEM_BYTES = 72, 24
RUN_AT = 4096
"""Where a log's first run begins."""
ENTRY_AT = RUN_AT + HEADER_BYTES + RUN_ENTRIES * ITEM_BYTES
"""Where its first entry does."""


def overwrite(folder: Path, offset_bytes: int, data: bytes) -> None:
    with open(folder / "logs" / f"{1:016x}.log", "r+b") as log:
        log.seek(offset_bytes)
        log.write(data)


def test_a_read_at_random_brings_its_entry_and_not_the_run(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, n) for n in range(20 * RUN_ENTRIES)])
        for n in range(7, 20 * RUN_ENTRIES, RUN_ENTRIES):
            assert store.read(1, n, n).entry == entry_bytes(1, n)
            assert store.cached(1, n) == entry_bytes(1, n)
            assert store.cached(1, n + 1) is None
        counts = store.counts()
        assert counts["run_reads"] == 20
        assert counts["run_read_bytes"] <= 20 * (ENTRY_BYTES + RUN_ENTRIES * ITEM_BYTES + 200)
        assert counts["cache_bytes"] <= 20 * 8 * KIB
        assert counts["pinned_bytes"] == 0


def test_a_run_that_is_read_often_is_read_whole(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, n) for n in range(2 * RUN_ENTRIES)])
        wanted = range(0, 3 * SINGLES_MAX, 3)
        for n in (*wanted, *wanted):
            assert store.read(1, n, n).entry == entry_bytes(1, n)
        assert store.counts()["run_reads"] == SINGLES_MAX, "what is in memory is not read again"
        assert store.read(1, 1, 1).entry == entry_bytes(1, 1)
        for n in range(RUN_ENTRIES):
            assert store.cached(1, n) == entry_bytes(1, n)
        assert store.counts()["run_reads"] == SINGLES_MAX + 1
        assert store.cached(1, RUN_ENTRIES) is None


def test_ids_between_those_of_a_run_are_not_there(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        end_bytes = flush(store, 1, [(1, 2 * n) for n in range(RUN_ENTRIES)])
        flush(store, 2, [(1, 21)], end_bytes)
        assert store.read(1, 20, 20).entry == entry_bytes(1, 20)
        assert store.read(1, 21, 21).entry == entry_bytes(1, 21)
        assert store.read(1, 23, 23).status == Status.NO_ENTRY
        assert store.read(1, 21, 30).entry == entry_bytes(1, 21)
        assert store.read(1, 23, 30).entry == entry_bytes(1, 24)


def test_a_damaged_entry_stops_nobody_else(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, n) for n in range(2 * RUN_ENTRIES)])
        overwrite(tmp_path, ENTRY_AT + 5 * ENTRY_BYTES + 100, b"?")
        assert store.read(1, 4, 4).entry == entry_bytes(1, 4)
        assert store.read(1, 5, 5).status == Status.CANNOT_TELL
        assert store.read(1, 6, 6).entry == entry_bytes(1, 6)
        counts = store.counts()
        assert (counts["damaged_entries"], counts["damaged_runs"]) == (1, 0)
        assert counts["pinned_bytes"] == 0


@pytest.mark.parametrize("offset_bytes", [3, HEADER_BYTES + 40 * ITEM_BYTES + 9])
def test_a_damaged_header_or_item_table_is_believed_nothing(
    tmp_path: Path, offset_bytes: int
) -> None:
    """INV-X1: also what lies between the ids that look right."""
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, 2 * n) for n in range(2 * RUN_ENTRIES)])
        overwrite(tmp_path, RUN_AT + offset_bytes, b"?")
        for n in (0, 1, 2, 80, 2 * RUN_ENTRIES - 3):
            assert store.read(1, n, n).status == Status.CANNOT_TELL
        behind = 2 * RUN_ENTRIES
        assert store.read(1, behind, behind).entry == entry_bytes(1, behind)
        assert store.counts()["pinned_bytes"] == 0


def test_a_small_run_is_read_whole(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, n) for n in range(5)])
        assert store.read(1, 2, 2).entry == entry_bytes(1, 2)
        assert store.cached(1, 3) == entry_bytes(1, 3)
        assert store.counts()["run_reads"] == 1


def test_with_no_room_for_more_than_one_run_every_entry_comes(tmp_path: Path) -> None:
    with opened(tmp_path, 300 * KIB) as store:
        flush(store, 1, [(1, n) for n in range(4 * RUN_ENTRIES)])
        for n in range(0, 4 * RUN_ENTRIES, 2):
            assert store.read(1, n, n).entry == entry_bytes(1, n)
            assert store.counts()["cache_bytes"] <= 300 * KIB
        assert store.counts()["pinned_bytes"] == 0


def drop_from_memory(folder: Path) -> None:
    """Have the kernel forget what it holds of log 1."""
    file = os.open(folder / "logs" / f"{1:016x}.log", os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def warm(folder: Path) -> bool:
    """Have the kernel hold all of log 1; return whether its file system tells so (tmpfs and overlayfs do not)."""
    log = folder / "logs" / f"{1:016x}.log"
    log.read_bytes()
    file = os.open(log, os.O_RDONLY)
    try:
        return os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return False
    finally:
        os.close(file)


def test_what_the_kernel_holds_is_read_without_a_reader(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, n) for n in range(20 * RUN_ENTRIES)])
        assert store.read_cached(1, 0) is None, "neither log nor locations were looked at"
        assert store.read(1, 0, 0).entry == entry_bytes(1, 0)
        lookups = store.counts()["lookups"]
        drop_from_memory(tmp_path)
        assert store.read_cached(1, 500) is None
        can_tell = warm(tmp_path)
        for n in range(7, 20 * RUN_ENTRIES, 50):
            wanted = entry_bytes(1, n) if can_tell else None
            assert store.read_cached(1, n) == wanted
            assert store.cached(1, n) == wanted
        counts = store.counts()
        assert counts["lookups"] == lookups
        assert counts["pinned_bytes"] == 0
        assert store.read_cached(1, 20 * RUN_ENTRIES) is None
        assert store.read_cached(2, 0) is None


def test_a_read_from_memory_believes_no_damage(tmp_path: Path) -> None:
    """INV-X1: what does not check out there is for a reader to look into."""
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush(store, 1, [(1, n) for n in range(4 * RUN_ENTRIES)])
        overwrite(tmp_path, ENTRY_AT + 5 * ENTRY_BYTES + 100, b"?")
        overwrite(tmp_path, RUN_AT + 2 * 256 * KIB + 8, bytes(64))  # in the third run's header
        assert store.read(1, 0, 0).entry == entry_bytes(1, 0)
        can_tell = warm(tmp_path)
        assert store.read_cached(1, 4) == (entry_bytes(1, 4) if can_tell else None)
        assert store.read_cached(1, 5) is None
        assert store.read_cached(1, 2 * RUN_ENTRIES + 30) is None
        assert store.read(1, 5, 5).status == Status.CANNOT_TELL
        assert store.read_cached(1, 5) is None
        assert store.counts()["pinned_bytes"] == 0
        assert store.counts()["damaged_entries"] == 1


def test_a_large_entry_is_left_to_a_reader(tmp_path: Path) -> None:
    """The main loop neither copies nor checks much by itself."""
    with opened(tmp_path, 16 * KIB * KIB) as store:
        data = front_bytes(1, 0, 60).ljust(100 * KIB, b"+")
        flushed = store.begin_flush(
            FlushOptions(1, 0, 9, 1, 1, 1), FlushContents.from_entries([(1, 0, data), (1, 1, data)])
        )
        while flushed.step(1 << 20):
            pass
        flushed.end()
        store.add(1)
        assert store.read(1, 0, 0).entry == data
        warm(tmp_path)
        taken_bytes = store.counts()["cache_bytes"]
        assert store.read_cached(1, 1) is None
        assert store.counts()["cache_bytes"] == taken_bytes, "no room was made for it"
        assert store.read(1, 1, 1).entry == data
