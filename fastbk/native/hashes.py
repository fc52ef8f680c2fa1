"""Checksums of buffers, digests of entries and verification of frames, for code off the hot path."""

from __future__ import annotations

from fastbk.native._client import ffi, lib

DIGEST_NONE = lib.FBK_DIGEST_NONE
DIGEST_CRC32 = lib.FBK_DIGEST_CRC32
DIGEST_HMAC = lib.FBK_DIGEST_HMAC
DIGEST_CRC32C = lib.FBK_DIGEST_CRC32C
DIGEST_DUMMY = lib.FBK_DIGEST_DUMMY


def is_request(frame: bytes) -> bool:
    """Return whether `frame`, with its length, is a valid flatbuffer with root Request."""
    return bool(lib.fbk_verify(frame, len(frame), lib.FBK_VERIFY_REQUEST))


def is_response(frame: bytes) -> bool:
    """Return whether `frame`, with its length, is a valid flatbuffer with root Response."""
    return bool(lib.fbk_verify(frame, len(frame), lib.FBK_VERIFY_RESPONSE))


def check_digest(digest_type: int, entry: bytes) -> int:
    """Return the status (FBK_S_OK, BAD_DIGEST, BAD_REQUEST) of an entry's digest; HMAC is not looked at."""
    return lib.fbk_digest_check(digest_type, entry, len(entry))


def check_mac(key: bytes, entry: bytes) -> int:
    """Return the same of an entry whose digest is an HMAC, by the ledger's key (`fastbk.model.entry.mac_key`)."""
    if len(key) != lib.FBK_MAC_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return lib.fbk_digest_check_mac(key, entry, len(entry))


def with_digest(digest_type: int, header: bytes, data: bytes) -> bytes:
    """Return the entry of a 32-byte header and data, with its digest. Raises ValueError for HMAC."""
    size_bytes = {DIGEST_NONE: 0, DIGEST_CRC32: 8, DIGEST_CRC32C: 4, DIGEST_DUMMY: 0}.get(
        digest_type
    )
    if size_bytes is None or len(header) != 32:
        raise ValueError(f"digest type {digest_type} or a header of {len(header)} bytes")
    entry = bytearray(header + bytes(size_bytes) + data)
    lib.fbk_digest_put(digest_type, ffi.from_buffer("uint8_t[]", entry), len(entry))
    return bytes(entry)


Readable = bytes | bytearray | memoryview


def crc32c(data: Readable, crc: int = 0) -> int:
    """Return the CRC32C of `data`, continued from `crc` (0 to begin)."""
    return lib.fbk_python_crc32c(crc, ffi.from_buffer("uint8_t[]", data), memoryview(data).nbytes)


def crc32(data: Readable, crc: int = 0) -> int:
    """Return the CRC32 (zlib's) of `data`, continued from `crc` (0 to begin)."""
    return lib.fbk_python_crc32(crc, ffi.from_buffer("uint8_t[]", data), memoryview(data).nbytes)


def crc32c_combine(crc_a: int, crc_b: int, size_b_bytes: int) -> int:
    """Return the CRC32C of A followed by B, from the CRC32C of each and B's length."""
    return lib.fbk_python_crc32c_combine(crc_a, crc_b, size_b_bytes)


def is_hardware() -> bool:
    """Return whether the processor's checksum instructions are used (tables otherwise, same results)."""
    return bool(lib.fbk_checksum_is_hardware())
