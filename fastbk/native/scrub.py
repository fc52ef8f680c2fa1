"""Reading what is stored past the page cache, to find out whether it still is what was written (`boundary/scrub.h`).

For scrub, the offline check and rebuilding locations. Every call lets go of the interpreter lock; a scan belongs to one
thread at a time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject, check, create, fill_struct, ints_of
from fastbk.native.ledger_state import STATE, LedgerState, pack_state, unpack_state
from fastbk.native.store import LOCATION, Runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.ffi import CData
    from fastbk.native.store import Store

RUNS_A_CALL = 1024
LOST_MAX = 10_000
BAD_RANGES_MAX = 1024
"""Ranges of entries with bad digests that one verification names; more are counted."""


class Run(msgspec.Struct, frozen=True):
    """A run of entries in a log, as its header or a location describes it.

    Attributes:
        lac: found by a scan: the highest LAC in its good entries, -1 = none.
        damaged: entries that fail their checksum; below 0: nothing in it can be trusted, or read.
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    log_id: int
    offset_bytes: int
    size_bytes: int
    entry_count: int
    lac: int = -1
    damaged: int = 0


class DigestScan(msgspec.Struct):
    """What to look at of entries' own digests, and what was found; verifications add to it.

    Attributes:
        types: ledger id -> digest type as on the wire, or the key of an HMAC: CRCs and what has its key can be checked.
        entries: whose digest was computed. bad_entries: of these, those that no reader takes, though their bytes are
            those that came.
        bad: (ledger, first id, last id) of these, within one run each; of one verification 1,024 at most.
    """

    types: Mapping[int, int | bytes]
    entries: int = 0
    bad_entries: int = 0
    bad: list[tuple[int, int, int]] = msgspec.field(default_factory=list)


class RunTable:
    """Runs in native memory, 72 bytes each: for as many as no list of objects could hold."""

    def __init__(self) -> None:
        self._room = 0
        self._runs: CData = ffi.new("struct fbk_scanned_run[]", 1)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _make_room(self, count: int) -> None:
        if self._room - self._count >= count:
            return
        self._room = max(2 * self._room, self._count + 4 * count)
        larger = ffi.new("struct fbk_scanned_run[]", self._room)
        if self._count:
            ffi.memmove(larger, self._runs, self._count * ffi.sizeof("struct fbk_scanned_run"))
        self._runs = larger

    def append(self, run: Run) -> None:
        """Take one run more; one of log 0 stands for damage."""
        self._make_room(1)
        fill_struct(self._runs[self._count], run)
        self._count += 1

    def append_from(self, scan: LogScan) -> bool:
        """Take the next runs of a scan; return whether there may be more."""
        self._make_room(RUNS_A_CALL)
        found = scan.next_into(self._runs + self._count, RUNS_A_CALL)
        self._count += found
        return found > 0

    def since(self, first: int) -> Iterator[Run]:
        """Yield the runs from number `first` on."""
        return (run_of(self._runs[n]) for n in range(first, self._count))

    def clear(self) -> None:
        """Forget the runs, keep the memory."""
        self._count = 0

    def write(
        self,
        store: Store,
        file_id: int,
        generation: int,
        created_s: int,
        states: Iterable[LedgerState] = (),
    ) -> int:
        """Write a locations file of these runs and states, synced; return its size. Sorts the runs. Raises OSError."""
        options = ffi.new("struct fbk_rebuild_options *")
        options.file_id, options.generation, options.created_s = file_id, generation, created_s
        packed = b"".join(map(pack_state, sorted(states, key=lambda state: state.ledger_id)))
        memory = ffi.new("uint8_t[]", packed + b"\0")
        size = ffi.new("uint64_t *")
        status = lib.fbk_locations_rebuild(
            store.handle, options, self._runs, self._count, memory, len(packed) // STATE.size, size
        )
        check(status, "write a locations file")
        return int(size[0])


class LogScanStatus(msgspec.Struct, frozen=True):
    """How a scan stands; see `struct fbk_log_scan_status`."""

    size_bytes: int
    at_bytes: int
    skipped_bytes: int
    unreadable_bytes: int
    read_bytes: int
    header_damaged: bool


class LogScan(NativeObject):
    """Reads one entry log. Close it, or use `with`."""

    _gone = "this scan was closed"

    def __init__(
        self,
        disk: Disk,
        path: str,
        log_id: int,
        incarnation: int,
        *,
        salt: int = 0,
        end_bytes: int = 0,
    ) -> None:
        """Open it.

        Args:
            salt: as the manifest says; 0 = unknown.
            end_bytes: what lies behind does not count; 0 = the whole file.

        Raises OSError, FormatTooNewError.
        """
        options = ffi.new("struct fbk_log_scan_options *")
        options.log_id, options.incarnation = log_id, incarnation
        options.salt, options.end_bytes = salt, end_bytes
        super().__init__(
            create(
                lambda error: lib.fbk_log_scan_open(disk.handle, os.fsencode(path), options, error),
                "read",
                path,
            )
        )
        self._disk = disk
        self._path = path

    def next_into(self, runs: CData, runs_max: int) -> int:
        """Find the next runs; return how many, 0 at the end. For `RunTable`."""
        return check(lib.fbk_log_scan_next(self.handle, runs, runs_max), "scan", self._path)

    def __iter__(self) -> Iterator[Run]:
        """Yield all runs that are found by their own headers."""
        runs = ffi.new("struct fbk_scanned_run[]", RUNS_A_CALL)
        while (count := self.next_into(runs, RUNS_A_CALL)) > 0:
            yield from [run_of(runs[n]) for n in range(count)]

    def verify(self, runs: Sequence[Run], digests: DigestScan | None = None) -> list[Run]:
        """Check runs that locations name, by rising offsets; return those that are not whole, with `damaged` set.

        `digests`: entries' own digests are looked at, too.
        """
        native = ffi.new("struct fbk_scanned_run[]", len(runs) + 1)
        for n, run in enumerate(runs):
            fill_struct(native[n], run)
        found, ranges, keys = ffi.NULL, ffi.NULL, ffi.NULL
        if digests is not None:
            found = ffi.new("struct fbk_digests_found *")
            ranges = ffi.new("struct fbk_id_range[]", BAD_RANGES_MAX)
            keys = _put_digests(native, runs, digests.types)
        bad = lib.fbk_log_scan_verify(
            self.handle, native, len(runs), keys, found, ranges, BAD_RANGES_MAX
        )
        check(bad, "verify", self._path)
        if digests is not None:
            _take_digests(digests, found, ranges)
        return (
            [run_of(native[n]) for n in range(len(runs)) if native[n].damaged != 0] if bad else []
        )

    @property
    def status(self) -> LogScanStatus:
        """How far it is and what it met."""
        raw = ffi.new("struct fbk_log_scan_status *")
        lib.fbk_log_scan_get_status(self.handle, raw)
        numbers = ints_of(raw, LogScanStatus, "header_damaged")
        return LogScanStatus(header_damaged=bool(raw.header_damaged), **numbers)

    def close(self) -> None:
        """Close the file."""
        self._end(lib.fbk_log_scan_close)

    def __enter__(self) -> LogScan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _put_digests(native: CData, runs: Sequence[Run], types: Mapping[int, int | bytes]) -> CData:
    """Say which digest each run's entries have; return the keys, NULL without any."""
    keys: CData = ffi.NULL
    for n, run in enumerate(runs):
        known = types.get(run.ledger_id, lib.FBK_DIGEST_NONE)
        if isinstance(known, bytes):
            if keys == ffi.NULL:
                keys = ffi.new("uint8_t[]", len(runs) * lib.FBK_MAC_KEY_BYTES)
            ffi.memmove(keys + n * lib.FBK_MAC_KEY_BYTES, known, lib.FBK_MAC_KEY_BYTES)
            native[n].digest_type = lib.FBK_DIGEST_HMAC
        elif known != lib.FBK_DIGEST_HMAC:
            native[n].digest_type = known
    return keys


def _take_digests(digests: DigestScan, found: CData, ranges: CData) -> None:
    digests.entries += int(found.entries)
    digests.bad_entries += int(found.bad_entries)
    digests.bad += [
        (int(one.ledger_id), int(one.first_entry_id), int(one.last_entry_id))
        for one in ranges[0 : min(int(found.bad_count), BAD_RANGES_MAX)]
    ]


def run_of(raw: CData) -> Run:
    """Return a `struct fbk_scanned_run` as an object."""
    return Run(**ints_of(raw, Run))


class LocationsFound(msgspec.Struct, frozen=True):
    """What a locations file is like; see `struct fbk_locations_found`.

    `states`: those that are whole. `lost`: ids that a compaction found damaged (the first 10,000 ranges).
    """

    size_bytes: int
    blocks: int
    damaged_blocks: int
    damaged_state_blocks: int
    first_generation: int
    last_generation: int
    header_damaged: bool
    states: tuple[LedgerState, ...] = ()
    lost: tuple[Run, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every byte that counts is the one that was written."""
        return not (self.header_damaged or self.damaged_blocks or self.damaged_state_blocks)


def check_locations(
    disk: Disk, path: str, file_id: int, incarnation: int, *, with_states: bool = False
) -> LocationsFound:
    """Read a locations file through. Raises OSError, FormatTooNewError."""
    raw = ffi.new("struct fbk_locations_found *")
    name = os.fsencode(path)
    memory, room = ffi.NULL, 0
    lost = ffi.new("struct fbk_scanned_run[]", LOST_MAX)
    while True:
        status = lib.fbk_locations_check(
            disk.handle, name, file_id, incarnation, raw, memory, room, lost, LOST_MAX
        )
        check(status, "check", path)
        if not with_states or raw.state_count <= room:
            break
        room = int(raw.state_count)
        memory = ffi.new("uint8_t[]", room * STATE.size)
    packed = bytes(ffi.buffer(memory, int(raw.state_count) * STATE.size)[:]) if room else b""
    states = [packed[at : at + STATE.size] for at in range(0, len(packed), STATE.size)]
    return LocationsFound(
        header_damaged=bool(raw.header_damaged),
        states=tuple(map(unpack_state, states)),
        lost=tuple(run_of(lost[n]) for n in range(min(int(raw.lost_count), LOST_MAX))),
        **ints_of(raw, LocationsFound, "header_damaged", "states", "lost"),
    )


def probe(store: Store, ledger_id: int, entry_id: int) -> int:
    """Return the wire status of a read of that one entry from the disk; any thread."""
    return int(lib.fbk_store_probe(store.handle, ledger_id, entry_id))


def take_damage(store: Store) -> list[Run]:
    """Return the runs that did not read back whole since the last call, whoever wanted them; each once.

    A block of a locations file has ledger -1, and the file's id as log. Any thread.
    """
    room = lib.FBK_DAMAGE_NOTES
    memory = ffi.new("uint8_t[]", room * LOCATION.size)
    runs = ffi.cast("struct fbk_location *", memory)
    count = int(lib.fbk_store_take_damage(store.handle, runs, room))
    found = []
    for one in Runs(memory, count, is_all=True):
        ledger_id, first, last, entry_count, log_id, offset_bytes, size_bytes = one
        found.append(Run(ledger_id, first, last, log_id, offset_bytes, size_bytes, entry_count))
    return found


def unreadable(store: Store, run: Run) -> list[tuple[int, int]]:
    """Return the ranges of a damaged run's ids that are "cannot tell": no other copy of them is whole. Any thread.

    Raises NativeFullError when the read cache has no room now.
    """
    found: list[tuple[int, int]] = []
    for entry_id in range(run.first_entry_id, run.last_entry_id + 1):
        status = probe(store, run.ledger_id, entry_id)
        if status == lib.FBK_S_TOO_MANY_REQUESTS:
            check(lib.FBK_E_FULL, "look for another copy")
        if status != lib.FBK_S_CANNOT_TELL:
            continue
        if found and found[-1][1] + 1 == entry_id:
            found[-1] = found[-1][0], entry_id
        else:
            found.append((entry_id, entry_id))
    return found


def list_now(
    store: Store, ledger_id: int, first: int, count_max: int = 1024
) -> tuple[list[tuple[int, int]], int] | None:
    """Return ranges of a ledger's ids on disk from `first` on, and where the next call goes on (-1: all is known).

    None when that can't be told, or not now. Any thread.
    """
    ranges = ffi.new("int64_t[]", 2 * count_max)
    count, go_on = ffi.new("uint32_t *"), ffi.new("int64_t *")
    status = lib.fbk_store_list_now(store.handle, ledger_id, first, ranges, count_max, count, go_on)
    if status != lib.FBK_S_OK:
        return None
    return [(int(ranges[2 * n]), int(ranges[2 * n + 1])) for n in range(count[0])], int(go_on[0])
