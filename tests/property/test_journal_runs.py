"""Runs in journal files that may stay as logs: what they hold, where they lie, and in which order a batch is read.

INV-J6, INV-J7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.native.ffi import PoisonedError
from fastbk.native.hashes import crc32c
from fastbk.native.journal import JournalScan, read_header
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_harness import (
    CHECK,
    INCARNATION,
    INDEX_RUNS_CONSUMED,
    JOURNAL_LOG,
    KIND_ADD,
    KIND_ADD_BATCH,
    KIND_FENCE,
    KIND_RUN,
    RECOVERY,
    RUN_HEADER,
    RUN_ITEM,
    DirectJournal,
    JournalHarness,
    entries_of_run,
    entry,
)
from tests.property.test_journal_format import SALT, new_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.native.disk import Disk
    from fastbk.native.journal import JournalBatch, JournalRecord
    from tests.fixtures.journal_harness import Put

KIB = 1024
FILE_BYTES = 16 << 20
RUN_BYTES_MAX = 256 * KIB
RUN_ENTRIES_MAX = 256
RUN_SPAN_MAX = 4096

SIZES = st.sampled_from([0, 1, 100, 1000, 7 * KIB, 9 * KIB, 33 * KIB, 70 * KIB])
STEPS = st.sampled_from([1, 1, 1, 1, 2, 5000, -1, -3, 0])
FLAGS = st.sampled_from([0] * 12 + [RECOVERY])
ADDS = st.tuples(st.just("add"), st.integers(0, 3), STEPS, FLAGS, st.integers(1, 40), SIZES)
BATCHES = st.tuples(st.just("batch"), st.integers(0, 3), STEPS, FLAGS, st.integers(1, 40), SIZES)
FENCES = st.tuples(st.just("fence"), st.just(3), st.just(0), st.just(0), st.just(1), st.just(0))


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk() as disk:
        yield disk


def adopting(disk: Disk, **options: object) -> JournalHarness:
    """Return a journal whose file may stay as a log."""
    harness = JournalHarness(
        disk, journal_type=DirectJournal, worker_count=2, ring_bytes=8 << 20, **options
    )
    assert harness.journal is not None
    harness.journal.roll(new_file(disk, "/1", FILE_BYTES), 1, SALT, FILE_BYTES, adopts=True)
    return harness


def read_back(harness: JournalHarness, disk: Disk) -> list[JournalBatch]:
    harness.settle()
    assert harness.journal is not None
    assert harness.journal.close()
    harness.look()
    with JournalScan(disk, "/1", 1, INCARNATION) as scan:
        batches = list(scan)
        assert scan.end.kind == "closing"
    return batches


def entries_of_put(put: Put) -> dict[int, bytes]:
    """Return the entries of a record in a ring by their ids."""
    if put.kind == KIND_ADD:
        return {put.entry_id: put.payload}
    if put.kind != KIND_ADD_BATCH:
        return {}
    sizes = [
        int.from_bytes(put.payload[8 * n : 8 * n + 4], "little") for n in range(put.entry_count)
    ]
    place, entries = 8 * put.entry_count, {}
    for n, size in enumerate(sizes):
        entries[put.entry_id + n] = put.payload[place : place + size]
        place += size
    return entries


def entries_of_record(record: JournalRecord) -> dict[int, bytes]:
    """Return the entries of a record in the journal by their ids."""
    if record.kind == KIND_RUN:
        return entries_of_run(record.payload)
    return entries_of_put(record)  # type: ignore[arg-type]


def check_run(record: JournalRecord) -> None:
    """Check that a run is one that a store takes: bounds, sums, the item table."""
    header = RUN_HEADER.unpack_from(record.payload)
    items = [RUN_ITEM.unpack_from(record.payload, 72 + 24 * n) for n in range(header[1])]
    assert header[2:4] == (JOURNAL_LOG | 1, SALT)
    assert (header[5], header[6], header[1]) == (
        record.ledger_id,
        record.entry_id,
        record.entry_count,
    )
    assert header[8] == len(record.payload)
    assert header[9] == crc32c(record.payload[72 : 72 + 24 * header[1]])
    assert 1 <= record.entry_count <= RUN_ENTRIES_MAX
    assert len(record.payload) <= RUN_BYTES_MAX or record.entry_count == 1
    assert items[-1][0] - items[0][0] < RUN_SPAN_MAX
    assert [item[0] for item in items] == sorted({item[0] for item in items})
    for entry_id, data in entries_of_run(record.payload).items():
        assert data[:16] == entry(record.ledger_id, entry_id)[:16]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.one_of(*[ADDS] * 6, *[BATCHES] * 2, FENCES),
            st.sampled_from([0, 0, 0, 1]),
        ),
        min_size=5,
        max_size=40,
    ),
    st.sampled_from([64 * KIB, 256 * KIB, 1024 * KIB]),
)
def test_a_batch_is_read_as_it_was_decided(
    records: list[tuple[int, tuple[str, int, int, int, int, int], int]], batch_size_bytes_max: int
) -> None:
    """INV-J6: accepted new adds of a ledger come in their order, and before what is to be checked against them."""
    with FakeDisk() as fake:
        disk = fake.disk()
        harness = adopting(disk, batch_size_bytes_max=batch_size_bytes_max, quantum_bytes=64 * KIB)
        assert harness.journal is not None
        highest = [-1] * 4
        for worker, (kind, ledger_id, step, flags, count, size), settles in records:
            begin = max(0, highest[ledger_id] + step)
            if kind == "fence":
                harness.fence(ledger_id, worker=worker)
            elif kind == "batch":
                datas = [bytes([n]) * min(size, 20 * KIB) for n in range(count)]
                if harness.room(worker) < sum(map(len, datas)) + 64 * KIB:
                    harness.settle()
                harness.add_batch(ledger_id, begin, datas, worker=worker, flags=flags)
            else:
                for n in range(count):
                    if harness.room(worker) < size + 64 * KIB:
                        harness.settle()
                    harness.add(
                        ledger_id, begin + n, bytes([n + 1]) * size, worker=worker, flags=flags
                    )
            highest[ledger_id] = max(highest[ledger_id], begin + count - 1)
            if settles:
                harness.settle()
        batches = read_back(harness, disk)

        # What is read first of an entry is what was accepted first; nothing is read that was not put.
        first: dict[tuple[int, int], bytes] = {}
        found: dict[tuple[int, int], list[bytes]] = {}
        sequence = 0
        for batch in batches:
            was_loose = False
            highest_new: dict[int, int] = {}
            for record in batch.records():
                assert record.sequence == sequence
                sequence += 1
                if record.kind == KIND_RUN:
                    assert not was_loose, "INV-J6: a run behind a loose record"
                    check_run(record)
                    assert record.entry_id > highest_new.get(record.ledger_id, -1)
                    highest_new[record.ledger_id] = max(entries_of_run(record.payload))
                was_loose = was_loose or record.kind != KIND_RUN
                for entry_id, data in entries_of_record(record).items():
                    first.setdefault((record.ledger_id, entry_id), data)
                    found.setdefault((record.ledger_id, entry_id), []).append(data)
        accepted: dict[tuple[int, int], bytes] = {}
        written: dict[tuple[int, int], list[bytes]] = {}
        for put in harness.puts:
            verdict = harness.verdict(put)
            for entry_id, data in entries_of_put(put).items() if verdict in (0, CHECK) else ():
                written.setdefault((put.ledger_id, entry_id), []).append(data)
                if verdict == 0:
                    assert accepted.setdefault((put.ledger_id, entry_id), data) is data
        assert {key: sorted(datas) for key, datas in found.items()} == {
            key: sorted(datas) for key, datas in written.items()
        }
        assert {key: first[key] for key in accepted} == accepted
        harness.close()


def test_a_run_lies_where_its_summary_says(fake: FakeDisk) -> None:
    """INV-J7."""
    disk = fake.disk()
    harness = adopting(disk)
    for n in range(100):
        harness.add(7, n, bytes([n]) * KIB)
        harness.add(8, n, b"small")
    batches = read_back(harness, disk)
    assert read_header(disk, "/1").adopts
    last = harness.published.descriptors[-1]
    (summary,) = harness.runs(0, last.runs_end)
    assert (summary.ledger_id, summary.first_entry_id, summary.last_entry_id) == (7, 0, 99)
    assert (summary.lac, summary.entry_count) == (98, 100)
    assert (
        harness.published.descriptors[0].runs_end,
        harness.published.descriptors[0].file_salt,
    ) == (1, SALT)
    file = disk.open("/1")
    raw = disk.read(file, summary.size_bytes, summary.offset_bytes)
    disk.close(file)
    assert list(entries_of_run(raw).values()) == [entry(7, n, bytes([n]) * KIB) for n in range(100)]
    assert RUN_HEADER.unpack_from(raw)[4] == summary.offset_bytes
    assert sum(batch.record_count for batch in batches) == 101
    harness.close()


@pytest.mark.parametrize(
    ("entries", "data_bytes", "sizes"),
    [(300, 120, [150, 150]), (600, 120, [200, 200, 200]), (256, 120, [256]), (1500, 1, [250] * 6)],
)
def test_runs_of_a_ledger_are_of_one_size(
    fake: FakeDisk, entries: int, data_bytes: int, sizes: list[int]
) -> None:
    """A rest of a few entries would be a small piece to read."""
    disk = fake.disk()
    harness = adopting(disk)
    harness.add_batch(1, 0, [b"x" * data_bytes] * entries)
    records = [record for batch in read_back(harness, disk) for record in batch.records()]
    assert [(record.kind, record.entry_count) for record in records] == [
        (KIND_RUN, size) for size in sizes
    ]
    harness.close()


def test_small_pieces_and_what_does_not_fit_stay_loose(fake: FakeDisk) -> None:
    disk = fake.disk()
    harness = adopting(disk)
    harness.add(1, 0, bytes(31 * KIB))
    harness.add(2, 0, bytes(40 * KIB), flags=RECOVERY)
    harness.add(3, 0, bytes(40 * KIB))
    harness.add(3, 1, bytes(40 * KIB), flags=RECOVERY)
    harness.add(4, 0, bytes(40 * KIB))
    harness.fence(4)
    records = [record for batch in read_back(harness, disk) for record in batch.records()]
    assert [(record.kind, record.ledger_id) for record in records] == [
        (KIND_RUN, 4),
        (KIND_ADD, 1),
        (KIND_ADD, 2),
        (KIND_ADD, 3),
        (KIND_ADD, 3),
        (KIND_FENCE, 4),
    ]
    status = harness.published
    assert status.descriptors[-1].runs_end == 1
    harness.close()


def test_a_file_that_does_not_adopt_is_as_it_was(fake: FakeDisk) -> None:
    """The groups are counted all the same: the next file may adopt because of them."""
    disk = fake.disk()
    harness = JournalHarness(disk, journal_type=DirectJournal, ring_bytes=1 << 20)
    assert harness.journal is not None
    harness.journal.roll(new_file(disk, "/1", FILE_BYTES), 1, SALT, FILE_BYTES)
    harness.add_batch(1, 0, [bytes(KIB)] * 100)
    harness.add(2, 0, b"small")
    batches = read_back(harness, disk)
    assert not read_header(disk, "/1").adopts
    records = [record for batch in batches for record in batch.records()]
    assert [record.kind for record in records] == [KIND_ADD_BATCH, KIND_ADD]
    status = harness.journal.status
    assert (status.taken_bytes, status.grouped_bytes) == (100 * (KIB + 32) + 37, 100 * (KIB + 32))
    assert (status.adopts, harness.published.descriptors[-1].runs_end) == (0, 0)
    harness.close()


def test_a_cursor_of_the_index_that_cannot_be_ends_the_journal(fake: FakeDisk) -> None:
    disk = fake.disk()
    harness = adopting(disk)
    assert harness.journal is not None
    harness.index_memory.put(INDEX_RUNS_CONSUMED, 1)
    harness.add(1, 0)
    with pytest.raises(PoisonedError, match="a cursor of process 2"):
        harness.journal.step(1)
    harness.close()


def test_a_damaged_run_is_a_damaged_batch(fake: FakeDisk) -> None:
    disk = fake.disk()
    harness = adopting(disk)
    harness.add_batch(1, 0, [bytes(KIB)] * 100)
    harness.settle()
    (summary,) = harness.runs(0, 1)
    file = disk.open("/1", direct=True)
    for place in (0, 40, 80, 72 + 100 * 24 + 50, summary.size_bytes - 9):
        block = (summary.offset_bytes + place) // 4096 * 4096
        before = disk.read(file, 4096, block)
        turned = bytearray(before)
        turned[summary.offset_bytes + place - block] ^= 1
        disk.write_all(file, bytes(turned), block)
        with JournalScan(disk, "/1", 1, INCARNATION) as scan:
            assert list(scan) == [], f"byte {place} of the run"
        disk.write_all(file, before, block)
    with JournalScan(disk, "/1", 1, INCARNATION) as scan:
        assert len(list(scan)) == 1
    disk.close(file)
    harness.close()


@pytest.mark.parametrize(
    "sizes",
    [
        [256 * KIB, 10],
        [250 * KIB, 7 * KIB],
        [256 * KIB, 10, 256 * KIB, 10],
        [10, 256 * KIB] * 8,
        [300 * KIB, 1, 1, 300 * KIB],
    ],
)
def test_large_entries_and_small_ones_behind_them_fit(fake: FakeDisk, sizes: list[int]) -> None:
    """Each large one is a run of its own, and what comes behind it begins another."""
    disk = fake.disk()
    harness = adopting(disk, batch_size_bytes_max=4 << 20)
    for n, size in enumerate(sizes):
        harness.add(1, n, bytes(size))
    records = [record for batch in read_back(harness, disk) for record in batch.records()]
    found = {key: data for record in records for key, data in entries_of_record(record).items()}
    assert found == {n: entry(1, n, bytes(size)) for n, size in enumerate(sizes)}
    harness.close()


def test_ids_that_lie_far_apart_stay_loose(fake: FakeDisk) -> None:
    """Each would be a run of its own: small pieces to read, and more bytes than were planned."""
    disk = fake.disk()
    harness = adopting(disk)
    for n in range(9):
        harness.add(1, 5000 * n, bytes(7 * KIB))
    records = [record for batch in read_back(harness, disk) for record in batch.records()]
    assert {record.kind for record in records} == {KIND_ADD}
    harness.close()
