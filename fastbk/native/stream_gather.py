"""Typed face of `stream/gather.c`: rows of Arrow's columns into entries of a stream, one call an entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from fastbk.errors import ProtocolError, RecordTooLarge
from fastbk.native._client import ffi, lib
from fastbk.native.cdata import CData

Buffer: TypeAlias = Any
"""Whatever gives its memory: bytes, or a buffer of Arrow's, which is not wrapped (a memoryview that lies in a cycle of
garbage with what uses it cannot be let go in order)."""
_TOO_SMALL: int = lib.FBK_E_FULL
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
        """Of values and header names none may be null. Raises ProtocolError for buffers that are too small."""
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
