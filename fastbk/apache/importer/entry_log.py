"""Reads one entry log of an Apache bookie, by either of its two writers.

    "BKLO" | version i32 | offset of the ledgers' map i64 | ledgers in it i32 | zeros up to 1024, then records:
    size i32 | ledger i64 | entry i64 | ...

A record of ledger -1 is a part of the map, which says how many bytes of which ledger are in the log; logs that were not
closed have none. The writer with direct I/O fills its blocks of 4096 bytes up with 0xf0. Zeros are space that was
allocated and not written. Numbers are big-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastbk.apache.importer.records import (
    IDS,
    LENGTH,
    RECORD_BYTES_MAX,
    Damage,
    Resync,
    is_empty_from,
)
from fastbk.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.apache.importer.ledger_table import LedgerTable
    from fastbk.apache.importer.records import Record, Report
    from fastbk.inspect.file_reader import FileReader

MAGIC = b"BKLO"
HEADER_BYTES = 1024
VERSIONS = (0, 1)
MAP_LEDGER = -1
_HEADER = struct.Struct(">4siqi")
_BLOCK_BYTES = 4096
_FILLER = b"\xf0"


def read_entry_log(source: FileReader, known: LedgerTable, report: Report) -> Iterator[Record]:
    """Yield the entries of an entry log in the order in which they were written.

    Entries are not checked, but for those that come first behind damage: reading goes on there with one that is
    certainly whole. A damaged header is reported, and the records behind it are read.

    Args:
        source: the file.
        known: the ledgers, which say whether bytes are an entry.
        report: told of damage; at the end of a log that was not closed it is what a crash leaves.

    Raises StorageError: a format that is not known.
    """
    header = source.read(0, _HEADER.size)
    if len(header) == _HEADER.size and header[: len(MAGIC)] == MAGIC:
        _, version, _, _ = _HEADER.unpack(header)
        if version not in VERSIONS:
            raise StorageError(
                f"{source.path} is an entry log of version {version}, {VERSIONS[-1]} is known"
            )
    elif any(header):
        report(
            Damage(
                source.path, 0, min(HEADER_BYTES, source.size_bytes), "no header of an entry log"
            )
        )
    resync = Resync(source, known, report)
    at, before = HEADER_BYTES, -1
    while (head := source.read(at, LENGTH.size)) and len(head) == LENGTH.size:
        (size_bytes,) = LENGTH.unpack(head)
        body_at = at + LENGTH.size
        if size_bytes < 0 and _is_filled(source, at):
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        if size_bytes == 0 and is_empty_from(source, at):
            return
        if not IDS.size <= size_bytes <= RECORD_BYTES_MAX:
            reason = f"a record of {size_bytes} bytes"
        elif size_bytes > source.size_bytes - body_at:
            reason = (
                f"a record of {size_bytes} bytes, of which {source.size_bytes - body_at} are there"
            )
        else:
            raw = source.read(body_at, size_bytes)
            ledger_id, entry_id = IDS.unpack_from(raw)
            if ledger_id >= 0 and entry_id >= 0:
                yield ledger_id, entry_id, raw, body_at
            if ledger_id >= MAP_LEDGER:
                before, at = at, body_at + size_bytes
                continue
            reason = f"a record of ledger {ledger_id}"
        at, before = resync.pass_over(at, before, reason), -1


def _is_filled(source: FileReader, at: int) -> bool:
    """Return whether nothing but filler lies between here and the end of the block."""
    size_bytes = _BLOCK_BYTES - at % _BLOCK_BYTES
    return source.read(at, size_bytes) == _FILLER * size_bytes
