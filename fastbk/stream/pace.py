"""Work that is spread over time: so much a second, by pauses between its pieces."""

from __future__ import annotations

import asyncio

from fastbk.errors import ConfigError

BURST_S = 1.0
"""What was not used is saved for so long."""


class Pace:
    """Allows so many units of work a second, on one event loop."""

    def __init__(self, per_s: float = 1000.0) -> None:
        if per_s <= 0:
            raise ConfigError(f"{per_s} a second: must be above 0")
        self._per_s = per_s
        self._free_at_s = 0.0

    async def spend(self, amount: float) -> None:
        """Take note of work that was done, and wait until the next may begin."""
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s - BURST_S) + amount / self._per_s
        if self._free_at_s > now_s:
            await asyncio.sleep(self._free_at_s - now_s)
