"""Sends a writer's LAC to bookies when no later entry carries it, so that readers see the last entries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.client.config import ClientConfig
from fastbk.client.connection import Answer
from fastbk.client.ledger_options import no_bookie_took_lac
from fastbk.client.runner import LedgerIo
from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId
from fastbk.replication.actions import WriteLac
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from fastbk.client.add_pipe import AddPipe
    from fastbk.client.pending_request import PendingRequest

FEW_IN_FLIGHT = 4
"""With more entries than these in flight the next one, which carries the LAC, is never far."""
_SEND_INTERVAL_S = 0.001
_SENDS_AT_ONCE = 4


class ExplicitLacSender:
    """Sends the LAC once the writer is idle, by a timer that runs while the LAC moves; or soon, on request."""

    def __init__(self, pipe: AddPipe, io: LedgerIo, config: ClientConfig) -> None:
        self._pipe = pipe
        self._io = io
        self._interval_s = config.explicit_lac_interval
        self._timeout_s = config.read_timeout
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._sent_lac: EntryId = -1
        self._is_due = False
        # When all that was sent while entries were in flight would be due, at one each _SEND_INTERVAL_S.
        self._due_s = 0.0
        self._resend_to: set[BookieId] = set()
        self._requests: dict[PendingRequest, asyncio.Future[str | None] | None] = {}

    def schedule(self) -> None:
        """Start the timer: the LAC has moved."""
        if self._timer is None and self._interval_s:
            self._timer = self._loop.call_later(self._interval_s, self._send_when_idle)

    def send_soon(self) -> None:
        """Send the LAC in the next turn of the loop, unless it was sent already or many entries are in flight.

        With few in flight it is sent once a millisecond at most, over some milliseconds: entries carry it as well,
        but each only when it is written itself. Callers that wait for an acknowledgement run first.
        """
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_due = False
        in_flight = self._pipe.entries_in_flight
        if self._is_stopped or in_flight > FEW_IN_FLIGHT:
            return
        if self._pipe.machine.last_add_confirmed <= self._sent_lac and not self._resend_to:
            return
        if in_flight:
            now_s = self._loop.time()
            if self._due_s - now_s > (_SENDS_AT_ONCE - 1) * _SEND_INTERVAL_S:
                return
            self._due_s = max(self._due_s, now_s) + _SEND_INTERVAL_S
        # The timer goes on: it finds nothing to send, which costs less than a new one for each entry.
        self._send_new()

    def resend_to(self, bookie_id: BookieId) -> None:
        """Send the LAC again to a bookie that is back: it may have lost it."""
        if self._sent_lac >= 0:
            self._resend_to.add(bookie_id)
            self.schedule()

    def stop(self) -> None:
        """Send nothing more."""
        self._interval_s = 0
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        given_up, self._requests = self._requests, {}
        for request, answered in given_up.items():
            request.cancel()
            if answered is not None and not answered.done():
                answered.set_result("the writer was ended")

    def _send_when_idle(self) -> None:
        self._timer = None
        if self._pipe.entries_in_flight:
            # Entries in flight carry a LAC; the last of them will not carry its own.
            self.schedule()
            return
        self._send_new()

    def _send_new(self) -> None:
        lac = self._pipe.machine.last_add_confirmed
        is_new = lac > self._sent_lac
        self._sent_lac = max(self._sent_lac, lac)
        for peer in self._pipe.peers:
            is_wanted = is_new or peer.bookie_id in self._resend_to
            if is_wanted and peer.adds.connection is not None:
                # Losing it only delays visibility: the next one says the same, and a new connection repeats it.
                self._send(peer.bookie_id, lac, None)
        self._resend_to.clear()

    def _send(
        self, bookie_id: BookieId, lac: EntryId, answered: asyncio.Future[str | None] | None
    ) -> None:
        requests = self._io.requests

        def reply(outcome: Answer | Error) -> None:
            self._requests.pop(request, None)
            if answered is None or answered.done():
                return
            if isinstance(outcome, Error):
                answered.set_result(str(outcome))
            else:
                is_good = outcome.status == Status.OK
                answered.set_result(None if is_good else status_name(outcome.status))

        request = self._io.pool.peer(bookie_id).send_request(
            lambda request_id: requests.frame(WriteLac(lac), request_id), self._timeout_s, reply, requests.tag
        )
        self._requests[request] = answered

    async def send(self) -> EntryId:
        """Send the LAC now and return it once all have answered; NotEnoughBookies if none took it.

        An error that ends the writer meanwhile ends this, too.
        """
        lac = self._pipe.machine.last_add_confirmed
        if lac < 0:
            return lac
        replies = {peer.bookie_id: self._loop.create_future() for peer in self._pipe.peers}
        for bookie_id, future in replies.items():
            self._send(bookie_id, lac, future)
        answers = await asyncio.gather(*replies.values())
        refusals = {
            bookie_id: reason
            for bookie_id, reason in zip(replies, answers, strict=True)
            if reason is not None
        }
        if len(refusals) == len(replies):
            failure = self._pipe.machine.failure
            if failure is not None:
                raise failure.copy()
            raise no_bookie_took_lac(self._io.ledger_id, lac, refusals)
        self._sent_lac = max(self._sent_lac, lac)
        return lac
