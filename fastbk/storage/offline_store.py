"""The stored ledgers of a pair whose bookie is stopped: read whole, added to, dropped; for moving shards.

Only what the manifest names is touched, and it is changed only by the same checkpoints as in a running bookie. The
directory is locked by the caller.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.native.ledger_state import DELETED, LedgerState
from fastbk.native.process import kill_point
from fastbk.native.segment import shard_of
from fastbk.native.store import FlushContents, Store, StoreOptions
from fastbk.storage import limbo
from fastbk.storage.checkpoint import Checkpoint, CheckpointSettings
from fastbk.storage.commits import DeletionLog
from fastbk.storage.directories import free_bytes
from fastbk.storage.journal_files import find_files
from fastbk.storage.manifest import ManifestSlots
from fastbk.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from fastbk.native.disk import Disk

STATUS_OK, STATUS_NO_ENTRY = 0, 11
FLUSH_BYTES = 64 * MIB
FLUSH_ENTRIES = 100_000
"""Entries are held in memory up to here, then flushed."""
FLUSH_STATES = 100_000
KEPT_FREE_BYTES = 128 * MIB
"""Room on the target's disk that no copy may take."""
LEDGERS_PER_LINE = 4096
"""Ledgers in one line of the deletion log."""
FORGOTTEN_S = 1
"""When ledgers were deleted that have only left: so long ago that any merge of all files forgets them."""
RANGES = 1024

Entry = tuple[int, int, bytes]
"""Ledger, entry, bytes."""


class OfflineStore:
    """One pair's ledger directory, opened. `close` it in the end."""

    def __init__(
        self,
        disk: Disk,
        reader_disk: Disk,
        directory: str,
        journal_directory: str,
        incarnation: int,
        pair: int,
    ) -> None:
        """Load what the manifest names, and make the manifest durable. The disks stay the caller's.

        Raises StorageError, OSError.
        """
        self.directory = directory
        self._disk = disk
        slots = ManifestSlots(disk, directory)
        manifest = slots.load()
        slots.settle()  # another directory is changed by what it says
        options = StoreOptions(
            incarnation=incarnation, pair=pair, journal_directory=journal_directory
        )
        self._store = Store(directory, disk, reader_disk, options)
        self._checkpoint = Checkpoint(
            disk,
            directory,
            slots,
            manifest,
            CheckpointSettings(),
            journal_directory=journal_directory,
        )
        self._damaged = self._checkpoint.load(self._store)
        self._deletion_log = DeletionLog(disk, directory)

    def close(self) -> None:
        """Free everything."""
        self._store.destroy()

    # ---- reading

    def check_can_give(self, journal_disk: Disk, journal_directory: str) -> None:
        """Raise StorageError unless everything that this pair holds is in its files and can be told."""
        self.check_is_flushed(journal_disk, journal_directory)
        if self._checkpoint.manifest.damage or self._damaged:
            raise StorageError(
                f"{self.directory} has damage on record, so nobody can say what belongs to its shards. Start the"
                " bookie, which puts the ledgers into limbo that may have lost something, run `fastbk bookie repair`,"
                " and stop it"
            )
        if limbo.NAME in self._disk.list(self.directory):
            raise StorageError(
                f"{self.directory} has ledgers that are yet to be put in limbo. Start the bookie once, and stop it"
            )

    def check_is_flushed(self, journal_disk: Disk, journal_directory: str) -> None:
        """Raise StorageError when the journal may hold what the files do not."""
        is_empty = not find_files(journal_disk, journal_directory)
        if not self._checkpoint.manifest.clean and not is_empty:
            raise StorageError(
                f"the journal in {journal_directory} may hold entries that {self.directory} does not: start the"
                " bookie, and stop it by SIGTERM, which flushes everything"
            )

    def states(self, shards: Collection[int]) -> dict[int, LedgerState]:
        """Return the states of all ledgers in these shards, deleted ones included. Raises CorruptDataError."""
        found: dict[int, LedgerState] = {}
        for (
            entry
        ) in self._checkpoint.manifest.locations:  # of equal ledgers the newest file's counts
            for state in self._store.states(entry.file_id):
                if shard_of(state.ledger_id) in shards:
                    found[state.ledger_id] = state
        return found

    def entries(self, ledger_id: int) -> Iterator[Entry]:
        """Yield all entries of a ledger, in order. Raises StorageError when one cannot be read or told of."""
        first = 0
        while first >= 0:
            listed = self._store.list(ledger_id, first, RANGES)
            if listed.status not in (STATUS_OK, STATUS_NO_ENTRY):
                raise self._unreadable(ledger_id, first)
            for low, high in listed.ranges:
                for entry_id in range(low, high + 1):
                    yield ledger_id, entry_id, self._read(ledger_id, entry_id)
            first = listed.go_on

    def _read(self, ledger_id: int, entry_id: int) -> bytes:
        # with the run that the last one was read from
        cached = self._store.cached(ledger_id, entry_id)
        if cached is not None:
            return cached
        result = self._store.read(ledger_id, entry_id, entry_id)
        if result.status != STATUS_OK or result.entry is None:
            raise self._unreadable(ledger_id, entry_id)
        return result.entry

    def _unreadable(self, ledger_id: int, entry_id: int) -> StorageError:
        return StorageError(
            f"entry {entry_id} of ledger {ledger_id} in {self.directory} cannot be read. Nothing was moved. Start the"
            " bookie, run `fastbk bookie repair`, stop it, and move the shards then"
        )

    # ---- writing

    def take(
        self,
        states: Sequence[LedgerState],
        entries: Iterable[Entry],
        on_bytes: Callable[[int], None],
    ) -> int:
        """Store ledgers with all their entries, durably; return the number of entries.

        Until the last step they count as deleted here, so whatever a crash leaves is dropped by itself. Raises
        StorageError (CheckpointFailed), and what `entries` raises.
        """
        mark = self._checkpoint.manifest.mark
        mine = [msgspec.structs.replace(state, changed_sequence=mark) for state in states]
        self._put_states(
            [
                msgspec.structs.replace(state, flags=state.flags | DELETED, deleted_s=FORGOTTEN_S)
                for state in mine
            ]
        )
        kill_point("move.after_announcement")
        count = 0
        for part in _parts(entries):
            self._check_room(sum(len(data) for _, _, data in part))
            self._put(FlushContents.from_entries(part))
            kill_point("move.after_entries")
            count += len(part)
            on_bytes(sum(len(data) for _, _, data in part))
        self._put_states(mine)
        kill_point("move.after_states")
        return count

    def add(self, entries: Sequence[Entry], states: Sequence[LedgerState] = ()) -> None:
        """Store entries, each at most once, and states, durably: for a directory that counts only when all is there.

        The states' sequences become that of the mark. Raises StorageError (CheckpointFailed).
        """
        mark = self._checkpoint.manifest.mark
        self._put(
            FlushContents.from_entries(
                entries, [msgspec.structs.replace(state, changed_sequence=mark) for state in states]
            )
        )

    @property
    def store(self) -> Store:
        """What can be searched."""
        return self._store

    @property
    def disk(self) -> Disk:
        """What it is written with."""
        return self._disk

    @property
    def checkpoint(self) -> Checkpoint:
        """What changes the manifest."""
        return self._checkpoint

    def drop(self, shards: Collection[int], reason: str) -> int:
        """Drop all ledgers of these shards, durably and with their reason in the deletion log; return their number.

        They count as deleted from then on; merges and gc free the space. Again is harmless. A ledger that comes
        back by another move lives again.
        """
        states = [one for one in self.states(shards).values() if not one.flags & DELETED]
        states.sort(key=lambda state: state.ledger_id)
        now_s = int(time.time())
        for at in range(0, len(states), LEDGERS_PER_LINE):
            ids = [state.ledger_id for state in states[at : at + LEDGERS_PER_LINE]]
            self._deletion_log.append({"ledgers": ids, "reason": reason, "time_s": now_s})
        self._put_states(
            [
                msgspec.structs.replace(one, flags=one.flags | DELETED, deleted_s=FORGOTTEN_S)
                for one in states
            ]
        )
        return len(states)

    def _check_room(self, size_bytes: int) -> None:
        """A disk that is filled to the end would leave no room for undoing the move."""
        free = free_bytes(self.directory)
        if free < size_bytes + KEPT_FREE_BYTES:
            raise StorageError(
                f"{self.directory} has {format_size(free)} left, too little for the copies and the"
                f" {format_size(KEPT_FREE_BYTES)} that are kept. Nothing was moved. Make room there, or move fewer"
                " shards"
            )

    def _put_states(self, states: Sequence[LedgerState]) -> None:
        for at in range(0, len(states), FLUSH_STATES):
            self._put(FlushContents.from_entries((), states[at : at + FLUSH_STATES]))

    def _put(self, contents: FlushContents) -> None:
        manifest = self._checkpoint.manifest
        change = self._checkpoint.run(self._store, contents, manifest.mark, clean=manifest.clean)
        change.install(self._store)
        self._checkpoint.commits.clean_up(self._store, change)


def _parts(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    part: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        part.append(entry)
        size_bytes += len(entry[2])
        if size_bytes >= FLUSH_BYTES or len(part) >= FLUSH_ENTRIES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
