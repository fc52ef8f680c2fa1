"""Usage: how much namespaces, streams and bookies hold, and how that grows. Metadata only: no bookie is asked.

The driver walks the ledgers' ids and cuts them into ranges; tasks read the metadata of theirs and add up what it says,
by stream and bookie, so what the driver holds does not grow with the ledgers.

    <to>/snapshots/taken=<yyyymmddThhmmssZ>/*.parquet     a row for each namespace, and for each of it and each bookie

Each run with a place adds a snapshot and is compared with those before it. Without any, growth is what the ledgers that
are there say of when they were made, which leaves out what was deleted meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import fastbk.sync
from fastbk.client import LedgerInfo
from fastbk.errors import ConfigError
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.spark.jobs.folders import check_place, names_in
from fastbk.spark.worker_client import client_of
from fastbk.stream.paths import split_stream_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

NO_STREAM, GONE, ROOT, OTHERS = "-", "(deleted)", "(root)", "(others)"
"""Ledgers of no stream; of deleted streams; of streams in the root; of namespaces that are not among the largest."""
RANGE_LEDGERS = 1000
SNAPSHOT = "namespace string, bookie string, ledgers long, open long, entries long, bytes long"
TAKEN = "taken="
STAMP = "%Y%m%dT%H%M%SZ"
CHARTED_MAX = 60
"""Snapshots that a chart has at most, spread evenly."""


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Of one namespace, stream or bookie; `bytes` and `entries` are of one copy, of a bookie those that it holds.

    Attributes:
        growth: bytes since "last", "day" and "week", as far as there is something to compare with.
        parts: of a bookie: bytes by namespace, of the largest, and "(others)".
    """

    name: str
    ledgers: int
    open: int
    entries: int
    bytes: int
    growth: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run found.

    Attributes:
        total: of everything, one copy. namespaces, streams: the largest. bookies: all, by id.
        since: what growth is compared with: "last", "day", "week" -> when that was. is_by_snapshots: or else by when
            the ledgers that are there were made.
        history: when -> bytes by namespace, rising; of the largest, and "(others)".
    """

    taken: datetime
    total: UsageLine
    namespaces: list[UsageLine]
    streams: list[UsageLine]
    bookies: list[UsageLine]
    since: dict[str, datetime]
    is_by_snapshots: bool
    history: list[tuple[datetime, dict[str, int]]]


def run(
    spark: SparkSession,
    uri: str,
    *,
    to: str | None = None,
    top: int = 20,
    report: Callable[[str], None] = lambda _: None,
) -> Usage:
    """Count what there is; with `to`, write a snapshot there and compare with the ones before.

    `top`: so many namespaces and streams are told one by one. Raises ConfigError, MetadataUnavailable.
    """
    if top < 1:
        raise ConfigError(f"top {top} must be 1 or more")
    if to is not None:
        to = check_place(to)
    taken = datetime.now(UTC).replace(microsecond=0)
    with fastbk.sync.connect(uri) as client:
        ranges = ranges_of(client, RANGE_LEDGERS)
        streams = [
            (stream.id, split_stream_path(stream.path)[0] or ROOT, stream.path)
            for stream in client.namespace("").streams(recursive=True)
        ]
        clock = Clock.over(int(taken.timestamp()), _first_made_s(client))
    report(f"{len(streams):,} streams, about {len(ranges) * RANGE_LEDGERS:,} ledgers at most")
    counted = _counted(spark, uri, ranges, streams, clock).persist()
    try:
        return _usage_of(spark, counted, taken, clock, to, top)
    finally:
        counted.unpersist()


def ranges_of(client: fastbk.sync.Client, count: int) -> list[tuple[LedgerId, LedgerId]]:
    """Return (after, last) of each `count` ledgers, ascending."""
    ranges: list[tuple[LedgerId, LedgerId]] = []
    after = -1
    while True:
        page = _page(client, after, count)
        if not page:
            return ranges
        ranges.append((after, page[-1]))
        after = page[-1]


def infos_in(client: fastbk.sync.Client, after: LedgerId, last: LedgerId) -> Iterator[LedgerInfo]:
    """Yield the ledgers of a range; those that were deleted meanwhile are not there."""
    while after < last:
        page = _page(client, after, RANGE_LEDGERS)
        found = client.call_store(lambda store: store.read_ledgers(page))  # noqa: B023 -- at once
        for ledger_id, read in zip(page, found, strict=True):
            if ledger_id > last:
                return
            if isinstance(read, VersionedLedger):
                yield LedgerInfo(ledger_id, read.metadata, read.version)
        if not page:
            return
        after = page[-1]


def _page(client: fastbk.sync.Client, after: LedgerId, count: int) -> list[LedgerId]:
    return client.call_store(lambda store: store.list_ledgers(after, count))


def _first_made_s(client: fastbk.sync.Client) -> int:
    """Return when the first ledger was made, which is about when the cluster was; 0: nobody knows."""
    first = next(client.list_ledgers(), None)
    made_ms = None if first is None else first.metadata.created_ms
    return 0 if made_ms is None else made_ms // 1000


def _counted(
    spark: SparkSession,
    uri: str,
    ranges: Sequence[tuple[LedgerId, LedgerId]],
    streams: Sequence[tuple[str, str, str]],
    clock: Clock,
) -> DataFrame:
    """Return ROWS, added up over all ledgers, with the stream's `namespace` and path `stream`."""
    tasks = max(1, min(len(ranges), 16 * spark.sparkContext.defaultParallelism))

    def count(some: Iterable[tuple[LedgerId, LedgerId]]) -> Iterator[tuple[str | int | None, ...]]:
        client = client_of(uri)
        return rows_of((info for one in some for info in infos_in(client, *one)), clock)

    rows = spark.createDataFrame(
        spark.sparkContext.parallelize(ranges, tasks).mapPartitions(count), ROWS
    )
    named = spark.createDataFrame(streams, "stream_id string, namespace string, stream string")
    is_none = f.col("stream_id") == ""
    unnamed = f.when(is_none, NO_STREAM).otherwise(GONE)
    # In a few parts, and not in as many as Spark's default says: each query behind it would read them all.
    parts = 1 + len(ranges) // 16
    return (
        rows.repartition(min(parts, 200), "stream_id")
        .groupBy("stream_id", "bookie", "made_s")
        .agg(*_sums(*_COUNTS))
        .join(f.broadcast(named), "stream_id", "left")
        .withColumns({name: f.coalesce(name, unnamed) for name in ("namespace", "stream")})
    )


_COUNTS = ("ledgers", "open", "entries", "bytes", "day_bytes", "week_bytes")


def _sums(*names: str) -> list[Column]:
    return [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in names]


def _usage_of(
    spark: SparkSession, counted: DataFrame, taken: datetime, clock: Clock, to: str | None, top: int
) -> Usage:
    once = counted.where("bookie is null")
    namespaces = _largest(once, "namespace", top)
    streams = _largest(once.where(f"stream not in ('{NO_STREAM}', '{GONE}')"), "stream", top)
    (total,) = once.agg(*_sums(*_COUNTS)).collect()
    names = [row["namespace"] for row in namespaces]
    label = f.when(f.col("namespace").isin(names), f.col("namespace")).otherwise(OTHERS)
    bookies = (
        counted.where("bookie is not null").groupBy("bookie", label.alias("label"))
        .agg(*_sums(*_COUNTS)).orderBy("bookie", "label").collect()
    )  # fmt: skip
    before = snapshots_in(spark, to, taken)
    if to is None or not before:
        made = once.groupBy("made_s", label.alias("label")).agg(*_sums("bytes")).collect()
        history = grown((row["made_s"], row["label"], row["bytes"]) for row in made)
        since = {"day": _ago(taken, DAY_S), "week": _ago(taken, WEEK_S)}
        changes = {
            row["namespace"]: {"day": row["day_bytes"], "week": row["week_bytes"]}
            for row in namespaces
        }
        all_changes = {"day": total["day_bytes"], "week": total["week_bytes"]}
    else:
        since = compared(before, taken)
        known = _history(spark, to, {*thinned(before), *since.values()}, names)
        now = {row["namespace"]: row["bytes"] for row in namespaces}
        now[OTHERS] = total["bytes"] - sum(now.values())
        changes = {
            name: {what: now[name] - known[when].get(name, 0) for what, when in since.items()}
            for name in names
        }
        all_changes = {
            what: total["bytes"] - sum(known[when].values()) for what, when in since.items()
        }
        history = [*((when, some) for when, some in sorted(known.items()) if some), (taken, now)]
    if to is not None:
        _write_snapshot(counted, _place_of(to, taken))
    return Usage(
        taken,
        _line("total", total, all_changes),
        [_line(row["namespace"], row, changes[row["namespace"]]) for row in namespaces],
        [_line(row["stream"], row, {}) for row in streams],
        bookie_lines(bookies),
        since,
        to is not None and bool(before),
        history,
    )


def _largest(rows: DataFrame, name: str, top: int) -> list[Row]:
    summed = rows.groupBy(name).agg(*_sums(*_COUNTS))
    return summed.orderBy(f.col("bytes").desc(), name).limit(top).collect()


def _line(name: str, row: Row, growth: Mapping[str, int]) -> UsageLine:
    return UsageLine(
        name, row["ledgers"], row["open"], row["entries"], row["bytes"], growth=dict(growth)
    )


def bookie_lines(rows: Iterable[Row]) -> list[UsageLine]:
    """Return a line a bookie of rows by bookie and label."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["bookie"], []).append(row)
    return [
        UsageLine(
            bookie_id,
            sum(row["ledgers"] for row in some),
            sum(row["open"] for row in some),
            sum(row["entries"] for row in some),
            sum(row["bytes"] for row in some),
            parts={row["label"]: row["bytes"] for row in some},
        )
        for bookie_id, some in found.items()
    ]


# --- growth -----------------------------------------------------------------------------------------------------


def _ago(taken: datetime, span_s: int) -> datetime:
    return datetime.fromtimestamp(taken.timestamp() - span_s, UTC)


def grown(made: Iterable[tuple[int | None, str, int]]) -> list[tuple[datetime, dict[str, int]]]:
    """Return how bytes came to be what they are, by (when ledgers were made, label, bytes); not known: at the start."""
    rows = sorted((0 if when is None else when, label, size) for when, label, size in made)
    known = [when for when, _, _ in rows if when]
    sums: dict[str, int] = {label: 0 for _, label, _ in rows}
    found: dict[int, dict[str, int]] = {}
    for when, label, size in rows:
        sums[label] += size
        found[when or min(known, default=0)] = dict(sums)
    return [(datetime.fromtimestamp(when, UTC), some) for when, some in sorted(found.items())]


def snapshots_in(spark: SparkSession, to: str | None, taken: datetime) -> list[datetime]:
    """Return when snapshots were taken, rising; without those that `taken` would be compared with and have no rows.

    A run that was killed while it wrote leaves such a folder, and everything would seem to have grown since then.
    """
    if to is None:
        return []
    names = names_in(spark, f"{to}/snapshots")
    snapshots = [stamp_of(name) for name in names if name.startswith(TAKEN)]
    has_files: dict[datetime, bool] = {}
    while snapshots:
        for one in set(compared(snapshots, taken).values()) - set(has_files):
            there = names_in(spark, _place_of(to, one))
            has_files[one] = any(not name.startswith(("_", ".")) for name in there)
        if all(has_files.get(snapshot, True) for snapshot in snapshots):
            break
        snapshots = [snapshot for snapshot in snapshots if has_files.get(snapshot, True)]
    return snapshots


def _place_of(to: str, when: datetime) -> str:
    return f"{to}/snapshots/{TAKEN}{when.strftime(STAMP)}"


def stamp_of(name: str) -> datetime:
    """Return the time of a snapshot's folder. Raises ConfigError."""
    try:
        return datetime.strptime(name.removeprefix(TAKEN), STAMP).replace(tzinfo=UTC)
    except ValueError as error:
        raise ConfigError(f"{name} is no snapshot of usage: give a place of its own") from error


def compared(before: Sequence[datetime], taken: datetime) -> dict[str, datetime]:
    """Return what to compare with: the last snapshot, and the last that was a day, and a week, old."""
    found = {"last": before[-1]}
    for what, span_s in (("day", DAY_S), ("week", WEEK_S)):
        old = [one for one in before if one <= _ago(taken, span_s)]
        if old:
            found[what] = old[-1]
    return found


def thinned(before: Sequence[datetime]) -> list[datetime]:
    """Return at most CHARTED_MAX of them, the last one included, spread evenly."""
    step = max(1, -(-len(before) // CHARTED_MAX))
    return list(before[::-1][::step][::-1])


def _history(
    spark: SparkSession, to: str, wanted: Iterable[datetime], names: Sequence[str]
) -> dict[datetime, dict[str, int]]:
    """Return bytes by namespace, and "(others)", of these snapshots."""
    places = {one: _place_of(to, one) for one in sorted(wanted)}
    reader = spark.read.schema(f"{SNAPSHOT}, taken string").option("basePath", f"{to}/snapshots")
    label = f.when(f.col("namespace").isin(list(names)), f.col("namespace")).otherwise(OTHERS)
    rows = reader.parquet(*places.values()).where("bookie is null")
    history: dict[datetime, dict[str, int]] = {place: {} for place in places}
    for row in rows.groupBy("taken", label.alias("label")).agg(*_sums("bytes")).collect():
        history[stamp_of(row["taken"])][row["label"]] = row["bytes"]
    return history


def _write_snapshot(counted: DataFrame, place: str) -> None:
    rows = counted.groupBy("namespace", "bookie").agg(*_sums("ledgers", "open", "entries", "bytes"))
    rows.coalesce(1).write.mode("overwrite").parquet(place)


# --- totals ---------------------------------------------------------------------------------------
#
# What ledgers' metadata says of how much there is, added up in a task: no bookie is asked, no data
# is read.
#
# Bytes are of entries' data. Of a closed ledger they are exact; each bookie's part of them is an
# estimate by its share of the entries. Of an open one only the entries of finished fragments are
# known, and no bytes.


STREAM_KEY = "fastbk.stream"
"""Key of a ledger's custom metadata: the id of the stream whose segment, or reader's mark, it is."""
ROWS = (
    "stream_id string, bookie string, made_s long, ledgers long, open long, entries long, bytes long,"
    " day_bytes long, week_bytes long"
)
"""A row without a bookie is of one copy, by when ledgers were made; one with a bookie what it holds."""
DAY_S, WEEK_S = 86_400, 7 * 86_400
BUCKETS_S = (1, 60, 600, 3600, DAY_S)
BUCKETS_WANTED = 24


@dataclass(frozen=True, slots=True)
class Clock:
    """When the run began, in seconds since 1970, and how finely times of creation are told apart."""

    now_s: int
    bucket_s: int

    @classmethod
    def over(cls, now_s: int, first_s: int) -> Clock:
        """Return one for ledgers of which the first was made at `first_s`: two dozen times and more, or seconds."""
        fine = [one for one in BUCKETS_S if one * BUCKETS_WANTED <= now_s - first_s]
        return cls(now_s, max(fine, default=BUCKETS_S[0]))


@dataclass(slots=True)
class Counted:
    """Sums of some ledgers; see ROWS."""

    ledgers: int = 0
    open: int = 0
    entries: int = 0
    bytes: int = 0
    day_bytes: int = 0
    week_bytes: int = 0


def rows_of(infos: Iterable[LedgerInfo], clock: Clock) -> Iterator[tuple[str | int | None, ...]]:
    """Yield the rows of these ledgers, as ROWS has them: as many as there are streams, bookies and times among them."""
    sums: defaultdict[tuple[str, BookieId | None, int | None], Counted] = defaultdict(Counted)
    for info in infos:
        metadata = info.metadata
        stream_id = metadata.custom.get(STREAM_KEY, b"").decode(errors="replace")
        made_s = None if metadata.created_ms is None else metadata.created_ms // 1000
        bucket = None if made_s is None else made_s - made_s % clock.bucket_s
        age_s = float("inf") if made_s is None else clock.now_s - made_s
        entries = entries_of(metadata)
        size_bytes = metadata.length if metadata.is_closed else 0
        _add(sums[stream_id, None, bucket], metadata, entries, size_bytes, age_s)
        for bookie_id, held in held_entries(metadata).items():
            held_bytes = round(size_bytes * held / entries) if entries else 0
            _add(sums[stream_id, bookie_id, None], metadata, held, held_bytes, age_s)
    for key, one in sums.items():
        counts = (one.ledgers, one.open, one.entries, one.bytes, one.day_bytes, one.week_bytes)
        yield (*key, *counts)


def entries_of(metadata: LedgerMetadata) -> int:
    """Return the entries that are known: of an open ledger, those before its last fragment."""
    if metadata.is_closed:
        return metadata.last_entry_id + 1
    return metadata.fragments[-1].first_entry_id


def held_entries(metadata: LedgerMetadata) -> dict[BookieId, int]:
    """Return how many entries, of those that are known, each bookie that the ledger names is to hold."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    held: dict[BookieId, int] = {}
    for at, fragment in enumerate(metadata.fragments):
        first, end = fragment.first_entry_id, entries_of(metadata)
        if at + 1 < len(metadata.fragments):
            end = min(end, metadata.fragments[at + 1].first_entry_id)
        # Entry n goes to the bookies n, n + 1, ... of the ensemble, counted round it.
        begun = [
            _multiples(end - index, size) - _multiples(first - index, size) for index in range(size)
        ]
        for index, bookie_id in enumerate(fragment.ensemble):
            count = (
                sum(begun[(index - copy) % size] for copy in range(quorum)) if end > first else 0
            )
            held[bookie_id] = held.get(bookie_id, 0) + count
    return held


def _multiples(end: int, step: int) -> int:
    """Return how many of 0, step, 2 * step ... are below `end`, which may be negative."""
    return -(-end // step)


def _add(
    to: Counted, metadata: LedgerMetadata, entries: int, size_bytes: int, age_s: float
) -> None:
    to.ledgers += 1
    to.open += not metadata.is_closed
    to.entries += entries
    to.bytes += size_bytes
    to.day_bytes += size_bytes if age_s <= DAY_S else 0
    to.week_bytes += size_bytes if age_s <= WEEK_S else 0
