"""Doing something once more whenever it was asked for, never twice at a time, and never missing the last request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Coalescer:
    """Runs `work` after each `poke`; pokes that come while it runs are answered by one run more."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None

    def schedule(self) -> None:
        """Have it done from now on; to be called on the loop."""
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                await self._work()
        finally:
            self._task = None

    def cancel(self) -> None:
        """Give up what is under way."""
        self._is_wanted = False
        if self._task is not None:
            self._task.cancel()
