"""Bounds of repairs and checks of copies, and what they share: the rate, and the bookies' back-pressure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fastbk.model.ids import BookieId
from fastbk.placement.config import Distance
from fastbk.replication.options import Noted, ReadOptions
from fastbk.replication.procedure import Outcome, Reply
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status

# --- back pressure --------------------------------------------------------------------------------
#
# How much copying makes way for the adds of writers, by what bookies say with their answers. Pure.
#
# A bookie tells with each answer how long normal adds wait there for the journal. Say they wait 5
# ms while nothing is copied, and 12 ms once copying has begun: then copying rests, until they wait
# 10 ms again.
#
# So copying works a share of the time with each bookie. It begins with a quarter, which shows how
# long adds wait with little of it. While they wait less than twice as long as that, the share
# grows; when they wait longer, it is halved. It never falls below the quarter: copies that are
# missing have to come back soon, and the rate limits them, too.


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


# --- rates ----------------------------------------------------------------------------------------
#
# A rate that several procedures share, and that may change while they run. Pure.


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


Took: TypeAlias = Callable[[float, bool], None]
"""Is told how many seconds a request took, and whether its answer was OK."""


def uncounted(took_s: float, is_ok: bool) -> None:
    """Take no note of it."""


def nowhere(bookie_id: BookieId) -> Distance:
    """Nobody says where a bookie is."""
    return Distance.UNKNOWN


def uncounted_copies(entries: int, size_bytes: int) -> None:
    """Take no note of them."""


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Bounds of a repair. Repairs that have the same `rate` and `pressure` share them."""

    entries_in_flight_max: int = 1024
    bytes_in_flight_max: int = 8 * 1024 * 1024
    read_entries_max: int = 1000
    read_bytes_max: int = 1024 * 1024
    batch_entries_max: int = 128
    """Copies that go to a bookie of ours in one request."""
    batch_bytes_max: int = 256 * 1024
    """So that a writer's add waits for the journal behind one of them no longer than behind its own batch."""
    rate: CopyRate = field(default_factory=CopyRate)
    pressure: BackPressure = field(default_factory=BackPressure)
    distance: Callable[[BookieId], Distance] = nowhere
    """How far a bookie is from whoever copies."""
    read_took: Took = uncounted
    write_took: Took = uncounted
    """Are told of each request for copies."""
    copied: Callable[[int, int], None] = uncounted_copies
    """Is told of entries and bytes that a bookie took."""
    request_timeout_s: float = 10.0
    metadata_timeout_s: float = 30.0
    patience_s: float = 20.0
    """How long a ledger waits for holders that do not answer, once; then it is parked (`ShareCopied.unread`)."""
    patience_after_s: float = 1.0
    """The same from then on, for the ledger's other fragments."""
    recheck_after_s: float = 3600.0
    """A target that was given nothing for so long before it is named gets its share again: what nobody counts on may
    have been dropped there meanwhile. Must be far shorter than any bookie's [gc] over_replicated_age.
    """
    backoff_min_s: float = 0.02
    backoff_max_s: float = 1.0

    def pacing(self, give_up_s: float) -> Pacing:
        """Return the pacing of requests that are given up after so long."""
        return Pacing(
            request_timeout_s=self.request_timeout_s,
            give_up_s=give_up_s,
            pause_min_s=self.backoff_min_s,
            pause_max_s=self.backoff_max_s,
        )

    def reads(self, patience_s: float, noted: Noted) -> ReadOptions:
        """Return how the copies are read: one answer ahead. `noted` sees each answer."""
        return ReadOptions(
            batch_entries=self.read_entries_max,
            batch_bytes=self.read_bytes_max,
            size_bytes_max=1,
            pacing=self.pacing(patience_s),
            noted=noted,
        )

    def note(self, bookie_id: BookieId, outcome: Outcome, now_s: float) -> None:
        """Take the back-pressure that came with an answer."""
        if isinstance(outcome, Reply) and outcome.status == Status.OK:
            self.pressure.note(bookie_id, outcome.add_wait_s, now_s)

    def note_read(
        self, bookie_id: BookieId, outcome: Outcome, asked_s: float, now_s: float
    ) -> None:
        """Take an answer to a read for a copy."""
        self.read_took(now_s - asked_s, isinstance(outcome, Reply) and outcome.status == Status.OK)
        self.note(bookie_id, outcome, now_s)

    def note_write(
        self, bookie_id: BookieId, outcome: Outcome, asked_s: float, now_s: float
    ) -> None:
        """Take an answer to the write of copies."""
        self.write_took(now_s - asked_s, isinstance(outcome, Reply) and outcome.status == Status.OK)
        self.note(bookie_id, outcome, now_s)

    def wait_s(self, bookies: Collection[BookieId], worked_s: float, now_s: float) -> float:
        """Return how long rate and back-pressure have the next read wait, after work with `bookies` for so long."""
        return max(self.rate.wait_s(now_s), self.pressure.rest_s(bookies, worked_s))

    def limited(self, bytes_per_s: float) -> RepairOptions:
        """Return the options with a rate of their own; 0: there is no limit beside the one that they have."""
        return replace(self, rate=CopyRate(bytes_per_s)) if bytes_per_s > 0 else self

    def less_patient(self) -> RepairOptions:
        """Return the options for what is left of a ledger of which something had to be parked."""
        return replace(self, patience_s=min(self.patience_s, self.patience_after_s))
