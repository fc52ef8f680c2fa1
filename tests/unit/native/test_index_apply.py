"""Taking batches in: order, checks, fences, credit, and rings that can't be."""

from __future__ import annotations

import os
import struct
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fastbk.errors import ProtocolError
from fastbk.native.ffi import CorruptDataError, LayoutError, RewrittenError
from fastbk.native.hashes import crc32c
from fastbk.native.index import FLUSH, FULL, IDLE
from fastbk.native.segment import HEADER_KEY_BYTES, Segment, Stats, put_header_key
from fastbk.observe.names import SLOTS
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.header_hash import siphash
from tests.fixtures.index_harness import (
    ADD,
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
    WORKER_REPLY_CONSUMED,
    WORKER_STARVED,
    IndexHarness,
    Put,
)
from tests.fixtures.journal_harness import (
    DESCRIPTOR,
    JOURNAL_DESCRIPTORS,
    JOURNAL_PUBLISHED,
    RECORD,
    SLEEPER,
    entry,
)
from tests.fixtures.storage_harness import Book, Life, format_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    with closing(
        IndexHarness(cache_bytes=1 << 18, cache_reserve_bytes=1 << 14, flush_used_bytes=1 << 30)
    ) as harness:
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


def test_flush_is_due_by_journal_bytes_and_age() -> None:
    for options in ({"flush_journal_bytes": 3 * 4096}, {"flush_interval_ms": 0}):
        with closing(IndexHarness(**options)) as harness:
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


# A compromised worker: it rewrites records in its own ring after the journal has judged them
# (INV-R4).


FENCED_LEDGER, OPEN_LEDGER = 1, 2
FLAGS_AT, LEDGER_AT, ENTRY_AT, SEQUENCE_AT, REQUEST_AT, BODY_CRC_AT = 10, 16, 24, 32, 40, 76


def rewrite(
    harness: IndexHarness, put: Put, offset: int, field: bytes, payload: bytes = b""
) -> None:
    """Write into a record that lies in the ring, and seal it as a worker does: its checksums are right."""
    ring = harness.adds[put.worker]
    header = bytearray(ring.read(put.position, RECORD.size))
    header[offset : offset + len(field)] = field
    if payload:
        header[BODY_CRC_AT : BODY_CRC_AT + 4] = struct.pack("<I", crc32c(payload))
        ring.write(put.position + RECORD.size, payload)
    header[92:96] = struct.pack("<I", crc32c(bytes(header[:92])))
    ring.write(put.position, bytes(header))


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def test_a_record_that_is_rewritten_for_a_fenced_ledger_ends_the_index(
    harness: IndexHarness,
) -> None:
    harness.add(FENCED_LEDGER, 0, b"before the fence")
    harness.fence(FENCED_LEDGER)
    harness.publish()
    harness.settle()
    judged = harness.add(OPEN_LEDGER, 5, b"judged as an open ledger's")
    harness.publish()
    forged = entry(FENCED_LEDGER, 5, b"judged as an open ledger's")
    rewrite(harness, judged, LEDGER_AT, number(FENCED_LEDGER), forged)
    harness.read(FENCED_LEDGER, 5)
    with pytest.raises(RewrittenError, match="rewrote a record after the journal had judged it"):
        harness.run()
    assert harness.indexed() == judged.position, "nothing of the batch was acknowledged to anybody"
    assert [one.status for one in harness.answers()] == [OK], "the fence's, from before"


def other_entry(harness: IndexHarness, put: Put) -> None:
    rewrite(harness, put, ENTRY_AT, number(6), entry(OPEN_LEDGER, 6, b"data"))


def other_flags(harness: IndexHarness, put: Put) -> None:
    rewrite(harness, put, FLAGS_AT, struct.pack("<H", RECOVERY))


def other_request(harness: IndexHarness, put: Put) -> None:
    rewrite(harness, put, REQUEST_AT, number(99))


@pytest.mark.parametrize("change", [other_entry, other_flags, other_request])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_whatever_is_rewritten_in_whichever_record_is_noticed(
    harness: IndexHarness, change: Callable[[IndexHarness, Put], None], place: int
) -> None:
    puts = [harness.add(OPEN_LEDGER, 5 + 10 * n, b"data", worker=1) for n in range(3)]
    harness.publish()
    change(harness, puts[place])
    with pytest.raises(RewrittenError):
        harness.run()
    assert harness.indexed(1) == 0


def test_a_refused_record_that_is_rewritten_is_noticed(harness: IndexHarness) -> None:
    refused = harness.add(FENCED_LEDGER, 5, b"data")
    harness.publish({refused: FENCED})
    rewrite(harness, refused, LEDGER_AT, number(OPEN_LEDGER))
    with pytest.raises(RewrittenError):
        harness.run()


def test_records_that_change_places_are_noticed(harness: IndexHarness) -> None:
    ring = harness.adds[0]
    first, second = harness.add(1, 5, b"data"), harness.add(1, 6, b"data")
    harness.publish()
    one = ring.read(first.position, second.position - first.position)
    other = ring.read(second.position, len(one))
    ring.write(first.position, other)
    ring.write(second.position, one)
    rewrite(harness, first, SEQUENCE_AT, number(0))
    rewrite(harness, second, SEQUENCE_AT, number(1))
    with pytest.raises(RewrittenError):
        harness.run()


def test_a_record_that_is_checked_is_the_one_that_was_judged(harness: IndexHarness) -> None:
    checked = harness.add(OPEN_LEDGER, 5, b"data", flags=RECOVERY)
    harness.publish({checked: CHECK})
    rewrite(harness, checked, LEDGER_AT, number(FENCED_LEDGER), entry(FENCED_LEDGER, 5, b"data"))
    with pytest.raises(RewrittenError):
        harness.run()


def test_what_is_not_rewritten_is_taken_in_batch_after_batch(harness: IndexHarness) -> None:
    for n in range(50):
        harness.add(OPEN_LEDGER, n, b"data" * n, worker=n % 2)
        if n % 3:
            harness.publish()
    harness.publish()
    harness.publish()
    assert harness.ask_one(harness.read(OPEN_LEDGER, 49)).status == OK
    assert harness.ask_one(harness.read(OPEN_LEDGER, 50)).status == NO_ENTRY
    assert harness.ask_one(harness.read(FENCED_LEDGER, 0)).status == NO_LEDGER


def test_another_key_notices_everything() -> None:
    harness = IndexHarness(header_key=bytes(range(100, 100 + HEADER_KEY_BYTES)))
    harness.add(1, 0, b"data")
    harness.publish()
    with pytest.raises(RewrittenError):
        harness.run()
    harness.close()


def test_a_key_has_one_length() -> None:
    with pytest.raises(ValueError, match="120 are needed"):
        put_header_key(None, b"short")


def test_the_test_s_own_siphash_is_siphash() -> None:
    """The vector of its paper's appendix has 15 bytes; these are OpenSSL's for 0 and 8 bytes."""
    assert siphash(bytes(range(16)), b"") == 0x726FDB47DD0E0E31
    assert siphash(bytes(range(16)), bytes(range(8))) == 0x93F5F5799A932462


# A worker that was drained reads no answer any more: the index waits for it no more, and gets to
# its own drain.


CONSUMER_GONE = 2**64 - 1
ENTRY_BYTES = 60_000
ENTRIES = 4
ASKED = 40
"""Ten times what the ring holds, and less than there are slots for."""
CHECKS = 400
"""Whose answers are short: more than the ring holds behind those of one read of each entry."""


def leave(harness: IndexHarness, worker: int = 0) -> None:
    harness.workers[worker].put(WORKER_REPLY_CONSUMED, CONSUMER_GONE)


def filled(**options: int) -> IndexHarness:
    harness = IndexHarness(reply_bytes=1 << 18, **options)
    for entry_id in range(ENTRIES):
        harness.add(1, entry_id, bytes([entry_id]) * ENTRY_BYTES)
    harness.publish()
    harness.settle()
    return harness


def checks(harness: IndexHarness) -> None:
    for entry_id in range(ENTRIES):
        harness.read(1, entry_id)
    for n in range(CHECKS):
        put = harness.add(1, n % ENTRIES, b"another")
        harness.publish({put: CHECK})
        harness.run()


ASKS: dict[str, Callable[[IndexHarness], object]] = {
    "reads": lambda harness: [harness.read(1, n % ENTRIES) for n in range(ASKED)],
    "batch reads": lambda harness: [harness.read_batch(1, 0) for _ in range(ASKED)],
    "lists": lambda harness: [(harness.read(1, 0), harness.list_entries(1)) for _ in range(ASKED)],
    "LACs": lambda harness: [harness.read_lac(1) for _ in range(ASKED)],
    "fences": lambda harness: [
        (harness.fence(1, n % ENTRIES), harness.publish()) for n in range(ASKED)
    ],
    "checks": checks,
}


@pytest.mark.parametrize("kind", ASKS)
def test_what_waits_for_room_in_its_ring_is_let_go(kind: str) -> None:
    with closing(filled()) as harness:
        ASKS[kind](harness)
        harness.run(steps=50)
        assert not harness.run() & IDLE, "the ring was never full"
        leave(harness)
        harness.settle()
        assert harness.index.status.requests == 0


def test_the_other_workers_get_their_answers() -> None:
    with closing(filled(worker_count=2)) as harness:
        for n in range(ASKED):
            harness.read(1, n % ENTRIES)
        harness.run(steps=10)
        leave(harness)
        wanted: list[Put] = [harness.read(1, n % ENTRIES, worker=1) for n in range(ASKED)]
        found: list[int] = []
        while len(found) < ASKED:
            harness.run(1)
            found += [answer.request_id for answer in harness.answers(1)]
        assert found == [put.request_id for put in wanted]


def test_polls_that_come_due_later_are_let_go() -> None:
    with closing(filled()) as harness:
        for _ in range(ASKED):
            harness.read_lac(1, ENTRIES - 2, 60_000)
        harness.settle()
        assert harness.answers() == []
        leave(harness)
        harness.add(1, ENTRIES, bytes(ENTRY_BYTES))
        harness.publish()
        harness.settle()


def test_disks_are_not_read_for_it() -> None:
    """Three hundred batch reads of a megabyte each would keep a drain for as long as the disk needs for them."""
    with FakeDisk() as fake:
        format_disk(fake)
        life = Life(fake, Book())
        for n in range(60):
            life.add(1, n, bytes(500))
        life.settle()
        life.flush()
        life.close()
        with closing(Life(fake, Book())) as life:
            for n in range(40):
                life.harness.read_batch(1, n)
            leave(life.harness)
            life.harness.settle()
            assert life.store.counts()["jobs"] == 0


# A fence's answer, and the adds before it that are still being looked at.


@pytest.fixture
def life() -> Iterator[Life]:
    with FakeDisk() as fake:
        format_disk(fake)
        made = Life(fake, Book())
        # Entry 0 on disk, 9 in the cache: what lies between has to be looked for on the disk.
        made.add(1, 0, b"first")
        made.settle()
        made.flush()
        made.add(1, 9, b"ninth")
        made.settle()
        yield made
        made.close()


def commit(life: Life) -> None:
    """The journal takes all, and the index takes that in; no reader does its job."""
    while life.journal.status.waiting_bytes or life.journal.status.in_flight:
        life.journal.step(5)
        life.look()
    life.harness.run(steps=3)


@pytest.mark.parametrize("kind", [ADD, ADD_BATCH])
def test_a_fence_waits_for_normal_adds_before_it_that_are_looked_at(life: Life, kind: int) -> None:
    """INV-F1: else the add would be acknowledged after whoever fenced had been told that it is not there."""
    if kind == ADD:
        life.add(1, 5, b"late")
    else:
        life.add_batch(1, 4, [b"late", b"later"])
    commit(life)
    assert life.harness.index.status.checks == 1
    fences = [life.harness.fence(1, entry_id).request_id for entry_id in (9, -1, 5)]
    other = life.harness.fence(2).request_id
    commit(life)
    assert [each.request_id for each in life.harness.answers()] == [other], (
        "only that one is free to go"
    )
    for _ in range(20):
        life.index_step()
    answers = life.harness.answers()
    assert [each.kind for each in answers[:1]] == [kind]
    found = {each.request_id: each for each in answers if each.request_id in fences}
    assert [found[one].status for one in fences] == [OK, OK, OK]
    assert found[fences[2]].entry is not None
    assert b"late" in found[fences[2]].entry


def test_a_fence_does_not_wait_for_recovery_adds(life: Life) -> None:
    life.add(1, 5, b"late", flags=RECOVERY)
    commit(life)
    assert life.harness.index.status.checks == 1
    fence = life.harness.fence(1, 9).request_id
    commit(life)
    assert [each.request_id for each in life.harness.answers()] == [fence]


def test_a_ring_that_fences_have_filled_is_forgotten_once_it_is_read() -> None:
    """Nobody asks anything more: the index sleeps, and a drain believes that it is done."""
    with closing(IndexHarness()) as harness:
        harness.add(1, 0, bytes(60_000))
        harness.publish()
        for _ in range(20):
            harness.fence(1, 0)
        harness.publish()
        found = 0
        while found < 20:
            harness.run(1)
            found += len(harness.answers())
        harness.settle()
