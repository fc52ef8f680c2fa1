"""Single reads: what they read of a large run, what stays in the read cache, and what damage they see."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.wire.statuses import Status
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
