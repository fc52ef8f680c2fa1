"""How much of what needs metadata a client's streams do at once.

Thousands of streams of one client become due to roll in the same moment. Each roll is half a dozen calls of metadata,
which a few threads make one after the other: all at once they would wait longer than a call may, and be given up while
they still happen. So only some go on at a time, and the others wait in their order; appends wait for none of it.
"""

from __future__ import annotations

import asyncio
import time
from weakref import WeakKeyDictionary

from fastbk.client.client import Client
from fastbk.errors import Error, MetadataUnavailable
from fastbk.observe.library_log import LibraryLog

_log = LibraryLog("fastbk.stream")

SLOTS_MAX = 64
"""Segments that are made or ended at once by one client, and streams that are opened."""
LINE_EVERY_S = 1.0
"""In an outage thousands of streams try in vain every few seconds."""


class SegmentSlots:
    """One client's turns at it, in the order of their asking; `async with` waits for one.

    Attributes:
        trouble: that metadata did not answer the last of them; None once it has answered any.
    """

    def __init__(self) -> None:
        self.trouble: Error | None = None
        self._trouble_since_s = 0.0
        self._told_s: float | None = None
        self._untold = 0
        self._semaphore = asyncio.Semaphore(SLOTS_MAX)

    @property
    def troubled_s(self) -> float:
        """For how long metadata has answered nobody; 0 when it answers."""
        return 0.0 if self.trouble is None else time.monotonic() - self._trouble_since_s

    def log_wait(self, stream: str, error: Error) -> None:
        """Log that a segment of a stream's has to wait; a line a second, which counts those that were not named."""
        now_s = time.monotonic()
        if self._told_s is not None and now_s - self._told_s < LINE_EVERY_S:
            self._untold += 1
            return
        others, self._untold, self._told_s = self._untold, 0, now_s
        _log.warning("stream.segment_waits", stream=stream, reason=str(error), others=others)

    async def __aenter__(self) -> None:
        await self._semaphore.acquire()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._semaphore.release()
        if isinstance(error, MetadataUnavailable):
            if self.trouble is None:
                self._trouble_since_s = time.monotonic()
            self.trouble = error
        elif error is None or isinstance(error, Exception):
            self.trouble = None


_slots: WeakKeyDictionary[Client, SegmentSlots] = WeakKeyDictionary()


def slots_of(client: Client) -> SegmentSlots:
    """Return what has to be held while a segment is made or ended, or a stream is opened."""
    found = _slots.get(client)
    if found is None:
        found = _slots[client] = SegmentSlots()
    return found
