"""Moving what lives in some entry logs into a new one (`src/store/compact.c`). For the background thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject, check, create, fill_struct, ints_of

if TYPE_CHECKING:
    from fastbk.native.location_pass import Runs
    from fastbk.native.store import Store

DAMAGED_MAX = 4096
"""Ranges of damaged ids that are told one by one."""


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """The new log, and how much is read, sorted and joined at a time: memory of that size."""

    log_id: int
    log_salt: int
    created_s: int
    window_bytes: int


@dataclass(frozen=True, slots=True)
class CompactCounts:
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
