"""Typed face of the codec of streams' entries (`stream/codec.c`): records into an entry, entries into tables.

One call an entry written, two calls a batch of entries read, however many records they hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from fastbk.errors import ProtocolError, RecordTooLarge, TxidOutOfOrder
from fastbk.native._client import ffi, lib

HEAD_BYTES: int = lib.FBK_STREAM_HEAD_BYTES
RECORD_OVERHEAD_BYTES_MAX: int = lib.FBK_STREAM_RECORD_OVERHEAD_BYTES_MAX
KIND_RECORDS: int = lib.FBK_STREAM_KIND_RECORDS
KIND_INDEX: int = lib.FBK_STREAM_KIND_INDEX
HEAD_WORDS: int = lib.FBK_STREAM_HEAD_WORDS
ROW_WORDS: int = lib.FBK_STREAM_ROW_WORDS
TABLE_WORDS: int = lib.FBK_STREAM_TABLE_WORDS

# Of an entry in the table of heads, and of a record in the table of rows.
(
    HEAD_KIND,
    HEAD_EPOCH,
    HEAD_RECORDS,
    HEAD_FIRST_RECORD,
    HEAD_FIRST_TXID,
    HEAD_LAST_TXID,
    HEAD_TIME_US,
    HEAD_FIRST_ROW,
) = range(HEAD_WORDS)
(
    ROW_PAYLOAD_AT,
    ROW_PAYLOAD_BYTES,
    ROW_KEY_AT,
    ROW_KEY_BYTES,
    ROW_HEADERS_AT,
    ROW_HEADERS_BYTES,
    ROW_TXID,
    ROW_PLACE,
) = range(ROW_WORDS)

CODEC_NONE, CODEC_LZ4, CODEC_ZSTD = range(3)
_TOO_SMALL: int = lib.FBK_E_FULL
_ENTRY_BYTES_MAX = 2**31 - 1


class Head(NamedTuple):
    """An entry's head; see `boundary/stream.h`. Transaction ids are relative to the segment's base."""

    kind: int
    codec: int
    epoch: int
    record_count: int
    first_record: int
    first_txid: int
    last_txid: int
    time_us: int
    raw_bytes: int
    stored_bytes: int


def read_head(entry: bytes | bytearray | memoryview) -> Head:
    """Return the head of an entry's data. Raises ProtocolError."""
    head = ffi.new("struct fbk_stream_head *")
    if lib.fbk_stream_read_head(ffi.from_buffer("uint8_t[]", entry), len(entry), head) != 0:
        raise ProtocolError(f"{len(entry)} bytes are no entry of a stream")
    return Head(
        head.kind,
        head.codec,
        head.epoch,
        head.record_count,
        head.first_record,
        head.first_txid,
        head.last_txid,
        head.time_us,
        head.raw_bytes,
        head.stored_bytes,
    )


def put_head(entry: bytearray, head: Head) -> None:
    """Write a head into the first bytes of an entry."""
    filled = ffi.new("struct fbk_stream_head *", head._asdict())
    lib.fbk_stream_put_head(ffi.from_buffer("uint8_t[]", entry), filled)


def encode(
    epoch: int,
    first_record: int,
    time_us: int,
    payloads: Sequence[bytes],
    txids: array[int],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes] | None = None,
) -> bytearray:
    """Return the entry of these records, not compressed. `txids` ("q"): relative to the segment's base, not negative.

    Raises TxidOutOfOrder for ids that fall, RecordTooLarge beyond 2 GiB.
    """
    count = len(payloads)
    sizes = array("I", map(len, payloads))
    key_sizes, header_sizes = ffi.NULL, ffi.NULL
    if keys is None and headers is None:
        pieces = payloads[0] if count == 1 else b"".join(payloads)
    else:
        all_keys = keys or [None] * count
        all_headers = headers or [b""] * count
        parts: list[bytes] = []
        for key, header, payload in zip(all_keys, all_headers, payloads, strict=True):
            parts += (key or b"", header, payload)
        pieces = b"".join(parts)
        key_sizes = ffi.new("int32_t[]", [-1 if key is None else len(key) for key in all_keys])
        header_sizes = ffi.new("uint32_t[]", [len(header) for header in all_headers])
    room = HEAD_BYTES + len(pieces) + count * RECORD_OVERHEAD_BYTES_MAX
    if room > _ENTRY_BYTES_MAX:
        raise RecordTooLarge(f"{len(pieces)} bytes are more than an entry can have")
    out = bytearray(room)
    head = ffi.new(
        "struct fbk_stream_head *",
        {"kind": KIND_RECORDS, "epoch": epoch, "first_record": first_record, "time_us": time_us},
    )
    written = lib.fbk_stream_encode(
        head,
        pieces,
        ffi.from_buffer("uint32_t[]", sizes),
        key_sizes,
        header_sizes,
        ffi.from_buffer("int64_t[]", txids),
        count,
        ffi.from_buffer("uint8_t[]", out),
        room,
    )
    if written == _TOO_SMALL:
        raise RecordTooLarge(f"{len(pieces)} bytes are more than an entry can have")
    if written < 0:
        raise TxidOutOfOrder("transaction ids must not be negative, nor fall within a batch")
    del out[written:]
    return out


def decode(entries: bytes, sizes: array[int]) -> tuple[memoryview, memoryview]:
    """Return the tables of heads and rows (int64, HEAD_WORDS and ROW_WORDS each) of entries one behind the other.

    None of them may be compressed. Raises ProtocolError; its `entry_id` is the place of the bad one among them.
    """
    count = len(sizes)
    if sum(sizes) != len(entries):
        raise ProtocolError("the entries' sizes are not those of their bytes")
    heads = bytearray(8 * HEAD_WORDS * count)
    bad = ffi.new("uint32_t *")
    of_sizes = ffi.from_buffer("uint32_t[]", sizes)
    records = lib.fbk_stream_heads(
        entries, of_sizes, count, ffi.from_buffer("int64_t[]", heads), bad
    )
    if records < 0:
        raise ProtocolError("an entry has no head of a stream's entries", entry_id=bad[0])
    rows = bytearray(8 * ROW_WORDS * records)
    if lib.fbk_stream_rows(entries, of_sizes, count, ffi.from_buffer("int64_t[]", rows), bad) != 0:
        raise ProtocolError("an entry's records are not what its head says", entry_id=bad[0])
    return memoryview(heads).cast("q"), memoryview(rows).cast("q")


def decode_table(data: bytes | memoryview, words: array[int]) -> tuple[memoryview, memoryview]:
    """Like `decode`, of entries anywhere in `data`, as `LedgerCodec.table` found them; places count from `data`."""
    count = len(words) // TABLE_WORDS
    heads = bytearray(8 * HEAD_WORDS * count)
    bad = ffi.new("uint32_t *")
    of_data, of_words = ffi.from_buffer("uint8_t[]", data), ffi.from_buffer("int64_t[]", words)
    of_heads = ffi.from_buffer("int64_t[]", heads)
    records = lib.fbk_stream_table_heads(of_data, len(data), of_words, count, of_heads, bad)
    if records < 0:
        raise ProtocolError("an entry has no head of a stream's entries", entry_id=bad[0])
    rows = bytearray(8 * ROW_WORDS * records)
    of_rows = ffi.from_buffer("int64_t[]", rows)
    if lib.fbk_stream_table_rows(of_data, len(data), of_words, count, of_rows, bad) != 0:
        raise ProtocolError("an entry's records are not what its head says", entry_id=bad[0])
    return memoryview(heads).cast("q"), memoryview(rows).cast("q")
