"""The journal's steps as typed Python: the data path of the journal process, many batches a call."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import (
    NativeObject,
    PoisonedError,
    check,
    create,
    error_of,
    fill_struct,
    ints_of,
)
from fastbk.native.segment import NO_HEADER_KEY, put_header_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.ffi import CData


PUBLISHED = lib.FBK_JOURNAL_PUBLISHED
BELL = lib.FBK_JOURNAL_BELL
ROLL = lib.FBK_JOURNAL_ROLL
NEARLY_FULL = lib.FBK_JOURNAL_NEARLY_FULL

LIMIT_OPEN = lib.FBK_JOURNAL_OPEN
LIMIT_NO_ADDS = lib.FBK_JOURNAL_NO_ADDS
LIMIT_NO_WRITES = lib.FBK_JOURNAL_NO_WRITES

RUN_BYTES_MIN = 32 * 1024
DELAY_MS_MAX = lib.FBK_JOURNAL_DELAY_MS_MAX


POISONS = {
    lib.FBK_POISON_RING: "a record in the ring of worker {worker} at {position} is none a worker writes",
    lib.FBK_POISON_CURSOR: "a cursor of process {worker} says {position}, which can't be",
    lib.FBK_POISON_WRITE: "a write to journal file {file_id} at {position} failed: {reason}",
}


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `Journal` needs; descriptors stay the caller's. Sizes in bytes.

    Attributes:
        worker_segment_fds, worker_bell_fds: by worker. bell_fd: the journal's own, blocking.
        record_bytes_max: a batch holds at least one record of up to so much.
        depth: batches in flight, at most the disk's `depth_max`. block_size_bytes: the disk's.
        quantum_bytes: taken from one ring before the next one's turn.
        run_bytes_min: what a ledger has to bring in one batch to be written as runs. Smaller pieces are worse to read
            than what a flush has sorted: pieces of 32 KiB read like a sequential file with four readers.
        predecessor_...: where replay ended; all 0 in a new bookie.
        unconfirmed_ledgers_max: 0: no bound of their own.
        unsynced: batches are acknowledged once they are written, durable or not.
        header_key: random, as the index has it and no worker.
        settings: [bookie], [limits] and [journal], or others with their names: C takes the rest out of them.
    """

    epoch: int
    segment_fd: int
    index_segment_fd: int
    worker_segment_fds: Sequence[int]
    bell_fd: int
    index_bell_fd: int
    worker_bell_fds: Sequence[int]
    bookie_id: str
    incarnation: int
    record_bytes_max: int
    depth: int
    block_size_bytes: int
    settings: Sequence[object]
    predecessor_file_id: int = 0
    predecessor_sequence: int = 0
    predecessor_crc: int = 0
    next_record_sequence: int = 0
    quantum_bytes: int = 64 * 1024
    run_bytes_min: int = RUN_BYTES_MIN
    unconfirmed_ledgers_max: int = 0
    pair: int = 0
    unsynced: bool = False
    header_key: bytes = NO_HEADER_KEY


class JournalStatus(msgspec.Struct, frozen=True):
    """A look at the journal between two steps; see `struct fbk_journal_status`."""

    file_id: int
    offset_bytes: int
    file_size_bytes: int
    sequence: int
    published_sequence: int
    next_record_sequence: int
    journal_bytes: int
    taken_bytes: int
    grouped_bytes: int
    loose_bytes: int
    mark_sequence: int
    waiting_bytes: int
    ledgers: int
    last_crc: int
    in_flight: int
    limit: int
    adopts: int


class LateLedger(msgspec.Struct, frozen=True):
    """A ledger whose first add here was not its entry 0."""

    ledger_id: int
    entry_id: int
    is_recovery: bool


class Journal(NativeObject):
    """Takes records out of the rings and commits them. To be used by one thread."""

    _gone = "this journal was destroyed"

    def __init__(self, disk: Disk, options: JournalOptions) -> None:
        """Map all segments. Raises OSError, LayoutError (a segment of another build or epoch)."""
        worker_count = len(options.worker_segment_fds)
        if len(options.worker_bell_fds) != worker_count:
            raise ValueError("one bell for each worker's segment")
        if not 1 <= worker_count <= lib.FBK_JOURNAL_WORKERS_MAX:
            raise ValueError(f"{worker_count} workers: must be 1..{lib.FBK_JOURNAL_WORKERS_MAX}")
        c_options = ffi.new("struct fbk_journal_options *")
        arrays = ("worker_segment_fds", "worker_bell_fds", "bookie_id", "header_key")
        by_hand = (*arrays, "worker_count", "settings")
        fill_struct(c_options, options, *by_hand, settings=options.settings)
        c_options.worker_count = worker_count
        for worker, fd in enumerate(options.worker_segment_fds):
            c_options.worker_segment_fds[worker] = fd
            c_options.worker_bell_fds[worker] = options.worker_bell_fds[worker]
        bookie_id = options.bookie_id.encode()
        if len(bookie_id) >= 128:
            raise ValueError("the bookie's id is longer than 127 bytes")
        put_header_key(c_options, options.header_key)
        ffi.memmove(c_options.bookie_id, bookie_id, len(bookie_id))
        super().__init__(
            create(
                lambda error: lib.fbk_journal_create(disk.handle, c_options, error),
                "start the journal",
            )
        )
        self._disk = disk  # C keeps its handle
        self._status = ffi.new("struct fbk_journal_status *")
        self._late = ffi.new("struct fbk_late_ledger[]", lib.FBK_LATE_LEDGERS_MAX)

    def load_states(self, states_fd: int, count: int) -> None:
        """Take `count` ledger states out of a memory file, before the first step.

        Raises CorruptDataError, NativeFullError (more than ledgers_max).
        """
        check(lib.fbk_journal_load_states(self.handle, states_fd, count), "load ledger states")

    def roll(
        self, file: int, file_id: int, salt: int, size_bytes: int, *, adopts: bool = False
    ) -> tuple[int | None, int]:
        """Close the current file, if there is one, and go on in this one.

        `adopts`: what one ledger brings in one batch is written as runs, and the file may stay as a log. Waits for the
        disk. Returns the file handle left behind (None: there was none) and the last batch in
        it. Raises BlockingIOError while a consumer is so far behind that the closing batch can't be published
        (try again), PoisonedError.
        """
        c_file = ffi.new("struct fbk_journal_file *")
        c_file.file, c_file.file_id, c_file.salt = file, file_id, salt
        c_file.size_bytes, c_file.adopts = size_bytes, adopts
        closed_sequence = ffi.new("uint64_t *")
        left = lib.fbk_journal_roll(self.handle, c_file, closed_sequence)
        if left < -1:
            raise self._error(left, "go on in the next journal file")
        # -1 is also -EPERM, which this call never returns.
        return (None if left == -1 else left), int(closed_sequence[0])

    def step(self, timeout_ms: int) -> int:
        """Wait, complete, publish, take, submit; return what happened, or-ed of PUBLISHED, BELL, ROLL,
        NEARLY_FULL; 0 when only the time passed. Raises PoisonedError: exit, publish nothing more.
        """
        reasons = lib.fbk_journal_step(self.handle, timeout_ms)
        if reasons < 0:
            raise self._error(reasons, "journal")
        return reasons

    def close(self) -> bool:
        """Write the closing batch of a clean stop. False: records wait in a ring, step on first."""
        result = lib.fbk_journal_close(self.handle)
        if result == -errno.EAGAIN:
            return False
        if result < 0:
            raise self._error(result, "close the journal")
        return True

    def set_limit(self, limit: int) -> None:
        """Refuse normal adds (LIMIT_NO_ADDS), or all that has to be written (LIMIT_NO_WRITES), or nothing."""
        lib.fbk_journal_set_limit(self.handle, limit)

    def delay(self, delay_ms: int) -> None:
        """Have each batch from now on count as durable `delay_ms` after its submission, at the earliest; 0: no more.

        For tests of slow disks. Raises OSError for less than 0 and more than DELAY_MS_MAX.
        """
        check(lib.fbk_journal_delay(self.handle, delay_ms), "delay the journal's commits")

    def note_files(
        self, behind_bytes: int, recycled: int, made: int, allocated: int, written_bytes: int
    ) -> None:
        """Put what only Python knows into the counters."""
        lib.fbk_journal_note_files(
            self.handle, behind_bytes, recycled, made, allocated, written_bytes
        )

    def request_roll(self) -> None:
        """Take nothing more into the current file: a step says ROLL once what is under way is durable."""
        lib.fbk_journal_request_roll(self.handle)

    def note_adoption(self, free_bytes: int, kept_bytes: int, reason: int) -> None:
        """Put into the gauges what the pool has, and why the current file does not adopt."""
        lib.fbk_journal_note_adoption(self.handle, free_bytes, kept_bytes, reason)

    def note_ready(self, files: int, took_s: float) -> None:
        """Put into the counters how many files were ready so far, and how long it took until they were."""
        lib.fbk_journal_note_ready(self.handle, files, round(took_s * 1e6))

    def take_late(self) -> tuple[list[LateLedger], int]:
        """Return the ledgers that began here behind their first entry, some since the last call; and how many more."""
        others = ffi.new("uint64_t *")
        count = lib.fbk_journal_take_late(self.handle, self._late, others)
        found = [
            LateLedger(int(one.ledger_id), int(one.entry_id), bool(one.recovery))
            for one in self._late[0:count]
        ]
        return found, int(others[0])

    @property
    def status(self) -> JournalStatus:
        """How things stand."""
        return JournalStatus(**ints_of(self._raw_status(), JournalStatus))

    @property
    def mark_sequence(self) -> int:
        """The index's log mark: batches up to it are in finished flushes."""
        return int(self._raw_status().mark_sequence)

    def destroy(self) -> None:
        """Unmap everything. Writes under way finish by themselves; nobody hears of them."""
        self._end(lib.fbk_journal_destroy)

    def _raw_status(self) -> CData:
        lib.fbk_journal_get_status(self.handle, self._status)
        status: CData = self._status
        return status

    def _error(self, result: int, what: str) -> Exception:
        raw = self._raw_status()
        if result != lib.FBK_E_POISONED or raw.poison not in POISONS:
            return error_of(result, what)
        reason = error_of(raw.error, "write") if raw.error else ""
        return PoisonedError(
            POISONS[raw.poison].format(
                worker=raw.worker, position=raw.position, file_id=raw.file_id, reason=reason
            )
        )


CALM, HURRIES = lib.FBK_PREWRITE_CALM, lib.FBK_PREWRITE_HURRIES
ALLOCATES, WAITS = lib.FBK_PREWRITE_ALLOCATES, lib.FBK_PREWRITE_WAITS


class Prewrite(NativeObject):
    """A thread in C that makes the next file: renames an old one, or writes zeros, in pieces, at idle priority."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        path: str,
        size_bytes: int,
        *,
        old_path: str | None = None,
        haste: int = CALM,
        piece_bytes: int = 512 * 1024,
        pause_us: int = 1000,
    ) -> None:
        """Start; `path` must not be there yet. Raises OSError when there is no thread to be had.

        Args:
            size_bytes: of the file.
            old_path: renamed to `path`; None: a new file.
            haste: CALM: write zeros, with pauses; HURRIES: without; ALLOCATES: none, what is left is only allocated;
                WAITS: nothing for now.
            piece_bytes: an add that comes meanwhile waits for so much; pause_us: between two of them.
        """
        old = ffi.NULL if old_path is None else os.fsencode(old_path)
        names = os.fsencode(directory), os.fsencode(path), old
        super().__init__(
            create(
                lambda error: lib.fbk_prewrite_start(
                    disk.handle, *names, size_bytes, piece_bytes, pause_us, haste, error
                ),
                "start writing a journal file ahead",
            )
        )
        self.path = path
        self.size_bytes = size_bytes
        self.written_bytes = 0
        """Once it is done: blocks behind this may be without zeros."""
        self.is_renaming = False
        """Once it failed: whether the old name may be gone."""
        self._disk = disk

    def is_done(self) -> bool:
        """Return whether the file is there. Raises OSError when that failed."""
        if self._handle is None:
            return True
        state = lib.fbk_prewrite_state(self._handle)
        if state == -errno.EINPROGRESS:
            return False
        self.written_bytes = int(lib.fbk_prewrite_written_bytes(self._handle))
        self.is_renaming = bool(lib.fbk_prewrite_is_renaming(self._handle))
        self.end()
        check(state, "write a journal file ahead", self.path)
        return True

    def set_haste(self, haste: int) -> None:
        """Go on in this way from now on; see the constructor."""
        if self._handle is not None:
            lib.fbk_prewrite_hurry(self._handle, haste)

    def end(self) -> None:
        """Wait for the thread."""
        self._end(lib.fbk_prewrite_end)


# --- reading journal files ---------------------------------------------------------------------------------------
#
# Reading journal files back, as typed Python. What lies in one: `fastbk/storage/README.md`.


RECORD_HEADER_BYTES = 96
BATCH_HEADER_BYTES = 88
HEADER_BLOCKS = 2
NO_END = (1 << 64) - 1
"""`end_sequence` of a file without a successor."""

HEADER_STATES = {
    lib.FBK_HEADER_VALID: "valid",
    lib.FBK_HEADER_UNUSED: "unused",
    lib.FBK_HEADER_DAMAGED: "damaged",
}
END_KINDS = {
    lib.FBK_END_NONE: "none",
    lib.FBK_END_CLOSING: "closing",
    lib.FBK_END_SUCCESSOR: "successor",
    lib.FBK_END_TAIL: "tail",
    lib.FBK_END_DAMAGE: "damage",
}


class JournalHeader(msgspec.Struct, frozen=True):
    """What the header blocks of a journal file say.

    Attributes:
        state: "valid"; "unused": no header was ever written; "damaged": one was, and can't be read.
            The other fields, but size_bytes, count only when it is "valid".
        size_bytes: the file's length on disk.
        predecessor_sequence: the last batch that counts before this file's first.
    """

    state: str
    size_bytes: int
    block_size_bytes: int
    file_id: int
    salt: int
    incarnation: int
    file_size_bytes: int
    predecessor_file_id: int
    predecessor_sequence: int
    predecessor_crc: int
    first_sequence: int
    first_record_sequence: int
    created_s: int
    pair: int
    adopts: bool
    bookie_id: str


def read_header(disk: Disk, path: str, *, lock: bool = False) -> JournalHeader:
    """Read and check the header of a journal file.

    Args:
        lock: wait until no dead writer's last request can still change the file; TimeoutError.

    Raises OSError, FormatTooNewError.
    """
    raw = ffi.new("struct fbk_journal_header *")
    result = lib.fbk_journal_read_header(disk.handle, os.fsencode(path), int(lock), raw)
    check(result, "read the header of", path)
    name = bytes(ffi.buffer(raw.bookie_id, 128)[:]).rstrip(b"\0")
    return JournalHeader(
        state=HEADER_STATES[raw.state],
        bookie_id=name.decode(errors="replace"),
        adopts=bool(raw.adopts),
        **ints_of(raw, JournalHeader, "state", "bookie_id", "adopts"),
    )


def encode_header(header: JournalHeader) -> bytes:
    """Return the header blocks of a file that has no batches yet, as `header` says; `state` counts for nothing."""
    raw = ffi.new("struct fbk_journal_header *")
    fill_struct(raw, header, "state", "bookie_id", "adopts")
    raw.adopts = header.adopts
    ffi.memmove(raw.bookie_id, header.bookie_id.encode(), len(header.bookie_id.encode()))
    size_bytes = HEADER_BLOCKS * header.block_size_bytes
    out = ffi.new("uint8_t[]", size_bytes)
    lib.fbk_journal_encode_header(raw, out, size_bytes)
    return bytes(ffi.buffer(out)[:])


class JournalRecord(msgspec.Struct, frozen=True):
    """One record of a batch, as Python objects: for tools and tests."""

    kind: int
    flags: int
    digest_type: int
    entry_count: int
    ledger_id: int
    entry_id: int
    sequence: int
    request_id: int
    master_key: bytes
    payload: bytes


class JournalBatch(msgspec.Struct, frozen=True):
    """One batch; `content` are its records, one behind the other."""

    file_id: int
    offset_bytes: int
    sequence: int
    acked_through: int
    first_record_sequence: int
    written_s: int
    record_count: int
    padded_bytes: int
    header_crc: int
    is_closing: bool
    content: bytes

    def records(self) -> Iterator[JournalRecord]:
        """Split `content`."""
        view = self.content
        at = 0
        while at < len(view):
            size, payload_bytes = _u32(view, at), _u32(view, at + 4)
            yield JournalRecord(
                kind=view[at + 8],
                digest_type=view[at + 9],
                flags=int.from_bytes(view[at + 10 : at + 12], "little"),
                entry_count=_u32(view, at + 12),
                ledger_id=_i64(view, at + 16),
                entry_id=_i64(view, at + 24),
                sequence=_i64(view, at + 32),
                request_id=_i64(view, at + 40) & NO_END,
                master_key=view[at + 56 : at + 76],
                payload=view[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + payload_bytes],
            )
            at += size


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _i64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little", signed=True)


class JournalEnd(msgspec.Struct, frozen=True):
    """Where a file's batches end and why; see `struct fbk_journal_end`.

    Attributes:
        kind: "none" (not read to the end), "closing", "successor", "tail" or "damage".
    """

    kind: str
    last_crc: int
    last_sequence: int
    next_record_sequence: int
    end_bytes: int
    batches: int
    records: int
    bytes: int
    later_sequence: int
    later_acked_through: int
    read_error: int
    passed_damage: int


class JournalScan(NativeObject):
    """Reads the batches of one file in order. Iterate, then look at `end`; close it, or use `with`."""

    _gone = "this scan was closed"

    def __init__(
        self,
        disk: Disk,
        path: str,
        file_id: int,
        incarnation: int,
        *,
        mark_sequence: int = 0,
        mark_offset_bytes: int = 0,
        end_sequence: int = NO_END,
        lock: bool = False,
    ) -> None:
        """Open the file.

        Args:
            file_id, incarnation: what its header has to carry.
            mark_sequence: batches up to here are passed over.
            mark_offset_bytes: where that batch is: if it is there, nothing before it is read; 0: unknown.
            end_sequence: the last batch that counts, as the successor's header says (INV-J4).
            lock: hold the file's lock until `close`.

        Raises OSError, CorruptDataError (no such header), FormatTooNewError.
        """
        expectation = ffi.new("struct fbk_journal_expectation *")
        expectation.file_id = file_id
        expectation.incarnation = incarnation
        expectation.mark_sequence = mark_sequence
        expectation.mark_offset_bytes = mark_offset_bytes
        expectation.end_sequence = end_sequence
        super().__init__(
            create(
                lambda error: lib.fbk_journal_scan_open(
                    disk.handle, os.fsencode(path), int(lock), expectation, error
                ),
                "read",
                path,
            )
        )
        self._disk = disk
        self._path = path
        self._batch = ffi.new("struct fbk_journal_batch *")

    def __iter__(self) -> Iterator[JournalBatch]:
        while True:
            result = lib.fbk_journal_scan_next(self.handle, self._batch)
            if check(result, "read", self._path) == 0:
                return
            raw = self._batch
            yield JournalBatch(
                **ints_of(raw, JournalBatch, "is_closing", "content"),
                is_closing=bool(raw.flags & 1),
                content=bytes(ffi.buffer(raw.records, raw.records_bytes)[:]),
            )

    @property
    def end(self) -> JournalEnd:
        """Where the file ends, as far as it was read."""
        raw = ffi.new("struct fbk_journal_end *")
        lib.fbk_journal_scan_end(self.handle, raw)
        return JournalEnd(kind=END_KINDS[raw.kind], **ints_of(raw, JournalEnd, "kind"))

    def close(self) -> None:
        """Close the file and give its lock up."""
        self._end(lib.fbk_journal_scan_close)

    def __enter__(self) -> JournalScan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
