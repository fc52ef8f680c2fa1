"""Recoveries of bookies that operators request over HTTP: one at a time, in the background, as Apache's bookies do it.

What they come to is logged. A request is not kept: a process that ends forgets it, and it is simply made again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fastbk.admin.bookie_recovery import BookieRecovery, RecoveryPlan
from fastbk.admin.cookies import free_id
from fastbk.client import Client
from fastbk.errors import ConfigError, Error
from fastbk.model.ids import BookieId
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.repair_options import CopyRate, RepairOptions

WAITING_MAX = 16
_log = LibraryLog("fastbk.autorecovery")


@dataclass(frozen=True, slots=True)
class RequestedRecovery:
    """One request. `frees_id`: its cookie and identity go once no ledger names it any more."""

    bookie_id: BookieId
    frees_id: bool
    even_if_alive: bool = False


class RequestedRecoveries:
    """The requests that wait, and the one that is worked on.

    Attributes:
        done, failed: how many ended so.
    """

    def __init__(self, client: Client, uri: str, rate: CopyRate) -> None:
        """`rate`: what is copied counts against it."""
        self.done = 0
        self.failed = 0
        self._client = client
        self._uri = uri
        self._rate = rate
        self._requests: deque[RequestedRecovery] = deque()
        self._came = asyncio.Event()

    @property
    def pending(self) -> int:
        """How many wait or are worked on."""
        return len(self._requests)

    def recover(self, bookie_ids: Sequence[BookieId], *, delete_cookie: bool) -> None:
        """Begin to empty these. Raises ConfigError if too many requests wait; then none of these is done."""
        # Several that are alive would be given each other's copies.
        even_if_alive = len(bookie_ids) == 1 and not delete_cookie
        self._add([RequestedRecovery(one, delete_cookie, even_if_alive) for one in bookie_ids])

    def decommission(self, bookie_id: BookieId) -> None:
        """Begin to empty this one, which is not running, and to free its id. Raises ConfigError as `recover`."""
        self._add([RequestedRecovery(bookie_id, frees_id=True)])

    def _add(self, requests: list[RequestedRecovery]) -> None:
        new = [one for one in requests if one not in self._requests]
        if len(self._requests) + len(new) > WAITING_MAX:
            raise ConfigError(f"{len(self._requests)} recoveries wait already: request this later")
        for one in new:
            _log.info(
                "autorecovery.recovery_requested", bookie=one.bookie_id, frees_id=one.frees_id
            )
        self._requests.extend(new)
        self._came.set()

    async def run(self) -> None:
        """Work until it is cancelled."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._requests:
                await self._try(self._requests[0])
                self._requests.popleft()

    async def _try(self, request: RequestedRecovery) -> None:
        try:
            await self._recover(request)
        except Error as error:
            self._fail(request, str(error))
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the other requests
            self._fail(request, repr(error), error)

    async def _recover(self, request: RequestedRecovery) -> None:
        if request.frees_id:
            # Ledgers that restored metadata does not list may have copies there only.
            await self._client.records.check_not_held()
        plan = RecoveryPlan(
            even_if_alive=request.even_if_alive,
            repair=RepairOptions(rate=self._rate, patience_s=20.0),
        )
        recovery = BookieRecovery(self._client, request.bookie_id, plan)
        progress = await recovery.run()
        left = progress.failed_count + progress.parked_count
        if not left and request.frees_id:
            left = len(await recovery.find())
        facts = {
            "ledgers": progress.ledgers_done,
            "entries": progress.entries_copied,
            "size_bytes": progress.bytes_copied,
            "entries_lost": progress.entries_lost,
        }
        if left:
            reasons = {**progress.failed, **progress.parked}
            some = "; ".join(f"ledger {one}: {why}" for one, why in list(reasons.items())[:3])
            self._fail(
                request, f"{left} ledgers still name it: {some or 'they were made meanwhile'}"
            )
            return
        if request.frees_id:
            await asyncio.to_thread(free_id, self._uri, request.bookie_id)
        self.done += 1
        _log.info("autorecovery.recovery_ended", bookie=request.bookie_id, **facts)

    def _fail(
        self, request: RequestedRecovery, reason: str, fault: Exception | None = None
    ) -> None:
        self.failed += 1
        _log.error(
            "autorecovery.recovery_failed", bookie=request.bookie_id, reason=reason, failed=fault
        )
