"""One flush: sorted entries and ledger states on their way into entry log and locations file (`src/store/flush.c`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject, check, create, fill_struct, ints_of
from fastbk.native.hashes import crc32c
from fastbk.native.ledger_state import STATE, LedgerState, pack_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.cdata import CData


@dataclass(frozen=True, slots=True)
class FlushOptions:
    """Where one flush goes; `log_offset_bytes` 0 makes a new log."""

    log_id: int
    log_offset_bytes: int
    log_salt: int
    locations_file_id: int
    generation: int
    created_s: int


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What a finished flush put on disk, all of it synced. `log_end_bytes`: the log's durable length."""

    log_end_bytes: int
    run_bytes: int
    location_count: int
    file_size_bytes: int


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
    def is_empty(self) -> bool:
        """Whether there are neither entries nor states."""
        return not self.has_entries and not self.handle.state_count


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
