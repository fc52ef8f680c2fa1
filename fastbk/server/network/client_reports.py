"""What clients do to ledgers, and what they report of them, as events.

Fences and the first recovery add of a ledger come from C, by way of the audit trail. A writer's report, that it has
replaced a bookie, comes in a later hello. Both are bounded. A report is not verified: a client with the right to write
can report anything, under the name that it authenticated itself by.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fastbk.observe import logs
from fastbk.printable_text import printable
from fastbk.rate_limit import RateLimit
from fastbk.security.rights import Right
from fastbk.wire.messages import REPORT_BYTES_MAX, ErrorReply, encode_reply
from fastbk.wire.statuses import Status

if TYPE_CHECKING:
    from fastbk.security.admission import Client

FENCES_PER_S, FENCES_BURST_S = 5.0, 10.0
REPORTS_PER_S, REPORTS_BURST_S = 2.0, 20.0
"""Of all clients of one worker; more are refused."""
TEXT_CHARACTERS_MAX = 500
RECENT_MAX = 256
FENCED, RECOVERED = "ledger.fenced", "ledger.recovery_began"


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
            report = msgspec.json.decode(payload, type=BookieReplaced)
        except (ValueError, RecursionError) as error:
            return _error(
                request_id, Status.BAD_REQUEST, f"no report that this bookie knows: {error}"
            )
        values = {
            name: printable(value, TEXT_CHARACTERS_MAX) if isinstance(value, str) else value
            for name, value in msgspec.structs.asdict(report).items()
        }
        logs.info(
            "ledger.bookie_replaced",
            **values,
            address=client.address,
            principal=client.principal.name,
        )
        return self._accept(request_id, b"")


def _error(request_id: int, status: Status, message: str) -> bytes:
    return encode_reply(request_id, status, ErrorReply(message=message))
