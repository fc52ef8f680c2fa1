"""Apache's `OpStats`: how many, their sum, and quantiles of what came within the last minute, by success.

For what happens some times a second at most, in one thread. A bookie's own are histograms in shared memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from fastbk.observe.prometheus import heading, number

QUANTILES = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
WINDOW_S = 60.0
RECENT_MAX = 1024
"""Values that quantiles are of; with more of them in the window, of the latest."""


class OpStats:
    """Values of one kind, in the unit that they are shown in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = {True: 0, False: 0}
        self._sums = {True: 0.0, False: 0.0}
        self._recent: dict[bool, deque[tuple[float, float]]] = {
            one: deque(maxlen=RECENT_MAX) for one in (True, False)
        }

    def count(self, ok: bool = True) -> int:
        """Return how many there were."""
        return self._counts[ok]

    def add(self, value: float, ok: bool = True) -> None:
        """Count one."""
        self._counts[ok] += 1
        self._sums[ok] += value
        self._recent[ok].append((self._clock(), value))

    def lines(self, metric: str, text: str) -> list[str]:
        """Return the lines of Prometheus' text format. A quantile without values in the window is NaN."""
        lines = heading(metric, "summary", text)
        for ok, label in ((False, 'success="false"'), (True, 'success="true"')):
            oldest_s = self._clock() - WINDOW_S
            values = sorted(value for at_s, value in self._recent[ok] if at_s >= oldest_s)
            for share in QUANTILES:
                at = min(len(values) - 1, int(float(share) * len(values)))
                value = values[at] if values else float("nan")
                lines.append(f'{metric}{{{label},quantile="{share}"}} {number(value)}')
            lines.append(f"{metric}_count{{{label}}} {self._counts[ok]}")
            lines.append(f"{metric}_sum{{{label}}} {number(self._sums[ok])}")
        return lines
