"""Spark's readers: of a range that is fixed when it is planned, and of a streaming query.

The driver plans parts of streams and ledgers from one set of offsets to another. Tasks read a part as Arrow batches
in Spark's Python workers.

Decision 78.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fastbk.arrow import ledger_batches, stream_batches
from fastbk.errors import (
    ConfigError,
    DataLost,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    PositionTruncated,
    StreamNotFound,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import jittered
from fastbk.spark.offset_resolver import AGAIN_S, ALLOWED, CHOICE, OffsetResolver, StreamBounds
from fastbk.spark.offsets import (
    RECORD_BYTES,
    Bounds,
    Offsets,
    Range,
    StreamOffset,
    advanced,
    amount,
    parse,
    part_bytes_of,
    plan_entries,
    plan_stream,
    renamed,
    shares,
)
from fastbk.spark.options import ReadOptions
from fastbk.spark.schemas import arrow_schema
from fastbk.spark.worker_client import in_parallel
from fastbk.stream.positions import DLSN, to_us
from fastbk.stream.reader.search import SegmentInfo

_log = LibraryLog("fastbk.spark")


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


# --- a streaming query -----------------------------------------------------------------------------
#
# Spark keeps this reader in a process beside the driver; tasks only `read`.
#
# Offsets count records, so a limit of records is kept to the record, whatever their sizes. A limit
# of bytes is turned into one of records by the bytes that records have had on average. The
# checkpoint says where to go on; options only say where to begin.

BEYOND_LOOKS = 3
"""So often a place behind the end is looked for before it is said that it is none."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; what tasks need of it are the options."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._resolver = OffsetResolver(options)
        self._initial: dict[str, object] | None = None
        self._target: Offsets | None = None
        self._progress: Progress | None = None
        self._seen: Offsets | None = None
        self._began: Offsets | None = None
        self._planned: Offsets | None = None

    def __getstate__(self) -> dict[str, object]:
        """Tasks get the options alone: what the driver's process holds stays there."""
        return {"_options": self._options}

    # --- offsets -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:
        """Return where a new query begins; the same each time, although the stream goes on. Raises ConfigError."""
        if self._initial is None:
            ask = self._resolver.edge
            start = self._resolver.patiently(
                lambda: ask(self._options.start, "startingOffsets"), retries=0
            )
            self._initial = start.to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what the options say; both limits are kept where there are two."""
        if self._options.records_max is not None:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what is published now as the end of this run."""
        self._target = self._resolver.patiently(self._latest)

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return where the next batch ends; `start` itself where nothing has come."""
        began = self._parsed(start)
        end = self._resolver.patiently(lambda: self._next(began, limit))
        # Not before the places were looked at: records before them may be deleted once they are published.
        self._publish(self._began or began)
        return end.to_json()

    def _parsed(self, found: Mapping[str, object]) -> Offsets:
        """Return the checkpoint's offsets. Raises ConfigError for those of ledgers where streams are read, and back."""
        offsets = parse(found)
        if offsets.streams if self._options.reads_ledgers else offsets.ledgers:
            kinds = ("streams", "ledgers") if offsets.streams else ("ledgers", "streams")
            raise ConfigError(
                f"the checkpoint is of a query that reads {kinds[0]}, and now {kinds[1]} are read: take another"
                ' .option("checkpointLocation", ...)'
            )
        return offsets

    def _next(self, began: Offsets, limit: ReadLimit) -> Offsets:
        end = self._target if self._target is not None else self._latest()
        self._seen = end
        end = self._going_on(began, end)
        began = self._began = self._reached(renamed(began, end), end)
        end = advanced(began, end)
        if self._options.reads_ledgers:
            self._planned = self._limited_ledgers(began, end, limit)
        else:
            self._planned = self._limited_streams(began, end, limit)
        return self._planned

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Return what was published when a batch was last planned, for Spark's own reports, and what is left then.

        `batch`: records (of ledgers: entries) of that batch, and bytes, about. `behind`: of what waits after it, and
        how many milliseconds old the oldest of that is; 0: nothing does.
        """
        if self._seen is None or self._planned is None or self._began is None:
            return None
        known = self._resolver.known
        batch = amount(self._began, self._planned, known)
        behind = amount(self._planned, self._seen, known)
        age_ms = self._resolver.oldest_ms(self._planned, behind.by_name)
        return {
            **self._seen.to_json(),
            "batch": batch.to_json(),
            "behind": {**behind.to_json(), "milliseconds": age_ms},
        }

    def _latest(self) -> Offsets:
        if self._options.reads_ledgers:
            ends = self._resolver.ledger_ends()
            return Offsets({}, {one: end for one, (end, _) in ends.items()})
        nows = self._resolver.all_now(missing_ok=not self._options.fail_on_data_loss)
        # Whatever is found while a query runs is read from its beginning.
        return Offsets(
            {path: replace(now.end, began=now.first.dlsn) for path, now in nows.items()}, {}
        )

    def _going_on(self, start: Offsets, end: Offsets) -> Offsets:
        """Return `end` with what the checkpoint says of the streams that it knows. Raises what `checked` raises.

        A stream that is there and read no longer, since options changed, keeps its place: if it is read again, then
        from there, and not from its beginning.
        """
        streams = dict(end.streams)
        paths = {at.stream_id: path for path, at in end.streams.items()}
        others = {path: at for path, at in start.streams.items() if at.stream_id not in paths}
        nows = self._resolver.nows(others, missing_ok=True) if others else {}
        for path, at in start.streams.items():
            if path not in others:
                known = streams[paths[at.stream_id]]
                streams[paths[at.stream_id]] = replace(known, began=at.began)
                continue
            now = nows.get(path)
            if now is not None and now.end.stream_id == at.stream_id:
                streams.setdefault(path, at)
            else:
                self._resolver.checked(now, path, at)
        return Offsets(streams, end.ledgers)

    def _reached(self, start: Offsets, end: Offsets) -> Offsets:
        """Return `start`, with the end for places that no query can have reached. Raises DataLost with failOnDataLoss.

        A place that bookies only do not know of just now, or a metadata server, stays.
        """
        behind = {
            path: at
            for path, at in start.streams.items()
            if (known := end.streams.get(path)) is not None
            and known.stream_id == at.stream_id
            and known.dlsn < at.dlsn
        }
        streams, ledgers = dict(start.streams), dict(start.ledgers)
        for path, now in (self._resolver.nows_of(behind) if behind else {}).items():
            at = behind[path]
            if now.end.dlsn < at.dlsn and _is_beyond(partial(self._resolver.is_beyond, now, at)):
                self._resolver.beyond(f"the stream {path}", at.dlsn, now.end.dlsn)
                streams[path] = end.streams[path]
        for one, entry in start.ledgers.items():
            known_end = end.ledgers.get(one, entry)
            ask = partial(self._resolver.is_beyond_ledger, one, entry)
            if known_end < entry and _is_beyond(ask):
                self._resolver.beyond(f"ledger {one}", entry, known_end)
                ledgers[one] = known_end
        return Offsets(streams, ledgers)

    # --- limits --------------------------------------------------------------------------------------------------

    def _caps(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Return records and bytes at most."""
        records = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if not isinstance(limit, ReadAllAvailable):
            records = records if records is not None else self._options.records_max
            size_bytes = size_bytes if size_bytes is not None else self._options.bytes_max
        return records, size_bytes

    def _limited_streams(self, start: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        records_max, bytes_max = self._caps(limit)
        if records_max is None and bytes_max is None:
            return end
        begins: dict[str, tuple[StreamOffset, StreamBounds]] = {}
        backlogs: dict[str, int] = {}
        for path, at in end.streams.items():
            known = start.streams.get(path)
            if known is None or known.dlsn < at.dlsn or known.stream_id != at.stream_id:
                backlogs[path] = -1
        streams = dict(end.streams)
        nows = self._resolver.nows_of({path: end.streams[path] for path in backlogs})
        for path in list(backlogs):
            known, at, now = start.streams.get(path), end.streams[path], nows.get(path)
            if known is not None and known.stream_id != at.stream_id:
                known = None
            if now is None:
                # Deleted since the end was looked for, which for AvailableNow is long ago.
                if known is not None:
                    self._resolver.checked(None, path, known)
                del streams[path], backlogs[path]
                continue
            first = now.beginning()
            if known is not None:
                first = self._resolver.checked(now, path, known) or first
            if at.seq <= first.seq and first.dlsn < at.dlsn:
                # The number is not that of the place; the limit would let everything pass.
                first = replace(first, seq=min(first.seq, self._resolver.seq_of(now, first.dlsn)))
            begins[path] = first, now
            backlogs[path] = max(at.seq - first.seq, 0)
        total = sum(backlogs.values())
        most = records_max if records_max is not None else total
        if bytes_max is not None and total:
            size_bytes = sum(
                count * begins[path][1].record_bytes for path, count in backlogs.items()
            )
            most = min(most, max(1, int(bytes_max * total / max(size_bytes, 1))))
        allowed = shares(backlogs, most)
        cut = [path for path in begins if allowed[path] < backlogs[path]]

        def place(path: str) -> StreamOffset:
            first, now = begins[path]
            found = self._resolver.find_seq(now, first, first.seq + allowed[path])
            if found.dlsn > first.dlsn:
                return found
            # The number is not that of the place: a query that went by it would never go on.
            first = replace(first, seq=self._resolver.seq_of(now, first.dlsn))
            return self._resolver.find_seq(now, first, first.seq + allowed[path])

        for path, at in zip(cut, in_parallel(place, cut), strict=True):
            if at.dlsn < streams[path].dlsn:
                streams[path] = replace(at, began=streams[path].began)
        return Offsets(streams, {})

    def _limited_ledgers(self, start: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        entries_max, bytes_max = self._caps(limit)
        if entries_max is None and bytes_max is None:
            return end
        backlogs = {str(one): at - start.ledgers.get(one, 0) for one, at in end.ledgers.items()}
        most = entries_max if entries_max is not None else sum(backlogs.values())
        if bytes_max is not None:
            ends = self._resolver.ledger_ends()
            entries = sum(count for count, _ in ends.values())
            size_bytes = sum(size for _, size in ends.values())
            most = min(most, max(1, bytes_max * entries // max(size_bytes, 1)))
        allowed = shares(backlogs, most)
        return Offsets(
            {},
            {ledger: start.ledgers.get(ledger, 0) + allowed[str(ledger)] for ledger in end.ledgers},
        )

    # --- batches -------------------------------------------------------------------------------------------------

    def partitions(
        self, start: Mapping[str, object], end: Mapping[str, object]
    ) -> Sequence[InputPartition]:
        """Return the parts of a batch; planned again after a restart they hold the same records."""
        parts = ReadPlanner(self._resolver)
        begin, stop = self._parsed(start), self._parsed(end)
        plan = parts.of_ledgers if self._options.reads_ledgers else parts.of_streams
        return self._resolver.patiently(lambda: plan(begin, stop))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a part's batches."""
        return read_part(self._options, partition)

    def commit(self, end: Mapping[str, object]) -> None:
        """Publish progress: what is before `end` is done. Spark tells it late: the checkpoint is what counts."""
        self._publish(parse(end))

    def _publish(self, done: Offsets) -> None:
        if self._options.reader_name is not None:
            if self._progress is None:
                self._progress = Progress(self._resolver, self._options.reader_name)
            self._progress.publish(done)


def _is_beyond(ask: Callable[[], bool]) -> bool:
    """Ask again for a moment: a metadata server may be behind the one that was asked before."""
    for _ in range(BEYOND_LOOKS - 1):
        if not ask():
            return False
        time.sleep(jittered(AGAIN_S))
    return ask()


BY = {"by": "spark"}
"""The cursors' map: tools tell by it who moves them."""


class Progress:
    """One query's. Publishing never fails a query: the checkpoint is what it goes on from."""

    def __init__(self, resolver: OffsetResolver, name: str) -> None:
        """Raises ConfigError for what is no name of a cursor."""
        self._name = name
        self._marks = resolver.client.namespace("").marks(name, BY)

    def publish(self, done: Offsets) -> None:
        """Have the cursors' marks at these offsets; those that stay are noted as used every five minutes."""
        failed = self._marks.move({path: (at.dlsn, at.seq) for path, at in done.streams.items()})
        for path, error in failed.items():
            _log.warning("spark.progress_waits", reader=self._name, stream=path, reason=str(error))


# --- the parts that tasks read ---------------------------------------------------------------------

_GONE = (PositionTruncated, DataLost, NoSuchEntry, NoSuchLedger, DigestMismatch, StreamNotFound)


@dataclass(frozen=True)
class StreamPart(InputPartition):
    """Records of a stream from `first` up to, not with, `end`. Records and bytes: about."""

    path: str
    stream_id: str
    """The stream's id, by which it is read: another stream may have got the name since it was planned."""
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


# --- planning the parts ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """One stream's range, before it is cut."""

    path: str
    first: StreamOffset
    end: StreamOffset
    segments: list[SegmentInfo]

    def ranges(self, part_bytes: int, bounds: Bounds) -> list[Range]:
        records = max(self.end.seq - self.first.seq, 0)
        return plan_stream(
            self.segments, self.first.dlsn, self.end.dlsn, records, part_bytes, bounds
        )


def _begin(start: StreamOffset | None, end: StreamOffset) -> StreamOffset:
    """Return where a batch begins in a stream; number -1: only the position was kept."""
    if start is not None and start.stream_id == end.stream_id:
        return start
    # Found while the query ran, or made anew under the same name.
    dlsn = end.dlsn if end.began is None else end.began
    return StreamOffset(dlsn, end.seq if end.began is None else -1, end.stream_id)


@dataclass
class ReadPlanner:
    """Plans one read."""

    resolver: OffsetResolver
    bounds: Bounds = field(default_factory=Bounds)

    def of_streams(self, start: Offsets, end: Offsets) -> list[StreamPart]:
        """Return parts of [start, end); of streams that are new in `end` from where the query began with them.

        Raises StreamNotFound, PositionTruncated, DataLost with failOnDataLoss: before any task starts.
        """
        start = renamed(start, end)
        begins = {
            path: begin
            for path, at in sorted(end.streams.items())
            if (begin := _begin(start.streams.get(path), at)).dlsn < at.dlsn
        }
        nows = self.resolver.nows_of({path: end.streams[path] for path in begins})
        found = in_parallel(
            lambda path: self._task(path, nows.get(path), begins[path], end.streams[path]),
            list(begins),
        )
        tasks = [task for task in found if task is not None]
        options = self.resolver.options
        whole = [task.ranges(1 << 62, self.bounds) for task in tasks]
        total_bytes = sum(range_.size_bytes for ranges in whole for range_ in ranges)
        part_bytes = part_bytes_of(total_bytes, options.partitions_min, options.partition_bytes)
        return [
            StreamPart(
                task.path,
                task.end.stream_id,
                range_.first,
                range_.end,
                range_.records,
                range_.size_bytes,
            )
            for task in tasks
            for range_ in task.ranges(part_bytes, self.bounds)
        ]

    def _task(
        self, path: str, now: StreamBounds | None, begin: StreamOffset, end: StreamOffset
    ) -> _Task | None:
        first = self._first(path, now, begin, end)
        if now is None or first is None:
            return None
        try:
            segments = now.stream.segments(first.dlsn.segment)
        except StreamNotFound:
            self._first(path, None, begin, end)
            return None
        if not segments or segments[0].number > first.dlsn.segment:
            # Truncated and deleted since it was looked at? What is missing in the list has to be told.
            first = self._first(path, self.resolver.nows_of({path: end}).get(path), begin, end)
        return None if first is None else _Task(path, first, end, segments)

    def _first(
        self, path: str, now: StreamBounds | None, begin: StreamOffset, end: StreamOffset
    ) -> StreamOffset | None:
        """Return where to begin with a stream, None where nothing of it is left, which was said to be fine."""
        if begin.seq < 0 and now is not None and now.end.stream_id == end.stream_id:
            # Only its position was kept; what was truncated since then is told by that.
            known = (
                now.first
                if begin.dlsn >= now.first.dlsn
                else StreamOffset(begin.dlsn, 0, end.stream_id)
            )
            begin = StreamOffset(begin.dlsn, known.seq, end.stream_id)
        first = self.resolver.checked(now, path, begin)
        if first is None or first.stream_id != end.stream_id or first.dlsn >= end.dlsn:
            return None
        return first

    def of_ledgers(self, start: Offsets, end: Offsets) -> list[LedgerPart]:
        """Return parts of [start, end) of ledgers; those not in `start` from their first entry on."""
        found: list[tuple[int, int, int, int]] = []
        for one, behind in sorted(end.ledgers.items()):
            first = start.ledgers.get(one, 0)
            if first >= behind:
                continue
            known = self.resolver.ledger_end(one)
            if known is None:
                continue
            entries, size_bytes = known
            share = size_bytes * (behind - first) // entries if entries else RECORD_BYTES
            found.append((one, first, behind, share))
        options = self.resolver.options
        part_bytes = part_bytes_of(
            sum(share for *_, share in found), options.partitions_min, options.partition_bytes
        )
        return [
            LedgerPart(one, low, high, some)
            for one, first, behind, share in found
            for low, high, some in plan_entries(first, behind, share, part_bytes)
        ]
