"""The Python face of the store: readers in threads, bounds, statuses into exceptions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.errors import Error
from fastbk.native._bookie import ffi, lib
from fastbk.native.disk import Disk
from fastbk.native.ffi import NativeFullError
from fastbk.native.hashes import crc32c
from fastbk.native.store import (
    DELETED,
    FlushContents,
    FlushOptions,
    LedgerState,
    Store,
    StoreOptions,
    pack_state,
    unpack_state,
)
from tests.fixtures.store_harness import entry_bytes

OPTIONS = FlushOptions(1, 0, 9, 1, 1, 1)


@pytest.fixture(params=["plain", "auto"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    for folder in ("logs", "locations"):
        (tmp_path / folder).mkdir()
    with Disk(tmp_path, request.param) as disk, Disk(tmp_path, "plain") as reader_disk:
        store = Store(tmp_path, disk, reader_disk, StoreOptions(incarnation=3, read_jobs_max=4))
        yield store
        store.destroy()


def flush(store: Store, options: FlushOptions, items: FlushContents) -> int:
    flush = store.begin_flush(options, items)
    while flush.step(1 << 20):
        pass
    return flush.end().log_end_bytes


def test_what_is_flushed_is_read(store: Store) -> None:
    entries = [(i % 4, i // 4, entry_bytes(i % 4, i // 4, 3000)) for i in range(1200)]
    end_bytes = flush(store, OPTIONS, FlushContents.from_entries(reversed(entries)))
    assert end_bytes % 4096 == 0
    assert not store.add(1)
    for ledger_id, entry_id, data in entries:
        assert store.read(ledger_id, entry_id, entry_id).entry == data
        assert store.cached(ledger_id, entry_id) == data
    assert store.list(2).ranges == ((0, 299),)
    counts = store.counts()
    assert counts["run_reads"] < 50
    assert counts["cache_bytes"] <= 16 << 20
    assert counts["pinned_bytes"] == 0


def test_a_list_of_many_gaps_comes_in_pieces(store: Store) -> None:
    """INV-B1: what one listing remembers is bounded, however many gaps a striped ledger has."""
    ids = range(0, 2 * 70_000, 2)
    entries = [(1, entry_id, b"x" * 33) for entry_id in ids]
    flush(store, OPTIONS, FlushContents.from_entries(entries))
    store.add(1)
    found: list[int] = []
    first, pieces = 0, 0
    while first >= 0:
        result = store.list(1, first, 100_000)
        found += [one for one, last in result.ranges if one == last]
        first, pieces = result.go_on, pieces + 1
    assert found == list(ids)
    assert pieces == 2


def test_an_entry_larger_than_a_run_and_than_a_piece(store: Store) -> None:
    entries = [(1, 0, b"a" * 40), (1, 1, bytes(range(256)) * 14_000), (1, 2, b"b" * 40)]
    flush(store, OPTIONS, FlushContents.from_entries(entries))
    store.add(1)
    for ledger_id, entry_id, data in entries:
        assert store.read(ledger_id, entry_id, entry_id).entry == data


def test_readers_in_threads(store: Store) -> None:
    entries = [(1, e, entry_bytes(1, e)) for e in range(1000)]
    flush(store, OPTIONS, FlushContents.from_entries(entries))
    store.add(1)
    event_fd = os.eventfd(0)
    threads = [threading.Thread(target=store.reader_run, args=(event_fd,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    result = ffi.new("struct fbk_store_result *")
    for entry_id in range(0, 1000, 50):
        lib.fbk_store_submit(store.handle, entry_id, 1, entry_id, entry_id, 1, 0)
        os.eventfd_read(event_fd)  # rung once the job is done
        assert lib.fbk_store_collect(store.handle, result, 1) == 1
        assert (result.ticket, result.status, result.found_entry_id) == (entry_id, 0, entry_id)
        lib.fbk_store_release(store.handle, result.run)
    store.stop_readers()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    with pytest.raises(Error):
        store.read(1, 0, 0)
    os.close(event_fd)


def test_more_jobs_than_the_bound(store: Store) -> None:
    for ticket in range(4):
        assert lib.fbk_store_submit(store.handle, ticket, 1, 0, 0, 0, 0) == 0
    with pytest.raises(NativeFullError):
        store.read(1, 0, 0)


def test_ids_are_used_once(store: Store) -> None:
    flush(store, OPTIONS, FlushContents.from_entries([(1, 0, b"x" * 32)]))
    with pytest.raises(FileExistsError):
        store.begin_flush(OPTIONS, FlushContents.from_entries([(1, 1, b"x" * 32)]))


def test_one_flush_at_a_time(store: Store) -> None:
    first = store.begin_flush(OPTIONS, FlushContents.from_entries([(1, 0, b"x" * 32)]))
    with pytest.raises(OSError, match="busy"):
        store.begin_flush(OPTIONS, FlushContents.from_entries([(1, 1, b"x" * 32)]))
    first.abandon()
    first.abandon()
    with pytest.raises(ValueError, match="ended"):
        first.step(1)


def test_an_entry_that_no_run_can_hold_is_refused(store: Store) -> None:
    flushing = store.begin_flush(OPTIONS, FlushContents.from_entries([(1, 0, b"")]))
    with pytest.raises(OSError, match="Invalid argument"):
        flushing.step(1)
    flushing.abandon()


def test_an_unknown_file_is_all_doubt(store: Store) -> None:
    assert store.prepare(77)
    assert store.add(77)
    assert store.read(1, 0, 0).status == lib.FBK_S_CANNOT_TELL
    with pytest.raises(FileNotFoundError):
        store.remove(78)
    store.remove(77)
    assert store.read(1, 0, 0).status == lib.FBK_S_NO_ENTRY


def test_states_there_and_back() -> None:
    state = LedgerState(
        2**63 - 1, -1, 5, 2**64 - 1, DELETED, bytes(range(20)), 2**32 - 1, 2**32 - 2
    )
    raw = pack_state(state)
    assert len(raw) == 72
    assert int.from_bytes(raw[-4:], "little") == crc32c(raw[:-4])
    assert unpack_state(raw) == state


def test_a_destroyed_store_is_not_used(store: Store) -> None:
    store.destroy()
    store.destroy()
    with pytest.raises(ValueError, match="destroyed"):
        store.counts()
