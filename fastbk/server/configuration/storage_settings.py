"""The sections of a bookie's configuration file that say how it stores: journal, ledgers, disks, gc, scrub.

As in `settings.py`, which has the others and says how a setting is added.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fastbk.server.configuration.settings import Milliseconds, Ratio, Size
from fastbk.units import GIB, KIB, MIB


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [journal]."""

    directory: str = ""
    """Where journal files lie; a disk of its own is worth it. Made if missing."""

    directories: tuple[str, ...] = ()
    """Instead of `directory`: those of several journals, up to 8, each with the index of the same place in
    `[ledgers] directories`. Ledgers are spread over these pairs by their ids. The order is for good; more
    pairs are added by `fastbk bookie expand`.
    """

    @property
    def all_directories(self) -> tuple[str, ...]:
        """One for each pair."""
        return self.directories or (self.directory,)

    backend: Annotated[str, msgspec.Meta(pattern="^(auto|io_uring|plain)$")] = "auto"
    """How disks are written: `auto` chooses by a probe with real writes."""

    sync: Annotated[str, msgspec.Meta(pattern="^(always|never)$")] = "always"
    """`never`: adds are acknowledged before they are durable, for test clusters and for data that its
    writers can make again. After a crash such a bookie says of no ledger that something is missing,
    and takes no adds to the ledgers it had, until they are repaired or found whole.
    """

    limit_bytes: Annotated[int, msgspec.Meta(ge=32 * MIB)] = 512 * MIB
    """Most journal behind the mark: bounds replay time; beyond it only fences and recovery adds."""

    first_file_size_bytes: Annotated[int, msgspec.Meta(ge=4 * MIB)] = 64 * MIB
    """The first file's size: small, since it is written with zeros before the bookie is ready."""

    file_size_bytes: Annotated[int, msgspec.Meta(ge=16 * MIB, le=4 * GIB)] = 128 * MIB
    """Later files' size, zeroed ahead or recycled."""

    batch_size_bytes_max: Size = 1 * MIB
    """A batch is written once it holds this much, at most 31MiB. It has at least one record, whatever its size."""

    second_batch_bytes_min: Annotated[int, msgspec.Meta(ge=0)] = 64 * KIB
    """A second batch is submitted behind the one under way once this much waits."""


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [ledgers]: what the index process keeps and caches."""

    directory: str = ""
    """Where entry logs and locations lie. Made if missing."""

    directories: tuple[str, ...] = ()
    """Instead of `directory`: one for each of `[journal] directories`. Caches are divided among them."""

    @property
    def all_directories(self) -> tuple[str, ...]:
        """One for each pair."""
        return self.directories or (self.directory,)

    write_cache_size_bytes: Size = 48 * MIB
    """Memory of one of the two write caches: one fills while the other is flushed."""

    read_cache_size_bytes: Size = 16 * MIB
    block_cache_size_bytes: Size = 8 * MIB
    entry_log_size_bytes: Annotated[int, msgspec.Meta(ge=1 * MIB)] = 1 * GIB
    """An entry log is appended to until it holds this much; it is deleted only as a whole."""

    merge_rate_bytes: Annotated[int, msgspec.Meta(ge=1 * MIB)] = 64 * MIB
    """A second, read and written by merges of locations and by counting what lives, at most; more while they lag."""

    readers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Threads that read disks; also the most reads a disk sees at once."""

    read_jobs_max: Annotated[int, msgspec.Meta(ge=16, le=65_536)] = 1024
    """Reads that wait for a disk or a thread; above it TOO_MANY_REQUESTS."""

    waiters_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 65_536
    """Long polls that wait for a LAC."""

    flush_interval_ms: Milliseconds = 60_000
    """A cache that is never full is flushed after this long, so that a restart replays little."""


class DiskSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [disk]: when a directory's disk is full, failing or slow, and what is refused then."""

    warn_ratio: Ratio = 0.90
    """Above this share of use it is said (log, metric, `/readyz`), and nothing else happens. 1.0: never."""

    full_ratio: Ratio = 0.95
    """Above it a ledger directory takes no normal adds; recovery adds and fences go on. 1.0: never."""

    low_water_ratio: Ratio = 0.90
    """Below it that ends."""

    free_bytes_min: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The same by free bytes, whatever the share. 0: one and a half times what a flush of a full journal may need."""

    high_priority_free_bytes_min: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Below this much free space recovery adds and fences are refused too. 0: one and a quarter times what a
    flush of a full journal may need; what is kept is for that flush and for compaction.
    """

    check_interval_ms: Milliseconds = 10_000
    """Between two looks at a disk."""

    near_check_interval_ms: Milliseconds = 1_000
    """The same while something is wrong with it or about to be."""

    slow_commit_ms: Milliseconds = 250
    """A journal's disk that needs longer for half of its commits is called slow."""

    slow_flush_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4 * MIB
    """A ledger directory's disk that takes fewer bytes per second in a flush is called slow."""


class GcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [gc]: what is deleted and when, and how space that it leaves is won back."""

    interval_ms: Milliseconds = 60_000
    """Between two looks for ledgers that metadata no longer lists; longer where a look takes long, so that looking
    takes at most a twentieth of the time.
    """

    delete_ratio_max: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    """At most this share of the ledgers here is deleted in one cycle: more is likelier the wrong
    metadata store than the truth. 1.0 allows everything; `fastbk bookie gc run --force` allows it once.
    """

    unchecked_ledgers_max: Annotated[int, msgspec.Meta(ge=0)] = 20
    """With no more ledgers than this the share does not matter."""

    listing_rate: Annotated[int, msgspec.Meta(ge=1)] = 50_000
    """Ids a second that are listed from metadata, at most, in pages with pauses."""

    lookup_rate: Annotated[int, msgspec.Meta(ge=1)] = 200
    """Ledgers a second whose metadata is read to find copies here that it counts on no more, at most; each local ledger
    once every `over_replicated_age`.
    """

    unconfirmed_age_ms: Annotated[int, msgspec.Meta(ge=100, le=86_400_000)] = 600_000
    """A ledger that metadata was never seen to list is forgotten when metadata has not listed it for so long, or for
    `interval` where it is proven that metadata did not go back. Metadata that is away, or on hold after a rollback,
    stops that clock.
    """

    over_replicated_age_ms: Annotated[int, msgspec.Meta(ge=1, le=31 * 86_400_000)] = 86_400_000
    """A copy of a closed ledger goes when metadata did not name this bookie for so long, and nothing was written to it
    here meanwhile. Must be far longer than a repair of one ledger may stand still.
    """

    minor_ratio_max: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.2
    """Minor compaction moves what lives in entry logs of which a smaller share than this lives."""

    minor_interval_ms: Annotated[int, msgspec.Meta(ge=1, le=31 * 86_400_000)] = 3_600_000
    major_ratio_max: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.5
    """The same for major compaction, which begins more rarely and moves more."""

    major_interval_ms: Annotated[int, msgspec.Meta(ge=1, le=31 * 86_400_000)] = 86_400_000
    compaction_rate_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB)] = 32 * MIB
    """A second, read and written by compaction, at most."""

    compaction_time_max_ms: Annotated[int, msgspec.Meta(ge=1, le=31 * 86_400_000)] = 3_600_000
    """A compaction that is not done by then stops where it is; the rest is for the next one."""


class ScrubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [scrub]: what is stored is read again now and then, to find damage while other replicas are whole."""

    cycle_ms: Annotated[int, msgspec.Meta(ge=1000, le=366 * 86_400_000)] = 7 * 86_400_000
    """Everything is looked at once in so long, as evenly as can be."""

    rate_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 * MIB
    """A second, read at most, however long the cycle gets by that; 0 switches the scrub off."""
