"""Tells systemd a bookie's states: ready once it serves, alive while nothing that data passes through stands still.

Decision 122.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.observe.systemd import Systemd, keep_alive
from fastbk.server.supervision.lifecycle import State

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

EXTENSION_S, EXTEND_EVERY_S = 60.0, 15.0
"""A replay or a drain may last as long as it wants; whoever hangs in one is killed by the watchdog."""


class SystemdStates:
    """One bookie's, over all its boots; without systemd it does nothing."""

    def __init__(self) -> None:
        self._systemd = Systemd()
        self._state, self._reason = State.STARTING, "starting"
        self._is_ready = False
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, stack: contextlib.AsyncExitStack, is_alive: Callable[[], bool]) -> None:
        """Tell of changes until `stack` closes, and that the bookie is alive as long as it is."""
        if self._systemd.is_there:
            stack.push_async_callback(self.close)
            self._tell()
            works = (keep_alive(self._systemd, is_alive), self._extend())
            self._tasks = [asyncio.get_running_loop().create_task(one) for one in works]

    def changed(self, state: State, reason: str) -> None:
        """Take in a step of the bookie's life."""
        self._state, self._reason = state, reason
        if self._tasks:
            self._tell()

    async def close(self) -> None:
        """Tell no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._systemd.close()

    def _tell(self) -> None:
        state, reason = self._state, self._reason
        lines = [f"STATUS={state.value}: {' '.join(reason.split())[:500]}"]
        if state in (State.WRITABLE, State.READ_ONLY) and not self._is_ready:
            self._is_ready = True
            lines.append("READY=1")
        elif state is State.DRAINING:
            lines.append("STOPPING=1")
        self._systemd.notify(*lines)

    async def _extend(self) -> None:
        while True:
            if not self._is_ready or self._state is State.DRAINING:
                self._systemd.extend(EXTENSION_S)
            await asyncio.sleep(EXTEND_EVERY_S)
