"""Flushes, commits and deletions, beside the index's loop.

`Flusher` is the main loop's side of the flush thread (`fastbk.server.index.background`): it says what is to be done
next and installs what came out of it. The order of each job's steps is in `fastbk.storage.checkpoint`; merges and
compactions are `fastbk.server.index.maintenance`'s.

`FreeJournalFiles` says which journal files the journal may take again that have been logs, or could have been.

Decision 41.
"""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error, check_invariant
from fastbk.native.index import ids_without
from fastbk.native.process import kill_point
from fastbk.server.index.background import DirectBackground, DirectJobs
from fastbk.server.index.maintenance import (
    DELETED_KEPT_S,
    FENCED_KEPT_S,
    MERGE_BYTES_PER_S,
    MaintenanceLoop,
)
from fastbk.storage.checkpoint import Change, Checkpoint, CheckpointFailed
from fastbk.storage.commits import DeletionLog, JournalLogs

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.index import Index
    from fastbk.native.store import Store
    from fastbk.server.index.background import Background, FlushThread
    from fastbk.storage.manifest import Damage, LogEntry

RETRY_DELAY_S = 1.0
"""Pause after a flush has failed as often as a checkpoint tries."""
FREE_FILES_A_MESSAGE = 4096
"""An id and a comma are at most 21 bytes: with all of them a message has its bound (`child.MESSAGE_BYTES_MAX`)."""


class DeletionLogFailed(OSError):
    """Lines for the deletion log that could not be written."""

    def __init__(self, events: list[dict[str, object]]) -> None:
        super().__init__("the deletion log can't be written")
        self.events = events


class Flusher:
    """Decides what the flush thread does next, and installs its results. Used by the index's main thread."""

    def __init__(
        self,
        index: Index,
        store: Store,
        checkpoint: Checkpoint,
        jobs: FlushThread | DirectJobs,
        disk: Disk,
        directory: str,
        *,
        background: Background | DirectBackground | None = None,
        merge_bytes_per_s: int = MERGE_BYTES_PER_S,
        room_bytes: Callable[[], int] = lambda: sys.maxsize,
        on_damage: Callable[[list[tuple[int, int, int]]], None] = lambda ranges: None,
        log: Callable[..., None] = lambda event, **values: None,
        clock_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing to do.

        Args:
            disk: the one that `checkpoint` writes with. log: called with an event and its values.
            background: where merges are done; None: at once, in this thread.
            merge_bytes_per_s: read by merges and recounts, at most.
            room_bytes: how much of the disk merges may take.
            on_damage: told (ledger, first id, last id) of what a compaction found damaged.
        """
        self.failure = ""
        """Why the last flush failed; empty when it did not."""
        self.flushes = 0
        self.flush_took_s = 0.0
        """How long the newest one took."""
        self._index = index
        self._store = store
        self._checkpoint = checkpoint
        self._jobs = jobs
        self._deletion_log = DeletionLog(disk, directory)
        self._log = log
        self._clock_s = clock_s
        self._monotonic_s = monotonic_s
        self._is_flushing = False
        self._timer_s = time.monotonic
        self._begun_s = 0.0
        self._retry_at_s = 0.0
        self._reclaimed = (0, 0)
        """Bytes of logs and failures that are counted already."""
        self._damage: tuple[Damage, ...] = ()
        self._ended: tuple[Damage, ...] = ()
        self._clean = False
        # Deletions: marked in states that are not sealed yet; not in the deletion log yet; in the flush under way.
        self._marked: list[dict[str, object]] = []
        self._unrecorded: list[dict[str, object]] = []
        self._deleted: array[int] | None = None
        self._has_expired = False
        """Whether ledgers have expired among `_deleted`."""
        self._passed_file_id = 0
        self._has_dead_journal_file = False
        self.upkeep = MaintenanceLoop(
            index,
            store,
            checkpoint,
            jobs,
            background or DirectBackground(store, jobs.post),
            log=log,
            clock_s=clock_s,
            monotonic_s=monotonic_s,
            on_damage=on_damage,
            on_forgotten=self._forgotten,
            merge_bytes_per_s=merge_bytes_per_s,
            room_bytes=room_bytes,
        )
        self.journal_logs = JournalLogs()
        """Journal files that are entry logs, as of the last installed change."""
        self.free_files = FreeJournalFiles(store, self.upkeep.is_compacting)
        self.listed_files: frozenset[int] = frozenset()
        """Journal files that a manifest lists which may count after a restart, as of the last installed change."""
        self.listed_logs: tuple[LogEntry, ...] = ()
        """Of its manifest."""

    @property
    def is_busy(self) -> bool:
        """Whether a flush is under way, waits for its next attempt, or has to wait for merges."""
        return self._is_flushing or self.upkeep.lags

    @property
    def wants_flush(self) -> bool:
        """Whether a flush should begin though no cache asks for one: deletions wait for it."""
        return bool(self._marked) and not self._is_flushing

    def begin(
        self,
        *,
        damage: Sequence[Damage] = (),
        ended: Sequence[Damage] = (),
        clean: bool = False,
        passed_file_id: int = 0,
    ) -> None:
        """Seal the cache and have it flushed.

        Args:
            damage: found by replay, to be remembered.
            ended: remembered until now, and forgotten with this flush (INV-X6).
            clean: nothing is in the journal behind what is sealed, and nothing will come.
            passed_file_id: what is sealed contains all journal files before this one; 0: as the last batch in it says.
        """
        check_invariant(not self._is_flushing, "one flush at a time")
        self._index.seal()
        if self._marked or self._unrecorded:
            self._record_deletions()
        self._is_flushing = True
        self._begun_s = self._timer_s()
        self._damage = tuple(damage)
        self._ended = tuple(ended)
        self._clean = clean
        self._passed_file_id = passed_file_id
        self._submit_flush()

    def flush_now(
        self,
        *,
        damage: Sequence[Damage] = (),
        ended: Sequence[Damage] = (),
        clean: bool = False,
        passed_file_id: int = 0,
    ) -> None:
        """Flush what there is, and wait for it. Raises CheckpointFailed: then the index still holds it."""
        self.flush_behind(damage=damage, ended=ended, clean=clean, passed_file_id=passed_file_id)
        self.wait()

    def flush_behind(
        self,
        *,
        damage: Sequence[Damage] = (),
        ended: Sequence[Damage] = (),
        clean: bool = False,
        passed_file_id: int = 0,
    ) -> None:
        """Begin a flush when the one before has ended, and return while it is under way: replay fills the other cache.

        Raises CheckpointFailed of the one before: then the index still holds what that one sealed.
        """
        self.wait()
        # replay goes on writing, merges have to keep up
        while self.upkeep.lags and self.upkeep.is_merging:
            self._wait_readable()
            self.poll()
        self.begin(damage=damage, ended=ended, clean=clean, passed_file_id=passed_file_id)

    def wait(self) -> None:
        """Wait for the flush that is under way, or failed and is tried again now. Raises CheckpointFailed."""
        if self._is_flushing and self.failure:
            self.failure = ""
            self._submit_flush()
        while self._is_flushing:
            self._wait_readable()
            self._take_results()
            if self.failure:
                raise CheckpointFailed(self.failure)

    def delete_ledgers(self, ledger_ids: Sequence[int], reason: str) -> int:
        """Mark ledgers deleted: durable with the next flush, and then their data goes. Returns how many were there.

        Some may be left while the journal has yet to hear of earlier ones: they are to be asked for again.
        """
        now_s = int(self._clock_s())
        count, taken = self._index.delete_ledgers(ledger_ids, now_s)
        if count:
            kill_point("index.delete_marked")
            event = {"ledgers": list(ledger_ids[:taken]), "reason": reason, "time_s": now_s}
            self._marked.append(event)
        return count

    def expire_ledgers(
        self, ledger_ids: Sequence[int], reason: str, *, is_proven: bool = False
    ) -> int:
        """Delete ledgers whose expiry has begun (INV-G5), and have them forgotten soon: they leave no tombstone.

        `is_proven`: metadata has deleted them. Those that were fenced are remembered for FENCED_KEPT_S then (INV-G8).
        Returns like `delete_ledgers`.
        """
        now_s = int(self._clock_s())
        count, taken = self._index.expire(
            ledger_ids, now_s - DELETED_KEPT_S + FENCED_KEPT_S if is_proven else 0
        )
        if count:
            kill_point("index.delete_marked")
            if is_proven:
                self.upkeep.forgetting.hurry_later()
            event = {"expired": list(ledger_ids[:taken]), "reason": reason, "time_s": now_s}
            self._marked.append(event)
        return count

    def drop_ledgers(self, ledger_ids: Sequence[int], changed: Sequence[int], reason: str) -> int:
        """Have copies dropped, a while later, that are then as their change marks say (INV-G2); the ledgers live on.

        Returns how many were taken on; others are to be asked for again.
        """
        count = self.upkeep.drop(ledger_ids, changed)
        if count:
            event = {"dropped": list(ledger_ids[:count]), "reason": reason}
            self._jobs.submit(
                "audit",
                lambda: self._deletion_log.append({**event, "time_s": int(self._clock_s())}),
            )
        return count

    def resume_leftovers(self) -> None:
        """Go on with what a stop may have cut off.

        Count what lives without the ledgers that are deleted; forget those that have expired.
        """
        self.upkeep.deleted = self._index.deleted_ledgers()
        if self.upkeep.deleted:
            self.upkeep.forgetting.hurry()
            self.upkeep.forgetting.hurry_later()
            self.upkeep.recount()

    def poll(self) -> None:
        """Take results and go on with what follows from them."""
        self._take_results()
        if self._is_flushing and self.failure and self._monotonic_s() >= self._retry_at_s:
            self.failure = ""
            self._submit_flush()
        self.upkeep.poll(is_flushing=self._is_flushing)
        self.free_files.poll()

    # ---- deletions

    def _record_deletions(self) -> None:
        """Write deletions down before the flush that makes them durable; after it what is deleted may go."""
        events = [*self._unrecorded, *self._marked]
        self._marked, self._unrecorded = [], []
        self._has_expired = any("expired" in event for event in events)
        self._deleted = self._index.deleted_ledgers()

        def record() -> None:
            kill_point("index.delete_before_record")
            try:
                self._deletion_log.append(*events)
            except OSError as error:
                raise DeletionLogFailed(events) from error
            kill_point("index.delete_after_record")

        self._jobs.submit("audit", record)

    def _forgotten(self, ledger_ids: array[int]) -> None:
        if self._deleted is not None:
            self._deleted = ids_without(self._deleted, ledger_ids)

    # ---- results

    def _take_results(self) -> None:
        for name, result in self._jobs.results():
            if isinstance(result, Exception):
                self._failed(name, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                self._done(name, result)

    def _done(self, name: str, result: object) -> None:
        if name == "flush":
            check_invariant(isinstance(result, Change), "a flush gives a change")
            kill_point("index.flush_before_install")
            self._install(result)  # type: ignore[arg-type]
            kill_point("index.flush_before_mark")
            self._index.flushed()
            kill_point("index.flush_after_mark")
            self.flush_took_s = self._timer_s() - self._begun_s
            self._index.observe("FBK_H_INDEX_FLUSH_NS", int(self.flush_took_s * 1e9))
            self._is_flushing = False
            self.flushes += 1
            if self._deleted is not None:
                self.upkeep.deleted, self._deleted = self._deleted, None
                if self._has_expired:
                    self.upkeep.forgetting.hurry()
                self.upkeep.recount()
            elif self._has_dead_journal_file:
                self.upkeep.recount()  # everything in it was deleted while the journal still wrote to it
            self.upkeep.poll()
        elif isinstance(result, CleanedUp):
            self._count_reclaimed()
            self.free_files.given_up(result.free_files)
            if result.complaints:
                self._log("flush.files_left_behind", complaints=result.complaints)
        elif (change := self.upkeep.take(name, result)) is not None:
            self._install(change)

    def _failed(self, name: str, error: Exception) -> None:
        self._log(f"{name}.failed", reason=str(error))
        if name == "flush":
            if not isinstance(error, CheckpointFailed):
                raise error
            self._index.count("FBK_C_INDEX_FLUSH_FAILURES")
            self.failure = str(error)
            self._retry_at_s = self._monotonic_s() + RETRY_DELAY_S
        elif name == "audit" and isinstance(error, DeletionLogFailed):
            # Nothing goes without its line: with the next flush once more.
            self._unrecorded += error.events
            self._deleted = None
        elif isinstance(error, Error | OSError):
            self.upkeep.take(name, error)
        else:
            raise error

    def _install(self, change: Change) -> None:
        """Main loop: memory only. What no manifest names any more goes in the flush thread."""
        change.install(self._store)
        self._store.set_journal_file(change.passed_file_id)
        self._checkpoint.installs += 1
        self.listed_files = change.listed_files
        self.listed_logs = change.manifest.logs
        self._show(change.journal_logs or JournalLogs())
        # Else an older manifest may count after a restart, and what lies behind its mark is replayed.
        if change.is_mirrored and not self._checkpoint.commits.is_held:
            self.free_files.passed(change.passed_file_id, change.listed_files)
        if not change.is_mirrored:
            self._log("manifest.second_slot_not_written", generation=change.manifest.generation)
        self._jobs.submit("clean_up", lambda: self._clean_up(change))

    def _show(self, logs: JournalLogs) -> None:
        self._has_dead_journal_file = logs.has_dead
        self.journal_logs = logs
        self._index.gauge("FBK_C_INDEX_JOURNAL_LOGS", logs.count)
        self._index.gauge("FBK_C_INDEX_JOURNAL_LOG_BYTES", logs.durable_bytes)
        self._index.gauge("FBK_C_INDEX_JOURNAL_LOG_LIVE_BYTES", logs.live_bytes)

    def _clean_up(self, change: Change) -> CleanedUp:
        """Flush thread."""
        commits = self._checkpoint.commits
        complaints = commits.clean_up(self._store, change)
        return CleanedUp(complaints, commits.take_free_files())

    def _count_reclaimed(self) -> None:
        reclaimed = self._checkpoint.commits.reclaimed
        now, before = (reclaimed.freed_bytes, reclaimed.failures), self._reclaimed
        self._reclaimed = now
        self._index.count("FBK_C_INDEX_LOGS_RECLAIMED_BYTES", now[0] - before[0])
        self._index.count("FBK_C_INDEX_LOGS_NOT_UNLINKED", now[1] - before[1])

    # ---- jobs

    def _submit_flush(self) -> None:
        self._jobs.submit("flush", self._flush)

    def _flush(self) -> Change:
        sealed = self._index.sealed()
        return self._checkpoint.run(
            self._store,
            sealed.contents,
            sealed.mark_sequence,
            passed_file_id=self._passed_file_id or sealed.file_id,
            mark_offset_bytes=0 if self._passed_file_id else sealed.batch_offset_bytes,
            damage=self._damage,
            ended=self._ended,
            clean=self._clean,
        )

    def _wait_readable(self) -> None:
        if isinstance(self._jobs, DirectJobs):
            return
        poll = select.poll()
        poll.register(self._jobs.fd, select.POLLIN)
        poll.poll(None)


class CleanedUp(msgspec.Struct, frozen=True):
    """What the flush thread says after a clean-up."""

    complaints: list[str]
    free_files: list[int]
    """Journal files that no manifest lists any more."""


class FreeJournalFiles:
    """Journal files that adopt, or may, and that the journal may take again (INV-J3). Main loop only.

    The journal keeps a file that adopts until it hears of it, whatever the mark. It hears of each once: when the mark
    has passed it, no manifest lists it that may count after a restart, and nobody reads it under an older list. What it
    did not hear, because a process ended, the next start computes anew.

    Of files that never were logs the index knows only that the mark has passed them: the journal ignores those that it
    does not keep.
    """

    def __init__(self, store: Store, is_compacting: Callable[[int], bool]) -> None:
        """`is_compacting`: whether a compaction reads this journal file."""
        self._store = store
        self._is_compacting = is_compacting
        self._report: Callable[[list[int]], bool] = lambda file_ids: False
        self._next_file_id = 0
        """The mark has passed all before it; 0: there is no journal yet."""
        self._waiting: set[int] = set()

    def begin(
        self,
        next_file_id: int,
        report: Callable[[list[int]], bool],
        waiting: Iterable[int] = (),
    ) -> None:
        """Begin when replay is over, and the journal has its files.

        Args:
            next_file_id: the journal's next one. Of those before it replay has said which are logs.
            report: hands ids to the journal; False: later.
            waiting: of those before it, what replay found free and did not say.
        """
        self._next_file_id, self._report = next_file_id, report
        self._waiting.update(waiting)

    def passed(self, file_id: int, listed_files: frozenset[int]) -> None:
        """Note that a change is installed whose mark has passed all files before `file_id`."""
        if not 0 < self._next_file_id < file_id:
            return
        passed = range(self._next_file_id, file_id)
        self._waiting.update(passed_id for passed_id in passed if passed_id not in listed_files)
        self._next_file_id = file_id

    def given_up(self, file_ids: Iterable[int]) -> None:
        """Note that these were logs and are not any more, by a change that is installed."""
        self._waiting.update(file_ids)

    def poll(self) -> None:
        """Tell the journal, if it is time."""
        if not self._waiting or not self._next_file_id or self._store.old_sets:
            return
        free = sorted(file_id for file_id in self._waiting if not self._is_compacting(file_id))
        for start in range(0, len(free), FREE_FILES_A_MESSAGE):
            some = free[start : start + FREE_FILES_A_MESSAGE]
            if not self._report(some):
                return
            kill_point("index.journal_files_free")
            self._waiting.difference_update(some)
