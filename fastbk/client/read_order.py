"""In which order a reader asks the bookies that hold the same: those that fail or are slow come last. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastbk.client.known_bookies import KnownBookies
from fastbk.model.ids import BookieId

AVOID_S = 5.0
"""A bookie that was slower than another is asked last for so long."""


class ReadOrder:
    """One reader's order. Times are seconds of the clock that `known` uses.

    `turn` spreads readers over bookies; within a striped ledger the order that comes is kept, since the first one there
    holds the longest run of what follows.
    """

    def __init__(self, known: KnownBookies, turn: int, *, is_striped: bool) -> None:
        self._known = known
        self._turn = turn
        self._is_striped = is_striped
        self._slow_until_s: dict[BookieId, float] = {}
        self._now_s = 0.0

    def at(self, now_s: float) -> ReadOrder:
        """Set the time by which the next orders are made."""
        self._now_s = now_s
        return self

    def were_slow(self, bookie_ids: Sequence[BookieId] | Mapping[BookieId, int]) -> None:
        """Take note of bookies that another was quicker than."""
        for bookie_id in bookie_ids:
            self._slow_until_s[bookie_id] = self._now_s + AVOID_S

    def __call__(self, bookie_ids: Sequence[BookieId]) -> Sequence[BookieId]:
        """Return the same bookies, those to ask first first."""
        turned = list(bookie_ids)
        if not self._is_striped and turned:
            at = self._turn % len(turned)
            turned = turned[at:] + turned[:at]
        now_s = self._now_s
        return sorted(
            turned,
            key=lambda one: (
                self._known.is_suspect(one, now_s),
                self._slow_until_s.get(one, 0.0) > now_s,
            ),
        )
