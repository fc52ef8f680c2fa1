"""Tells bookies a writer's LAC when no later entry carries it, so that readers see the last entries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.client.config import ClientConfig
from fastbk.client.connection import Answer
from fastbk.client.ledger_options import no_bookie_took_lac
from fastbk.client.runner import LedgerIo
from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId
from fastbk.replication.actions import TellLac
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from fastbk.client.add_pipe import AddPipe
    from fastbk.client.pending_request import Asking

FEW_IN_FLIGHT = 4
"""With more entries than these in flight the next one, which carries the LAC, is never far."""
_TELL_S = 0.001
_TELLS_AT_ONCE = 4


class LacTeller:
    """A timer that runs while the LAC moves and tells it once the writer has fallen idle; or at once, when asked to."""

    def __init__(self, pipe: AddPipe, io: LedgerIo, config: ClientConfig) -> None:
        self._pipe = pipe
        self._io = io
        self._interval_s = config.explicit_lac_interval
        self._timeout_s = config.read_timeout
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._told: EntryId = -1
        self._is_due = False
        # When as much as was told while entries were in flight would be due at one each _TELL_S.
        self._due_s = 0.0
        self._to_tell_again: set[BookieId] = set()
        self._asking: dict[Asking, asyncio.Future[str | None] | None] = {}

    def poke(self) -> None:
        """The LAC has moved."""
        if self._timer is None and self._interval_s:
            self._timer = self._loop.call_later(self._interval_s, self._tell_when_idle)

    def tell_soon(self) -> None:
        """Tell the LAC in the next turn of the loop, unless it is told already or many entries are in flight.

        With few in flight once a millisecond at most, over some milliseconds: entries tell it as well, but each only
        when it is written itself. Not before this turn ends: whoever waits for an acknowledgement goes on first.
        """
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._tell_due)

    def _tell_due(self) -> None:
        self._is_due = False
        in_flight = self._pipe.entries_in_flight
        if self._is_stopped or in_flight > FEW_IN_FLIGHT:
            return
        if self._pipe.machine.last_add_confirmed <= self._told and not self._to_tell_again:
            return
        if in_flight:
            now_s = self._loop.time()
            if self._due_s - now_s > (_TELLS_AT_ONCE - 1) * _TELL_S:
                return
            self._due_s = max(self._due_s, now_s) + _TELL_S
        # The timer goes on: it finds nothing to tell, which costs less than a new one for each entry.
        self._tell()

    def again(self, bookie_id: BookieId) -> None:
        """That bookie is there again: it may not have heard what was told, or has forgotten it."""
        if self._told >= 0:
            self._to_tell_again.add(bookie_id)
            self.poke()

    def stop(self) -> None:
        """Tell nothing more."""
        self._interval_s = 0
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        given_up, self._asking = self._asking, {}
        for asking, heard in given_up.items():
            asking.cancel()
            if heard is not None and not heard.done():
                heard.set_result("the writer was ended")

    def _tell_when_idle(self) -> None:
        self._timer = None
        if self._pipe.entries_in_flight:
            # Entries in flight carry a LAC; the last of them will not carry its own.
            self.poke()
            return
        self._tell()

    def _tell(self) -> None:
        lac = self._pipe.machine.last_add_confirmed
        is_new = lac > self._told
        self._told = max(self._told, lac)
        for peer in self._pipe.peers:
            is_wanted = is_new or peer.bookie_id in self._to_tell_again
            if is_wanted and peer.adds.connection is not None:
                # Losing it only delays visibility: the next one says the same, and a new connection repeats it.
                self._send(peer.bookie_id, lac, None)
        self._to_tell_again.clear()

    def _send(
        self, bookie_id: BookieId, lac: EntryId, heard: asyncio.Future[str | None] | None
    ) -> None:
        requests = self._io.requests

        def told(outcome: Answer | Error) -> None:
            self._asking.pop(asking, None)
            if heard is None or heard.done():
                return
            if isinstance(outcome, Error):
                heard.set_result(str(outcome))
            else:
                is_good = outcome.status == Status.OK
                heard.set_result(None if is_good else status_name(outcome.status))

        asking = self._io.pool.peer(bookie_id).ask(
            lambda request_id: requests.frame(TellLac(lac), request_id), self._timeout_s, told
        )
        self._asking[asking] = heard

    async def tell(self) -> EntryId:
        """Tell the LAC now and return it once all have answered; NotEnoughBookies if none took it.

        What ends the writer meanwhile ends this, too.
        """
        lac = self._pipe.machine.last_add_confirmed
        if lac < 0:
            return lac
        asked = {peer.bookie_id: self._loop.create_future() for peer in self._pipe.peers}
        for bookie_id, future in asked.items():
            self._send(bookie_id, lac, future)
        answers = await asyncio.gather(*asked.values())
        said = {
            bookie_id: reason
            for bookie_id, reason in zip(asked, answers, strict=True)
            if reason is not None
        }
        if len(said) == len(asked):
            failure = self._pipe.machine.failure
            if failure is not None:
                raise failure.copy()
            raise no_bookie_took_lac(self._io.ledger_id, lac, said)
        self._told = max(self._told, lac)
        return lac
