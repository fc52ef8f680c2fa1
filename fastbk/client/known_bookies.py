"""What one client knows of the bookies: where they are, which data they stand for, which failed lately.

Both clients keep one. A bookie that fails again and again is put in quarantine for a time: new fragments avoid it while
there are others; what it holds already is read from it and written to it as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias

from msgspec.structs import replace

from fastbk.client.config import ClientConfig
from fastbk.errors import ConfigError
from fastbk.meta.api import (
    READS_ONLY_PROPERTY,
    REASON_CHARACTERS_MAX,
    BadIdentity,
    BookieIdentity,
    BookieRegistration,
    Endpoint,
)
from fastbk.model.ids import BookieId
from fastbk.observe.library_log import LibraryLog
from fastbk.placement.config import (
    DEFAULT_LOCATION,
    BookieView,
    Distance,
    Topology,
    distance_of,
    locations_printed,
    valid_labels,
    valid_location,
)
from fastbk.placement.rules import ClusterPlaces
from fastbk.wire.statuses import Status, status_name

_log = LibraryLog("fastbk.client")

SUSPECT_S = 5.0
Distances: TypeAlias = Mapping[BookieId, Distance]


class KnownBookies:
    """Bookies as the metadata store and the connections tell of them. Times are seconds of any one clock."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._listed: dict[BookieId, BookieRegistration] = {}
        self._registered: frozenset[BookieId] = frozenset()
        self._listed_s: float | None = None
        self.updates = 0
        """How often the list was read."""
        self._incarnations: dict[BookieId, int] = {}
        self._gone: set[BookieId] = set()
        self._counting_on_old: dict[BookieId, frozenset[int]] = {}
        self._failed_s: dict[BookieId, float] = {}
        self._failures_s: dict[BookieId, deque[float]] = {}
        self._quarantined_until_s: dict[BookieId, float] = {}
        self.without_batches: set[BookieId] = set()
        """Bookies of Apache's that do not know its request for several entries."""
        self.with_batches: set[BookieId] = set()
        """Those that have answered one."""
        self.locations = BookieLocations.of(config.topology, config.topology_script)
        """Whoever lists bookies has it learn about `hosts()`."""
        self._distances: tuple[Distances, Distances] | None = None
        self._locations_known = 0

    # --- where they are ----------------------------------------------------------------------------------------

    def update(self, found: Sequence[BookieRegistration], now_s: float) -> bool:
        """Take the list of those registered now; return whether another set of them takes adds than before."""
        before = self._writable()
        self.updates += 1
        self._listed.update({one.service.bookie_id: one for one in found})
        self._registered = frozenset(one.service.bookie_id for one in found)
        self._listed_s = now_s
        self._forget_distances()
        return self._writable() != before

    def _writable(self) -> frozenset[BookieId]:
        return frozenset(one for one in self._registered if self._listed[one].writable)

    def read_only(self) -> frozenset[BookieId]:
        """Return those that are registered as read-only."""
        return self._registered - self._writable()

    def age_s(self, now_s: float) -> float:
        """Return how long ago the list was read; infinite before the first time."""
        return float("inf") if self._listed_s is None else now_s - self._listed_s

    def is_registered(self, bookie_id: BookieId) -> bool:
        """Whether it was in the list that was read last."""
        return bookie_id in self._registered

    def listed(self) -> list[BookieRegistration]:
        """Return the last known registration of each bookie. Any thread may ask."""
        return list(self._listed.values())

    def endpoint(self, bookie_id: BookieId) -> Endpoint | None:
        """Return where it listens, or did when it was last registered."""
        known = self._listed.get(bookie_id)
        return None if known is None else known.service.client_endpoint()

    # --- whose data --------------------------------------------------------------------------------------------

    def check_incarnation(
        self, bookie_id: BookieId, incarnation: int, writers: Collection[int] = ()
    ) -> str | None:
        """Return why the bookie may not be used: its data is not what this client's writers count on.

        `writers`: those that are open, by slot. Whoever was open when the loss was noticed may have acknowledgements of
        the old data; when the last of them has ended, the new data is as good as any other bookie's.
        """
        if not incarnation and bookie_id not in self._incarnations:
            return None  # Apache's bookies say nothing of it
        if self._incarnations.setdefault(bookie_id, incarnation) != incarnation:
            counting = self._counting_on_old.setdefault(bookie_id, frozenset(writers))
            if not counting.isdisjoint(writers):
                self._gone.add(bookie_id)
                return "it came back without its data (another incarnation)"
            del self._counting_on_old[bookie_id]
            self._incarnations[bookie_id] = incarnation
        self._gone.discard(bookie_id)
        return None

    def is_gone(self, bookie_id: BookieId) -> bool:
        """Whether the data that this client knew under that id is lost: its hello or its registration said so."""
        if bookie_id in self._gone:
            return True
        known, seen = self._listed.get(bookie_id), self._incarnations.get(bookie_id)
        return known is not None and seen is not None and known.service.incarnation != seen

    # --- which failed ------------------------------------------------------------------------------------------

    def failed(self, bookie_id: BookieId, now_s: float) -> None:
        """Count an error of the bookie's: it was not reached, went silent, or could not read or write."""
        self._failed_s[bookie_id] = now_s
        limit = self._config.quarantine_errors_max
        if not limit:
            return
        times = self._failures_s.setdefault(bookie_id, deque(maxlen=limit))
        times.append(now_s)
        if len(times) == limit and now_s - times[0] <= self._config.quarantine_interval:
            self._quarantined_until_s[bookie_id] = now_s + self._config.quarantine_time

    @property
    def has_suspects(self) -> bool:
        """Whether any has ever failed."""
        return bool(self._failed_s)

    def is_suspect(self, bookie_id: BookieId, now_s: float) -> bool:
        """Whether it failed within the last seconds, so that others are asked first."""
        failed_s = self._failed_s.get(bookie_id)
        return failed_s is not None and now_s - failed_s < SUSPECT_S

    def quarantine(self, bookie_id: BookieId, now_s: float) -> None:
        """Have new fragments avoid a bookie that a writer had to replace."""
        if self._config.quarantine_errors_max:
            self._quarantined_until_s[bookie_id] = now_s + self._config.quarantine_time

    def quarantined(self, now_s: float) -> list[BookieId]:
        """Return those that new fragments avoid now."""
        over = [one for one, until_s in self._quarantined_until_s.items() if until_s <= now_s]
        for bookie_id in over:
            del self._quarantined_until_s[bookie_id]
            self._failures_s.pop(bookie_id, None)
        return sorted(self._quarantined_until_s)

    def describe_trouble(self, bookie_id: BookieId, reason: str) -> str:
        """Return `reason`; for READ_ONLY with the cause that the bookie has published."""
        listed = self._listed.get(bookie_id)
        if listed is None or reason != status_name(Status.READ_ONLY):
            return reason
        cause = reads_only_reason(listed)
        return f"{reason}: {cause}" if cause else reason

    # --- how far they are --------------------------------------------------------------------------------------

    async def learn_locations(self) -> None:
        """Have the operator's script asked, if there is one."""
        if self.locations.script is not None:
            own: list[tuple[BookieId, str]] = []
            if not self._config.location:
                own = [("", socket.gethostname())]
            await self.locations.learn([*self.hosts(), *own])
            self._forget_distances()

    def take_places(self, places: ClusterPlaces) -> None:
        """Take what the cluster's operators say of where bookies are."""
        self.locations.cluster = places
        self._forget_distances()

    def _forget_distances(self) -> None:
        self._locations_known += 1
        self._distances = None

    def distance(self, bookie_id: BookieId) -> Distance:
        """Return how far a bookie is, as far as it is known by now."""
        return self._all_distances()[0].get(bookie_id, Distance.UNKNOWN)

    def differing_distances(self) -> Distances:
        """Return how far those are that were ever listed; nothing where all are as far, so that no order is made."""
        return self._all_distances()[1]

    def _all_distances(self) -> tuple[Distances, Distances]:
        """Return both. Any thread may ask."""
        known = self._distances
        if known is not None:
            return known
        number = self._locations_known
        views = [view_of(one, places=self.locations) for one in self.listed()]
        here = self._location(views)
        distances = {
            view.bookie_id: distance_of(here, view.location, is_same_host=view.is_local)
            for view in views
        }
        known = distances, distances if len(set(distances.values())) > 1 else {}
        if number == self._locations_known:  # else the loop has learned more than this thread saw
            self._distances = known
        return known

    def _location(self, views: Sequence[BookieView]) -> str:
        """Return where this client is: by its options, a table or script, a bookie on this host; "": nobody says."""
        if self._config.location:
            return self._config.location
        for host in own_hosts(host for _, host in self.hosts()):
            location = self.locations.location_of_client(host)
            if location is not None:
                return location
        places = {view.location for view in views if view.is_local} - {DEFAULT_LOCATION}
        return places.pop() if len(places) == 1 else ""

    # --- for placement -----------------------------------------------------------------------------------------

    def hosts(self) -> list[tuple[BookieId, str]]:
        """Return the registered bookies with their hosts."""
        listed = (self._listed[one] for one in sorted(self._registered))
        found = ((one.service.bookie_id, one.service.client_endpoint()) for one in listed)
        return [(bookie_id, endpoint.host) for bookie_id, endpoint in found if endpoint is not None]

    def views(self, now_s: float) -> list[BookieView]:
        """Return what placement has to know of each registered bookie that can be reached."""
        quarantined = set(self.quarantined(now_s))
        listed = (self._listed[one] for one in sorted(self._registered))
        return [
            view_of(
                one,
                quarantined=one.service.bookie_id in quarantined,
                places=self.locations,
            )
            for one in listed
            if one.service.client_endpoint() is not None
        ]

    def away_views(self, identities: Sequence[BookieIdentity | BadIdentity]) -> list[BookieView]:
        """Return what placement has to know of bookies that are not registered and were once.

        Those that this client saw registered come first: they are the likeliest to return.
        """
        seen = sorted(self._listed.keys() - self._registered)
        others = {identity.bookie_id for identity in identities} - self._listed.keys()
        views = [view_of(self._listed[one], places=self.locations) for one in seen]
        for bookie_id in sorted(others):
            location = self.locations.location_of(bookie_id, "")
            groups = self.locations.groups_of(bookie_id, "")
            views.append(
                BookieView(bookie_id, location=location or DEFAULT_LOCATION, labels=groups)
            )
        return [replace(view, writable=True) for view in views]

    def members(self, bookie_ids: Collection[BookieId]) -> list[BookieView]:
        """Return where the bookies of an ensemble are, or were when they were registered, as far as that is known."""
        views = []
        for bookie_id in bookie_ids:
            listed = self._listed.get(bookie_id)
            if listed is not None:
                views.append(view_of(listed, places=self.locations))
            elif (location := self.locations.location_of(bookie_id, "")) is not None:
                groups = self.locations.groups_of(bookie_id, "")
                views.append(BookieView(bookie_id, location=location, labels=groups))
        return [replace(view, writable=False) for view in views]

    def expect(self, identities: Sequence[BookieIdentity | BadIdentity]) -> None:
        """Have writers count on the data that these bookies have now.

        One that comes back without its data is then replaced before an add is sent to it: the ledger is in limbo
        there, and a normal add would be refused as if the ledger was fenced (INV-X4).
        """
        for identity in identities:
            if isinstance(identity, BookieIdentity):
                self._incarnations.setdefault(identity.bookie_id, identity.incarnation)


# --- network locations ----------------------------------------------------------------------------
#
# Where bookies are, as this client's configuration or a script of the operator's says it.
#
# The script gets hosts as arguments and prints one location for each, in order: `/region/rack`. It
# runs in batches, with a deadline, and its answers are kept. A script that fails is a problem of
# its own: bookies then are where they say themselves, or at the default location; the failure is
# counted, told once, and the script is run again later.


BATCH_HOSTS_MAX = 100
OUTPUT_BYTES_MAX = 1 << 20
HOSTS_KEPT_MAX = 10_000

# Never an option of the script's: a host comes from the metadata store, where any bookie can write it.
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:\-\[\]%]{0,254}")


class TopologyScript:
    """A script that tells locations. Its calls block and may come from any thread; one runs at a time."""

    def __init__(
        self,
        path: str | Path,
        *,
        timeout_s: float = 10.0,
        batch_hosts: int = BATCH_HOSTS_MAX,
        retry_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it; nothing is run yet.

        Args:
            path: an executable file.
            timeout_s: longest run of one batch; above 0, at most an hour. It is killed then, with all it started.
            batch_hosts: most hosts in one run, 1..1000.
            retry_s: hosts that a run had no location for are asked for again after this.
            clock: seconds, for `retry_s`.
        """
        if not os.access(path, os.X_OK) or not Path(path).is_file():
            raise ConfigError(f"topology script {path}: it is no executable file")
        if not 0 < timeout_s <= 3600 or retry_s < 0:
            raise ConfigError(
                f"topology script: timeout_s={timeout_s}: must be above 0, up to 3600"
            )
        if not 1 <= batch_hosts <= 1000:
            raise ConfigError(f"topology script: batch_hosts={batch_hosts}: must be 1..1000")
        self.path = Path(path)
        self.runs = 0
        """Runs so far."""
        self.failures = 0
        """Runs that ended badly, ran out of time or printed something else."""
        self.last_failure = ""
        """Why the last of these did."""
        self._timeout_s = timeout_s
        self._batch_hosts = batch_hosts
        self._retry_s = retry_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._unknown_until_s: dict[str, float] = {}
        self._has_logged_failure = False

    def location_of(self, host: str) -> str | None:
        """Return what is known of `host` by now; never runs anything."""
        return self._known.get(host)

    def learn(self, hosts: Collection[str]) -> None:
        """Ask the script for those of `hosts` that are not known; returns when all were asked. Raises nothing."""
        with self._lock:
            now_s = self._clock()
            wanted = [
                host
                for host in dict.fromkeys(hosts)
                if host not in self._known
                and self._unknown_until_s.get(host, now_s) <= now_s
                and _HOST.fullmatch(host)
            ]
            for first in range(0, len(wanted), self._batch_hosts):
                batch = wanted[first : first + self._batch_hosts]
                found = self._ask(batch)
                self._keep(batch, found)

    def _ask(self, hosts: Sequence[str]) -> dict[str, str]:
        self.runs += 1
        try:
            found = locations_printed(self._run(hosts), hosts)
        except (OSError, ValueError) as error:
            self.failures += 1
            self.last_failure = str(error)
            if not self._has_logged_failure:
                _log.warning(
                    "client.topology_script_failed", script=str(self.path), reason=str(error)
                )
                self._has_logged_failure = True
            return {}
        if self._has_logged_failure:
            _log.info("client.topology_script_recovered", script=str(self.path))
            self._has_logged_failure = False
        return found

    def _run(self, hosts: Sequence[str]) -> str:
        """Return what the script prints. OSError, ValueError with the reason."""
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                [str(self.path.absolute()), *hosts],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = child.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                raise ValueError(f"it did not end within {self._timeout_s:g} s") from None
            finally:
                # What it started and left behind goes with it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            if code != 0:
                raise ValueError(f"it ended with code {code}")
            output.seek(0)
            printed = output.read(OUTPUT_BYTES_MAX + 1)
        if len(printed) > OUTPUT_BYTES_MAX:
            raise ValueError(f"it printed more than {OUTPUT_BYTES_MAX} bytes")
        return printed.decode("utf-8", "replace")

    def _keep(self, hosts: Sequence[str], found: dict[str, str]) -> None:
        self._known.update(found)
        until_s = self._clock() + self._retry_s
        for host in hosts:
            self._unknown_until_s.pop(host, None)
            if host not in found:
                self._unknown_until_s[host] = until_s
        for kept in (self._known, self._unknown_until_s):
            while len(kept) > HOSTS_KEPT_MAX:
                del kept[next(iter(kept))]


class BookieLocations:
    """What people say of where bookies are: this client's table, its script, the cluster's table, Pulsar's node."""

    def __init__(
        self, topology: Topology | None = None, script: TopologyScript | None = None
    ) -> None:
        self.topology = topology if topology is not None else Topology()
        self.script = script
        self.cluster = ClusterPlaces()
        """Of the cluster's rules, as they were read last."""

    @classmethod
    def of(cls, table: Mapping[str, str], script: str | None = None) -> BookieLocations:
        """Return those of a configuration. ConfigError names what is wrong with it."""
        return cls(Topology.of(table), None if script is None else TopologyScript(script))

    def location_of(self, bookie_id: BookieId, host: str) -> str | None:
        """Return where a bookie is as far as it is known by now; blocks for nothing. Goes into `view_of`."""
        location = self.topology.location_of(bookie_id, host)
        if location is None and self.script is not None:
            location = self.script.location_of(host)
        if location is None:
            location = self.cluster.location_of(bookie_id, host)
        return location

    def groups_of(self, bookie_id: BookieId, host: str) -> frozenset[str]:
        """Return the groups that a bookie is in beside the labels that it publishes."""
        return self.cluster.groups_of(bookie_id, host)

    def learn_blocking(self, bookies: Collection[tuple[BookieId, str]]) -> None:
        """Run the script for the hosts that the table says nothing of; (bookie id, host) each."""
        if self.script is not None:
            self.script.learn(
                [
                    host
                    for bookie_id, host in bookies
                    if host and self.topology.location_of(bookie_id, host) is None
                ]
            )

    def location_of_client(self, host: str) -> str | None:
        """Return where a client is that runs on `host`, as far as it is known by now."""
        location = self.topology.location_of_client(host)
        if location is None and self.script is not None:
            location = self.script.location_of(host)
        if location is None:
            location = self.cluster.location_of_client(host)
        return location

    async def learn(self, bookies: Collection[tuple[BookieId, str]]) -> None:
        """Like `learn_blocking`, in a thread; a cancelled call lets the script end by itself."""
        if self.script is not None:
            await asyncio.to_thread(self.learn_blocking, bookies)


# --- what placement knows of them -----------------------------------------------------------------
#
# From a bookie's registration to what placement knows of it: its place, labels, free space, and
# whether it is near.
#
# A bookie may publish `location`, `labels` (with commas), `free_bytes` and `reads_only` (a reason)
# in its registration's properties. They come from the network: what is wrong counts as not said,
# and never keeps a bookie from being used.


LOCATION_PROPERTY = "location"
LABELS_PROPERTY = "labels"
FREE_BYTES_PROPERTY = "free_bytes"

HOSTS_REMEMBERED_MAX = 4096


class NamedPlaces(Protocol):
    """What people say of where bookies are."""

    def location_of(self, bookie_id: BookieId, host: str) -> str | None:
        """Return where a bookie is, None where they do not say."""

    def groups_of(self, bookie_id: BookieId, host: str) -> frozenset[str]:
        """Return the groups that they say it is in."""


def view_of(
    registration: BookieRegistration,
    *,
    quarantined: bool = False,
    places: NamedPlaces | None = None,
    is_local: Callable[[str], bool] | None = None,
) -> BookieView:
    """Return what is known of a registered bookie.

    Args:
        registration: as the metadata store lists it.
        quarantined: whether this client avoids it now.
        places: goes before what the bookie says of itself; its groups are added to the bookie's labels.
        is_local: whether a host is this one; None: `is_local_host`.
    """
    service = registration.service
    endpoint = service.client_endpoint()
    host = endpoint.host if endpoint is not None else ""
    labels = valid_labels(service.properties.get(LABELS_PROPERTY, ""))
    location = None
    if places is not None:
        location = places.location_of(service.bookie_id, host)
        labels |= places.groups_of(service.bookie_id, host)
    if location is None:
        location = valid_location(service.properties.get(LOCATION_PROPERTY, ""))
    return BookieView(
        service.bookie_id,
        writable=registration.writable,
        quarantined=quarantined,
        free_bytes=_bytes_of(service.properties.get(FREE_BYTES_PROPERTY, "")),
        location=location or DEFAULT_LOCATION,
        labels=labels,
        is_local=bool(host) and (is_local or is_local_host)(host),
        reads_only_reason=reads_only_reason(registration),
    )


def reads_only_reason(registration: BookieRegistration) -> str:
    """Return why the bookie takes no adds, as it published that; empty if it does, or does not say."""
    if registration.writable:
        return ""
    return " ".join(registration.service.properties.get(READS_ONLY_PROPERTY, "").split())[
        :REASON_CHARACTERS_MAX
    ]


@lru_cache(maxsize=HOSTS_REMEMBERED_MAX)
def is_local_host(host: str) -> bool:
    """Return whether `host` is this machine, without asking a name service: its own name, or an address it has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in ("localhost", socket.gethostname())
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))  # only addresses of this machine can be bound; nothing is sent
    except OSError:
        return False
    return not address.is_unspecified


def own_hosts(bookie_hosts: Iterable[str]) -> list[str]:
    """Return this machine's name, and its address in the network of the bookies, without asking a name service."""
    found = [socket.gethostname()]
    for host in bookie_hosts:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            continue
        if address.is_loopback:
            continue
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # picks a route; nothing is sent
            return [*found, str(probe.getsockname()[0])]
    return found


def _bytes_of(text: str) -> int | None:
    """Return a size in bytes, None if `text` is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
