"""What beside flushes changes which files count: merges, recounts, compactions.

Planned by the main loop (`plan_...`), written by the background thread in slices, committed by the flush thread
(`commit_...`), which gives a `Change` to be installed, as a flush does. What fails before its commit is abandoned.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import check_invariant
from fastbk.native.ffi import CorruptDataError
from fastbk.native.process import kill_point
from fastbk.native.store import Compact, CompactOptions, MergeOptions, Scope
from fastbk.storage.commits import (
    FAILURES,
    Attempt,
    Change,
    CheckpointFailed,
    Commits,
    in_order,
    recounted,
    split_dead,
)
from fastbk.storage.manifest import COMPACTION, LocationsEntry, LogEntry
from fastbk.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from fastbk.native.store import Merge, MergeResult, Runs, Store
    from fastbk.storage.commits import Attempt, Commits
    from fastbk.storage.manifest import LogEntry, Manifest


LOOKS_MAX = 10
"""A pass begins anew when a merge takes a file away just before it."""
RUNS_MAX = 1 << 18
"""Runs looked for by one pass over all locations, and at most so many in one new log: 16 MiB each."""


class CompactionSettings(msgspec.Struct, frozen=True):
    """Bounds. `window_bytes`: memory for what is read, sorted and joined at a time; `log_size_bytes`: of a new log."""

    window_bytes: int = 32 * MIB
    log_size_bytes: int = GIB
    runs_max: int = RUNS_MAX


class CheckpointSettings(msgspec.Struct, frozen=True):
    """Bounds: when a log is rolled, how much is written at a time, how often a failed flush is tried."""

    entry_log_size_bytes: int = GIB
    step_bytes: int = MIB
    attempts_max: int = 5
    retry_delay_s: float = 0.1
    """Pause before the second attempt; doubled before each further one."""
    compaction: CompactionSettings = msgspec.field(default_factory=CompactionSettings)


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
    """Maintenance of one ledger directory."""

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
                chosen = choose_merge(chosen, self.damaged, max(newest, default=-1))
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
        check_invariant(merging.merged is not None, "a merge is committed once it is written")
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
        return msgspec.structs.replace(change, is_recount=True)

    def commit_compaction(self, store: Store, compaction: Compaction) -> Change:
        """List the new logs, and no longer those out of which everything was moved (INV-X5).

        Raises CheckpointFailed: nothing changed.
        """
        check_invariant(compaction.is_over, "a compaction is committed once it is over")
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


# --- compaction --------------------------------------------------------------------------------------------------
#
# One compaction on its way: what lives in some entry logs is moved into new ones, and the old ones are given up.
#
# Planned by the main loop, done in slices by the background thread, committed by the flush thread
# (`Checkpoint.commit_compaction`): one manifest that lists the new logs and no longer the old ones.
# Until then the old ones count and the new ones are garbage, from then on it is the other way round
# (INV-X5), so a crash at any step leaves one of both whole. Locations of other ledgers are not
# touched: those in the old logs are void from the commit on.
#
# What is deleted meanwhile is moved for nothing, and counted out by the next recount.


BAD_RANGES_MAX = 4096


class CompactionCounts(msgspec.Struct):
    """What was done so far."""

    runs_read: int = 0
    runs_written: int = 0
    entries_moved: int = 0
    read_bytes: int = 0
    moved_bytes: int = 0
    bad_runs: int = 0
    bad_entries: int = 0
    bad_ranges: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    """(ledger, first id, last id) found damaged: these answer "cannot tell" from now on. BAD_RANGES_MAX at most."""


class Compaction:
    """The logs that are given up, and how far it is."""

    def __init__(
        self,
        commits: Commits,
        attempt: Attempt,
        log_ids: Collection[int],
        deleted: Collection[int],
        settings: CompactionSettings,
        *,
        deadline_s: float = float("inf"),
        clock_s: Callable[[], int] = lambda: int(time.time()),
        new_salt: Callable[[], int] = lambda: 0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Plan it; nothing is done yet.

        Args:
            commits: for new ids and the manifest as it is.
            attempt: the files that are made.
            log_ids: sealed logs.
            deleted: ledgers whose deletion is durable; they are not moved.
            settings: bounds.
            deadline_s: by `monotonic_s`; from then on no further log is begun.
            clock_s: wall clock.
            new_salt: random numbers.
            monotonic_s: for the deadline.
        """
        self.log_ids = tuple(sorted(set(log_ids)))
        self.attempt = attempt
        self.done: tuple[int, ...] = ()
        """Logs out of which everything was moved, once it is over; not those behind the deadline, nor unreadable."""
        self.unreadable: list[int] = []
        """Logs that stay, since they could not be read now; nothing in them is taken for lost."""
        self.logs: list[LogEntry] = []
        self.locations: list[LocationsEntry] = []
        self.counts = CompactionCounts()
        self.is_over = False
        self.drops = 0
        """How many drops of ledgers there had been when it was planned (`Checkpoint.drops`)."""
        self.generations: list[int] = []
        """Generations of its locations files: no merge may reach over them until the commit."""
        self._commits = commits
        self._deleted = deleted
        self._settings = settings
        self._deadline_s = deadline_s
        self._clock_s = clock_s
        self._new_salt = new_salt
        self._monotonic_s = monotonic_s
        self._output: Compact | None = None
        self._log: LogEntry | None = None
        self._steps: Iterator[int] | None = None

    def step(self, store: Store) -> int:
        """Do a slice; return the bytes that were read and written, 0 when everything is moved and synced.

        Raises OSError, CorruptDataError: then `abandon`; the logs stay as they are.
        """
        if self._steps is None:
            self._steps = self._run(store)
        return next(self._steps, 0)

    def abandon(self) -> None:
        """Let the disk go; what was written is unlinked by `Checkpoint.abandon`. Harmless when it is over."""
        if self._steps is not None:
            self._steps = iter(())
        if self._output is not None:
            self._output.free()
            self._output = None

    # ---- steps

    def _run(self, store: Store) -> Iterator[int]:
        place, next_log = (0, 0), -1
        while next_log < 0:
            runs, size_bytes = self._look(store, place)
            yield size_bytes
            at = 0
            while at < len(runs) and next_log < 0:
                before = runs[at].log_id
                taken, size_bytes = self._move(store, runs, at)
                if taken is None:
                    self.unreadable.append(before)
                    place, at = (before + 1, 0), -1
                    break
                at += taken
                yield size_bytes
                if self._is_full():
                    yield from self._end_output(store)
                if self._monotonic_s() >= self._deadline_s and at < len(runs):
                    next_log = runs[at].log_id if runs[at].log_id != before else -1
            if at < 0:
                continue  # behind the log that can't be read
            if runs.is_all:
                break
            place = runs.next_place
        if self._output is not None:
            yield from self._end_output(store)
        self.done = tuple(
            i for i in self.log_ids if i not in self.unreadable and (next_log < 0 or i < next_log)
        )
        if not self.done:
            raise OSError("none of these entry logs can be read")
        self.is_over = True

    def _look(self, store: Store, place: tuple[int, int]) -> tuple[Runs, int]:
        """Return the next runs that live in these logs, and what it took to find them."""
        for _ in range(LOOKS_MAX):
            manifest: Manifest = self._commits.manifest
            files = [entry.file_id for entry in manifest.locations]
            try:
                runs = store.log_runs(
                    Scope(files, self.log_ids, self._deleted), place, self._settings.runs_max
                )
            except FileNotFoundError:
                continue
            return runs, 1 + sum(entry.size_bytes for entry in manifest.locations)
        raise OSError("locations files are replaced faster than they can be read")

    def _move(self, store: Store, runs: Runs, at: int) -> tuple[int | None, int]:
        if self._output is None:
            self._log = self._commits.files.new_log(
                self.attempt, self._new_salt(), self._clock_s(), COMPACTION
            )
            self._output = Compact(
                store,
                CompactOptions(
                    log_id=self._log.log_id,
                    log_salt=self._log.salt,
                    created_s=self._log.created_s,
                    window_bytes=self._settings.window_bytes,
                ),
            )
        before = self._output.counts
        taken = self._output.step(runs, at)
        after = self._output.counts
        moved = after.moved_bytes - before.moved_bytes
        return taken, 1 + after.read_bytes - before.read_bytes + moved

    def _is_full(self) -> bool:
        if self._output is None:
            return False
        counts = self._output.counts
        return (
            counts.moved_bytes >= self._settings.log_size_bytes
            or counts.locations >= self._settings.runs_max
        )

    def _end_output(self, store: Store) -> Iterator[int]:
        """Write what is left, sync the new log, then write its locations, and look into them."""
        output, log = self._output, self._log
        assert output is not None
        assert log is not None
        moved_bytes = output.counts.moved_bytes
        while output.write_rest():
            yield 1 + output.counts.moved_bytes - moved_bytes
            moved_bytes = output.counts.moved_bytes
        counts, damaged = output.counts, output.damaged()
        end_bytes = output.end_log()
        if counts.locations:
            file_id = self._commits.files.new_locations(self.attempt)
            with self._commits.reserving:
                generation = self._commits.slots.next_generation()
                self.generations.append(generation)
            size_bytes = output.write_locations(file_id, generation)
            self.attempt.prepared.append(file_id)
            if store.prepare(file_id):
                raise CorruptDataError("locations of a compacted log read back damaged")
            self.locations.append(
                LocationsEntry(
                    file_id=file_id,
                    first_generation=generation,
                    last_generation=generation,
                    size_bytes=size_bytes,
                )
            )
        self.logs.append(
            msgspec.structs.replace(
                log, durable_bytes=end_bytes, live_bytes=counts.moved_bytes, sealed=True
            )
        )
        total = self.counts
        total.runs_read += counts.runs_read
        total.runs_written += counts.runs_written
        total.entries_moved += counts.entries_moved
        total.read_bytes += counts.read_bytes
        total.moved_bytes += counts.moved_bytes
        total.bad_runs += counts.bad_runs
        total.bad_entries += counts.bad_entries
        total.bad_ranges = (total.bad_ranges + damaged)[:BAD_RANGES_MAX]
        output.free()
        self._output = None
        yield MIB


# --- merges of locations -----------------------------------------------------------------------------------------
#
# Which locations files to merge when, and one merge on its way.
#
# Files are kept in the order of their generations; a merge takes neighbours, so that each file still covers
# generations that no other covers and "newest wins" stays a comparison of files. It is planned by the main loop and
# written in slices by the background thread.
#
# It leaves out what lies in unlisted logs (INV-X5) and what belongs to deleted ledgers. Its commit is
# `Checkpoint.commit_merge`, in the flush thread.


SLICE_BLOCKS = 256
"""Blocks of 4 KiB of a slice: some milliseconds of work between two checks of what else is to be done."""
BLOCK_BYTES = 4 * KIB
TIER_BYTES = 256 * KIB
"""Files up to this size are of tier 0."""
TIER_FACTOR = 8
"""Each tier's files are up to this many times as large as the tier's below."""
MERGE_FILES_MIN = 8
FILES_MAX = 64
"""With so many files the whole set is merged, whatever the sizes."""


class LocationsMerge:
    """The files that are merged, and how far it is."""

    def __init__(
        self,
        chosen: tuple[LocationsEntry, ...],
        manifest: Manifest,
        attempt: Attempt,
        deleted: Collection[int],
        *,
        created_s: int,
        forget_deleted_before_s: int = 0,
        drops: bool = False,
    ) -> None:
        """Plan it; nothing is done yet.

        Args:
            chosen: neighbours, in ascending generations.
            manifest: names them, and the logs that count.
            attempt: the file that is made.
            deleted: ledgers whose deletion is durable; their locations are left out.
            created_s: wall clock.
            forget_deleted_before_s: not 0 only when `chosen` are all files there are.
            drops: among `deleted` are ledgers that live, and may come again.
        """
        self.chosen = chosen
        self.attempt = attempt
        self.drops = drops
        self.merged: LocationsEntry | None = None
        """Once it is written."""
        self.result: MergeResult | None = None
        self.damaged: tuple[int, ...] = ()
        """Ids of inputs that turned out not to be readable, when it failed for that."""
        self.size_bytes = sum(entry.size_bytes for entry in chosen)
        self._options = MergeOptions(attempt.file_id, created_s, forget_deleted_before_s)
        self._scope = Scope(
            (entry.file_id for entry in chosen), (log.log_id for log in manifest.logs), deleted
        )
        self._merge: Merge | None = None

    @property
    def last_generation(self) -> int:
        """The highest generation that it takes in."""
        return self.chosen[-1].last_generation

    def step(self, store: Store) -> int:
        """Do a slice; return the bytes that were read, 0 when it is written and looked into.

        Raises OSError, CorruptDataError: then `abandon`.
        """
        if self.merged is not None:
            return 0
        if self._merge is None:
            self._merge = store.begin_merge(self._options, self._scope)
        try:
            goes_on = self._merge.step(SLICE_BLOCKS)
        except (OSError, CorruptDataError):
            self._look_for_damage(store)
            raise
        if not goes_on:
            self.result = result = self._merge.end()
            self.attempt.prepared.append(self.attempt.file_id)
            kill_point("index.merge_written")
            if store.prepare(self.attempt.file_id):
                raise CorruptDataError("a merged locations file reads back damaged")
            self.merged = LocationsEntry(
                file_id=self.attempt.file_id,
                first_generation=result.first_generation,
                last_generation=result.last_generation,
                size_bytes=result.file_size_bytes,
            )
        return SLICE_BLOCKS * BLOCK_BYTES

    def _look_for_damage(self, store: Store) -> None:
        """A rotten file keeps no others from being merged for ever; if none is whole it is the disk's moment."""
        bad = tuple(entry.file_id for entry in self.chosen if not _is_readable(store, entry))
        if len(bad) < len(self.chosen):
            self.damaged = bad

    def abandon(self) -> None:
        """Let the disk go; what was written is unlinked by `Checkpoint.abandon`. Harmless when it ended already."""
        if self._merge is not None:
            self._merge.abandon()
            self._merge = None


def _is_readable(store: Store, entry: LocationsEntry) -> bool:
    try:
        store.log_bytes(Scope([entry.file_id], None))
        store.count_states([entry.file_id], 0)
    except (OSError, CorruptDataError):
        return False
    return True


def tier_of(size_bytes: int) -> int:
    """Return the tier of a file of this size: 0 for the smallest."""
    tier, bound = 0, TIER_BYTES
    while size_bytes > bound:
        tier, bound = tier + 1, bound * TIER_FACTOR
    return tier


def choose_merge(
    files: Sequence[LocationsEntry], damaged: Collection[int] = (), newer_than: int = -1
) -> tuple[LocationsEntry, ...]:
    """Return the files to be merged now, in ascending generations; empty when there is nothing to do.

    Args:
        files: all that count, in ascending generations.
        damaged: ids of files that must not be merged; only those newer than all of them are.
        newer_than: a generation; only files of higher ones are merged.

    For the smallest tier t of which there are MERGE_FILES_MIN files among the newest files of tiers <= t, all of
    those newest files are merged. So a location is written again about once a tier, and a lookup asks fewer
    than MERGE_FILES_MIN files of each tier.
    """
    last_damaged = max((i for i, file in enumerate(files) if file.file_id in damaged), default=-1)
    files = [file for file in files[last_damaged + 1 :] if file.first_generation > newer_than]
    if len(files) >= FILES_MAX:
        return tuple(files)
    tiers = [tier_of(file.size_bytes) for file in files]
    for tier in sorted(set(tiers)):
        count = 0
        while count < len(files) and tiers[-1 - count] <= tier:
            count += 1
        if tiers[len(files) - count :].count(tier) >= MERGE_FILES_MIN:
            return tuple(files[-count:])
    return ()
