"""`/hot`: the ledgers with the most adds of this bookie, in a window of some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastbk.native.hot_ledgers import HotLedger, HotWindow, hot_window

if TYPE_CHECKING:
    from fastbk.server.admin.metrics import Metrics

SHOWN_MAX = 100
WINDOW_AGE_MAX_S = 15.0
"""An older window is not shown: its index stands still, or stops."""


class HotPage:
    """Answers from the segments of the indexes. A ledger lives in one of them (INV-D3)."""

    def __init__(self, metrics: Metrics, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._metrics = metrics
        self._clock_ns = clock_ns

    async def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the ledgers with most adds a second first, at most SHOWN_MAX; none before the first window ends."""
        found = (hot_window(one.segment) for one in self._metrics.stats("index"))
        return shown([one for one in found if one is not None], self._clock_ns())


def shown(windows: list[HotWindow], now_ns: int) -> dict[str, Any]:
    """Return the windows of all indexes for JSON.

    `adds_per_second` is what a ledger has for certain, but for the sample's error; with `adds_per_second_over` more at
    most.
    """
    ledgers: list[tuple[float, HotLedger, float]] = []
    longest_s = oldest_s = 0.0
    for window in windows:
        age_s, took_s = (now_ns - window.ended_ns) / 1e9, (window.ended_ns - window.began_ns) / 1e9
        if age_s > WINDOW_AGE_MAX_S or took_s <= 0:
            continue
        longest_s, oldest_s = max(longest_s, took_s), max(oldest_s, age_s)
        ledgers += [((one.adds - one.adds_over) / took_s, one, took_s) for one in window.ledgers]
    ledgers.sort(key=lambda each: (-each[0], each[1].ledger_id))
    return {
        "window_seconds": round(longest_s, 3),
        "age_seconds": round(oldest_s, 3),
        "ledgers": [
            {
                "ledger_id": one.ledger_id,
                "adds_per_second": round(certain_per_s, 2),
                "adds_per_second_over": round(one.adds_over / took_s, 2),
                "bytes_per_second": round(one.size_bytes / took_s, 1),
            }
            for certain_per_s, one, took_s in ledgers[:SHOWN_MAX]
        ],
    }
