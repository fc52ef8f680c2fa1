"""One compaction on its way: what lives in some entry logs is moved into new ones, and the old ones are given up.

Planned by the main loop, done in slices by the background thread, committed by the flush thread
(`Checkpoint.commit_compaction`): one manifest that lists the new logs and no longer the old ones. Until then the old
ones count and the new ones are garbage, from then on it is the other way round (INV-X5), so a crash at any step leaves
one of both whole. Locations of other ledgers are not touched: those in the old logs are void from the commit on.

What is deleted meanwhile is moved for nothing, and counted out by the next recount.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.native.store import Compact, CompactOptions, Scope
from fastbk.storage.manifest import COMPACTION, LocationsEntry, LogEntry
from fastbk.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from fastbk.native.store import Runs, Store
    from fastbk.storage.commits import Commits
    from fastbk.storage.manifest import Manifest
    from fastbk.storage.new_files import Attempt

RUNS_MAX = 1 << 18
"""Runs looked for by one pass over all locations, and at most so many in one new log: 16 MiB each."""
LOOKS_MAX = 10
"""A pass begins anew when a merge takes a file away just before it."""
BAD_RANGES_MAX = 4096


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Bounds. `window_bytes`: memory for what is read, sorted and joined at a time; `log_size_bytes`: of a new log."""

    window_bytes: int = 32 * MIB
    log_size_bytes: int = GIB
    runs_max: int = RUNS_MAX


@dataclass(slots=True)
class CompactionCounts:
    """What was done so far."""

    runs_read: int = 0
    runs_written: int = 0
    entries_moved: int = 0
    read_bytes: int = 0
    moved_bytes: int = 0
    bad_runs: int = 0
    bad_entries: int = 0
    bad_ranges: list[tuple[int, int, int]] = field(default_factory=list)
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
        """Of its locations files: no merge may reach over them until the commit."""
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
