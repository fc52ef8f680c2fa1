"""Deleted ledgers on their way out: out of the files by a merge of all of them, and then out of memory.

What the merge left out goes from the tables of index and journal, so that they have room again. From then on its ids
may be new ledgers': nothing of the old ones may be found any more, in files or caches, and nothing may take the new
ones for deleted. While it goes on (some thousand ledgers in 50 ms) no merge, recount or compaction may be planned:
which ids are deleted is known again at its end. A crash on the way is harmless: a start knows what the files know.

Ledgers that have expired do not wait for the daily look. An attacker can make ledgers expire all the time, so the pause
between two merges grows with what the last one cost.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fastbk.native.index import Index
    from fastbk.native.store import Store
    from fastbk.storage.checkpoint import Checkpoint
    from fastbk.storage.maintenance import Compaction, LocationsMerge

DELETED_KEPT_S = 7 * 24 * 3600
"""How long a deleted ledger's state is remembered."""
FENCED_KEPT_S = 600
"""How long one is that metadata was never seen to list, if it was fenced (INV-G8): counted among the unconfirmed."""
INTERVAL_S = 24 * 3600
"""Between two looks whether many states could be forgotten."""
PAUSE_MIN_S = 10.0
"""After a merge of everything, and before it is tried again; doubled with each failure in succession."""
PAUSE_MAX_S = 600.0
BUSY_SHARE = 20
"""Merges for ledgers that have expired take at most one such part of the time, or one runs every `PAUSE_MAX_S`."""
FORGET_SHARE = 10
"""Everything is merged when one in so many states could be forgotten."""
ANY_SHARE = 2**63
"""The same for ledgers that have expired: their ids may be those of real ledgers soon."""
EXPIRED_BEFORE_S = 2
"""The index gives ledgers that expire a time of deletion before this one; others have the clock's."""


@dataclass(frozen=True, slots=True)
class ForgetCount:
    """How to find out whether everything is to be merged: when there are enough states to forget.

    Attributes:
        before_s: that merge forgets ledgers deleted before this time (wall clock). 0: it is not time to look.
        count_before_s: states of ledgers deleted before this time are counted.
        share: one in so many states must be among them.
    """

    before_s: int = 0
    count_before_s: int = 0
    share: int = FORGET_SHARE


@dataclass(slots=True)
class _Plan:
    merging: LocationsMerge
    deleted: array[int]
    """Whose locations that merge leaves out; ascending."""
    before_s: int
    """Deleted before that: their states are left out, too."""
    through_seal: int
    """What was sealed until then is in the files that are merged."""
    began_s: float
    is_committed: bool = False
    is_begun: bool = False
    """In memory."""


class Forgetting:
    """Of one index. Main loop only; at most one plan at a time."""

    def __init__(
        self,
        index: Index,
        store: Store,
        clock_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        """Begin with nothing to forget."""
        self._index = index
        self._store = store
        self._clock_s = clock_s
        self._monotonic_s = monotonic_s
        self._look_at_s = monotonic_s() + INTERVAL_S
        self._not_before_s = monotonic_s()
        self._backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)  # exact: one bookie's own work
        self._is_hurried = self._was_hurried = False
        self._kept_until_s = self._newest_kept_until_s = 0.0
        self._plan: _Plan | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to look for states that can be forgotten, also if nothing was deleted lately."""
        due_s = max(self._look_at_s, self._not_before_s)
        return self._plan is None and self._monotonic_s() >= due_s

    def hurry(self) -> None:
        """Forget soon: ledgers have expired, that is flushed, and they are to leave no tombstone (INV-G5)."""
        self._is_hurried = True
        self._look_at_s = min(self._look_at_s, self._monotonic_s())

    def hurry_later(self) -> None:
        """Forget when FENCED_KEPT_S are over: the index may have kept some of what was deleted so long (INV-G8)."""
        self._newest_kept_until_s = self._monotonic_s() + FENCED_KEPT_S + 1
        if not self._kept_until_s:
            self._kept_until_s = self._newest_kept_until_s
            self._look_at_s = min(self._look_at_s, self._kept_until_s)

    def poll_now(self) -> ForgetCount:
        """Return what a recount looks for, if it is time."""
        if not self.is_due:
            return ForgetCount()
        now_s = self._monotonic_s()
        if self._kept_until_s and now_s >= self._kept_until_s:
            self._is_hurried = True
            self._kept_until_s = (
                self._newest_kept_until_s if now_s < self._newest_kept_until_s else 0.0
            )
        self._look_at_s = min(now_s + INTERVAL_S, self._kept_until_s or float("inf"))
        before_s = max(EXPIRED_BEFORE_S, int(self._clock_s()) - DELETED_KEPT_S)
        self._was_hurried, self._is_hurried = self._is_hurried, False
        if self._was_hurried:
            return ForgetCount(before_s, before_s, ANY_SHARE)
        return ForgetCount(before_s, before_s)

    def retry_later(self) -> None:
        """Look again after a while: the look failed, or the merge that it led to."""
        self._is_hurried |= self._was_hurried
        now_s = self._look_at_s = self._monotonic_s()
        self._not_before_s = max(self._not_before_s, now_s + self._backoff.next_s())

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan that is not done with."""
        return self._plan is not None

    @property
    def is_installed(self) -> bool:
        """Whether the files have forgotten, and memory has yet to."""
        return self._plan is not None and self._plan.is_committed

    @property
    def is_begun(self) -> bool:
        """Whether ids are between deleted and unknown: then nothing may be planned by which of them are deleted."""
        return self._plan is not None and self._plan.is_begun

    def plan(
        self, checkpoint: Checkpoint, deleted: Collection[int], before_s: int
    ) -> LocationsMerge | None:
        """Plan a merge that forgets states of ledgers deleted before `before_s`, and to forget them in memory after it.

        Everything is merged, since only then no older file can bring a forgotten state back. None when that can't be
        now, or the last ones are still in memory.
        """
        if self._plan is not None:
            return None
        through_seal = self._index.flushed_seal  # before the files are chosen
        merging = checkpoint.plan_merge(deleted, everything=True, forget_deleted_before_s=before_s)
        if merging is None:
            self.retry_later()
        else:
            gone, now_s = ascending(deleted), self._monotonic_s()
            self._plan = _Plan(merging, gone, before_s, through_seal, now_s)
        return merging

    def merged(self, merging: LocationsMerge | Compaction, *, is_committed: bool) -> None:
        """Take note of a merge's end; one that is committed is installed before the next `look`."""
        plan = self._plan
        if plan is None or plan.merging is not merging:
            return
        now_s = self._monotonic_s()
        pause_s = max(PAUSE_MIN_S, BUSY_SHARE * (now_s - plan.began_s))
        self._not_before_s = now_s + min(PAUSE_MAX_S, pause_s)
        if is_committed:
            plan.is_committed = True
            self._backoff.restart()
        else:
            self._plan = None
            self.retry_later()

    def poll(self, *, is_recounting: bool) -> array[int] | None:
        """Begin, if it is time; return the ids that were forgotten at the end, ascending, once.

        Not while a recount is under way: it looks at the files of its time, with the ids of its beginning. Merges and
        compactions have chosen their files. And not while a job may look under older files.
        """
        plan = self._plan
        if plan is None or not plan.is_committed:
            return None
        if plan.is_begun:
            gone = self._index.forgotten()
            if gone is not None:
                self._plan = None
            return gone
        if not is_recounting and not self._store.old_sets:
            plan.is_begun = True
            self._store.forget_ledgers(plan.deleted)
            self._index.begin_forget(plan.deleted, plan.before_s, plan.through_seal)
        return None


def ascending(ledger_ids: Collection[int]) -> array[int]:
    """Return the ids as C takes them; an array is in order already."""
    return ledger_ids if isinstance(ledger_ids, array) else array("q", sorted(set(ledger_ids)))
