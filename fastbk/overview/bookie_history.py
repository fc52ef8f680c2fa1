"""One bookie over the last minutes: its pages, kept for a bounded time, become rates and quantiles. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fastbk.model.health import BookieFacts
from fastbk.overview.last_event import last_event_of
from fastbk.overview.metric_text import Buckets, MetricText, rate, slope
from fastbk.overview.problems import facts_of, problems_of
from fastbk.overview.values import DOWN, NO_ANSWER, BookieRow, DiskRow, Latency, Problem, Severity

WINDOW_S = 5.0
"""Rates and quantiles are of so long, or of the time between two polls where that is longer."""
SAMPLES_MAX = 64
FORECAST_STEP_S = 10.0
FORECAST_STEPS_MAX = 60
"""Free space is noted every 10 s, for 10 minutes."""
FORECAST_MIN_S = 60.0
"""With a shorter history the forecast is free space by bytes written: what gc gives back is not in it."""
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
NAMES = frozenset(
    {f"{name}_bucket" for name in (_ADD, _COMMIT, _FLUSH)}
    | {_ENTRIES, _BYTES, _READS, _STARTED, _RESTARTS, _QUEUE, _BLOCKED}
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
            one.full_in_s for one in disks if one.role == "ledger" and one.full_in_s is not None
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
        for one in disks:
            name = _COMMIT if one.role == "journal" else _FLUSH
            buckets = newest.metrics.histogram(name, one.pair)
            spent = (
                Buckets()
                if newest is oldest
                else buckets.minus(oldest.metrics.histogram(name, one.pair))
            )
            written = None if one.role == "journal" else (bytes_per_s or 0.0) / ledger_count
            full_in_s = self._forecast(one, written)
            yield DiskRow(
                one.role, one.pair, one.directory, one.state, one.slow, one.takes, one.free_bytes, one.used_ratio,
                spent.quantile(0.99), full_in_s,
            )  # fmt: skip

    def _forecast(self, disk: DiskRow, written_bytes_per_s: float | None) -> float | None:
        points = self._free.get((disk.role, disk.pair), deque())
        if points and points[-1][0] - points[0][0] >= FORECAST_MIN_S:
            falls_by = -(slope(points) or 0.0)
        else:
            falls_by = written_bytes_per_s or 0.0
        return disk.free_bytes / falls_by if falls_by > FILLING_MIN_BYTES_PER_S else None


def _with_problems(row: BookieRow, problems: Iterable[Problem]) -> BookieRow:
    return replace(row, problems=tuple(sorted(problems, key=lambda one: -one.severity)))


def _disks(sample: BookieSample) -> list[DiskRow]:
    return [
        DiskRow(
            str(one.get("role", "")),
            int(one.get("pair", 0)),
            str(one.get("directory", "")),
            str(one.get("state", "")),
            str(one.get("slow", "")),
            str(one.get("takes", "")),
            int(one.get("free_bytes", 0)),
            float(one.get("used_ratio", 0.0)),
        )
        for one in sample.info.get("disks", ())
    ]


def _between(newest: BookieSample, oldest: BookieSample, name: str) -> Buckets:
    if newest is oldest:  # since its start says nothing about now
        return Buckets()
    return newest.metrics.histogram(name).minus(oldest.metrics.histogram(name))


def _latency(spent: Buckets) -> Latency | None:
    p50_s, p99_s = spent.quantile(0.5), spent.quantile(0.99)
    return None if p50_s is None or p99_s is None else Latency(p50_s, p99_s, spent.count)
