"""Apache's names for what a bookie counts, and where each value comes from here (docs/metrics.md).

Only what can be said truthfully has a row. Labels are Apache's: journals carry `journalIndex`, storage and its garbage
collection `ledgerDir` and `indexDir`; the rest is one series a bookie, whatever the number of its processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge"]
Scope = Literal["bookie", "journal", "storage"]

MILLISECONDS_OF_US = 1e-3
MILLISECONDS_OF_NS = 1e-6


@dataclass(frozen=True)
class Summary:
    """A summary of a histogram of ours.

    Attributes:
        slot_name: the histogram's.
        scope: which labels it carries.
        scale: what a stored value is multiplied with: times are milliseconds.
        has_failures: whether there may be failures, whose times are not kept apart; if not, `success="false"` counts 0.
    """

    metric: str
    slot_name: str
    scope: Scope
    scale: float
    text: str
    has_failures: bool = False


@dataclass(frozen=True)
class Value:
    """A counter or gauge: the sum of `plus` without `minus`, never below 0. `legacy`: the name it had before."""

    metric: str
    kind: Kind
    plus: tuple[str, ...]
    scope: Scope
    text: str
    minus: tuple[str, ...] = ()
    legacy: str = ""


_ADD_US, _READ_NS = "FBK_H_WORKER_ADD_US", "FBK_H_INDEX_READ_NS"
_ADDS = "Adds, from the last byte received to the answer, refused ones too."
_READS = "Reads, from the last byte received to the answer of the index, refused ones too; no long polls."

SUMMARIES = (
    Summary("bookkeeper_server_ADD_ENTRY_REQUEST", _ADD_US, "bookie", MILLISECONDS_OF_US, _ADDS, True),
    Summary("bookkeeper_server_ADD_ENTRY", _ADD_US, "bookie", MILLISECONDS_OF_US, _ADDS, True),
    Summary("bookie_BOOKIE_ADD_ENTRY", _ADD_US, "bookie", MILLISECONDS_OF_US, _ADDS, True),
    Summary("bookkeeper_server_READ_ENTRY_REQUEST", _READ_NS, "bookie", MILLISECONDS_OF_NS, _READS, True),
    Summary("bookkeeper_server_READ_ENTRY", _READ_NS, "bookie", MILLISECONDS_OF_NS, _READS, True),
    Summary("bookie_BOOKIE_READ_ENTRY", _READ_NS, "bookie", MILLISECONDS_OF_NS, _READS, True),
    Summary("bookie_read_entry", _READ_NS, "storage", MILLISECONDS_OF_NS, _READS, True),
    Summary("bookie_journal_JOURNAL_ADD_ENTRY", _ADD_US, "journal", MILLISECONDS_OF_US, _ADDS, True),
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
    Summary("bookie_flush", "FBK_H_INDEX_FLUSH_NS", "storage", MILLISECONDS_OF_NS, "Length of a flush.", True),
)  # fmt: skip

_LOOKS = "FBK_C_INDEX_DISK_JOBS"

VALUES = (
    Value("bookie_WRITE_BYTES", "counter", ("FBK_C_INDEX_ENTRY_BYTES",), "bookie", "Bytes of entries stored."),
    Value("bookie_READ_BYTES", "counter", ("FBK_C_INDEX_READ_BYTES",), "bookie", "Bytes of entries sent."),
    Value("bookie_BOOKIE_FORCE_LEDGER", "counter", ("FBK_C_JOURNAL_FORCES",), "bookie", "Forces."),
    Value("bookie_journal_JOURNAL_WRITE_BYTES", "counter", ("FBK_C_JOURNAL_BYTES",), "journal",
          "Bytes written to journal files."),
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
)  # fmt: skip

COMPACTIONS = {
    "minor": ("bookie_MINOR_COMPACTION_TOTAL", "bookie_MINOR_COMPACTION_COUNT"),
    "major": ("bookie_MAJOR_COMPACTION_TOTAL", "bookie_MAJOR_COMPACTION_COUNT"),
}
"""By kind: the name now, and the one before."""

QUEUE_SIZE = Value(
    "bookie_journal_JOURNAL_QUEUE_SIZE", "gauge", ("FBK_C_WORKER_ADDS",), "journal",
    "Adds in the rings that the journal has not taken yet.", minus=("FBK_C_JOURNAL_ADDS",),
)  # fmt: skip
"""Of a bookie of one pair: workers count adds over all pairs."""
