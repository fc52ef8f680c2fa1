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

    from fastbk.server.supervision.lifecycle import Lifecycle
    from fastbk.server.supervision.monitor import Watchdog

EXTENSION_S, EXTEND_EVERY_S = 60.0, 15.0
"""A replay or a drain may last as long as it wants; whoever hangs in one is killed by the watchdog."""


class SystemdStates:
    """One bookie's, over all its boots; without systemd it does nothing."""

    def __init__(self, life: Lifecycle, watchdog: Watchdog) -> None:
        self._life = life
        self._watchdog = watchdog
        self._systemd = Systemd()
        self._is_ready = False
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, stack: contextlib.AsyncExitStack) -> None:
        """Tell of changes until `stack` closes."""
        if self._systemd.is_there:
            stack.push_async_callback(self.close)
            self._life.on_change = self._changed
            self._changed()
            works = (
                keep_alive(self._systemd, lambda: not self._watchdog.is_data_frozen),
                self._extend(),
            )
            self._tasks = [asyncio.get_running_loop().create_task(one) for one in works]

    async def close(self) -> None:
        """Tell no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._systemd.close()

    def _changed(self) -> None:
        state, reason = self._life.state, self._life.reason
        lines = [f"STATUS={state.value}: {' '.join(reason.split())[:500]}"]
        if state in (State.WRITABLE, State.READ_ONLY) and not self._is_ready:
            self._is_ready = True
            lines.append("READY=1")
        elif state is State.DRAINING:
            lines.append("STOPPING=1")
        self._systemd.notify(*lines)

    async def _extend(self) -> None:
        while True:
            if not self._is_ready or self._life.state is State.DRAINING:
                self._systemd.extend(EXTENSION_S)
            await asyncio.sleep(EXTEND_EVERY_S)
