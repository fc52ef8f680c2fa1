"""Record batches of Spark become entries of one ledger: Arrow's buffers go to C, no Python object a record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fastbk.arrow.batches import HEADERS
from fastbk.client.sync import LedgerWriter
from fastbk.errors import BufferFull, ConfigError, ProtocolError, RecordTooLarge
from fastbk.native.stream_codec import HEAD_BYTES, RECORD_OVERHEAD_BYTES_MAX, Column, Table
from fastbk.stream.records import compressed
from fastbk.stream.segment_contents import IndexBuilder

RECORD_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a record with its key and headers, which a stream's writer takes by default."""
EPOCH = 0
"""The epoch of entries that no writer of the stream wrote."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns are what of a record; None: records have none."""

    value: str = "value"
    key: str | None = None
    headers: str | None = None


def table_of(batch: pa.RecordBatch, columns: Columns) -> Table:
    """Return a batch's rows as C takes them, without copies where the types are Spark's own. One row at least.

    Raises ConfigError for a value that is null, and for headers that are null or have a null name; ProtocolError for a
    batch whose buffers are not what its columns say.
    """
    values = _item_array(_checked(batch, columns.value))
    if values.null_count:
        raise ConfigError(
            f"column {columns.value} has {values.null_count} nulls, and a record has a value: leave those rows out,"
            f' as by .where("{columns.value} is not null")'
        )
    keys = None if columns.key is None else _column(_item_array(_checked(batch, columns.key)))
    if columns.headers is None:
        return Table(_column(values), keys)
    lists = _checked(batch, columns.headers)
    if lists.type != HEADERS:
        lists = lists.cast(HEADERS)
    if len(lists.values) == 0:
        return Table(_column(values), keys)
    names, header_values = lists.values.field(0), lists.values.field(1)
    if lists.values.null_count or names.null_count:
        raise ConfigError(f"column {columns.headers} has headers that are null, or without a key")
    validity, offsets = lists.buffers()[:2]
    headers = Column(offsets, None, validity, lists.offset, len(lists))
    return Table(_column(values), keys, headers, _column(names), _column(header_values))


def _checked(batch: pa.RecordBatch, name: str) -> Any:  # noqa: ANN401 -- pyarrow has no types
    """Return a column whose memory may be read. Raises ProtocolError.

    Arrow believes what a sender says of lengths and offsets. C checks each offset of values and keys again; what Arrow
    itself goes through, and names of headers, which have to be text, are checked whole.
    """
    array = batch.column(name)
    try:
        array.validate(full=not _is_plain(array.type))
    except pa.ArrowInvalid as error:
        raise ProtocolError(
            f"column {name} of a batch of {batch.num_rows} rows makes no sense: {error}"
        ) from error
    return array


def _is_plain(kind: Any) -> bool:  # noqa: ANN401 -- pyarrow has no types
    """Return whether a column's items are taken as they lie there: binary or string with 32-bit offsets."""
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _item_array(array: Any) -> Any:  # noqa: ANN401 -- pyarrow has no types
    """Return an array of binary or string with 32-bit offsets."""
    if _is_plain(array.type):
        return array
    return array.cast(pa.binary())


def _column(array: Any) -> Column:  # noqa: ANN401 -- pyarrow has no types
    validity, offsets, data = array.buffers()
    if offsets is None:  # of no items
        return Column(bytes(4), None, None, 0, 0)
    return Column(offsets, data, validity, array.offset, len(array))


class EntryWriter:
    """Writes one ledger as a stream's segment: entries, and at the end the index behind them.

    Attributes:
        records, size_bytes: of all that was sent.
    """

    def __init__(self, ledger: LedgerWriter, codec: int, entry_bytes: int) -> None:
        """`codec`: how bodies are compressed; `entry_bytes`: records that are packed into one entry, before that."""
        self.records = 0
        self.size_bytes = 0
        self._ledger = ledger
        self._codec = codec
        self._entry_bytes = entry_bytes
        self._out = bytearray(HEAD_BYTES + entry_bytes + RECORD_OVERHEAD_BYTES_MAX)
        self._index = IndexBuilder()
        self._entries = 0
        self._time_us = 0

    def write(self, table: Table, first: int) -> int:
        """Send one entry of rows from `first` on; return which row is next. Waits for room.

        Raises RecordTooLarge, and what ended the ledger's writer.
        """
        self._time_us = max(self._time_us, time.time_ns() // 1000)
        size, taken = self._gathered(table, first)
        entry = memoryview(self._out)[:size]
        if self._codec:
            self._send(compressed(bytearray(entry), self._codec))
        else:
            self._send(entry)
        entry.release()
        self._index.add(self._entries, self.records, self.records + 1, self._time_us)
        self._entries += 1
        self.records += taken
        return first + taken

    def _gathered(self, table: Table, first: int) -> tuple[int, int]:
        arguments = (EPOCH, self.records, self._time_us, first, self._entry_bytes)
        try:
            return table.gather(*arguments, self._out)
        except RecordTooLarge:
            whole = HEAD_BYTES + RECORD_BYTES_MAX + RECORD_OVERHEAD_BYTES_MAX
            if len(self._out) >= whole:
                raise RecordTooLarge(
                    f"a record has more than {RECORD_BYTES_MAX} bytes with its key and headers"
                ) from None
            self._out = bytearray(whole)
            return table.gather(*arguments, self._out)

    def _send(self, entry: bytes | bytearray | memoryview) -> None:
        while True:
            try:
                self._ledger.append_nowait(entry)
            except BufferFull:
                self._ledger.ready()
            else:
                break
        self.size_bytes += len(entry)

    def close(self) -> None:
        """Write the index and close the ledger: all that was sent is acknowledged then. Raises what ended it."""
        entry = self._index.entry(EPOCH, self.records, self.records, self._time_us)
        self._send(entry)
        self._ledger.close()
