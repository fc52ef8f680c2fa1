"""`/metrics` by Apache's names: summaries with exact sums in milliseconds, and quantiles of the last minute."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fastbk.native.stats import SLOTS, Histogram, bucket_from
from fastbk.native.worker import PLACED_MAX
from fastbk.observe.apache_names import COMPACTIONS, OF_ONE_PAIR, SUMMARIES, TOTALS, VALUES, Value
from fastbk.server.process_table import worker_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastbk.native.stats import Stats
    from fastbk.observe.apache_names import Scope, Summary, Total
    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.disks.disk_reports import DiskReports
    from fastbk.server.supervision.gc_admin import GcAdmin

QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)


class ApacheMetrics:
    """One bookie's."""

    def __init__(
        self, config: BookieConfig, metrics: Metrics, disks: DiskReports, gc: GcAdmin
    ) -> None:
        self._ledgers = config.ledgers.all_directories
        self._journals = config.journal.all_directories
        self._cache_bytes = 2 * config.ledgers.write_cache_size_bytes
        self._rings_bytes = config.limits.add_ring_size_bytes * worker_count(config)
        self._requests_max = PLACED_MAX * worker_count(config) * len(self._journals)
        self._legacy = config.metrics.legacy_names
        self._metrics = metrics
        self._disks = disks
        self._gc = gc
        self._window = RollingWindow(config.metrics.latency_window_s)
        self._boot = 0
        metrics.add_source(self.lines, "apache")

    def roll(self) -> None:
        """Let the window of quantiles move on. Call every second or so."""
        if self._boot != self._metrics.boots:
            self._boot = self._metrics.boots
            self._window.clear()
            self._window.keep(time.monotonic(), {})  # a boot begins with nothing counted
        now_s = time.monotonic()
        if self._window.is_due(now_s):
            self._window.keep(now_s, self._histograms())

    def lines(self) -> list[str]:
        """Return whole lines of the text format."""
        self.roll()
        lines: list[str] = []
        now = self._histograms()
        for summary in SUMMARIES:
            lines += [f"# HELP {summary.metric} {summary.text}", f"# TYPE {summary.metric} summary"]
            for label, key in self._sources(summary):
                if key not in now:
                    continue
                if summary.has_quantiles:
                    lines += _quantile_lines(summary, label, self._window.recent(key, now[key]))
                lines += self._sums(summary, label, now[key])
        for total in TOTALS:
            lines += self._total_lines(total)
        for value in VALUES:
            lines += self._value_lines(value)
        if len(self._journals) == 1:
            for value in OF_ONE_PAIR:
                lines += self._value_lines(value)
        self._add_others(lines)
        return lines

    def _sums(self, one: Summary, label: str, now: Histogram) -> list[str]:
        value = self._metrics.value
        without = [value(slot) for slot in one.without] if one.without else [0] * 4
        # Histogram and counters were not read at one instant.
        count, amount = max(0, now.count - without[0]), max(0, now.sum - without[1])
        lines = _sum_lines(one.metric, label, "true", count, amount * one.scale)
        if one.failed is not None:
            failed = [value(slot) for slot in one.failed] if one.failed else [0, 0]
            count, amount = (max(0, failed[n] - without[2 + n]) for n in (0, 1))
            lines += _sum_lines(one.metric, label, "false", count, amount * one.scale)
        return lines

    def _total_lines(self, total: Total) -> list[str]:
        role = total.done[0].split("_")[2].lower()
        if not self._metrics.stats(role):
            return []
        lines = [f"# HELP {total.metric} {total.text}", f"# TYPE {total.metric} summary"]
        for label, pair in self._total_series(total.scope, role):
            ends = (("true", total.done), ("false", total.failed))
            for success, slots in ends:
                if slots is not None:
                    count, amount = (self._sum((slot,), pair) for slot in slots)
                    scaled = amount * total.scale
                    lines += _sum_lines(total.metric, label, success, count, scaled)
        return lines

    def _total_series(self, scope: Scope, role: str) -> list[tuple[str, int | None]]:
        """Return labels and pair (None: all) of each series. Workers and gc count over all pairs."""
        pairs = range(len(self._journals))
        if scope != "bookie" and role in ("journal", "index"):
            return [(self._label(scope, pair), pair) for pair in pairs]
        if scope == "storage":
            return [(self._whole_label(scope), None)]
        return [('journalIndex="0"' if scope == "journal" and len(pairs) == 1 else "", None)]

    def _histograms(self) -> dict[Hashable, Histogram]:
        found: dict[Hashable, Histogram] = {}
        for slot_name in {summary.slot_name for summary in SUMMARIES}:
            role = slot_name.split("_")[2].lower()
            parts = [one.histogram(SLOTS[slot_name]) for one in self._metrics.stats(role)]
            if parts:
                found[slot_name, None] = _added(parts)
                found.update({(slot_name, number): part for number, part in enumerate(parts)})
        return found

    def _sources(self, summary: Summary) -> list[tuple[str, tuple[str, int | None]]]:
        """Return labels and histogram of each series. What workers measure is not told apart by journals."""
        is_of_pairs = summary.scope != "bookie" and not summary.slot_name.startswith("FBK_H_WORKER")
        if not is_of_pairs:
            is_one = len(self._journals) == 1 and summary.scope == "journal"
            return [('journalIndex="0"' if is_one else "", (summary.slot_name, None))]
        return [
            (self._label(summary.scope, pair), (summary.slot_name, pair))
            for pair in range(len(self._journals))
        ]

    def _label(self, scope: Scope, pair: int) -> str:
        if scope == "journal":
            return f'journalIndex="{pair}"'
        directory = _escaped(self._ledgers[pair])
        return f'ledgerDir="{directory}",indexDir="{directory}"'

    def _value_lines(self, value: Value) -> list[str]:
        roles = {name.split("_")[2].lower() for name in value.plus + value.minus}
        if not all(self._metrics.stats(role) for role in roles):
            return []
        series: list[tuple[str, int]] = []
        if value.scope == "bookie":
            series.append(("", self._sum(value.plus)))
        elif roles <= {"journal", "index"}:
            series += [
                (self._label(value.scope, pair), self._sum(value.plus, pair))
                for pair in range(len(self._journals))
            ]
        else:
            series.append(
                (
                    self._whole_label(value.scope),
                    max(0, self._sum(value.plus) - self._sum(value.minus)),
                )
            )
        names = [value.metric, value.legacy] if value.legacy and self._legacy else [value.metric]
        scale = value.scale
        scaled = [(label, amount if scale == 1.0 else amount * scale) for label, amount in series]
        return [line for name in names for line in _lines(name, value.kind, value.text, scaled)]

    def _whole_label(self, scope: Scope) -> str:
        """Return the label of what gc and workers count over all pairs."""
        if scope == "journal":
            return 'journalIndex="0"'
        directories = _escaped(",".join(self._ledgers))
        return f'ledgerDir="{directories}",indexDir="{directories}"'

    def _sum(self, slot_names: tuple[str, ...], pair: int | None = None) -> int:
        total = 0
        for slot_name in slot_names:
            found: list[Stats] = self._metrics.stats(slot_name.split("_")[2].lower())
            chosen = found if pair is None else found[pair : pair + 1]
            total += sum(one.counters()[SLOTS[slot_name]] for one in chosen)
        return total

    def _add_others(self, lines: list[str]) -> None:
        pairs = range(len(self._journals))
        text = "Bytes that the write caches may hold, both of each pair."
        lines += _lines("bookie_write_cache_max_size", "gauge", text, [("", self._cache_bytes)])
        rings = [(self._label("journal", pair), self._rings_bytes) for pair in pairs]
        text = "Bytes of the rings that workers put adds into."
        lines += _lines("bookie_journal_JOURNAL_MEMORY_MAX", "gauge", text, rings)
        lines += _lines(
            "bookie_JOURNAL_DIRS", "gauge", "Journal directories.", [("", len(self._journals))]
        )
        text = "Requests that the rings may hold unanswered."
        lines += _lines("bookie_JOURNAL_QUEUE_MAX_SIZE", "gauge", text, [("", self._requests_max)])
        queues = [(self._label("journal", pair), 0) for pair in pairs]
        text = "There is no such queue: what is written is durable when the write ends."
        lines += _lines("bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE", "gauge", text, queues)
        text = "No batch waits for a clock."
        name = "bookie_journal_JOURNAL_NUM_FLUSH_MAX_WAIT"
        lines += _lines(name, "counter", text, queues)
        if self._legacy:
            text = "Gone from Apache's bookies, but not from dashboards: answers wait in no queue."
            lines += _lines("bookie_journal_JOURNAL_CB_QUEUE_SIZE", "gauge", text, queues)
        text = "No add is refused for want of room in the write cache: its connection waits."
        waits = [(self._label("storage", pair), 0) for pair in pairs]
        lines += _lines("bookie_rejected_write_requests", "counter", text, waits)
        for kind, names in COMPACTIONS.items():
            series = [(self._whole_label("storage"), self._gc.compactions_ended(kind))]
            for name in names if self._legacy else names[:1]:
                lines += _lines(
                    name, "counter", f"Looks of {kind} compaction that have ended.", series
                )
        self._add_directories(lines)

    def _add_directories(self, lines: list[str]) -> None:
        reports = [one for one in self._disks.reports() if one.role == "ledger"]
        if not reports:
            return
        writable = sum(one.takes == "all" for one in reports)
        lines += _lines(
            "bookie_ledger_num_dirs", "gauge", "Ledger directories.", [("", len(reports))]
        )
        lines += _lines(
            "bookie_ledger_writable_dirs", "gauge", "Those that take adds.", [("", writable)]
        )
        for report in reports:
            name = f"bookie_ledger_dir_{_name_of(report.directory)}_usage"
            percent = [("", round(100 * report.used_ratio, 3))]
            lines += _lines(name, "gauge", "Percent of the disk that is used.", percent)


def _quantile_lines(summary: Summary, label: str, recent: Histogram) -> list[str]:
    after = f",{label}" if label else ""
    lines = []
    for share in QUANTILES:
        labels = f'success="true",quantile="{share}"{after}'
        value = quantile(recent, share) * summary.scale
        lines.append(f"{summary.metric}{{{labels}}} {_number(value)}")
    return lines


def _sum_lines(metric: str, label: str, success: str, count: int, amount: float) -> list[str]:
    labels = f'success="{success}",{label}' if label else f'success="{success}"'
    return [f"{metric}_count{{{labels}}} {count}", f"{metric}_sum{{{labels}}} {_number(amount)}"]


def _lines(
    metric: str, kind: str, text: str, series: list[tuple[str, float]] | list[tuple[str, int]]
) -> list[str]:
    lines = [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
    for label, value in series:
        shown = value if isinstance(value, int) else _number(value)
        lines.append(f"{metric}{{{label}}} {shown}" if label else f"{metric} {shown}")
    return lines


def _added(histograms: list[Histogram]) -> Histogram:
    return Histogram(
        sum(one.count for one in histograms),
        sum(one.sum for one in histograms),
        max(one.max for one in histograms),
        [sum(times) for times in zip(*(one.buckets for one in histograms), strict=True)],
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _name_of(directory: str) -> str:
    """Return a directory as Apache has it in a metric's name; what no name may have becomes `_`, too."""
    return "".join(one if one.isascii() and one.isalnum() else "_" for one in directory)


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.15g}"


PARTS = 6
"""A window moves in so many steps: it covers its length, and up to a step more."""


class RollingWindow:
    """The states of some histograms, which only grow, at the last few steps: what was added since is the difference.

    Time arrives as an argument.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._states: deque[tuple[float, Mapping[Hashable, Histogram]]] = deque()

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for `keep`."""
        return not self._states or now_s >= self._states[-1][0] + self._window_s / PARTS

    def keep(self, now_s: float, histograms: Mapping[Hashable, Histogram]) -> None:
        """Note how things stand."""
        self._states.append((now_s, histograms))
        while len(self._states) > 1 and self._states[1][0] <= now_s - self._window_s:
            self._states.popleft()

    def clear(self) -> None:
        """Forget everything: the histograms begin anew."""
        self._states.clear()

    def recent(self, key: Hashable, histogram: Histogram) -> Histogram:
        """Return what was added to the histogram within the window."""
        earlier = self._states[0][1].get(key) if self._states else None
        return histogram if earlier is None else histogram.minus(earlier)


def quantile(histogram: Histogram, share: float) -> float:
    """Return a stored value that `share` of all values do not exceed (at most 12.5 % too high); NaN of none."""
    total = sum(histogram.buckets)
    if not total:
        return float("nan")
    seen = 0
    found = 0
    for bucket, times in enumerate(histogram.buckets):
        if times:
            seen += times
            found = bucket
            if seen >= share * total:
                break
    return float(min(bucket_from(found + 1) - 1, histogram.max))
