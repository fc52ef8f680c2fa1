"""A compromised worker: it rewrites records in its own ring after the journal has judged them (INV-R4)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from fastbk.native.ffi import RewrittenError
from fastbk.native.hashes import crc32c
from fastbk.native.segment import HEADER_KEY_BYTES, put_header_key
from tests.fixtures.header_hash import siphash
from tests.fixtures.index_harness import (
    CHECK,
    FENCED,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    RECOVERY,
    IndexHarness,
    Put,
)
from tests.fixtures.journal_harness import RECORD, entry

FENCED_LEDGER, OPEN_LEDGER = 1, 2
FLAGS_AT, LEDGER_AT, ENTRY_AT, SEQUENCE_AT, REQUEST_AT, BODY_CRC_AT = 10, 16, 24, 32, 40, 76


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness(worker_count=2)
    yield made
    made.close()


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
