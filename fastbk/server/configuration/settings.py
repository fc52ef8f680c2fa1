"""The sections of a bookie's configuration file, one struct each; `fastbk bookie --example` prints their texts.

A setting is added by one field here: its unit is in its name, its range in its type, and the file's key is the name
without the unit (`fastbk.config.key_of`). Read once at start; a change needs a restart.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fastbk.units import GIB, KIB, MIB

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
    0: 300 MiB, 100 MiB more for each worker above one, and 100 MiB and 40 MiB a worker for each
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
