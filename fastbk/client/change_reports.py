"""Reports to bookies of what this client did to a ledger, so that operators find it among the bookies' events.

Best effort: a report goes by a connection that is up, nothing waits for it, and a bookie that refuses it, as
those of an older version do, changes nothing. Apache's bookies get none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.observe.library_log import LibraryLog
from fastbk.wire.messages import REPORT, REPORT_BYTES_MAX, Hello, encode_hello, error_text
from fastbk.wire.statuses import Status

if TYPE_CHECKING:
    from fastbk.client.bookie_pool import BookiePool
    from fastbk.client.connection import Answer
    from fastbk.model.ids import BookieId

PENDING_MAX = 8
"""Reports to one bookie that it has not answered; beyond it none is sent."""
REASON_CHARACTERS_MAX = 500
_log = LibraryLog("fastbk.client")


def send_report(
    pool: BookiePool, bookie_id: BookieId, event: str, fields: Mapping[str, object]
) -> bool:
    """Send a bookie an event of a ledger; return whether it was sent. Never waits."""
    connection = next(
        (one.connection for one in pool.peer(bookie_id).channels if one.connection is not None),
        None,
    )
    if (
        connection is None
        or connection.is_paused
        or connection.hello is None
        or not connection.hello.software  # one of Apache's
        or connection.reports_pending >= PENDING_MAX
    ):
        return False
    shown = {**fields, "reason": str(fields.get("reason", ""))[:REASON_CHARACTERS_MAX]}
    payload = msgspec.json.encode({"event": event, **shown}, enc_hook=str)
    if len(payload) > REPORT_BYTES_MAX:
        return False

    def answered(outcome: Answer | Error) -> None:
        connection.reports_pending -= 1
        if isinstance(outcome, Error):
            _log.debug("report.lost", bookie=bookie_id, reason=str(outcome))
        elif outcome.status != Status.OK:
            _log.debug("report.refused", bookie=bookie_id, reason=error_text(outcome.frame))

    request_id = pool.next_request_id()
    connection.reports_pending += 1
    connection.send_request(
        request_id,
        encode_hello(request_id, Hello(auth_method=REPORT, auth_payload=payload)),
        answered,
    )
    return True
