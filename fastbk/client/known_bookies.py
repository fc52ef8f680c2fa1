"""What one client knows of the bookies: where they are, which data they stand for, which failed lately. No I/O.

Both clients keep one. A bookie that fails again and again is put in quarantine for a time: new fragments avoid it while
there are others; what it holds already is read from it and written to it as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from fastbk.client.bookie_views import reads_only_reason, view_of
from fastbk.client.config import ClientConfig
from fastbk.client.network_locations import BookieLocations
from fastbk.meta.api import BadIdentity, BookieIdentity, BookieRegistration, Endpoint
from fastbk.model.ids import BookieId
from fastbk.placement.values import DEFAULT_LOCATION, BookieView
from fastbk.wire.statuses import Status, status_name

SUSPECT_S = 5.0


class KnownBookies:
    """Bookies as the metadata store and the connections tell of them. Times are seconds of any one clock."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._listed: dict[BookieId, BookieRegistration] = {}
        self._registered: frozenset[BookieId] = frozenset()
        self._listed_s: float | None = None
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

    # --- where they are ----------------------------------------------------------------------------------------

    def update(self, found: Sequence[BookieRegistration], now_s: float) -> bool:
        """Take the list of those registered now; return whether another set of them takes adds than before."""
        before = self._writable()
        self._listed.update({one.service.bookie_id: one for one in found})
        self._registered = frozenset(one.service.bookie_id for one in found)
        self._listed_s = now_s
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
                location_of=self.locations.location_of,
            )
            for one in listed
            if one.service.client_endpoint() is not None
        ]

    def away_views(self, identities: Sequence[BookieIdentity | BadIdentity]) -> list[BookieView]:
        """Return what placement has to know of bookies that are not registered and were once.

        Those that this client saw registered come first: they are the likeliest to return.
        """
        seen = sorted(self._listed.keys() - self._registered)
        others = {one.bookie_id for one in identities} - self._listed.keys()
        views = [view_of(self._listed[one], location_of=self.locations.location_of) for one in seen]
        for bookie_id in sorted(others):
            location = self.locations.location_of(bookie_id, "")
            views.append(BookieView(bookie_id, location=location or DEFAULT_LOCATION))
        return [replace(one, writable=True) for one in views]

    def expect(self, identities: Sequence[BookieIdentity | BadIdentity]) -> None:
        """Have writers count on the data that these bookies have now.

        One that comes back without its data is then replaced before an add is sent to it: the ledger is in limbo
        there, and a normal add would be refused as if the ledger was fenced (INV-X4).
        """
        for one in identities:
            if isinstance(one, BookieIdentity):
                self._incarnations.setdefault(one.bookie_id, one.incarnation)
