"""A compromised worker rewrites its record after the real journal's verdict: replay has what was judged (INV-R4)."""

from __future__ import annotations

import struct

import pytest

from fastbk.native.ffi import RewrittenError
from fastbk.native.hashes import crc32c
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import NO_ENTRY, OK, Put
from tests.fixtures.journal_harness import RECORD, entry
from tests.fixtures.storage_harness import Book, Life, format_disk

pytestmark = pytest.mark.no_service

FENCED_LEDGER, OPEN_LEDGER, ENTRY = 1, 2, 7
LEDGER_AT, BODY_CRC_AT, HEADER_CRC_AT = 16, 76, 92


def move_to(life: Life, put: Put, ledger_id: int, payload: bytes) -> None:
    """Make a record that lies in the ring one of another ledger, with right checksums."""
    assert life.harness is not None
    ring = life.harness.adds[put.worker]
    header = bytearray(ring.read(put.position, RECORD.size))
    struct.pack_into("<q", header, LEDGER_AT, ledger_id)
    struct.pack_into("<I", header, BODY_CRC_AT, crc32c(payload))
    struct.pack_into("<I", header, HEADER_CRC_AT, crc32c(bytes(header[:HEADER_CRC_AT])))
    ring.write(put.position, bytes(header) + payload)


def test_nothing_enters_a_fenced_ledger_and_replay_has_what_was_judged() -> None:
    fake = FakeDisk(seed=5)
    format_disk(fake)
    life = Life(fake, Book())
    life.add(FENCED_LEDGER, 0, b"before the fence")
    life.fence(FENCED_LEDGER)
    life.settle()
    assert life.harness is not None and life.journal is not None
    judged = life.harness.add(OPEN_LEDGER, ENTRY, b"data")
    while life.journal.status.waiting_bytes or life.journal.status.in_flight:
        life.journal.step(5)
    move_to(life, judged, FENCED_LEDGER, entry(FENCED_LEDGER, ENTRY, b"data"))
    with pytest.raises(RewrittenError):
        life.index_step()
    life.close()

    after = Life(fake, Book())
    assert after.harness is not None
    found = {
        ledger_id: after.harness.ask_one(after.harness.read(ledger_id, ENTRY))
        for ledger_id in (FENCED_LEDGER, OPEN_LEDGER)
    }
    assert found[FENCED_LEDGER].status == NO_ENTRY
    assert found[OPEN_LEDGER].status == OK
    assert found[OPEN_LEDGER].entry == entry(OPEN_LEDGER, ENTRY, b"data")
    after.close()
