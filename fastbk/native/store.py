"""The typed face of the store (`src/store/store.h`): entry logs and locations files, and reading what is in them.

Used in the index process by four kinds of threads: the main loop (`add`, `remove`, and in C submit and collect),
the flush thread (`prepare`, `begin_flush`), the background thread (merges and passes over all locations), and reader
threads, which spend their lives in `reader_run`. Every call lets go of the interpreter lock.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native import location_pass
from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject, check, create, fill_struct
from fastbk.native.flush import Flush, FlushContents, FlushOptions, FlushResult
from fastbk.native.ledger_state import (
    DELETED,
    FENCED,
    HAS_KEY,
    LIMBO,
    STATE,
    LedgerState,
    pack_state,
    unpack_state,
)
from fastbk.native.location_pass import Location, Merge, MergeOptions, MergeResult, Runs, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.cdata import CData
    from fastbk.native.disk import Disk

__all__ = [
    "DELETED",
    "FENCED",
    "HAS_KEY",
    "LIMBO",
    "STATE",
    "Flush",
    "FlushContents",
    "FlushOptions",
    "FlushResult",
    "LedgerState",
    "ListResult",
    "Location",
    "Merge",
    "MergeOptions",
    "MergeResult",
    "ReadResult",
    "Runs",
    "Scope",
    "Store",
    "StoreOptions",
    "pack_state",
    "unpack_state",
]

RUNS_MAX = 1 << 19
"""Runs looked at at a time: 32 MiB."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Bounds of a store, bytes and counts (`boundary/store.h`)."""

    incarnation: int
    read_cache_bytes: int = 16 << 20
    block_cache_bytes: int = 8 << 20
    jobs_max: int = 1024
    pair: int = 0
    log_files_max: int = 256
    room_timeout_ms: int = 1000


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Answer to one lookup. status: a wire status; entry: None unless status is 0."""

    status: int
    entry_id: int
    entry: bytes | None
    alone_through: int


@dataclass(frozen=True, slots=True)
class ListResult:
    """Answer to one listing: ranges of ids, first and last; `go_on` is where the next listing begins, -1 = all done."""

    status: int
    ranges: tuple[tuple[int, int], ...]
    go_on: int


class Store(NativeObject):
    """The searched set of locations files with its caches, jobs and readers."""

    _gone = "this store was destroyed"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        disk: Disk,
        reader_disk: Disk,
        options: StoreOptions,
        background_disk: Disk | None = None,
    ) -> None:
        """Make an empty set over a ledger directory.

        Args:
            directory: holds `logs` and `locations`.
            disk: for the flush thread alone; must live longer than this.
            reader_disk: for reading from any thread: plain, or a fake one; must live longer than this.
            options: bounds.
            background_disk: for the background thread alone; None: `disk`, for one thread that does both.
        """
        self._name = ffi.new("char[]", os.fsencode(directory))
        native = ffi.new("struct fbk_store_options *")
        native.ledger_directory = self._name
        fill_struct(native, options)
        super().__init__(
            create(
                lambda error: lib.fbk_store_create(native, disk.handle, reader_disk.handle, error),
                "make a store",
                os.fsdecode(directory),
            )
        )
        self._disks = (disk, reader_disk, background_disk)
        if background_disk is not None:
            lib.fbk_store_set_background(self.handle, background_disk.handle)

    def destroy(self) -> None:
        """Free everything. Readers have returned, no run is pinned, no flush is under way."""
        self._end(lib.fbk_store_destroy)

    # ---- the searched set

    def prepare(self, file_id: int) -> bool:
        """Read a locations file through, for a later `add`; any thread.

        Returns whether a part is damaged: what lies there answers "cannot tell". Raises FormatTooNewError.
        """
        return check(lib.fbk_store_prepare_locations(self.handle, file_id), "load locations") > 0

    def drop_prepared(self, file_id: int) -> None:
        """Forget a prepared file that will not be added."""
        lib.fbk_store_drop_prepared(self.handle, file_id)

    def add(self, file_id: int) -> bool:
        """Search this file too, from now on; only memory work if it was prepared. Main loop. Returns like `prepare`."""
        return check(lib.fbk_store_add_locations(self.handle, file_id), "add locations") > 0

    def read_error(self, file_id: int) -> int:
        """Return the errno for which a prepared or added file counts as damaged, though it may only be the disk's bad
        moment; 0: there is none.
        """
        return int(lib.fbk_store_read_error(self.handle, file_id))

    def remove(self, file_id: int) -> None:
        """Search this file no more; jobs under way finish with it. Main loop."""
        check(lib.fbk_store_remove_locations(self.handle, file_id), "remove locations")

    def set_logs(self, log_ids: Iterable[int]) -> None:
        """Say which entry logs the manifest lists: locations in any other are void from now on (INV-X5). Main loop.

        Until the first call all count. Memory work only.
        """
        ids = sorted(log_ids)
        memory = ffi.new("uint64_t[]", [*ids, 0])
        check(lib.fbk_store_set_logs(self.handle, memory, len(ids)), "set the logs")

    def forget_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Drop cached runs of these ledgers. Final once `old_sets` is 0: no job looks under an older set then."""
        if isinstance(ledger_ids, array) and ledger_ids.typecode == "q":
            ids = ledger_ids  # ascending; they may be millions
        else:
            ids = array("q", sorted(set(ledger_ids)))
        if ids:
            lib.fbk_store_forget_ledgers(self.handle, ffi.from_buffer("int64_t[]", ids), len(ids))

    @property
    def old_sets(self) -> int:
        """Sets that were replaced, and that a job still looks under."""
        return int(lib.fbk_store_old_sets(self.handle))

    def forget_log(self, log_id: int) -> None:
        """Close a log that is about to be deleted, drop its cached runs."""
        lib.fbk_store_forget_log(self.handle, log_id)

    def states(self, file_id: int) -> list[LedgerState]:
        """Return the ledger states in a prepared or added file. Raises CorruptDataError if some are lost."""
        count = check(lib.fbk_store_copy_states(self.handle, file_id, ffi.NULL, 0), "read states")
        memory = ffi.new("uint8_t[]", count * STATE.size + 1)
        check(lib.fbk_store_copy_states(self.handle, file_id, memory, count), "read states")
        return [unpack_state(raw) for raw in _chunks(ffi.buffer(memory, count * STATE.size)[:])]

    # ---- reading; the index's C submits and collects itself, these are for tools and tests

    def read(self, ledger_id: int, first: int, last: int, *, scan: bool = False) -> ReadResult:
        """Look up the smallest id in [first, last], in this thread. No reader threads may run.

        `scan`: as for a reader that goes on and on; what is read so is not kept for that.
        """
        lane = lib.FBK_LANE_BULK if scan else lib.FBK_LANE_URGENT
        result = self._answer(lib.fbk_store_submit(self.handle, 0, ledger_id, first, last, lane, 0))
        if result.run == ffi.NULL:
            return ReadResult(result.status, result.found_entry_id, None, result.alone_through)
        size = ffi.new("uint32_t *")
        data = lib.fbk_run_entry(result.run, result.found_entry_id, size)
        entry = bytes(ffi.buffer(data, size[0])[:])
        lib.fbk_store_release(self.handle, result.run)
        return ReadResult(result.status, result.found_entry_id, entry, result.alone_through)

    def read_ahead(self, ledger_id: int, first: int, size_bytes_max: int) -> tuple[int, bool]:
        """Bring what lies behind `first` into the read cache, in this thread. No reader threads may run.

        Returns the id through which everything on disk was looked at, and whether nothing lies behind it.
        """
        result = self._answer(
            lib.fbk_store_submit_ahead(self.handle, 0, ledger_id, first, size_bytes_max, 0)
        )
        return int(result.found_entry_id), result.status != 0

    def list(self, ledger_id: int, first: int = 0, count_max: int = 1024) -> ListResult:
        """List a ledger's ids on disk from `first` on, in this thread. No reader threads may run."""
        ranges = ffi.new("int64_t[]", 2 * count_max)
        status = lib.fbk_store_submit_list(self.handle, 0, ledger_id, first, ranges, count_max, 0)
        result = self._answer(status)
        pairs = ((ranges[2 * i], ranges[2 * i + 1]) for i in range(result.range_count))
        return ListResult(result.status, tuple(pairs), result.found_entry_id)

    def _answer(self, submitted: int) -> CData:
        check(submitted, "submit a read")
        result: CData = ffi.new("struct fbk_store_result *")
        lib.fbk_store_reader_step(self.handle)
        if lib.fbk_store_collect(self.handle, result, 1) != 1:
            raise RuntimeError("a reader thread took the job")
        return result

    def cached(self, ledger_id: int, entry_id: int, *, scan: bool = False) -> bytes | None:
        """Return an entry if its run is in the read cache."""
        run = lib.fbk_store_cached(self.handle, ledger_id, entry_id, scan)
        return self._entry_of(run, entry_id)

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Return an entry if it can be read without waiting for the disk."""
        return self._entry_of(lib.fbk_store_read_cached(self.handle, ledger_id, entry_id), entry_id)

    def _entry_of(self, run: CData, entry_id: int) -> bytes | None:
        """Copy an entry out of a pinned run, which is released."""
        if run == ffi.NULL:
            return None
        size = ffi.new("uint32_t *")
        entry = bytes(ffi.buffer(lib.fbk_run_entry(run, entry_id, size), size[0])[:])
        lib.fbk_store_release(self.handle, run)
        return entry

    def reader_run(self, event_fd: int) -> None:
        """Serve jobs until `stop_readers`: a reader thread's whole life. Rings `event_fd` for each finished one."""
        check(lib.fbk_store_reader_run(self.handle, event_fd), "run a reader")

    def reader_step(self) -> bool:
        """Do one waiting job in this thread; return whether there was one. For replay's sake and tests."""
        return bool(lib.fbk_store_reader_step(self.handle))

    def stop_readers(self) -> None:
        """Make every `reader_run` return; nothing can be submitted from now on."""
        lib.fbk_store_stop_readers(self.handle)

    def counts(self) -> dict[str, int]:
        """Return the counters of `struct fbk_store_counts` by name."""
        counts = ffi.new("struct fbk_store_counts *")
        lib.fbk_store_counts_get(self.handle, counts)
        return {name: int(getattr(counts, name)) for name in COUNT_NAMES}

    # ---- the flush thread

    def begin_flush(self, options: FlushOptions, contents: FlushContents) -> Flush:
        """Begin a flush. Raises OSError; FileExistsError when an id was used before."""
        return Flush(self.handle, options, contents)

    # ---- the background thread

    def begin_merge(self, options: MergeOptions, scope: Scope) -> Merge:
        """Begin to merge the scope's files into one. Raises OSError, CorruptDataError when one of them is damaged."""
        return Merge(self.handle, options, scope)

    def log_bytes(self, scope: Scope) -> dict[int, int]:
        """Return log id -> bytes of the runs of the scope in it: one pass. Raises CorruptDataError, OSError."""
        return location_pass.log_bytes(self.handle, scope)

    def log_runs(
        self, scope: Scope, place: tuple[int, int] = (0, 0), runs_max: int = RUNS_MAX
    ) -> Runs:
        """Return the scope's runs in the order of (log, offset), from `place` on: one pass over all locations.

        Args:
            scope: files, logs, and the ledgers that don't matter.
            place: (log id, offset in it); the `next_place` of the runs before.
            runs_max: 64 bytes of memory each; fewer are returned when there are no more.

        Raises CorruptDataError when a file is damaged (nobody knows then what lives), OSError.
        """
        return location_pass.log_runs(self.handle, scope, place, runs_max)

    def count_states(self, file_ids: Iterable[int], deleted_before_s: int) -> tuple[int, int]:
        """Return (ledger states in these files, those of ledgers deleted before that wall-clock time)."""
        return location_pass.count_states(self.handle, file_ids, deleted_before_s)

    def ledger_bytes(self, ledger_id: int) -> dict[int, int]:
        """Return log id -> bytes of the runs of one ledger."""
        return location_pass.pairs_of(
            lambda pairs, room: lib.fbk_store_ledger_bytes(self.handle, ledger_id, pairs, room)
        )


COUNT_NAMES = (
    "lookups",
    "run_reads",
    "run_read_bytes",
    "cache_hits",
    "block_reads",
    "block_hits",
    "damaged_blocks",
    "damaged_runs",
    "damaged_entries",
    "cannot_tell",
    "ahead_runs",
    "ahead_reads",
    "cache_bytes",
    "pinned_bytes",
    "jobs",
    "files",
    "index_bytes",
)


def _chunks(raw: bytes) -> list[bytes]:
    return [raw[at : at + STATE.size] for at in range(0, len(raw), STATE.size)]
