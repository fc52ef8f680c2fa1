"""One bookie over the last minutes, as a row of an overview. Pure.

`BookieHistory` keeps the bookie's pages for a bounded time. It makes rates and quantiles of their
counters, and lists the bookie's problems. `MetricText` at the end of the file reads Prometheus'
text format, in which the counters come.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from fastbk.model.health import BookieFacts, DiskFacts, Verdict, reasons_of_bookie
from fastbk.observe.events import EventPage
from fastbk.observe.names import ADOPT_REASONS
from fastbk.overview.values import (
    COMMIT_SLOW_S,
    DOWN,
    NO_ANSWER,
    BookieRow,
    DiskRow,
    JournalFiles,
    LastEvent,
    Latency,
    Problem,
    Severity,
)
from fastbk.units import format_age_s, format_duration_us

WINDOW_S = 5.0
"""Rates and quantiles are of so long, or of the time between two polls where that is longer."""
SAMPLES_MAX = 64
FORECAST_STEP_S = 10.0
FORECAST_STEPS_MAX = 60
"""Free space is noted every 10 s, for 10 minutes."""
FORECAST_MIN_S = 60.0
"""Minimum history for a forecast that counts what gc gives back; with less it is free space by bytes written."""
FILLING_MIN_BYTES_PER_S = 1024.0
"""A disk that fills up more slowly is not forecast: some log lines of another program do that."""

_ADD, _COMMIT, _FLUSH = (
    "fastbk_worker_add_seconds",
    "fastbk_journal_commit_seconds",
    "fastbk_index_flush_seconds",
)
_ENTRIES, _BYTES = "fastbk_journal_entries_total", "fastbk_index_entry_bytes_total"
_READS = "fastbk_worker_reads_total"
_STARTED, _RESTARTS = "fastbk_supervisor_start_time_seconds", "fastbk_supervisor_restarts_total"
_QUEUE, _BLOCKED = "fastbk_worker_adds_in_progress", "fastbk_worker_adds_blocked"
_ADOPTED, _COPIED = "fastbk_index_adopted_bytes_total", "fastbk_index_flush_copied_bytes_total"
_FREE, _REASON = "fastbk_journal_free_bytes", "fastbk_journal_adopt_reason"
NAMES = frozenset(
    {f"{name}_bucket" for name in (_ADD, _COMMIT, _FLUSH)}
    | {_ENTRIES, _BYTES, _READS, _STARTED, _RESTARTS, _QUEUE, _BLOCKED}
    | {_ADOPTED, _COPIED, _FREE, _REASON}
    | {
        "fastbk_supervisor_frozen",
        "fastbk_supervisor_metadata_on_hold",
        "fastbk_supervisor_reads_only",
    }
)
"""Metrics that a sample needs of the page `/metrics`."""


@dataclass(frozen=True, slots=True)
class BookieSample:
    """The pages of one bookie at one moment.

    Attributes:
        at_s: of any clock that never goes back. metrics: of NAMES at least. info: the answer of `/info`.
        hot, events: the answers of `/hot`, and of `/events` for the newest; empty: the bookie has no such page.
    """

    at_s: float
    metrics: MetricText
    info: dict[str, Any]
    hot: dict[str, Any] = field(default_factory=dict)
    events: dict[str, Any] = field(default_factory=dict)

    @property
    def life(self) -> tuple[float, float]:
        """Differs once counters have begun anew."""
        return self.metrics.total(_STARTED), self.metrics.total(_RESTARTS)


class BookieHistory:
    """The last samples of one bookie. Bounded: SAMPLES_MAX samples, FORECAST_STEPS_MAX points a directory."""

    def __init__(self, bookie_id: str, http: str = "") -> None:
        """`http`: where its pages are, for people."""
        self.bookie_id = bookie_id
        self.http = http
        self._samples: deque[BookieSample] = deque(maxlen=SAMPLES_MAX)
        self._free: dict[tuple[str, int], deque[tuple[float, float]]] = {}
        self._silent_since_s: float | None = None
        self._reason = ""
        self._is_registered = True
        self._has_page = True

    @property
    def newest(self) -> BookieSample | None:
        """The newest sample."""
        return self._samples[-1] if self._samples else None

    @property
    def is_answering(self) -> bool:
        """Whether its pages were answered the last time."""
        return self._silent_since_s is None

    def add(self, sample: BookieSample) -> None:
        """Take a sample in, which must be newer than those before."""
        if self._samples and self._samples[-1].life != sample.life:
            self._samples.clear()
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at_s <= sample.at_s - WINDOW_S:
            self._samples.popleft()
        self._silent_since_s = None
        self._is_registered = True
        for disk in _disks(sample):
            points = self._free.setdefault((disk.role, disk.pair), deque(maxlen=FORECAST_STEPS_MAX))
            if not points or sample.at_s - points[-1][0] >= FORECAST_STEP_S:
                points.append((sample.at_s, float(disk.free_bytes)))

    def note_silence(self, reason: str, at_s: float, *, has_page: bool = True) -> None:
        """Its pages were not answered at that time. `reason`: one line for people.

        `has_page` False: it never had any, as a bookie of Apache's; that says nothing about its health.
        """
        self._has_page = has_page
        if self._silent_since_s is None:
            self._silent_since_s = at_s
        self._reason, self._is_registered = reason, True

    def note_unregistered(self, at_s: float) -> None:
        """Metadata knows it, and it is not registered."""
        self.note_silence("not registered", at_s)
        self._is_registered = False

    def row(self, now_s: float) -> BookieRow:
        """Return its row now, by the clock of the samples."""
        if self._silent_since_s is not None:
            return self._silent_row(now_s, self._silent_since_s)
        newest = self.newest
        if newest is None:
            return BookieRow(self.bookie_id, NO_ANSWER, self.http)
        oldest = self._samples[0]
        took_s = newest.at_s - oldest.at_s
        bytes_per_s = rate(newest.metrics.total(_BYTES), oldest.metrics.total(_BYTES), took_s)
        disks = tuple(self._measured_disks(newest, oldest, bytes_per_s))
        forecasts = [
            disk.full_in_s for disk in disks if disk.role == "ledger" and disk.full_in_s is not None
        ]
        info = newest.info
        row = BookieRow(
            self.bookie_id,
            str(info.get("state", "")),
            self.http,
            adds_per_s=rate(newest.metrics.total(_ENTRIES), oldest.metrics.total(_ENTRIES), took_s),
            add_bytes_per_s=bytes_per_s,
            reads_per_s=rate(newest.metrics.total(_READS), oldest.metrics.total(_READS), took_s),
            add=_latency(_between(newest, oldest, _ADD)),
            commit=_latency(_between(newest, oldest, _COMMIT)),
            queue=int(newest.metrics.total(_QUEUE)),
            blocked=int(newest.metrics.total(_BLOCKED)),
            disks=disks,
            full_in_s=min(forecasts, default=None),
            limbo=int(info.get("limbo", 0)),
            quarantined=int(info.get("quarantined", 0)),
            last_event=last_event_of(newest.events),
            version=str(info.get("software", "")),
            age_s=max(0.0, now_s - newest.at_s),
            journal_files=_journal_files(newest.metrics),
        )
        row = replace(row, facts=facts_of(row, newest.metrics, info))
        return _with_problems(row, problems_of(row))

    def _silent_row(self, now_s: float, since_s: float) -> BookieRow:
        state = NO_ANSWER if self._is_registered else DOWN
        text = (
            f"{state} for {now_s - since_s:.0f} s: {self._reason}" if self._is_registered else DOWN
        )
        newest = self.newest
        why = self._reason if self._is_registered else ""
        return BookieRow(
            self.bookie_id,
            state,
            self.http,
            (Problem(Severity.BAD if self._has_page else Severity.NOTE, text),),
            last_event=last_event_of(newest.events) if newest is not None else None,
            version=str(newest.info.get("software", "")) if newest is not None else "",
            age_s=max(0.0, now_s - newest.at_s) if newest is not None else 0.0,
            facts=BookieFacts(bookie_id=self.bookie_id, state=state, why=why)
            if self._has_page
            else None,
        )

    def _measured_disks(
        self, newest: BookieSample, oldest: BookieSample, bytes_per_s: float | None
    ) -> Iterator[DiskRow]:
        disks = _disks(newest)
        ledger_count = max(1, sum(one.role == "ledger" for one in disks))
        for disk in disks:
            name = _COMMIT if disk.role == "journal" else _FLUSH
            buckets = newest.metrics.histogram(name, disk.pair)
            spent = (
                Buckets()
                if newest is oldest
                else buckets.minus(oldest.metrics.histogram(name, disk.pair))
            )
            written = None if disk.role == "journal" else (bytes_per_s or 0.0) / ledger_count
            full_in_s = self._forecast(disk, written)
            yield DiskRow(
                disk.role, disk.pair, disk.directory, disk.state, disk.slow, disk.takes,
                disk.free_bytes, disk.used_ratio, spent.quantile(0.99), full_in_s,
            )  # fmt: skip

    def _forecast(self, disk: DiskRow, written_bytes_per_s: float | None) -> float | None:
        points = self._free.get((disk.role, disk.pair), deque())
        if points and points[-1][0] - points[0][0] >= FORECAST_MIN_S:
            falls_by = -(slope(points) or 0.0)
        else:
            falls_by = written_bytes_per_s or 0.0
        return disk.free_bytes / falls_by if falls_by > FILLING_MIN_BYTES_PER_S else None


def _with_problems(row: BookieRow, problems: Iterable[Problem]) -> BookieRow:
    return replace(row, problems=tuple(sorted(problems, key=lambda problem: -problem.severity)))


def _disks(sample: BookieSample) -> list[DiskRow]:
    return [
        DiskRow(
            str(disk.get("role", "")),
            int(disk.get("pair", 0)),
            str(disk.get("directory", "")),
            str(disk.get("state", "")),
            str(disk.get("slow", "")),
            str(disk.get("takes", "")),
            int(disk.get("free_bytes", 0)),
            float(disk.get("used_ratio", 0.0)),
        )
        for disk in sample.info.get("disks", ())
    ]


def _journal_files(metrics: MetricText) -> JournalFiles | None:
    journals = [(one.labels.get("pair"), int(one.value)) for one in metrics.of(_REASON)]
    if not journals:
        return None
    reasons = [
        (f"J{pair} " if pair else "")
        + (ADOPT_REASONS[value] if value < len(ADOPT_REASONS) else f"reason {value}")
        for pair, value in journals
        if value
    ]
    names = (_BYTES, _ADOPTED, _COPIED, _FREE)
    entries, adopted, copied, free = (int(metrics.total(name)) for name in names)
    return JournalFiles(entries, adopted, copied, free, ", ".join(reasons))


def _between(newest: BookieSample, oldest: BookieSample, name: str) -> Buckets:
    if newest is oldest:  # since its start says nothing about now
        return Buckets()
    return newest.metrics.histogram(name).minus(oldest.metrics.histogram(name))


def _latency(spent: Buckets) -> Latency | None:
    p50_s, p99_s = spent.quantile(0.5), spent.quantile(0.99)
    return None if p50_s is None or p99_s is None else Latency(p50_s, p99_s, spent.count)


COMMITS_MIN = 3
"""Fewer commits in the window say nothing about a disk."""
FULL_SOON_S = 86_400.0
USED_MUCH_RATIO = 0.7
"""Full within a day and used by so much: as the alert FastbkDiskNearlyFull."""
SEVERITIES = {
    Verdict.WELL: Severity.NOTE,
    Verdict.DEGRADED: Severity.WARN,
    Verdict.IN_DANGER: Severity.BAD,
    Verdict.DOWN: Severity.BAD,
}


def facts_of(row: BookieRow, metrics: MetricText, info: dict[str, Any]) -> BookieFacts:
    """Return what the verdict about a bookie that answers is made of."""
    commit = row.commit
    is_slow = commit is not None and commit.count >= COMMITS_MIN and commit.p99_s > COMMIT_SLOW_S
    return BookieFacts(
        bookie_id=row.bookie_id,
        state=row.state,
        why=str(info.get("reason", "")),
        is_frozen=bool(metrics.total("fastbk_supervisor_frozen")),
        reads_only=bool(metrics.total("fastbk_supervisor_reads_only")),
        disks=tuple(
            DiskFacts(disk.role, disk.pair, disk.state, disk.takes, disk.slow) for disk in row.disks
        ),
        limbo=row.limbo,
        quarantined=row.quarantined,
        has_damage=bool(info.get("damage_on_record", 0)),
        slow_commits=format_duration_us(commit.p99_s * 1e6)
        if commit is not None and is_slow
        else "",
        conditions=tuple(
            (str(condition.get("name", "")), str(condition.get("reason", "")))
            for condition in info.get("conditions", ())
        ),
    )


def problems_of(row: BookieRow) -> Iterator[Problem]:
    """Yield the problems of a bookie that answers: what the verdict says, and what is worth a look beside it."""
    if row.facts is not None:
        for reason in reasons_of_bookie(row.facts):
            yield Problem(SEVERITIES[reason.verdict], reason.text)
    yield from _of_disks(row)
    if row.blocked:
        yield Problem(Severity.NOTE, f"{row.blocked:,} connections wait for room")


def _of_disks(row: BookieRow) -> Iterator[Problem]:
    for disk in row.disks:
        if (
            disk.full_in_s is not None
            and disk.full_in_s < FULL_SOON_S
            and disk.used_ratio > USED_MUCH_RATIO
        ):
            name = f"{disk.role} disk" if disk.pair == 0 else f"{disk.role} disk {disk.pair}"
            yield Problem(Severity.NOTE, f"{name} full in {format_age_s(disk.full_in_s)}")


def last_event_of(page: dict[str, Any]) -> LastEvent | None:
    """Return the newest event of an answer; None without one, and where the answer is not understood."""
    try:
        events = msgspec.convert(page, EventPage).events if page else []
        if not events:
            return None
        newest = events[-1]
        return LastEvent(
            datetime.fromisoformat(newest.time).timestamp(), newest.text(), newest.kind
        )
    except (msgspec.ValidationError, ValueError):
        return None


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its labels and its value."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MetricText:
    """Some of the metrics of one page, at one moment."""

    series: dict[str, list[Series]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> MetricText:
        """Return the series with one of these names; lines that are not understood are left out."""
        found: dict[str, list[Series]] = {}
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            name, brace, labels = head.partition("{")
            if name not in names:
                continue
            try:
                number = float(value)
            except ValueError:
                continue
            found.setdefault(name, []).append(
                Series(dict(_LABEL.findall(labels)) if brace else {}, number)
            )
        return cls(found)

    def of(self, name: str) -> list[Series]:
        """Return all series of a metric; empty where it is missing."""
        return self.series.get(name, [])

    def total(self, name: str) -> float:
        """Return a metric, added up over its series; 0 where it is missing."""
        return math.fsum(one.value for one in self.of(name))

    def histogram(self, name: str, pair: int | None = None) -> Buckets:
        """Return a histogram, added up over its series, or of one pair of directories."""
        found: dict[float, float] = {}
        for one in self.of(f"{name}_bucket"):
            if pair is not None and one.labels.get("pair", "0") != str(pair):
                continue
            bound = float(one.labels.get("le", "nan").replace("+Inf", "inf"))
            found[bound] = found.get(bound, 0.0) + one.value
        return Buckets(tuple(sorted(found.items())))


@dataclass(frozen=True, slots=True)
class Buckets:
    """A cumulative histogram: (upper bound, how many values are not above it), by bound."""

    counts: tuple[tuple[float, float], ...] = ()

    @property
    def count(self) -> int:
        """All values."""
        return int(self.counts[-1][1]) if self.counts else 0

    def minus(self, earlier: Buckets) -> Buckets:
        """Return what was added since `earlier`; everything, if that had other bounds or was larger."""
        if len(earlier.counts) != len(self.counts) or earlier.count > self.count:
            return self
        pairs = zip(self.counts, earlier.counts, strict=True)
        return Buckets(tuple((bound, max(0.0, now - then)) for (bound, now), (_, then) in pairs))

    def quantile(self, share: float) -> float | None:
        """Return the value that `share` of all values do not exceed, interpolated within its bucket; None if empty.

        Beyond the last finite bound that bound is returned.
        """
        if not self.count:
            return None
        wanted = share * self.count
        low, below = 0.0, 0.0
        for bound, count in self.counts:
            if count >= wanted and count > below:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (wanted - below) / (count - below)
            low, below = (low if math.isinf(bound) else bound), count
        return low


def rate(now: float, then: float, seconds: float) -> float | None:
    """Return how much a counter grew a second; None if it began anew or no time went by."""
    return (now - then) / seconds if seconds > 0 and now >= then else None


def slope(points: Iterable[tuple[float, float]]) -> float | None:
    """Return how much y changes with x, by least squares over (x, y); None with fewer than two different x."""
    known = list(points)
    count = len(known)
    if count < 2:
        return None
    middle_x = math.fsum(x for x, _ in known) / count
    middle_y = math.fsum(y for _, y in known) / count
    spread = math.fsum((x - middle_x) ** 2 for x, _ in known)
    if spread == 0:
        return None
    return math.fsum((x - middle_x) * (y - middle_y) for x, y in known) / spread
