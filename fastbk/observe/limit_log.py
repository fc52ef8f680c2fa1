"""What a process's limits refused or closed: counted by limit, and logged at a bounded rate.

An attacker chooses how often a limit is reached, so one line per event would fill the log. Each limit
writes one line at once, and then at most one per interval, with the number of events since the last.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.observe import logs

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_INTERVAL_S = 10.0


class LimitLog:
    """Counts events by the name of their limit.

    Attributes:
        counts: events of each limit since the process started; a limit without events is missing.
    """

    def __init__(self, event: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`event`: the name of the log line."""
        self.counts: dict[str, int] = {}
        self._event = event
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}

    def note(self, limit: str, count: int = 1, **values: object) -> None:
        """Count events of a limit; log them unless a line of the same limit was written just now."""
        total = self.counts.get(limit, 0) + count
        self.counts[limit] = total
        now_s = self._clock()
        logged_s, logged_total = self._logged.get(limit, (-LOG_INTERVAL_S, 0))
        if now_s - logged_s < LOG_INTERVAL_S:
            return
        self._logged[limit] = (now_s, total)
        logs.warning(self._event, limit=limit, count=total - logged_total, total=total, **values)
