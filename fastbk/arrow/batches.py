"""Records and entries as record batches: C writes the columns into Arrow's own memory, no object is
made a record.

A schema has the columns of records or of entries; any part of them, in any order, is a schema that
batches can be made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pyarrow as pa

import fastbk.sync
from fastbk.client.ledger_reader import Batch
from fastbk.errors import ConfigError, ProtocolError
from fastbk.native.client_codec import CheckedEntries, fill_entry_columns
from fastbk.native.stream_codec import (
    GROUPS,
    OFFSET_MAX,
    Sizes,
    buffer_bytes,
    fill_record_columns,
    sizes_of,
)
from fastbk.stream.records import Chunk

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_STREAM = {
    "stream": pa.string(),
    "partition": pa.int32(),
    "segment": pa.int64(),
    "entry": pa.int64(),
    "slot": pa.int32(),
    "seq": pa.int64(),
    "txid": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
}
_LEDGER = {"ledger": pa.int64(), "entry": pa.int64(), "length": pa.int64(), "value": pa.binary()}


def stream_schema(*, payload: bool = True, headers: bool = False) -> pa.Schema:
    """Return the columns of a stream's records.

    stream (its path), partition (0: a stream has one), segment, entry, slot (where it is), seq (its number, from 0),
    txid, timestamp (when it was appended, by its writer's clock), key (null where it has none), value (its payload;
    left out without `payload`), headers (only where asked for).
    """
    left_out = {*(() if payload else ("value",)), *(() if headers else ("headers",))}
    return pa.schema([(name, kind) for name, kind in _STREAM.items() if name not in left_out])


def ledger_schema(*, payload: bool = True) -> pa.Schema:
    """Return the columns of a ledger's entries: ledger, entry (ids), length (bytes up to and with it), value."""
    return pa.schema([(name, kind) for name, kind in _LEDGER.items() if payload or name != "value"])


def check_stream_schema(schema: pa.Schema) -> None:
    """Raise ConfigError for columns that a stream's batches cannot have."""
    _check(schema, _STREAM, "stream_schema")


def check_ledger_schema(schema: pa.Schema) -> None:
    """Raise ConfigError for columns that a ledger's batches cannot have."""
    _check(schema, _LEDGER, "ledger_schema")


def _check(schema: pa.Schema, known: dict[str, pa.DataType], maker: str) -> None:
    if not schema.names:
        raise ConfigError(f"a schema without columns: take {maker}(), or some of its columns")
    if len(set(schema.names)) != len(schema.names):
        raise ConfigError(f"a column is named twice: {', '.join(schema.names)}")
    for field in schema:
        if known.get(field.name) != field.type:
            raise ConfigError(
                f"there is no column {field.name} of type {field.type}: take fields of {maker}()"
            )


_NUMBERS = {
    "segment": "segments",
    "entry": "entries",
    "slot": "slots",
    "seq": "seqs",
    "txid": "txids",
    "timestamp": "times_us",
}
_KEYS, _VALUES, _HEADERS = GROUPS


def chunk_batch(chunk: Chunk, stream: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return a chunk's records; `schema`: `stream_schema()` or some of its columns. Raises as `chunks_batch`."""
    return chunks_batch([chunk], stream, schema)


def chunks_batch(chunks: Sequence[Chunk], stream: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return the records of some chunks, of one segment or several, as one batch; `stream`: what stands as its path.

    Raises ConfigError for a schema of other columns, or where values are 2 GiB or more together; ProtocolError, which
    says where the record is and what is behind it, for headers that make no sense.
    """
    check_stream_schema(schema)
    sources = [chunk.columns() for chunk in chunks]
    rows = sum(map(len, chunks))
    wanted = set(schema.names)
    try:
        sizes = _checked(sizes_of(sources, headers="headers" in wanted), wanted)
    except ProtocolError:
        for chunk in chunks:
            for _ in chunk:
                pass  # the record itself says more
        raise
    names = [_NUMBERS[name] for name in schema.names if name in _NUMBERS]
    names += [*(_KEYS if "key" in wanted else ()), *(_VALUES if "value" in wanted else ())]
    names += _HEADERS if "headers" in wanted else ()
    buffers = {name: pa.allocate_buffer(buffer_bytes(name, rows, sizes)) for name in names}
    fill_record_columns(sources, sizes, buffers)
    arrays = [_array(field, rows, sizes, buffers, stream) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _checked(sizes: Sizes, wanted: set[str]) -> Sizes:
    of_columns = {
        "value": sizes.value_bytes,
        "key": sizes.key_bytes,
        "headers": max(sizes.headers, sizes.name_bytes, sizes.header_value_bytes),
    }
    for name, size in of_columns.items():
        if name in wanted and size > OFFSET_MAX:
            raise ConfigError(
                f"the column {name} would have {size} bytes, and a batch takes less than 2 GiB: ask for fewer rows"
            )
    return sizes


def _array(
    field: pa.Field, rows: int, sizes: Sizes, buffers: dict[str, pa.Buffer], stream: str
) -> pa.Array:
    """Return one column."""
    if field.name == "stream":
        return pa.repeat(stream, rows)
    if field.name == "partition":
        return pa.repeat(pa.scalar(0, field.type), rows)
    if field.name == "key":
        return pa.Array.from_buffers(field.type, rows, [buffers[name] for name in _KEYS])
    if field.name == "value":
        return pa.Array.from_buffers(field.type, rows, [None, *(buffers[name] for name in _VALUES)])
    if field.name == "headers":
        return _headers(rows, sizes.headers, buffers)
    return pa.Array.from_buffers(field.type, rows, [None, buffers[_NUMBERS[field.name]]])


def _headers(rows: int, headers: int, buffers: dict[str, pa.Buffer]) -> pa.Array:
    names = pa.Array.from_buffers(
        pa.string(), headers, [None, buffers["name_offsets"], buffers["names"]]
    )
    values = pa.Array.from_buffers(
        pa.binary(), headers, [None, buffers["header_value_offsets"], buffers["header_values"]]
    )
    pairs = pa.Array.from_buffers(HEADERS.value_type, headers, [None], children=[names, values])
    return pa.Array.from_buffers(HEADERS, rows, [None, buffers["header_offsets"]], children=[pairs])


def entries_batch(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a ledger's entries that were read together; `schema`: `ledger_schema()` or some of its columns.

    Raises ConfigError for a schema of other columns, or where values are 2 GiB or more together.
    """
    return entry_batches_batch([batch], schema)


def entry_batches_batch(batches: Sequence[Batch], schema: pa.Schema) -> pa.RecordBatch:
    """Like `entries_batch`, of several that follow each other."""
    check_ledger_schema(schema)
    rows = sum(map(len, batches))
    size_bytes = sum(batch.size_bytes for batch in batches) if "value" in schema.names else 0
    if size_bytes > OFFSET_MAX:
        raise ConfigError(
            f"{rows} entries have {size_bytes} bytes, and a batch takes less than 2 GiB: ask for fewer rows"
        )
    buffers = {
        name: pa.allocate_buffer(bytes_needed)
        for column, name, bytes_needed in (
            ("entry", "ids", 8 * rows),
            ("length", "lengths", 8 * rows),
            ("value", "offsets", 4 * rows + 4),
            ("value", "values", size_bytes),
        )
        if column in schema.names
    }
    tables = (CheckedEntries(run.data, run.words) for batch in batches for run in batch.tables())
    fill_entry_columns(tables, rows, **buffers)
    arrays = [_ledger_array(field, rows, batches[0].ledger_id, buffers) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _ledger_array(
    field: pa.Field, rows: int, ledger_id: int, buffers: dict[str, pa.Buffer]
) -> pa.Array:
    if field.name == "ledger":
        return pa.repeat(pa.scalar(ledger_id, field.type), rows)
    if field.name == "value":
        parts = [None, buffers["offsets"], buffers["values"]]
        return pa.Array.from_buffers(field.type, rows, parts)
    numbers = buffers["ids" if field.name == "entry" else "lengths"]
    return pa.Array.from_buffers(field.type, rows, [None, numbers])


def client_in(
    held: ExitStack, uri_or_client: str | fastbk.sync.Client | None
) -> fastbk.sync.Client:
    """Return the client that was given, or one of that metadata URI that `held` closes."""
    if isinstance(uri_or_client, fastbk.sync.Client):
        return uri_or_client
    client = fastbk.sync.connect(uri_or_client)
    held.callback(client.close)
    return client
