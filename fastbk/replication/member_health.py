"""Which members of a writer's ensemble have failed, since when, and when that is too long. Pure.

A member without a trouble is healthy. A bookie that is away is *down*; one that only refuses for now is not.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from fastbk.model.ids import BookieId
from fastbk.replication.add_machine import UNABLE, AddMachine
from fastbk.replication.options import ChangePolicy
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status


class Trouble(enum.Enum):
    """What is wrong with a member."""

    CONNECTING = "its first connection is not up yet"
    LOST = "it cannot be reached"
    SILENT = "it leaves an add unanswered"
    BUSY = "it refuses for reasons that pass"
    UNABLE = "it says that it cannot store"
    READ_ONLY = "it says that it takes no adds"
    GONE = "its data is lost"
    FENCED = "it refuses adds as if the ledger were fenced, and may have lost its data"
    DELETED = "it says that the ledger was deleted"
    LEAVING = "it is registered as read-only"


# How long a bookie that was replaced is not taken again; doubled each time that it is replaced.
AVOID_MIN_S = 1.0
AVOID_MAX_S = 60.0
# Nothing is gained by waiting for these.
_AT_ONCE = (
    Trouble.SILENT,
    Trouble.UNABLE,
    Trouble.READ_ONLY,
    Trouble.GONE,
    Trouble.FENCED,
    Trouble.DELETED,
    Trouble.LEAVING,
)
# Not put off by a policy that waits until an entry needs a bookie: they take nothing more, so waiting gains nothing.
_FOR_GOOD = (
    Trouble.READ_ONLY,
    Trouble.GONE,
    Trouble.FENCED,
    Trouble.DELETED,
    Trouble.LEAVING,
)
# An acknowledgement shows that these are over.
_HEALED_BY_ACK = (
    Trouble.SILENT,
    Trouble.BUSY,
    Trouble.UNABLE,
    Trouble.READ_ONLY,
    Trouble.FENCED,
    Trouble.DELETED,
)


@dataclass(frozen=True, slots=True)
class Failed:
    """One member's trouble and the clock when it began."""

    trouble: Trouble
    since_s: float


class MemberHealth:
    """The troubles of the members, by index.

    Attributes:
        failed: the members that have one.
    """

    def __init__(self, policy: ChangePolicy) -> None:
        self.failed: dict[int, Failed] = {}
        self._policy = policy

    def takes_adds(self, index: int) -> bool:
        """Return whether a member may take adds now; not when it has refused one because it is read-only."""
        failed = self.failed.get(index)
        return failed is None or failed.trouble is not Trouble.READ_ONLY

    def connecting(self, index: int, now_s: float) -> None:
        """A bookie was named whose connection is not up yet."""
        self.failed[index] = Failed(Trouble.CONNECTING, now_s)

    def connected(self, index: int) -> None:
        """It can be written to; what it refused will be sent again, so that too is forgotten."""
        self.failed.pop(index, None)

    def lost(self, index: int, now_s: float, is_gone: bool) -> None:
        """It cannot be reached. Told after each try: what counts is when it began."""
        before = self.failed.get(index)
        if is_gone:
            self.failed[index] = Failed(Trouble.GONE, now_s)
        elif before is None or before.trouble is Trouble.BUSY:
            self.failed[index] = Failed(Trouble.LOST, now_s)
        elif before.trouble is Trouble.CONNECTING:
            self.failed[index] = Failed(Trouble.LOST, before.since_s)

    def refused(self, index: int, status: int, now_s: float) -> None:
        """It refused an add."""
        before = self.failed.get(index)
        if before is not None and before.trouble not in (Trouble.BUSY, Trouble.LEAVING):
            return
        if status == Status.FENCED:
            self.failed[index] = Failed(Trouble.FENCED, now_s)
        elif status == Status.NO_LEDGER:
            self.failed[index] = Failed(Trouble.DELETED, now_s)
        elif status == Status.READ_ONLY:
            self.failed[index] = Failed(Trouble.READ_ONLY, now_s)
        elif status in UNABLE:
            self.failed[index] = Failed(Trouble.UNABLE, now_s)
        elif before is None:
            self.failed[index] = Failed(Trouble.BUSY, now_s)

    def registered(self, index: int, is_read_only: bool, now_s: float) -> None:
        """Metadata lists it as read-only, or as writable again: a writer that appends nothing hears it only so."""
        before = self.failed.get(index)
        if is_read_only and before is None:
            self.failed[index] = Failed(Trouble.LEAVING, now_s)
        elif not is_read_only and before is not None and before.trouble is Trouble.LEAVING:
            del self.failed[index]

    def claims_end(self, indexes: Collection[int]) -> bool:
        """Return whether one of these members refuses adds as if the ledger were fenced or deleted."""
        ended = (Trouble.FENCED, Trouble.DELETED)
        return any(self.failed[index].trouble in ended for index in indexes)

    def silent(self, index: int, now_s: float) -> None:
        """It is connected and leaves an add unanswered for too long."""
        self.failed.setdefault(index, Failed(Trouble.SILENT, now_s))

    def acknowledged(self, index: int) -> None:
        """It has stored something."""
        failed = self.failed.get(index)
        if failed is not None and failed.trouble in _HEALED_BY_ACK:
            del self.failed[index]

    def due(self, now_s: float, adds: AddMachine) -> tuple[set[int], float | None]:
        """Return the members that the policy does not bear any longer, and when to look again for others."""
        old: set[int] = set()
        down: set[int] = set()
        look_s: float | None = None
        for index, failed in self.failed.items():
            end_s = failed.since_s + self._patience_s(failed.trouble)
            is_over = now_s >= end_s
            if failed.trouble is Trouble.LOST and adds.is_filling:
                # Before entries that it lacks have to be given up.
                is_over = is_over or adds.lagging(index) > 0
            if is_over:
                old.add(index)
            else:
                look_s = end_s if look_s is None else min(look_s, end_s)
            if is_over or failed.trouble is Trouble.LOST:
                down.add(index)
        due = adds.needed_of(down) if down else set()
        if self._policy.delayed:
            old &= adds.short_without(down) | {
                index for index in old if self.failed[index].trouble in _FOR_GOOD
            }
        return due | old, look_s

    def _patience_s(self, trouble: Trouble) -> float:
        if trouble in _AT_ONCE:
            return 0.0
        if trouble is Trouble.LOST:
            return self._policy.replace_after_s
        return self._policy.bookie_timeout_s


class Avoided:
    """Bookies that a writer does not take for a while: those that it had to replace before.

    A pause has no jitter: nothing is sent at its end, the bookie may only be chosen again by a later change.
    """

    def __init__(self) -> None:
        self._until_s: dict[BookieId, float] = {}
        self._backoffs: defaultdict[BookieId, Backoff] = defaultdict(
            lambda: Backoff(AVOID_MIN_S, AVOID_MAX_S)
        )

    def add(self, bookie_id: BookieId, now_s: float) -> None:
        """It was replaced."""
        pause_s = self._backoffs[bookie_id].next_s()
        self._until_s[bookie_id] = max(now_s + pause_s, self._until_s.get(bookie_id, now_s))

    def add_for_good(self, bookie_id: BookieId) -> None:
        """It is never taken again."""
        self._until_s[bookie_id] = math.inf

    def now(self, now_s: float) -> frozenset[BookieId]:
        """Return those that are not to be taken now."""
        return frozenset(one for one, until_s in self._until_s.items() if now_s < until_s)
