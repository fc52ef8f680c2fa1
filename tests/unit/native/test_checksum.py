"""The typed face of the checksums: known values, any buffer, pieces."""

from __future__ import annotations

import zlib

import pytest

from fastbk.native import hashes
from fastbk.native._client import lib


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
