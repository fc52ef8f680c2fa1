"""Reads a range that is fixed when it is planned: `spark.read.format("fastbk")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from fastbk.spark.offset_resolver import OffsetResolver
from fastbk.spark.offsets import Bounds, Offsets, StreamOffset
from fastbk.spark.options import ReadOptions
from fastbk.spark.partitions import ReadPlanner, read_part
from fastbk.stream.positions import DLSN, to_us


class BatchReader(DataSourceReader):
    """Plans in one process of Spark's and reads in others: it holds nothing but options."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Return what tasks read. Raises, before any of them starts, whatever is wrong with what is to be read."""
        resolver = OffsetResolver(self._options)
        return resolver.patiently(lambda: self._parts(resolver), retries=0)

    def _parts(self, resolver: OffsetResolver) -> Sequence[InputPartition]:
        options, filters = self._options, self._pushed
        start = resolver.edge(options.start, "startingOffsets")
        end = resolver.edge(options.end, "endingOffsets")
        parts = ReadPlanner(resolver, filters.bounds)
        if options.reads_ledgers:
            return parts.of_ledgers(*filters.ledgers(start, end))
        return parts.of_streams(*filters.streams(resolver, start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a part's batches."""
        return read_part(self._options, partition)


class FilteringReader(BatchReader):
    """The same with push-down; Spark refuses a reader that has it unless its own configuration allows it, too."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Leave out what no row can be in; Spark looks at each row all the same, so all filters are given back."""
        self._pushed = pushed(filters)
        return filters


# --- filters --------------------------------------------------------------------------------------
#
# Filters of a query as bounds of what is read: never less than the query asks for, mostly not much
# more.


Comparison: TypeAlias = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_NUMBERS = ("segment", "entry", "seq", "ledger")


@dataclass
class Between:
    """[low, high] of a column, both with; None: no bound."""

    low: int | None = None
    high: int | None = None

    def narrow(self, low: int | None, high: int | None) -> None:
        """Take in another condition that holds, too."""
        if low is not None:
            self.low = low if self.low is None else max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def has(self, number: int) -> bool:
        """Return whether a number is within."""
        return (self.low is None or number >= self.low) and (
            self.high is None or number <= self.high
        )


@dataclass
class PushedFilters:
    """What the filters say about columns that a read can be narrowed by."""

    names: frozenset[str] | None = None
    """The only streams that rows can be of."""
    ids: frozenset[int] | None = None
    """The only ledgers."""
    columns: dict[str, Between] = field(default_factory=dict)
    time: Between = field(default_factory=Between)

    @property
    def bounds(self) -> Bounds:
        """What segments are left out by."""
        return Bounds(self.time.low, self.time.high)

    def _column(self, name: str) -> Between:
        return self.columns.get(name, Between())

    def streams(
        self, resolver: OffsetResolver, start: Offsets, end: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Return the narrower range of streams."""
        starts, ends = dict(start.streams), dict(end.streams)
        for path in list(ends):
            if self.names is not None and path not in self.names:
                del ends[path]
            elif path in starts:
                starts[path], ends[path] = self._stream(resolver, path, starts[path], ends[path])
        return Offsets(starts, {}), Offsets(ends, {})

    def _stream(
        self, resolver: OffsetResolver, path: str, start: StreamOffset, end: StreamOffset
    ) -> tuple[StreamOffset, StreamOffset]:
        segment, entry, seq = self._column("segment"), self._column("entry"), self._column("seq")
        low, high = start.dlsn, end.dlsn
        if segment.low is not None:
            same = segment.low == segment.high and entry.low is not None
            low = max(low, DLSN(segment.low, entry.low or 0 if same else 0, 0))
        if segment.high is not None:
            if segment.low == segment.high and entry.high is not None:
                high = min(high, DLSN(segment.high, entry.high + 1, 0))
            else:
                high = min(high, DLSN(segment.high + 1, 0, 0))
        if seq.low is not None or seq.high is not None:
            stream = resolver.stream(path, end.stream_id)
            if seq.low is not None and seq.low > start.seq:
                low = max(low, stream.find(seq=seq.low) or high)
            if seq.high is not None and seq.high < end.seq - 1:
                high = min(high, stream.find(seq=max(seq.high + 1, 0)) or high)
        if low >= high:
            return end, end
        return (
            StreamOffset(low, start.seq, start.stream_id, start.began),
            StreamOffset(high, end.seq, end.stream_id, end.began),
        )

    def ledgers(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Return the narrower range of ledgers."""
        ledger, entry = self._column("ledger"), self._column("entry")
        starts, ends = dict(start.ledgers), dict(end.ledgers)
        for one in list(ends):
            if not ledger.has(one) or (self.ids is not None and one not in self.ids):
                del ends[one]
                continue
            if entry.low is not None:
                starts[one] = max(starts.get(one, 0), entry.low)
            if entry.high is not None:
                ends[one] = min(ends[one], max(entry.high + 1, 0))
        return Offsets({}, starts), Offsets({}, ends)


def pushed(filters: Sequence[Filter]) -> PushedFilters:
    """Return what the filters, all of which hold for each row that is wanted, say about what is to be read."""
    found = PushedFilters()
    for one in filters:
        if isinstance(one, In) and len(one.attribute) == 1:
            _in(found, one.attribute[0], one.value)
        elif isinstance(one, _COMPARISONS) and len(one.attribute) == 1:
            _compare(found, one.attribute[0], one)
    return found


def _in(found: PushedFilters, column: str, values: Sequence[object]) -> None:
    if column == "stream":
        names = frozenset(value for value in values if isinstance(value, str))
        found.names = names if found.names is None else found.names & names
    elif column in _NUMBERS:
        numbers = [value for value in values if isinstance(value, int)]
        if numbers and len(numbers) == len(values):
            found.columns.setdefault(column, Between()).narrow(min(numbers), max(numbers))
            if column == "ledger":
                found.ids = (
                    frozenset(numbers) if found.ids is None else found.ids & frozenset(numbers)
                )


def _compare(
    found: PushedFilters,
    column: str,
    comparison: Comparison,
) -> None:
    value = comparison.value
    if column == "stream" and isinstance(comparison, EqualTo):
        _in(found, column, [value])
        return
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        number, between = to_us(value), found.time
    elif column in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        number, between = value, found.columns.setdefault(column, Between())
    else:
        return
    if isinstance(comparison, EqualTo):
        between.narrow(number, number)
    elif isinstance(comparison, GreaterThan | GreaterThanOrEqual):
        between.narrow(number + isinstance(comparison, GreaterThan), None)
    else:
        between.narrow(None, number - isinstance(comparison, LessThan))
