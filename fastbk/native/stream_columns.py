"""Typed face of `stream/columns.c`: records of streams into columns, laid out as Apache Arrow wants them in memory.

Two calls for each table of records, without the interpreter lock, however many records there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastbk.errors import ProtocolError
from fastbk.native._client import ffi, lib
from fastbk.native.ffi import check
from fastbk.native.stream_codec import HEAD_WORDS, ROW_WORDS

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


def fill(sources: Sequence[Source], room: Sizes, buffers: Mapping[str, object]) -> None:
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
