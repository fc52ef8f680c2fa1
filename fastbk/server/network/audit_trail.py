"""What a worker's clients do and report: records for the audit log, on their way to the supervisor, and events.

Fences and the first recovery add of a ledger come from C, by way of the audit trail. A writer's report, that it has
replaced a bookie, comes in a later hello. A report is not verified: a client with the right to write can report
anything, under the name that it authenticated itself by.

All of it is bounded: what is too much for a second, or finds the supervisor's socket full, is counted and
lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from fastbk.limits import RateLimit
from fastbk.observe import logs
from fastbk.printable_text import printable
from fastbk.security.rights import Right
from fastbk.wire.messages import REPORT_BYTES_MAX, ErrorReply, encode_reply
from fastbk.wire.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastbk.native.worker import Worker
    from fastbk.security.admission import Client
    from fastbk.server.child import Offer


RECORDS_MAX = 400
"""Maximum records in one message: 300 bytes each."""
MESSAGES_MAX = 4
"""Maximum messages in one sweep, which is a second."""
OPERATIONS = {1: "add", 2: "read", 3: "fence", 4: "recover", 5: "other"}
FENCED, RECOVERED = "ledger.fenced", "ledger.recovery_began"
EVENTS = {3: FENCED, 4: RECOVERED}
"""Which of them, when they are allowed, are events (`fastbk.observe.events`)."""
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
        self,
        worker: Worker,
        number: int,
        connections: Mapping[int, Audited],
        send: Offer,
        *,
        is_on: bool,
    ) -> None:
        """`connections`: the open ones by slot; its owner keeps it."""
        self._worker = worker
        self._number = number
        self._connections = connections
        self._is_on = is_on
        self._records: list[dict[str, Any]] = []
        self._dropped = 0
        self._events = LedgerEvents()
        self._send = send

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
        while self._records:
            part, self._records = self._records[:RECORDS_MAX], self._records[RECORDS_MAX:]
            message = {
                "type": "audit",
                "worker": self._number,
                "records": part,
                "dropped": self._dropped,
            }
            if self._send(message):
                self._dropped = 0
            else:
                self._dropped += len(part)
                break


FENCES_PER_S, FENCES_BURST_S = 5.0, 10.0
REPORTS_PER_S, REPORTS_BURST_S = 2.0, 20.0
"""Maximum reports a second of all clients of one worker; more are refused."""
TEXT_CHARACTERS_MAX = 500
RECENT_MAX = 256


class BookieReplaced(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="ledger.bookie_replaced"
):
    """A bookie of a ledger was replaced, from an entry on.

    Attributes:
        cause: what the client did: `writer`, `recovery`, `repair` or `autorecovery`. client: its host and process.
    """

    ledger_id: int
    first_entry_id: int
    bookie: str
    replacement: str
    index: int
    reason: str
    cause: str
    client: str


class PlacedShort(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="ledger.placed_short"
):
    """Bookies were chosen for a ledger that keep less than its rule's minimum, which is not enforced.

    Attributes:
        more: choices like this that the client reported to nobody before, since they were too many.
        client: its host and process.
    """

    ledger_id: int
    reason: str
    more: int
    client: str


class LedgerEvents:
    """Fences and recoveries that one worker saw; what is too much is counted in the next event."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._limit = RateLimit(
            FENCES_PER_S, clock_s=clock_s, burst_s=FENCES_BURST_S, is_rested=True
        )
        self._more = 0
        self._recent: dict[tuple[str, int, int], None] = {}
        """Event, ledger and connection, the newest last: a recovery fences with each of its reads."""

    def note(self, event: str, ledger_id: int, client: Client) -> None:
        """Record one. Below the usual level of the log: a client that recovers thousands of ledgers would fill that."""
        key = (event, ledger_id, client.slot)
        if key in self._recent:
            return
        self._recent[key] = None
        if len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]
        if self._limit.wait_s() > 0:
            self._more += 1
            return
        self._limit.take(1)
        more = {"more_ledgers": self._more} if self._more else {}
        self._more = 0
        logs.debug(
            event,
            ledger_id=ledger_id,
            address=client.address,
            principal=client.principal.name,
            **more,
        )


class ClientReports:
    """Answers to what clients report, of one worker."""

    def __init__(
        self, accept: Callable[[int, bytes], bytes], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`accept`: returns the reply to a hello, given the request's id and what it gives the client."""
        self._accept = accept
        self._limit = RateLimit(
            REPORTS_PER_S, clock_s=clock_s, burst_s=REPORTS_BURST_S, is_rested=True
        )

    def answer(self, request_id: int, payload: bytes, client: Client) -> bytes:
        """Log a report, and return the answer to it."""
        if not client.principal.rights & (Right.ADD | Right.RECOVER):
            return _error(
                request_id,
                Status.FORBIDDEN,
                "only who may add entries reports what becomes of ledgers",
            )
        if self._limit.wait_s() > 0:
            return _error(
                request_id, Status.TOO_MANY_REQUESTS, "this bookie takes no more reports now"
            )
        self._limit.take(1)
        try:
            if len(payload) > REPORT_BYTES_MAX:
                raise msgspec.ValidationError(f"more than {REPORT_BYTES_MAX} bytes")
            report = msgspec.json.decode(payload, type=BookieReplaced | PlacedShort)
        except (ValueError, RecursionError) as error:
            return _error(
                request_id, Status.BAD_REQUEST, f"no report that this bookie knows: {error}"
            )
        values = {
            name: printable(value, TEXT_CHARACTERS_MAX) if isinstance(value, str) else value
            for name, value in msgspec.structs.asdict(report).items()
        }
        values |= {"address": client.address, "principal": client.principal.name}
        if isinstance(report, BookieReplaced):
            logs.info("ledger.bookie_replaced", **values)
        else:
            logs.info("ledger.placed_short", **values)
        return self._accept(request_id, b"")


def _error(request_id: int, status: Status, message: str) -> bytes:
    return encode_reply(request_id, status, ErrorReply(message=message))
