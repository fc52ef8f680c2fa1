"""Making all locations files anew from the logs, when they are lost or damaged. Offline, with locked directories.

Runs are found by their own headers, in entry logs and in journal files that are logs: there up to the end that the
manifest names. What no run tells are fences, keys and deletions: those come from whatever ledger
states are still whole. Where states, runs or the manifest are lost, nobody knows which ledgers that concerns: then
all that are known here, and all that metadata names this bookie for, are fenced and in limbo until they are repaired
(INV-X1, INV-X4). One manifest commits everything; the old files are moved aside after it, not deleted.
"""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.native.journal import NO_END, JournalScan
from fastbk.native.process import kill_point
from fastbk.native.scrub import LogScan, RunTable, check_locations
from fastbk.native.store import DELETED, FENCED, LIMBO, LedgerState, Store, StoreOptions
from fastbk.storage.directories import (
    JOURNAL_LOG,
    JOURNALS,
    LOCATIONS,
    LOGS,
    data_in,
    locations_path,
    log_path,
    missing_log,
)
from fastbk.storage.journal_files import find_files
from fastbk.storage.limbo import read_limbo, write_limbo
from fastbk.storage.manifest import (
    JOURNAL,
    LocationsEntry,
    LogEntry,
    Manifest,
    ManifestLost,
    ManifestMissing,
    ManifestSlots,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.scrub import LocationsFound
    from fastbk.storage.journal_files import FoundFile

ASIDE = "locations-before-{generation}"
RUNS_A_FILE = 2_000_000
"""Runs of a rebuilt locations file: 144 MB of memory while it is made."""
LOST_STATES = re.compile("ledger states in locations file")
"""What a start with lost states puts on record; a rebuild answers that doubt by limbo."""


@dataclass
class Rebuilt:
    """What a rebuild found and made.

    Attributes:
        damaged_entries: in runs that were found; reads of them say "cannot tell".
        skipped_bytes, unreadable_bytes: of logs: what lay there is lost.
        doubts: why it is unknown what was lost; empty: nothing was.
        aside: the folder where the old files are; empty when there was none.
    """

    logs: int = 0
    runs: int = 0
    entries: int = 0
    log_bytes: int = 0
    damaged_runs: int = 0
    damaged_entries: int = 0
    skipped_bytes: int = 0
    unreadable_bytes: int = 0
    ledgers: int = 0
    states_kept: int = 0
    files: int = 0
    generation: int = 0
    limbo: int = 0
    doubts: list[str] = field(default_factory=list)
    aside: str = ""


@dataclass
class _Old:
    """What is still known: the manifest (None: lost), and whole states, newest last."""

    manifest: Manifest | None
    files: dict[int, LocationsFound | None] = field(default_factory=dict)


class Rebuild:
    """One rebuild of one ledger directory, beside its journal directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        journal_disk: Disk,
        journal_directory: str,
        incarnation: int,
        *,
        pair: int = 0,
        on_progress: Callable[[Rebuilt], None] = lambda _: None,
        clock_s: Callable[[], int] = lambda: int(time.time()),
    ) -> None:
        """Nothing is written before `run`."""
        self.report = Rebuilt()
        self._disk = disk
        self._directory = directory
        self._journal_disk = journal_disk
        self._journal_directory = journal_directory
        self._incarnation = incarnation
        self._pair = pair
        self._on_progress = on_progress
        self._clock_s = clock_s
        self._slots = ManifestSlots(disk, directory)
        self._old = _Old(None)
        self._scanned: dict[int, tuple[int, int]] = {}
        """Log id → (durable length, bytes of its runs)."""
        self._seen: dict[int, tuple[int, int]] = {}
        """Ledger id → (highest entry id, LAC), as runs tell."""
        self._live_bytes = 0
        """Bytes of the runs of the log scanned last."""

    def survey(self) -> list[str]:
        """Read manifest and locations; return why ledgers would be in doubt already. To be called first.

        Raises ManifestMissing where there is nothing that a manifest could have named.
        """
        doubts = self.report.doubts
        try:
            self._old.manifest = self._slots.load()
        except ManifestLost as error:
            doubts.append(str(error))
        except ManifestMissing:
            if not data_in(self._disk, self._directory) and not any(
                file.header.adopts for file in self._used_journal_files()
            ):
                raise
            doubts.append(f"{self._directory} holds no manifest")
        manifest = self._old.manifest
        for file_id in self._file_ids(manifest):
            found = self._check(file_id)
            self._old.files[file_id] = found
            if found is None or found.header_damaged or found.damaged_state_blocks:
                doubts.append(f"ledger states in locations file {file_id} are lost")
            elif found.damaged_blocks:
                # What a compaction could not move is told by locations alone.
                doubts.append(f"locations in file {file_id} are lost, and what they called damaged")
        return doubts

    def run(self, named: Callable[[], Iterable[int]]) -> Rebuilt:
        """Do it.

        Args:
            named: gives the ids of all ledgers that metadata names this bookie for; asked only in doubt.

        Raises OSError, Error of `named`: then nothing has changed.
        """
        manifest = self._old.manifest or self._manifest_without_one()
        store = Store(
            self._directory,
            self._disk,
            self._disk,
            StoreOptions(
                incarnation=self._incarnation,
                read_cache_size_bytes=1 << 20,
                read_jobs_max=1,
                pair=self._pair,
                journal_directory=self._journal_directory,
            ),
        )
        try:
            new = self._write_all(store, manifest)
        finally:
            store.destroy()
        if self.report.doubts:
            self._put_in_limbo(named())
        kill_point("rebuild.before_manifest")
        self._slots.commit(new)
        kill_point("rebuild.after_manifest")
        self.report.generation = new.generation
        self._move_aside(new)
        return self.report

    # ---- what is there

    def _file_ids(self, manifest: Manifest | None) -> list[int]:
        if manifest is not None:
            return [entry.file_id for entry in manifest.locations]
        return LOCATIONS.ids_in(self._disk, self._directory)

    def _check(self, file_id: int) -> LocationsFound | None:
        path = locations_path(self._directory, file_id)
        try:
            return check_locations(self._disk, path, file_id, self._incarnation, with_states=True)
        except OSError:
            return None

    def _manifest_without_one(self) -> Manifest:
        """Return one that lists all logs that are there.

        Of journal files that replay is going to read none is listed: it publishes their runs itself.
        """
        used = self._used_journal_files()
        others = JOURNALS.ids_in(self._journal_disk, self._journal_directory)
        begin = _replayed_from(used, set(others).difference(file.file_id for file in used))
        logs = [
            LogEntry(log_id=log_id, salt=0, durable_bytes=0, live_bytes=0, sealed=True)
            for log_id in LOGS.ids_in(self._disk, self._directory)
        ]
        for file, successor in itertools.pairwise(used[: begin + 1]):
            if file.header.adopts and file.header.incarnation == self._incarnation:
                logs.append(self._journal_log(file, successor))
        mark = used[begin].header.predecessor_sequence if used else 0
        return Manifest(generation=0, mark=mark, logs=tuple(logs))

    def _used_journal_files(self) -> list[FoundFile]:
        found = find_files(self._journal_disk, self._journal_directory, lock=False)
        return [file for file in found if file.is_used]

    def _journal_log(self, file: FoundFile, successor: FoundFile) -> LogEntry:
        """Return a journal file as a log, up to the last batch that its successor's header or itself names."""
        is_next = successor.header.predecessor_file_id == file.file_id
        with JournalScan(
            self._journal_disk,
            file.path,
            file.file_id,
            self._incarnation,
            mark_sequence=successor.header.predecessor_sequence,
            end_sequence=successor.header.predecessor_sequence if is_next else NO_END,
        ) as scan:
            for _ in scan:
                pass
            end = scan.end
        return LogEntry(
            log_id=JOURNAL_LOG | file.file_id,
            salt=file.header.salt,
            durable_bytes=end.end_bytes if end.kind in ("closing", "successor") else 0,
            live_bytes=0,
            sealed=True,
            kind=JOURNAL,
            created_s=file.header.created_s,
        )

    # ---- what is made of it

    def _write_all(self, store: Store, manifest: Manifest) -> Manifest:
        logs = list(manifest.logs)
        first_free = max(
            [manifest.next_file_id, *(1 + file_id for file_id in self._file_ids(None))]
        )
        generation = max(
            [self._slots.next_generation(), manifest.generation + 1, *self._generations()]
        )
        table = RunTable()
        made: list[LocationsEntry] = []

        def put(states: Iterable[LedgerState] = ()) -> None:
            file_id, at = first_free + len(made), generation + len(made)
            size = table.write(store, file_id, at, self._clock_s(), states)
            path = locations_path(self._directory, file_id)
            if not check_locations(self._disk, path, file_id, self._incarnation).is_whole:
                raise CorruptDataError(f"locations file {file_id} reads back damaged")
            made.append(
                LocationsEntry(
                    file_id=file_id, first_generation=at, last_generation=at, size_bytes=size
                )
            )
            table.clear()

        for log in logs:
            self._scan(log, table)
            if len(table) >= RUNS_A_FILE:
                put()
        for found in self._old.files.values():
            for run in found.lost if found is not None else ():
                table.append(run)
        put(self._states())
        self.report.files = len(made)
        return msgspec.structs.replace(
            manifest,
            generation=made[-1].last_generation,
            locations=tuple(made),
            logs=tuple(self._entry_of(log) for log in logs if log.log_id in self._scanned),
            next_file_id=first_free + len(made),
            next_log_id=max(
                [
                    manifest.next_log_id,
                    *(1 + log.log_id for log in logs if not log.is_journal_file),
                ]
            ),
            damage=tuple(one for one in manifest.damage if not LOST_STATES.match(one.what)),
            clean=False,
        )

    def _generations(self) -> list[int]:
        return [
            1 + found.last_generation for found in self._old.files.values() if found is not None
        ]

    def _scan(self, log: LogEntry, table: RunTable) -> None:
        """Put a log's runs into the table; a log that can't be read is a doubt, and is given up."""
        report = self.report
        path = log_path(self._directory, log.log_id, self._journal_directory)
        first = len(table)
        try:
            scan = LogScan(
                self._journal_disk if log.is_journal_file else self._disk,
                path,
                log.log_id,
                self._incarnation,
                salt=log.salt,
                end_bytes=log.durable_bytes,
            )
        except FileNotFoundError:
            report.doubts.append(f"{path} {missing_log(log.log_id)}")
            return
        except OSError as error:
            report.doubts.append(f"{path}: {error.strerror}")
            return
        with scan:
            while table.append_from(scan):
                report.runs = len(table)
                self._on_progress(report)
            status = scan.status
        report.logs += 1
        report.log_bytes += status.size_bytes
        report.skipped_bytes += status.skipped_bytes
        report.unreadable_bytes += status.unreadable_bytes
        if status.skipped_bytes or status.unreadable_bytes or log.durable_bytes > status.size_bytes:
            report.doubts.append(
                f"{path}: {status.skipped_bytes} bytes are of no run, {status.unreadable_bytes} can't be read,"
                f" {max(0, log.durable_bytes - status.size_bytes)} are missing"
            )
        self._note_runs(table, first)
        length = log.durable_bytes or status.size_bytes
        self._scanned[log.log_id] = (length, self._live_bytes)
        self._on_progress(report)

    def _note_runs(self, table: RunTable, first: int) -> None:
        report, self._live_bytes = self.report, 0
        for run in table.since(first):
            highest, lac = self._seen.get(run.ledger_id, (-1, -1))
            self._seen[run.ledger_id] = (max(highest, run.last_entry_id), max(lac, run.lac))
            self._live_bytes += run.size_bytes
            report.entries += run.entry_count
            report.damaged_runs += run.damaged < 0
            report.damaged_entries += max(0, run.damaged)

    def _entry_of(self, log: LogEntry) -> LogEntry:
        durable_bytes, live_bytes = self._scanned[log.log_id]
        return msgspec.structs.replace(
            log,
            durable_bytes=durable_bytes,
            live_bytes=live_bytes,
            # The journal goes on in a file that the mark has not passed, or replay does.
            sealed=log.sealed or not log.is_journal_file,
        )

    def _states(self) -> list[LedgerState]:
        """Return one state a ledger: the newest whole one, with what runs tell; in doubt fenced and in limbo."""
        report = self.report
        states: dict[int, LedgerState] = {}
        known = [found for found in self._old.files.values() if found is not None]
        for found in sorted(known, key=lambda one: one.last_generation):
            states.update((state.ledger_id, state) for state in found.states)
        report.states_kept = len(states)
        for ledger_id, (highest, lac) in self._seen.items():
            state = states.get(ledger_id, LedgerState(ledger_id))
            states[ledger_id] = msgspec.structs.replace(
                state,
                highest_entry_id=max(state.highest_entry_id, highest),
                lac=max(state.lac, lac),
            )
        report.ledgers = len(states)
        if not report.doubts:
            return list(states.values())
        return [
            state
            if state.flags & DELETED
            else msgspec.structs.replace(state, flags=state.flags | FENCED | LIMBO)
            for state in states.values()
        ]

    def _put_in_limbo(self, ledger_ids: Iterable[int]) -> None:
        before = read_limbo(self._disk, self._directory, self._incarnation)
        ids = sorted({*before, *ledger_ids})
        write_limbo(self._disk, self._directory, ids, self._incarnation)
        self.report.limbo = len(ids)
        kill_point("rebuild.after_limbo")

    def _move_aside(self, new: Manifest) -> None:
        """Move aside what no manifest names any more, after the commit: the next start would unlink it."""
        keep = {entry.file_id for entry in new.locations}
        old = [file_id for file_id in self._file_ids(None) if file_id not in keep]
        if not old:
            return
        aside = f"{self._directory}/{ASIDE.format(generation=new.generation)}"
        self._disk.make_directory(aside)
        for file_id in old:
            path = locations_path(self._directory, file_id)
            self._disk.rename(path, f"{aside}/{LOCATIONS.name(file_id)}")
        for folder in (aside, f"{self._directory}/{LOCATIONS.folder}", self._directory):
            self._disk.sync_directory(folder)
        self.report.aside = aside


def _replayed_from(used: Sequence[FoundFile], unreadable: Collection[int]) -> int:
    """Return which of the used files is the first that replay has to read where no manifest tells the mark.

    Files behind the mark alone are taken again (INV-J3), so the mark is not before the end of a file that is gone. Only
    a file that may be a log stays behind the mark while a later one is gone.
    """
    first = max(0, len(used) - 1)
    while first > 0:
        before = used[first].header.predecessor_file_id
        previous = used[first - 1]
        is_gone = before != previous.file_id and before not in unreadable
        if is_gone and previous.header.adopts:
            break
        first -= 1
    return first
