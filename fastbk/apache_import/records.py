"""What the readers of Apache's files have in common: records, damage, and the next whole record behind damage.

Apache's journals and entry logs have no checksums of their own. What can be checked is an entry's digest, by whoever
knows its ledger's metadata; that is how a reader finds its way again behind a length that makes no sense.
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
    from fastbk.inspect.source import Source

RECORD_BYTES_MAX = 64 * MIB
"""A length above it is taken for damage: Apache's bookies take frames of 5 MiB unless told otherwise."""
LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")
_WINDOW_BYTES = 1 * MIB
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


Check = Callable[[int, bytes], bool]
"""Given a ledger's id and an entry's bytes: is this certainly a whole entry of that ledger?"""
Report = Callable[[Damage], None]


def pass_over(
    source: Source, at: int, before: int, reason: str, is_whole: Check, report: Report
) -> int:
    """Report damage and return where reading goes on: at the next whole entry, or the end of the file.

    Args:
        source: the file.
        at: where a record should begin and none does.
        before: where the record before it begins, -1 for none: if that is no whole entry, its length may be what is
            damaged, and the next one lies within it.
        reason: for people.
        is_whole, report: as the readers have them.
    """
    start = at
    if before >= 0:
        raw = source.read(before + LENGTH.size, at - before - LENGTH.size)
        ledger_id, entry_id = IDS.unpack_from(raw)
        if min(ledger_id, entry_id) < 0 or not is_whole(ledger_id, raw):
            start = before
    found = find_record(source, start + 1, is_whole)
    end = source.size_bytes if found < 0 else found
    report(Damage(source.path, start, end - start, reason, found < 0))
    return end


def find_record(source: Source, from_bytes: int, is_whole: Check) -> int:
    """Return where the next record with a whole entry begins, at its length; -1: there is none up to the end.

    Looks at every offset from `from_bytes` on. Records of 16 MiB and more are not found: their lengths do not begin
    with a zero, which is what is looked for.
    """
    reach = LENGTH.size + IDS.size
    window_at = from_bytes
    while window_at + reach <= source.size_bytes:
        window = source.read(window_at, _WINDOW_BYTES + reach)
        end = min(len(window) - reach + 1, _WINDOW_BYTES)
        at = window.find(b"\0", 0, end)
        while at >= 0:
            if _begins_record(source, window_at + at, window, at, is_whole):
                return window_at + at
            at = window.find(b"\0", _past_zeros(window, at), end)
        window_at += _WINDOW_BYTES
    return -1


def _past_zeros(window: bytes, at: int) -> int:
    """Return where to look next: lengths of 0, of which a hole in a file has millions, are passed over at once."""
    if window[at : at + LENGTH.size] != bytes(LENGTH.size):
        return at + 1
    found = _NOT_ZERO.search(window, at)
    return len(window) if found is None else found.start() - LENGTH.size + 1


def is_empty_from(source: Source, at: int) -> bool:
    """Return whether there are only zeros up to the end of the file."""
    while piece := source.read(at, MIB):
        if piece.count(0) != len(piece):
            return False
        at += len(piece)
    return True


def _begins_record(
    source: Source, offset_bytes: int, window: bytes, at: int, is_whole: Check
) -> bool:
    (size_bytes,) = LENGTH.unpack_from(window, at)
    if not HEADER_BYTES <= size_bytes <= source.size_bytes - offset_bytes - LENGTH.size:
        return False
    ledger_id, entry_id = IDS.unpack_from(window, at + LENGTH.size)
    if ledger_id < 0 or entry_id < 0:
        return False
    return is_whole(ledger_id, source.read(offset_bytes + LENGTH.size, size_bytes))
