"""Sends a writer's LAC to bookies when no later entry carries it, so that readers see the last entries (INV-C4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastbk.client.config import ClientConfig
from fastbk.client.connection import Answer
from fastbk.client.ledger_options import no_bookie_took_lac
from fastbk.client.ledger_tags import show
from fastbk.client.runner import LedgerIo
from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId
from fastbk.replication.actions import WriteLac
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from fastbk.client.add_pipe import AddPipe
    from fastbk.client.bookie_pool import Peer
    from fastbk.client.pending_request import PendingRequest

UNANSWERED_MAX = 64
"""LACs that a bookie was sent and has not answered. It is sent the newest one when it answers."""


class ExplicitLacSender:
    """Sends the LAC: now, on request; and by a timer, which runs while the LAC moves and entries do not carry it."""

    def __init__(self, pipe: AddPipe, io: LedgerIo, config: ClientConfig) -> None:
        self._pipe = pipe
        self._io = io
        self._interval_s = config.explicit_lac_interval
        self._timeout_s = config.read_timeout
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._sent_lac: EntryId = -1
        self._resend_to: set[BookieId] = set()
        self._unanswered: dict[BookieId, int] = {}
        self._requests: dict[PendingRequest, asyncio.Future[str | None] | None] = {}

    def schedule(self) -> None:
        """Start the timer: the LAC has moved."""
        if self._timer is None and self._interval_s:
            self._timer = self._loop.call_later(self._interval_s, self._send_when_due)

    def send_untold(self) -> None:
        """Send the LAC before this returns, unless all bookies were sent it, by itself or with an entry."""
        pipe = self._pipe
        lac = pipe.machine.last_add_confirmed
        if not self._is_stopped and lac > self._sent_lac and lac > pipe.carried_lac:
            # The timer goes on: it finds nothing to send, which costs less than a new one for each entry.
            self._send_new()

    def send_last(self) -> None:
        """Send the LAC of a writer that is about to end: no later entry will carry it."""
        if not self._is_stopped and self._pipe.machine.last_add_confirmed > self._sent_lac:
            self._send_new()

    def resend_to(self, bookie_id: BookieId) -> None:
        """Send the LAC again to a bookie that is back: it may have lost it."""
        self._unanswered.pop(bookie_id, None)
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

    def _send_when_due(self) -> None:
        self._timer = None
        pipe = self._pipe
        lac = pipe.machine.last_add_confirmed
        if pipe.entries_in_flight:
            # The last of them will not carry its own.
            self.schedule()
            if lac <= pipe.carried_lac:
                return
        self._send_new()

    def _send_new(self) -> None:
        lac = self._pipe.machine.last_add_confirmed
        is_new = lac > self._sent_lac
        self._sent_lac = max(self._sent_lac, lac)
        request_id = self._io.pool.next_request_id()
        frame: bytes | bytearray | None = None
        for peer in self._pipe.peers:
            connection = peer.adds.connection
            if connection is None or not (is_new or peer.bookie_id in self._resend_to):
                continue  # losing it only delays visibility: a new connection repeats it
            if connection.speaks_apache:
                self._send(peer.bookie_id, lac, None)
                continue
            waiting = self._unanswered.get(peer.bookie_id, 0)
            if waiting >= UNANSWERED_MAX:
                continue
            self._unanswered[peer.bookie_id] = waiting + 1
            if frame is None:
                frame = self._io.requests.frame(WriteLac(lac), request_id)
            if self._io.requests.tag is not None:
                show(connection, self._io.requests.tag, self._io.pool.next_request_id())
            # Behind the entries, on their connection: another one might not be there yet.
            connection.send_request(request_id, frame, self._answered_by(peer))
        self._resend_to.clear()

    def _answered_by(self, peer: Peer) -> Callable[[Answer | Error], None]:
        bookie_id = peer.bookie_id

        def answered(_: Answer | Error) -> None:
            waiting = self._unanswered.get(bookie_id, 0)
            if waiting:
                self._unanswered[bookie_id] = waiting - 1
            if waiting >= UNANSWERED_MAX:
                self.resend_to(bookie_id)

        return answered

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
