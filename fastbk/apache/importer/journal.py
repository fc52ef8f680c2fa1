"""Reads one file of an Apache bookie's journal, formats 5 and 6.

    "BKLG" | version i32 | zeros up to 512, then records: size i32 | ledger i64 | entry i64 | ...

Records of entries are the entries themselves; others have negative entry ids. A size of -0x100 begins padding: its
length i32 and as many bytes. Zeros, or the end of the file, end what was written; in a file that was used twice
(`journalReuseFiles`) they do not, and what comes behind is whole entries of the past and damage. All
numbers are big-endian.
"""

from __future__ import annotations

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

MAGIC = b"BKLG"
HEADER_BYTES = 512
VERSIONS = (5, 6)
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
    header = source.read(0, len(MAGIC) + LENGTH.size)
    if len(header) < len(MAGIC) + LENGTH.size or not any(header):
        # Made, and not written to before the bookie ended.
        if any(source.read(0, HEADER_BYTES)):
            report(Damage(source.path, 0, source.size_bytes, "the header is cut short", True))
        return
    (version,) = LENGTH.unpack_from(header, len(MAGIC))
    if header[: len(MAGIC)] != MAGIC:
        size_bytes = min(HEADER_BYTES, source.size_bytes)
        report(Damage(source.path, 0, size_bytes, "no header of a journal"))
    elif version not in VERSIONS:
        versions = " and ".join(map(str, VERSIONS))
        raise StorageError(f"{source.path} is a journal of format {version}, {versions} are known")
    resync = Resync(source, known, report)
    at, before = max(from_bytes, HEADER_BYTES), -1
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
