"""The typed face of the store (`src/store/store.h`): entry logs and locations files, and reading what is in them.

Used in the index process by four kinds of threads: the main loop (`add`, `remove`, and in C submit and collect),
the flush thread (`prepare`, `begin_flush`), the background thread (merges and passes over all locations), and reader
threads, which spend their lives in `reader_run`. Every call lets go of the interpreter lock.
"""

from __future__ import annotations

import errno
import os
import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject, check, create, fill_struct, ints_of
from fastbk.native.hashes import crc32c
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastbk.native.disk import Disk
    from fastbk.native.ffi import CData


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


class StoreOptions(msgspec.Struct, frozen=True):
    """Bounds of a store, bytes and counts (`boundary/store.h`).

    A bookie's come from [ledgers], under the same names. Defaults are those of tools that open a store by themselves.
    """

    incarnation: int
    read_cache_size_bytes: int = 16 << 20
    block_cache_size_bytes: int = 8 << 20
    read_jobs_max: int = 1024
    pair: int = 0
    log_files_max: int = 256
    room_timeout_ms: int = 1000
    journal_directory: str = ""
    """Where journal files that are logs lie; "": none does, such logs are missing."""


class ReadResult(msgspec.Struct, frozen=True):
    """Answer to one lookup. status: a wire status; entry: None unless status is 0."""

    status: int
    entry_id: int
    entry: bytes | None
    alone_through: int


class ListResult(msgspec.Struct, frozen=True):
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
        self._journal_name = ffi.NULL
        if options.journal_directory:
            self._journal_name = ffi.new("char[]", os.fsencode(options.journal_directory))
        native.journal_directory = self._journal_name
        fill_struct(native, options, "journal_directory")
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

    def set_journal_file(self, file_id: int) -> None:
        """Note that the journal writes to no file before this one any more: these are read ahead like entry logs."""
        lib.fbk_store_set_journal_file(self.handle, file_id)

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
        return log_bytes(self.handle, scope)

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
        return log_runs(self.handle, scope, place, runs_max)

    def count_states(self, file_ids: Iterable[int], deleted_before_s: int) -> tuple[int, int]:
        """Return (ledger states in these files, those of ledgers deleted before that wall-clock time)."""
        return count_states(self.handle, file_ids, deleted_before_s)

    def ledger_bytes(self, ledger_id: int) -> dict[int, int]:
        """Return log id -> bytes of the runs of one ledger."""
        return pairs_of(
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


# --- flushes -----------------------------------------------------------------------------------------------------
#
# One flush: sorted entries and ledger states on their way into entry log and locations file (`src/store/flush.c`).


class FlushOptions(msgspec.Struct, frozen=True):
    """Where one flush goes; `log_offset_bytes` 0 makes a new log."""

    log_id: int
    log_offset_bytes: int
    log_salt: int
    locations_file_id: int
    generation: int
    created_s: int


class FlushResult(msgspec.Struct, frozen=True):
    """What a finished flush put on disk, all of it synced. `log_end_bytes`: the log's durable length."""

    log_end_bytes: int
    run_bytes: int
    location_count: int
    file_size_bytes: int


class AdoptedFile(msgspec.Struct, frozen=True):
    """A journal file with runs in a flush.

    Attributes:
        run_bytes: of these runs.
        end_bytes: where the last batch with one of them ends.
    """

    file_id: int
    salt: int
    run_count: int
    run_bytes: int
    end_bytes: int


class FlushContents:
    """Entries and ledger states to be flushed, in memory that outlives this object's use.

    Attributes:
        handle: the native `fbk_flush_contents`, for sibling modules in `fastbk.native` only.
    """

    def __init__(self, handle: CData, keep: object = None) -> None:
        """Take a pointer to `fbk_flush_contents`; `keep` is held as long as this is."""
        self.handle = handle
        self._keep = keep

    @classmethod
    def from_entries(
        cls, entries: Iterable[tuple[int, int, bytes]], states: Iterable[LedgerState] = ()
    ) -> FlushContents:
        """Copy (ledger id, entry id, bytes) and states, in any order; for tools and tests."""
        ordered = sorted(entries, key=lambda entry: entry[:2])
        items = ffi.new("struct fbk_flush_item[]", len(ordered) + 1)
        buffers = []
        for item, (ledger_id, entry_id, data) in zip(items, ordered, strict=False):
            buffer = ffi.new("uint8_t[]", data)
            buffers.append(buffer)
            item.ledger_id, item.entry_id = ledger_id, entry_id
            item.data, item.size_bytes, item.crc = buffer, len(data), crc32c(data)
        packed = b"".join(map(pack_state, sorted(states, key=lambda state: state.ledger_id)))
        memory = ffi.new("uint8_t[]", packed + b"\0")
        contents = ffi.new("struct fbk_flush_contents *")
        contents.items, contents.item_count = items, len(ordered)
        contents.states = ffi.cast("struct fbk_ledger_state *", memory)
        contents.state_count = len(packed) // STATE.size
        return cls(contents, (items, buffers, memory))

    @property
    def has_entries(self) -> bool:
        """Whether there is anything for an entry log."""
        return bool(self.handle.item_count or self.handle.run_count)

    @property
    def adopted(self) -> list[AdoptedFile]:
        """The journal files with runs that this flush publishes where they lie, by rising id."""
        files = self.handle.files[0 : self.handle.file_count]
        return [AdoptedFile(**ints_of(file, AdoptedFile)) for file in files]

    @property
    def is_empty(self) -> bool:
        """Whether there are neither entries nor states."""
        return not (self.has_entries or self.handle.adopted_count or self.handle.state_count)


class Flush(NativeObject):
    """A flush under way. `end` or `abandon` ends it; one at a time, in one thread."""

    _gone = "this flush has ended"

    def __init__(self, store: CData, options: FlushOptions, contents: FlushContents) -> None:
        """Open the log; `store` is the native one. Raises OSError."""
        native = ffi.new("struct fbk_flush_options *")
        fill_struct(native, options)
        super().__init__(
            create(
                lambda error: lib.fbk_flush_begin(store, native, contents.handle, error),
                "begin a flush",
            )
        )
        self._contents = contents

    def step(self, bytes_max: int) -> bool:
        """Write up to about `bytes_max`; return whether there is more. Raises OSError: then abandon."""
        return check(lib.fbk_flush_step(self.handle, bytes_max), "write an entry log") > 0

    def end(self) -> FlushResult:
        """Sync the log, write and sync the locations file and both directories. Raises OSError; ended either way."""
        result = ffi.new("struct fbk_flush_result *")
        flush, self._handle = self.handle, None
        check(lib.fbk_flush_end(flush, result), "end a flush")
        return FlushResult(**ints_of(result, FlushResult))

    def abandon(self) -> None:
        """Give up; what was written is garbage that no manifest names. Harmless when it ended already."""
        self._end(lib.fbk_flush_abandon)


# --- passes over all locations -----------------------------------------------------------------------------------
#
# Passes over all locations of some files: live bytes, the runs of a log in order, merges (`src/store/store.h`).
#
# For the background thread, or anyone at rest. Every call lets go of the interpreter lock.


LOGS_MAX_START = 1024
LOCATION = struct.Struct("<qqqqQQIIQ")
"""`struct fbk_location`: 64 bytes, in files as in memory."""


class Location(NamedTuple):
    """One run: whose entries, and where it lies."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    entry_count: int
    log_id: int
    offset_bytes: int
    size_bytes: int


class MergeOptions(msgspec.Struct, frozen=True):
    """What a merge makes. `forget_deleted_before_s`: wall clock; 0 unless no older file stays outside the merge."""

    merged_file_id: int
    created_s: int
    forget_deleted_before_s: int = 0


class MergeResult(msgspec.Struct, frozen=True):
    """What a merge made of its inputs."""

    location_count: int
    dropped_count: int
    forgotten_count: int
    file_size_bytes: int
    first_generation: int
    last_generation: int


class Scope:
    """Which locations a pass takes: of these files, in these logs (INV-X5), but not of deleted ledgers."""

    def __init__(
        self,
        file_ids: Iterable[int],
        log_ids: Iterable[int] | None,
        deleted: Iterable[int] = (),
    ) -> None:
        """Copy the ids.

        Args:
            file_ids: of locations files, prepared or added; ascending generations.
            log_ids: of entry logs; None: any.
            deleted: ids of ledgers whose locations are passed over; an array("q") is taken as it is: ascending,
                each once, and not changed any more.
        """
        # A zero more in each: an address that may be given even for no ids. `deleted` may be millions: no copy.
        self._files = array("Q", [*file_ids, 0])
        self._logs = array("Q", [*sorted(log_ids), 0]) if log_ids is not None else None
        if not isinstance(deleted, array) or deleted.typecode != "q":
            deleted = array("q", sorted(set(deleted)))
        self._deleted = deleted
        self._native: CData = ffi.new("struct fbk_location_scope *")
        self._native.file_ids = ffi.from_buffer("uint64_t[]", self._files)
        self._native.file_count = len(self._files) - 1
        if self._logs is not None:
            self._native.log_ids = ffi.from_buffer("uint64_t[]", self._logs)
            self._native.log_count = len(self._logs) - 1
        self._native.deleted = ffi.from_buffer("int64_t[]", self._deleted)
        self._native.deleted_count = len(deleted)

    @property
    def handle(self) -> CData:
        """The `struct fbk_location_scope *`, for sibling modules in `fastbk.native`; valid as long as this object."""
        return self._native


class Runs:
    """Runs in the order of (log, offset), in native memory: 64 bytes each."""

    def __init__(self, memory: CData, count: int, *, is_all: bool) -> None:
        """Take over what `log_runs` filled in."""
        self._memory = memory
        self._count = count
        self.is_all = is_all
        """False: there are more behind the last one; ask again from there."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Location]:
        for at in range(self._count):
            yield self[at]

    def __getitem__(self, at: int) -> Location:
        if not 0 <= at < self._count:
            raise IndexError(at)
        raw = ffi.buffer(self._memory + at * LOCATION.size, LOCATION.size)
        ledger, first, last, _, log_id, offset, size, count, _ = LOCATION.unpack(raw)
        return Location(ledger, first, last, count, log_id, offset, size)

    @property
    def next_place(self) -> tuple[int, int]:
        """Where to ask on from: (log id, offset) just behind the last run; (0, 0) if there is none."""
        if not self._count:
            return (0, 0)
        last = self[self._count - 1]
        return (last.log_id, last.offset_bytes + 1)

    def handle_from(self, at: int) -> CData:
        """The `struct fbk_location *` of run `at`, for sibling modules; valid as long as this object."""
        run: CData = ffi.cast("struct fbk_location *", self._memory + at * LOCATION.size)
        return run


def log_runs(store: CData, scope: Scope, place: tuple[int, int], runs_max: int) -> Runs:
    """Return the first `runs_max` runs of the scope at or behind `place` (log id, offset). Raises CorruptDataError."""
    memory = ffi.new("uint8_t[]", runs_max * LOCATION.size)
    runs = ffi.cast("struct fbk_location *", memory)
    found = lib.fbk_store_log_runs(store, scope.handle, place[0], place[1], runs, runs_max)
    count = check(found, "look for runs")
    return Runs(memory, count, is_all=count < runs_max)


def log_bytes(store: CData, scope: Scope) -> dict[int, int]:
    """Return log id -> bytes of the runs of the scope in it. Raises CorruptDataError when a file is damaged."""
    return pairs_of(lambda pairs, room: lib.fbk_store_log_bytes(store, scope.handle, pairs, room))


def pairs_of(count: Callable[[CData, int], int]) -> dict[int, int]:
    """Return what `count` fills in, asked again with more room as often as it takes."""
    room = LOGS_MAX_START
    while True:
        pairs = ffi.new("struct fbk_log_bytes[]", room)
        found = count(pairs, room)
        if found != -errno.E2BIG:
            break
        room *= 4
    check(found, "count live bytes")
    return {int(pairs[i].log_id): int(pairs[i].bytes) for i in range(found)}


def count_states(store: CData, file_ids: Iterable[int], deleted_before_s: int) -> tuple[int, int]:
    """Return (ledger states in these files, those of ledgers deleted before that time)."""
    ids = array("Q", file_ids)
    states, forgettable = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    status = lib.fbk_store_count_states(
        store, ffi.from_buffer("uint64_t[]", ids), len(ids), deleted_before_s, states, forgettable
    )
    check(status, "count states")
    return int(states[0]), int(forgettable[0])


class Merge(NativeObject):
    """A merge under way. `end` or `abandon` ends it; one thread."""

    _gone = "this merge has ended"

    def __init__(self, store: CData, options: MergeOptions, scope: Scope) -> None:
        """Open the inputs and make the file. Raises OSError, CorruptDataError when an input is damaged."""
        native = ffi.new("struct fbk_merge_options *")
        fill_struct(native, options)
        super().__init__(
            create(
                lambda error: lib.fbk_merge_begin(store, native, scope.handle, error),
                "begin a merge",
            )
        )
        self._scope = scope

    def step(self, blocks_max: int) -> bool:
        """Merge about so many blocks of 4 KiB; return whether there is more. Raises OSError: then abandon."""
        return check(lib.fbk_merge_step(self.handle, blocks_max), "merge locations") > 0

    def end(self) -> MergeResult:
        """Sync the file and its folder. Raises OSError; ended either way."""
        result = ffi.new("struct fbk_merge_result *")
        merge, self._handle = self.handle, None
        check(lib.fbk_merge_end(merge, result), "end a merge")
        return MergeResult(**ints_of(result, MergeResult))

    def abandon(self) -> None:
        """Give up; what was written is garbage that no manifest names. Harmless when it ended already."""
        self._end(lib.fbk_merge_abandon)


# --- compaction --------------------------------------------------------------------------------------------------
#
# Moving what lives in some entry logs into a new one (`src/store/compact.c`). For the background thread.


DAMAGED_MAX = 4096
"""Ranges of damaged ids that are told one by one."""


class CompactOptions(msgspec.Struct, frozen=True):
    """The new log, and how much is read, sorted and joined at a time: memory of that size."""

    log_id: int
    log_salt: int
    created_s: int
    window_bytes: int


class CompactCounts(msgspec.Struct, frozen=True):
    """What was done so far. `bad_runs`: with at least one damaged entry; `locations`: not written yet."""

    runs_read: int
    runs_written: int
    entries_moved: int
    read_bytes: int
    moved_bytes: int
    bad_runs: int
    bad_entries: int
    locations: int


class Compact(NativeObject):
    """One new log under way: `step` for all runs, `end_log`, `write_locations`, and always `free`. One thread."""

    _gone = "this compaction has ended"

    def __init__(self, store: Store, options: CompactOptions) -> None:
        """Make the log. Raises OSError."""
        native = ffi.new("struct fbk_compact_options *")
        fill_struct(native, options)
        super().__init__(
            create(
                lambda error: lib.fbk_compact_begin(store.handle, native, error),
                "begin a compaction",
            )
        )

    def step(self, runs: Runs, at: int) -> int | None:
        """Read some of the runs from number `at` on, or write some of what was read: about 2 MiB.

        Returns how many were read, None when their log can't be read now: it is to be left out. Raises OSError,
        CorruptDataError when too many are damaged: the compaction is over then.
        """
        taken = ffi.new("uint64_t *")
        status = lib.fbk_compact_step(self.handle, runs.handle_from(at), len(runs) - at, taken)
        return int(taken[0]) if check(status, "move runs") else None

    def write_rest(self) -> bool:
        """Write some of what was read; return whether there may be more. Raises OSError."""
        taken = ffi.new("uint64_t *")
        return check(lib.fbk_compact_step(self.handle, ffi.NULL, 0, taken), "move runs") > 0

    def end_log(self) -> int:
        """Write, pad and sync the log and its folder; return its length. Raises OSError."""
        end = ffi.new("uint64_t *")
        check(lib.fbk_compact_end_log(self.handle, end), "end a compacted log")
        return int(end[0])

    def write_locations(self, file_id: int, generation: int) -> int:
        """Write and sync a locations file for what was moved or found damaged; return its size. Raises OSError."""
        size = ffi.new("uint64_t *")
        status = lib.fbk_compact_write_locations(self.handle, file_id, generation, size)
        check(status, "write the locations of a compacted log")
        return int(size[0])

    @property
    def counts(self) -> CompactCounts:
        """What was done so far."""
        counts = ffi.new("struct fbk_compact_counts *")
        lib.fbk_compact_counts_get(self.handle, counts)
        return CompactCounts(**ints_of(counts, CompactCounts))

    def damaged(self) -> list[tuple[int, int, int]]:
        """Return (ledger, first id, last id) of damage found, DAMAGED_MAX at most; before `write_locations`."""
        ids = ffi.new("int64_t[]", 3 * DAMAGED_MAX)
        count = min(lib.fbk_compact_damaged(self.handle, ids, DAMAGED_MAX), DAMAGED_MAX)
        return [(ids[3 * i], ids[3 * i + 1], ids[3 * i + 2]) for i in range(count)]

    def free(self) -> None:
        """Close and free; what was written and not committed is garbage. Harmless a second time."""
        self._end(lib.fbk_compact_free)
