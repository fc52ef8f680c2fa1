"""One cycle of the scrub of a running bookie: is what lies on its disks still what was written? In slices.

Every block of the locations files, every run that a location names, and the sealed journal files behind the mark are
read past the page cache. A damaged run counts only for those of its entries of which no other copy here is whole. Files
may be merged, compacted and recycled meanwhile: what vanishes and is not listed any more is nobody's damage.

Entries that are whole are also checked by their own digests, where metadata says in time which those are: it is asked
while the disk is read, and waited for in short slices, so that nothing else of the thread's work is held up.

Run by the index's background thread: each `step` is some milliseconds of work, and tells its bytes. What is found lies
in `found` for the main loop to take.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.native.ffi import CorruptDataError, NativeFullError
from fastbk.native.scrub import DigestScan, LogScan, Run, check_locations, unreadable
from fastbk.native.store import Scope
from fastbk.storage.check import run_list
from fastbk.storage.digest_check import DigestCount, NoDigests
from fastbk.storage.directories import locations_path, log_path, missing_log
from fastbk.storage.journal_files import find_files, passed_files, plan_replay
from fastbk.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.store import Store
    from fastbk.storage.digest_check import DigestSource, KnownDigest
    from fastbk.storage.manifest import LogEntry, Manifest

RUNS_A_PASS = 65_536
"""4 MiB of locations; each pass reads all locations files once."""
STEP_BYTES = 512 * KIB
RUNS_A_STEP = 256
FOUND_MAX = 10_000
"""Findings that the main loop has not taken yet; more are only counted."""
BAD_DIGESTS_FOUND_MAX = 1024
"""The same for ranges of entries with wrong digests: more than the list of them holds."""
TRIES_MAX = 5


class Damaged(msgspec.Struct, frozen=True):
    """Entries that nobody can read here (ledger_id -1: a whole file or block, whose entries are unknown)."""

    path: str
    reason: str
    ledger_id: int = -1
    first: int = -1
    last: int = -1
    installs: int = 0
    """How many changes lookups knew of at least; what came with a later one was not seen."""


class ScrubCycle:
    """A plan of the background thread: `step`, until it returns 0."""

    def __init__(
        self,
        manifest: Callable[[], Manifest],
        damaged_files: Sequence[int],
        disk: Disk,
        directory: str,
        journal_disk: Disk,
        journal_directory: str,
        incarnation: int,
        *,
        place: tuple[int, int] = (0, 0),
        deleted: Sequence[int] = (),
        digests: DigestSource | None = None,
        installs: Callable[[], int] = lambda: 0,
    ) -> None:
        """Begin.

        Args:
            manifest: gives the newest one.
            damaged_files: ids of locations files that were damaged at start: known already.
            disk, journal_disk: for this alone.
            place: (log id, offset) where a cycle that was cut off goes on; (0, 0): at the beginning.
            deleted: ids of ledgers that nobody will read.
            digests: knows which digests entries have; None: those are not looked at.
            installs: gives how many changes lookups know of (`Checkpoint.installs`).
        """
        self.place = place
        self.found: deque[Damaged] = deque()
        self.bad_digests: deque[tuple[int, int, int]] = deque()
        """(ledger, first id, last id) of whole entries with wrong digests."""
        self.digests = DigestCount()
        self.runs = 0
        self.read_bytes = 0
        self.damaged_runs = 0
        self.is_done = False
        self.stopped = ""
        """Why it ended early; the next one begins at `place`."""
        self._manifest = manifest
        self._damaged_files = set(damaged_files)
        self._disk = disk
        self._directory = directory
        self._journal_disk = journal_disk
        self._journal_directory = journal_directory
        self._incarnation = incarnation
        self._deleted = deleted
        self._digests: DigestSource = NoDigests() if digests is None else digests
        self._counts_digests = digests is not None
        self._installs = installs
        self._is_resumed = place != (0, 0)
        self._slices: Iterator[int] | None = None

    def step(self, store: Store) -> int:
        """Do a slice; return the bytes that were read (at least 1), 0 when there is nothing more."""
        if self._slices is None:
            self._slices = self._all(store)
        try:
            size_bytes = next(self._slices, 0)
        except (OSError, Error) as error:
            self.stopped = f"{type(error).__name__}: {error}"
            size_bytes = 0
        self.is_done = size_bytes == 0
        self.read_bytes += size_bytes
        return size_bytes

    def abandon(self) -> None:
        """Let files go."""
        if self._slices is not None:
            self._slices = None
        self.is_done = True

    def _all(self, store: Store) -> Iterator[int]:
        self._digests.begin_cycle()
        if not self._is_resumed:
            yield from self._locations(store)
        yield from self._logs(store)
        yield from self._journal()

    def _add(self, damaged: Damaged) -> None:
        if len(self.found) < FOUND_MAX:
            self.found.append(damaged)

    # ---- locations

    def _locations(self, store: Store) -> Iterator[int]:
        for entry in self._manifest().locations:
            path = locations_path(self._directory, entry.file_id)
            if entry.file_id in self._damaged_files:
                continue
            try:
                found = check_locations(self._disk, path, entry.file_id, self._incarnation)
                reason = "" if found.is_whole else "a part of it is damaged"
                for run in found.lost:
                    if run.ledger_id not in self._deleted:
                        self._note(store, path, run, "a compaction found it damaged")
            except OSError as error:
                reason = f"can't be read: {error.strerror}"
            if reason and entry in self._manifest().locations:
                self._add(Damaged(path, reason))
            yield 1 + entry.size_bytes

    # ---- entry logs

    def _logs(self, store: Store) -> Iterator[int]:
        tries = 0
        while True:
            manifest = self._manifest()
            logs = {log.log_id: log for log in manifest.logs if log.log_id >= self.place[0]}
            files = [one for one in manifest.locations if one.file_id not in self._damaged_files]
            scope = Scope([one.file_id for one in files], list(logs), self._deleted)
            try:
                runs = store.log_runs(scope, self.place, RUNS_A_PASS)
            except (OSError, CorruptDataError):
                # A merge has replaced a file in between, or one is damaged; the latter does not get better.
                tries += 1
                if tries == TRIES_MAX:
                    raise
                yield 1
                continue
            yield 1 + sum(one.size_bytes for one in files)
            at = 0
            while at < len(runs):
                step = _step_of(run_list(runs, at, RUNS_A_STEP))
                at += len(step)
                types = yield from self._types_of(step)
                size_bytes = self._verify(store, logs[step[0].log_id], step, types)
                self.place = step[-1].log_id, step[-1].offset_bytes + 1
                yield 1 + size_bytes
            if runs.is_all:
                return

    def _types_of(self, runs: list[Run]) -> Generator[int, None, dict[int, KnownDigest]]:
        ledger_ids = {run.ledger_id for run in runs}
        while self._digests.want(ledger_ids):
            self._digests.wait()
            yield 1
        return self._digests.known(ledger_ids)

    def _verify(
        self, store: Store, log: LogEntry, runs: list[Run], types: dict[int, KnownDigest]
    ) -> int:
        path = log_path(self._directory, log.log_id, self._journal_directory)
        look = DigestScan(types)
        try:
            with LogScan(
                self._journal_disk if log.is_journal_file else self._disk,
                path,
                log.log_id,
                self._incarnation,
                salt=log.salt,
                end_bytes=self._durable_bytes(log),
            ) as scan:
                bad = scan.verify(runs, look)
        except OSError as error:
            if self._is_listed(log):
                is_missing = isinstance(error, FileNotFoundError)
                reason = (
                    missing_log(log.log_id) if is_missing else f"can't be read: {error.strerror}"
                )
                self._add(Damaged(path, reason))
            return 0
        for run in bad if self._is_listed(log) else ():
            reason = f"a run at offset {run.offset_bytes} of {path} is damaged"
            self._note(store, path, run, reason)
        self.runs += len(runs)
        self._note_digests(runs, look)
        return sum(run.size_bytes for run in runs)

    def _note_digests(self, runs: list[Run], look: DigestScan) -> None:
        if not self._counts_digests:
            return
        self.digests.checked += look.entries
        self.digests.bad += look.bad_entries
        self.digests.add_unchecked(runs, look.types)
        room = max(0, BAD_DIGESTS_FOUND_MAX - len(self.bad_digests))
        self.bad_digests.extend(look.bad[:room])

    def _note(self, store: Store, path: str, run: Run, reason: str) -> None:
        installs = self._installs()
        try:
            ranges = unreadable(store, run)
        except NativeFullError:
            ranges = [(run.first_entry_id, run.last_entry_id)]  # looked at again soon
        self.damaged_runs += bool(ranges)
        for first, last in ranges:
            self._add(Damaged(path, reason, run.ledger_id, first, last, installs))

    def _is_listed(self, log: LogEntry) -> bool:
        return any(log.log_id == one.log_id for one in self._manifest().logs)

    def _durable_bytes(self, log: LogEntry) -> int:
        """Return the newest durable length: the log may be appended to."""
        lengths = [one.durable_bytes for one in self._manifest().logs if one.log_id == log.log_id]
        return max([log.durable_bytes, *lengths])

    # ---- journal

    def _journal(self) -> Iterator[int]:
        """Files behind which the journal has gone on, as far as replay would still need them.

        What they hold is in the write cache, too: a flush in time is the cure.
        """
        manifest = self._manifest()
        mark = manifest.mark
        try:
            found = find_files(
                self._journal_disk,
                self._journal_directory,
                lock=False,
                passed=passed_files(manifest.logs),
            )
            plan = plan_replay(found, mark, self._incarnation)
        except (OSError, Error):
            return  # a file was recycled under the look
        for file in plan.files[:-1]:
            size_bytes = 1
            try:
                with file.scan(self._journal_disk, self._incarnation, mark) as scan:
                    for batch in scan:
                        size_bytes += batch.padded_bytes
                        if size_bytes >= STEP_BYTES:
                            yield size_bytes
                            size_bytes = 1
                    end = scan.end
            except (OSError, Error):
                continue
            if end.kind == "damage" and self._manifest().mark <= end.last_sequence:
                self._add(
                    Damaged(file.path, f"batches from {end.last_sequence + 1} on can't be read")
                )
            yield size_bytes


class Verify:
    """A plan: of what somebody else read and found damaged, which entries can nobody read here?"""

    def __init__(
        self, runs: Sequence[Run], directory: str, journal_directory: str, installs: int
    ) -> None:
        """`installs`: how many changes lookups know of."""
        self.found: deque[Damaged] = deque()
        self.is_done = False
        self._runs = deque(runs)
        self._directory = directory
        self._journal_directory = journal_directory
        self._installs = installs

    def step(self, store: Store) -> int:
        """Look at one run, or block of a locations file."""
        if not self._runs:
            self.is_done = True
            return 0
        run = self._runs.popleft()
        if run.ledger_id < 0:
            path = locations_path(self._directory, run.log_id)
            self.found.append(Damaged(path, f"the block at offset {run.offset_bytes} is damaged"))
            return STEP_BYTES // 8
        path = log_path(self._directory, run.log_id, self._journal_directory)
        reason = f"a run at offset {run.offset_bytes} of {path} is damaged, a read has met it"
        try:
            ranges = unreadable(store, run)
        except NativeFullError:
            ranges = [(run.first_entry_id, run.last_entry_id)]  # looked at again soon
        self.found += [
            Damaged(path, reason, run.ledger_id, first, last, self._installs)
            for first, last in ranges
        ]
        return STEP_BYTES // 8 + run.size_bytes

    def abandon(self) -> None:
        """Do nothing."""
        self.is_done = True


class Recheck:
    """A plan: are these entries still unreadable, or has a repair or a compaction ended that?"""

    def __init__(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """`ranges`: ledger, first, last."""
        self.readable: deque[tuple[int, int, int]] = deque()
        self.is_done = False
        self._ranges = deque(ranges)

    def step(self, store: Store) -> int:
        """Look at one range."""
        if not self._ranges:
            self.is_done = True
            return 0
        ledger_id, first, last = self._ranges.popleft()
        run = Run(ledger_id, first, last, 0, 0, 0, last - first + 1)
        try:
            if not unreadable(store, run):
                self.readable.append((ledger_id, first, last))
        except NativeFullError:
            pass
        return STEP_BYTES // 8

    def abandon(self) -> None:
        """Do nothing."""
        self.is_done = True


def _step_of(runs: list[Run]) -> list[Run]:
    """Return the first runs, up to about STEP_BYTES."""
    size_bytes = 0
    for n, run in enumerate(runs, 1):
        size_bytes += run.size_bytes
        if size_bytes >= STEP_BYTES:
            return runs[:n]
    return runs
