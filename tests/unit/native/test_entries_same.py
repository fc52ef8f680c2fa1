"""Two copies of one entry, when nobody said which digest it has: recoveries write it again with another LAC (A5)."""

from __future__ import annotations

import hashlib
import hmac
import random
import struct

import pytest

from tests.fixtures.decide import entries_same
from tests.fixtures.hashes import (
    DIGEST_CRC32,
    DIGEST_CRC32C,
    DIGEST_DUMMY,
    DIGEST_HMAC,
    DIGEST_NONE,
    with_digest,
)

DIGESTS = [DIGEST_CRC32, DIGEST_CRC32C, DIGEST_HMAC, DIGEST_DUMMY]


def entry(
    digest_type: int, data: bytes, lac: int, *, length: int = 100, entry_id: int = 7
) -> bytes:
    header = struct.pack(">qqqq", 5, entry_id, lac, length)
    if digest_type == DIGEST_HMAC:
        return header + hmac.digest(b"k", header + data, hashlib.sha1) + data
    return with_digest(digest_type, header, data)


@pytest.mark.parametrize("digest_type", DIGESTS)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 8, 19, 20, 21, 1000])
def test_another_lac_makes_no_other_entry(digest_type: int, size: int) -> None:
    data = random.Random(size).randbytes(size)
    first, second = (entry(digest_type, data, lac) for lac in (3, 6))
    assert entries_same(first, second, DIGEST_NONE)
    assert entries_same(first, first, DIGEST_NONE)
    assert not entries_same(first, entry(digest_type, data, 6, length=101), DIGEST_NONE)
    assert not entries_same(first, entry(digest_type, data, 6, entry_id=8), DIGEST_NONE)
    assert not entries_same(first, second + b"x", DIGEST_NONE)


@pytest.mark.parametrize("digest_type", [DIGEST_CRC32, DIGEST_CRC32C])
@pytest.mark.parametrize("at", [0, 3, 4, 19, 20, 60])
def test_other_data_is_another_entry(digest_type: int, at: int) -> None:
    data = bytes(64)
    other = data[:at] + b"\x01" + data[at + 1 :]
    for lac in (3, 6):
        assert not entries_same(
            entry(digest_type, data, 3), entry(digest_type, other, lac), DIGEST_NONE
        )


@pytest.mark.parametrize("digest_type", DIGESTS)
def test_a_turned_bit_is_not_overlooked(digest_type: int) -> None:
    """With the same LAC nothing may differ; with another one, nothing that a CRC or HMAC's readers could not find."""
    first, second = (entry(digest_type, bytes(range(64)), lac) for lac in (3, 6))
    for at in [*range(32, len(first)), 0, 8, 24]:
        for copy, is_found in (
            (first, True),
            (second, at >= 52 or at < 32 or digest_type in (DIGEST_CRC32, DIGEST_CRC32C)),
        ):
            turned = copy[:at] + bytes([copy[at] ^ 4]) + copy[at + 1 :]
            assert entries_same(first, turned, DIGEST_NONE) != is_found, at


def test_a_crc_in_one_copy_only() -> None:
    """What is no CRC32C entry any more is not the same as one that is, whatever lies behind the room of an HMAC."""
    whole = entry(DIGEST_CRC32C, bytes(64), 3)
    broken = entry(DIGEST_CRC32C, bytes(64), 6)
    broken = broken[:34] + b"\xff" + broken[35:]
    assert not entries_same(whole, broken, DIGEST_NONE)
    assert not entries_same(whole, broken, DIGEST_CRC32C)


@pytest.mark.parametrize("digest_type", [DIGEST_CRC32, DIGEST_CRC32C])
@pytest.mark.parametrize("lac", [3, 6])
def test_a_copy_that_no_reader_takes_stands_for_no_other(digest_type: int, lac: int) -> None:
    """What came with a wrong digest, the type not being known yet, is nothing that a repair or recovery may count."""
    good = entry(digest_type, bytes(64), 3)
    bad = good[:34] + bytes([good[34] ^ 1]) + good[35:]
    assert entries_same(bad, bad, digest_type), "sent again"
    assert not entries_same(bad, entry(digest_type, bytes(64), lac), digest_type)
    assert entries_same(good, entry(digest_type, bytes(64), lac), digest_type)
