"""Connections of authenticated clients, which end when a token expires, or when its client is revoked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from fastbk.native.worker import AUTH_ENDED
from fastbk.observe.logs import LimitLog
from fastbk.security.rights import ANYBODY, NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.worker import Worker
    from fastbk.security.admission import Admission, Client
    from fastbk.server.network.audit_trail import AuditTrail
    from fastbk.server.network.quotas import Quotas


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
