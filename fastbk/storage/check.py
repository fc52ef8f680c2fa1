"""Is all that a bookie's directories hold what was once written there? Offline, in locked directories; changes nothing.

Every manifest slot, every block of the locations files, every run that a location names with all of its entries, and
every journal batch behind the mark are read past the page cache and their checksums verified. What is found is told by
severity: "damage" is data that may be lost here; "note" is what a person may want to know, and harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.native.ledger_state import DELETED
from fastbk.native.scrub import DigestScan, LogScan, Run, check_locations, unreadable
from fastbk.native.store import Scope, Store, StoreOptions
from fastbk.storage.digest_check import DigestCount, KnownDigest, digest_name
from fastbk.storage.directories import (
    LOCATIONS,
    LOGS,
    locations_path,
    log_path,
    missing_log,
)
from fastbk.storage.journal_files import find_files, plan_replay
from fastbk.storage.manifest import ManifestSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastbk.native.disk import Disk
    from fastbk.native.scrub import Run
    from fastbk.native.store import Runs
    from fastbk.storage.manifest import LogEntry, Manifest


RUNS_A_PASS = 262_144
"""16 MiB of locations; each pass reads all locations files once."""
RUNS_A_STEP = 1024


class DirectoryCheck:
    """Checks one pair: a ledger directory and its journal directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        journal_disk: Disk,
        journal_directory: str,
        incarnation: int,
        *,
        pair: int = 0,
        checked: Checked | None = None,
        types_of: TypesOf | None = None,
        on_progress: Callable[[Checked], None] = lambda _: None,
        pause: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Args:
        checked: to add to. types_of: what metadata says of digests; None: they are not looked at. pause: called with
            the bytes of each step: paces it.
        """
        self.checked = Checked() if checked is None else checked
        self._digests = None if types_of is None else DigestCheck(types_of, self.checked)
        self._disk = disk
        self._directory = directory
        self._journal_disk = journal_disk
        self._journal_directory = journal_directory
        self._incarnation = incarnation
        self._pair = pair
        self._deleted: set[int] = set()
        self._lost: list[tuple[str, Run]] = []
        """What locations themselves call damaged, by file."""
        self._on_progress = on_progress
        self._pause = pause

    def run(self) -> Checked:
        """Look at everything. Raises FormatTooNewError, OSError of a directory that can't be listed, metadata's."""
        manifest = self._check_manifest()
        if manifest is not None:
            self._estimate(manifest)
            whole = self._check_locations(manifest)
            self._check_logs(manifest, whole)
            self._look_for_orphans(manifest)
        self._check_journal(manifest.mark if manifest is not None else 0)
        return self.checked

    # ---- manifest, locations

    def _check_manifest(self) -> Manifest | None:
        slots = ManifestSlots(self._disk, self._directory)
        try:
            manifest = slots.load()
        except Error as error:
            self.checked.add("damage", self._directory, str(error))
            return None
        for complaint in slots.complaints:
            # The other slot has all: a torn one is what a crash in a commit leaves.
            self.checked.add(
                "note", self._directory, f"one manifest slot is not whole: {complaint}"
            )
        for damage in manifest.damage:
            self.checked.add("note", self._directory, f"damage on record: {damage.what}")
        return manifest

    def _estimate(self, manifest: Manifest) -> None:
        total = sum(entry.size_bytes for entry in manifest.locations)
        self.checked.total_bytes += total + sum(log.live_bytes for log in manifest.logs)

    def _check_locations(self, manifest: Manifest) -> list[int]:
        """Return the ids of the files that are whole."""
        whole = []
        for entry in manifest.locations:
            path = locations_path(self._directory, entry.file_id)
            self.checked.locations_files += 1
            try:
                found = check_locations(
                    self._disk, path, entry.file_id, self._incarnation, with_states=True
                )
            except OSError as error:
                self.checked.add("damage", path, f"can't be read: {error.strerror}")
                continue
            self._progress(found.size_bytes)
            for state in found.states:  # files come oldest first: the newest wins
                gone = bool(state.flags & DELETED)
                (self._deleted.add if gone else self._deleted.discard)(state.ledger_id)
            self._lost += [(path, run) for run in found.lost]
            if found.is_whole:
                whole.append(entry.file_id)
            elif found.header_damaged:
                self.checked.add("damage", path, "its header is damaged: all of it is lost")
            else:
                self.checked.add(
                    "damage",
                    path,
                    f"{found.damaged_blocks} blocks of locations and {found.damaged_state_blocks} of ledger states"
                    f" are damaged, of {found.blocks}",
                )
        if len(whole) < len(manifest.locations):
            self.checked.add(
                "note",
                self._directory,
                "runs that only damaged locations name are not looked at; `fastbk bookie rebuild-locations` makes them"
                " anew from the entry logs",
            )
        return whole

    # ---- entry logs

    def _check_logs(self, manifest: Manifest, file_ids: list[int]) -> None:
        checked = self.checked
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
        live: dict[int, int] = {log.log_id: 0 for log in manifest.logs}
        try:
            for entry in manifest.locations:
                store.add(entry.file_id)
            store.set_logs(list(live))
            scope = Scope(file_ids, list(live), self._deleted)
            place = (0, 0)
            while True:
                runs = store.log_runs(scope, place, RUNS_A_PASS)
                self._check_runs(store, manifest, runs, live)
                if runs.is_all:
                    break
                place = runs.next_place
            self._check_headers(manifest)
            self._check_lost(store)
        finally:
            store.destroy()
        checked.logs += len(manifest.logs)
        checked.live_bytes += sum(live.values())
        checked.dead_bytes += sum(
            max(0, log.durable_bytes - live[log.log_id]) for log in manifest.logs
        )

    def _check_runs(
        self, store: Store, manifest: Manifest, runs: Runs, live: dict[int, int]
    ) -> None:
        logs = {log.log_id: log for log in manifest.logs}
        at = 0
        while at < len(runs):
            log = logs[runs[at].log_id]
            path = self._path_of(log)
            try:
                scan = LogScan(
                    self._disk_of(log),
                    path,
                    log.log_id,
                    self._incarnation,
                    salt=log.salt,
                    end_bytes=log.durable_bytes,
                )
            except OSError as error:
                self.checked.add("damage", path, f"can't be opened: {error.strerror}")
                while at < len(runs) and runs[at].log_id == log.log_id:
                    at += 1
                continue
            with scan:
                while at < len(runs) and runs[at].log_id == log.log_id:
                    step = run_list(runs, at, RUNS_A_STEP)
                    self._verify(store, path, scan, step)
                    live[log.log_id] += sum(run.size_bytes for run in step)
                    at += len(step)

    def _path_of(self, log: LogEntry) -> str:
        return log_path(self._directory, log.log_id, self._journal_directory)

    def _disk_of(self, log: LogEntry) -> Disk:
        return self._journal_disk if log.is_journal_file else self._disk

    def _verify(self, store: Store, path: str, scan: LogScan, runs: list[Run]) -> None:
        checked = self.checked
        look = None if self._digests is None else self._digests.check_of(runs)
        damaged = scan.verify(runs, look)
        if self._digests is not None and look is not None:
            self._digests.note(path, runs, look)
        for bad in damaged:
            where = f"a damaged run of ledger {bad.ledger_id} at offset {bad.offset_bytes}"
            ranges = unreadable(store, bad)
            if not ranges:
                checked.add("note", path, f"{where}: whole copies of its entries lie elsewhere")
                continue
            checked.damaged_entries += bad.entry_count if bad.damaged < 0 else bad.damaged
            checked.add("damage", path, f"{where}: entries {_ids(ranges)} can't be read")
        checked.runs += len(runs)
        checked.entries += sum(run.entry_count for run in runs)
        self._progress(sum(run.size_bytes for run in runs))

    def _check_lost(self, store: Store) -> None:
        """What a compaction found damaged, and nobody has repaired since."""
        for path, run in self._lost:
            if run.ledger_id in self._deleted or not (ranges := unreadable(store, run)):
                continue
            self.checked.damaged_entries += sum(1 + last - first for first, last in ranges)
            where = f"entries of ledger {run.ledger_id} that a compaction found damaged"
            self.checked.add("damage", path, f"{where}: {_ids(ranges)}")

    def _check_headers(self, manifest: Manifest) -> None:
        for log in manifest.logs:
            path = self._path_of(log)
            try:
                with LogScan(self._disk_of(log), path, log.log_id, self._incarnation) as scan:
                    status = scan.status
            except FileNotFoundError:
                self.checked.add("damage", path, missing_log(log.log_id))
                continue
            except OSError as error:
                self.checked.add(
                    "damage", path, f"is listed, but can't be opened: {error.strerror}"
                )
                continue
            if status.size_bytes < log.durable_bytes:
                missing = log.durable_bytes - status.size_bytes
                self.checked.add("damage", path, f"{missing} bytes are missing at its end")
            if status.header_damaged:
                # The manifest knows its salt, and each run has a header of its own.
                self.checked.add(
                    "note", path, "its header is damaged; its runs are found all the same"
                )

    def _look_for_orphans(self, manifest: Manifest) -> None:
        logs = {LOGS.name(log.log_id) for log in manifest.logs if not log.is_journal_file}
        files = {LOCATIONS.name(entry.file_id) for entry in manifest.locations}
        for folder, known in ((LOGS.folder, logs), (LOCATIONS.folder, files)):
            for name in sorted(set(self._disk.list(f"{self._directory}/{folder}")) - known):
                path = f"{self._directory}/{folder}/{name}"
                file = self._disk.open(path, read_only=True)
                size_bytes = self._disk.size(file)
                self._disk.close(file)
                self.checked.orphan_bytes += size_bytes
                self.checked.add("note", path, f"no manifest names it: {size_bytes} bytes")

    # ---- journal

    def _check_journal(self, mark: int) -> None:
        """Read what replay would read."""
        checked, directory = self.checked, self._journal_directory
        try:
            plan = plan_replay(
                find_files(self._journal_disk, directory, lock=False), mark, self._incarnation
            )
        except Error as error:
            checked.add("damage", directory, str(error))
            return
        for damage in plan.damage:
            checked.add("damage", directory, damage.reason)
        for file in plan.files:
            with file.scan(self._journal_disk, self._incarnation, plan.mark_sequence) as scan:
                for batch in scan:
                    checked.journal_batches += 1
                    self._progress(batch.padded_bytes)
                end = scan.end
            if end.kind == "damage":
                last = (
                    f"batches from {end.last_sequence + 1} on can't be read, some were acknowledged"
                )
                checked.add("damage", file.path, last)
            elif end.kind == "tail":
                checked.add(
                    "note", file.path, f"ends at batch {end.last_sequence} without a clean stop"
                )
            if end.passed_damage:
                passed = f"{end.passed_damage} batches are damaged that are in entry logs already"
                checked.add("note", file.path, passed)

    def _progress(self, size_bytes: int) -> None:
        self.checked.read_bytes += size_bytes
        self._on_progress(self.checked)
        self._pause(size_bytes)


def run_list(runs: Runs, at: int, count_max: int) -> list[Run]:
    """Return runs from number `at` on that lie in the same log, at most `count_max`."""
    first = runs[at].log_id
    found: list[Run] = []
    while at < len(runs) and len(found) < count_max and runs[at].log_id == first:
        one = runs[at]
        found.append(
            Run(
                ledger_id=one.ledger_id,
                first_entry_id=one.first_entry_id,
                last_entry_id=one.last_entry_id,
                log_id=one.log_id,
                offset_bytes=one.offset_bytes,
                size_bytes=one.size_bytes,
                entry_count=one.entry_count,
            )
        )
        at += 1
    return found


def worst(findings: Iterable[Finding], count: int) -> list[Finding]:
    """Return the first findings, damage before notes."""
    return sorted(findings, key=lambda one: one.severity)[:count]


def _ids(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


# --- findings ----------------------------------------------------------------------------------------------------
#
# What the offline check found, and its verification of entries' own digests by what metadata says of their ledgers.


FINDINGS_MAX = 10_000
"""More are counted, but not kept."""
TypesOf = Callable[[Collection[int]], Mapping[int, KnownDigest]]
"""Ledgers -> their digest types or keys; NO_TYPE: metadata has none; missing: it can't be told.

Raises Error: none can.
"""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be. severity: "damage" or "note"."""

    severity: str
    path: str
    text: str


class Checked(msgspec.Struct):
    """What a check found, and how much it looked at. Bytes are those read for it."""

    findings: list[Finding] = msgspec.field(default_factory=list)
    damage_count: int = 0
    read_bytes: int = 0
    total_bytes: int = 0
    """What there is to read, as far as is known."""
    logs: int = 0
    runs: int = 0
    entries: int = 0
    damaged_entries: int = 0
    locations_files: int = 0
    journal_batches: int = 0
    live_bytes: int = 0
    """Bytes of runs that locations name."""
    dead_bytes: int = 0
    """Bytes in listed logs, of no run that a location names."""
    orphan_bytes: int = 0
    """Bytes of files that no manifest names: left behind by a crash, gone after the next start's first commit."""
    digests: DigestCount | None = None
    """None: entries' own digests were not looked at."""
    bad_digest_ranges: int = 0
    """How many of `damage_count` are entries that came with a wrong digest."""
    began_s: float = msgspec.field(default_factory=time.monotonic)

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return self.damage_count == 0

    def add(self, severity: str, path: str, text: str) -> None:
        """Note a finding."""
        self.damage_count += severity == "damage"
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(severity, path, text))


class DigestCheck:
    """Looks beside the checksums; what it finds is damage: no reader takes such a copy, whoever damaged it."""

    def __init__(self, types_of: TypesOf, checked: Checked) -> None:
        self._types_of = types_of
        self._checked = checked
        if checked.digests is None:
            checked.digests = DigestCount()

    def check_of(self, runs: list[Run]) -> DigestScan:
        """Return what a verification of these runs has to look for. Raises what `types_of` does."""
        return DigestScan(self._types_of({run.ledger_id for run in runs}))

    def note(self, path: str, runs: list[Run], look: DigestScan) -> None:
        """Take what the verification has found."""
        count = self._checked.digests
        assert count is not None
        count.checked += look.entries
        count.bad += look.bad_entries
        count.add_unchecked(runs, look.types)
        for ledger_id, first, last in look.bad:
            ids = f"entry {first}" if first == last else f"entries {first}-{last}"
            name = digest_name(look.types[ledger_id])
            self._checked.bad_digest_ranges += 1
            self._checked.add(
                "damage", path, f"{ids} of ledger {ledger_id} came with a wrong {name} digest"
            )
