"""Making all locations files anew from the entry logs, when they are lost or damaged. Offline, with locked directories.

Runs are found by their own headers. What no run tells are fences, keys and deletions: those come from whatever ledger
states are still whole. Where states, runs or the manifest are lost, nobody knows which ledgers that concerns: then
all that are known here, and all that metadata names this bookie for, are fenced and in limbo until they are repaired
(INV-X1, INV-X4). One manifest commits everything; the old files are moved aside after it, not deleted.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.native.process import kill_point
from fastbk.native.scrub import LogScan, RunTable, check_locations
from fastbk.native.store import DELETED, FENCED, LIMBO, LedgerState, Store, StoreOptions
from fastbk.storage.directories import LOCATIONS, LOGS, data_in, locations_path, log_path
from fastbk.storage.limbo import read_limbo, write_limbo
from fastbk.storage.manifest import (
    LocationsEntry,
    LogEntry,
    Manifest,
    ManifestLost,
    ManifestMissing,
    ManifestSlots,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.scrub import LocationsFound

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
    """One rebuild of one ledger directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
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
            if not data_in(self._disk, self._directory):
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

    def run(self, mark: int, named: Callable[[], Iterable[int]]) -> Rebuilt:
        """Do it.

        Args:
            mark: the last journal batch that is in entry logs; counts only where the manifest is lost.
            named: gives the ids of all ledgers that metadata names this bookie for; asked only in doubt.

        Raises OSError, Error of `named`: then nothing has changed.
        """
        manifest = self._old.manifest or Manifest(generation=0, mark=mark)
        store = Store(
            self._directory,
            self._disk,
            self._disk,
            StoreOptions(
                incarnation=self._incarnation,
                read_cache_size_bytes=1 << 20,
                read_jobs_max=1,
                pair=self._pair,
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

    def _logs(self, manifest: Manifest) -> Sequence[LogEntry]:
        if self._old.manifest is not None:
            return manifest.logs
        return [
            LogEntry(log_id=log_id, salt=0, durable_bytes=0, live_bytes=0, sealed=True)
            for log_id in LOGS.ids_in(self._disk, self._directory)
        ]

    # ---- what is made of it

    def _write_all(self, store: Store, manifest: Manifest) -> Manifest:
        logs = list(self._logs(manifest))
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
            next_log_id=max([manifest.next_log_id, *(1 + log.log_id for log in logs)]),
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
        path = log_path(self._directory, log.log_id)
        first = len(table)
        try:
            scan = LogScan(
                self._disk,
                path,
                log.log_id,
                self._incarnation,
                salt=log.salt,
                end_bytes=log.durable_bytes,
            )
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
            log, durable_bytes=durable_bytes, live_bytes=live_bytes, sealed=True
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
