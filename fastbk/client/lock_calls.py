"""Locks of ledgers for the asyncio client: who copies or changes a ledger's copies holds its lock meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastbk.client.metadata_calls import MetadataCalls
from fastbk.errors import Error
from fastbk.meta import MetadataStore
from fastbk.meta.coordination import LedgerLock
from fastbk.model.ids import LedgerId


class _Taking:
    """One attempt to take a lock, in a thread of the store's. Its caller may give it up before it ends."""

    def __init__(self, ledger_id: LedgerId, holder: str) -> None:
        self._ledger_id = ledger_id
        self._holder = holder
        self._mutex = threading.Lock()
        self._is_given_up = False
        self._lock: LedgerLock | None = None

    def take(self, store: MetadataStore) -> LedgerLock | None:
        """Take the lock, unless another holds it. One that nobody waits for any more is released at once."""
        lock = store.coordination.lock(self._ledger_id, self._holder)
        with self._mutex:
            self._lock = lock
            is_given_up = self._is_given_up
        if is_given_up and lock is not None:
            lock.release()
        return lock

    def give_up(self) -> LedgerLock | None:
        """Return the lock, which is to be released; None: there is none, or `take` releases it."""
        with self._mutex:
            self._is_given_up = True
            return self._lock


class LockCalls:
    """The locks of ledgers in a client's cluster (`fastbk.meta.coordination`). Errors are the store's."""

    def __init__(self, store: MetadataCalls) -> None:
        self._store = store
        self._releasing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def hold(self, ledger_id: LedgerId, holder: str) -> AsyncIterator[LedgerLock | None]:
        """Hold a ledger's lock during the block; None: another process holds it. `holder`: this host's name.

        The lock is released on every way out of the block, also when the call that takes it is cancelled or times out.
        """
        taking = _Taking(ledger_id, holder)
        try:
            yield await self._store.call(taking.take)
        finally:
            lock = taking.give_up()
            if lock is not None:
                task = asyncio.get_running_loop().create_task(self._release(lock))
                self._releasing.add(task)
                task.add_done_callback(self._releasing.discard)
                await asyncio.shield(task)

    async def _release(self, lock: LedgerLock) -> None:
        # What fails here is repeated by the store, or ends with its session.
        with suppress(Error):
            await self._store.call(lambda _: lock.release())

    async def holder_of(self, ledger_id: LedgerId) -> str | None:
        """Return who holds a ledger's lock, None if nobody does."""
        return await self._store.call(lambda store: store.coordination.worker_of(ledger_id))

    async def close(self, timeout_s: float) -> None:
        """Wait for releases that are under way."""
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=timeout_s)
