"""The order of a checkpoint (A18, INV-X2, INV-X3), of merges and of deletions.

The flush thread calls `run`, `merge_if_due` and `delete_ledgers`; each writes new files, syncs them, looks into
them, and commits a manifest. What comes back is a `Change`: the main loop installs it (`install`, memory work
only), frees the write cache and publishes the mark; then the flush thread unlinks what no manifest names any more
(`clean_up`). A failure before the commit abandons the new files, and the next try writes new ones; a commit whose
outcome is unknown leaves them on disk until a later one succeeded, since the failed manifest may count after a
restart. No thread here; crash tests call it step by step on the fake disk.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error, StorageError
from fastbk.native.ffi import CorruptDataError
from fastbk.native.kill_points import kill_point
from fastbk.native.store import FlushOptions, MergeOptions, Scope
from fastbk.storage import entry_log_files, locations_files
from fastbk.storage.audit import AuditLog
from fastbk.storage.directories import free_bytes, locations_path, log_path
from fastbk.storage.manifest import (
    CommitInDoubt,
    LocationsEntry,
    LogEntry,
    Manifest,
)
from fastbk.storage.new_files import Attempt, NewFiles
from fastbk.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.store import FlushItems, FlushResult, Store
    from fastbk.storage.manifest import Damage, ManifestSlots

FAILURES = (OSError, Error)
MERGE_BLOCKS = 256


class CheckpointFailed(StorageError):
    """Nothing was lost and nothing changed: the write cache is still needed. `__cause__` says why."""

    default_retryable = True


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Bounds: when a log is rolled, how much is written at a time, how often a failed flush is tried."""

    entry_log_size_bytes: int = GIB
    step_bytes: int = MIB
    attempts_max: int = 5
    retry_delay_s: float = 0.1
    """Before the second attempt; doubled before each further one."""


@dataclass(frozen=True, slots=True)
class Change:
    """A committed manifest that the main loop has not installed yet."""

    manifest: Manifest
    add: tuple[int, ...] = ()
    """Locations files to be searched from now on."""
    remove: tuple[int, ...] = ()
    """Locations files whose content is in those of `add`, or is not wanted any more."""
    dead_logs: tuple[LogEntry, ...] = ()
    unlink: tuple[str, ...] = ()
    """Paths that no manifest names any more; those of dead logs are not among them."""
    is_mirrored: bool = True
    """False: the manifest's second slot could not be written; say so to people."""
    reason: str = ""


def _no_pause(_: int) -> None:
    return None


class Checkpoint:
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
        new_salt: Callable[[], int] = lambda: secrets.randbits(63),
        wait: Callable[[float], None] = time.sleep,
        free: Callable[[str], int] = free_bytes,
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
        """
        self.manifest = manifest
        self.damaged: set[int] = set()
        """Ids of locations files of which a part is damaged: they are never merged."""
        self._disk = disk
        self._directory = directory
        self._slots = slots
        self._settings = settings
        self._clock_s = clock_s
        self._new_salt = new_salt
        self._wait = wait
        self._free = free
        self._audit = AuditLog(disk, directory)
        self._log: LogEntry | None = None
        """The log this life appends to; never one of an earlier life, whose tail is unknown."""
        self._files = NewFiles(disk, directory, manifest)

    # ---- the main loop's part

    def load(self, store: Store) -> set[int]:
        """Put all files of the manifest into the set, at start; return the ids of damaged ones."""
        for entry in self.manifest.locations:
            if store.add(entry.file_id):
                self.damaged.add(entry.file_id)
        store.set_logs(log.log_id for log in self.manifest.logs)
        return self.damaged

    @staticmethod
    def install(store: Store, change: Change) -> None:
        """Search the new files, and no longer old ones or unlisted logs (INV-X5). Memory work only. Main loop."""
        for file_id in change.add:
            store.add(file_id)
        store.set_logs(log.log_id for log in change.manifest.logs)
        for file_id in change.remove:
            store.remove(file_id)

    # ---- the flush thread's part

    def is_low_on_space(self, reserve_bytes: int) -> bool:
        """Return whether normal adds must be refused, so that what is acknowledged can always be flushed (A13)."""
        return self._free(self._directory) < reserve_bytes

    def run(
        self,
        store: Store,
        items: FlushItems,
        mark: int,
        *,
        damage: Iterable[Damage] = (),
        clean: bool = False,
        pause: Callable[[int], None] = _no_pause,
    ) -> Change:
        """Flush `items` and commit `mark`; try again with new files when a disk fails.

        Args:
            store: writes with the same disk as this.
            items: sorted; unchanged until this returns.
            mark: the last journal batch contained in `items` and all earlier flushes.
            damage: found by replay; added to what the manifest remembers.
            clean: nothing is in the journal behind `mark`, and nothing will come.
            pause: called with the bytes of each written step: paces the flush; may raise to give up.

        Raises CheckpointFailed after the last attempt: `items` are still needed.
        """
        delay_s = self._settings.retry_delay_s
        found = tuple(damage)
        cause: Exception | None = None
        for attempt in range(self._settings.attempts_max):
            if attempt:
                self._wait(delay_s)
                delay_s *= 2
            try:
                return self._run_once(store, items, mark, found, clean, pause)
            except FAILURES as error:
                cause = error
        raise CheckpointFailed(
            f"could not flush into {self._directory} in {self._settings.attempts_max} attempts: {cause}."
            " Free space on that disk or repair it; the journal holds the data meanwhile"
        ) from cause

    def merge_if_due(self, store: Store) -> Change | None:
        """Merge locations files if there are many; None when there is nothing to do. Raises CheckpointFailed."""
        chosen = locations_files.choose_merge(self.manifest.locations, self.damaged)
        if not chosen:
            return None
        try:
            return self._merge(store, chosen, (), 0, "merged")
        except FAILURES as error:
            raise CheckpointFailed(
                f"could not merge locations in {self._directory}: {error}"
            ) from error

    def delete_ledgers(
        self,
        store: Store,
        ledger_ids: Collection[int],
        *,
        forget_deleted_before_s: int = 0,
        reason: str = "deleted in metadata",
    ) -> Change | None:
        """Drop all locations of these ledgers, and the logs that nothing lives in any more; None for no ledgers.

        One merge of all files, so that the counts of live bytes are exact and change in the same commit.
        States of ledgers that were deleted before `forget_deleted_before_s` (wall clock) are forgotten; others stay,
        and the caller flushes them with FBK_LEDGER_DELETED before. Raises CheckpointFailed: nothing changed; a
        damaged locations file is never merged.
        """
        if not ledger_ids:
            return None
        chosen = self.manifest.locations
        try:
            return self._merge(store, chosen, ledger_ids, forget_deleted_before_s, reason)
        except FAILURES as error:
            raise CheckpointFailed(
                f"could not drop ledgers in {self._directory}: {error}"
            ) from error

    def clean_up(self, store: Store, change: Change) -> list[str]:
        """Unlink what no manifest names any more, after `install`; return complaints. A failed one is tried later."""
        complaints = []
        paths = list(change.unlink)
        try:
            self._audit.append(*(self._obituary(log, change) for log in change.dead_logs))
            paths += [log_path(self._directory, log.log_id) for log in change.dead_logs]
        except OSError as error:
            # Without its line in the audit log nothing is deleted; the files stay behind for the next start.
            complaints.append(f"audit log: {error}")
        for log in change.dead_logs:
            store.forget_log(log.log_id)
        return [*complaints, *self._files.unlink(paths)]

    # ---- steps

    def _run_once(
        self,
        store: Store,
        items: FlushItems,
        mark: int,
        damage: tuple[Damage, ...],
        clean: bool,
        pause: Callable[[int], None],
    ) -> Change:
        manifest = msgspec.structs.replace(
            self.manifest, mark=mark, damage=(*self.manifest.damage, *damage), clean=clean
        )
        if not items.item_count and not items.state_count:
            return self._commit(store, manifest, Attempt(self._slots.next_generation()))
        attempt = self._files.attempt(self._slots.next_generation())
        log = self._log if items.item_count else None
        offset_bytes = log.durable_bytes if log is not None else 0
        if items.item_count and log is None:
            log = self._files.new_log(attempt, self._new_salt())
        # Whatever happens from here on, the log's tail is unknown until the commit.
        current, self._log = self._log, None
        try:
            result = self._flush(store, items, attempt, log, offset_bytes, pause)
        except BaseException:
            self._files.abandon(store, attempt)
            raise
        entry = LocationsEntry(
            file_id=attempt.file_id,
            first_generation=attempt.generation,
            last_generation=attempt.generation,
            size_bytes=result.file_size_bytes,
        )
        logs = manifest.logs
        if log is not None:
            current = msgspec.structs.replace(
                log,
                durable_bytes=result.log_end_bytes,
                live_bytes=log.live_bytes + result.run_bytes,
            )
            logs = entry_log_files.appended(logs, current)
        manifest = msgspec.structs.replace(
            manifest, locations=(*manifest.locations, entry), logs=logs
        )
        change = self._commit(store, manifest, attempt)
        if current is not None and current.durable_bytes < self._settings.entry_log_size_bytes:
            self._log = current
        return change

    def _flush(
        self,
        store: Store,
        items: FlushItems,
        attempt: Attempt,
        log: LogEntry | None,
        offset_bytes: int,
        pause: Callable[[int], None],
    ) -> FlushResult:
        """Steps 1 and 2 of a checkpoint, and the look into what was written."""
        options = FlushOptions(
            log_id=log.log_id if log is not None else 0,
            log_offset_bytes=offset_bytes,
            log_salt=log.salt if log is not None else 0,
            locations_file_id=attempt.file_id,
            generation=attempt.generation,
            created_s=self._clock_s(),
        )
        flush = store.begin_flush(options, items)
        try:
            while flush.step(self._settings.step_bytes):
                pause(self._settings.step_bytes)
            result = flush.end()
        finally:
            flush.abandon()
        self._look_into(store, attempt)
        return result

    @staticmethod
    def _look_into(store: Store, attempt: Attempt) -> None:
        attempt.is_prepared = True
        if store.prepare(attempt.file_id):
            raise CorruptDataError("a locations file reads back damaged right after it was written")

    def _merge(
        self,
        store: Store,
        chosen: Sequence[LocationsEntry],
        deleted: Iterable[int],
        forget_deleted_before_s: int,
        reason: str,
    ) -> Change:
        keep = tuple(entry for entry in self.manifest.locations if entry not in chosen)
        generation = self._slots.next_generation()
        attempt = self._files.attempt(generation) if chosen else Attempt(generation)
        logs: tuple[LogEntry, ...] = self.manifest.logs
        dead: tuple[LogEntry, ...] = ()
        locations = keep
        try:
            if chosen:
                merged = self._write_merged(
                    store, chosen, deleted, forget_deleted_before_s, attempt
                )
                locations = tuple(sorted([*keep, merged], key=lambda entry: entry.first_generation))
            if not keep:
                files = [attempt.file_id] if chosen else []
                live = store.log_bytes(Scope(files, (log.log_id for log in logs)))
                if self._log is not None and self._log.log_id not in live:
                    self._log = None  # nothing lives in it: sealed, it can go at once
                logs, dead = entry_log_files.with_live_bytes(self._sealed(logs), live)
        except BaseException:
            self._files.abandon(store, attempt)
            raise
        kill_point("index.merge_before_manifest")
        change = self._commit(
            store,
            msgspec.structs.replace(self.manifest, locations=locations, logs=logs),
            attempt,
            remove=tuple(entry.file_id for entry in chosen),
            dead_logs=dead,
            reason=reason,
        )
        kill_point("index.merge_after_manifest")
        if self._log is not None:
            current_id = self._log.log_id
            self._log = next((log for log in logs if log.log_id == current_id), None)
        return change

    def _write_merged(
        self,
        store: Store,
        chosen: Sequence[LocationsEntry],
        deleted: Iterable[int],
        forget_deleted_before_s: int,
        attempt: Attempt,
    ) -> LocationsEntry:
        options = MergeOptions(attempt.file_id, self._clock_s(), forget_deleted_before_s)
        merge = store.begin_merge(options, self._scope(chosen, deleted))
        try:
            while merge.step(MERGE_BLOCKS):
                pass
            result = merge.end()
        finally:
            merge.abandon()
        self._look_into(store, attempt)
        return LocationsEntry(
            file_id=attempt.file_id,
            first_generation=result.first_generation,
            last_generation=result.last_generation,
            size_bytes=result.file_size_bytes,
        )

    def _scope(self, files: Sequence[LocationsEntry], deleted: Iterable[int]) -> Scope:
        listed = (log.log_id for log in self.manifest.logs)
        return Scope((entry.file_id for entry in files), listed, deleted)

    def _sealed(self, logs: Iterable[LogEntry]) -> tuple[LogEntry, ...]:
        """Return `logs` with all sealed but the one that is appended to."""
        current_id = self._log.log_id if self._log is not None else -1
        return tuple(msgspec.structs.replace(log, sealed=log.log_id != current_id) for log in logs)

    def _commit(
        self,
        store: Store,
        manifest: Manifest,
        attempt: Attempt,
        *,
        remove: tuple[int, ...] = (),
        dead_logs: tuple[LogEntry, ...] = (),
        reason: str = "",
    ) -> Change:
        """Step 3. After CommitInDoubt nothing that either manifest names may be unlinked or written to (INV-X2)."""
        manifest = msgspec.structs.replace(
            manifest,
            generation=attempt.generation,
            next_file_id=self._files.next_file_id,
            next_log_id=self._files.next_log_id,
        )
        try:
            is_mirrored = self._slots.commit(manifest)
        except CommitInDoubt:
            self._log = None
            self._files.doubt(store, attempt)
            raise
        self.manifest = manifest
        unlink = (
            *self._files.take_waiting(),
            *(locations_path(self._directory, file_id) for file_id in remove),
        )
        return Change(
            manifest=manifest,
            add=(attempt.file_id,) if attempt.file_id >= 0 else (),
            remove=remove,
            dead_logs=dead_logs,
            unlink=unlink,
            is_mirrored=is_mirrored,
            reason=reason,
        )

    def _obituary(self, log: LogEntry, change: Change) -> dict[str, object]:
        return {
            "time_s": self._clock_s(),
            "deleted": log_path(self._directory, log.log_id),
            "bytes": log.durable_bytes,
            "generation": change.manifest.generation,
            "reason": change.reason,
        }
