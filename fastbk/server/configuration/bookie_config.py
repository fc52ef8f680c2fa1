"""The whole configuration file, what each journal/index pair gets of it, and what each process is handed.

A bookie has one pair for each journal and ledger directory. What is set is what the whole bookie may take: caches and
rings are divided among its pairs, down to the least that one can work with. So a bookie of one pair is as it always
was, and one of several costs little more. Bounds of a disk (the journal's limit, readers, files) are each pair's own.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from fastbk.config import MetadataSettings
from fastbk.formats import LEVEL_FIRST
from fastbk.security.settings import (
    AuditSettings,
    AuthenticationSettings,
    AuthorizationSettings,
    HttpSettings,
    TlsSettings,
)
from fastbk.server.configuration.settings import (
    BookieSettings,
    DiskSettings,
    GcSettings,
    JournalSettings,
    LedgerSettings,
    LimitSettings,
    MetricsSettings,
    NetworkSettings,
    QuotaSettings,
    ScrubSettings,
)
from fastbk.storage.disk_health import Thresholds

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
    audit: AuditSettings = msgspec.field(default_factory=AuditSettings)
    metrics: MetricsSettings = msgspec.field(default_factory=MetricsSettings)
    limits: LimitSettings = msgspec.field(default_factory=LimitSettings)
    network: NetworkSettings = msgspec.field(default_factory=NetworkSettings)
    tls: TlsSettings = msgspec.field(default_factory=TlsSettings)
    authentication: AuthenticationSettings = msgspec.field(default_factory=AuthenticationSettings)
    authorization: AuthorizationSettings = msgspec.field(default_factory=AuthorizationSettings)
    quotas: QuotaSettings = msgspec.field(default_factory=QuotaSettings)
    journal: JournalSettings = msgspec.field(default_factory=JournalSettings)
    ledgers: LedgerSettings = msgspec.field(default_factory=LedgerSettings)
    disk: DiskSettings = msgspec.field(default_factory=DiskSettings)
    gc: GcSettings = msgspec.field(default_factory=GcSettings)
    scrub: ScrubSettings = msgspec.field(default_factory=ScrubSettings)


def pair_count(config: BookieConfig) -> int:
    """Return how many pairs the configuration names."""
    return len(config.journal.all_directories)


def other_processors(bookie: BookieSettings) -> set[int]:
    """Return those that journals leave to all other processes with `spin`; empty: any."""
    is_apart = bookie.spin_us > 0 and len(bookie.processors) > 0
    return os.sched_getaffinity(0) - set(bookie.processors) if is_apart else set()


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


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What the index found in the journal at start; its `replayed` message without the type."""

    next_file_id: int
    predecessor_file_id: int
    predecessor_sequence: int
    predecessor_crc: int
    next_record_sequence: int
    batches: int = 0
    records: int = 0
    bytes: int = 0
    states: int = 0
    old_files: list[dict[str, int]] = msgspec.field(default_factory=list)
    damage: list[Any] = msgspec.field(default_factory=list)
    is_newly_damaged: bool = False
    predecessor_end_bytes: int = 0


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker gets. `host` and `port` are the listener's; the number of the worker is
    `Child.index`.
    """

    bookie_id: str
    incarnation: int
    host: str
    port: int
    ledger_directories: tuple[str, ...]
    """One for each pair; only for the disk figures of Info."""
    shards: tuple[int, ...]
    """The pair of each shard: where a ledger's requests go."""
    bookie: BookieSettings
    limits: LimitSettings
    settings: NetworkSettings
    tls: TlsSettings
    authentication: AuthenticationSettings = AuthenticationSettings()
    authorization: AuthorizationSettings = AuthorizationSettings()
    cluster_id: str = ""
    quotas: QuotaSettings = QuotaSettings()
    worker_count: int = 1
    is_audited: bool = False
    """Whether there is an audit log."""
    reads_only_reason: str = ""
    """Not empty: there is no journal, and whatever would have to be written is refused."""

    @property
    def pair_count(self) -> int:
        """How many journal/index pairs there are."""
        return len(self.ledger_directories)


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal process gets; `replayed` comes from its index."""

    bookie_id: str
    incarnation: int
    pair: int
    worker_count: int
    bookie: BookieSettings
    limits: LimitSettings
    settings: JournalSettings
    disk: DiskSettings
    replayed: Replayed
    adopt: Literal["auto", "never"] = "never"
    """`[ledgers] adopt`."""
    is_on_ledger_disk: bool = False
    """Whether the journal directory and its ledger directory lie on one file system."""
    format_level: int = LEVEL_FIRST
    """That of the cluster, until a change."""
    refuses_adds: bool = False
    """Whether normal adds are refused from the start on, until a change."""
    header_key: str = ""
    """Hex, as its index has it and no worker: how a rewritten record is noticed (INV-R4)."""


class IndexConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an index process gets; of the journal only where to replay and when to flush."""

    bookie_id: str
    incarnation: int
    pair: int
    worker_count: int
    limits: LimitSettings
    settings: LedgerSettings
    disk: DiskSettings
    thresholds: Thresholds
    journal_directory: str
    journal_limit_bytes: int
    journal_bytes_max: int
    """The most that a journal directory ever holds."""
    journal_neighbours: tuple[str, ...]
    """All journal directories of the bookie: what those on this disk may still take is not free."""
    shards: tuple[int, ...]
    """The pair of each shard; what lies here of others is left over from a move (INV-D3)."""
    header_key: str = ""
    """Hex, as its journal has it and no worker: how a rewritten record is noticed (INV-R4)."""
    scrub: ScrubSettings = msgspec.field(default_factory=ScrubSettings)
    is_limbo_listed: bool = False
    """Whether this boot has put all ledgers into `limbo.ids` that metadata names the bookie for (INV-X6)."""


class GcConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the gc process gets."""

    bookie_id: str
    metadata: MetadataSettings
    ledger_directories: tuple[str, ...]
    shards: tuple[int, ...]
    unconfirmed_ledgers_max: int
    settings: GcSettings
