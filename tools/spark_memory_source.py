"""`format("memory_rows")`: rows that are in a worker's memory already, and a sink that lets go of what it gets.

What Spark costs by itself: `./dev bench spark` holds fastbk against it. The columns are those of a stream.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fastbk.arrow import stream_schema
from fastbk.spark.options import read_options
from fastbk.spark.schemas import spark_schema

RECORD_BYTES = 1024
DISTINCT = 4
"""Batches that a worker makes, and yields in turn: more than its processor's caches hold."""


def payloads(count: int) -> list[bytes]:
    """Return records of bytes that do not compress, always the same."""
    made = random.Random(8)
    return [made.randbytes(RECORD_BYTES) for _ in range(count)]


@lru_cache(maxsize=4)
def batches_of(rows: int) -> list[pa.RecordBatch]:
    """Return a few batches of so many rows each."""
    schema, made = stream_schema(), random.Random(9)
    arrays: dict[str, Any] = {
        "stream": pa.repeat("bench/memory", rows),
        "key": pa.nulls(rows, pa.binary()),
        "timestamp": pa.array(range(rows), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
    }
    for name in ("partition", "segment", "entry", "slot", "seq", "txid"):
        arrays[name] = pa.array(range(rows), schema.field(name).type)
    offsets = pa.py_buffer(array("i", range(0, (rows + 1) * RECORD_BYTES, RECORD_BYTES)))
    found = []
    for _ in range(DISTINCT):
        data = pa.py_buffer(made.randbytes(rows * RECORD_BYTES))
        arrays["value"] = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data])
        columns = [arrays[name] for name in schema.names]
        found.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return found


@dataclass(frozen=True)
class Rows(InputPartition):
    """So many rows, in batches of so many."""

    rows: int
    batch_rows: int


class _Reader(DataSourceReader):
    def __init__(self, parts: Sequence[int], batch_rows: int) -> None:
        self._parts = [Rows(rows, batch_rows) for rows in parts]

    def partitions(self) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, Rows)
    some, at = batches_of(partition.batch_rows), 0
    while at < partition.rows:
        taken = min(partition.batch_rows, partition.rows - at)
        yield some[at // partition.batch_rows % DISTINCT].slice(0, taken)
        at += taken


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has as many rows in all as the parts of a batch read, in micro-batches of `per_batch`, each one part."""

    def __init__(self, total: int, per_batch: int, batch_rows: int) -> None:
        self._total, self._per_batch, self._batch_rows = total, per_batch, batch_rows

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._total
        assert isinstance(limit, ReadMaxRows | ReadAllAvailable)
        return {"row": min(self._total, start["row"] + most)}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Rows]:
        return [Rows(end["row"] - start["row"], self._batch_rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


@dataclass(frozen=True)
class Taken(WriterCommitMessage):
    """What a task of the sink has let go of."""

    rows: int


def _let_go(batches: Iterator[pa.RecordBatch]) -> Taken:
    return Taken(sum(batch.num_rows for batch in batches))


class _Writer(DataSourceArrowWriter):
    def __init__(self, expected: int) -> None:
        self._expected = expected

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Taken:
        return _let_go(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        rows = sum(one.rows for one in messages if isinstance(one, Taken))
        assert rows == self._expected, f"{rows} rows came, and not {self._expected}"


class _StreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Taken:
        return _let_go(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass


class MemoryRows(DataSource):
    """Options: `parts`, rows of each as JSON; `batchRows`; `perBatch` of streaming; `expected` rows of a write."""

    @classmethod
    def name(cls) -> str:
        return "memory_rows"

    def _parts(self) -> list[int]:
        return [int(one) for one in json.loads(self.options["parts"])]

    def _batch_rows(self) -> int:
        return int(self.options.get("batchRows", "8192"))

    def schema(self) -> StructType:
        return spark_schema(
            read_options({"metadata": "sqlite:/none", "stream": "a/b"}, streaming=None)
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._parts(), self._batch_rows())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        per_batch = int(self.options["perBatch"])
        return _StreamReader(sum(self._parts()), per_batch, self._batch_rows())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(int(self.options["expected"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _StreamWriter()
