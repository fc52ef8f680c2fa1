"""The list of ledgers in limbo, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.storage.limbo import NAME, decode, encode, read_limbo, remove_limbo, write_limbo
from tests.fixtures.fake_disk import FakeDisk

IDS = [0, 7, 2**40, 2**63 - 1]
INCARNATION = 2**62 + 5
GOLDEN = Path(__file__).parents[2] / "golden" / "storage" / NAME


def test_golden_file() -> None:
    assert encode(IDS, INCARNATION) == GOLDEN.read_bytes()
    incarnation, ids = decode(GOLDEN.read_bytes())
    assert (incarnation, list(ids)) == (INCARNATION, IDS)


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    raw = encode(IDS, INCARNATION)
    for at in range(len(raw)):
        bad = bytearray(raw)
        bad[at] ^= 1
        with pytest.raises((CorruptDataError, FormatTooNewError)):
            decode(bytes(bad))
        with pytest.raises(CorruptDataError):
            decode(raw[:at])


def test_a_newer_version_is_refused_by_name() -> None:
    raw = bytearray(encode(IDS, INCARNATION))
    raw[8] = 2
    raw[28:32] = crc32c(bytes(raw[:28])).to_bytes(4, "little")
    with pytest.raises(FormatTooNewError, match="version 2"):
        decode(bytes(raw))


def test_it_survives_a_crash_and_counts_for_its_incarnation_only() -> None:
    with FakeDisk() as fake:
        assert list(read_limbo(fake.disk(), "/", INCARNATION)) == []
        write_limbo(fake.disk(), "/", IDS, INCARNATION)
        fake.restart("lose")
        assert list(read_limbo(fake.disk(), "/", INCARNATION)) == IDS
        assert list(read_limbo(fake.disk(), "/", INCARNATION + 1)) == []
        remove_limbo(fake.disk(), "/")
        fake.restart("lose")
        assert list(read_limbo(fake.disk(), "/", INCARNATION)) == []
        remove_limbo(fake.disk(), "/")
