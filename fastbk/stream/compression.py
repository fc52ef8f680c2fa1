"""Bodies of entries, compressed one by one, so that each can be read alone: LZ4 blocks, Zstandard frames."""

from __future__ import annotations

import lz4.block
import zstandard

from fastbk.errors import ProtocolError
from fastbk.native.stream_codec import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    HEAD_BYTES,
    put_head,
    read_head,
)
from fastbk.stream.policy import Compression

CODECS: dict[Compression, int] = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
RAW_BYTES_MAX = 64 * 1024 * 1024
"""Bounds what an entry that lies about itself can have unpacked."""
ZSTD_LEVEL = 3


def compressed(entry: bytearray, codec: int) -> bytes | bytearray:
    """Return the entry with its body compressed, or as it is where that would not make it smaller."""
    if codec == CODEC_NONE:
        return entry
    body = memoryview(entry)[HEAD_BYTES:]
    if codec == CODEC_LZ4:
        packed: bytes = lz4.block.compress(body, store_size=False)
    else:
        packed = zstandard.ZstdCompressor(ZSTD_LEVEL, write_content_size=True).compress(body)
    if len(packed) >= len(body):
        return entry
    head = read_head(entry)
    out = bytearray(HEAD_BYTES)
    put_head(out, head._replace(codec=codec, stored_bytes=len(packed)))
    return bytes(out) + packed


def unpacked(entry: bytes | memoryview) -> bytes | memoryview:
    """Return the entry with its body as it was before it was compressed. Raises ProtocolError."""
    head = read_head(entry)
    if head.codec == CODEC_NONE:
        return entry
    if head.raw_bytes > RAW_BYTES_MAX:
        raise ProtocolError(
            f"an entry says that its body has {head.raw_bytes} bytes: at most {RAW_BYTES_MAX}"
        )
    body = memoryview(entry)[HEAD_BYTES:]
    try:
        if head.codec == CODEC_LZ4:
            raw: bytes = lz4.block.decompress(body, uncompressed_size=head.raw_bytes)
        else:
            raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=head.raw_bytes)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as error:
        raise ProtocolError(f"an entry's body cannot be unpacked: {error}") from error
    if len(raw) != head.raw_bytes:
        raise ProtocolError(f"an entry's body has {len(raw)} bytes, its head says {head.raw_bytes}")
    out = bytearray(HEAD_BYTES)
    put_head(out, head._replace(codec=CODEC_NONE, stored_bytes=len(raw)))
    return bytes(out) + raw
