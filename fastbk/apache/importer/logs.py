"""Reads the journals and entry logs of an Apache bookie. All numbers are big-endian.

A journal file, formats 5 and 6:

    "BKLG" | version i32 | zeros up to 512, then records: size i32 | ledger i64 | entry i64 | ...

Records of entries are the entries themselves; others have negative entry ids. A size of -0x100
begins padding: its length i32 and as many bytes. Zeros, or the end of the file, end what was
written; in a file that was used twice (`journalReuseFiles`) they do not, and what comes behind is
whole entries of the past and damage.

An entry log, by either of its two writers:

    "BKLO" | version i32 | offset of the ledgers' map i64 | ledgers in it i32 | zeros up to 1024, then records:
    size i32 | ledger i64 | entry i64 | ...

A record of ledger -1 is a part of the map, which says how many bytes of which ledger are in the
log; logs that were not closed have none. The writer with direct I/O fills its blocks of 4096 bytes
up with 0xf0. Zeros are space that was allocated and not written.
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

    from fastbk.apache.importer.records import LedgerTable, Record, Report
    from fastbk.inspect.items import FileReader

JOURNAL_MAGIC = b"BKLG"
JOURNAL_HEADER_BYTES = 512
JOURNAL_VERSIONS = (5, 6)
PADDING = -0x100
MASTER_KEY, FENCE, FORCE, EXPLICIT_LAC = -0x1000, -0x2000, -0x4000, -0x8000
"""Entry ids of records that are no entries: length and key; nothing; nothing; length and body."""


def read_journal(
    source: FileReader, from_bytes: int, known: LedgerTable, report: Report
) -> Iterator[Record]:
    """Yield the records of a journal file in order, those that are no entries included.

    Behind a length that makes no sense reading goes on at the next record with an entry that is certainly whole; what
    lies between is reported, and so is what lies at the end and is not whole.

    Args:
        source: the file.
        from_bytes: where the bookie's mark says that replay begins; 0 for the beginning.
        known: the ledgers, which say whether bytes are an entry.
        report: told of damage.

    A damaged header is reported, and the records behind it are read. Raises StorageError: a format that is not known.
    """
    header = source.read(0, len(JOURNAL_MAGIC) + LENGTH.size)
    if len(header) < len(JOURNAL_MAGIC) + LENGTH.size or not any(header):
        # Made, and not written to before the bookie ended.
        if any(source.read(0, JOURNAL_HEADER_BYTES)):
            report(Damage(source.path, 0, source.size_bytes, "the header is cut short", True))
        return
    (version,) = LENGTH.unpack_from(header, len(JOURNAL_MAGIC))
    if header[: len(JOURNAL_MAGIC)] != JOURNAL_MAGIC:
        size_bytes = min(JOURNAL_HEADER_BYTES, source.size_bytes)
        report(Damage(source.path, 0, size_bytes, "no header of a journal"))
    elif version not in JOURNAL_VERSIONS:
        versions = " and ".join(map(str, JOURNAL_VERSIONS))
        raise StorageError(f"{source.path} is a journal of format {version}, {versions} are known")
    resync = Resync(source, known, report)
    at, before = max(from_bytes, JOURNAL_HEADER_BYTES), -1
    while (head := source.read(at, LENGTH.size)) and len(head) == LENGTH.size:
        (size_bytes,) = LENGTH.unpack(head)
        body_at = at + LENGTH.size
        if size_bytes == 0 and is_empty_from(source, at):
            return
        if size_bytes == PADDING:
            padding = source.read(body_at, LENGTH.size)
            size_bytes = LENGTH.unpack(padding)[0] if len(padding) == LENGTH.size else -1
            if 0 <= size_bytes <= source.size_bytes - body_at - LENGTH.size:
                before, at = -1, body_at + LENGTH.size + size_bytes
                continue
            reason = "padding of an impossible length"
        elif not IDS.size <= size_bytes <= RECORD_BYTES_MAX:
            reason = f"a record of {size_bytes} bytes"
        elif size_bytes > source.size_bytes - body_at:
            reason = (
                f"a record of {size_bytes} bytes, of which {source.size_bytes - body_at} are there"
            )
        else:
            raw = source.read(body_at, size_bytes)
            yield (*IDS.unpack_from(raw), raw, body_at)
            before, at = at, body_at + size_bytes
            continue
        at, before = resync.pass_over(at, before, reason), -1


ENTRY_LOG_MAGIC = b"BKLO"
ENTRY_LOG_HEADER_BYTES = 1024
ENTRY_LOG_VERSIONS = (0, 1)
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
    if len(header) == _HEADER.size and header[: len(ENTRY_LOG_MAGIC)] == ENTRY_LOG_MAGIC:
        _, version, _, _ = _HEADER.unpack(header)
        if version not in ENTRY_LOG_VERSIONS:
            raise StorageError(
                f"{source.path} is an entry log of version {version}, {ENTRY_LOG_VERSIONS[-1]} is known"
            )
    elif any(header):
        report(
            Damage(
                source.path,
                0,
                min(ENTRY_LOG_HEADER_BYTES, source.size_bytes),
                "no header of an entry log",
            )
        )
    resync = Resync(source, known, report)
    at, before = ENTRY_LOG_HEADER_BYTES, -1
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
