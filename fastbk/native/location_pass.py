"""Passes over all locations of some files: live bytes, the runs of a log in order, merges (`src/store/store.h`).

For the background thread, or anyone at rest. Every call lets go of the interpreter lock.
"""

from __future__ import annotations

import errno
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject, check, create, fill_struct, ints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastbk.native.cdata import CData

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


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What a merge makes. `forget_deleted_before_s`: wall clock; 0 unless no older file stays outside the merge."""

    merged_file_id: int
    created_s: int
    forget_deleted_before_s: int = 0


@dataclass(frozen=True, slots=True)
class MergeResult:
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
