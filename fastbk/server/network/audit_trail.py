"""What a worker's clients do that the audit log wants to know, on its way to the supervisor; some of it are events.

Bounded: what is too much for a second, or finds the supervisor's socket full, is counted and lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from fastbk.server.network.client_reports import FENCED, RECOVERED, LedgerEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastbk.native.worker import Worker
    from fastbk.security.admission import Client

RECORDS_MAX = 400
"""In one message: 300 bytes each."""
MESSAGES_MAX = 4
"""In one sweep, which is a second."""
OPERATIONS = {1: "add", 2: "read", 3: "fence", 4: "recover", 5: "other"}
EVENTS = {3: FENCED, 4: RECOVERED}
"""Which of them, when they are allowed, are events (`fastbk.observe.event_kinds`)."""
VERDICTS = {0: "ok", 21: "wrong password", 28: "no right"}


class Audited(Protocol):
    """A connection, as far as this file is concerned."""

    client: Client
    address: str

    def failed(self, error: Exception) -> None:
        """Close it at once: an exception came of it."""


class AuditTrail:
    """The records of one worker; without an audit log it keeps none, and events are all that it records."""

    def __init__(
        self, worker: Worker, number: int, connections: Mapping[int, Audited], *, is_on: bool
    ) -> None:
        self._worker = worker
        self._number = number
        self._connections = connections
        self._is_on = is_on
        self._records: list[dict[str, Any]] = []
        self._dropped = 0
        self._events = LedgerEvents()
        self.send: Callable[[dict[str, Any]], bool] | None = None
        """Hands a message to the supervisor; never waits."""

    def note(self, event: str, address: str, principal: str = "", **values: object) -> None:
        """Keep a record until the next sweep."""
        if not self._is_on:
            return
        if len(self._records) >= RECORDS_MAX * MESSAGES_MAX:
            self._dropped += 1
            return
        record: dict[str, Any] = {
            "event": event,
            "at": time.time(),
            "address": address,
            "principal": principal,
        }
        self._records.append({**record, **values})

    def take_requests(self) -> None:
        """Take what C has noted; before a connection's slot may be another's."""
        found, dropped = self._worker.audits()
        self._dropped += dropped if self._is_on else 0
        for slot, operation, ledger_id, status in found:
            connection = self._connections.get(slot)
            if connection is None:
                self._dropped += 1 if self._is_on else 0
                continue
            try:
                self._take(connection, operation, ledger_id, status)
            except Exception as error:  # noqa: BLE001 - INV-N5
                connection.failed(error)

    def _take(self, connection: Audited, operation: int, ledger_id: int, status: int) -> None:
        if status == 0 and (event := EVENTS.get(operation)):
            self._events.note(event, ledger_id, connection.client)
        self.note(
            "request.denied" if status else "request.allowed",
            connection.address,
            connection.client.principal.name,
            operation=OPERATIONS.get(operation, "other"),
            ledger=ledger_id,
            verdict=VERDICTS.get(status, str(status)),
        )

    def sweep(self) -> None:
        """Send what was kept."""
        self.take_requests()
        while self._records and self.send is not None:
            part, self._records = self._records[:RECORDS_MAX], self._records[RECORDS_MAX:]
            message = {
                "type": "audit",
                "worker": self._number,
                "records": part,
                "dropped": self._dropped,
            }
            if self.send(message):
                self._dropped = 0
            else:
                self._dropped += len(part)
                break
