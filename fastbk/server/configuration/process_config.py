"""What a bookie can be told: one struct a section of the TOML file, and one struct a process.

`BookieConfig` is the file. `JournalConfig`, `IndexConfig`, `WorkerConfig` and `GcConfig` are what
the supervisor hands to each child: its own settings and the facts it needs, never the whole. The
settings themselves are in `fastbk.server.configuration.settings`, and are had from here as well.
"""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.errors import ConfigError
from fastbk.server import process_table
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
    ScrubSettings,
    WorkerSettings,
)
from fastbk.storage.space import Thresholds
from fastbk.units import GIB, KIB, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BookieSettings",
    "DiskSettings",
    "GcSettings",
    "HttpSettings",
    "JournalSettings",
    "LedgerSettings",
    "LimitSettings",
    "MetadataSettings",
    "WorkerSettings",
]
"""What is only passed on from here."""

COLD_FRAME_BYTES = 16 * KIB
"""Hellos and their like are answered from a buffer of this size."""
RECORD_BYTES_MAX = 31 * MIB
"""A journal's batch is at most 64 MiB: two of the largest records, and headers."""
TIMEOUT_MS_MAX = 1_000_000
PAIRS_MAX = 8
"""As in `boundary/base.h`, which needs Linux; a configuration may be checked anywhere."""


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Only the supervisor sees it."""

    bookie: BookieSettings = msgspec.field(default_factory=BookieSettings)
    metadata: MetadataSettings = msgspec.field(default_factory=MetadataSettings)
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    metrics: MetricsSettings = msgspec.field(default_factory=MetricsSettings)
    limits: LimitSettings = msgspec.field(default_factory=LimitSettings)
    network: WorkerSettings = msgspec.field(default_factory=WorkerSettings)
    journal: JournalSettings = msgspec.field(default_factory=JournalSettings)
    ledgers: LedgerSettings = msgspec.field(default_factory=LedgerSettings)
    disk: DiskSettings = msgspec.field(default_factory=DiskSettings)
    gc: GcSettings = msgspec.field(default_factory=GcSettings)
    scrub: ScrubSettings = msgspec.field(default_factory=ScrubSettings)


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
    settings: WorkerSettings
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


def check(config: BookieConfig) -> None:
    """Refuse what no single field can see is wrong. Raises ConfigError with the first problem."""
    for problem in _problems(config):
        raise ConfigError(problem)


def split_address(text: str, where: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or not host:
        raise ConfigError(f'{where}: "{text}" is not host:port')
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether no other machine can reach `host`. A name but localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _problems(config: BookieConfig) -> Iterator[str]:
    if not config.metadata.uri:
        yield "[metadata] uri is missing: the bookie needs it"
    yield from _directory_problems(config)
    host, port = split_address(config.bookie.listen, "[bookie] listen")
    if not is_loopback(host) and not config.bookie.allow_unauthenticated_remote:
        yield (
            f"[bookie] listen = {config.bookie.listen} is reachable from other machines and"
            " there is no authentication yet: listen on 127.0.0.1, or set"
            " allow_unauthenticated_remote = true"
        )
    if not port and not config.bookie.id:
        yield "[bookie] listen has port 0: give the bookie an id, which must not change"
    if len(config.bookie.id.encode()) > 127:
        yield "[bookie] id is longer than 127 bytes"
    from fastbk.server.supervision.registration_properties import (
        place_problems,
    )  # of no use to the children, who read this too

    yield from place_problems(config.bookie)
    if config.http.listen:
        http_host, _ = split_address(config.http.listen, "[http] listen")
        if not is_loopback(http_host) and not config.bookie.allow_unauthenticated_remote:
            yield (
                f"[http] listen = {config.http.listen} is reachable from other machines: listen on"
                " 127.0.0.1, or set [bookie] allow_unauthenticated_remote = true"
            )
    limits = config.limits
    rings = (("add_ring_size", limits.add_ring_size_bytes, 3),
             ("reply_ring_size", limits.reply_ring_size_bytes, 2),
             ("request_ring_size", limits.request_ring_size_bytes, 0))  # fmt: skip
    for name, size_bytes, frames in rings:
        if size_bytes & (size_bytes - 1):
            yield f"[limits] {name} must be a power of two"
        if size_bytes < frames * limits.frame_size_bytes_max:
            yield f"[limits] {name} must hold {frames} frames of frame_size_max"
    if config.journal.file_size_bytes * 2 > config.journal.limit_bytes:
        yield "[journal] limit must hold at least two files of file_size"
    if config.gc.minor_ratio_max > config.gc.major_ratio_max:
        yield "[gc] minor_ratio_max must not be above major_ratio_max"
    yield from _too_small(config)
    from fastbk.server.disks import space_thresholds

    yield from space_thresholds.problems(config.disk, config.journal)
    needed_bytes, total_bytes = process_table.memory_bytes(config), process_table.memory_total_bytes(config)
    if needed_bytes > total_bytes:
        yield (
            f"the memory settings add up to {format_size(needed_bytes)}, above"
            f" [bookie] memory_total = {format_size(total_bytes)}: shrink caches and rings or raise it"
        )


def _directory_problems(config: BookieConfig) -> Iterator[str]:
    journals, ledgers = config.journal.all_directories, config.ledgers.all_directories
    for name, section in (("journal", config.journal), ("ledgers", config.ledgers)):
        if not all(section.all_directories):
            yield f"[{name}] directory is missing: the bookie needs it"
        if section.directory and section.directories:
            yield f"[{name}] has a directory and directories: give one of the two"
    if len(journals) != len(ledgers):
        yield (
            f"[journal] directories names {len(journals)}, [ledgers] directories {len(ledgers)}: each journal"
            " needs the directory of its index, in the same order"
        )
    if len(journals) > PAIRS_MAX:
        yield f"[journal] directories names {len(journals)}: at most {PAIRS_MAX}"
    everywhere = [os.path.abspath(directory) for directory in (*journals, *ledgers)]
    if len(set(everywhere)) < len(everywhere):
        yield (
            "the directories of [journal] and [ledgers] must be different ones: on one disk put the journal into a"
            " folder of its own, like LEDGERS/journal"
        )


def _too_small(config: BookieConfig) -> Iterator[str]:
    """What has to hold several of something else; below that C would refuse to start."""
    frame_bytes, batch_bytes = (
        config.limits.frame_size_bytes_max,
        config.journal.batch_size_bytes_max,
    )
    if not COLD_FRAME_BYTES <= frame_bytes <= RECORD_BYTES_MAX:
        yield "[limits] frame_size_max must be 16KiB to 31MiB"
    if batch_bytes > RECORD_BYTES_MAX:
        yield "[journal] batch_size_max must be at most 31MiB"
    sizes = (
        ("[journal] first_file_size", config.journal.first_file_size_bytes, 4),
        ("[journal] file_size", config.journal.file_size_bytes, 4),
        ("[network] partial_frames_max", config.network.partial_frames_bytes_max, 2),
        ("[network] reply_backlog_max", config.network.reply_backlog_bytes_max, 1),
        # A batch of the smallest entries takes 9/4 of its bytes there, and is taken in whole.
        ("[ledgers] write_cache_size", config.ledgers.write_cache_size_bytes, 3),
    )
    for name, size_bytes, times in sizes:
        if size_bytes < times * frame_bytes:
            yield (
                f"{name} must hold {times} frames of [limits] frame_size_max,"
                f" {format_size(times * frame_bytes)}, and has {format_size(size_bytes)}"
            )
        if size_bytes < times * batch_bytes and not name.startswith("[network]"):
            yield (
                f"{name} must hold {times} batches of [journal] batch_size_max,"
                f" {format_size(times * batch_bytes)}, and has {format_size(size_bytes)}"
            )
    if config.network.reply_backlog_bytes_max >= GIB:
        yield "[network] reply_backlog_max must be below 1GiB"
    if config.network.unread_replies_bytes_max < config.network.reply_backlog_bytes_max:
        yield "[network] unread_replies_max must not be below reply_backlog_max"
    for name in ("hello_timeout_ms", "frame_timeout_ms", "write_timeout_ms"):
        if getattr(config.network, name) > TIMEOUT_MS_MAX:
            yield f"[network] {name.removesuffix('_ms')} must be at most 1000s"
