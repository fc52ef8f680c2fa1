"""`/metrics` by Apache's names: summaries with exact sums in milliseconds, and quantiles of the last minute.

The tables say what each of Apache's names counts, and where its value comes from here (docs/metrics.md). Only what can
be said truthfully has a row. Labels are Apache's: journals carry `journalIndex`, storage and its garbage collection
`ledgerDir` and `indexDir`; the rest is one series a bookie, whatever the number of its processes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Literal

import msgspec

from fastbk.native.segment import Histogram
from fastbk.native.worker import PLACED_MAX
from fastbk.observe.names import SLOTS
from fastbk.observe.prometheus import family, heading, number, quoted
from fastbk.server.admin.metrics import added, role_of
from fastbk.server.process_table import worker_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.disks.disk_reports import DiskReports
    from fastbk.server.supervision.operator_requests import GcAdmin

Kind = Literal["counter", "gauge"]
Scope = Literal["bookie", "journal", "storage"]

MILLISECONDS_OF_US = 1e-3
MILLISECONDS_OF_NS = 1e-6


class Summary(msgspec.Struct, frozen=True):
    """A summary of a histogram of ours.

    Attributes:
        slot_name: the histogram's.
        scope: which labels it carries.
        scale: what a stored value is multiplied with: times are milliseconds.
        failed: counters of failures and of their sum, which the histogram does not have; () if there are none.
            None: the histogram has them too, and nothing can be said of `success="false"`.
        without: counters of successes, their sum, failures and their sum that the counts leave out. Quantiles do not.
        has_quantiles: False where no dashboard draws them.
    """

    metric: str
    slot_name: str
    scope: Scope
    scale: float
    text: str
    failed: tuple[str, str] | tuple[()] | None = ()
    without: tuple[str, str, str, str] | None = None
    has_quantiles: bool = True


class Total(msgspec.Struct, frozen=True):
    """A summary without quantiles: how many, and what they sum up to. No dashboard draws their quantiles, and nobody
    can add them up over bookies (docs/decisions.md, 70: users pay for series).

    Attributes:
        done, failed: counters of how many, and of the sum. failed = None: nothing is known of failures.
    """

    metric: str
    done: tuple[str, str]
    scope: Scope
    scale: float
    text: str
    failed: tuple[str, str] | None = None


class Value(msgspec.Struct, frozen=True):
    """A counter or gauge: the sum of `plus` without `minus`, never below 0. `legacy`: the name it had before; `scale`:
    what the sum is multiplied with."""

    metric: str
    kind: Kind
    plus: tuple[str, ...]
    scope: Scope
    text: str
    minus: tuple[str, ...] = ()
    legacy: str = ""
    scale: float = 1.0


_ADD_US, _READ_US, _READ_NS = "FBK_H_WORKER_ADD_US", "FBK_H_WORKER_READ_US", "FBK_H_INDEX_READ_NS"
_ADDS_FAILED = ("FBK_C_WORKER_ADDS_FAILED", "FBK_C_WORKER_ADDS_FAILED_US")
_READS_FAILED = ("FBK_C_WORKER_READS_FAILED", "FBK_C_WORKER_READS_FAILED_US")
_RECOVERY_ADDS = (
    "FBK_C_WORKER_RECOVERY_ADDS_DONE",
    "FBK_C_WORKER_RECOVERY_ADDS_DONE_US",
    "FBK_C_WORKER_RECOVERY_ADDS_FAILED",
    "FBK_C_WORKER_RECOVERY_ADDS_FAILED_US",
)
_ADDS = "Adds, from the last byte received to the answer."
_READS = "Reads, from the last byte received to the answer; no fencing ones, no long polls."
_STORAGE_READS = "Reads, fencing ones too, from the last byte received to the answer of the index, refused ones too."

SUMMARIES = (
    Summary("bookkeeper_server_ADD_ENTRY_REQUEST", _ADD_US, "bookie", MILLISECONDS_OF_US, _ADDS, _ADDS_FAILED),
    Summary("bookkeeper_server_ADD_ENTRY", _ADD_US, "bookie", MILLISECONDS_OF_US, _ADDS, _ADDS_FAILED),
    Summary("bookie_BOOKIE_ADD_ENTRY", _ADD_US, "bookie", MILLISECONDS_OF_US,
            "Adds, from the last byte received to the answer; recovery adds are in the quantiles only.",
            _ADDS_FAILED, _RECOVERY_ADDS),
    Summary("bookkeeper_server_READ_ENTRY_REQUEST", _READ_US, "bookie", MILLISECONDS_OF_US, _READS, _READS_FAILED),
    Summary("bookkeeper_server_READ_ENTRY", _READ_US, "bookie", MILLISECONDS_OF_US, _READS, _READS_FAILED),
    Summary("bookie_BOOKIE_READ_ENTRY", _READ_US, "bookie", MILLISECONDS_OF_US, _READS, _READS_FAILED),
    Summary("bookie_read_entry", _READ_NS, "storage", MILLISECONDS_OF_NS, _STORAGE_READS, None),
    Summary("bookie_journal_JOURNAL_ADD_ENTRY", _ADD_US, "journal", MILLISECONDS_OF_US, _ADDS),
    Summary(
        "bookie_journal_JOURNAL_SYNC", "FBK_H_JOURNAL_COMMIT_NS", "journal", MILLISECONDS_OF_NS,
        "From the submission of a batch to its durability.",
    ),
    Summary(
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES", "FBK_H_JOURNAL_BATCH_RECORDS", "journal", 1.0,
        "Records of a batch.",
    ),
    Summary(
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES", "FBK_H_JOURNAL_BATCH_BYTES", "journal", 1.0,
        "Bytes of a batch.",
    ),
    Summary(
        "bookie_journal_JOURNAL_FORCE_WRITE_GROUPING_TOTAL", "FBK_H_JOURNAL_BATCH_RECORDS", "journal", 1.0,
        "Records that one sync made durable: those of a batch.", has_quantiles=False,
    ),
    Summary("bookie_flush", "FBK_H_INDEX_FLUSH_NS", "storage", MILLISECONDS_OF_NS, "Length of a flush.", None),
)  # fmt: skip


def _took(metric: str, slot_name: str, scope: Scope, text: str) -> Total:
    """Return the total of what is counted as one, however it ends."""
    return Total(metric, (slot_name, f"{slot_name}_US"), scope, MILLISECONDS_OF_US, text)


def _timed(
    metric: str, operation: str, text: str, scope: Scope = "bookie", role: str = "WORKER"
) -> Total:
    """Return the total of an operation that is counted by how it ends."""
    done, failed = (f"FBK_C_{role}_{operation}_{end}" for end in ("DONE", "FAILED"))
    return Total(
        metric, (done, f"{done}_US"), scope, MILLISECONDS_OF_US, text, (failed, f"{failed}_US")
    )


_FORCES, _LISTS = "Forces.", "Lists of a ledger's entries; of our clients: pages of them."
_LAC_READS, _LAC_WRITES = "Reads of the LAC.", "Writes of an explicit LAC."
_INFOS = "Questions for the disk's room, as long as they are answered."

TOTALS = (
    _timed("bookkeeper_server_READ_ENTRY_FENCE_REQUEST", "FENCES", "Fencing reads."),
    _timed("bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST", "POLLS", "Long polls, their waiting included."),
    _timed("bookkeeper_server_READ_LAC", "LAC_READS", _LAC_READS),
    _timed("bookkeeper_server_READ_LAC_REQUEST", "LAC_READS", _LAC_READS),
    _timed("bookkeeper_server_WRITE_LAC", "LAC_WRITES", _LAC_WRITES),
    _timed("bookkeeper_server_WRITE_LAC_REQUEST", "LAC_WRITES", _LAC_WRITES),
    _timed("bookkeeper_server_FORCE_LEDGER", "FORCES", _FORCES),
    _timed("bookkeeper_server_FORCE_LEDGER_REQUEST", "FORCES", _FORCES),
    _timed("bookie_journal_JOURNAL_FORCE_LEDGER", "FORCES", _FORCES, "journal"),
    _timed("bookkeeper_server_GET_BOOKIE_INFO", "INFOS", _INFOS),
    _timed("bookkeeper_server_GET_BOOKIE_INFO_REQUEST", "INFOS", _INFOS),
    _timed("bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER", "LISTS", _LISTS),
    _timed("bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST", "LISTS", _LISTS),
    _timed("bookie_BOOKIE_GET_LIST_OF_ENTRIES_OF_LEDGER", "LISTS", _LISTS),
    _timed("bookie_BOOKIE_RECOVERY_ADD_ENTRY", "RECOVERY_ADDS", "Adds with the recovery flag."),
    _took("bookkeeper_server_ADD_ENTRY_BLOCKED_WAIT", "FBK_C_WORKER_ADD_WAITS", "bookie",
          "Waits of connections whose next add had no room."),
    _took("bookkeeper_server_READ_ENTRY_BLOCKED_WAIT", "FBK_C_WORKER_READ_WAITS", "bookie",
          "Waits of connections whose next read had no room."),
    _took("bookkeeper_server_READ_ENTRY_SCHEDULING_DELAY", "FBK_C_INDEX_READS_TAKEN", "bookie",
          "Reads, from the last byte received until the index takes them out of its ring."),
    _took("bookkeeper_server_READ_ENTRY_FENCE_WAIT", "FBK_C_INDEX_FENCE_WAITS", "bookie",
          "Fences, from the last byte received until they are durable and taken in."),
    _timed("bookkeeper_server_READ_ENTRY_FENCE_READ", "FENCE_READS", "Reads of fences, from then on.", role="INDEX"),
    _took("bookkeeper_server_READ_ENTRY_LONG_POLL_PRE_WAIT", "FBK_C_INDEX_POLL_STARTS", "bookie",
          "Long polls, from the last byte received until they wait, or need not."),
    _timed("bookkeeper_server_READ_ENTRY_LONG_POLL_WAIT", "POLL_WAITS", "Waits of long polls; false: timed out.",
           role="INDEX"),
    _timed("bookkeeper_server_READ_ENTRY_LONG_POLL_READ", "POLL_READS", "Long polls, from the end of the wait on.",
           role="INDEX"),
    _took("bookie_journal_JOURNAL_QUEUE_LATENCY", "FBK_C_JOURNAL_QUEUED", "journal",
          "Adds and fences written, from the last byte received to the submission of their batch."),
    _took("bookie_journal_JOURNAL_CREATION_LATENCY", "FBK_C_JOURNAL_FILES_READY", "journal",
          "Files made or taken again, beside the journal's loop."),
    _took("bookie_throttled_write", "FBK_C_INDEX_THROTTLED", "storage", "Waits of batches for a flush."),
    _timed("bookie_THREAD_RUNTIME", "TURNS", "Looks of gc, for dead ledgers and for copies too many.", "storage", "GC"),
    _timed("bookie_GC_LEDGER_RUNTIME", "LOOKS", "Looks of gc for dead ledgers.", "storage", "GC"),
    _timed("bookie_COMPACT_RUNTIME", "COMPACTIONS", "Runs of compaction, also of nothing.", "storage", "GC"),
    _timed("bookie_EXTRACT_META_RUNTIME", "RECOUNTS", "Counts of what lives in which entry log.", "storage", "INDEX"),
    Total(
        "bookie_BOOKIE_ADD_ENTRY_BYTES", ("FBK_C_INDEX_ENTRIES", "FBK_C_INDEX_ENTRY_BYTES"), "bookie", 1.0,
        "Bytes of entries stored.",
    ),
    Total(
        "bookie_BOOKIE_READ_ENTRY_BYTES", ("FBK_C_INDEX_READ_ENTRIES", "FBK_C_INDEX_READ_BYTES"), "bookie", 1.0,
        "Bytes of entries sent.",
    ),
)  # fmt: skip

_LOOKS = "FBK_C_INDEX_DISK_JOBS"

VALUES = (
    Value("bookie_WRITE_BYTES", "counter", ("FBK_C_INDEX_ENTRY_BYTES",), "bookie", "Bytes of entries stored."),
    Value("bookie_READ_BYTES", "counter", ("FBK_C_INDEX_READ_BYTES",), "bookie", "Bytes of entries sent."),
    Value("bookie_BOOKIE_FORCE_LEDGER", "counter", ("FBK_C_JOURNAL_FORCES",), "bookie", "Forces."),
    Value("bookie_journal_JOURNAL_WRITE_BYTES", "counter", ("FBK_C_JOURNAL_BYTES",), "journal",
          "Bytes written to journal files."),
    Value("bookie_journal_JOURNAL_NUM_FLUSH_EMPTY_QUEUE", "counter", ("FBK_C_JOURNAL_BATCHES_OF_ALL",), "journal",
          "Batches that took all there was."),
    Value("bookie_journal_JOURNAL_NUM_FLUSH_MAX_OUTSTANDING_BYTES", "counter", ("FBK_C_JOURNAL_BATCHES_FULL",),
          "journal", "Batches that left something for want of room."),
    Value("bookkeeper_server_READ_LAST_ENTRY_NOENTRY_ERROR", "counter", ("FBK_C_INDEX_PIGGYBACKS_EMPTY",), "bookie",
          "LACs that grew, sent without the entry that was asked for with them: it is not here."),
    Value("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", "gauge", ("FBK_C_WORKER_ADDS_IN_PROGRESS",), "bookie",
          "Adds, fences and forces that the journal has not answered."),
    Value("bookkeeper_server_ADD_ENTRY_BLOCKED", "gauge", ("FBK_C_WORKER_ADDS_BLOCKED",), "bookie",
          "Connections whose next add waits for room or its turn."),
    Value("bookkeeper_server_ADD_ENTRY_REJECTED", "counter", ("FBK_C_WORKER_ADDS_REJECTED",), "bookie",
          "Adds answered that too many wait."),
    Value("bookkeeper_server_READ_ENTRY_IN_PROGRESS", "gauge", ("FBK_C_WORKER_READS_IN_PROGRESS",), "bookie",
          "Requests that wait for the index, without long polls."),
    Value("bookkeeper_server_READ_ENTRY_BLOCKED", "gauge", ("FBK_C_WORKER_READS_BLOCKED",), "bookie",
          "Connections whose next read waits for room or its turn."),
    Value("bookkeeper_server_READ_ENTRY_REJECTED", "counter", ("FBK_C_WORKER_READS_REJECTED",), "bookie",
          "Reads answered that too many wait."),
    Value("bookie_entries_count", "gauge", ("FBK_C_INDEX_STORED_ENTRIES",), "storage", "Entries stored here."),
    Value("bookie_write_cache_count", "gauge", ("FBK_C_INDEX_CACHE_ENTRIES",), "storage",
          "Entries in the write cache that is being filled."),
    Value("bookie_read_cache_size", "gauge", ("FBK_C_INDEX_READ_CACHE_BYTES",), "storage", "Bytes in the read cache."),
    Value("bookie_read_cache_count", "gauge", ("FBK_C_INDEX_READ_CACHE_ENTRIES",), "storage",
          "Entries in the read cache."),
    Value("bookie_throttled_write_requests", "counter", ("FBK_C_INDEX_CACHE_FULL",), "storage",
          "Batches that had to wait for a flush."),
    Value("bookie_ledgers_count", "gauge", ("FBK_C_INDEX_LEDGERS",), "storage", "Ledgers stored here."),
    Value("bookie_write_cache_size", "gauge", ("FBK_C_INDEX_CACHE_BYTES",), "storage",
          "Bytes in the write cache that is being filled."),
    Value("bookie_write_cache_hits", "counter", ("FBK_C_INDEX_CACHE_HITS",), "storage",
          "Entries found in a write cache."),
    Value("bookie_write_cache_misses", "counter", ("FBK_C_INDEX_RUN_HITS", _LOOKS), "storage",
          "Entries found in the read cache, and looks at the disk."),
    Value("bookie_read_cache_hits", "counter", ("FBK_C_INDEX_RUN_HITS",), "storage",
          "Entries found in a run that was in memory."),
    Value("bookie_read_cache_misses", "counter", (_LOOKS,), "storage", "Looks at the disk."),
    Value("bookie_ACTIVE_ENTRY_LOG_TOTAL", "gauge", ("FBK_C_GC_LOGS",), "storage", "Entry logs.",
          legacy="bookie_ACTIVE_ENTRY_LOG_COUNT"),
    Value("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", "gauge", ("FBK_C_GC_LIVE_BYTES",), "storage",
          "Bytes in entry logs that live, as of the last count."),
    Value("bookie_ENTRY_LOG_SPACE_BYTES", "gauge", ("FBK_C_GC_LOG_BYTES",), "storage", "Bytes in entry logs."),
    Value("bookie_ACTIVE_LEDGER_TOTAL", "gauge", ("FBK_C_GC_LEDGERS",), "storage", "Local ledgers.",
          legacy="bookie_ACTIVE_LEDGER_COUNT"),
    Value("bookie_DELETED_LEDGER_TOTAL", "counter", ("FBK_C_GC_DELETED",), "storage", "Ledgers deleted.",
          legacy="bookie_DELETED_LEDGER_COUNT"),
    Value("bookie_ENTRY_LOCATION_COMPACTION_TOTAL", "counter", ("FBK_C_INDEX_MERGES",), "storage",
          "Merges of locations files."),
    Value("bookie_RECLAIMED_COMPACTION_SPACE_BYTES", "counter", ("FBK_C_GC_COMPACTION_FREED_BYTES",), "storage",
          "Bytes won back by compaction."),
    Value("bookie_RECLAIMED_DELETION_SPACE_BYTES", "counter", ("FBK_C_INDEX_LOGS_RECLAIMED_BYTES",), "storage",
          "Bytes of entry logs that went because nothing lived in them any more."),
    Value("bookie_RECLAIM_FAILED_TO_DELETE", "counter", ("FBK_C_INDEX_LOGS_NOT_UNLINKED",), "storage",
          "Times that such a log could not be unlinked."),
    Value("bookie_ENTRY_LOG_COMPACT_RATIO", "gauge", ("FBK_C_GC_COMPACTED_LOGS_PPM",), "storage",
          "Share of the sealed entry logs that the last run of compaction has compacted.", scale=1e-6),
)  # fmt: skip

COMPACTIONS = {
    "minor": ("bookie_MINOR_COMPACTION_TOTAL", "bookie_MINOR_COMPACTION_COUNT"),
    "major": ("bookie_MAJOR_COMPACTION_TOTAL", "bookie_MAJOR_COMPACTION_COUNT"),
}
"""By kind of compaction: the name now, and the one before."""

OF_ONE_PAIR = (
    Value(
        "bookie_journal_JOURNAL_QUEUE_SIZE", "gauge", ("FBK_C_WORKER_ADDS",), "journal",
        "Adds in the rings that the journal has not taken yet.", minus=("FBK_C_JOURNAL_ADDS",),
    ),
    Value(
        "bookie_journal_JOURNAL_MEMORY_USED", "gauge", ("FBK_C_WORKER_RING_BYTES",), "journal",
        "Bytes in the rings that the journal has not answered.",
    ),
)  # fmt: skip
"""Of a bookie of one pair: workers count over all pairs."""


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
