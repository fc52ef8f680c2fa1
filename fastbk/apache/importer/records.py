"""What the readers of Apache's files have in common: records, damage, and the next whole record behind damage.

Apache's journals and entry logs have no checksums of their own. What can be checked is an entry's digest, by whoever
knows its ledger's metadata; that is how a reader finds its way again behind a length that makes no sense.

What lies in such a file may be forged: clients choose the bytes of entries. So the work of finding the way again is
linear in the size of the file, whatever is in it (`Resync`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.model.entry import HEADER_BYTES
from fastbk.units import MIB

if TYPE_CHECKING:
    from fastbk.apache.importer.ledger_table import LedgerTable
    from fastbk.inspect.file_reader import FileReader

RECORD_BYTES_MAX = 64 * MIB
"""A length above it is taken for damage: Apache's bookies take frames of 5 MiB unless told otherwise."""
LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")
_WINDOW_BYTES_MIN, _WINDOW_BYTES_MAX = 256, 1 * MIB
_ALLOWANCE_BYTES = 128 * MIB
_ALLOWANCE_A_BYTE = 8
_NOT_ZERO = re.compile(rb"[^\0]")

Record = tuple[int, int, bytes, int]
"""Ledger, entry, all bytes from the ledger's id on, and where in the file they begin."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a file that say nothing.

    Attributes:
        path: of the file.
        offset_bytes, size_bytes: where, and how much was passed over.
        reason: for people.
        is_tail: nothing whole follows in this file: a write that was cut off looks so, too.
    """

    path: str
    offset_bytes: int
    size_bytes: int
    reason: str
    is_tail: bool = False

    def __str__(self) -> str:
        return f"{self.path} at {self.offset_bytes}: {self.reason}; {self.size_bytes} bytes are passed over"


Report = Callable[[Damage], None]


class Resync:
    """Finds the next whole record of one file behind damage.

    Candidates are checked, and lengths are taken back, only within an allowance that grows with the bytes that were
    passed: 8 bytes a byte, and 128 MiB. Beyond it a candidate counts as none.
    """

    def __init__(self, source: FileReader, known: LedgerTable, report: Report) -> None:
        """`report`: told of damage."""
        self._source = source
        self._known = known
        self._report = report
        self._reached = 0
        self._spent = 0

    def pass_over(self, at: int, before: int, reason: str) -> int:
        """Report damage and return where reading goes on: at the next whole entry, or the end of the file.

        Args:
            at: where a record should begin and none does.
            before: where the record before it begins, -1 for none: if that is no whole entry, its length may be what
                is damaged, and the next one lies within it.
            reason: for people.
        """
        start = at
        if before >= 0 and self._may_read(at, at - before):
            raw = self._source.read(before + LENGTH.size, at - before - LENGTH.size)
            ledger_id, entry_id = IDS.unpack_from(raw)
            if min(ledger_id, entry_id) < 0 or not self._known.is_whole(ledger_id, raw):
                start = before
        found = self._find_record(start + 1)
        end = self._source.size_bytes if found < 0 else found
        self._report(Damage(self._source.path, start, end - start, reason, found < 0))
        return end

    def _may_read(self, at: int, size_bytes: int) -> bool:
        """Take so many bytes from the allowance, as it is at this place of the file; False: there are not as many."""
        self._reached = max(self._reached, at)
        spent = self._spent + size_bytes
        if spent > _ALLOWANCE_BYTES + _ALLOWANCE_A_BYTE * self._reached:
            return False
        self._spent = spent
        return True

    def _find_record(self, from_bytes: int) -> int:
        """Return where the next record with a whole entry begins, at its length; -1: there is none up to the end.

        Every offset from `from_bytes` on is a candidate. Records of 16 MiB and more are not found: their lengths do
        not begin with a zero, which is what is searched for.
        """
        reach = LENGTH.size + IDS.size
        source, window_at, window_bytes = self._source, from_bytes, _WINDOW_BYTES_MIN
        while window_at + reach <= source.size_bytes:
            # What begins in a hole has a length of 0, but for the zeros that a length begins with.
            window_at = max(window_at, source.data_from(window_at) - LENGTH.size)
            window = source.read(window_at, window_bytes + reach)
            end = min(len(window) - reach + 1, window_bytes)
            at = window.find(b"\0", 0, end)
            while at >= 0:
                if self._begins_record(window_at + at, window, at):
                    return window_at + at
                at = window.find(b"\0", _past_zeros(window, at), end)
            window_at += window_bytes
            # The next record is near where damage is small: large windows would be read again and again.
            window_bytes = min(4 * window_bytes, _WINDOW_BYTES_MAX)
        return -1

    def _begins_record(self, offset_bytes: int, window: bytes, at: int) -> bool:
        (size_bytes,) = LENGTH.unpack_from(window, at)
        source = self._source
        if not HEADER_BYTES <= size_bytes <= source.size_bytes - offset_bytes - LENGTH.size:
            return False
        ledger_id, entry_id = IDS.unpack_from(window, at + LENGTH.size)
        if ledger_id < 0 or entry_id < 0 or not self._known.is_provable(ledger_id):
            return False
        if not self._may_read(offset_bytes, size_bytes):
            return False
        return self._known.is_whole(ledger_id, source.read(offset_bytes + LENGTH.size, size_bytes))


def _past_zeros(window: bytes, at: int) -> int:
    """Return where to look next: lengths of 0, of which a hole in a file has millions, are passed over at once."""
    if window[at : at + LENGTH.size] != bytes(LENGTH.size):
        return at + 1
    found = _NOT_ZERO.search(window, at)
    return len(window) if found is None else found.start() - LENGTH.size + 1


def is_empty_from(source: FileReader, at: int) -> bool:
    """Return whether there are only zeros up to the end of the file."""
    size_bytes = _WINDOW_BYTES_MIN
    while piece := source.read(at := source.data_from(at), size_bytes):
        if piece.count(0) != len(piece):
            return False
        at += len(piece)
        size_bytes = min(4 * size_bytes, _WINDOW_BYTES_MAX)
    return True
