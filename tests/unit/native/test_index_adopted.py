"""Runs that stay in the journal's file: what a flush publishes of them, and what it leaves out."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest

from fastbk.errors import ProtocolError
from fastbk.native._bookie import ffi
from fastbk.native.index import FLUSH
from tests.fixtures.index_harness import CHECK, CONFLICT, KEY, OK, SALT, IndexHarness
from tests.fixtures.journal_harness import (
    INDEX_INDEXED,
    INDEX_TAIL_RELEASED,
    JOURNAL_LOG,
    JOURNAL_RUNS,
    RUN,
    TAIL_BYTES,
    entry,
)
from tests.unit.native.test_index_apply import counter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.native.store import AdoptedFile

KIB = 1024
LOCATION = struct.Struct("<qqqqQQIIQ")


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    harness = IndexHarness(worker_count=2)
    yield harness
    harness.close()


def add_run(
    harness: IndexHarness, ledger_id: int, first: int, last: int, worker: int = 0
) -> tuple[int, dict[int, bytes]]:
    """Add entries of a KiB that the journal then writes as a run."""
    entries = {n: entry(ledger_id, n, bytes([n % 256]) * KIB) for n in range(first, last + 1)}
    for n in entries:
        harness.add(ledger_id, n, bytes([n % 256]) * KIB, worker=worker)
    return ledger_id, entries


def size_of(count: int) -> int:
    """Return the size of a run of so many entries of a KiB."""
    return 72 + 24 * count + (KIB + 32) * count


def flushed(
    harness: IndexHarness,
) -> tuple[list[tuple[int, int]], list[AdoptedFile], list[tuple[int, ...]]]:
    """Seal; return the entries that are copied, the files with runs, and where these runs are said to lie."""
    harness.run()
    harness.index.seal()
    contents = harness.index.sealed().contents
    raw = contents.handle
    items = [(int(item.ledger_id), int(item.entry_id)) for item in raw.items[0 : raw.item_count]]
    size = raw.adopted_count * LOCATION.size
    locations = LOCATION.iter_unpack(
        ffi.buffer(ffi.cast("char *", raw.adopted), size)[:] if size else b""
    )
    places = [(*place[:3], *place[4:6]) for place in locations]
    files = contents.adopted
    harness.index.flushed()
    return items, files, places


def test_the_entries_of_a_run_are_read_and_not_copied(harness: IndexHarness) -> None:
    runs = [add_run(harness, 9, 0, 39), add_run(harness, 4, 0, 39, worker=1)]
    for n in range(40):
        harness.add(5, n, b"small")
    harness.publish(runs=runs)
    harness.run()
    for ledger_id in (9, 4, 5):
        answer = harness.ask_one(harness.read(ledger_id, 7))
        assert answer.status == OK
        assert answer.entry == entry(ledger_id, 7, b"small" if ledger_id == 5 else bytes([7]) * KIB)
    assert harness.index.status.cache_bytes < 120 * 100, "an entry of a run costs its item"
    items, files, places = flushed(harness)
    assert items == [(5, n) for n in range(40)]
    (file,) = files
    assert (file.file_id, file.salt, file.run_count, file.run_bytes) == (
        1,
        SALT + 1,
        2,
        2 * size_of(40),
    )
    first = 8192 + 88 + 96
    assert places == [
        (4, 0, 39, JOURNAL_LOG | 1, first + size_of(40) + 96),
        (9, 0, 39, JOURNAL_LOG | 1, first),
    ]
    assert harness.ask_one(harness.read(9, 39)).status == OK, (
        "it stays readable until it is filled again"
    )


def released(harness: IndexHarness) -> int:
    return harness.memory.get(INDEX_TAIL_RELEASED)


def test_the_journal_s_ring_is_given_back_when_nothing_points_there(harness: IndexHarness) -> None:
    harness.publish(runs=[add_run(harness, 1, 0, 39)])
    harness.run()
    first_end = harness.tail.written
    assert released(harness) == 0
    flushed(harness)
    assert released(harness) == 0, "what was flushed is still read"
    harness.publish(runs=[add_run(harness, 1, 40, 79)])
    harness.run()
    assert released(harness) == 0
    flushed(harness)
    assert released(harness) == first_end
    assert harness.ask_one(harness.read(1, 79)).status == OK
    harness.add(1, 80)
    harness.publish()
    flushed(harness)
    harness.run()
    assert released(harness) == harness.tail.written, "what is not in a run is copied"


def test_a_run_whose_record_lies_across_the_ring_s_end_is_taken_in(harness: IndexHarness) -> None:
    harness.tail.written = TAIL_BYTES - 4096
    # The first run ends 48 bytes before the ring's end: half of a record.
    payload = bytes(4096 - 48 - (88 + 96) - (72 + 24) - 32)
    harness.add(1, 0, payload)
    first = (1, {0: entry(1, 0, payload)})
    harness.publish(runs=[first, add_run(harness, 2, 0, 39)])
    harness.run()
    for ledger_id, data in ((1, payload), (2, bytes([0]) * KIB)):
        assert harness.ask_one(harness.read(ledger_id, 0)).entry == entry(ledger_id, 0, data)
    assert flushed(harness)[0] == []


def test_a_flush_is_due_when_a_third_of_the_ring_is_in_use(harness: IndexHarness) -> None:
    reasons, batches = 0, 0
    while not reasons & FLUSH:
        harness.publish(runs=[add_run(harness, 1, 40 * batches, 40 * batches + 39)])
        reasons = harness.run()
        batches += 1
    assert TAIL_BYTES // 3 <= harness.tail.written < TAIL_BYTES // 3 + 2 * size_of(40)


def test_each_flush_has_its_own_runs_and_files(harness: IndexHarness) -> None:
    for file_id in (1, 1, 2):
        first = harness.batch_sequence * 40
        harness.publish(runs=[add_run(harness, 1, first, first + 39)], file_id=file_id)
    items, files, places = flushed(harness)
    assert (items, [(file.file_id, file.run_count) for file in files]) == ([], [(1, 2), (2, 1)])
    assert [place[1] for place in places] == [0, 40, 80]
    assert flushed(harness) == ([], [], [])
    harness.add(1, 120)
    harness.publish(file_id=3)
    assert flushed(harness) == ([(1, 120)], [], [])
    harness.index.seal()
    assert harness.index.sealed().file_id == 3


def test_what_is_checked_among_a_run_is_no_part_of_it(harness: IndexHarness) -> None:
    """INV-J6: a checked copy of an id that lies between a run's is decided by what is stored."""
    run = {n: entry(1, n, bytes([n]) * KIB) for n in (0, 1, 3, 4)}
    for n in run:
        harness.add(1, n, bytes([n]) * KIB)
    late = harness.add(1, 2, b"late")
    again = harness.add(1, 3, b"another")
    harness.publish({late: CHECK, again: CHECK}, runs=[(1, run)])
    harness.run(steps=3)
    assert sorted(answer.status for answer in harness.answers()) == [OK, CONFLICT]
    assert harness.ask_one(harness.read(1, 3)).entry == run[3]
    items, _, places = flushed(harness)
    assert items == [(1, 2)]
    assert [place[:3] for place in places] == [(1, 0, 4)]


def test_summaries_that_cannot_be_end_the_index(harness: IndexHarness) -> None:
    harness.runs = 16385
    harness.publish()
    with pytest.raises(ProtocolError):
        harness.run()


def test_a_run_outside_of_its_batch_ends_the_index(harness: IndexHarness) -> None:
    harness.publish(runs=[add_run(harness, 1, 0, 39)])
    raw = list(RUN.unpack_from(harness.journal.map, JOURNAL_RUNS))
    raw[4] += 4096
    RUN.pack_into(harness.journal.map, JOURNAL_RUNS, *raw)
    with pytest.raises(ProtocolError):
        harness.run()


def test_a_ring_whose_adds_are_all_in_runs_is_passed_over(harness: IndexHarness) -> None:
    """Nothing of it is read, so nothing of it can be wrong; credit and places go on as if it had been."""
    harness.publish(
        runs=[add_run(harness, 1, 0, 39), add_run(harness, 2, 0, 39, worker=1)], is_all=True
    )
    for w in (0, 1):
        harness.adds[w].write(0, bytes(harness.adds[w].written))
    harness.run()
    assert harness.ask_one(harness.read(1, 39)).status == OK
    assert harness.ask_one(harness.read(2, 0, worker=1)).status == OK
    assert [harness.memory.get(INDEX_INDEXED + 64 * w) for w in (0, 1)] == [
        ring.written for ring in harness.adds
    ]
    assert counter(harness, "ENTRIES") == 80
    harness.add(1, 40, b"behind it")
    harness.publish()
    harness.run()
    assert harness.ask_one(harness.read(1, 40)).status == OK
    items, _, places = flushed(harness)
    assert (items, len(places)) == ([(1, 40)], 2)


def test_the_key_of_a_new_ledger_comes_with_its_run(harness: IndexHarness) -> None:
    harness.publish(runs=[add_run(harness, 1, 0, 39)], is_all=True)
    harness.run()
    states_fd = os.memfd_create("states")
    assert harness.index.write_states(states_fd) == 1
    assert KEY in os.pread(states_fd, 4096, 0)
    os.close(states_fd)


def test_the_mark_has_reached_the_file_of_its_batch(harness: IndexHarness) -> None:
    """INV-J3: files before it are passed, and no other."""
    for file_id in (1, 2, 3):
        harness.add(1, 10 * file_id, b"new")
        harness.publish(file_id=file_id)
    harness.run()
    harness.index.seal()
    sealed = harness.index.sealed()
    assert (sealed.file_id, sealed.batch_offset_bytes) == (3, 8192)
    harness.index.flushed()
