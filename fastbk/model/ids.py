"""Ids of ledgers, entries and bookies with their limits, and the mark of a ledger's creation.

A ledger id and an entry id are integers of 0..2^63-1. The first entry of a ledger is 0; -1 stands
for "none". A bookie id is text: `host:port` or any given name.

After a rollback of metadata the same ledger id can be given twice (INV-T1). So metadata holds a
random number for each creation, the `creation_token` of `fastbk.model.ledger.LedgerMetadata`
(Apache's `cToken`; its clients write it, too). Clients send it with each request. Bookies store its
32-bit mark with the ledger's key. 0 means that nobody named a creation.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, TypeAlias

from fastbk.errors import ConfigError, WrongType
from fastbk.option_checks import checked_integer
from fastbk.printable_text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


LedgerId: TypeAlias = int
EntryId: TypeAlias = int
BookieId: TypeAlias = str

NO_ENTRY: EntryId = -1
ID_MAX = 2**63 - 1

_BOOKIE_ID = re.compile(r"[A-Za-z0-9:\-_.]{1,255}")
# A child of this name beside the bookies' own nodes holds the read-only ones in Apache's metadata layout.
_RESERVED_BOOKIE_IDS = frozenset({"readonly"})


def check_ledger_id(ledger_id: LedgerId) -> LedgerId:
    """Return `ledger_id` if it is one; raise ConfigError otherwise."""
    if type(ledger_id) is not int:  # the common case is checked in one step
        return checked_integer("ledger_id", ledger_id, 0, ID_MAX)
    if not 0 <= ledger_id <= ID_MAX:
        raise ConfigError(f"ledger id {ledger_id} is not in 0..2^63-1")
    return ledger_id


MEANT_BOOKIE = "Fastbk-Bookie"
"""The header of HTTP in which clients say whose page they mean."""


def check_bookie_id(bookie_id: BookieId) -> BookieId:
    """Return `bookie_id` if Apache's rules allow it; raise ConfigError otherwise."""
    if not isinstance(bookie_id, str):
        raise WrongType(f"bookie id {bookie_id!r} is no text")
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id in _RESERVED_BOOKIE_IDS:
        raise ConfigError(
            f"bookie id {printable(bookie_id, 300)!r}: 1 to 255 letters, digits and the characters : - _ . are allowed,"
            " and it may not be 'readonly'"
        )
    return bookie_id


_FACTOR = 0xFF51AFD7ED558CCD
_MASK = 2**64 - 1


def creation_mark(creation_token: int) -> int:
    """Return a token's mark, as `fbk_creation_mark` does: 32 bits, 0 only for token 0."""
    token = creation_token & _MASK
    if token == 0:
        return 0
    token = ((token ^ token >> 33) * _FACTOR) & _MASK
    return (token ^ token >> 33) & 0xFFFFFFFF or 1


# --- ranges of ids -----------------------------------------------------------------------------------------------
#
# A set of ids as ranges: some bytes a range, however many ids it holds. No I/O.


class IdRanges:
    """Ids from 0; ranges are (first, last), both included, ascending, and never touch each other."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(ranges):
            self.add(first, last)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __contains__(self, one: int) -> bool:
        index = bisect_right(self._firsts, one) - 1
        return index >= 0 and one <= self._lasts[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def add(self, first: int, last: int) -> None:
        """Add the ids from `first` to `last`."""
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high], self._lasts[low:high] = [first], [last]

    def remove(self, one: int) -> None:
        """Remove one id; nothing happens if it is not there."""
        index = bisect_right(self._firsts, one) - 1
        if index < 0 or one > self._lasts[index]:
            return
        first, last = self._firsts[index], self._lasts[index]
        left = [(a, b) for a, b in ((first, one - 1), (one + 1, last)) if a <= b]
        self._firsts[index : index + 1] = [a for a, _ in left]
        self._lasts[index : index + 1] = [b for _, b in left]

    def drop_lowest(self, ranges_max: int) -> int:
        """Keep at most so many ranges, the highest; return how many went."""
        surplus = max(0, len(self) - ranges_max)
        del self._firsts[:surplus], self._lasts[:surplus]
        return surplus
