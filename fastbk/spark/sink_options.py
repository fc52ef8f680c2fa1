"""What the options of a write say, and whether the columns can be written: decided before any task starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
)

from fastbk.errors import ConfigError
from fastbk.meta.uri import uri_or_default
from fastbk.model.quorum import check_quorums
from fastbk.spark.entry_writer import Columns
from fastbk.spark.options import COMMON, Option, Values, known
from fastbk.stream.drafts import check_key
from fastbk.stream.paths import split_stream_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.records import CODECS

WRITE = (
    *COMMON,
    Option("stream", "shop/orders", ("topic", "path")),
    Option("create", "true"),
    Option("onWriter", "fence"),
    Option("valueColumn", "payload"),
    Option("keyColumn", "customer"),
    Option("headersColumn", "headers"),
    Option("compression", "zstd"),
    Option("ensemble", "3"),
    Option("writeQuorum", "3"),
    Option("ackQuorum", "2"),
    Option("rollBytes", "256MiB"),
    Option("entryBytes", "256KiB"),
)
BATCH_WRITE = (*WRITE, Option("idempotencyKey", "load-2026-01-31"))
STREAM_WRITE = (*WRITE, Option("checkpointLocation", "/checkpoints/orders"))
ENTRY_BYTES = 256 * 1024
ENTRY_BYTES_MAX = 2 * 1024 * 1024
OF_THE_SOURCE = ("stream", "partition", "segment", "entry", "slot", "seq", "txid", "timestamp")
"""Columns of what was read from a stream: they say where it was, and are given anew."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What is to be written, where and how. None: as the stream's policy says."""

    metadata: str | None
    stream: str
    columns: Columns
    create: bool = False
    is_fencing: bool = False
    compression: str | None = None
    quorums: Mapping[str, int] = field(default_factory=dict)
    roll_bytes: int | None = None
    entry_bytes: int = ENTRY_BYTES
    key: str | None = None
    """The key of a batch write: what makes its repetition do nothing."""

    def check_policy(self, policy: StreamPolicy) -> None:
        """Raise ConfigError for quorums that do not fit together with those of the policy."""
        check_quorums(*self.quorums_with(policy))

    def quorums_with(self, policy: StreamPolicy) -> tuple[int, int, int]:
        """Return ensemble, write quorum and ack quorum of a ledger."""
        mine = self.quorums
        return (
            mine.get("ensemble", policy.ensemble),
            mine.get("writeQuorum", policy.write_quorum),
            mine.get("ackQuorum", policy.ack_quorum),
        )


def write_options(
    given: Mapping[str, str], schema: StructType, *, streaming: bool, overwrite: bool
) -> WriteOptions:
    """Return what the options of a write say. Raises ConfigError, with the right form of what is wrong."""
    if overwrite:
        raise ConfigError(
            'a stream is appended to: .mode("append") for batches, .outputMode("append") for streaming'
        )
    table = STREAM_WRITE if streaming else BATCH_WRITE
    values = Values(known(given, table, "streaming writes" if streaming else "writes"), table)
    stream = values.text("stream")
    if not stream:
        raise ConfigError('say where to write to: .option("stream", "shop/orders")')
    split_stream_path(stream)
    entry_bytes = values.size("entryBytes", ENTRY_BYTES) or ENTRY_BYTES
    if entry_bytes > ENTRY_BYTES_MAX:
        raise values.error("entryBytes", f"more than {ENTRY_BYTES_MAX}")
    compression = values.text("compression")
    if compression is not None and compression not in CODECS:
        raise values.error("compression", f"none of {', '.join(CODECS)}")
    key = values.text("idempotencyKey")
    if key == "":
        raise values.error(
            "idempotencyKey", "empty, and a write that is repeated would be there twice"
        )
    if key is not None:
        check_key(f"spark/{key}")
    quorums = {
        name: number
        for name in ("ensemble", "writeQuorum", "ackQuorum")
        if (number := values.number(name)) is not None
    }
    return WriteOptions(
        # A worker's environment need not be the driver's.
        uri_or_default(values.text("metadata"), 'give .option("metadata", ...)'),
        stream,
        _columns(values, schema),
        create=values.flag("create", False),
        is_fencing=values.choice("onWriter", "refuse", "fence") == "fence",
        compression=compression,
        quorums=quorums,
        roll_bytes=values.size("rollBytes"),
        entry_bytes=entry_bytes,
        key=key,
    )


def _columns(values: Values, schema: StructType) -> Columns:
    types = {one.name: one.dataType for one in schema.fields}
    if len(types) != len(schema.fields):
        twice = next(name for name in types if schema.names.count(name) > 1)
        raise ConfigError(f"there are several columns {twice}: leave all but one of them out")
    value = values.text("valueColumn")
    value = "value" if value is None else value
    if value not in types:
        raise ConfigError(
            f"there is no column {value} to write, among {', '.join(types)}: make one,"
            ' as by .select(to_json(struct("*")).alias("value")), or name another: .option("valueColumn", "payload")'
        )
    found = Columns(
        value,
        _optional(values, types, "keyColumn", "key"),
        _optional(values, types, "headersColumn", "headers"),
    )
    for name in (found.value, found.key):
        if name is not None and not isinstance(types[name], BinaryType | StringType):
            raise ConfigError(
                f"column {name} is {types[name].simpleString()}, and values and keys are binary or string:"
                f' cast it, as by .withColumn("{name}", col("{name}").cast("string"))'
            )
    if found.headers is not None and not _is_headers(types[found.headers]):
        raise ConfigError(
            f"column {found.headers} is {types[found.headers].simpleString()},"
            " and headers are array<struct<key:string,value:binary>>"
        )
    taken = {found.value, found.key, found.headers, *OF_THE_SOURCE}
    lost = [name for name in types if name not in taken]
    if lost:
        raise ConfigError(
            f"columns {', '.join(lost)} would be lost: leave them out, or put them into the value,"
            ' as by .select(to_json(struct("*")).alias("value"))'
        )
    return found


def _optional(
    values: Values, types: Mapping[str, DataType], option: str, default: str
) -> str | None:
    name = values.text(option)
    if name is None:
        return default if default in types else None
    if name not in types:
        raise values.error(option, f"there is no such column among {', '.join(types)}")
    return name


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    fields = [(one.name, type(one.dataType)) for one in given.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
