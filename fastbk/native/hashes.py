"""Checksums of buffers, for code off the hot path."""

from __future__ import annotations

from fastbk.native._client import ffi, lib

Readable = bytes | bytearray | memoryview


def crc32c(data: Readable, crc: int = 0) -> int:
    """Return the CRC32C of `data`, continued from `crc` (0 to begin)."""
    return lib.fbk_python_crc32c(crc, ffi.from_buffer("uint8_t[]", data), memoryview(data).nbytes)


def crc32(data: Readable, crc: int = 0) -> int:
    """Return the CRC32 (zlib's) of `data`, continued from `crc` (0 to begin)."""
    return lib.fbk_python_crc32(crc, ffi.from_buffer("uint8_t[]", data), memoryview(data).nbytes)


def is_hardware() -> bool:
    """Return whether the processor's checksum instructions are used (tables otherwise, same results)."""
    return bool(lib.fbk_checksum_is_hardware())
