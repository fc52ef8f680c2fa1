"""Reading journal files back, as typed Python. What lies in one: `fastbk/storage/README.md`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject, check, create, ints_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.native.disk import Disk

RECORD_HEADER_BYTES = 96
BATCH_HEADER_BYTES = 88
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


@dataclass(frozen=True)
class JournalHeader:
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
        **ints_of(raw, JournalHeader, "state", "bookie_id"),
    )


@dataclass(frozen=True)
class JournalRecord:
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


@dataclass(frozen=True)
class JournalBatch:
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


@dataclass(frozen=True)
class JournalEnd:
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
        end_sequence: int = NO_END,
        lock: bool = False,
    ) -> None:
        """Open the file.

        Args:
            file_id, incarnation: what its header has to carry.
            mark_sequence: batches up to here are passed over.
            end_sequence: the last batch that counts, as the successor's header says (INV-J4).
            lock: hold the file's lock until `close`.

        Raises OSError, CorruptDataError (no such header), FormatTooNewError.
        """
        expectation = ffi.new("struct fbk_journal_expectation *")
        expectation.file_id = file_id
        expectation.incarnation = incarnation
        expectation.mark_sequence = mark_sequence
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
