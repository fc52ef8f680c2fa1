"""The columns of records and of entries; any part of them, in any order, is a schema that batches can be made with."""

from __future__ import annotations

import pyarrow as pa

from fastbk.errors import ConfigError

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
