"""Taking batches in: order, checks, fences, credit, and rings that can't be."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from fastbk.errors import ProtocolError
from fastbk.native.ffi import CorruptDataError, LayoutError
from fastbk.native.hashes import crc32c
from fastbk.native.index import FLUSH, FULL, IDLE
from fastbk.native.segment import Segment, Stats
from fastbk.observe.names import SLOTS
from tests.fixtures.index_harness import (
    ADD_BATCH,
    CHECK,
    CONFLICT,
    DIGEST_CRC32C,
    FENCED,
    FORCE,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    ORDERED,
    RECOVERY,
    WORKER_STARVED,
    IndexHarness,
)
from tests.fixtures.journal_harness import (
    DESCRIPTOR,
    JOURNAL_DESCRIPTORS,
    JOURNAL_PUBLISHED,
    SLEEPER,
    entry,
)


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness(worker_count=2)
    yield made
    made.close()


def cost(payload_bytes: int, count: int = 1) -> int:
    return count * 56 + (payload_bytes + 7) // 8 * 8


def test_what_is_published_is_found_and_what_is_not_is_not(harness: IndexHarness) -> None:
    harness.add(1, 0, b"durable")
    harness.publish()
    harness.add(1, 1, b"not durable")
    assert harness.ask_one(harness.read(1, 0)).entry == entry(1, 0, b"durable")
    assert harness.ask_one(harness.read(1, 1)).status == NO_ENTRY
    assert harness.ask_one(harness.read(2, 0)).status == NO_LEDGER
    harness.publish()
    assert harness.ask_one(harness.read(1, -1)).entry_id == 1


def test_read_your_write_however_late_the_index_is(harness: IndexHarness) -> None:
    """A request that comes after a publish is answered after that batch was taken in, in one step."""
    for n in range(200):
        harness.add(1, n, bytes(50))
        harness.publish()
    put = harness.read(1, 199)
    harness.run()
    (answer,) = harness.answers()
    assert (answer.request_id, answer.status) == (put.request_id, OK)


def test_refused_records_are_passed_over(harness: IndexHarness) -> None:
    kept = harness.add(1, 0, b"kept")
    refused = harness.add(1, 1, b"refused")
    also_kept = harness.add(1, 2, b"kept")
    harness.publish({refused: FENCED})
    assert harness.ask_one(harness.read(1, 0)).status == OK
    assert harness.ask_one(harness.read(1, 1)).status == NO_ENTRY
    assert harness.ask_one(harness.read(1, 2)).status == OK
    assert harness.indexed() == harness.adds[0].written
    assert kept.position < refused.position < also_kept.position


def test_batches_are_taken_whole_and_fences_see_their_whole_batch(harness: IndexHarness) -> None:
    """The fence lies in the ring that is looked at first, an add accepted before it in the other (INV-F1)."""
    fence = harness.fence(1, worker=0)
    harness.add(1, 7, b"accepted before the fence", worker=1)
    harness.publish()
    answer = harness.ask_one(fence)
    assert (answer.status, answer.entry_id) == (OK, 7)


def test_an_accepted_add_wins_over_a_checked_one_of_its_batch(harness: IndexHarness) -> None:
    """The journal took ring 1's as new and ring 0's as one to be checked; ring 0 is looked at first (INV-A5)."""
    checked = harness.add(1, 0, b"second in the journal's order", worker=0)
    harness.add(1, 0, b"first in the journal's order ", worker=1)
    harness.publish({checked: CHECK})
    assert harness.ask_one(checked).status == CONFLICT
    assert harness.ask_one(harness.read(1, 0)).entry == entry(
        1, 0, b"first in the journal's order "
    )


def test_checks_of_one_id_are_decided_in_the_journals_order(harness: IndexHarness) -> None:
    harness.add(1, 9, b"")
    harness.publish()
    later = harness.add(1, 3, b"later", worker=0)
    earlier = harness.add(1, 3, b"early", worker=1)
    harness.publish({earlier: CHECK, later: CHECK})
    harness.settle()
    assert [each.status for each in harness.answers(0)] == [CONFLICT]
    assert [each.status for each in harness.answers(1)] == [OK]
    assert harness.ask_one(harness.read(1, 3)).entry == entry(1, 3, b"early")


@pytest.mark.parametrize("digest_type", [DIGEST_CRC32C, 0])
def test_what_makes_two_copies_the_same(harness: IndexHarness, digest_type: int) -> None:
    def copy(lac: int, length: int, digest: bytes, data: bytes) -> bytes:
        return struct.pack(">qqqq", 1, 5, lac, length) + digest + data

    first = copy(4, 100, b"dig1", b"data")
    harness.add(1, 5, raw=first, digest_type=digest_type)
    harness.publish()
    others = {
        copy(3, 100, b"dig2", b"data"): OK,  # LAC and digest may differ, whatever digest it is
        copy(3, 100, b"dig1", b"data"): OK,
        copy(4, 101, b"dig1", b"data"): CONFLICT,
        copy(4, 100, b"dig1", b"date"): CONFLICT,
        copy(4, 100, b"dig1", b"data and more"): CONFLICT,
    }
    for raw, expected in others.items():
        put = harness.add(1, 5, raw=raw, digest_type=digest_type, flags=RECOVERY)
        harness.publish({put: CHECK})
        assert harness.ask_one(put).status == expected, raw
    assert harness.ask_one(harness.read(1, 5)).entry == first


def test_a_checked_batch_add_stores_what_is_new(harness: IndexHarness) -> None:
    harness.add(1, 1, b"other")
    harness.add(1, 2, b"c")
    harness.publish()
    put = harness.add_batch(1, 0, [b"a", b"b", b"c", b"d"])
    harness.publish({put: CHECK})
    assert harness.ask_one(put).status == CONFLICT
    found = harness.ask_one(harness.read_batch(1, 0)).entries
    assert found == [entry(1, 0, b"a"), entry(1, 1, b"other"), entry(1, 2, b"c"), entry(1, 3, b"d")]


def test_a_repeated_fence_and_a_force_write_nothing(harness: IndexHarness) -> None:
    harness.add(1, 0, b"x")
    first = harness.fence(1, 0)
    harness.publish()
    assert harness.ask_one(first).status == OK
    second = harness.fence(1, 5)
    harness.put(FORCE, 1, -1)
    harness.publish({second: ORDERED})
    assert harness.ask_one(second).status == NO_ENTRY
    assert harness.ask_one(harness.read_lac(1)).fenced


def test_a_fence_of_an_unknown_ledger_makes_it_known(harness: IndexHarness) -> None:
    fence = harness.fence(42)
    harness.publish()
    assert harness.ask_one(fence).status == NO_ENTRY
    assert harness.ask_one(harness.read_lac(42)).fenced


def test_the_lac_never_passes_what_an_entry_can_confirm(harness: IndexHarness) -> None:
    for entry_id, lac in ((5, 4), (6, 6), (7, 2**62), (8, -5)):
        harness.add(1, entry_id, raw=struct.pack(">qqqq", 1, entry_id, lac, 0))
    harness.publish()
    assert harness.ask_one(harness.read_lac(1)).lac == 4


def test_credit_is_what_the_caches_take_without_a_flush(harness: IndexHarness) -> None:
    """INV-R3: never more is out than there is room for; what was refused is given back, too."""
    room = (1 << 20) - (1 << 17)
    assert harness.granted(0) + harness.granted(1) <= room
    assert harness.granted(0) == room // 2
    put = harness.add(1, 0, bytes(968))
    assert put.worker == 0
    refused = harness.add(1, 1, bytes(968))
    recovery = harness.add(1, 0, bytes(968), flags=RECOVERY)
    harness.publish({refused: FENCED, recovery: CHECK})
    harness.settle()
    taken = 2 * cost(1000)
    assert harness.granted(0) == taken + room // 2, (
        "what recovery adds take comes out of the reserve"
    )
    assert harness.granted(1) == room // 2


def test_credit_stops_when_both_caches_are_full_and_comes_back(harness: IndexHarness) -> None:
    entry_id = 0
    sealed_once = False
    while True:
        granted, spent = harness.granted(0), entry_id * cost(1032)
        if spent + cost(1032) > granted:
            break
        harness.add(1, entry_id, bytes(1000))
        entry_id += 1
        harness.publish()
        reasons = harness.run()
        if reasons & FLUSH and not sealed_once:
            harness.index.seal()
            sealed_once = True
        assert entry_id < 4000, "credit is never refused"
    assert sealed_once
    assert harness.granted(0) < 2 << 20
    before = harness.granted(0)
    harness.index.flushed()
    assert harness.granted(0) > before
    for n in (0, entry_id // 2, entry_id - 1):
        assert harness.ask_one(harness.read(1, n)).status == OK, (
            "a flushed cache stays readable until it is filled again"
        )


def test_a_flush_that_does_not_end_leaves_the_reserve(harness: IndexHarness) -> None:
    """INV-R3, A7: normal adds use up their credit, sealed cache and all; fences, recovery adds and reads go on."""
    written = [0, 0]
    is_sealed = False
    while any(written[w] * cost(1032) + cost(1032) <= harness.granted(w) for w in (0, 1)):
        for w in (0, 1):
            if written[w] * cost(1032) + cost(1032) <= harness.granted(w):
                harness.add(1 + w, written[w], bytes(1000), worker=w)
                written[w] += 1
        harness.publish()
        if harness.run() & FLUSH and not is_sealed:
            harness.index.seal()
            is_sealed = True
    assert is_sealed
    fence = harness.fence(1, 0)
    harness.add(7, 0, bytes(60_000), flags=RECOVERY)
    harness.publish()
    read = harness.read(7, 0)
    harness.run(steps=3)
    assert [(each.request_id, each.status) for each in harness.answers()] == [
        (fence.request_id, OK),
        (read.request_id, OK),
    ]


def counter(harness: IndexHarness, name: str) -> int:
    segment = Segment(harness.memory.fd, "index")
    value = Stats(segment).counters()[SLOTS[f"FBK_C_INDEX_{name}"]]
    segment.close()
    return value


def test_a_batch_that_does_not_fit_waits_for_the_flush() -> None:
    harness = IndexHarness(
        cache_bytes=1 << 18, cache_reserve_bytes=1 << 14, flush_used_bytes=1 << 30
    )
    try:
        for n in range(5):
            harness.add(1, n, bytes(60_000))
            harness.publish()
        reasons = harness.run()
        assert reasons & FULL
        assert reasons & FLUSH
        assert not reasons & IDLE
        taken = harness.index.status.taken_sequence
        assert 0 < taken < 5
        harness.read(1, 4)
        harness.run()
        assert harness.answers() == [], "nothing is said before everything durable is taken in"
        assert counter(harness, "CACHE_FULL") == 1, "one batch, however often it was looked at"
        assert counter(harness, "THROTTLED") == 0
        harness.index.seal()
        assert harness.index.sealed().mark_sequence == taken
        harness.run()
        assert harness.index.status.taken_sequence == 5
        assert counter(harness, "THROTTLED") == 1
        assert counter(harness, "THROTTLED_US") > 0
        assert [each.status for each in harness.answers()] == [OK]
        with pytest.raises(OSError, match="seal"):
            harness.index.seal()
        harness.index.flushed()
        assert harness.mark == taken
    finally:
        harness.close()


def test_flush_is_due_by_journal_bytes_and_age() -> None:
    for options in ({"flush_journal_bytes": 3 * 4096}, {"flush_interval_ms": 0}):
        harness = IndexHarness(**options)
        try:
            assert not harness.run() & FLUSH
            for n in range(3):
                harness.add(1, n)
                harness.publish()
            harness.run()
            assert harness.run() & FLUSH
            harness.index.seal()
            assert not harness.run() & FLUSH
            harness.index.flushed()
            assert not harness.run() & FLUSH, "nothing has come since"
        finally:
            harness.close()


# ---- what no worker and no journal writes


def broken(harness: IndexHarness, error: type[Exception] = CorruptDataError) -> None:
    harness.publish()
    with pytest.raises(error):
        harness.settle()


def test_a_changed_body_is_found(harness: IndexHarness) -> None:
    put = harness.add(1, 0, bytes(100))
    harness.adds[0].write(put.position + 96 + 50, b"\1")
    broken(harness)


def test_a_changed_header_is_found(harness: IndexHarness) -> None:
    put = harness.add(1, 0, bytes(100))
    harness.adds[0].write(put.position + 4, b"\1")
    broken(harness)


def test_an_entry_of_another_id_is_found(harness: IndexHarness) -> None:
    harness.add(1, 0, raw=entry(1, 1, b"x"))
    broken(harness)


def test_a_record_out_of_sequence_is_found(harness: IndexHarness) -> None:
    harness.adds[0].sequence = 5
    harness.add(1, 0, b"x")
    broken(harness)


@pytest.mark.parametrize("sizes", [[40, 41], [40, 2**31], [31, 49], [40, 39]])
def test_a_batch_table_that_lies_is_found(harness: IndexHarness, sizes: list[int]) -> None:
    body = bytes(80)
    table = b"".join(struct.pack("<II", size, 0) for size in sizes)
    harness.put(ADD_BATCH, 1, 0, table + body, entry_count=2, body_crc=crc32c(table))
    broken(harness)


def test_descriptors_that_cannot_be_are_found(harness: IndexHarness) -> None:
    harness.add(1, 0, b"x")
    harness.publish()
    harness.settle()
    for change in ({0: 7}, {9: 1 << 40}, {9: 0}, {6: 1 << 20}, {1: 0}):
        harness.add(1, 1, b"x")
        harness.publish()
        at = JOURNAL_DESCRIPTORS + (harness.order - 1) * DESCRIPTOR.size
        fields = list(DESCRIPTOR.unpack_from(harness.journal.map, at))
        good = tuple(fields)
        for field, value in change.items():
            fields[field] = value
        DESCRIPTOR.pack_into(harness.journal.map, at, *fields)
        with pytest.raises((ProtocolError, CorruptDataError)):
            harness.settle()
        # The same with what it should have been: nothing of the bad one was taken.
        DESCRIPTOR.pack_into(harness.journal.map, at, *good)
        harness.adds[0].sequence -= 0
        harness.settle()
    harness.journal.put(JOURNAL_PUBLISHED, harness.order + 5000)
    with pytest.raises(ProtocolError):
        harness.settle()


def test_segments_of_another_epoch_are_refused() -> None:
    with pytest.raises(LayoutError):
        IndexHarness(epoch=8)


def test_a_worker_with_adds_that_wait_is_rung_for_a_change_to_read_only(
    harness: IndexHarness,
) -> None:
    for memory in harness.workers:
        memory.put(SLEEPER, 1)  # asleep
    harness.workers[1].put(WORKER_STARVED, 1)
    harness.index.set_reads_only(1)
    assert os.eventfd_read(harness.worker_bells[1]) == 1
    with pytest.raises(BlockingIOError):
        os.eventfd_read(harness.worker_bells[0])
    harness.workers[1].put(SLEEPER, 3)
    harness.index.set_reads_only(0)
    assert os.eventfd_read(harness.worker_bells[1]) == 1
