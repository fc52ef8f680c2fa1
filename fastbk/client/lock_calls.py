"""Locks of ledgers for the asyncio client: who copies or changes a ledger's copies holds its lock meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastbk.client.metadata_calls import MetadataCalls
from fastbk.errors import ClientClosed, Error
from fastbk.meta import MetadataStore
from fastbk.meta.coordination import LedgerLock
from fastbk.model.ids import LedgerId
from fastbk.retry import Backoff, jittered

T = TypeVar("T")
LOOK_INTERVAL_S = 5.0
"""How often work under a lock looks whether it has it still."""
_RELEASE_PAUSE_MIN_S = 0.1
_RELEASE_PAUSE_MAX_S = 10.0


class LockLost(Error):
    """The session behind a ledger's lock has ended: another process may have the lock."""


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
                tried = asyncio.Event()
                task = asyncio.get_running_loop().create_task(self._release(lock, tried))
                self._releasing.add(task)
                task.add_done_callback(self._releasing.discard)
                await tried.wait()

    async def run(self, lock: LedgerLock, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. Raises LockLost and cancels it once the lock is lost.

        Else two processes would copy one ledger for as long as that takes (INV-H2). A store that does not answer says
        nothing, so work goes on meanwhile.
        """
        task = asyncio.get_running_loop().create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=LOOK_INTERVAL_S))[0]:
                if not await self._may_be_held(lock):
                    what = f"the session that held the lock of ledger {lock.ledger_id} has ended"
                    raise LockLost(what, ledger_id=lock.ledger_id, retryable=True)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _may_be_held(self, lock: LedgerLock) -> bool:
        try:
            return await self._store.call(lambda _: lock.is_held())
        except Error:
            return True

    async def _release(self, lock: LedgerLock, tried: asyncio.Event) -> None:
        """Release a lock, however long that takes; `tried` is set once it was tried.

        A call that was given up may never have been made. What one that was made could not do is repeated by the store.
        """
        backoff = Backoff(_RELEASE_PAUSE_MIN_S, _RELEASE_PAUSE_MAX_S)
        try:
            while not await self._is_released(lock):
                tried.set()
                await asyncio.sleep(jittered(backoff.next_s()))
        finally:
            tried.set()

    async def _is_released(self, lock: LedgerLock) -> bool:
        try:
            await self._store.call(lambda _: lock.release())
        except ClientClosed:
            return True  # it ends with the session
        except Error:
            return False
        return True

    async def holder_of(self, ledger_id: LedgerId) -> str | None:
        """Return who holds a ledger's lock, None if nobody does."""
        return await self._store.call(lambda store: store.coordination.worker_of(ledger_id))

    async def close(self, timeout_s: float) -> None:
        """Wait for releases that are under way; what is left ends with the session."""
        releasing = set(self._releasing)
        if releasing:
            await asyncio.wait(releasing, timeout=timeout_s)
        for one in releasing:
            one.cancel()
