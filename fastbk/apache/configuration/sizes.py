"""Sizes that Apache's keys give, and what has to grow with them: rings, caches, the journal, the memory in all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from fastbk.server import process_table
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import RECORD_BYTES_MAX
from fastbk.server.disks import space_thresholds
from fastbk.units import KIB, MIB, format_size

if TYPE_CHECKING:
    from fastbk.apache.configuration.config_builder import ConfigBuilder

HEADER_BYTES = 4 * KIB
"""What a frame may have beside an entry that fills Apache's largest frame."""
FRAME_BYTES_MIN = 16 * KIB
RING_BYTES_MIN, RING_BYTES_MAX = 16 * MIB, 1024 * MIB
JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX = 64 * MIB, 1 << 40
JOURNAL_FILE_BYTES = 128 * MIB
CACHE_BYTES_MAX = 1 << 40
PENDING_MAX = 1 << 20
_HOLD_FRAMES = (
    ("limits.add_ring_size_bytes", 3),
    ("limits.reply_ring_size_bytes", 2),
    ("limits.request_ring_size_bytes", 0),
    ("network.partial_frames_bytes_max", 2),
    ("network.reply_backlog_bytes_max", 1),
    ("journal.first_file_size_bytes", 4),
    ("journal.file_size_bytes", 4),
    ("ledgers.write_cache_size_bytes", 3),
)
"""What has to hold so many of the largest frames; rings are powers of two."""
_HOLD_BATCHES = _HOLD_FRAMES[5:]


def apply_frames(builder: ConfigBuilder) -> None:
    """nettyMaxFrameSizeBytes."""
    key = "nettyMaxFrameSizeBytes"
    if (size_bytes := builder.source.integer(key)) is None:
        return
    wanted = size_bytes + HEADER_BYTES
    allowed = min(max(wanted, FRAME_BYTES_MIN), RECORD_BYTES_MAX)
    builder.remark_bounded(key, wanted, allowed, format_size(allowed))
    builder.put("limits.frame_size_bytes_max", allowed, key)


def apply_rings(builder: ConfigBuilder) -> None:
    """journalMaxMemorySizeMb."""
    key = "journalMaxMemorySizeMb"
    if (size_mb := builder.source.integer(key)) is None:
        return
    size_bytes = min(max(size_mb * MIB, RING_BYTES_MIN), RING_BYTES_MAX)
    builder.put("limits.add_ring_size_bytes", 1 << (size_bytes.bit_length() - 1), key)


def apply_pending(builder: ConfigBuilder) -> None:
    """Limits on requests that wait: Apache counts them for each of its threads."""
    for kind, threads_default in (("Add", 1), ("Read", 8)):
        key = f"maxPending{kind}RequestsPerThread"
        if (limit := builder.source.integer(key)) is None:
            continue
        threads = builder.source.integer(f"num{kind}WorkerThreads")
        threads = threads_default if threads is None else max(1, threads)
        allowed = min(max(0, limit * threads), PENDING_MAX)
        builder.put(f"network.apache_{kind.lower()}s_pending_max", allowed, key)


def apply_journal_size(builder: ConfigBuilder) -> None:
    """journalMaxSizeMB."""
    key = "journalMaxSizeMB"
    if (size_mb := builder.source.integer(key)) is None:
        return
    limit_bytes = min(max(size_mb * MIB, JOURNAL_BYTES_MIN), JOURNAL_BYTES_MAX)
    builder.remark_bounded(key, size_mb * MIB, limit_bytes, str(limit_bytes // MIB))
    file_bytes = min(JOURNAL_FILE_BYTES, limit_bytes // 4)
    file_bytes = max(32 * MIB, file_bytes // MIB * MIB)
    builder.put("journal.limit_bytes", limit_bytes, key)
    builder.put("journal.file_size_bytes", file_bytes, key)
    builder.put("journal.first_file_size_bytes", min(file_bytes, 64 * MIB), key)


def apply_caches(builder: ConfigBuilder) -> None:
    """The sizes of write and read cache."""
    write = _cache_bytes(builder, "dbStorage_writeCacheMaxSizeMb")
    if write is not None:
        builder.put("ledgers.write_cache_size_bytes", write // 2, "dbStorage_writeCacheMaxSizeMb")
    elif (one_bytes := builder.source.integer("skipListSizeLimit")) is not None and one_bytes > 0:
        builder.put(
            "ledgers.write_cache_size_bytes", min(one_bytes, CACHE_BYTES_MAX), "skipListSizeLimit"
        )
    read = _cache_bytes(builder, "dbStorage_readAheadCacheMaxSizeMb")
    if read is not None:
        builder.put(
            "ledgers.read_cache_size_bytes", max(read, MIB), "dbStorage_readAheadCacheMaxSizeMb"
        )


def _cache_bytes(builder: ConfigBuilder, key: str) -> int | None:
    """Return a size in MB or percent of the machine's memory; None when it is not set, or not above nothing."""
    text = builder.source.text(key)
    if text is not None and text.endswith("%"):
        number = text.removesuffix("%").strip()
        if not number.isdigit() or not 0 < int(number) <= 90:
            raise builder.source.fault(key, f"{text!r} is not 1% to 90%")
        size_bytes = _memory_bytes() * int(number) // 100
        builder.remark(key, f"{format_size(size_bytes)} on this machine")
        return size_bytes
    size_mb = builder.source.integer(key)
    if size_mb is None or size_mb <= 0:
        return None
    if size_mb * MIB > CACHE_BYTES_MAX:
        builder.remark(key, f"lowered to {CACHE_BYTES_MAX // MIB}")
    return min(size_mb * MIB, CACHE_BYTES_MAX)


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fit(builder: ConfigBuilder) -> None:
    """Make everything large enough for the largest frame and batch: a file in Apache's format asks for no more."""
    frame_bytes, batch_bytes = (
        builder.get("limits.frame_size_bytes_max"),
        builder.get("journal.batch_size_bytes_max"),
    )
    why = f"holds several frames of {format_size(frame_bytes)}"
    for setting, times in _HOLD_FRAMES:
        builder.raise_to(setting, _ring_bytes(setting, times * frame_bytes), why)
    for setting, times in _HOLD_BATCHES:
        builder.raise_to(
            setting, times * batch_bytes, f"holds several batches of {format_size(batch_bytes)}"
        )
    builder.raise_to(
        "journal.limit_bytes", 2 * builder.get("journal.file_size_bytes"), "holds two journal files"
    )


def _ring_bytes(setting: str, least: int) -> int:
    is_ring = setting.endswith("_ring_size_bytes")
    return 1 << (least - 1).bit_length() if is_ring and least else least


NEVER_FREE_BYTES = 1 << 50
"""Tests of Apache's set the largest number there is, to have what it bounds refused."""


def apply_floors(builder: ConfigBuilder) -> None:
    """The free space that is kept on a ledger directory's disk.

    Apache's bookies ask both only once a disk is beyond `diskUsageThreshold`: neither makes one read-only that is not.
    """
    journal = msgspec.convert(builder.document.get("journal", {}), type(BookieConfig().journal))
    reserve = space_thresholds.reserve_bytes(journal)
    repair = int(reserve * space_thresholds.REPAIR_SHARE)
    keys = ("minUsableSizeForHighPriorityWrites", "minUsableSizeForEntryLogCreation")
    is_set = False
    for key in keys:
        wanted = builder.source.integer(key)
        if wanted is None:
            continue
        if wanted >= NEVER_FREE_BYTES:
            builder.remark(key, "no disk has so much: taken as not set")
            continue
        if is_set:
            builder.remark(key, f"{keys[0]} says it")
        elif wanted < repair:
            builder.remark(key, f"raised to {format_size(repair)}")
        else:
            builder.put("disk.high_priority_free_bytes_min", wanted, key)
        is_set = True


def fit_memory(builder: ConfigBuilder, config: BookieConfig) -> BookieConfig:
    """Return the configuration with as much memory allowed as its caches and rings add up to."""
    needed = process_table.memory_bytes(config)
    if needed <= process_table.memory_total_bytes(config):
        return config
    builder.report.origins["bookie.memory_total_bytes"] = "the sum of caches and rings"
    bookie = msgspec.structs.replace(config.bookie, memory_total_bytes=-(-needed // MIB) * MIB)
    return msgspec.structs.replace(config, bookie=bookie)
