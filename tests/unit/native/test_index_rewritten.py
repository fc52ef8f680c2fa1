"""A compromised worker: it rewrites records in its own ring after the journal has judged them (INV-R4)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from fastbk.native.checksum import crc32c
from fastbk.native.ffi import RewrittenError
from fastbk.native.header_key import HEADER_KEY_BYTES, put_header_key
from tests.fixtures.header_hash import siphash
from tests.fixtures.index_harness import (
    CHECK,
    FENCED,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    RECOVERY,
    IndexRig,
    Put,
)
from tests.fixtures.journal_harness import RECORD, entry

FENCED_LEDGER, OPEN_LEDGER = 1, 2
FLAGS_AT, LEDGER_AT, ENTRY_AT, SEQUENCE_AT, REQUEST_AT, BODY_CRC_AT = 10, 16, 24, 32, 40, 76


@pytest.fixture
def rig() -> Iterator[IndexRig]:
    made = IndexRig(worker_count=2)
    yield made
    made.close()


def rewrite(rig: IndexRig, put: Put, offset: int, field: bytes, payload: bytes = b"") -> None:
    """Write into a record that lies in the ring, and seal it as a worker does: its checksums are right."""
    ring = rig.adds[put.worker]
    header = bytearray(ring.read(put.position, RECORD.size))
    header[offset : offset + len(field)] = field
    if payload:
        header[BODY_CRC_AT : BODY_CRC_AT + 4] = struct.pack("<I", crc32c(payload))
        ring.write(put.position + RECORD.size, payload)
    header[92:96] = struct.pack("<I", crc32c(bytes(header[:92])))
    ring.write(put.position, bytes(header))


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def test_a_record_that_is_rewritten_for_a_fenced_ledger_ends_the_index(rig: IndexRig) -> None:
    rig.add(FENCED_LEDGER, 0, b"before the fence")
    rig.fence(FENCED_LEDGER)
    rig.publish()
    rig.settle()
    judged = rig.add(OPEN_LEDGER, 5, b"judged as an open ledger's")
    rig.publish()
    forged = entry(FENCED_LEDGER, 5, b"judged as an open ledger's")
    rewrite(rig, judged, LEDGER_AT, number(FENCED_LEDGER), forged)
    rig.read(FENCED_LEDGER, 5)
    with pytest.raises(RewrittenError, match="rewrote a record after the journal had judged it"):
        rig.run()
    assert rig.indexed() == judged.position, "nothing of the batch was acknowledged to anybody"
    assert [one.status for one in rig.answers()] == [OK], "the fence's, from before"


def other_entry(rig: IndexRig, put: Put) -> None:
    rewrite(rig, put, ENTRY_AT, number(6), entry(OPEN_LEDGER, 6, b"data"))


def other_flags(rig: IndexRig, put: Put) -> None:
    rewrite(rig, put, FLAGS_AT, struct.pack("<H", RECOVERY))


def other_request(rig: IndexRig, put: Put) -> None:
    rewrite(rig, put, REQUEST_AT, number(99))


@pytest.mark.parametrize("change", [other_entry, other_flags, other_request])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_whatever_is_rewritten_in_whichever_record_is_noticed(
    rig: IndexRig, change: Callable[[IndexRig, Put], None], place: int
) -> None:
    puts = [rig.add(OPEN_LEDGER, 5 + 10 * n, b"data", worker=1) for n in range(3)]
    rig.publish()
    change(rig, puts[place])
    with pytest.raises(RewrittenError):
        rig.run()
    assert rig.indexed(1) == 0


def test_a_refused_record_that_is_rewritten_is_noticed(rig: IndexRig) -> None:
    refused = rig.add(FENCED_LEDGER, 5, b"data")
    rig.publish({refused: FENCED})
    rewrite(rig, refused, LEDGER_AT, number(OPEN_LEDGER))
    with pytest.raises(RewrittenError):
        rig.run()


def test_records_that_change_places_are_noticed(rig: IndexRig) -> None:
    ring = rig.adds[0]
    first, second = rig.add(1, 5, b"data"), rig.add(1, 6, b"data")
    rig.publish()
    one = ring.read(first.position, second.position - first.position)
    other = ring.read(second.position, len(one))
    ring.write(first.position, other)
    ring.write(second.position, one)
    rewrite(rig, first, SEQUENCE_AT, number(0))
    rewrite(rig, second, SEQUENCE_AT, number(1))
    with pytest.raises(RewrittenError):
        rig.run()


def test_a_record_that_is_checked_is_the_one_that_was_judged(rig: IndexRig) -> None:
    checked = rig.add(OPEN_LEDGER, 5, b"data", flags=RECOVERY)
    rig.publish({checked: CHECK})
    rewrite(rig, checked, LEDGER_AT, number(FENCED_LEDGER), entry(FENCED_LEDGER, 5, b"data"))
    with pytest.raises(RewrittenError):
        rig.run()


def test_what_is_not_rewritten_is_taken_in_batch_after_batch(rig: IndexRig) -> None:
    for n in range(50):
        rig.add(OPEN_LEDGER, n, b"data" * n, worker=n % 2)
        if n % 3:
            rig.publish()
    rig.publish()
    rig.publish()
    assert rig.ask_one(rig.read(OPEN_LEDGER, 49)).status == OK
    assert rig.ask_one(rig.read(OPEN_LEDGER, 50)).status == NO_ENTRY
    assert rig.ask_one(rig.read(FENCED_LEDGER, 0)).status == NO_LEDGER


def test_another_key_notices_everything() -> None:
    rig = IndexRig(header_key=bytes(range(100, 100 + HEADER_KEY_BYTES)))
    rig.add(1, 0, b"data")
    rig.publish()
    with pytest.raises(RewrittenError):
        rig.run()
    rig.close()


def test_a_key_has_one_length() -> None:
    with pytest.raises(ValueError, match="120 are needed"):
        put_header_key(None, b"short")


def test_the_test_s_own_siphash_is_siphash() -> None:
    """The vector of its paper's appendix has 15 bytes; these are OpenSSL's for 0 and 8 bytes."""
    assert siphash(bytes(range(16)), b"") == 0x726FDB47DD0E0E31
    assert siphash(bytes(range(16)), bytes(range(8))) == 0x93F5F5799A932462
