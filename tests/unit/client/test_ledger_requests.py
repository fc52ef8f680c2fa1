"""Answers as replies: what a good digest covers counts, and nothing else leaves the file as data (INV-X1)."""

from __future__ import annotations

import struct

import pytest

from fastbk.client.bookie_requests import LedgerRequests
from fastbk.client.connection import Answer
from fastbk.model.entry import DigestType, make_lac_body
from fastbk.native.client_codec import put_write_lac
from fastbk.replication.procedure import AddEntry, ReadEntries, ReadEntry, ReadLac, WriteLac
from fastbk.wire.statuses import Status
from tests.fixtures.entries import make_entry

LEDGER = 9
DIGESTS = [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY]


def entry(entry_id: int, lac: int, length: int, data: bytes, kind: DigestType) -> bytes:
    return make_entry(LEDGER, entry_id, lac, length, data, kind, b"pw")


def answer(
    status: int = 0, entry_id: int = -1, entries: bytes = b"", extra: bytes = b"", lac: int = -1
) -> Answer:
    return Answer(status, 0, entry_id, lac, False, entries, extra, b"")


def requests_of(kind: DigestType) -> LedgerRequests:
    return LedgerRequests(LEDGER, kind, b"pw")


@pytest.mark.parametrize("kind", DIGESTS)
def test_an_entry_comes_with_its_lac_and_length(kind: DigestType) -> None:
    whole = entry(5, 3, 1234, b"data", kind)
    reply = requests_of(kind).reply(ReadEntry(5), answer(0, 5, whole))
    (found,) = reply.found
    assert (found.entry_id, found.lac, found.length, bytes(found.data)) == (5, 3, 1234, b"data")
    assert reply.lacs == (3,)
    assert not reply.damaged


def test_a_copy_under_another_id_or_with_a_flipped_bit_is_damage() -> None:
    requests = requests_of(DigestType.CRC32C)
    whole = entry(5, 3, 1234, b"data", DigestType.CRC32C)
    for request, got in (
        (ReadEntry(4), answer(0, 4, whole)),
        (ReadEntry(-1), answer(0, 6, whole)),
        (ReadEntry(5), answer(0, 5, whole[:-1] + b"x")),
        (ReadEntry(5), answer(0, 5, b"")),
    ):
        reply = requests.reply(request, got)
        assert reply.damaged
        assert reply.found == ()
        assert reply.lacs == ()


def test_a_fencing_read_is_answered_only_by_a_fenced_bookie() -> None:
    requests = requests_of(DigestType.CRC32C)
    for status, fenced in (
        (Status.NO_ENTRY, True),
        (Status.NO_LEDGER, True),
        (Status.CANNOT_TELL, False),
    ):
        assert requests.reply(ReadEntry(-1, fence=True), answer(status)).fenced is fenced
    assert not requests.reply(ReadEntry(-1), answer(Status.NO_ENTRY)).fenced


@pytest.mark.parametrize("kind", DIGESTS)
def test_a_batch_ends_before_what_is_not_whole(kind: DigestType) -> None:
    parts = [entry(one, one - 1, 10 * (one + 1), b"x" * 10, kind) for one in range(3, 8)]
    if kind is not DigestType.DUMMY:
        parts[3] = parts[3][:-1] + b"y"
    sizes = struct.pack(f"<{len(parts)}I", *map(len, parts))
    reply = requests_of(kind).reply(
        ReadEntries(3, 9, 100, 1 << 20), answer(0, 8, b"".join(parts), sizes)
    )
    good = 5 if kind is DigestType.DUMMY else 3
    assert [one.entry_id for one in reply.found] == list(range(3, 3 + good))
    assert [one.length for one in reply.found] == [10 * (one + 4) for one in range(good)]
    assert reply.damaged is (kind is not DigestType.DUMMY)
    assert reply.next_entry_id == 8
    assert reply.lacs == (reply.found[-1].lac,)


def test_entries_that_nobody_asked_for_are_damage() -> None:
    kind = DigestType.CRC32C
    parts = [entry(one, one - 1, one, b"", kind) for one in (1, 2, 3)]
    sizes = struct.pack("<3I", *map(len, parts))
    reply = requests_of(kind).reply(ReadEntries(2, 2, 9, 999), answer(0, 3, b"".join(parts), sizes))
    assert [one.entry_id for one in reply.found] == [2]
    assert reply.damaged


def test_a_lac_is_what_a_digest_covers_and_never_the_bare_number() -> None:
    kind = DigestType.CRC32C
    requests = requests_of(kind)
    body = make_lac_body(LEDGER, 40, kind, b"pw")
    newest = entry(50, 49, 1, b"", kind)
    reply = requests.reply(ReadLac(), answer(0, 50, newest, body, lac=1000))
    assert set(reply.lacs) == {40, 49}
    assert reply.found[0].entry_id == 50
    other = make_lac_body(LEDGER + 1, 90, kind, b"pw")
    reply = requests.reply(ReadLac(), answer(0, 50, newest, other, lac=1000))
    assert reply.damaged
    assert reply.lacs == (49,)


def test_a_recovery_add_is_the_writers_frame_but_for_its_flag() -> None:
    requests = requests_of(DigestType.CRC32C)
    frames = {
        flag: bytes(requests.frame(AddEntry(7, 6, 100, b"data", recovery=flag), 11))
        for flag in (True, False)
    }
    differing = [at for at in range(len(frames[True])) if frames[True][at] != frames[False][at]]
    assert len(differing) == 1
    assert entry(7, 6, 100, b"data", DigestType.CRC32C) in frames[True]


@pytest.mark.parametrize("kind", DIGESTS)
def test_a_lac_is_told_with_its_own_body_however_often(kind: DigestType) -> None:
    requests = requests_of(kind)
    for request_id, lac in enumerate((0, 0, 1, 0), 1):
        body = make_lac_body(LEDGER, lac, kind, b"pw")
        frame = bytes(requests.frame(WriteLac(lac), request_id))
        expected = put_write_lac(request_id, LEDGER, lac, requests.add_codec.master_key, body)
        assert frame == bytes(expected)
