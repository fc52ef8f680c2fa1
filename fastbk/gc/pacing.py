"""Work that is spread over time: so much a second, by pauses between its pieces."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BURST_S = 1.0
"""What was not used up is saved for so long: a piece that comes late is not made to wait as well."""


@dataclass
class Pace:
    """Allows `per_s` units of work a second.

    Attributes:
        pause: waits that many seconds; whatever it raises goes through, so work that is paced can be cut off there.
    """

    per_s: float
    pause: Callable[[float], None]
    clock_s: Callable[[], float] = time.monotonic
    _free_at_s: float = field(default=0.0)

    def spend(self, amount: float) -> None:
        """Take note of work that was done, and wait until the next may begin."""
        now_s = self.clock_s()
        self._free_at_s = max(self._free_at_s, now_s - BURST_S) + amount / self.per_s
        wait_s = self._free_at_s - now_s
        if wait_s > 0:
            self.pause(wait_s)
