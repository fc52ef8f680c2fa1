"""What beside flushes changes which files count: merges, recounts, compactions.

Planned by the main loop (`plan_...`), written by the background thread in slices, committed by the flush thread
(`commit_...`), which gives a `Change` to be installed, as a flush does. What fails before its commit is abandoned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from fastbk.invariant import check
from fastbk.native.process import kill_point
from fastbk.native.store import Scope
from fastbk.storage import locations_merge
from fastbk.storage.commits import (
    FAILURES,
    Change,
    CheckpointFailed,
    Commits,
    in_order,
    recounted,
    split_dead,
)
from fastbk.storage.compaction import Compaction, CompactionSettings
from fastbk.storage.locations_merge import LocationsMerge
from fastbk.storage.new_files import Attempt
from fastbk.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fastbk.native.store import Store
    from fastbk.storage.manifest import LogEntry, Manifest

LOOKS_MAX = 10
"""A pass begins anew when a merge takes a file away just before it."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Bounds: when a log is rolled, how much is written at a time, how often a failed flush is tried."""

    entry_log_size_bytes: int = GIB
    step_bytes: int = MIB
    attempts_max: int = 5
    retry_delay_s: float = 0.1
    """Before the second attempt; doubled before each further one."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)


class Recount:
    """One count of what lives in which entry log: a pass over all locations, in the background thread.

    Run when something was deleted. What flushes add meanwhile is added to the count at its commit (`commit_recount`),
    so nothing is subtracted anywhere, and nothing can be subtracted twice. `logs`: as they were when it was begun;
    `live`: log id -> bytes.
    """

    def __init__(self, commits: Commits, deleted: Collection[int]) -> None:
        """Plan it. `deleted`: ledgers whose deletion is durable."""
        self.logs: tuple[LogEntry, ...] = ()
        self.live: dict[int, int] = {}
        self._commits = commits
        self._deleted = deleted

    def run(self, store: Store) -> int:
        """Count; return the bytes that were read. Raises OSError, CorruptDataError when a locations file is damaged."""
        for _ in range(LOOKS_MAX):
            manifest = self._commits.manifest
            files = [entry.file_id for entry in manifest.locations]
            scope = Scope(files, (log.log_id for log in manifest.logs), self._deleted)
            try:
                self.live = store.log_bytes(scope)
            except FileNotFoundError:
                continue
            self.logs = manifest.logs
            return sum(entry.size_bytes for entry in manifest.locations)
        raise OSError("locations files are replaced faster than they can be read")


class Maintenance:
    """Of one ledger directory."""

    def __init__(
        self,
        commits: Commits,
        settings: CheckpointSettings,
        clock_s: Callable[[], int],
        new_salt: Callable[[], int],
    ) -> None:
        """Begin with nothing under way."""
        self.commits = commits
        self.damaged: set[int] = set()
        """Ids of locations files of which a part is damaged: they are never merged."""
        self.drops = 0
        """How often it was planned to drop ledgers that may come again: what was moved before may bring them back."""
        self._settings = settings
        self._clock_s = clock_s
        self._new_salt = new_salt
        self._merges: list[LocationsMerge] = []
        self._compaction: Compaction | None = None

    @property
    def manifest(self) -> Manifest:
        """What counts. Any thread."""
        return self.commits.manifest

    @property
    def has_compaction(self) -> bool:
        """Whether one is under way."""
        return self._compaction is not None

    # ---- the main loop's part

    def plan_merge(
        self,
        deleted: Collection[int] = (),
        *,
        everything: bool = False,
        forget_deleted_before_s: int = 0,
        dropped: Collection[int] = (),
    ) -> LocationsMerge | None:
        """Plan a merge if there are many files; None when there is nothing to do, or not now.

        Args:
            deleted: ids of ledgers whose deletion is durable; their locations are left out.
            everything: of all files, many or few; not while another merge or a compaction is under way, or a file
                is damaged.
            forget_deleted_before_s: states of ledgers deleted before this (wall clock) are left out; with `everything`.
            dropped: ids of ledgers of which nothing is to be found any more that is found now, though they live; with
                `everything`. A compaction that is under way ends without effect.
        """
        with self.commits.reserving:
            # Before the manifest: what the flush thread commits in between is in one of them, or in both.
            merges, compaction = tuple(self._merges), self._compaction
            newest = [merging.last_generation for merging in merges]
            if compaction is not None:
                newest += compaction.generations
            manifest = self.manifest
            chosen = manifest.locations
            if not everything:
                chosen = locations_merge.choose_merge(chosen, self.damaged, max(newest, default=-1))
            elif merges or self.damaged or (compaction is not None and not dropped):
                return None
            if not chosen:
                return None
            if dropped:
                self.drops += 1
            merging = LocationsMerge(
                chosen,
                manifest,
                self.commits.files.attempt(0),
                {*deleted, *dropped} if dropped else deleted,
                created_s=self._clock_s(),
                forget_deleted_before_s=forget_deleted_before_s,
                drops=bool(dropped),
            )
            self._merges.append(merging)
            return merging

    def plan_compaction(
        self,
        log_ids: Collection[int],
        deleted: Collection[int] = (),
        *,
        deadline_s: float = float("inf"),
        settings: CompactionSettings | None = None,
    ) -> Compaction | None:
        """Plan to move what lives in these logs into new ones; None while another is under way.

        Logs that are not sealed, or not there any more, are left out. `deadline_s`: of the monotonic clock; no log is
        begun after it.
        """
        sealed = {log.log_id for log in self.manifest.logs if log.sealed}
        chosen = sealed & set(log_ids)
        if self._compaction is not None or not chosen or self.is_dropping:
            return None
        self._compaction = Compaction(
            self.commits,
            Attempt(0),
            chosen,
            deleted,
            settings or self._settings.compaction,
            deadline_s=deadline_s,
            clock_s=self._clock_s,
            new_salt=self._new_salt,
        )
        self._compaction.drops = self.drops
        return self._compaction

    @property
    def is_dropping(self) -> bool:
        """Whether a merge is under way that drops ledgers which may come again."""
        return any(merging.drops for merging in self._merges)

    def note_damage(self, merging: LocationsMerge) -> None:
        """Leave out of further merges what this one could not read."""
        self.damaged = {*self.damaged, *merging.damaged}

    # ---- the flush thread's part

    def commit_merge(self, store: Store, merging: LocationsMerge) -> Change:
        """Let what was merged count instead of its inputs. Raises CheckpointFailed: nothing changed."""
        check(merging.merged is not None, "a merge is committed once it is written")
        chosen = set(merging.chosen)
        kill_point("index.merge_before_manifest")
        locations = [entry for entry in self.manifest.locations if entry not in chosen]
        change = self._commit_upkeep(
            store,
            msgspec.structs.replace(
                self.manifest, locations=in_order([*locations, merging.merged])
            ),
            merging.attempt,
            remove=tuple(entry.file_id for entry in merging.chosen),
            reason="merged",
        )
        kill_point("index.merge_after_manifest")
        self._merges.remove(merging)
        return change

    def commit_recount(self, store: Store, recount: Recount) -> Change | None:
        """Write down what lives in which log, and give up logs in which nothing does (INV-X5).

        None when that changes nothing. Raises CheckpointFailed: nothing changed.
        """
        before, commits = self.manifest.logs, self.commits
        logs = recounted(before, recount.logs, recount.live)
        current = commits.current_log
        if current is not None and not next(
            log.live_bytes for log in logs if log.log_id == current.log_id
        ):
            commits.current_log = None  # nothing lives in it: sealed, it can go at once
        logs, dead = split_dead(commits.sealed(logs))
        if not dead and logs == before:
            return None
        kill_point("index.recount_before_manifest")
        change = self._commit_upkeep(
            store,
            msgspec.structs.replace(self.manifest, logs=logs),
            Attempt(0),
            dead_logs=dead,
            reason="nothing that is not deleted lies in it",
        )
        kill_point("index.recount_after_manifest")
        return replace(change, is_recount=True)

    def commit_compaction(self, store: Store, compaction: Compaction) -> Change:
        """List the new logs, and no longer those out of which everything was moved (INV-X5).

        Raises CheckpointFailed: nothing changed.
        """
        check(compaction.is_over, "a compaction is committed once it is over")
        if compaction.drops != self.drops:
            raise CheckpointFailed("ledgers were dropped while their runs were moved")
        gone = set(compaction.done)  # a recount may have given up some of them meanwhile
        dead = tuple(log for log in self.manifest.logs if log.log_id in gone)
        kept = [log for log in self.manifest.logs if log.log_id not in gone]
        new = [log for log in compaction.logs if log.live_bytes]
        empty = [log for log in compaction.logs if not log.live_bytes]
        names = ", ".join(f"{log.log_id:016x}" for log in new) or "nothing: all in it was deleted"
        kill_point("index.compact_before_manifest")
        change = self._commit_upkeep(
            store,
            msgspec.structs.replace(
                self.manifest,
                logs=tuple(sorted([*kept, *new], key=lambda log: log.log_id)),
                locations=in_order([*self.manifest.locations, *compaction.locations]),
            ),
            compaction.attempt,
            dead_logs=(*dead, *empty),
            reason=f"compacted into {names}",
        )
        kill_point("index.compact_after_manifest")
        self._compaction = None
        return change

    def abandon(self, store: Store, plan: LocationsMerge | Compaction) -> None:
        """Give up what is not committed: its files are unlinked. Flush thread, once no slice of it is under way."""
        if plan is self._compaction:
            self._compaction = None
        elif plan in self._merges:
            self._merges.remove(plan)
        else:
            return  # committed, or in doubt: its files wait for the next commit
        plan.abandon()
        self.commits.files.abandon(store, plan.attempt)

    def _commit_upkeep(
        self,
        store: Store,
        manifest: Manifest,
        attempt: Attempt,
        *,
        remove: tuple[int, ...] = (),
        dead_logs: tuple[LogEntry, ...] = (),
        reason: str,
    ) -> Change:
        """Commit under a new generation. After a commit in doubt the plan is over: its files wait for the next one."""
        attempt.generation = self.commits.slots.next_generation()
        try:
            return self.commits.commit(
                store, manifest, attempt, remove=remove, dead_logs=dead_logs, reason=reason
            )
        except FAILURES as error:
            for merging in tuple(self._merges):  # in place: the main loop adds to it
                if merging.attempt is attempt:
                    self._merges.remove(merging)
            if self._compaction is not None and self._compaction.attempt is attempt:
                self._compaction = None
            raise CheckpointFailed(f"could not commit a manifest: {error}") from error
