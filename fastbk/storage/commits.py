"""Committing manifests: the one place where files begin or cease to count (INV-X2, INV-X3, INV-X5).

Whoever made files (a flush, a merge, a compaction) hands in the manifest that names them. What comes back is a
`Change`: the main loop installs it, memory work only, and then the flush thread unlinks what no manifest names any
more. The flush thread's alone, but for `manifest`, which may be read anywhere: it never changes, another takes its
place. Here is also which entry logs are appended to, sealed or deleted, and the room that dead ones give back.

A journal file whose runs stay in it is a log like others, but it is not unlinked: the journal takes it again (INV-J3).
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error, StorageError, check_invariant
from fastbk.native.process import kill_point
from fastbk.storage.directories import (
    DELETION_LOG_NAME,
    DELETION_LOG_OLD_NAME,
    JOURNAL_LOG,
    LOCATIONS,
    LOGS,
    locations_path,
    log_path,
)
from fastbk.storage.manifest import (
    FLUSH,
    JOURNAL,
    CommitInDoubt,
    LocationsEntry,
    LogEntry,
    Manifest,
)
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from fastbk.native.disk import Disk
    from fastbk.native.store import AdoptedFile, Store
    from fastbk.storage.manifest import Manifest, ManifestSlots


FAILURES = (OSError, Error)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class CheckpointFailed(StorageError):
    """Nothing was lost and nothing changed: the write cache is still needed. `__cause__` says why."""

    default_retryable = True


class JournalLogs(msgspec.Struct, frozen=True):
    """The journal files among a manifest's logs; counted by the flush thread, since they may be tens of thousands."""

    count: int = 0
    durable_bytes: int = 0
    live_bytes: int = 0
    has_dead: bool = False
    """Whether nothing lives in one that is sealed."""


class Change(msgspec.Struct, frozen=True):
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
    is_recount: bool = False
    """Nothing lived in the dead logs; else what did was moved out of them."""
    journal_logs: JournalLogs | None = None
    listed_files: frozenset[int] = frozenset()
    """Journal files that a manifest lists which may count after a restart: this one, or an older one in the other slot
    (INV-J3)."""
    passed_file_id: int = 0
    """The mark has passed all journal files before this one. 0: a change without a mark."""

    def install(self, store: Store) -> None:
        """Search the new files, and no longer old ones or unlisted logs (INV-X5). Memory work only. Main loop."""
        for file_id in self.add:
            store.add(file_id)
        store.set_logs(log.log_id for log in self.manifest.logs)
        for file_id in self.remove:
            store.remove(file_id)


class Commits:
    """Commits of one ledger directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        slots: ManifestSlots,
        manifest: Manifest,
        clock_s: Callable[[], int],
        journal_directory: str = "",
    ) -> None:
        """Go on from a loaded manifest; `disk` is the flush thread's."""
        self.manifest = manifest
        self.slots = slots
        self.files = NewFiles(disk, directory, manifest)
        self.current_log: LogEntry | None = None
        """The log this life appends to; never one of an earlier life, whose tail is unknown."""
        self.reserving = threading.Lock()
        """Held while a generation is taken that will be committed behind later ones, and while a merge is planned: none
        may reach over such a generation."""
        self.is_held = False
        """Whether tests hold commits back (`fastbk.server.index.process`): manifests count in this life alone, and
        nothing is unlinked.
        """
        self._directory = directory
        self._journal_directory = journal_directory
        self._deletion_log = DeletionLog(disk, directory)
        self._clock_s = clock_s
        self.reclaimed = Reclaimed()
        self._obituaries: list[dict[str, object]] = []
        """Obituaries of logs that are not unlinked yet."""
        self._dead_paths: list[str] = []
        """Where these logs lie, but for journal files."""
        self._listed_before: frozenset[int] = frozenset()
        """Journal files that a slot may list which does not hold `manifest`."""
        self._leaving_files: list[int] = []
        """Journal files that are no logs any more, and whose obituaries are not written yet."""
        self._free_files: list[int] = []
        """The same, with their obituaries."""

    def commit(
        self,
        store: Store,
        manifest: Manifest,
        attempt: Attempt,
        *,
        remove: tuple[int, ...] = (),
        dead_logs: tuple[LogEntry, ...] = (),
        reason: str = "",
    ) -> Change:
        """Make `manifest` count, as the generation of `attempt`.

        After CommitInDoubt nothing that either manifest names may be unlinked or written to (INV-X2).
        """
        is_held = self.is_held  # once: the main loop sets it
        before = self.manifest
        manifest = msgspec.structs.replace(
            manifest,
            generation=attempt.generation,
            next_file_id=self.files.next_file_id,
            next_log_id=self.files.next_log_id,
        )
        try:
            is_mirrored = is_held or self.slots.commit(manifest)
        except CommitInDoubt:
            self._listed_before |= journal_files_of(manifest)
            self.current_log = None
            self.files.doubt(store, attempt)
            raise
        self.manifest = manifest
        if is_mirrored and not is_held:
            self._listed_before = frozenset()
        else:
            self._listed_before |= journal_files_of(before)
        listed_files = self._listed_before | journal_files_of(manifest)
        if self.current_log is not None:
            current_id = self.current_log.log_id
            self.current_log = next(
                (log for log in manifest.logs if log.log_id == current_id), None
            )
        if is_held:
            # What the manifest on disk names is still needed (INV-X2); what it does not name, the next start finds.
            return Change(
                manifest=manifest,
                add=tuple(attempt.prepared),
                remove=remove,
                reason=reason,
                journal_logs=count_journal_logs(manifest),
                listed_files=listed_files,
            )
        unlink = (
            *self.files.take_waiting(),
            *(locations_path(self._directory, file_id) for file_id in remove),
        )
        return Change(
            manifest=manifest,
            add=tuple(attempt.prepared),
            remove=remove,
            dead_logs=dead_logs,
            unlink=unlink,
            is_mirrored=is_mirrored,
            reason=reason,
            journal_logs=count_journal_logs(manifest),
            listed_files=listed_files,
        )

    def clean_up(self, store: Store, change: Change) -> list[str]:
        """Unlink what no manifest names any more, after `install`; return complaints. A failed one is tried later."""
        complaints = []
        paths = list(change.unlink)
        for log in change.dead_logs:
            store.forget_log(log.log_id)
            self._obituaries.append(self._obituary(log, change))
            freed_bytes = log.durable_bytes if change.is_recount else 0
            if log.is_journal_file:
                self._leaving_files.append(log.log_id ^ JOURNAL_LOG)
                self.reclaimed.freed_bytes += freed_bytes
            else:
                self._dead_paths.append(self._path_of(log))
                self.reclaimed.add(self._dead_paths[-1], freed_bytes)
        dead = list(self._dead_paths)
        try:
            self._write_obituaries()
        except OSError as error:
            # Without its line in the deletion log nothing is deleted: with the next change, or by the next start.
            complaints.append(f"deletion log: {error}")
            if error.errno not in NO_ROOM:
                dead = []
        complaints += self.files.unlink([*paths, *dead])
        self.reclaimed.tried([*paths, *dead], self.files.waiting)
        if dead and self._obituaries:
            # Not even for the line was there room, and nothing but dead logs makes some: it is written behind them.
            try:
                self._write_obituaries()
            except OSError as error:
                complaints.append(f"deletion log: {error}")
        return complaints

    def _write_obituaries(self) -> None:
        self._deletion_log.append(*self._obituaries)
        self._obituaries.clear()
        self._dead_paths.clear()
        self._free_files += self._leaving_files
        self._leaving_files.clear()

    def take_free_files(self) -> list[int]:
        """Return journal files that were logs, and that no manifest lists any more which may count after a restart.

        Each of them once. Whoever reads them under an older list goes on: they are not free before that is over.
        """
        free = [file_id for file_id in self._free_files if file_id not in self._listed_before]
        self._free_files = [
            file_id for file_id in self._free_files if file_id in self._listed_before
        ]
        return free

    def sealed(self, logs: Iterable[LogEntry]) -> tuple[LogEntry, ...]:
        """Return `logs` with all sealed but the one that is appended to, and journal files as they are."""
        current_id = self.current_log.log_id if self.current_log is not None else -1
        return tuple(
            log
            if log.is_journal_file
            else msgspec.structs.replace(log, sealed=log.log_id != current_id)
            for log in logs
        )

    def _obituary(self, log: LogEntry, change: Change) -> dict[str, object]:
        return {
            "time_s": self._clock_s(),
            "deleted": self._path_of(log),
            "bytes": log.durable_bytes,
            "generation": change.manifest.generation,
            "reason": change.reason,
        }

    def _path_of(self, log: LogEntry) -> str:
        return log_path(self._directory, log.log_id, self._journal_directory)


def in_order(entries: Iterable[LocationsEntry | None]) -> tuple[LocationsEntry, ...]:
    """Return the entries that are there, in the order of their generations."""
    every = [entry for entry in entries if entry is not None]
    return tuple(sorted(every, key=lambda entry: entry.first_generation))


def appended(logs: Iterable[LogEntry], entry: LogEntry) -> tuple[LogEntry, ...]:
    """Return `logs` with `entry` put in or in place of its older self; every other entry log is sealed.

    Journal files stay as they are: the journal, not the flush, goes on in another one.
    """
    others = [
        log if log.is_journal_file else msgspec.structs.replace(log, sealed=True)
        for log in logs
        if log.log_id != entry.log_id
    ]
    return tuple(sorted([*others, entry], key=lambda log: log.log_id))


def with_journal_files(
    logs: Iterable[LogEntry], adopted: Iterable[AdoptedFile], passed_file_id: int, created_s: int
) -> tuple[LogEntry, ...]:
    """Return `logs` with the journal files that have runs in a flush, put in or grown by these runs.

    The mark of that flush passes all journal files before `passed_file_id`: nothing is written there any more, and
    they are sealed.
    """
    every = {log.log_id: log for log in logs}
    for file in adopted:
        log_id = JOURNAL_LOG | file.file_id
        before = every.get(log_id) or LogEntry(
            log_id=log_id,
            salt=file.salt,
            durable_bytes=0,
            live_bytes=0,
            sealed=False,
            kind=JOURNAL,
            created_s=created_s,
        )
        check_invariant(
            before.salt == file.salt and not before.sealed,
            "INV-J7 a journal file that is a log is not taken again, and gets no runs behind the mark",
        )
        every[log_id] = msgspec.structs.replace(
            before,
            durable_bytes=max(before.durable_bytes, file.end_bytes),
            live_bytes=before.live_bytes + file.run_bytes,
        )
    ordered = sorted(every.values(), key=lambda log: log.log_id)
    return tuple(
        msgspec.structs.replace(log, sealed=True)
        if log.is_journal_file and not log.sealed and log.log_id ^ JOURNAL_LOG < passed_file_id
        else log
        for log in ordered
    )


def count_journal_logs(manifest: Manifest) -> JournalLogs:
    """Return how many journal files a manifest lists, and what they hold."""
    logs = [log for log in manifest.logs if log.is_journal_file]
    return JournalLogs(
        count=len(logs),
        durable_bytes=sum(log.durable_bytes for log in logs),
        live_bytes=max(0, sum(log.live_bytes for log in logs)),
        has_dead=any(log.sealed and not log.live_bytes for log in logs),
    )


def journal_files_of(manifest: Manifest) -> frozenset[int]:
    """Return the ids of the journal files that a manifest lists."""
    return frozenset(log.log_id ^ JOURNAL_LOG for log in manifest.logs if log.is_journal_file)


def recounted(
    logs: Iterable[LogEntry], before: Iterable[LogEntry], live: Mapping[int, int]
) -> tuple[LogEntry, ...]:
    """Return `logs` with the live bytes that were counted when they were as `before`; what came since is added.

    Logs that are not in `before` are new, and stay as they are.
    """
    difference = {log.log_id: live.get(log.log_id, 0) - log.live_bytes for log in before}
    return tuple(
        msgspec.structs.replace(
            log, live_bytes=max(0, log.live_bytes + difference.get(log.log_id, 0))
        )
        for log in logs
    )


def split_dead(
    logs: Iterable[LogEntry],
) -> tuple[tuple[LogEntry, ...], tuple[LogEntry, ...]]:
    """Return (the logs to keep, those that are dead): a sealed log in which nothing lives is dead.

    A journal file that is still written to is not sealed, so it is kept.
    """
    every = tuple(logs)
    kept = tuple(log for log in every if log.live_bytes or not log.sealed)
    return kept, tuple(log for log in every if log.sealed and not log.live_bytes)


class Reclaimed:
    """What one ledger directory gave back since the start. Written by the flush thread; anybody may read the two
    totals.
    """

    def __init__(self) -> None:
        self.freed_bytes = 0
        """Bytes of logs that are gone; those that compaction emptied are counted by compaction."""
        self.failures = 0
        """Times that a log of either kind could not be unlinked."""
        self._dead: dict[str, int] = {}
        """Paths of logs that are to go, and the bytes that count when they have."""

    def add(self, path: str, freed_bytes: int) -> None:
        """Note that a log is to go."""
        self._dead[path] = freed_bytes

    def tried(self, paths: Iterable[str], left: Collection[str]) -> None:
        """Note that all of `paths` were to be unlinked just now, and which of them could not be."""
        for path in paths:
            if path not in self._dead:
                continue
            if path in left:
                self.failures += 1
            else:
                self.freed_bytes += self._dead.pop(path)


# --- new files ---------------------------------------------------------------------------------------------------
#
# Files on their way into a manifest or out of every one: their ids, and what may be unlinked when (INV-X2).
#
# An id is used once, whatever became of its file. A file that no durable manifest names is unlinked; one that a
# manifest names which may or may not count after a restart waits for the next commit.


class Attempt(msgspec.Struct):
    """The files made by a try that is not committed yet; `file_id` -1: no locations file."""

    generation: int
    file_id: int = -1
    paths: list[str] = msgspec.field(default_factory=list)
    prepared: list[int] = msgspec.field(default_factory=list)
    """Locations files that the store has looked into."""


class NewFiles:
    """New files of one ledger directory. They are the flush thread's, but for new ids, which the background thread
    takes, too.
    """

    def __init__(self, disk: Disk, directory: str, manifest: Manifest) -> None:
        """Note what an earlier life left behind: its names stay taken until a commit of this life, ids go on behind."""
        self._lock = threading.Lock()
        self._disk = disk
        self._directory = directory
        logs = set(LOGS.ids_in(disk, directory)) - {log.log_id for log in manifest.logs}
        files = set(LOCATIONS.ids_in(disk, directory)) - {
            entry.file_id for entry in manifest.locations
        }
        self.next_log_id = max([manifest.next_log_id, *(log_id + 1 for log_id in logs)])
        self.next_file_id = max([manifest.next_file_id, *(file_id + 1 for file_id in files)])
        self._waiting = [log_path(directory, log_id) for log_id in sorted(logs)]
        """Paths to be unlinked after the next commit."""
        self._waiting += [locations_path(directory, file_id) for file_id in sorted(files)]

    def attempt(self, generation: int) -> Attempt:
        """Return a try that makes a locations file. Any thread."""
        attempt = Attempt(generation)
        attempt.file_id = self.new_locations(attempt)
        return attempt

    def new_locations(self, attempt: Attempt) -> int:
        """Return the id of a locations file that `attempt` makes. Any thread."""
        with self._lock:
            file_id = self.next_file_id
            self.next_file_id += 1
        attempt.paths.append(locations_path(self._directory, file_id))
        return file_id

    def new_log(self, attempt: Attempt, salt: int, created_s: int, kind: str = FLUSH) -> LogEntry:
        """Return an entry log that `attempt` makes. Any thread."""
        with self._lock:
            log_id = self.next_log_id
            self.next_log_id += 1
        attempt.paths.append(log_path(self._directory, log_id))
        return LogEntry(
            log_id=log_id,
            salt=salt,
            durable_bytes=0,
            live_bytes=0,
            sealed=False,
            kind=kind,
            created_s=created_s,
        )

    def abandon(self, store: Store, attempt: Attempt) -> None:
        """Unlink these files before the commit: no manifest can name them, and a full disk needs the room."""
        for file_id in attempt.prepared:
            store.drop_prepared(file_id)
        self.unlink(attempt.paths)

    def doubt(self, store: Store, attempt: Attempt) -> None:
        """Keep the files after a commit of unknown outcome, until a later commit."""
        for file_id in attempt.prepared:
            store.drop_prepared(file_id)
        self._waiting += attempt.paths

    @property
    def waiting(self) -> frozenset[str]:
        """What is to be unlinked after the next commit."""
        return frozenset(self._waiting)

    def take_waiting(self) -> list[str]:
        """Return what may be unlinked now, after a commit."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def unlink(self, paths: Iterable[str]) -> list[str]:
        """Remove files, durably; return complaints. What fails waits for the next commit."""
        complaints = []
        folders = set()
        for path in paths:
            folders.add(os.path.dirname(path))
            kill_point("index.before_unlink")
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                complaints.append(f"{path}: {error}")
                self._waiting.append(path)
        kill_point("index.after_unlink")
        for folder in folders:
            try:
                self._disk.sync_directory(folder)
            except OSError as error:
                complaints.append(f"{folder}: {error}")
        return complaints


# --- the log of deleted ledgers ----------------------------------------------------------------------------------
#
# The deletion log of a ledger directory: every deletion of data, with its reason, before it happens.
#
# It is `audit.log`, one JSON object a line, and is only appended to. If a crash cut a line short, a
# newline closes it before the next line. A long file becomes `audit.1.log` and replaces the one
# before it: copy that away to keep more.


SIZE_BYTES_MAX = 64 * MIB
"""A longer one is set aside before the next line."""


class DeletionLog:
    """`audit.log` of one directory. One thread of one process."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{DELETION_LOG_NAME}"

    def append(self, *events: dict[str, object]) -> None:
        """Add one line an event, durably. Raises OSError: then what they announce must not be done."""
        if not events:
            return
        file, is_new = self._open()
        try:
            size = self._disk.size(file)
            cut = size > 0 and self._disk.read(file, 1, size - 1) != b"\n"
            lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
            self._disk.write_all(file, b"\n" + lines if cut else lines, size)
            self._disk.sync(file)
        finally:
            self._disk.close(file)
        if is_new:
            self._disk.sync_directory(self._directory)

    def _open(self) -> tuple[int, bool]:
        """Return the file to append to, and whether it is a new one."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return self._disk.open(self._path, create=True), True
        if self._disk.size(file) <= SIZE_BYTES_MAX:
            return file, False
        self._disk.close(file)
        self._disk.rename(self._path, f"{self._directory}/{DELETION_LOG_OLD_NAME}")
        return self._disk.open(self._path, create=True), True

    def read(self) -> list[dict[str, object]]:
        """Return all whole lines."""
        try:
            raw = self._disk.read_file(self._path)
        except FileNotFoundError:
            return []
        events = []
        for line in raw.split(b"\n"):
            try:
                events.append(msgspec.json.decode(line, type=dict[str, object]))
            except (ValueError, RecursionError):
                continue
        return events
