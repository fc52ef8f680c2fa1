"""Reads what comes: `spark.readStream.format("fastbk")`. Lives in a process beside the driver; tasks only `read`.

Offsets count records, so a limit of records is kept to the record, whatever their sizes; a limit of bytes is turned
into one of records by what they have had on average. The checkpoint says where to go on; options only where to begin.

Decision 78.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fastbk.errors import ConfigError
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import jittered
from fastbk.spark.offset_resolver import AGAIN_S, OffsetResolver, StreamBounds
from fastbk.spark.offsets import Offsets, StreamOffset, advanced, amount, parse, renamed, shares
from fastbk.spark.options import ReadOptions
from fastbk.spark.partitions import ReadPlanner, read_part
from fastbk.spark.worker_client import in_parallel

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
_log = LibraryLog("fastbk.spark")


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
