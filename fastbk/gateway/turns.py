"""How many threads of the store one client may have at once, so that others find some.

A call that its client does not wait for any more goes on in its thread. It counts until the thread has ended: a client
that gives up early and comes again does not get more threads that way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from fastbk.errors import MetadataUnavailable

if TYPE_CHECKING:
    from fastbk.client.metadata_calls import MetadataCalls
    from fastbk.meta.api import MetadataStore

CALLS_OF_ONE_MAX = 6
"""Of the eight that there are for ZooKeeper (`fastbk.client.metadata_calls.CALLS_AT_ONCE`)."""
T = TypeVar("T")


class Turns:
    """The calls of all clients of one gateway. Belongs to one event loop."""

    def __init__(self, calls: MetadataCalls) -> None:
        self._calls = calls
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._users: dict[str, int] = {}

    async def call(self, client: str, work: Callable[[MetadataStore], T], limit_s: float) -> T:
        """Return what `work` returns in a thread. Raises MetadataUnavailable after the limit, and what it raises."""
        end_s = time.monotonic() + limit_s
        turns = self._turns.setdefault(client, asyncio.Semaphore(CALLS_OF_ONE_MAX))
        self._users[client] = self._users.get(client, 0) + 1
        try:
            async with asyncio.timeout(limit_s):
                await turns.acquire()
        except TimeoutError:
            self._leave(client)
            text = f"{client} has {CALLS_OF_ONE_MAX} requests at work here already: send fewer at once, or try again"
            raise MetadataUnavailable(text, outcome="not_written") from None
        except BaseException:
            self._leave(client)
            raise
        loop, begun = asyncio.get_running_loop(), threading.Lock()

        def ended() -> None:
            turns.release()
            self._leave(client)

        def run(store: MetadataStore) -> T:
            if not begun.acquire(blocking=False):
                raise MetadataUnavailable("nobody waits for it any more", outcome="not_written")
            try:
                return work(store)
            finally:
                with suppress(RuntimeError):  # the loop is closed: nobody waits for a turn
                    loop.call_soon_threadsafe(ended)

        try:
            return await self._calls.call(run, max(0.1, end_s - time.monotonic()))
        finally:
            if begun.acquire(blocking=False):  # it never began, and does not begin now
                ended()

    def _leave(self, client: str) -> None:
        self._users[client] -= 1
        if not self._users[client]:
            del self._users[client], self._turns[client]
