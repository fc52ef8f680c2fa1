"""Tables, record batches and data frames into a stream: whatever gives its columns by the Arrow PyCapsule interface.

pandas, Polars and DuckDB are not imported: their frames have `__arrow_c_stream__`. Columns are taken batch by batch,
some hundred rows at a time, so a table of any size needs little memory beside its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from fastbk.arrow.batches import HEADERS
from fastbk.errors import BufferFull, ConfigError, WrongType
from fastbk.stream.positions import DLSN
from fastbk.stream.sync import SyncStreamWriter
from fastbk.stream.sync_appends import PendingRecord
from fastbk.stream.writer.stream_writer import StreamWriter

ROWS_AT_ONCE = 512
"""Made Python's objects together."""
READY_TIMEOUT_S = 30.0
_PLACES = {"stream", "partition", "segment", "entry", "slot", "seq", "txid", "timestamp"}
"""Columns of `read_stream` that say where a record was: it gets a place of its own here."""


class ArrowStream(Protocol):
    """What a table, a record batch reader or a data frame is."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


class ArrowArray(Protocol):
    """What a record batch is."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


ArrowData: TypeAlias = ArrowStream | ArrowArray


@dataclass(frozen=True, slots=True)
class Appended:
    """What was appended: so many rows, each a record, and where the first and the last one are; None: no row."""

    rows: int
    first: DLSN | None
    last: DLSN | None


class _Row(NamedTuple):
    payload: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    txid: int | None


def append_arrow(
    writer: SyncStreamWriter,
    data: ArrowData,
    *,
    value: str = "value",
    key: str | None = "key",
    headers: str | None = "headers",
    txid: str | None = None,
    json: bool = False,
    timeout: float | None = None,
) -> Appended:
    """Append each row as a record, in order; wait until all are kept, and return where they are.

        with client.namespace("shop").stream("orders").writer() as writer:
            append_arrow(writer, frame, json=True, key="customer")

    Args:
        writer: of `fastbk.sync`, open; `append_arrow_async` takes one of asyncio.
        data: a table, record batch or reader of pyarrow, a data frame of Polars or pandas, a relation of DuckDB.
        value: the column of payloads: text or bytes, none of them null.
        key, headers: columns that may be there: text or bytes; lists of key and value, as `stream_schema` has them.
        txid: the column of transaction ids, whole numbers that do not fall; None: they count on.
        json: the payload is a JSON object of all columns but those named by `key`, `headers` and `txid`.
        timeout: seconds of each wait, for room and for the last acknowledgement; None: 30.

    Columns with the place that records had in another stream, as `read_stream` gives them, are left out. Raises
    ConfigError for other columns and types before anything is appended; where a row cannot be a record, and with what
    the writer raises, the rows before it are appended (`writer.flush()` says up to where).
    """
    rows, first = 0, None
    last: PendingRecord | None = None
    for row in _rows(data, _Columns(value, key, headers, txid, json)):
        last = _put(writer, row, timeout)
        first = first or last
        rows += 1
    if first is None or last is None:
        return Appended(0, None, None)
    end = last.result(timeout)
    return Appended(rows, first.result(timeout), end)


async def append_arrow_async(
    writer: StreamWriter,
    data: ArrowData,
    *,
    value: str = "value",
    key: str | None = "key",
    headers: str | None = "headers",
    txid: str | None = None,
    json: bool = False,
) -> Appended:
    """Append each row as a record by a writer of asyncio; the rest is as `append_arrow` has it."""
    rows, first, last = 0, None, None
    for row in _rows(data, _Columns(value, key, headers, txid, json)):
        last = await _put_async(writer, row)
        first = first or last
        rows += 1
    if first is None or last is None:
        return Appended(0, None, None)
    end = await last
    return Appended(rows, await first, end)


def _put(writer: SyncStreamWriter, row: _Row, timeout: float | None) -> PendingRecord:
    wait: Callable[..., object] = writer.ready
    while True:
        try:
            return writer.append_nowait(
                row.payload, txid=row.txid, key=row.key, headers=row.headers
            )
        except BufferFull:
            wait(timeout=READY_TIMEOUT_S if timeout is None else timeout)
            # A row may be larger than the room that `ready` waits for. Behind all others it is always taken.
            wait = writer.flush


async def _put_async(writer: StreamWriter, row: _Row) -> asyncio.Future[DLSN]:
    wait: Callable[[], Awaitable[object]] = writer.ready
    while True:
        await wait()
        try:
            return writer.append_nowait(
                row.payload, txid=row.txid, key=row.key, headers=row.headers
            )
        except BufferFull:
            wait = writer.flush


# --- columns ------------------------------------------------------------------------------------------------------


class _Columns:
    """Which columns are what."""

    def __init__(
        self, value: str, key: str | None, headers: str | None, txid: str | None, json: bool
    ) -> None:
        for what, name in (("value", value), ("key", key), ("headers", headers), ("txid", txid)):
            if not isinstance(name, str) and (name is not None or what == "value"):
                raise WrongType(f"{what}={name!r}: the name of a column is text")
        self.value, self.key, self.headers, self.txid, self.json = value, key, headers, txid, json
        self.of_payload: list[str] = []

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigError for a schema whose rows cannot be records."""
        names = schema.names
        if len(set(names)) != len(names):
            raise ConfigError(f"a column is named twice: {', '.join(names)}")
        if self.key not in names:
            self._optional("key")
        if self.headers not in names:
            self._optional("headers")
        if self.txid is not None and self.txid not in names:
            raise ConfigError(
                f"there is no column {self.txid!r} of transaction ids: {_named(names)}"
            )
        if self.json:
            self.of_payload = [
                name for name in names if name not in (self.key, self.headers, self.txid)
            ]
            if not self.of_payload:
                raise ConfigError("there are no columns that could be the payload")
        else:
            if self.value not in names:
                raise ConfigError(
                    f"there is no column {self.value!r} of payloads: {_named(names)}. Give its name as `value`, or"
                    " `json=True` to make a JSON object of each row"
                )
            _check_bytes(schema.field(self.value), "payloads")
            known = {self.value, self.key, self.headers, self.txid, *_PLACES}
            if others := [name for name in names if name not in known]:
                raise ConfigError(
                    f"the columns {', '.join(others)} are no part of a record: drop them, or give `json=True` to have"
                    " them in the payload"
                )
        if self.key is not None:
            _check_bytes(schema.field(self.key), "keys")
        if self.headers is not None and not _are_headers(schema.field(self.headers).type):
            raise ConfigError(
                f"the column {self.headers!r} of headers has the type {HEADERS}, or is a map to bytes"
            )
        if self.txid is not None and not pa.types.is_integer(schema.field(self.txid).type):
            raise ConfigError(f"the column {self.txid!r} of transaction ids has whole numbers")

    def _optional(self, what: str) -> None:
        """A column of this name is not there: that is right where nobody has named it."""
        name = getattr(self, what)
        if name is not None and name != what:
            raise ConfigError(f"there is no column {name!r} of {what}")
        setattr(self, what, None)


def _named(names: list[str]) -> str:
    return f"there are {', '.join(names[:20])}{' and more' if len(names) > 20 else ''}"


def _check_bytes(field: pa.Field, what: str) -> None:
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        "is_binary",
        "is_string",
        "is_large_binary",
        "is_large_string",
        "is_binary_view",
        "is_string_view",
    )
    if not _is_any(kind, *tests):
        raise ConfigError(
            f"the column {field.name!r} of {what} is of {field.type}: it has text or bytes"
        )


def _are_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        names, values = kind.key_type, kind.item_type
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(
        kind.value_type
    ):
        fields = {one.name: one.type for one in kind.value_type}
        if fields.keys() != {"key", "value"}:
            return False
        names, values = fields["key"], fields["value"]
    else:
        return False
    # Polars gives views.
    is_text = _is_any(names, "is_string", "is_large_string", "is_string_view")
    return is_text and _is_any(values, "is_binary", "is_large_binary", "is_binary_view")


def _is_any(kind: pa.DataType, *tests: str) -> bool:
    return any(getattr(pa.types, test)(kind) for test in tests if hasattr(pa.types, test))


# --- rows ---------------------------------------------------------------------------------------------------------


def _rows(data: ArrowData, columns: _Columns) -> Iterator[_Row]:
    reader = _reader_of(data)
    columns.check(reader.schema)
    return _rows_of(reader, columns)


def _reader_of(data: object) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        batch = pa.record_batch(data)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    raise WrongType(
        f"{type(data).__name__} is no Arrow data: give a table, a record batch, or a data frame that has"
        " __arrow_c_stream__ (pandas from 2.2 on, Polars from 1.3 on)"
    )


def _rows_of(reader: pa.RecordBatchReader, columns: _Columns) -> Iterator[_Row]:
    at = 0
    for batch in reader:
        for first in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(first, ROWS_AT_ONCE)
            if columns.json:
                payloads: list[Any] = _documents(part, columns.of_payload, at)
            else:
                payloads = part.column(columns.value).to_pylist()
            none: list[Any] = [None] * part.num_rows
            keys, headers, txids = (
                none if name is None else part.column(name).to_pylist()
                for name in (columns.key, columns.headers, columns.txid)
            )
            for payload, key, pairs, txid in zip(payloads, keys, headers, txids, strict=True):
                if payload is None or (columns.txid is not None and txid is None):
                    empty = columns.value if payload is None else columns.txid
                    raise ConfigError(f"row {at}: the column {empty!r} is null there")
                yield _Row(
                    _bytes(payload), None if key is None else _bytes(key), _headers(pairs, at), txid
                )
                at += 1


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _headers(pairs: Any, row: int) -> tuple[tuple[str, bytes], ...]:  # noqa: ANN401 -- as Arrow has it
    if not pairs:
        return ()
    found = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in pairs]
    if any(name is None or value is None for name, value in found):
        raise ConfigError(f"row {row}: a header has a key and a value, and none of them is null")
    return tuple(found)


def _documents(part: pa.RecordBatch, names: list[str], row: int) -> list[bytes]:
    """Return the rows as JSON objects. Bytes are in base64, times as text in ISO 8601."""
    table = part.select(names)
    fields = [
        pa.field(one.name, pa.timestamp("us", one.type.tz))
        if pa.types.is_timestamp(one.type) and one.type.unit == "ns"
        else one
        for one in table.schema
    ]
    documents: list[bytes] = []
    for index, one in enumerate(table.cast(pa.schema(fields), safe=False).to_pylist()):
        try:
            documents.append(msgspec.json.encode(one))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"row {row + index} cannot be written as JSON: {error}") from error
    return documents
