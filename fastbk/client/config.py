"""Settings of a client. Times are seconds, sizes bytes; every default is finite."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypedDict

from fastbk.errors import ConfigError
from fastbk.observe.tracing import Tracing
from fastbk.option_checks import check_fields, check_options
from fastbk.placement.config import PlacementConfig, check_location
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions

UNLIMITED_S = 1e9
"""An explicit "no deadline" for `timeout=`: 31 years. Infinity is refused, event loops cannot count to it."""
LOCATION_VARIABLE = "FASTBK_LOCATION"

_MAY_BE_0 = (
    "explicit_lac_interval",
    "laggard_wait",
    "held_bytes_max",
    "quarantine_errors_max",
    "speculative_read",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What `connect(uri, **options)` takes. `timeout=` of a call goes before the default here."""

    client_name: str = "fastbk"
    """Named to bookies, for their logs."""
    tls: TlsOptions | None = field(default_factory=TlsOptions.from_environment)
    """TLS to bookies; None: in the clear. Left out, the environment says it: FASTBK_TLS, FASTBK_TLS_CA_FILE and so on
    (`fastbk.security.tls`)."""
    credentials: Credentials | None = field(default_factory=Credentials.from_environment)
    """How to authenticate to bookies beside a certificate; None: not. Left out, the environment says it:
    FASTBK_TOKEN_FILE, FASTBK_USER and FASTBK_USER_PASSWORD_FILE (`fastbk.security.credentials`)."""
    namespace: str = ""
    """What new ledgers belong to, unless their metadata says it (`fastbk.namespace`), for tokens that are limited to
    namespaces. Ledgers of streams belong to the stream's."""
    passwords_in_metadata: bool = True
    """False: a new ledger's password is not stored. Nobody finds it in metadata, AutoRecovery and others neither: they
    cannot close the ledger when its writer has died, and bookies do not verify its HMAC digests."""
    connect_timeout: float = 10.0
    """Reaching a bookie, magic and hello included."""
    append_timeout: float = 10.0
    """An add that waits longer for its quorum ends its writer: nothing behind it is acknowledged."""
    read_timeout: float = 10.0
    """A read of one range or batch, over all replicas; while these are only away or busy it asks them again."""
    close_timeout: float = 10.0
    """Closing a writer or the client: flush, metadata, connections."""
    metadata_timeout: float = 10.0
    """One call of the metadata store."""
    entries_in_flight_max: int = 10_000
    """Admitted and not yet acknowledged, for each writer; `append` waits and `append_nowait` raises beyond it."""
    bytes_in_flight_max: int = 32 * 1024 * 1024
    """The same in bytes of data. One entry larger than that is admitted alone."""
    held_bytes_max: int = 32 * 1024 * 1024
    """Acknowledged entries that a missing bookie still lacks are held for it up to this, for each writer."""
    read_batch_bytes: int = 1024 * 1024
    """Wanted size of one answer to a read."""
    read_batch_entries: int = 2_000
    """Most entries in one answer to a read."""
    prefetch_batches: int = 4
    """Answers that an iterating reader may have ready."""
    explicit_lac_interval: float = 0.02
    """A writer that falls idle tells bookies its LAC after this, so that readers see the last entries. 0 = never.
    While the application keeps the event loop from running, a thread does so up to half a second later."""
    laggard_wait: float = 1.0
    """How long `close` waits for reachable bookies beyond the ack quorum."""
    backoff_min: float = 0.02
    backoff_max: float = 1.0
    """Maximum pause between tries to reach a bookie; the pause doubles each time, with jitter."""
    poll_interval: float = 40.0
    """How long a tailing reader's request waits at a bookie, a minute at most: an idle tail costs one request of each
    bookie in that time, or in up to half as much again."""
    probe_timeout: float = 2.0
    """Reaching a bookie that is to take another's place in an ensemble."""
    replace_after: float = 10.0
    """A bookie that a writer can do without is replaced when it has been away for so long: restarts take less."""
    bookie_timeout: float = 5.0
    """A bookie that is connected and leaves an add unanswered for so long counts as away."""
    delayed_ensemble_change: bool = False
    """True: a writer keeps bookies that fail as long as the ack quorum answers without them."""
    ensemble_changes_max: int | None = None
    """Changes of its ensemble that a writer may make; then it goes on with what it has. None: any number."""
    quarantine_errors_max: int = 5
    """So many errors of a bookie within `quarantine_interval` keep it out of new fragments. 0 = never."""
    quarantine_interval: float = 10.0
    quarantine_time: float = 30.0
    """How long new fragments avoid a bookie in quarantine, if there are others."""
    speculative_read: float = 0.5
    """A read that waits so long for one bookie asks the next one as well. 0 = never."""
    parallel_reads: bool = False
    """True: reads ask all bookies that hold an entry at once and take the first answer."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """How bookies are chosen for ledgers and in place of others, unless `create_ledger` says otherwise."""
    topology: Mapping[str, str] = field(default_factory=dict)
    """Where bookies are: id, host, or the beginning of one and a star -> `/region/rack`. It goes before the script."""
    topology_script: str | None = None
    """An executable that prints a location for each host it is given; it goes before what bookies say themselves."""
    location: str = field(default_factory=lambda: os.environ.get(LOCATION_VARIABLE, ""))
    """Where this client is, `/region/rack`: it reads from near bookies first. Left out, the environment says it:
    FASTBK_LOCATION; then the tables by this host's name or address, then a bookie that runs on this host."""

    tracing: Tracing | None = None
    """Which appends and records have spans of OpenTelemetry (`fastbk.observe.tracing`); None: none."""

    apache_protocol: str = "v3"
    """Version of Apache's protocol for adds and plain reads of bookies that speak no other: "v3" or "v2"."""
    apache_frame_size_bytes_max: int = 5 * 1024 * 1024
    """Largest frame to and from those bookies: what they have as nettyMaxFrameSizeBytes."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.credentials is not None:
            self.credentials.check(is_encrypted=self.tls is not None)
        if self.location:
            object.__setattr__(self, "location", check_location(self.location))
        if self.apache_protocol not in ("v2", "v3"):
            raise ConfigError(f"apache_protocol={self.apache_protocol!r}: must be v2 or v3")
        if not 4096 <= self.apache_frame_size_bytes_max <= 1 << 30:
            size = self.apache_frame_size_bytes_max
            raise ConfigError(f"apache_frame_size_bytes_max={size!r}: must be 4 KiB to 1 GiB")
        for one in fields(self):
            value = getattr(self, one.name)
            if not isinstance(one.default, int | float) or isinstance(one.default, bool):
                continue
            low = 0 if one.name in _MAY_BE_0 else 1e-9
            if not low <= value <= 1e15:
                raise ConfigError(f"{one.name}={value!r}: must be above 0 and finite")


class ClientOptions(TypedDict, total=False):
    """What `connect(uri, **options)` takes, by name; `ClientConfig` has their meanings and defaults."""

    client_name: str
    tls: TlsOptions | None
    credentials: Credentials | None
    namespace: str
    passwords_in_metadata: bool
    connect_timeout: float
    append_timeout: float
    read_timeout: float
    close_timeout: float
    metadata_timeout: float
    entries_in_flight_max: int
    bytes_in_flight_max: int
    held_bytes_max: int
    read_batch_bytes: int
    read_batch_entries: int
    prefetch_batches: int
    explicit_lac_interval: float
    laggard_wait: float
    backoff_min: float
    backoff_max: float
    poll_interval: float
    probe_timeout: float
    replace_after: float
    bookie_timeout: float
    delayed_ensemble_change: bool
    ensemble_changes_max: int | None
    quarantine_errors_max: int
    quarantine_interval: float
    quarantine_time: float
    speculative_read: float
    parallel_reads: bool
    placement: PlacementConfig
    topology: Mapping[str, str]
    topology_script: str | None
    location: str
    tracing: Tracing | None
    apache_protocol: str
    apache_frame_size_bytes_max: int


def config_of(options: ClientOptions) -> ClientConfig:
    """Return the configuration of `options`. Raises ConfigError for an unknown name, a wrong type or value."""
    check_options(options, ClientOptions)
    return ClientConfig(**options)
