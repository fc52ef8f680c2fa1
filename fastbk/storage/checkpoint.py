"""The order of a checkpoint (INV-X2, INV-X3): a flush, its commit, and what follows.

The flush thread calls `run`, which writes and syncs new files, reads them back and commits a manifest. It returns a
`Change`: the main loop installs it (`Change.install`, memory work only), frees the write cache and publishes the mark.
Then the flush thread unlinks what no manifest names any more (`Commits.clean_up`). A failure before the commit abandons
the new files, and the next try writes new ones; a commit whose outcome is unknown leaves them on disk until a later one
succeeded, since the failed manifest may count after a restart. No thread here; crash tests call it step by step on the
fake disk.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.native.store import FlushOptions
from fastbk.retry import Backoff
from fastbk.storage.commits import (
    FAILURES,
    Attempt,
    Change,
    CheckpointFailed,
    Commits,
    appended,
    in_order,
    with_journal_files,
)
from fastbk.storage.directories import free_bytes
from fastbk.storage.maintenance import CheckpointSettings, Maintenance
from fastbk.storage.manifest import FLUSH, LocationsEntry, LogEntry, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from fastbk.native.disk import Disk
    from fastbk.native.store import FlushContents, FlushResult, Store
    from fastbk.storage.manifest import Damage, ManifestSlots

__all__ = ["Change", "Checkpoint", "CheckpointFailed", "CheckpointSettings"]


READ_ATTEMPTS_MAX = 3
"""Reads of a locations file at start before it is taken for damaged."""
READ_ERRORS_MAX = 5
"""The same where the disk does not give its bytes."""
READ_DELAY_S = 0.2
"""Pause after the first of these attempts; doubled each time: three seconds in all."""


def random_bits(count: int) -> int:
    """Return a random number of at most 64 bits. `secrets` has the same, but imports hashlib: 4 ms of each start."""
    return int.from_bytes(os.urandom(8), "little") >> (64 - count)


def _no_pause(_: int) -> None:
    return None


class Checkpoint(Maintenance):
    """The durable state of one ledger directory, and the only way to change it. One thread but for `install`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        slots: ManifestSlots,
        manifest: Manifest,
        settings: CheckpointSettings,
        *,
        clock_s: Callable[[], int] = lambda: int(time.time()),
        new_salt: Callable[[], int] = lambda: random_bits(63),
        wait: Callable[[float], None] = time.sleep,
        free: Callable[[str], int] = free_bytes,
        journal_directory: str = "",
    ) -> None:
        """Go on from a loaded manifest.

        Args:
            disk: for the flush thread alone: the one that the store writes with.
            directory: the ledger directory.
            slots: as loaded.
            manifest: what `slots.load` returned.
            settings: bounds.
            clock_s: wall clock.
            new_salt: random numbers.
            wait: between attempts; may raise to give up.
            free: bytes free on a directory's disk.
            journal_directory: of the same pair, where journal files are that are logs.
        """
        super().__init__(
            Commits(disk, directory, slots, manifest, clock_s, journal_directory),
            settings,
            clock_s,
            new_salt,
        )
        self._directory = directory
        self._slots = slots
        self._wait = wait
        self._free = free
        self.installs = 0
        """Changes that lookups know of: a manifest is there before its files are searched. The main loop counts."""

    # ---- the main loop's part

    def load(self, store: Store) -> set[int]:
        """Put all files of the manifest into the set, at start; return the ids of damaged ones.

        A disk that fails to read gets some seconds: what it still does not give then counts as damaged in this life
        alone. Whoever needs the states, which would be remembered as lost for good, asks `Store.states` and gives up.
        """
        for entry in self.manifest.locations:
            self._load_file(store, entry.file_id)
        store.set_logs(log.log_id for log in self.manifest.logs)
        return self.damaged

    def _load_file(self, store: Store, file_id: int) -> None:
        # Exact: one local disk, which nobody else waits for in step.
        backoff = Backoff(READ_DELAY_S, math.inf)
        for attempt in range(1, READ_ERRORS_MAX + 1):
            if not store.add(file_id):
                return
            may_pass = store.read_error(file_id) != 0
            if attempt >= (READ_ERRORS_MAX if may_pass else READ_ATTEMPTS_MAX):
                self.damaged.add(file_id)
                return
            store.remove(file_id)
            if may_pass:
                self._wait(backoff.next_s())

    # ---- the flush thread's part

    def run(
        self,
        store: Store,
        contents: FlushContents,
        mark: int,
        *,
        passed_file_id: int = 0,
        mark_offset_bytes: int = 0,
        damage: Iterable[Damage] = (),
        ended: Collection[Damage] = (),
        clean: bool = False,
        pause: Callable[[int], None] = _no_pause,
    ) -> Change:
        """Flush `contents` and commit `mark`; try again with new files when a disk fails.

        Args:
            store: writes with the same disk as this.
            contents: unchanged until this returns.
            mark: the last journal batch contained in `contents` and all earlier flushes.
            passed_file_id: the journal file of that batch: the mark passes all before it.
            mark_offset_bytes: where in it that batch is, 0 = unknown.
            damage: found by replay; added to what the manifest remembers.
            ended: remembered by the manifest, and forgotten with this commit (INV-X6).
            clean: nothing is in the journal behind `mark`, and nothing will come.
            pause: called with the bytes of each written step: paces the flush; may raise to give up.

        Raises CheckpointFailed after the last attempt: `contents` are still needed.
        """
        backoff = Backoff(self._settings.retry_delay_s, math.inf)
        new_damage = tuple(damage)
        over = tuple(ended)
        cause: Exception | None = None
        for attempt in range(self._settings.attempts_max):
            if attempt:
                self._wait(backoff.next_s())
            try:
                change = self._run_once(
                    store,
                    contents,
                    mark,
                    passed_file_id,
                    mark_offset_bytes,
                    new_damage,
                    over,
                    clean,
                    pause,
                )
                return msgspec.structs.replace(change, passed_file_id=passed_file_id)
            except FAILURES as error:
                cause = error
        raise CheckpointFailed(
            f"could not flush into {self._directory} in {self._settings.attempts_max} attempts: {cause}."
            " Free space on that disk or repair it; the journal holds the data meanwhile"
        ) from cause

    # ---- steps

    def _run_once(
        self,
        store: Store,
        contents: FlushContents,
        mark: int,
        passed_file_id: int,
        mark_offset_bytes: int,
        damage: tuple[Damage, ...],
        ended: tuple[Damage, ...],
        clean: bool,
        pause: Callable[[int], None],
    ) -> Change:
        commits = self.commits
        kept = [damaged for damaged in self.manifest.damage if damaged not in ended]
        logs = with_journal_files(
            self.manifest.logs, contents.adopted, passed_file_id, self._clock_s()
        )
        manifest = msgspec.structs.replace(
            self.manifest,
            mark=mark,
            mark_file_id=passed_file_id if mark_offset_bytes else 0,
            mark_offset_bytes=mark_offset_bytes,
            damage=(*kept, *damage),
            clean=clean,
            logs=logs,
        )
        if contents.is_empty:
            return commits.commit(store, manifest, Attempt(self._slots.next_generation()))
        attempt = commits.files.attempt(self._slots.next_generation())
        log = commits.current_log if contents.has_entries else None
        offset_bytes = log.durable_bytes if log is not None else 0
        if contents.has_entries and log is None:
            log = commits.files.new_log(attempt, self._new_salt(), self._clock_s(), FLUSH)
        # Whatever happens from here on, the log's tail is unknown until the commit.
        current, commits.current_log = commits.current_log, None
        try:
            result = self._flush(store, contents, attempt, log, offset_bytes, pause)
        except BaseException:
            commits.files.abandon(store, attempt)
            raise
        entry = LocationsEntry(
            file_id=attempt.file_id,
            first_generation=attempt.generation,
            last_generation=attempt.generation,
            size_bytes=result.file_size_bytes,
        )
        if log is not None:
            current = msgspec.structs.replace(
                log,
                durable_bytes=result.log_end_bytes,
                live_bytes=log.live_bytes + result.run_bytes,
            )
            logs = appended(logs, current)
        manifest = msgspec.structs.replace(
            manifest, locations=in_order([*manifest.locations, entry]), logs=logs
        )
        change = commits.commit(store, manifest, attempt)
        if current is not None and current.durable_bytes < self._settings.entry_log_size_bytes:
            commits.current_log = current
        return change

    def _flush(
        self,
        store: Store,
        contents: FlushContents,
        attempt: Attempt,
        log: LogEntry | None,
        offset_bytes: int,
        pause: Callable[[int], None],
    ) -> FlushResult:
        """Do steps 1 and 2 of a checkpoint, and read back what was written."""
        options = FlushOptions(
            log_id=log.log_id if log is not None else 0,
            log_offset_bytes=offset_bytes,
            log_salt=log.salt if log is not None else 0,
            locations_file_id=attempt.file_id,
            generation=attempt.generation,
            created_s=self._clock_s(),
        )
        flush = store.begin_flush(options, contents)
        try:
            while flush.step(self._settings.step_bytes):
                pause(self._settings.step_bytes)
            result = flush.end()
        finally:
            flush.abandon()
        self._read_back(store, attempt)
        return result

    @staticmethod
    def _read_back(store: Store, attempt: Attempt) -> None:
        attempt.prepared.append(attempt.file_id)
        if store.prepare(attempt.file_id):
            raise CorruptDataError("a locations file reads back damaged right after it was written")
