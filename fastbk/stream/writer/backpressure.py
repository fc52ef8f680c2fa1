"""Room for a writer's appends: who waits for it, in which order, and for how long.

Appends that wait hold the gate one after the other, in the order of their calls (INV-S5). Meanwhile no other append may
pass them, so `append_nowait` is refused although bytes may have become free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastbk.errors import BufferFull, QuorumTimeout

if TYPE_CHECKING:
    from fastbk.stream.positions import DLSN
    from fastbk.stream.writer.engine import AppendEngine

WAITING_MAX = 10_000
"""Appends of one writer that wait for room at a time."""
CALLS_PER_TURN = 64
"""So many calls of `ready` may return without letting other tasks run: some 100 us of records."""


class Backpressure:
    """Those of one opened writer.

    Attributes:
        waiting: appends that wait for room.
    """

    engine: AppendEngine
    """Set before the first append."""

    def __init__(self, name: str) -> None:
        """`name`: the stream's, for messages."""
        self._name = name
        self._gate = asyncio.Lock()
        self._room = asyncio.Event()
        self._ready_calls = 0
        self.waiting = 0

    @property
    def may_pass(self) -> bool:
        """Whether an append may be taken at once: there is room, and nobody waits for it."""
        return not self.waiting and self.engine.queue.has_room

    def check_no_waiters(self) -> None:
        """Raise BufferFull where an append that is taken now would pass others."""
        if self.waiting:
            raise BufferFull(f"{self.waiting} appends wait for room: await ready()")

    async def append(
        self, take: Callable[[], asyncio.Future[DLSN]], timeout_s: float | None
    ) -> DLSN:
        """Call `take`, now or when its turn has come and there is room, and await what it returns.

        Raises BufferFull where too many wait, QuorumTimeout.
        """
        if self.waiting >= WAITING_MAX:
            raise BufferFull(f"{WAITING_MAX} appends wait for room already: await them")
        taken = self._taken_now(take)
        try:
            async with asyncio.timeout(timeout_s):
                if taken is None:
                    taken = await self._taken_in_turn(take)
                return await taken
        except TimeoutError:
            raise QuorumTimeout(
                f"{self._name}: the append was not acknowledged within {timeout_s:g} s",
                outcome="not_written" if taken is None else "unknown",
            ) from None

    async def taken(self, take: Callable[[], asyncio.Future[DLSN]]) -> asyncio.Future[DLSN]:
        """Call `take`, now or when its turn has come and there is room; return what it returns."""
        return self._taken_now(take) or await self._taken_in_turn(take)

    def _taken_now(self, take: Callable[[], asyncio.Future[DLSN]]) -> asyncio.Future[DLSN] | None:
        """Call `take`; None where it has to wait: for others, for room, or since it is larger than what is left."""
        if not self.may_pass:
            return None
        try:
            return take()
        except BufferFull:
            return None

    async def _taken_in_turn(
        self, take: Callable[[], asyncio.Future[DLSN]]
    ) -> asyncio.Future[DLSN]:
        self.waiting += 1
        try:
            async with self._gate:
                while True:
                    await self._until_room()
                    try:
                        return take()
                    except BufferFull:
                        # Larger than what is left: each acknowledgement leaves more. Alone it is always taken.
                        self._room.clear()
                        await self._room.wait()
        finally:
            self.waiting -= 1

    async def ready(self) -> None:
        """Return when there is room, behind all that wait for it; now and then let other tasks run.

        Raises what ended the writer.
        """
        self._ready_calls += 1
        if self.waiting or self._ready_calls % CALLS_PER_TURN == 0:
            await asyncio.sleep(0)
        async with self._gate:
            await self._until_room()

    async def passed(self) -> None:
        """Return when all that wait now have had their turn."""
        if self.waiting:
            async with self._gate:
                pass

    def wake(self) -> None:
        """Bytes became free, or the writer has ended."""
        if not self._room.is_set() and (
            self.engine.queue.has_room or self.engine.failure is not None
        ):
            self._room.set()

    async def _until_room(self) -> None:
        while self.engine.failure is None and not self.engine.queue.has_room:
            self._room.clear()
            await self._room.wait()
        if self.engine.failure is not None:
            raise self.engine.unsent()
