"""Connections of authenticated clients: they end when a token expires or its client is revoked, and have quotas.

`Quotas` is one worker's share of what the bookie gives each principal. C holds adds back (`worker/quota.c`). Here is
counted how many connections a principal has, and which number its quota has in C.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from fastbk.native.worker import AUTH_ENDED, QUOTAS_MAX
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.security.rights import ANYBODY, NOBODY
from fastbk.server.configuration.settings import Quota, has_quotas, quota_of, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.worker import Worker
    from fastbk.security.admission import Admission, Client
    from fastbk.server.configuration.settings import QuotaSettings
    from fastbk.server.network.audit_trail import AuditTrail


class Authenticated(Protocol):
    """A connection, as far as this file is concerned."""

    client: Client
    address: str
    slot: int

    def close(self) -> None:
        """Close it once everything answered so far is written."""

    def failed(self, error: Exception) -> None:
        """Close it at once: an exception came of it."""


class Principals:
    """Looks once a second at who has authenticated. Files are read anew once in `refresh_s`."""

    def __init__(
        self,
        admission: Admission,
        worker: Worker,
        refresh_s: float,
        audit: AuditTrail,
        quotas: Quotas,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        wall_clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._admission = admission
        self._worker = worker
        self._audit = audit
        self._quotas = quotas
        self._refresh_s = refresh_s
        self._clock_s, self._wall_clock_s = clock_s, wall_clock_s
        self._refreshed_s = clock_s()
        self._connections: set[Authenticated] = set()
        self._ends = LimitLog("connection.authentication_ended")

    def admitted(self, connection: Authenticated) -> None:
        """Its client has authenticated, or has renewed its token."""
        if connection.client.principal not in (ANYBODY, NOBODY):
            self._connections.add(connection)
            self._quotas.enter(connection.slot, connection.client.principal.name)

    def left(self, connection: Authenticated) -> None:
        """It is gone."""
        self._connections.discard(connection)
        self._quotas.leave(connection.slot)

    def sweep(self) -> None:
        """End the connections of those who are not accepted any more."""
        now_s = self._clock_s()
        is_changed = False
        if now_s - self._refreshed_s >= self._refresh_s:
            self._refreshed_s = now_s
            is_changed = self._admission.files.has_changed()
        wall_s = self._wall_clock_s()
        for connection in list(self._connections):
            try:
                self._check(connection, wall_s, is_changed=is_changed)
            except Exception as error:  # noqa: BLE001 - INV-N5
                connection.failed(error)

    def _check(self, connection: Authenticated, wall_s: float, *, is_changed: bool) -> None:
        principal = connection.client.principal
        if not is_changed and (principal.ends_at_s is None or principal.ends_at_s > wall_s):
            return
        if reason := self._admission.why_ended(connection.client, wall_s):
            self._worker.count(AUTH_ENDED)
            self._audit.note("client.ended", connection.address, principal.name, reason=reason)
            self._ends.note(
                "ended", reason=reason, principal=principal.name, address=connection.address
            )
            self._worker.admit(connection.slot, 0)
            self._connections.discard(connection)  # TLS may take a while to close, and it ends once
            connection.close()


KEPT_S = 30.0
"""Without a connection that waits for its quota for so long, all keep theirs again."""


class Quotas:
    """Who has how many connections; without any quota configured it does nothing."""

    def __init__(self, settings: QuotaSettings, workers: int, worker: Worker) -> None:
        self._worker = worker
        self.are_on = has_quotas(settings)
        self._rules = [(pattern, quota.share(workers)) for pattern, quota in rules_of(settings)]
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        """Numbers of principals that have connections, and of those that had: who comes again finds its debt."""
        self._counts: dict[str, int] = {}
        self._gone: dict[str, None] = {}
        """Principals without connections, the longest gone first."""
        self._free = list(range(QUOTAS_MAX, 0, -1))

    def refusal(self, name: str) -> str:
        """Return why a principal gets no further connection; "": it does."""
        if not self.are_on:
            return ""
        most, count = quota_of(self._rules, name).connections_max, self._counts.get(name, 0)
        if most and count >= most:
            return f"{name} has all {most} connections to this worker that it may have ([quotas] connections_max)"
        if name not in self._numbers and not self._free and not self._gone:
            return f"more than {QUOTAS_MAX} principals have connections to this worker ([quotas])"
        return ""

    def enter(self, slot: int, name: str) -> None:
        """A connection is a principal's from now on."""
        if not self.are_on or self._names.get(slot) == name:
            return
        self.leave(slot)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next_number()
            quota: Quota = quota_of(self._rules, name)
            self._worker.set_quota(number, quota.adds_rate, quota.data_rate, quota.ledgers_rate)
        self._gone.pop(name, None)
        self._names[slot] = name
        self._counts[name] = self._counts.get(name, 0) + 1
        self._worker.use_quota(slot, number)

    def leave(self, slot: int) -> None:
        """A connection is gone, or another's."""
        name = self._names.pop(slot, None)
        if name is None:
            return
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
            self._gone[name] = None

    def _next_number(self) -> int:
        if self._free:
            return self._free.pop()
        longest_gone = next(iter(self._gone))
        del self._gone[longest_gone]
        return self._numbers.pop(longest_gone)


class QuotaWaits:
    """Logs when clients of one worker begin to wait for their quotas, and when they do not any more."""

    def __init__(self) -> None:
        self._waits = 0
        self._began_s: float | None = None
        self._last_s = 0.0

    def poll(self, waits: int, connections: int, now_s: float) -> None:
        """Take in how often connections have waited so far, and how many do now; once a second."""
        is_reached, self._waits = waits > self._waits or connections > 0, waits
        if is_reached:
            self._last_s = now_s
            if self._began_s is None:
                self._began_s = now_s
                reason = "clients have added more than their quotas ([quotas]), and wait"
                logs.warning("quota.reached", reason=reason, connections=connections)
        elif self._began_s is not None and now_s - self._last_s >= KEPT_S:
            logs.info("quota.kept_again", reached_s=round(self._last_s - self._began_s, 1))
            self._began_s = None
