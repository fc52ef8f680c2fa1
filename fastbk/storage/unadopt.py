"""The way back from journal files that stay as entry logs: afterwards an older fastbk starts and serves everything.

Offline, with locked directories, after a clean stop. Step by step, and each may be cut off and done again:

1. A manifest says that the mark has passed all journal files: nothing is written to them any more.
2. A new journal file, of the version before and without batches, names the end of the journal.
3. What lives in the files is moved into entry logs, some files at a time. A manifest lists the new logs and no longer
   the files; then these are removed.
4. All locations are merged into one file: its version is the one before, since it names no journal file.
5. Every other journal file of the new version is removed. None of them counts (INV-J3).
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.native.ffi import CorruptDataError
from fastbk.native.journal import HEADER_BLOCKS, JournalHeader, encode_header
from fastbk.native.ledger_state import DELETED
from fastbk.native.process import kill_point
from fastbk.native.segment import SHARD_COUNT
from fastbk.native.store import FlushContents
from fastbk.storage.checkpoint import random_bits
from fastbk.storage.directories import JOURNAL_LOG, JOURNALS, free_bytes, locations_path
from fastbk.storage.journal_files import (
    conclude_replay,
    find_files,
    next_file_id_of,
    passed_files,
    plan_replay,
)
from fastbk.storage.offline_store import KEPT_FREE_BYTES
from fastbk.units import GIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.journal import JournalEnd
    from fastbk.storage.commits import Change
    from fastbk.storage.journal_files import ReplayEnd, ReplayFile, ReplayPlan
    from fastbk.storage.maintenance import Compaction, LocationsMerge
    from fastbk.storage.manifest import LogEntry
    from fastbk.storage.offline_store import OfflineStore

AT_ONCE_BYTES = 16 * GIB
"""So much is moved with one manifest: each looks through all locations."""
LOCATIONS_VERSION_BEFORE = 2
_FRONT = struct.Struct("<8xI")
"""Magic and version of a locations file."""


class Unadopted(msgspec.Struct):
    """What was done in one pair.

    Attributes:
        logs: journal files that were logs. total_bytes: what lived in them.
        bad_entries: damaged before; reads of them say "cannot tell", as they did.
        removed_files, removed_bytes: journal files.
    """

    directory: str
    journal_directory: str
    logs: int = 0
    total_bytes: int = 0
    entries: int = 0
    moved_bytes: int = 0
    bad_entries: int = 0
    removed_files: int = 0
    removed_bytes: int = 0


class Unadopt:
    """The way back of one pair. `check`, then `run`."""

    def __init__(
        self,
        opened: OfflineStore,
        journal_disk: Disk,
        journal_directory: str,
        incarnation: int,
        *,
        on_progress: Callable[[Unadopted], None] = lambda _: None,
        free: Callable[[str], int] = free_bytes,
        at_once_bytes: int = AT_ONCE_BYTES,
    ) -> None:
        """Nothing is written before `run`. `free`: bytes free on a directory's disk."""
        self.report = Unadopted(opened.directory, journal_directory)
        self._opened = opened
        self._checkpoint = opened.checkpoint
        self._disk = opened.disk
        self._journal_disk = journal_disk
        self._journal_directory = journal_directory
        self._incarnation = incarnation
        self._on_progress = on_progress
        self._free = free
        self._at_once_bytes = at_once_bytes
        self._deleted: set[int] = set()
        self._last_used: JournalHeader | None = None
        self._end: ReplayEnd | None = None

    def check(self) -> None:
        """Raise StorageError unless all that the journal holds is in finished flushes, and locations are whole."""
        self._opened.check_is_flushed(self._journal_disk, self._journal_directory)
        if self._checkpoint.damaged:
            raise StorageError(
                f"locations files in {self._opened.directory} are damaged: run `fastbk bookie rebuild-locations`, start"
                " the bookie, stop it by SIGTERM, and come back"
            )
        manifest = self._checkpoint.manifest
        plan = plan_replay(
            find_files(
                self._journal_disk, self._journal_directory, passed=passed_files(manifest.logs)
            ),
            manifest.mark,
            self._incarnation,
            next_file_id=next_file_id_of(manifest),
        )
        self._last_used = plan.last_used
        self._end = conclude_replay(plan, [self._scan(file, plan) for file in plan.files])
        if self._end.damage:
            raise StorageError(
                f"{self._journal_directory}: {self._end.damage[0].reason}. Start the bookie, which notes what that"
                " concerns, stop it by SIGTERM, and come back"
            )
        logs = self._journal_logs()
        self.report.logs = len(logs)
        self.report.total_bytes = sum(log.live_bytes for log in logs)

    def run(self) -> Unadopted:
        """Do it, after `check`. Raises StorageError (CheckpointFailed), OSError: then it can be done again."""
        assert self._end is not None, "checked first"
        states = self._opened.states(range(SHARD_COUNT)).values()
        self._deleted = {state.ledger_id for state in states if state.flags & DELETED}
        # With it both slots of the manifest are new, and garbage of an earlier life is gone.
        self._install(
            self._checkpoint.run(
                self._opened.store,
                FlushContents.from_entries(()),
                self._end.predecessor_sequence,
                passed_file_id=self._end.next_file_id,
                clean=True,
            )
        )
        kill_point("unadopt.after_seal")
        self._renew(self._end)
        kill_point("unadopt.after_renew")
        while logs := self._journal_logs():
            self._move(self._chosen(logs))
            kill_point("unadopt.after_move")
        self._merge()
        kill_point("unadopt.after_merge")
        self._remove_files()
        return self.report

    # ---- the journal

    def _scan(self, file: ReplayFile, plan: ReplayPlan) -> JournalEnd:
        with file.scan(self._journal_disk, self._incarnation, plan.mark_sequence) as scan:
            if any(batch.record_count for batch in scan):
                raise StorageError(
                    f"{file.path} holds entries that {self._opened.directory} does not: start the bookie, and stop it"
                    " by SIGTERM, which flushes everything"
                )
            return scan.end

    def _renew(self, end: ReplayEnd) -> None:
        """Have a file of the version before name the end of the journal, if the one that does is of the new one."""
        last = self._last_used
        if last is None or not last.adopts:
            return
        size_bytes = HEADER_BLOCKS * last.block_size_bytes
        header = msgspec.structs.replace(
            last,
            file_id=end.next_file_id,
            salt=random_bits(63),
            file_size_bytes=size_bytes,
            predecessor_file_id=end.predecessor_file_id,
            predecessor_sequence=end.predecessor_sequence,
            predecessor_crc=end.predecessor_crc,
            first_sequence=end.predecessor_sequence + 1,
            first_record_sequence=end.next_record_sequence,
            created_s=int(time.time()),
            adopts=False,
        )
        path = JOURNALS.path(self._journal_directory, end.next_file_id)
        self._journal_disk.replace_file(path, encode_header(header))

    def _remove_files(self) -> None:
        """Remove what an older fastbk does not read. The file that names the journal's end is not among it."""
        files = find_files(self._journal_disk, self._journal_directory)
        self._remove(
            file.file_id for file in files if file.header.adopts or file.header.state == "damaged"
        )

    def _remove(self, file_ids: Iterable[int]) -> None:
        for file_id in file_ids:
            path = JOURNALS.path(self._journal_directory, file_id)
            try:
                file = self._journal_disk.open(path, read_only=True)
            except FileNotFoundError:
                continue  # it was missing, and nothing lived in it
            try:
                size_bytes = self._journal_disk.size(file)
            finally:
                self._journal_disk.close(file)
            self._journal_disk.unlink(path)
            self.report.removed_files += 1
            self.report.removed_bytes += size_bytes
            kill_point("unadopt.after_unlink")
        self._journal_disk.sync_directory(self._journal_directory)

    # ---- what lives in its files

    def _journal_logs(self) -> list[LogEntry]:
        return [log for log in self._checkpoint.manifest.logs if log.is_journal_file]

    def _chosen(self, logs: Sequence[LogEntry]) -> list[LogEntry]:
        """Return the logs to move next: as many as there is room for. Raises StorageError: there is none for one."""
        free = self._free(self._opened.directory) - KEPT_FREE_BYTES
        if free < logs[0].live_bytes:
            raise StorageError(
                f"{self._opened.directory} has {format_size(free + KEPT_FREE_BYTES)} left, too little for the"
                f" {format_size(logs[0].live_bytes)} that live in the next journal file and the"
                f" {format_size(KEPT_FREE_BYTES)} that are kept. Make room there, and go on by the same command"
            )
        chosen: list[LogEntry] = []
        size_bytes = 0
        for log in logs:
            size_bytes += log.live_bytes
            if chosen and size_bytes > min(free, self._at_once_bytes):
                break
            chosen.append(log)
        return chosen

    def _move(self, logs: Sequence[LogEntry]) -> None:
        compaction = self._checkpoint.plan_compaction([log.log_id for log in logs], self._deleted)
        assert compaction is not None, "they are sealed, and nothing else is under way"
        moved_bytes, entries = self.report.moved_bytes, self.report.entries
        try:
            self._steps(compaction, lambda: self._note(compaction, moved_bytes, entries))
        finally:
            if compaction.unreadable:
                self._checkpoint.abandon(self._opened.store, compaction)
                raise self._unreadable(compaction.unreadable)
        self._install(self._checkpoint.commit_compaction(self._opened.store, compaction))
        self.report.bad_entries += compaction.counts.bad_entries
        self._remove(self._checkpoint.commits.take_free_files())
        while (merging := self._checkpoint.plan_merge(self._deleted)) is not None:
            self._end_merge(merging)

    def _note(self, compaction: Compaction, moved_bytes: int, entries: int) -> None:
        self.report.moved_bytes = moved_bytes + compaction.counts.moved_bytes
        self.report.entries = entries + compaction.counts.entries_moved
        self._on_progress(self.report)

    def _unreadable(self, log_ids: Collection[int]) -> StorageError:
        names = ", ".join(JOURNALS.name(log_id ^ JOURNAL_LOG) for log_id in sorted(log_ids))
        return StorageError(
            f"{self._journal_directory}: {names} cannot be read. What was moved before stays moved. Put the files back"
            " if they are elsewhere; else start the bookie, run `fastbk bookie repair ID`, stop it, run `fastbk bookie"
            " rebuild-locations`, and come back"
        )

    def _merge(self) -> None:
        """Write all locations anew, unless no file names a journal file any more."""
        if all(
            self._version_of(file.file_id) <= LOCATIONS_VERSION_BEFORE
            for file in self._checkpoint.manifest.locations
        ):
            return
        merging = self._checkpoint.plan_merge(self._deleted, everything=True)
        assert merging is not None, "no file is damaged, and nothing else is under way"
        self._end_merge(merging)

    def _end_merge(self, merging: LocationsMerge) -> None:
        self._steps(merging, lambda: self._on_progress(self.report))
        self._install(self._checkpoint.commit_merge(self._opened.store, merging))

    def _version_of(self, file_id: int) -> int:
        path = locations_path(self._opened.directory, file_id)
        file = self._disk.open(path, read_only=True)
        try:
            (version,) = _FRONT.unpack(self._disk.read(file, _FRONT.size))
        finally:
            self._disk.close(file)
        return int(version)

    def _steps(self, plan: Compaction | LocationsMerge, note: Callable[[], None]) -> None:
        """Do all slices. What fails is abandoned: its files are removed."""
        try:
            while plan.step(self._opened.store):
                note()
        except (OSError, CorruptDataError) as error:
            self._checkpoint.abandon(self._opened.store, plan)
            raise StorageError(
                f"{self._opened.directory}: {error}. What was moved before stays moved. Go on by the same command when"
                " the disk is well"
            ) from error
        note()

    def _install(self, change: Change) -> None:
        change.install(self._opened.store)
        complaints = self._checkpoint.commits.clean_up(self._opened.store, change)
        if not change.is_mirrored:
            complaints = [*self._checkpoint.commits.slots.complaints, *complaints]
        if complaints:
            raise StorageError(
                f"{'; '.join(complaints)}. What was moved before stays moved. Go on by the same command when the disk"
                " is well"
            )
