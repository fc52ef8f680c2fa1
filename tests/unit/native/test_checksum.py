"""The typed face of the checksums: known values, any buffer, pieces."""

from __future__ import annotations

import zlib

import pytest

from fastbk.native import checksum


def test_known_values() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32(b"123456789") == 0xCBF43926
    assert checksum.crc32c(b"") == 0
    assert checksum.crc32(b"", 5) == 5


@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 65, 1000, 100_003])
def test_crc32_is_zlibs(size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    assert checksum.crc32(data) == zlib.crc32(data)
    assert checksum.crc32(data[size // 3 :], checksum.crc32(data[: size // 3])) == zlib.crc32(data)


def test_any_buffer() -> None:
    data = bytes(range(200))
    wanted = checksum.crc32c(data)
    assert checksum.crc32c(bytearray(data)) == wanted
    assert checksum.crc32c(memoryview(data)) == wanted
    assert checksum.crc32c(memoryview(b"x" + data)[1:]) == wanted


def test_combine() -> None:
    a, b = b"first" * 9, b"second" * 5000
    combined = checksum.crc32c_combine(checksum.crc32c(a), checksum.crc32c(b), len(b))
    assert combined == checksum.crc32c(a + b)
    assert isinstance(checksum.is_hardware(), bool)
