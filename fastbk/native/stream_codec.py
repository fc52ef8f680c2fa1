"""Typed face of the codec of streams' entries (`stream/codec.c`): records into an entry, entries into tables.

One call an entry written, two calls a batch of entries read, however many records they hold.

Decision 66.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from fastbk.errors import ProtocolError, RecordTooLarge, TxidOutOfOrder
from fastbk.native._client import ffi, lib
from fastbk.native.ffi import CData, check

HEAD_BYTES: int = lib.FBK_STREAM_HEAD_BYTES
RECORD_OVERHEAD_BYTES_MAX: int = lib.FBK_STREAM_RECORD_OVERHEAD_BYTES_MAX
KIND_RECORDS: int = lib.FBK_STREAM_KIND_RECORDS
KIND_INDEX: int = lib.FBK_STREAM_KIND_INDEX
KIND_PROVENANCE: int = lib.FBK_STREAM_KIND_PROVENANCE
PROVENANCE_BYTES_MIN: int = lib.FBK_STREAM_PROVENANCE_BYTES_MIN
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
    provenance_bytes: int = 0
    records_distance: int = 0


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
        head.provenance_bytes,
        head.records_distance,
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
    The base is 0 where a writer made the segment.

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


def check_body(body: bytes | memoryview, count: int, skip: int = 0) -> int:
    """Return where record number `skip` of a producer's records begins; `count`: the end.

    Raises ProtocolError unless these are `count` records whose transaction ids rise by one.
    """
    skipped = ffi.new("uint64_t *")
    of_body = ffi.from_buffer("uint8_t[]", body)
    if lib.fbk_stream_check_body(of_body, len(body), count, skip, skipped) != 0:
        raise ProtocolError(f"{len(body)} bytes are not {count} records of a producer")
    return int(skipped[0])


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


# --- records as columns ------------------------------------------------------------------------------------------
#
# Typed face of `stream/columns.c`: records of streams into columns, laid out as Apache Arrow wants them in memory.
#
# Two calls for each table of records, without the interpreter lock, however many records there are.


OFFSET_MAX = 2**31 - 1
"""What a column's values, or a batch's headers, can have at most: offsets are of 32 bits."""
_WORDS = {"int64_t[]": 8, "int32_t[]": 4, "uint8_t[]": 1}
_KINDS = {
    "segments": "int64_t[]",
    "entries": "int64_t[]",
    "slots": "int32_t[]",
    "seqs": "int64_t[]",
    "txids": "int64_t[]",
    "times_us": "int64_t[]",
    "key_bits": "uint8_t[]",
    "key_offsets": "int32_t[]",
    "keys": "uint8_t[]",
    "value_offsets": "int32_t[]",
    "values": "uint8_t[]",
    "header_offsets": "int32_t[]",
    "name_offsets": "int32_t[]",
    "names": "uint8_t[]",
    "header_value_offsets": "int32_t[]",
    "header_values": "uint8_t[]",
}


class Source(NamedTuple):
    """Consecutive records of one segment. `heads`: of all entries of `data`; `rows`: of these records; int64 both.

    `first_entry_id` is of the entry that the first head is of, `first_seq` of the first row, `base_txid` of the
    segment.
    """

    data: bytes | memoryview
    heads: memoryview
    rows: memoryview
    segment: int
    first_entry_id: int
    first_seq: int
    base_txid: int


class Sizes(NamedTuple):
    """What records' values take: bytes of payloads, of keys; headers, bytes of their names and of their values."""

    value_bytes: int
    key_bytes: int
    headers: int
    name_bytes: int
    header_value_bytes: int


def _of(source: Source) -> tuple[Any, list[object]]:
    """Return the C struct of a source, and what has to live as long as it does."""
    held = [
        ffi.from_buffer("uint8_t[]", source.data),
        ffi.from_buffer("int64_t[]", source.heads),
        ffi.from_buffer("int64_t[]", source.rows),
    ]
    made = ffi.new(
        "struct fbk_column_source *",
        {
            "entries": held[0],
            "entries_bytes": len(source.data),
            "heads": held[1],
            "head_count": len(source.heads) // HEAD_WORDS,
            "rows": held[2],
            "row_count": len(source.rows) // ROW_WORDS,
            "segment": source.segment,
            "first_entry_id": source.first_entry_id,
            "first_seq": source.first_seq,
            "base_txid": source.base_txid,
        },
    )
    return made, held


def _checked(status: int, bad: Any, source: Source) -> None:  # noqa: ANN401 -- cffi's
    if status == lib.FBK_E_PROTOCOL:
        raise ProtocolError(
            f"record {source.first_seq + bad[0]} of segment {source.segment}: its headers make no sense"
        )
    check(status, "columns of records")


def sizes_of(sources: Sequence[Source], *, headers: bool) -> Sizes:
    """Return what the values of all these records take. Raises ProtocolError for headers that make no sense.

    Without `headers` these are not looked at, and their sizes are 0.
    """
    sizes = ffi.new("struct fbk_column_sizes *")
    bad = ffi.new("uint64_t *")
    for source in sources:
        of_source, held = _of(source)
        status = lib.fbk_stream_column_sizes(of_source, headers, sizes, bad)
        del held
        _checked(status, bad, source)
    return Sizes(*(getattr(sizes, name) for name in Sizes._fields))


def fill_record_columns(
    sources: Sequence[Source], room: Sizes, buffers: Mapping[str, object]
) -> None:
    """Write all these records into `buffers`, writable memory by the names of `struct fbk_columns`.

    Those of numbers have an item a record, offsets one more than there are items, `key_bits` a bit, values the bytes
    of `room`. What is left out is not written; of keys (3 buffers), values (2) and headers (5) all or none are given.
    Raises ProtocolError as `sizes_of`, NativeFullError where they do not fit, ValueError for buffers of wrong sizes.
    """
    rows = sum(len(source.rows) for source in sources) // ROW_WORDS
    lengths = _lengths(rows, room)
    _check_groups(buffers)
    columns = ffi.new("struct fbk_columns *", {"rows_max": rows, "room": room._asdict()})
    held: list[object] = []
    for name, buffer in buffers.items():
        kind = _KINDS[name]
        memory = ffi.from_buffer(kind, buffer, require_writable=True)
        if len(memory) < lengths[name]:
            raise ValueError(f"{name} has room for {len(memory)} items: {lengths[name]} are needed")
        setattr(columns, name, memory)
        held.append(memory)
    bad = ffi.new("uint64_t *")
    for source in sources:
        of_source, parts = _of(source)
        status = lib.fbk_stream_fill_columns(columns, of_source, bad)
        del parts
        _checked(status, bad, source)
    held.clear()


def _lengths(rows: int, room: Sizes) -> dict[str, int]:
    """Return how many items each buffer needs."""
    return {
        **dict.fromkeys(("segments", "entries", "slots", "seqs", "txids", "times_us"), rows),
        **dict.fromkeys(("key_offsets", "value_offsets", "header_offsets"), rows + 1),
        **dict.fromkeys(("name_offsets", "header_value_offsets"), room.headers + 1),
        "key_bits": (rows + 7) // 8,
        "keys": room.key_bytes,
        "values": room.value_bytes,
        "names": room.name_bytes,
        "header_values": room.header_value_bytes,
    }


def buffer_bytes(name: str, rows: int, room: Sizes) -> int:
    """Return how many bytes the buffer of that name needs for so many records with such values."""
    return _lengths(rows, room)[name] * _WORDS[_KINDS[name]]


GROUPS = (
    ("key_bits", "key_offsets", "keys"),
    ("value_offsets", "values"),
    ("header_offsets", "name_offsets", "names", "header_value_offsets", "header_values"),
)
"""Buffers that are given together."""


def _check_groups(buffers: Mapping[str, object]) -> None:
    for group in GROUPS:
        given = [name for name in group if name in buffers]
        if given and len(given) != len(group):
            raise ValueError(f"{', '.join(given)} without the rest of {', '.join(group)}")


# --- columns as entries ------------------------------------------------------------------------------------------
#
# Typed face of `stream/gather.c`: rows of Arrow's columns into entries of a stream, one call an entry.


Buffer: TypeAlias = Any
"""Whatever gives its memory: bytes, or a buffer of Arrow's, which is not wrapped (a memoryview that lies in a cycle of
garbage with what uses it cannot be let go in order)."""
_OFFSET_BYTES = 4


@dataclass(frozen=True, slots=True)
class Column:
    """Items of bytes, or lists of items, as Arrow has them: `count` of them from the `first` one of the buffers on."""

    offsets: Buffer
    """int32, one more than the items of the whole array."""
    bytes: Buffer | None
    """None: all items are empty, or these are lists."""
    validity: Buffer | None
    """A bit for each item of the whole array; None: none is null."""
    first: int
    count: int


class Table:
    """Rows that are ready to become entries. Keeps the buffers; they must not change meanwhile."""

    def __init__(
        self,
        values: Column,
        keys: Column | None = None,
        headers: Column | None = None,
        header_names: Column | None = None,
        header_values: Column | None = None,
    ) -> None:
        """No value and no header name may be null. Raises ProtocolError for buffers that are too small."""
        self.count = values.count
        self._kept: list[object] = []
        self._table = ffi.new("struct fbk_stream_table *")
        self._fill(self._table.values, values)
        if keys is not None:
            self._fill(self._table.keys, keys)
        if headers is not None and header_names is not None and header_values is not None:
            self._fill(self._table.headers, headers)
            self._fill(self._table.header_names, header_names)
            self._fill(self._table.header_values, header_values)
            self._table.header_count = min(header_names.count, header_values.count)

    def _fill(self, out: CData, column: Column) -> None:
        items = column.first + column.count
        if memoryview(column.offsets).nbytes < _OFFSET_BYTES * (items + 1):
            raise ProtocolError(f"{items} items of a column have too few offsets")
        if column.validity is not None and 8 * memoryview(column.validity).nbytes < items:
            raise ProtocolError(f"{items} items of a column have too few bits of validity")
        offsets = ffi.from_buffer("int32_t[]", column.offsets)
        out.offsets = offsets + column.first
        self._kept.append(offsets)
        if column.bytes is not None:
            data = ffi.from_buffer("uint8_t[]", column.bytes)
            out.bytes, out.size_bytes = data, len(data)
            self._kept.append(data)
        if column.validity is not None:
            validity = ffi.from_buffer("uint8_t[]", column.validity)
            out.validity, out.first_bit = validity, column.first
            self._kept.append(validity)

    def gather(
        self,
        epoch: int,
        first_record: int,
        time_us: int,
        first: int,
        body_bytes: int,
        out: bytearray,
    ) -> tuple[int, int]:
        """Write an entry of rows from `first` on into `out`; return its bytes, and how many rows it has.

        At most `body_bytes` of records, but one record at least, with transaction ids that follow `first_record`.
        Raises RecordTooLarge when one record does not fit into `out`, ProtocolError for offsets that make no sense
        and for a header's name of more than 65,535 bytes.
        """
        head = ffi.new(
            "struct fbk_stream_head *",
            {"epoch": epoch, "first_record": first_record, "time_us": time_us},
        )
        taken = ffi.new("uint32_t *")
        written = lib.fbk_stream_gather(
            head,
            self._table,
            first,
            self.count,
            body_bytes,
            ffi.from_buffer("uint8_t[]", out),
            len(out),
            taken,
        )
        if written == _TOO_SMALL:
            raise RecordTooLarge(f"row {first} has more than {len(out)} bytes")
        if written < 0:
            raise ProtocolError(
                f"rows from {first} on: their offsets make no sense, or a header's name is too long"
            )
        return written, taken[0]
