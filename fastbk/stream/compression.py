"""Bodies of entries, compressed one by one, so that each can be read alone: LZ4 blocks, Zstandard frames.

Readers trust no size that an entry declares. The head's size is bounded, a frame must declare the head's size, and a
body that has another size is an error.
"""

from __future__ import annotations

import lz4.block
import zstandard

from fastbk.errors import ProtocolError
from fastbk.native.stream_codec import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    HEAD_BYTES,
    Head,
    put_head,
    read_head,
)
from fastbk.stream.policy import Compression

CODECS: dict[Compression, int] = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
RAW_BYTES_MAX = 16 * 1024 * 1024
"""Of an entry's body before it is compressed. Writers refuse larger entries, and so do readers."""
RECORDS_MAX = 1024 * 1024
"""Of a compressed entry. A record takes 64 bytes of a reader's memory, and may take next to nothing of the entry."""
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


def unpacked_parts(entry: bytes | memoryview, head: Head) -> tuple[bytes | memoryview, ...]:
    """Return the entry with its body as it was before it was compressed, as head and body: the body is not copied.

    Raises ProtocolError.
    """
    if head.codec == CODEC_NONE:
        return (entry,)
    if head.raw_bytes > RAW_BYTES_MAX or head.record_count > RECORDS_MAX:
        raise ProtocolError(
            f"a compressed entry declares {head.raw_bytes} bytes and {head.record_count} records; the limits are"
            f" {RAW_BYTES_MAX} bytes and {RECORDS_MAX} records"
        )
    body = memoryview(entry)[HEAD_BYTES:]
    try:
        raw = _raw(body, head)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as error:
        raise ProtocolError(f"an entry's body cannot be unpacked: {error}") from error
    if len(raw) != head.raw_bytes:
        raise ProtocolError(f"an entry's body has {len(raw)} bytes, its head says {head.raw_bytes}")
    out = bytearray(HEAD_BYTES)
    put_head(out, head._replace(codec=CODEC_NONE, stored_bytes=len(raw)))
    return bytes(out), raw


def _raw(body: memoryview, head: Head) -> bytes:
    if head.codec == CODEC_LZ4:
        raw: bytes = lz4.block.decompress(body, uncompressed_size=head.raw_bytes)
        return raw
    # The decompressor allocates what the frame declares, whatever `max_output_size` is.
    declared = zstandard.frame_content_size(body)
    if declared not in (-1, head.raw_bytes):
        raise ProtocolError(
            f"a compressed entry's frame declares {declared} bytes, its head {head.raw_bytes}"
        )
    decompressor = zstandard.ZstdDecompressor(max_window_size=RAW_BYTES_MAX)
    return decompressor.decompress(body, max_output_size=head.raw_bytes)
