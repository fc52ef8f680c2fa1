"""What a task does: one part of a stream or ledger as Arrow batches. In Spark's Python workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fastbk.arrow import ledger_batches, stream_batches
from fastbk.errors import (
    DataLost,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    PositionTruncated,
    StreamNotFound,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.spark.offset_resolver import ALLOWED, CHOICE, OffsetResolver
from fastbk.spark.options import ReadOptions
from fastbk.spark.schemas import arrow_schema
from fastbk.stream.positions import DLSN

_log = LibraryLog("fastbk.spark")
_GONE = (PositionTruncated, DataLost, NoSuchEntry, NoSuchLedger, DigestMismatch, StreamNotFound)


@dataclass(frozen=True)
class StreamPart(InputPartition):
    """Records of a stream from `first` up to, not with, `end`. Records and bytes: about."""

    path: str
    stream_id: str
    """By which it is read: another stream may have got the name since it was planned."""
    first: DLSN
    end: DLSN
    records: int
    size_bytes: int


@dataclass(frozen=True)
class LedgerPart(InputPartition):
    """Entries of a ledger from `first` up to, not with, `end`."""

    ledger_id: int
    first: int
    end: int
    size_bytes: int


def read_part(options: ReadOptions, part: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield a part's batches; a part of no kind of ours is empty: Spark makes one where there is nothing to read.

    What is gone is an error that names it and the choice there is, or is passed by without failOnDataLoss.
    """
    if isinstance(part, StreamPart):
        return _named(_stream(options, part), f"{part.path} from {part.first} to {part.end}")
    if isinstance(part, LedgerPart):
        return _named(_ledger(options, part), f"ledger {part.ledger_id}")
    return iter(())


def _named(batches: Iterator[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except _GONE as error:
        raise DataLost(f"{what}: {error}. {CHOICE}") from error


def _stream(options: ReadOptions, part: StreamPart) -> Iterator[pa.RecordBatch]:
    try:
        yield from stream_batches(
            OffsetResolver(options).stream(part.path, part.stream_id),
            part.first,
            part.end,
            schema=arrow_schema(options),
            rows_max=options.rows_max,
            skip_gaps=not options.fail_on_data_loss,
            on_gap=lambda gap: _log.warning(
                "spark.gap_skipped", stream=part.path, gap=str(gap), reason=ALLOWED
            ),
        )
    except StreamNotFound:
        if options.fail_on_data_loss:
            raise
        _log.warning("spark.deleted_stream_skipped", stream=part.path, reason=ALLOWED)


def _ledger(options: ReadOptions, part: LedgerPart) -> Iterator[pa.RecordBatch]:
    try:
        yield from ledger_batches(
            OffsetResolver(options).client,
            part.ledger_id,
            part.first,
            part.end - 1,
            schema=arrow_schema(options),
            rows_max=options.rows_max,
            skip_gaps=not options.fail_on_data_loss,
            digest=options.digest,
            password=options.password,
        )
    except NoSuchLedger:
        if options.fail_on_data_loss:
            raise
        _log.warning("spark.deleted_ledger_skipped", ledger_id=part.ledger_id, reason=ALLOWED)
