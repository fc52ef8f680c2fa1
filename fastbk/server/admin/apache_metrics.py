"""`/metrics` by Apache's names: summaries with exact sums in milliseconds, and quantiles of the last minute."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fastbk.native.segment import Histogram
from fastbk.native.worker import PLACED_MAX
from fastbk.observe.apache_names import COMPACTIONS, OF_ONE_PAIR, SUMMARIES, TOTALS, VALUES, Value
from fastbk.observe.names import SLOTS
from fastbk.observe.prometheus import family, heading, number, quoted
from fastbk.server.admin.metrics import added, role_of
from fastbk.server.process_table import worker_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastbk.observe.apache_names import Kind, Scope, Summary, Total
    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.disks.disk_reports import DiskReports
    from fastbk.server.supervision.operator_requests import GcAdmin

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
            lines += heading(summary.metric, "summary", summary.text)
            for label, pair in self._series(summary.scope, role_of(summary.slot_name)):
                if (key := (summary.slot_name, pair)) not in now:
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
        for each in self._others():
            lines += family(*each)
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
        role = role_of(total.done[0])
        if not self._metrics.stats(role):
            return []
        lines = heading(total.metric, "summary", total.text)
        for label, pair in self._series(total.scope, role):
            for success, slots in (("true", total.done), ("false", total.failed)):
                if slots is not None:
                    count, amount = (self._sum((slot,), pair) for slot in slots)
                    lines += _sum_lines(total.metric, label, success, count, amount * total.scale)
        return lines

    def _series(self, scope: Scope, role: str) -> list[tuple[str, int | None]]:
        """Return labels and pair (None: all) of each series. Workers and gc count over all pairs."""
        pairs = range(len(self._journals))
        if scope != "bookie" and role in ("journal", "index"):
            return [(self._label(scope, pair), pair) for pair in pairs]
        if scope == "storage":
            return [(self._whole_label(), None)]
        return [('journalIndex="0"' if scope == "journal" and len(pairs) == 1 else "", None)]

    def _histograms(self) -> dict[Hashable, Histogram]:
        found: dict[Hashable, Histogram] = {}
        for slot_name in {summary.slot_name for summary in SUMMARIES}:
            role = role_of(slot_name)
            parts = [one.histogram(SLOTS[slot_name]) for one in self._metrics.stats(role)]
            if parts:
                found[slot_name, None] = added(parts)
                found.update({(slot_name, pair): part for pair, part in enumerate(parts)})
        return found

    def _label(self, scope: Scope, pair: int) -> str:
        if scope == "journal":
            return f'journalIndex="{pair}"'
        directory = quoted(self._ledgers[pair])
        return f'ledgerDir="{directory}",indexDir="{directory}"'

    def _value_lines(self, value: Value) -> list[str]:
        roles = {role_of(name) for name in value.plus + value.minus}
        if not all(self._metrics.stats(role) for role in roles):
            return []
        series: list[tuple[str, object]] = []
        for label, pair in self._series(value.scope, role_of(value.plus[0])):
            # Counters of two processes were not read at one instant.
            amount = max(0, self._sum(value.plus, pair) - self._sum(value.minus, pair))
            series.append((label, amount if value.scale == 1.0 else number(amount * value.scale)))
        names = [value.metric, value.legacy] if value.legacy and self._legacy else [value.metric]
        return [line for name in names for line in family(name, value.kind, value.text, series)]

    def _whole_label(self) -> str:
        """Return the label of what is counted over all ledger directories."""
        directories = quoted(",".join(self._ledgers))
        return f'ledgerDir="{directories}",indexDir="{directories}"'

    def _sum(self, slot_names: tuple[str, ...], pair: int | None = None) -> int:
        every = (self._metrics.values(slot_name) for slot_name in slot_names)
        return sum(sum(one if pair is None else one[pair : pair + 1]) for one in every)

    def _others(self) -> Iterator[tuple[str, Kind, str, Iterable[tuple[str, object]]]]:
        """Yield name, kind, text and series of what comes from the configuration and the supervisor."""
        pairs = range(len(self._journals))
        nothing = [(self._label("journal", pair), 0) for pair in pairs]
        text = "Bytes that the write caches may hold, both of each pair."
        yield "bookie_write_cache_max_size", "gauge", text, [("", self._cache_bytes)]
        text = "Bytes of the rings that workers put adds into."
        rings = [(label, self._rings_bytes) for label, _ in nothing]
        yield "bookie_journal_JOURNAL_MEMORY_MAX", "gauge", text, rings
        yield "bookie_JOURNAL_DIRS", "gauge", "Journal directories.", [("", len(pairs))]
        text = "Requests that the rings may hold unanswered."
        yield "bookie_JOURNAL_QUEUE_MAX_SIZE", "gauge", text, [("", self._requests_max)]
        text = "There is no such queue: what is written is durable when the write ends."
        yield "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE", "gauge", text, nothing
        name = "bookie_journal_JOURNAL_NUM_FLUSH_MAX_WAIT"
        yield name, "counter", "No batch waits for a clock.", nothing
        if self._legacy:
            text = "Gone from Apache's bookies, but not from dashboards: answers wait in no queue."
            yield "bookie_journal_JOURNAL_CB_QUEUE_SIZE", "gauge", text, nothing
        text = "No add is refused for want of room in the write cache: its connection waits."
        waits = [(self._label("storage", pair), 0) for pair in pairs]
        yield "bookie_rejected_write_requests", "counter", text, waits
        for kind, names in COMPACTIONS.items():
            ended = self._gc.compactions_ended(kind)
            for name in names if self._legacy else names[:1]:
                text = f"Looks of {kind} compaction that have ended."
                yield name, "counter", text, [(self._whole_label(), ended)]
        reports = [one for one in self._disks.reports() if one.role == "ledger"]
        if not reports:
            return
        writable = sum(one.takes == "all" for one in reports)
        yield "bookie_ledger_num_dirs", "gauge", "Ledger directories.", [("", len(reports))]
        yield "bookie_ledger_writable_dirs", "gauge", "Those that take adds.", [("", writable)]
        for report in reports:
            name = f"bookie_ledger_dir_{_name_of(report.directory)}_usage"
            percent = number(round(100 * report.used_ratio, 3))
            yield name, "gauge", "Percent of the disk that is used.", [("", percent)]


def _quantile_lines(summary: Summary, label: str, recent: Histogram) -> list[str]:
    after = f",{label}" if label else ""
    lines = []
    for share in QUANTILES:
        labels = f'success="true",quantile="{share}"{after}'
        value = quantile(recent, share) * summary.scale
        lines.append(f"{summary.metric}{{{labels}}} {number(value)}")
    return lines


def _sum_lines(metric: str, label: str, success: str, count: int, amount: float) -> list[str]:
    labels = f'success="{success}",{label}' if label else f'success="{success}"'
    return [f"{metric}_count{{{labels}}} {count}", f"{metric}_sum{{{labels}}} {number(amount)}"]


def _name_of(directory: str) -> str:
    """Return a directory as Apache has it in a metric's name; what no name may have becomes `_`, too."""
    return "".join(one if one.isascii() and one.isalnum() else "_" for one in directory)


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
    return float(histogram.percentile(100 * share)) if any(histogram.buckets) else math.nan
