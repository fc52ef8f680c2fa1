"""Locks that repairs of bookies hold while they work on a ledger, so that AutoRecovery's processes leave it alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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

    @asynccontextmanager
    async def hold(self, ledger_id: LedgerId) -> AsyncIterator[str]:
        """Hold the lock of a ledger during the block, and yield ""; or yield why it cannot be had."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (self._patience_s if ledger_id in self._tried else 0.0)
        while True:
            async with self._client.locks.hold(ledger_id, socket.gethostname()) as lock:
                if lock is not None:
                    self._tried.discard(ledger_id)
                    yield ""
                    return
            if loop.time() >= end_s:
                break
            await asyncio.sleep(jittered(_POLL_S))
        self._tried.add(ledger_id)
        holder = await self._client.locks.holder_of(ledger_id)
        yield f"{holder or 'another process'} holds its lock and may be copying it: run this again later"
