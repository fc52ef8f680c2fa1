"""How much copying makes way for the adds of writers, by what bookies say with their answers. Pure.

A bookie tells with each answer how long normal adds wait there for the journal. Say they wait 5 ms while nothing is
copied, and 12 ms once copying has begun: then copying rests, until they wait 10 ms again.

So copying works a share of the time with each bookie. It begins with a quarter, which shows how long adds wait with
little of it. While they wait less than twice as long as that, the share grows; when they wait longer, it is halved. It
never falls below the quarter: copies that are missing have to come back soon, and the rate limits them, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastbk.model.ids import BookieId

SHARE_MIN = 1 / 4
LATE_FACTOR = 2.0
WAIT_S_MIN = 0.005
"""Shorter waits are never late, on however quick a disk: copying has to go on, too."""
CHANGE_INTERVAL_S = 0.1
"""A share changes once in so long: what the last change did has to be seen first."""
GROWTH = 1.25
LEAST_AGE_S = 60.0
"""The least wait is that of the last one to two times so long: disks and loads change."""
REST_MAX_S = 0.5


class _Bookie:
    """What one bookie said."""

    __slots__ = ("changed_s", "least_s", "least_since_s", "least_s_before", "share")

    def __init__(self, wait_s: float, now_s: float) -> None:
        self.share = SHARE_MIN
        self.changed_s = now_s
        self.least_s = self.least_s_before = wait_s
        self.least_since_s = now_s

    def take(self, wait_s: float, now_s: float) -> None:
        if now_s - self.least_since_s >= LEAST_AGE_S:
            self.least_s_before, self.least_s = self.least_s, wait_s
            self.least_since_s = now_s
        self.least_s = min(self.least_s, wait_s)
        if now_s - self.changed_s < CHANGE_INTERVAL_S:
            return
        self.changed_s = now_s
        late_s = max(WAIT_S_MIN, LATE_FACTOR * min(self.least_s, self.least_s_before))
        grown = self.share / 2 if wait_s > late_s else self.share * GROWTH
        self.share = min(1.0, max(SHARE_MIN, grown))


class BackPressure:
    """What the bookies said to all procedures that have it in their options. Times are of one clock."""

    def __init__(self) -> None:
        self._bookies: dict[BookieId, _Bookie] = {}

    def note(self, bookie_id: BookieId, add_wait_s: float, now_s: float) -> None:
        """Take what came with an answer: how long normal adds wait there; 0: none came within the last second."""
        bookie = self._bookies.get(bookie_id)
        if add_wait_s <= 0:
            self._bookies.pop(bookie_id, None)
        elif bookie is None:
            self._bookies[bookie_id] = _Bookie(add_wait_s, now_s)
        else:
            bookie.take(add_wait_s, now_s)

    def share(self, bookie_id: BookieId) -> float:
        """Return the share of the time in which copying may work with a bookie: SHARE_MIN to 1."""
        bookie = self._bookies.get(bookie_id)
        return 1.0 if bookie is None else bookie.share

    def rest_s(self, bookie_ids: Iterable[BookieId], worked_s: float) -> float:
        """Return how long to rest after work with these for so long."""
        share = min(map(self.share, bookie_ids), default=1.0)
        return min(REST_MAX_S, worked_s * (1 / share - 1))
