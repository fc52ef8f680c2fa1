"""Repairs of copies that were missing when this client closed or recovered a ledger.

A ledger that is closed while a bookie restarts misses copies there, and its writer has marked them.
This client tries again while it lives: once the bookie is registered and takes adds, it checks the
marked entries there, copies those that the bookie lacks from the others, and removes the mark. A
read-only bookie would store these copies in the room that it keeps for recoveries and fences. What
the client has not repaired when it is closed stays marked.

The logger `fastbk.client` reports why a repair did not succeed, once for each reason, and when one
has succeeded.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from fastbk.client.ledger_options import checking_of
from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.ledger_repair import RepairMissing, RepairQueue
from fastbk.retry import jittered

if TYPE_CHECKING:
    from fastbk.client.client import Client

_log = LibraryLog("fastbk.client")
CLOSE_WAIT_S = 1.0
"""How long a client that is closed goes on with checks and repairs."""


class CopyRepairs:
    """The repairs of one client, one at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue = RepairQueue()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        self._reasons: dict[tuple[LedgerId, MissingReplica], str] = {}

    @property
    def waiting(self) -> int:
        """How many ledgers wait for a repair."""
        return len(self._queue)

    @property
    def is_checking(self) -> bool:
        """Whether a recovered ledger is being checked."""
        return bool(self._checks)

    def add(self, ledger_id: LedgerId, missing: tuple[MissingReplica, ...]) -> None:
        """Repair these when their bookies are there."""
        if not missing:
            return
        self._queue.add(ledger_id, missing)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    def check_recovered(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Check a ledger that was recovered."""
        task = asyncio.get_running_loop().create_task(self._check(ledger_id, metadata))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        client = self._client
        try:
            checking = checking_of(ledger_id, metadata, await client.list_bookies())
            await client.run_procedure(ledger_id, metadata, checking)
            # Also what the dead writer had marked.
            self.add(ledger_id, (await client.marks.read(ledger_id)).missing)
        except Error as error:
            _log.warning("ledger.copies_unchecked", ledger_id=ledger_id, reason=str(error))

    def bookies_changed(self) -> None:
        """Bookies came or went: try again at once."""
        self._queue.hurry()
        self._changed.set()

    async def close(self) -> None:
        """Do what can be done within a moment, and give up the rest; it stays marked."""
        await self._stop()
        if (self._checks or len(self._queue)) and not self._client.pool.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    if self._checks:
                        await asyncio.wait(self._checks)
                        await self._stop()
                    if len(self._queue):
                        self._queue.hurry()
                        await self._try_all()
        self._queue.clear()
        for one in self._checks:
            one.cancel()
        await self._stop()

    async def _stop(self) -> None:
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while len(self._queue):
                self._changed.clear()
                await self._try_all()
                if len(self._queue):
                    await self._pause(jittered(max(0.0, self._queue.due_s - loop.time())))
        finally:
            self._task = None

    async def _pause(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), pause_s)
        except TimeoutError:
            return

    async def _try_all(self) -> None:
        queue, now_s = self._queue, asyncio.get_running_loop().time()
        try:
            listed = await self._client.list_bookies()
        except Error:
            listed = []
        writable = {one.service.bookie_id for one in listed if one.writable}
        queue.begin_round(writable, now_s)
        while (step := queue.next()) is not None:
            await self._repair(*step)
        if not len(queue):
            self._reasons.clear()

    async def _repair(self, ledger_id: LedgerId, missing: MissingReplica) -> None:
        repairing = RepairMissing(ledger_id, missing)
        try:
            metadata = (await self._client.ledger_info(ledger_id)).metadata
            if not await self._client.run_procedure(ledger_id, metadata, repairing):
                self._failed(ledger_id, missing, repairing.reason)
                return
        except NoSuchLedger:
            self._queue.deleted(ledger_id)
        except Error as error:
            self._failed(ledger_id, missing, str(error))
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the other repairs
            self._failed(ledger_id, missing, repr(error), error)
        else:
            self._queue.repaired(ledger_id, missing)
            _log.info("ledger.copies_repaired", **_fields(ledger_id, missing))

    def _failed(
        self,
        ledger_id: LedgerId,
        missing: MissingReplica,
        reason: str,
        fault: Exception | None = None,
    ) -> None:
        """Log why a repair did not succeed, unless the last attempt failed for the same reason."""
        if self._reasons.get((ledger_id, missing)) != reason:
            self._reasons[ledger_id, missing] = reason
            fields = _fields(ledger_id, missing)
            _log.warning("ledger.copies_unrepaired", failed=fault, reason=reason, **fields)


def _fields(ledger_id: LedgerId, missing: MissingReplica) -> dict[str, object]:
    return {
        "ledger_id": ledger_id,
        "bookie": missing.bookie_id,
        "first_entry_id": missing.first_entry_id,
        "last_entry_id": missing.last_entry_id,
    }
