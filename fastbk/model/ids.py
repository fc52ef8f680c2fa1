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
from typing import TypeAlias

from fastbk.errors import ConfigError, WrongType
from fastbk.option_checks import checked_integer
from fastbk.printable_text import printable

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
