"""The whole configuration file, and what each journal/index pair gets of it.

A bookie has one pair for each journal and ledger directory. What is set is what the whole bookie may take: caches and
rings are divided among its pairs, down to the least that one can work with. So a bookie of one pair is as it always
was, and one of several costs little more. Bounds of a disk (the journal's limit, readers, files) are each pair's own.
"""

from __future__ import annotations

import msgspec

from fastbk.server.configuration.settings import (
    BookieSettings,
    DiskSettings,
    GcSettings,
    HttpSettings,
    JournalSettings,
    LedgerSettings,
    LimitSettings,
    MetadataSettings,
    MetricsSettings,
    NetworkSettings,
    ScrubSettings,
)

PAGE_BYTES = 4096
WRITE_CACHE_FRAMES_MIN = 3
"""Frames, and batches of the journal, that a write cache has to hold: `checks.py`."""
READ_CACHE_BYTES_MIN = 2 << 20
BLOCK_CACHE_BYTES_MIN = 1 << 20


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Only the supervisor sees it."""

    bookie: BookieSettings = msgspec.field(default_factory=BookieSettings)
    metadata: MetadataSettings = msgspec.field(default_factory=MetadataSettings)
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    metrics: MetricsSettings = msgspec.field(default_factory=MetricsSettings)
    limits: LimitSettings = msgspec.field(default_factory=LimitSettings)
    network: NetworkSettings = msgspec.field(default_factory=NetworkSettings)
    journal: JournalSettings = msgspec.field(default_factory=JournalSettings)
    ledgers: LedgerSettings = msgspec.field(default_factory=LedgerSettings)
    disk: DiskSettings = msgspec.field(default_factory=DiskSettings)
    gc: GcSettings = msgspec.field(default_factory=GcSettings)
    scrub: ScrubSettings = msgspec.field(default_factory=ScrubSettings)


def pair_count(config: BookieConfig) -> int:
    """Return how many pairs the configuration names."""
    return len(config.journal.all_directories)


def journal_settings(config: BookieConfig, pair: int) -> JournalSettings:
    """Return the settings of the journal of `pair`."""
    directory = config.journal.all_directories[pair]
    return msgspec.structs.replace(config.journal, directory=directory, directories=())


def ledger_settings(config: BookieConfig, pair: int) -> LedgerSettings:
    """Return the settings of the index of `pair`: its directory, and its share of the caches."""
    pairs, settings = pair_count(config), config.ledgers
    record_bytes = max(config.limits.frame_size_bytes_max, config.journal.batch_size_bytes_max)
    least_bytes = WRITE_CACHE_FRAMES_MIN * record_bytes
    return msgspec.structs.replace(
        settings,
        directory=settings.all_directories[pair],
        directories=(),
        write_cache_size_bytes=_share(settings.write_cache_size_bytes, pairs, least_bytes),
        read_cache_size_bytes=_share(settings.read_cache_size_bytes, pairs, READ_CACHE_BYTES_MIN),
        block_cache_size_bytes=_share(
            settings.block_cache_size_bytes, pairs, BLOCK_CACHE_BYTES_MIN
        ),
    )


def ring_sizes(limits: LimitSettings, pairs: int) -> tuple[int, int, int]:
    """Return the sizes of a worker's add ring, request ring and reply ring for one pair, in bytes."""
    frame_bytes = limits.frame_size_bytes_max
    return (
        _ring_share(limits.add_ring_size_bytes, pairs, 3 * frame_bytes),
        _ring_share(limits.request_ring_size_bytes, pairs, PAGE_BYTES),
        # A header comes on top of each of the two replies that have to fit.
        _ring_share(limits.reply_ring_size_bytes, pairs, 2 * frame_bytes + PAGE_BYTES),
    )


def _share(size_bytes: int, pairs: int, least_bytes: int) -> int:
    """Return a pair's part, in whole pages; of what is less than the least as it is."""
    if pairs == 1 or size_bytes <= least_bytes:
        return size_bytes
    return max(size_bytes // pairs, least_bytes) // PAGE_BYTES * PAGE_BYTES


def _ring_share(size_bytes: int, pairs: int, least_bytes: int) -> int:
    """Return a pair's part of a ring, a power of two as the whole is."""
    part_bytes = size_bytes
    while part_bytes * pairs > size_bytes and part_bytes // 2 >= least_bytes:
        part_bytes //= 2
    return part_bytes
