"""The sections of a bookie's configuration file, one struct each; `fastbk bookie --example` prints their texts.

A setting is added by one field here: its unit is in its name, its range in its type, and the file's key is the name
without the unit (`fastbk.config.key_of`). Read once at start; a change needs a restart. The sections that say who is
served are in `fastbk/security/settings.py`, [metadata] is in `fastbk/config.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec

from fastbk.errors import ConfigError
from fastbk.units import GIB, KIB, MIB, parse_size

Count = Annotated[int, msgspec.Meta(ge=1)]
Size = Annotated[int, msgspec.Meta(ge=4 * KIB, le=1 << 50)]
Ratio = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]


class BookieSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [bookie]: who it is and where it listens."""

    listen: str = "127.0.0.1:3181"
    """Address and port; port 0 takes a free one (the id then needs to be given)."""

    id: str = ""
    """Its name in metadata, for good: ledgers name it. Empty: `listen`."""

    advertised: str = ""
    """The host that clients are told. Empty: that of `listen`."""

    location: str = ""
    """Where it stands, for choosing bookies that do not fail together: `/region/rack`, `/rack`, or
    `/zone/upgrade-domain`. Empty: clients' own topology says it, else all share one place.
    """

    labels: tuple[str, ...] = ()
    """Groups it belongs to: ledgers may be pinned to bookies with a label."""

    workers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    """Network processes. 0: a quarter of the cores, at least 1 and at most 16."""

    processors: tuple[Annotated[int, msgspec.Meta(ge=0, le=4095)], ...] = ()
    """By number, those that workers and journals keep to; empty: any. `fastbk doctor` names those that the journal's
    disk interrupts: an add that waits alone is faster there (docs/performance.md).
    """

    spin_us: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """So long, at most, a journal polls for its disk and a worker for its journal instead of sleeping, and only while
    an add is under way; 0: never. Journals then have `processors` to themselves; all else keeps to the others.
    """

    confinement: Literal["auto", "require", "off"] = "auto"
    """Workers, journals, indexes and gc give up what they do not need: paths (Landlock) and system calls (seccomp).
    `auto`: as far as the kernel can; `require`: else the bookie does not start; `off`: for debuggers that it disturbs.
    """

    allow_unauthenticated_remote: bool = False
    """Whether the bookie listens beyond loopback although its clients need not authenticate. It lets strangers use the
    pages of [http], too, as long as they may use `listen`: once that requires authentication, [http] has to say itself
    who is served.
    """

    read_only: bool = False
    """No normal adds, ever: for a bookie that is to be emptied. Reads, recovery adds and fences go on."""

    read_only_persists: bool = False
    """Whether what an operator asked by `PUT /api/v1/bookie/state/readonly` is kept over a restart."""

    restarts_max: Count = 10
    """So many deaths of children within `restarts_window` end in a bookie that only serves reads,
    without journal and gc, until its next try or a restart by hand.
    """

    restarts_window_s: Count = 60

    crash_loop_pause_min_ms: Milliseconds = 30_000
    """After so long a bookie that only serves reads tries a whole start. Each failed try doubles the pause."""

    crash_loop_pause_max_ms: Milliseconds = 600_000
    """The longest such pause."""

    drain_timeout_ms: Milliseconds = 10_000
    """Longest clean stop on SIGTERM; what is not done by then is killed, and replayed at the next start."""

    start_timeout_ms: Milliseconds = 300_000
    """Longest replay before the start counts as failed."""

    memory_total_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Start-up refuses settings whose sum (`fastbk.server.process_table.memory_table`) is above this.
    0: 364 MiB, 100 MiB more for each worker above one, and 164 MiB and 40 MiB a worker for each
    journal/index pair above one.
    """


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [metrics]: what /metrics shows."""

    names: Literal["all", "apache", "fastbk"] = "all"
    """Of Apache's names and our own, both or one; a scrape chooses otherwise by /metrics?names=...."""

    legacy_names: bool = True
    """Also the names that ended in _COUNT before Apache's 4.16; dashboards still mix both."""

    latency_window_s: Annotated[int, msgspec.Meta(ge=6, le=3600)] = 60
    """Quantiles are of this long, and up to a sixth more."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [limits]: bounds that several processes must agree on (INV-B1)."""

    frame_size_bytes_max: Size = 5 * MIB + 4 * KIB
    """Longest frame in either direction, its length field included: 16KiB to 31MiB. Rings must hold several."""

    batch_entries_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 4096
    """Entries in one AddBatch."""

    ledgers_max: Count = 1_000_000
    """Ledgers a bookie may hold; about 160 bytes of memory each, in journal and index together.
    `memory_total` counts the first 10,000 of them: what more of them take comes on top.
    """

    unconfirmed_ledgers_max: Count = 100_000
    """Of these, ledgers that metadata was never seen to list; at most half of `ledgers_max`. With so
    many of them a bookie takes only new ledgers that metadata lists, some seconds later.
    """

    add_ring_size_bytes: Size = 32 * MIB
    """Each worker's ring to journal and index: at least three of the largest frames."""

    request_ring_size_bytes: Size = 4 * MIB
    reply_ring_size_bytes: Size = 16 * MIB
    """Each worker's ring of encoded replies: at least two of the largest."""


def unconfirmed_ledgers_max(limits: LimitSettings) -> int:
    """Return how many ledgers a journal takes that metadata was never seen to list (INV-G6)."""
    return max(1, min(limits.unconfirmed_ledgers_max, limits.ledgers_max // 2))


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [network]: each worker's bounds."""

    connections_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 4096
    """Above it a new connection is closed at once and counted."""

    keep_alive_idle_s: Annotated[int, msgspec.Meta(ge=0, le=32_767)] = 0
    """After so long without a word the system asks whether the client's machine is still there. 0: the system's own
    setting, mostly two hours.
    """

    keep_alive_interval_s: Annotated[int, msgspec.Meta(ge=0, le=32_767)] = 0
    """Between two such questions. 0: the system's own setting."""

    keep_alive_questions_max: Annotated[int, msgspec.Meta(ge=0, le=127)] = 0
    """So many without an answer end the connection. 0: the system's own setting."""

    pending_requests_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 16_384
    """Unanswered requests of one connection; the bookie then stops reading it."""

    partial_frames_bytes_max: Size = 64 * MIB
    """All frames that are not complete yet, over all connections of a worker. Beyond it a connection waits for
    memory, and slow frames are closed, the slowest first."""

    reply_backlog_bytes_max: Size = 8 * MIB
    """Replies that one connection of our protocol does not read; beyond it the connection is cut. Apache's
    clients request any number of entries at once: for them only `unread_replies_max` counts.
    """

    unread_replies_bytes_max: Size = 128 * MIB
    """All replies that clients have not read yet, over all connections of a worker. Beyond it a connection is cut: the
    one with the most, first of those that do not read at all."""

    write_timeout_ms: Milliseconds = 60_000
    """A connection that reads less than 4 KiB of its replies in this time is cut."""

    hello_timeout_ms: Milliseconds = 10_000
    """From the first byte to a complete hello, or to the end of a TLS handshake. Where clients authenticate themselves:
    from the beginning of a connection until its client has."""

    frame_timeout_ms: Milliseconds = 30_000
    """Longest pause in a frame, and the time for a small one. Each byte of a frame adds 1/`frame_rate_min` s."""

    frame_rate_bytes_min: Annotated[int, msgspec.Meta(ge=1, le=GIB)] = 16 * KIB
    """Bytes per second. A frame that arrives more slowly, after `frame_timeout`, ends its connection."""

    turn_frames_max: Annotated[int, msgspec.Meta(ge=16, le=1 << 20)] = 16_384
    """Frames that are taken from one connection before others have their turn. A refused one counts as 16."""

    turn_size_bytes_max: Annotated[int, msgspec.Meta(ge=4 * KIB, le=GIB)] = 4 * MIB
    """The same in bytes."""

    apache_requests_max: Annotated[int, msgspec.Meta(ge=16, le=1 << 20)] = 32_768
    """Unanswered requests of a worker's clients that speak Apache's protocols; 112 bytes each. Beyond it the bookie
    stops reading them."""

    apache_batch_read_bytes_max: Size = 5 * MIB
    """Most that a batch read over Apache's version 2 is answered with, as Apache counts it."""

    apache_digests_max: Annotated[int, msgspec.Meta(ge=64, le=1 << 24)] = 65_536
    """Ledgers of those clients whose type of digest a worker remembers, 16 bytes each; a power of two, else the
    next one below counts. Of more that are written to at once some entries are not verified on the way in."""

    apache_adds_pending_max: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """Unanswered adds of those clients, over all of a worker's connections; beyond it ETOOMANYREQUESTS, but not to
    repairs and others of high priority. 0: no such bound; credit and rings make writers wait.
    """

    apache_reads_pending_max: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """The same for reads; long polls are not counted."""

    apache_adds_in_progress_max: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """Unanswered adds of those clients, beyond which the bookie stops reading whoever sends another one. 0: no such
    bound.
    """

    apache_reads_in_progress_max: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """The same for reads."""


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

    adopt: Literal["auto", "never"] = "auto"
    """`auto`: entries that come in large pieces stay in the journal's files, which become entry logs, and are written
    once: where journal and ledgers share a file system, the journal is synced and the cluster's format level has it.
    `never`: each entry is written to the journal, and again to an entry log.
    """

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


Bound = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]

QUOTA_NAMES = ("connections_max", "adds_rate", "data_rate", "ledgers_rate")
"""What an exception may change."""


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [quotas]: what each principal may take of this bookie. Needs [authentication]; 0: no bound."""

    connections_max: Bound = 0
    """Connections of a principal. One more is refused."""

    adds_rate: Bound = 0
    """Entries a second that a principal may add, over all its connections. Beyond it the bookie reads them more slowly.
    """

    data_rate_bytes: Bound = 0
    """Bytes of entries a second, in the same way."""

    ledgers_rate: Bound = 0
    """Ledgers a second that a principal may begin, in the same way. Each worker remembers about 4,096 ledgers that a
    principal added to or fenced last. An add to another ledger, a recovery add too, or its fence begins it.
    """

    exceptions: tuple[str, ...] = ()
    """Other bounds for some: a pattern of principals and what differs, such as `user:batch-* adds_rate=100
    data_rate=1MiB connections_max=4`. The first that matches counts.
    """


class Quota(msgspec.Struct, frozen=True):
    """The bounds of one principal; 0: none."""

    connections_max: int = 0
    adds_rate: int = 0
    data_rate: int = 0
    ledgers_rate: float = 0

    def share(self, workers: int) -> Quota:
        """Return the bounds of one of so many workers: whole numbers rounded up, and the exact part of `ledgers_rate`.

        Rates of ledgers are small: rounded up they would be several times as much.
        """
        parts = (self.connections_max, self.adds_rate, self.data_rate)
        connections_max, adds_rate, data_rate = (-(-part // workers) for part in parts)
        return Quota(connections_max, adds_rate, data_rate, self.ledgers_rate / workers)


def has_quotas(settings: QuotaSettings) -> bool:
    """Return whether anybody has a bound."""
    return settings != QuotaSettings()


def rules_of(settings: QuotaSettings) -> list[tuple[str, Quota]]:
    """Return patterns and their bounds, in the order in which they count. Raises ConfigError."""
    usual = Quota(
        settings.connections_max,
        settings.adds_rate,
        settings.data_rate_bytes,
        settings.ledgers_rate,
    )
    rules = [_exception(text, usual) for text in settings.exceptions]
    return [*rules, ("*", usual)]


def quota_of(rules: list[tuple[str, Quota]], principal: str) -> Quota:
    """Return the bounds of a principal."""
    return next(quota for pattern, quota in rules if fnmatchcase(principal, pattern))


def quota_problems(settings: QuotaSettings, *, has_names: bool) -> Iterator[str]:
    """Yield what is wrong. `has_names`: clients are authenticated."""
    try:
        rules_of(settings)
    except ConfigError as error:
        yield f"[quotas] exceptions: {error.message}"
    if has_quotas(settings) and not has_names:
        yield "[quotas] needs [authentication] methods: nobody has a name without them"


def _exception(text: str, usual: Quota) -> tuple[str, Quota]:
    pattern, *words = text.split()
    quota = usual
    for word in words:
        name, _, value = word.partition("=")
        if name not in QUOTA_NAMES:
            raise ConfigError(f"{text!r}: {name!r} is none of {', '.join(QUOTA_NAMES)}")
        try:
            amount = 0 if value == "0" else parse_size(value) if name == "data_rate" else int(value)
        except ValueError as error:
            raise ConfigError(f"{text!r}: {error}") from None
        if not 0 <= amount <= 1 << 40:
            raise ConfigError(f"{text!r}: {name} must be 0 to 2^40")
        quota = msgspec.structs.replace(quota, **{name: amount})
    if not words:
        raise ConfigError(f"{text!r}: write PATTERN and what differs, such as adds_rate=100")
    return pattern, quota
