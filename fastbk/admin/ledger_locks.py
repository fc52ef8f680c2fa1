"""Locks that repairs of bookies hold while they work on a ledger, so that AutoRecovery's processes leave it alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from fastbk.admin.ledger_progress import Attempt
from fastbk.client import Client
from fastbk.model.ids import LedgerId
from fastbk.retry import jittered

_POLL_S = 0.5


class LedgerLocks:
    """The locks of one run. A ledger that another process has locked is not waited for at its first turn."""

    def __init__(self, client: Client, patience_s: float) -> None:
        """`patience_s`: how long a ledger waits for its lock when its turn comes again."""
        self._client = client
        self._patience_s = patience_s
        self._tried: set[LedgerId] = set()

    async def run(
        self, ledger_id: LedgerId, work: Callable[[LedgerId], Coroutine[Any, Any, Attempt]]
    ) -> Attempt:
        """Work on a ledger under its lock; one whose lock cannot be had is parked.

        Raises LockLost, and what `work` raises.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (self._patience_s if ledger_id in self._tried else 0.0)
        while True:
            async with self._client.locks.hold(ledger_id, socket.gethostname()) as lock:
                if lock is not None:
                    self._tried.discard(ledger_id)
                    return await self._client.locks.run(lock, work(ledger_id))
            if loop.time() >= end_s:
                break
            await asyncio.sleep(jittered(_POLL_S))
        self._tried.add(ledger_id)
        holder = await self._client.locks.holder_of(ledger_id)
        reason = f"{holder or 'another process'} holds its lock and may be copying it: run this again later"
        return Attempt(reason, is_parked=True)
