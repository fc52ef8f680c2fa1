"""What the readers of Apache's files have in common: records, damage, the next whole record behind
damage, and what metadata says of the ledgers.

Apache's journals and entry logs have no checksums of their own. What can be checked is an entry's
digest, by whoever knows its ledger's metadata (`LedgerTable`); that is how a reader finds its way
again behind a length that makes no sense.

What lies in such a file may be forged: clients choose the bytes of entries. So the work of finding
the way again is linear in the size of the file, whatever is in it (`Resync`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.meta.api import all_ledgers
from fastbk.meta.records import BadRecord
from fastbk.model.entry import (
    DIGEST_BYTES,
    HEADER_BYTES,
    DigestType,
    digest,
    master_key,
    parse_lac_body,
)
from fastbk.model.ledger import LedgerState
from fastbk.native.hashes import crc32c
from fastbk.units import MIB

if TYPE_CHECKING:
    from fastbk.inspect.items import FileReader
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId
    from fastbk.model.ledger import LedgerMetadata

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


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What ledgers of one kind have in common; most clusters have few kinds.

    Attributes:
        digest_type, password: as metadata has them; None where it says nothing, as before release 4.3.
        is_closed: nothing can come to it any more.
        is_named: the bookie is in one of its ensembles, or may be with the next change: it is being recovered.
    """

    digest_type: DigestType | None
    password: bytes | None = field(repr=False)
    is_closed: bool
    is_named: bool

    @property
    def master_key(self) -> bytes | None:
        """The key that bookies compare, where metadata has the password."""
        return None if self.password is None else master_key(self.password)

    @property
    def is_provable(self) -> bool:
        """Whether entries have a digest that can be checked."""
        return self.digest_type is not None and self.digest_type is not DigestType.DUMMY

    def is_right(self, raw: bytes) -> bool:
        """Return whether an entry is as long as its header and digest, and has the right one where there is one."""
        kind = self.digest_type
        if kind is None:
            return len(raw) >= HEADER_BYTES
        start = HEADER_BYTES + DIGEST_BYTES[kind]
        if len(raw) < start:
            return False
        view = memoryview(raw)
        stored = view[HEADER_BYTES:start]
        if kind is DigestType.CRC32C:
            right = crc32c(view[start:], crc32c(view[:HEADER_BYTES]))
            return int.from_bytes(stored, "big") == right
        if kind is DigestType.HMAC and self.password is None:
            return True
        return digest(kind, raw[:HEADER_BYTES], view[start:], self.password or b"") == stored

    def lac_in(self, ledger_id: int, body: bytes) -> int:
        """Return the LAC that the body of an explicit LAC proves, -1 when it proves none."""
        if self.digest_type is None:
            return -1
        proven = parse_lac_body(body, ledger_id, self.digest_type, self.password or b"")
        return -1 if proven is None else proven


class LedgerTable:
    """All ledgers of a cluster."""

    def __init__(self, store: MetadataStore, bookie_id: BookieId) -> None:
        """Read the metadata of all ledgers. Raises MetadataUnavailable."""
        self._known: dict[int, LedgerSummary] = {}
        self._store = store
        kinds: dict[LedgerSummary, LedgerSummary] = {}
        for ledger_id, read in all_ledgers(store):
            # One that nobody can read may count on the bookie, and may be open.
            if isinstance(read, BadRecord):
                known = LedgerSummary(None, None, False, True)
            else:
                known = _known(read.metadata, bookie_id)
            self._known[ledger_id] = kinds.setdefault(known, known)

    def get(self, ledger_id: int) -> LedgerSummary | None:
        """Return what is known of a ledger, None for one that metadata does not list."""
        return self._known.get(ledger_id)

    def open_count(self) -> int:
        """Return how many of those that may count on the bookie are not closed."""
        return sum(known.is_named and not known.is_closed for known in self._known.values())

    def named(self) -> list[int]:
        """Return the ledgers that may count on the bookie, ascending."""
        return [ledger_id for ledger_id, known in self._known.items() if known.is_named]

    def is_provable(self, ledger_id: int) -> bool:
        """Return whether entries of this ledger have digests that can be checked."""
        known = self._known.get(ledger_id)
        return known is not None and known.is_provable

    def is_whole(self, ledger_id: int, raw: bytes) -> bool:
        """Return whether bytes are certainly an entry of this ledger."""
        known = self._known.get(ledger_id)
        return known is not None and known.is_provable and known.is_right(raw)


def _known(metadata: LedgerMetadata, bookie_id: BookieId) -> LedgerSummary:
    return LedgerSummary(
        metadata.digest_type,
        metadata.password,
        metadata.is_closed,
        metadata.state is LedgerState.IN_RECOVERY
        or any(bookie_id in fragment.ensemble for fragment in metadata.fragments),
    )
