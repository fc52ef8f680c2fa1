"""The Python face of the store: readers in threads, bounds, statuses into exceptions."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.directories import log_path
from fastbk.wire.statuses import Status
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import (
    CANNOT_TELL,
    DIRECTORY,
    NO_ENTRY,
    OK,
    Life,
    StoreHarness,
    entry_bytes,
)
from tests.fixtures.store_harness import entry_bytes as front_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


# Which entry logs count: locations in logs that the manifest does not list are void (INV-X5).


LAST = 2**63 - 1


@pytest.fixture
def harness() -> Iterator[StoreHarness]:
    """Three flushes of ledger 1, each into a log of its own."""
    with FakeDisk() as fake:
        made = StoreHarness(fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1))
        made.birth()
        made.start()
        made.flush([(1, i) for i in range(10)])
        made.flush([(1, i) for i in range(10, 20)])
        made.flush([(1, i) for i in range(20, 30)])
        yield made
        made.end()


@pytest.fixture
def life(harness: StoreHarness) -> Life:
    assert harness.life is not None
    return harness.life


def test_what_lies_in_a_log_that_is_not_listed_is_not_there(life: Life) -> None:
    life.store.set_logs([1, 3])
    assert [life.store.read(1, i, i).status for i in (9, 10, 19, 20)] == [
        OK,
        NO_ENTRY,
        NO_ENTRY,
        OK,
    ]
    assert life.store.read(1, 10, LAST).entry_id == 20
    assert life.store.list(1).ranges == ((0, 9), (20, 29))
    assert sorted(life.store.ledger_bytes(1)) == [1, 3]
    life.store.set_logs([2])
    assert life.store.read(1, 0, LAST).entry_id == 10
    assert life.store.read(1, 20, LAST).status == NO_ENTRY
    life.store.set_logs([])
    assert life.store.read(1, 0, LAST).status == NO_ENTRY
    assert life.store.list(1).ranges == ()


def test_a_listed_log_that_is_gone_is_cannot_tell(life: Life) -> None:
    """An empty folder is no proof: only the manifest can say that a log is not needed."""
    life.disk.unlink(log_path(DIRECTORY, 2))
    assert life.store.read(1, 12, 12).status == CANNOT_TELL
    assert life.store.read(1, 10, LAST).status == CANNOT_TELL
    life.store.set_logs([1, 3])
    assert life.store.read(1, 12, 12).status == NO_ENTRY


def test_void_locations_do_not_make_a_read_shorter(harness: StoreHarness, life: Life) -> None:
    """A run that is moved leaves a void location of the same ids behind; batch reads go on from the new one alone."""
    again = [(1, i) for i in range(20, 30)]
    harness.pending = []
    harness.flush(again)  # the same entries in a second log
    life.store.set_logs([1, 2, 4])
    result = life.store.read(1, 20, LAST)
    assert (result.status, result.entry_id, result.alone_through) == (OK, 20, 29)
    life.store.set_logs([1, 2, 3, 4])
    assert life.store.read(1, 20, LAST).alone_through < 29


def test_a_merge_keeps_what_is_void_or_not_as_it_was(harness: StoreHarness, life: Life) -> None:
    harness.merge_all()
    life.store.set_logs([1, 3])
    assert life.store.list(1).ranges == ((0, 9), (20, 29))


def test_logs_come_in_order(life: Life) -> None:
    life.store.set_logs([3, 1, 2])
    assert life.store.list(1).ranges == ((0, 29),)


# What is read ahead, what stays in the read cache, and how many disk reads it takes.


KIB = 1024
ENTRY_BYTES = 4000
RUN_ENTRIES = 65
"""Of ENTRY_BYTES: a run is 256 KiB long."""


def run_entry_bytes(ledger_id: int, entry_id: int) -> bytes:
    return front_bytes(ledger_id, entry_id, 60).ljust(ENTRY_BYTES, b"+")


@contextmanager
def opened(folder: Path, read_cache_bytes: int) -> Iterator[Store]:
    for name in ("logs", "locations"):
        (folder / name).mkdir(exist_ok=True)
    with Disk(folder, "plain") as disk, Disk(folder, "plain") as reader_disk:
        options = StoreOptions(incarnation=3, read_cache_size_bytes=read_cache_bytes)
        caching_store = Store(folder, disk, reader_disk, options)
        try:
            yield caching_store
        finally:
            caching_store.destroy()


def flush_runs(
    caching_store: Store, number: int, entries: list[tuple[int, int]], log_offset_bytes: int = 0
) -> int:
    """Flush entries into log 1 and locations file `number`; return the log's end."""
    items = FlushContents.from_entries(
        (ledger, entry, run_entry_bytes(ledger, entry)) for ledger, entry in entries
    )
    flush_runs = caching_store.begin_flush(
        FlushOptions(1, log_offset_bytes, 9, number, number, 1), items
    )
    while flush_runs.step(1 << 20):
        pass
    end_bytes = flush_runs.end().log_end_bytes
    caching_store.add(number)
    return end_bytes


@pytest.fixture
def caching_store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path, 16 * KIB * KIB) as made:
        yield made


def test_neighbours_come_in_few_disk_reads(caching_store: Store) -> None:
    flush_runs(caching_store, 1, [(1, n) for n in range(30 * RUN_ENTRIES)])
    through, ends = caching_store.read_ahead(1, 0, 4 * KIB * KIB)
    counts = caching_store.counts()
    assert not ends
    assert 12 * RUN_ENTRIES <= through + 1 <= 17 * RUN_ENTRIES
    assert counts["ahead_runs"] * RUN_ENTRIES >= through + 1
    assert counts["ahead_reads"] <= counts["ahead_runs"] / 3
    for n in range(through + 1):
        assert caching_store.cached(1, n) == run_entry_bytes(1, n)
    assert caching_store.counts()["pinned_bytes"] == 0


def test_it_goes_on_where_it_ended_and_says_when_there_is_no_more(caching_store: Store) -> None:
    flush_runs(caching_store, 1, [(1, n) for n in range(10 * RUN_ENTRIES)])
    at, rounds, ends = 0, 0, False
    while not ends:
        through, ends = caching_store.read_ahead(1, at, 600 * KIB)
        assert through >= at or ends
        at, rounds = through + 1, rounds + 1
    assert at == 10 * RUN_ENTRIES
    assert rounds > 3
    runs = caching_store.counts()["run_reads"]
    assert caching_store.read_ahead(1, 0, 8 * KIB * KIB) == (10 * RUN_ENTRIES - 1, True)
    assert caching_store.counts()["run_reads"] == runs, "what is in memory is not read again"


def test_only_the_ledger_asked_for_comes(caching_store: Store) -> None:
    """Several files, several ledgers between each other, gaps."""
    end_bytes = flush_runs(
        caching_store, 1, [(ledger, 2 * n) for ledger in (1, 2, 3) for n in range(100)]
    )
    flush_runs(
        caching_store, 2, [(ledger, 2 * n + 1) for ledger in (2, 3) for n in range(100)], end_bytes
    )
    assert caching_store.read_ahead(2, 0, 8 * KIB * KIB) == (199, True)
    for n in range(200):
        assert caching_store.cached(2, n) == run_entry_bytes(2, n)
        assert caching_store.cached(1, n) is None
    assert caching_store.read_ahead(4, 0, KIB) == (-1, True)


def test_a_damaged_run_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as caching_store:
        flush_runs(caching_store, 1, [(1, n) for n in range(6 * RUN_ENTRIES)])
        with open(tmp_path / "logs" / f"{1:016x}.log", "r+b") as log:
            log.seek(4096 + 2 * 256 * KIB + 8)  # in the third run's header or items
            log.write(bytes(64))
        assert caching_store.read_ahead(1, 0, 8 * KIB * KIB) == (6 * RUN_ENTRIES - 1, True)
        held = [n for n in range(6 * RUN_ENTRIES) if caching_store.cached(1, n) is not None]
        assert 4 * RUN_ENTRIES <= len(held) < 6 * RUN_ENTRIES
        for n in held:
            assert caching_store.cached(1, n) == run_entry_bytes(1, n)
        assert caching_store.counts()["pinned_bytes"] == 0


def test_a_scan_does_not_push_out_what_is_read_singly(tmp_path: Path) -> None:
    """INV-B1: a scan has at most half of the cache, whatever it reads."""
    with opened(tmp_path, 4 * KIB * KIB) as caching_store:
        end_bytes = flush_runs(caching_store, 1, [(1, n) for n in range(6 * RUN_ENTRIES)])
        flush_runs(caching_store, 2, [(2, n) for n in range(60 * RUN_ENTRIES)], end_bytes)
        kept = range(0, 6 * RUN_ENTRIES, RUN_ENTRIES)
        for n in kept:
            assert caching_store.read(1, n, n).status == 0
        at = 0
        while at < 60 * RUN_ENTRIES:
            at = caching_store.read_ahead(2, at, KIB * KIB)[0] + 1
            for n in kept:
                assert caching_store.cached(1, n, scan=True) is not None
            assert caching_store.counts()["cache_bytes"] <= 4 * KIB * KIB
        # The other way round: without the scan single reads may have all of it.
        for n in range(60 * RUN_ENTRIES):
            assert caching_store.read(2, n, n).status == 0
        assert caching_store.cached(1, 0) is None


def test_no_room_is_no_error(tmp_path: Path) -> None:
    """All that fits is pinned: nothing comes, nothing waits."""
    with opened(tmp_path, 300 * KIB) as caching_store:
        flush_runs(caching_store, 1, [(1, n) for n in range(10 * RUN_ENTRIES)])
        through, ends = caching_store.read_ahead(1, 0, 8 * KIB * KIB)
        assert (through, ends) == (RUN_ENTRIES - 1, False) or through < 10 * RUN_ENTRIES
        assert caching_store.counts()["pinned_bytes"] == 0


# Single reads: what they read of a large run, what stays in the read cache, and what damage they
# see.


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
        flush_runs(store, 1, [(1, n) for n in range(20 * RUN_ENTRIES)])
        for n in range(7, 20 * RUN_ENTRIES, RUN_ENTRIES):
            assert store.read(1, n, n).entry == run_entry_bytes(1, n)
            assert store.cached(1, n) == run_entry_bytes(1, n)
            assert store.cached(1, n + 1) is None
        counts = store.counts()
        assert counts["run_reads"] == 20
        assert counts["run_read_bytes"] <= 20 * (ENTRY_BYTES + RUN_ENTRIES * ITEM_BYTES + 200)
        assert counts["cache_bytes"] <= 20 * 8 * KIB
        assert counts["pinned_bytes"] == 0


def test_a_run_that_is_read_often_is_read_whole(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush_runs(store, 1, [(1, n) for n in range(2 * RUN_ENTRIES)])
        wanted = range(0, 3 * SINGLES_MAX, 3)
        for n in (*wanted, *wanted):
            assert store.read(1, n, n).entry == run_entry_bytes(1, n)
        assert store.counts()["run_reads"] == SINGLES_MAX, "what is in memory is not read again"
        assert store.read(1, 1, 1).entry == run_entry_bytes(1, 1)
        for n in range(RUN_ENTRIES):
            assert store.cached(1, n) == run_entry_bytes(1, n)
        assert store.counts()["run_reads"] == SINGLES_MAX + 1
        assert store.cached(1, RUN_ENTRIES) is None


def test_ids_between_those_of_a_run_are_not_there(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        end_bytes = flush_runs(store, 1, [(1, 2 * n) for n in range(RUN_ENTRIES)])
        flush_runs(store, 2, [(1, 21)], end_bytes)
        assert store.read(1, 20, 20).entry == run_entry_bytes(1, 20)
        assert store.read(1, 21, 21).entry == run_entry_bytes(1, 21)
        assert store.read(1, 23, 23).status == Status.NO_ENTRY
        assert store.read(1, 21, 30).entry == run_entry_bytes(1, 21)
        assert store.read(1, 23, 30).entry == run_entry_bytes(1, 24)


def test_a_damaged_entry_stops_nobody_else(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush_runs(store, 1, [(1, n) for n in range(2 * RUN_ENTRIES)])
        overwrite(tmp_path, ENTRY_AT + 5 * ENTRY_BYTES + 100, b"?")
        assert store.read(1, 4, 4).entry == run_entry_bytes(1, 4)
        assert store.read(1, 5, 5).status == Status.CANNOT_TELL
        assert store.read(1, 6, 6).entry == run_entry_bytes(1, 6)
        counts = store.counts()
        assert (counts["damaged_entries"], counts["damaged_runs"]) == (1, 0)
        assert counts["pinned_bytes"] == 0


@pytest.mark.parametrize("offset_bytes", [3, HEADER_BYTES + 40 * ITEM_BYTES + 9])
def test_a_damaged_header_or_item_table_is_believed_nothing(
    tmp_path: Path, offset_bytes: int
) -> None:
    """INV-X1: also what lies between the ids that look right."""
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush_runs(store, 1, [(1, 2 * n) for n in range(2 * RUN_ENTRIES)])
        overwrite(tmp_path, RUN_AT + offset_bytes, b"?")
        for n in (0, 1, 2, 80, 2 * RUN_ENTRIES - 3):
            assert store.read(1, n, n).status == Status.CANNOT_TELL
        behind = 2 * RUN_ENTRIES
        assert store.read(1, behind, behind).entry == run_entry_bytes(1, behind)
        assert store.counts()["pinned_bytes"] == 0


def test_a_small_run_is_read_whole(tmp_path: Path) -> None:
    with opened(tmp_path, 16 * KIB * KIB) as store:
        flush_runs(store, 1, [(1, n) for n in range(5)])
        assert store.read(1, 2, 2).entry == run_entry_bytes(1, 2)
        assert store.cached(1, 3) == run_entry_bytes(1, 3)
        assert store.counts()["run_reads"] == 1


def test_with_no_room_for_more_than_one_run_every_entry_comes(tmp_path: Path) -> None:
    with opened(tmp_path, 300 * KIB) as store:
        flush_runs(store, 1, [(1, n) for n in range(4 * RUN_ENTRIES)])
        for n in range(0, 4 * RUN_ENTRIES, 2):
            assert store.read(1, n, n).entry == run_entry_bytes(1, n)
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
        flush_runs(store, 1, [(1, n) for n in range(20 * RUN_ENTRIES)])
        assert store.read_cached(1, 0) is None, "neither log nor locations were looked at"
        assert store.read(1, 0, 0).entry == run_entry_bytes(1, 0)
        lookups = store.counts()["lookups"]
        drop_from_memory(tmp_path)
        assert store.read_cached(1, 500) is None
        can_tell = warm(tmp_path)
        for n in range(7, 20 * RUN_ENTRIES, 50):
            wanted = run_entry_bytes(1, n) if can_tell else None
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
        flush_runs(store, 1, [(1, n) for n in range(4 * RUN_ENTRIES)])
        overwrite(tmp_path, ENTRY_AT + 5 * ENTRY_BYTES + 100, b"?")
        overwrite(tmp_path, RUN_AT + 2 * 256 * KIB + 8, bytes(64))  # in the third run's header
        assert store.read(1, 0, 0).entry == run_entry_bytes(1, 0)
        can_tell = warm(tmp_path)
        assert store.read_cached(1, 4) == (run_entry_bytes(1, 4) if can_tell else None)
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
