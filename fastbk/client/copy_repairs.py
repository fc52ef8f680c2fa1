"""Repairs, in the background, the copies that were missing when this client closed or recovered a ledger.

A ledger that is closed while a bookie restarts misses copies there, and its writer has marked them. This client tries
again while it lives: once the bookie is registered and takes adds, it checks the marked entries there, copies those
that the bookie lacks from the others, and removes the mark. A read-only bookie would store these copies in the room
that it keeps for recoveries and fences. What the client has not repaired when it is closed stays marked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from fastbk.client.recovered_copies import missing_copies
from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.copying import RepairOptions
from fastbk.replication.healing import HealLedger

if TYPE_CHECKING:
    from fastbk.client.client import Client

LEDGERS_MAX = 1000
"""Ledgers that wait for a repair at most; others stay marked."""
CHECK_TIMEOUT_S = 5.0
CLOSE_WAIT_S = 1.0
"""How long a client that is closed waits for checks."""
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 10.0
_OPTIONS = RepairOptions(request_timeout_s=5.0, patience_s=5.0)


class CopyRepairs:
    """The repairs of one client, one at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[LedgerId, tuple[MissingReplica, ...]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many ledgers wait for a repair."""
        return len(self._waiting)

    @property
    def is_checking(self) -> bool:
        """Whether a recovered ledger is being checked."""
        return bool(self._checks)

    def add(self, ledger_id: LedgerId, missing: tuple[MissingReplica, ...]) -> None:
        """Repair these when their bookies are there."""
        if not missing or len(self._waiting) >= LEDGERS_MAX:
            return
        self._waiting[ledger_id] = missing
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    def check_recovered(
        self, ledger_id: LedgerId, before: LedgerMetadata, metadata: LedgerMetadata
    ) -> None:
        """Have a ledger that was recovered checked, from the fragment on that was the last one before."""
        at = len(before.fragments) - 1
        task = asyncio.get_running_loop().create_task(self._check(ledger_id, metadata, at))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, ledger_id: LedgerId, metadata: LedgerMetadata, at: int) -> None:
        client = self._client
        with suppress(Error):
            services = [one.service for one in await client.list_bookies()]
            registered = {one.bookie_id: one for one in services}
            found = await missing_copies(
                client.pool, registered, ledger_id, metadata, at, CHECK_TIMEOUT_S
            )
            if found:
                mark = await client.marks.update(ledger_id, add=found)
                self.add(ledger_id, mark.missing)

    def bookies_changed(self) -> None:
        """Bookies came or went: try again at once."""
        self._changed.set()

    async def close(self) -> None:
        """Give checks a moment to mark what they find, and give up what waits; it stays marked."""
        if self._checks and not self._client.pool.is_closed:
            await asyncio.wait(self._checks, timeout=CLOSE_WAIT_S)
        self._waiting.clear()
        for one in self._checks:
            one.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _go_on(self) -> None:
        pause_s = PAUSE_MIN_S
        try:
            while self._waiting:
                self._changed.clear()
                before = dict(self._waiting)
                await self._try_all()
                pause_s = PAUSE_MIN_S if before != self._waiting else min(PAUSE_MAX_S, 2 * pause_s)
                if self._waiting:
                    await self._pause(pause_s)
        finally:
            self._task = None

    async def _pause(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), pause_s)
        except TimeoutError:
            return

    async def _try_all(self) -> None:
        try:
            listed = await self._client.list_bookies()
        except Error:
            return
        writable = {one.service.bookie_id for one in listed if one.writable}
        for ledger_id, missing in list(self._waiting.items()):
            left = [
                one for one in missing if not await self._is_repaired(ledger_id, one, writable)
            ]
            if left:
                self._waiting[ledger_id] = tuple(left)
            else:
                self._waiting.pop(ledger_id, None)

    async def _is_repaired(
        self, ledger_id: LedgerId, missing: MissingReplica, writable: set[BookieId]
    ) -> bool:
        if missing.bookie_id not in writable or missing.last_entry_id is None:
            return False
        client = self._client
        ranges = [(missing.first_entry_id, missing.last_entry_id)]
        healing = HealLedger(ledger_id, missing.bookie_id, _OPTIONS, ranges)
        try:
            metadata = (await client.ledger_info(ledger_id)).metadata
            healed = await client.run_procedure(ledger_id, metadata, healing)
            if not healed.is_whole:
                return False
            await client.marks.update(ledger_id, remove=[missing])
        except NoSuchLedger:
            return True
        except Error:
            return False
        return True
