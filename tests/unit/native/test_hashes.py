"""The typed face of the checksums: known values, any buffer, pieces."""

from __future__ import annotations

import random
import zlib

import pytest

from fastbk.model.entry import DigestType, mac_key
from fastbk.native import hashes
from fastbk.native._client import lib
from tests.fixtures.entries import make_entry
from tests.fixtures.hashes import check_mac


def test_known_values() -> None:
    assert hashes.crc32c(b"123456789") == 0xE3069283
    assert hashes.crc32(b"123456789") == 0xCBF43926
    assert hashes.crc32c(b"") == 0
    assert hashes.crc32(b"", 5) == 5


@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 65, 1000, 100_003])
def test_crc32_is_zlibs(size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    assert hashes.crc32(data) == zlib.crc32(data)
    assert hashes.crc32(data[size // 3 :], hashes.crc32(data[: size // 3])) == zlib.crc32(data)


def test_any_buffer() -> None:
    data = bytes(range(200))
    wanted = hashes.crc32c(data)
    assert hashes.crc32c(bytearray(data)) == wanted
    assert hashes.crc32c(memoryview(data)) == wanted
    assert hashes.crc32c(memoryview(b"x" + data)[1:]) == wanted


def test_combine() -> None:
    a, b = b"first" * 9, b"second" * 5000
    combined = lib.fbk_python_crc32c_combine(hashes.crc32c(a), hashes.crc32c(b), len(b))
    assert combined == hashes.crc32c(a + b)
    assert isinstance(hashes.is_hardware(), bool)


# HMACs of entries in C, beside Python's own: every length around SHA-1's blocks, and keys that
# are not right.


def entry(data: bytes, password: bytes) -> bytes:
    return make_entry(5, 7, 6, 123, data, DigestType.HMAC, password)


def test_it_agrees_with_pythons_own_at_every_length() -> None:
    draw = random.Random(3)
    for size_bytes in [*range(200), 4096, 100_001]:
        password, data = draw.randbytes(draw.randrange(30)), draw.randbytes(size_bytes)
        key, raw = mac_key(password), entry(data, password)
        assert check_mac(key, raw) == lib.FBK_S_OK, size_bytes
        at = draw.randrange(len(raw))
        wrong = raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :]
        assert check_mac(key, wrong) == lib.FBK_S_BAD_DIGEST
        assert check_mac(mac_key(password + b"."), raw) == lib.FBK_S_BAD_DIGEST


def test_what_is_too_short_for_its_digest_is_no_entry() -> None:
    raw = entry(b"", b"")
    assert len(raw) == 52
    assert check_mac(mac_key(b""), raw) == lib.FBK_S_OK
    assert check_mac(mac_key(b""), raw[:51]) == lib.FBK_S_BAD_REQUEST
    with pytest.raises(ValueError, match="a key of 19 bytes"):
        check_mac(bytes(19), raw)
