"""Limits: so many units of work a second, and how many files a process may have open.

    limit = RateLimit(1000.0)
    for page in pages:
        work(page)
        limit.spend(len(page))  # or: await asyncio.sleep(limit.take(len(page)))

A rate limit waits after work and not before it, since the size of a piece is often known only then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fastbk.errors import ConfigError


class RateLimit:
    """Allows `per_s` units of work a second. One thread, but for changes of `per_s`.

    Attributes:
        per_s: may be changed at any time; above 0.
        pause: waits that many seconds. What it raises goes through `spend`, so it can cut work off there.
    """

    def __init__(
        self,
        per_s: float,
        pause: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] | None = None,
        *,
        burst_s: float = 1.0,
        debt_max_s: float = math.inf,
        is_rested: bool = False,
    ) -> None:
        """`burst_s`: unused time is saved for so long. `debt_max_s`: no piece costs more. Raises ConfigError.

        `is_rested`: it begins with all of `burst_s` saved, and not with nothing.
        """
        if per_s <= 0:
            raise ConfigError(f"{per_s} a second: must be above 0")
        self.per_s = per_s
        self.pause = pause
        self._clock_s = clock_s or time.monotonic
        self._burst_s = burst_s
        self._debt_max_s = debt_max_s
        self._free_at_s = self._clock_s() - (burst_s if is_rested else 0.0)

    def take(self, amount: float) -> float:
        """Note work that was done; return the seconds to wait before the next piece."""
        now_s = self._clock_s()
        free_at_s = max(self._free_at_s, now_s - self._burst_s) + amount / self.per_s
        self._free_at_s = min(free_at_s, now_s + self._debt_max_s)
        return max(0.0, self._free_at_s - now_s)

    def wait_s(self) -> float:
        """Return the seconds to wait from now on."""
        return max(0.0, self._free_at_s - self._clock_s())

    def spend(self, amount: float) -> None:
        """Note work that was done, and wait until the next may begin."""
        wait_s = self.take(amount)
        if wait_s > 0:
            self.pause(wait_s)


OTHER_DESCRIPTORS = 64
"""A process's own: segments, bells, control, the loop's."""


def allow_descriptors(connections_max: int) -> int:
    """Raise this process's limit of open files so that `connections_max` fit, as far as it may.

    Return how many connections fit: fewer than asked for only where the hard limit is lower."""
    import resource  # most processes that limit their work have few files

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return connections_max
    return max(1, min(connections_max, soft - OTHER_DESCRIPTORS))
