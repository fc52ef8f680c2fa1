"""A rate that several procedures share, and that may change while they run. Pure."""

from __future__ import annotations

import math

WAIT_MAX_S = 1.0
"""Nobody waits longer before it checks the rate again."""


class CopyRate:
    """Bytes a second, over all procedures that have it in their options. Times are of one clock.

    Attributes:
        bytes_per_s: may be changed at any time. 0: nothing may be read; infinite: there is no limit.
        end_s: from then on it is 0, unless it was changed before.
        bytes_total: read so far.
    """

    def __init__(self, bytes_per_s: float = math.inf) -> None:
        self.bytes_per_s = bytes_per_s
        self.end_s = math.inf
        self.bytes_total = 0
        self._debt_bytes = 0.0
        self._paid_s = -math.inf

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Note that so much was read."""
        self._pay(now_s)
        self.bytes_total += size_bytes
        self._debt_bytes += size_bytes

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait, and check again, before the next read; 0: it may begin."""
        self._pay(now_s)
        if self.bytes_per_s <= 0 or now_s >= self.end_s:
            return WAIT_MAX_S
        return min(WAIT_MAX_S, self._debt_bytes / self.bytes_per_s)

    def _pay(self, now_s: float) -> None:
        """Take off the debt what the time since the last call allows, at the rate of now."""
        if math.isinf(self.bytes_per_s):
            self._debt_bytes = 0.0
        elif now_s > self._paid_s and self._debt_bytes:
            self._debt_bytes -= (now_s - self._paid_s) * self.bytes_per_s
            # Less than a byte is nothing: a float's rest would make for a wait that ends at the same moment.
            self._debt_bytes = self._debt_bytes if self._debt_bytes >= 1 else 0.0
        self._paid_s = max(self._paid_s, now_s)
