"""What the supervisor hands to each process at its start: its own settings and the facts it needs.

The settings are sections of the file (`settings.py`), each pair's share of them (`bookie_config.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from fastbk.server.configuration.settings import (
    DiskSettings,
    GcSettings,
    JournalSettings,
    LedgerSettings,
    LimitSettings,
    NetworkSettings,
    ScrubSettings,
)
from fastbk.storage.disk_health import Thresholds


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
    limits: LimitSettings
    settings: NetworkSettings
    drain_timeout_ms: int
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
    limits: LimitSettings
    settings: JournalSettings
    disk: DiskSettings
    replayed: Replayed
    refuses_adds: bool = False
    """From the start on, until told otherwise: normal adds."""
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


class GcConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the gc process gets."""

    bookie_id: str
    metadata_uri: str
    ledger_directories: tuple[str, ...]
    shards: tuple[int, ...]
    unconfirmed_ledgers_max: int
    settings: GcSettings
