"""How fast background work may go: a token bucket in bytes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BURST_S = 0.1
"""What was not used for so long may be used at once."""
DEBT_MAX_S = 60.0
"""Nothing costs more: a pass over all locations may read far more than what it is for."""


class TokenBucket:
    """Says how long to wait after so many bytes. One thread, but for `set_rate`."""

    def __init__(
        self, bytes_per_s: float, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin full. `bytes_per_s`: more than 0."""
        self._bytes_per_s = bytes_per_s
        self._monotonic_s = monotonic_s
        self._paid_until_s = monotonic_s()
        """When everything that was done would have been done at the rate."""

    def set_rate(self, bytes_per_s: float) -> None:
        """Go on at another rate."""
        self._bytes_per_s = bytes_per_s

    def take(self, size_bytes: int) -> float:
        """Note that so many bytes were read or written; return the seconds to wait before more are."""
        now_s = self._monotonic_s()
        begin_s = max(self._paid_until_s, now_s - BURST_S)
        paid_until_s = begin_s + size_bytes / self._bytes_per_s
        self._paid_until_s = min(paid_until_s, now_s + DEBT_MAX_S)
        return self.wait_s()

    def wait_s(self) -> float:
        """Return the seconds to wait from now on."""
        return max(0.0, self._paid_until_s - self._monotonic_s())
