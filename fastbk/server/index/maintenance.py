"""The main loop's side of merges, recounts, compactions and drops: what is begun when, and what follows from results.

Nothing here waits. The background thread writes, the flush thread commits, the main loop installs; each hands on to
the next by a named result. At most one recount, one compaction and one drop are under way, and as many merges as have
no file in common.

Deleted ledgers leave in two steps (`Forgetting`): a merge of all files leaves them out, and then they go from the
tables of index and journal, so that they have room again. From then on their ids may be new ledgers': nothing of the
old ones may be found any more, in files or caches, and nothing may take the new ones for deleted. While it goes on
(some thousand ledgers in 50 ms) no merge, recount or compaction may be planned: which ids are deleted is known again at
its end. A crash on the way is harmless: a start knows what the files know.
"""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.native.index import ids_without
from fastbk.native.process import kill_point
from fastbk.retry import Backoff
from fastbk.server.index.background import COMPACTION, MERGE, RECOUNT, Task, TaskFailed, TaskStopped
from fastbk.storage import maintenance as storage_maintenance
from fastbk.storage.checkpoint import Change
from fastbk.storage.directories import JOURNAL_LOG
from fastbk.storage.maintenance import Compaction, LocationsMerge, Recount
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from fastbk.native.index import Index
    from fastbk.native.store import Store
    from fastbk.server.index.background import Background, DirectBackground, DirectJobs, FlushThread
    from fastbk.storage.checkpoint import Checkpoint


LAG_FILES_MAX = 256
"""With so many locations files no flush begins until merges have caught up: the write cache fills, credit ends."""
RECOUNT_SHARE = 20
"""A recount that took a second is not done again for so many seconds."""
RETRY_S = 5.0
"""Pause after a failure."""
DROPS_MAX = 100_000
"""Ledgers that wait to be dropped."""
DROPS_A_MERGE = 10_000
"""So many are looked up at once, or those of one request."""
MERGE_BYTES_PER_S = 64 * MIB


class MaintenanceLoop:
    """Maintenance of one index. Main loop only."""

    def __init__(
        self,
        index: Index,
        store: Store,
        checkpoint: Checkpoint,
        jobs: FlushThread | DirectJobs,
        background: Background | DirectBackground,
        *,
        log: Callable[..., None],
        clock_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        on_damage: Callable[[list[tuple[int, int, int]]], None],
        on_forgotten: Callable[[array[int]], None],
        merge_bytes_per_s: int = MERGE_BYTES_PER_S,
        room_bytes: Callable[[], int],
    ) -> None:
        """Begin with nothing to do.

        Args:
            room_bytes: how much of the disk merges may take: what is above the floor.
            on_damage: told (ledger, first id, last id) of what a compaction found damaged, once it counts.
            on_forgotten: told which deleted ledgers are not known any more: their ids may be new ledgers' again.
        """
        self.deleted: Collection[int] = ()
        """Ledgers whose deletion is flushed, and in the deletion log: their locations may go."""
        self.compaction = CompactionStatus()
        self._on_damage = on_damage
        self._on_forgotten = on_forgotten
        self.forgetting = Forgetting(index, store, clock_s, monotonic_s)
        self._room_bytes = room_bytes
        self._index = index
        self._store = store
        self._checkpoint = checkpoint
        self._jobs = jobs
        self._background = background
        self._log = log
        self._clock_s = clock_s
        self._monotonic_s = monotonic_s
        self._merge_bucket = Task.limit(merge_bytes_per_s)
        self._recount_bucket = Task.limit(merge_bytes_per_s)
        self._compaction_task: Task | None = None
        self._unreadable: set[int] = set()
        """Logs that a compaction could not read: left alone until a restart."""
        self._wants_recount = False
        self._recount_began_s = -1.0
        """-1: none is under way."""
        self._recount_not_before_s = 0.0
        self._merge_not_before_s = 0.0
        self._merges = 0
        self._drops: list[Drop] = []
        self._drop: Drop | None = None
        self._dropped: Drop | None = None
        """Installed; final once no job looks under an older set."""

    @property
    def lags(self) -> bool:
        """Whether there are so many locations files that no flush may add one."""
        return len(self._checkpoint.manifest.locations) >= LAG_FILES_MAX

    @property
    def compaction_so_far(self) -> CompactionStatus:
        """How far the one under way is, or how the last one ended."""
        task = self._compaction_task
        if task is None or not isinstance(task.plan, Compaction):
            return self.compaction
        counts = task.plan.counts
        return CompactionStatus(
            running=True,
            moved_bytes=counts.moved_bytes,
            bad_runs=counts.bad_runs,
            bad_entries=counts.bad_entries,
        )

    # ---- what is asked for

    def is_compacting(self, file_id: int) -> bool:
        """Return whether what lives in this journal file is being moved: its bytes are read, listed or not."""
        plan = None if self._compaction_task is None else self._compaction_task.plan
        return isinstance(plan, Compaction) and JOURNAL_LOG | file_id in plan.log_ids

    @property
    def is_merging(self) -> bool:
        """Whether a merge is under way."""
        return self._merges > 0

    def recount(self) -> bool:
        """Have live bytes counted anew, and logs given up in which nothing lives; always accepted."""
        self._wants_recount = True
        self.poll()
        return True

    def compact(self, log_ids: Sequence[int], bytes_per_s: int, time_max_s: float) -> bool:
        """Begin to move what lives in these logs; return whether it was begun.

        Args:
            log_ids: ones that are not sealed are left out.
            bytes_per_s: read and written, at most.
            time_max_s: no further log is begun after so long.
        """
        is_busy = self._drops or self._drop or self._compaction_task
        if is_busy or self.forgetting.is_begun:
            return False
        wanted = [log_id for log_id in log_ids if log_id not in self._unreadable]
        if log_ids and not wanted:
            # Not "busy": it would be asked for again and again.
            self.compaction = CompactionStatus(
                error="could not be read: left alone until a restart"
            )
            return True
        deadline_s = time.monotonic() + time_max_s if time_max_s else float("inf")
        plan = self._checkpoint.plan_compaction(wanted, self.deleted, deadline_s=deadline_s)
        if plan is None:
            return False
        self.compaction = CompactionStatus(running=True)
        self._compaction_task = Task(
            "compaction", COMPACTION, plan, Task.limit(max(1, bytes_per_s))
        )
        self._background.submit(self._compaction_task)
        return True

    def stop_compaction(self) -> bool:
        """Let the compaction end without effect, soon; return whether one was under way."""
        if self._compaction_task is None:
            return False
        self._compaction_task.is_stopped = True
        return True

    def drop(self, ledger_ids: Sequence[int], changed: Sequence[int]) -> int:
        """Have copies dropped that are still as their change marks say; return how many were taken on."""
        room = DROPS_MAX - sum(len(drop.ledger_ids) for drop in self._drops)
        if room <= 0 or not ledger_ids:
            return 0
        self._drops.append(Drop(list(ledger_ids[:room]), list(changed[:room])))
        return len(self._drops[-1].ledger_ids)

    # ---- what is begun

    def poll(self, *, is_flushing: bool = False) -> None:
        """Begin what is due."""
        self._end_drop()
        self._forget_in_memory()
        if self.forgetting.is_begun:
            return
        now_s = self._monotonic_s()
        if self._drops and self._drop is None and self._dropped is None and not is_flushing:
            self._begin_drop()
        if now_s >= self._merge_not_before_s and not self._drops:
            self._begin_merges()
        self._wants_recount |= bool(self.deleted) and self.forgetting.is_due
        if (
            self._wants_recount
            and self._recount_began_s < 0
            and now_s >= self._recount_not_before_s
        ):
            self._wants_recount = False
            self._recount_began_s = now_s
            recount = RecountPlan(self._checkpoint, self.deleted, self.forgetting.poll_now())
            self._background.submit(Task("recount", RECOUNT, recount, self._recount_bucket))

    def _begin_merges(self) -> None:
        while (merging := self._checkpoint.plan_merge(self.deleted)) is not None:
            # With so many files that no flush begins, the floor is no reason to wait any more.
            if merging.size_bytes > self._room_bytes() and not self.lags:
                self._give_up(merging)
                self._merge_not_before_s = self._monotonic_s() + RETRY_S
                return
            self._submit_merge(merging)
        if not self._merges and len(self._checkpoint.manifest.locations) >= LAG_FILES_MAX // 2:
            self.stop_compaction()  # a slow one: what was flushed before its newest file can't be merged until its end

    def _give_up(self, plan: LocationsMerge | Compaction) -> None:
        self.forgetting.merged(plan, is_committed=False)
        self._jobs.submit("abandon", lambda: self._checkpoint.abandon(self._store, plan))

    def _submit_merge(self, merging: LocationsMerge) -> None:
        self._merges += 1
        # Behind by so much that lookups suffer: faster than the rate, whatever else the disk does.
        self._background.submit(
            Task(
                "merge",
                MERGE,
                merging,
                self._merge_bucket,
                lambda: len(self._checkpoint.manifest.locations) > storage_maintenance.FILES_MAX,
            )
        )

    def _begin_drop(self) -> None:
        self.stop_compaction()
        if self._merges or self._checkpoint.has_compaction:
            return
        wanted = take_together(self._drops, DROPS_A_MERGE)
        drop = Drop(*self._index.begin_drop(wanted.ledger_ids, wanted.changed))
        if not drop.ledger_ids:
            return
        merging = self._checkpoint.plan_merge(
            self.deleted, everything=True, dropped=drop.ledger_ids
        )
        if merging is None or merging.size_bytes > self._room_bytes():
            self._index.end_drop(drop.ledger_ids, drop.changed, is_dropped=False)
            self._log("drop.impossible", reason="a locations file is damaged, or there is no room")
            if merging is not None:
                self._give_up(merging)
            return
        self._drop = drop
        self._submit_merge(merging)

    def _end_drop(self) -> None:
        """INV-G2: only when nothing can bring a dropped run back is it said that it is gone."""
        drop = self._dropped
        if drop is None or self._store.old_sets:
            return
        self._dropped = None
        self._store.forget_ledgers(drop.ledger_ids)
        self._index.end_drop(drop.ledger_ids, drop.changed, is_dropped=True)
        self._wants_recount = True

    # ---- results

    def take(self, name: str, result: object) -> Change | None:
        """Take a result of either thread; return a change that is to be installed. Raises what nobody expects."""
        if isinstance(result, TaskFailed):
            self._failed(result)
            return None
        if isinstance(result, Task):
            self._written(result)
            return None
        if isinstance(result, Committed):
            return (self._merged if isinstance(result.plan, LocationsMerge) else self._compacted)(
                result
            )
        if name == "recount_commit":
            self._recounted(is_ok=not isinstance(result, Exception))
            if isinstance(result, Exception):
                self._log("recount.failed", reason=str(result))
        return result if isinstance(result, Change) else None

    def _written(self, task: Task) -> None:
        plan = task.plan
        if isinstance(plan, LocationsMerge):
            self._jobs.submit("merge_commit", lambda: self._commit_merge(plan))
        elif isinstance(plan, Compaction):
            self._jobs.submit("compaction_commit", lambda: self._commit_compaction(plan))
        elif isinstance(plan, RecountPlan):
            if plan.wants_forgetting:
                self._forget(plan.look.before_s)
            recount = plan.recount
            self._jobs.submit(
                "recount_commit", lambda: self._checkpoint.commit_recount(self._store, recount)
            )

    def _commit_merge(self, plan: LocationsMerge) -> Committed:
        """Flush thread."""
        try:
            return Committed(plan, self._checkpoint.commit_merge(self._store, plan))
        except (OSError, Error) as error:
            self._checkpoint.abandon(self._store, plan)
            return Committed(plan, None, error)

    def _commit_compaction(self, plan: Compaction) -> Committed:
        """Flush thread."""
        try:
            return Committed(plan, self._checkpoint.commit_compaction(self._store, plan))
        except (OSError, Error) as error:
            self._checkpoint.abandon(self._store, plan)
            return Committed(plan, None, error)

    def _merged(self, committed: Committed) -> Change | None:
        self._merges -= 1
        plan, drop = committed.plan, None
        if isinstance(plan, LocationsMerge) and plan.drops:
            drop, self._drop = self._drop, None
        self.forgetting.merged(plan, is_committed=committed.change is not None)
        if committed.change is None:
            self._merge_failed(str(committed.error), drop)
            return None
        kill_point("index.merge_before_install")
        self._index.count("FBK_C_INDEX_MERGES")
        self._dropped = drop or self._dropped  # installed in this turn, by who called
        return committed.change

    def _merge_failed(self, reason: str, drop: Drop | None) -> None:
        self._log("merge.failed", reason=reason)
        self._merge_not_before_s = self._monotonic_s() + RETRY_S
        if drop is not None:
            self._index.end_drop(drop.ledger_ids, drop.changed, is_dropped=False)

    def _recounted(self, *, is_ok: bool) -> None:
        took_s = self._monotonic_s() - self._recount_began_s
        self._index.took("RECOUNTS", took_s, is_ok=is_ok)
        self._recount_began_s = -1.0
        self._recount_not_before_s = self._monotonic_s() + took_s * RECOUNT_SHARE
        if not is_ok:
            self._recount_not_before_s += RETRY_S
            self._wants_recount = True
            self.forgetting.retry_later()

    def _compacted(self, committed: Committed) -> Change | None:
        self._compaction_task = None
        plan, change = committed.plan, committed.change
        status = CompactionStatus()
        if isinstance(plan, Compaction):
            counts = plan.counts
            status.moved_bytes = counts.moved_bytes
            self._note_unreadable(plan)
            status.bad_runs, status.bad_entries = counts.bad_runs, counts.bad_entries
            if change is not None:
                written = sum(log.durable_bytes for log in plan.logs if log.live_bytes)
                status.freed_bytes = sum(log.durable_bytes for log in change.dead_logs) - written
                if counts.bad_ranges:
                    self._log("compaction.damage", runs=counts.bad_runs, entries=counts.bad_entries)
                    self._on_damage(counts.bad_ranges)
        status.error = str(committed.error) if change is None else ""
        self.compaction = status
        self._wants_recount = True  # what was deleted meanwhile was moved, too
        if change is not None:
            kill_point("index.compact_before_install")
        return change

    def _note_unreadable(self, plan: Compaction) -> None:
        if plan.unreadable:
            self._unreadable.update(plan.unreadable)
            self._log("compaction.unreadable", log_ids=plan.unreadable)

    def _failed(self, failed: TaskFailed) -> None:
        plan, error = failed.task.plan, failed.error
        if not isinstance(error, OSError | Error | TaskStopped):
            raise error
        if isinstance(plan, LocationsMerge):
            self._merges -= 1
            if plan.damaged:
                self._checkpoint.note_damage(plan)
                self._log("index.locations_damaged", file_ids=plan.damaged)
            drop, self._drop = (self._drop, None) if plan.drops else (None, self._drop)
            self._merge_failed(str(error), drop)
        elif isinstance(plan, Compaction):
            self._compaction_task = None
            reason = "stopped" if isinstance(error, TaskStopped) else str(error)
            self.compaction = CompactionStatus(error=reason)
            self._log("compaction.ended", reason=reason)
            self._note_unreadable(plan)
        else:
            self._log("recount.failed", reason=str(error))
            self._recounted(is_ok=False)
        if isinstance(plan, LocationsMerge | Compaction):
            self._give_up(plan)

    def _forget(self, before_s: int) -> None:
        merging = self.forgetting.plan(self._checkpoint, self.deleted, before_s)
        if merging is not None and merging.size_bytes > self._room_bytes():
            self._give_up(merging)
        elif merging is not None:
            self._submit_merge(merging)

    def _forget_in_memory(self) -> None:
        if (gone := self.forgetting.poll(is_recounting=self._recount_began_s >= 0)) is not None:
            self.deleted = ids_without(ascending(self.deleted), gone)
            self._on_forgotten(gone)
            self._log("index.forgotten", ledgers=len(gone))


class CompactionStatus(msgspec.Struct):
    """State of the compaction begun last. `freed_bytes`: of logs given up, less new ones; `error`: why it ended
    early.
    """

    running: bool = False
    moved_bytes: int = 0
    freed_bytes: int = 0
    bad_runs: int = 0
    bad_entries: int = 0
    error: str = ""


class Committed(msgspec.Struct, frozen=True):
    """What the flush thread made of a plan: a change, or why not."""

    plan: LocationsMerge | Compaction
    change: Change | None
    error: Exception | None = None


class Drop(msgspec.Struct):
    """Copies that are to be dropped, by their change marks."""

    ledger_ids: list[int]
    changed: list[int]


def take_together(waiting: list[Drop], ledgers_max: int) -> Drop:
    """Take the first of those that wait, and more until there are so many: each merge is one of everything."""
    drop = waiting.pop(0)
    while waiting and len(drop.ledger_ids) < ledgers_max:
        more = waiting.pop(0)
        drop.ledger_ids.extend(more.ledger_ids)
        drop.changed.extend(more.changed)
    return drop


class RecountPlan:
    """A recount, and now and then a look at how many states could be forgotten: one slice."""

    def __init__(self, checkpoint: Checkpoint, deleted: Collection[int], look: ForgetCount) -> None:
        """Count what lives without `deleted`."""
        self.recount = Recount(checkpoint.commits, deleted)
        self.look = look
        self.wants_forgetting = False
        self._checkpoint = checkpoint
        self._is_done = False

    def step(self, store: Store) -> int:
        """Count everything."""
        if self._is_done:
            return 0
        self._is_done = True
        size_bytes = self.recount.run(store)
        if self.look.before_s:
            files = [entry.file_id for entry in self._checkpoint.manifest.locations]
            states, forgettable = store.count_states(files, self.look.count_before_s)
            self.wants_forgetting = forgettable * self.look.share > states
        return 1 + size_bytes

    def abandon(self) -> None:
        """Do nothing."""


DELETED_KEPT_S = 7 * 24 * 3600
"""How long a deleted ledger's state is remembered."""
FENCED_KEPT_S = 600
"""How long one is that metadata was never seen to list, if it was fenced (INV-G8): counted among the unconfirmed."""
INTERVAL_S = 24 * 3600
"""Pause between two checks whether many states could be forgotten."""
PAUSE_MIN_S = 10.0
"""Minimum pause between merges of everything; it doubles with each failure in succession."""
PAUSE_MAX_S = 600.0
BUSY_SHARE = 20
"""Merges for ledgers that have expired take at most one such part of the time, or one runs every `PAUSE_MAX_S`."""
FORGET_SHARE = 10
"""Everything is merged when one in so many states could be forgotten."""
ANY_SHARE = 2**63
"""The same for ledgers that have expired: their ids may be those of real ledgers soon."""
EXPIRED_BEFORE_S = 2
"""The index gives ledgers that expire a time of deletion before this one; others have the clock's."""


class ForgetCount(msgspec.Struct, frozen=True):
    """How to find out whether everything is to be merged: when there are enough states to forget.

    Attributes:
        before_s: that merge forgets ledgers deleted before this time (wall clock). 0: it is not time to look.
        count_before_s: states of ledgers deleted before this time are counted.
        share: one in so many states must be among them.
    """

    before_s: int = 0
    count_before_s: int = 0
    share: int = FORGET_SHARE


class _Plan(msgspec.Struct):
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
    """Whether the plan has begun, in memory."""


class Forgetting:
    """Forgetting of one index. Main loop only; at most one plan at a time."""

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
