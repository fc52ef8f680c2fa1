"""Names of the identities and their limits.

A ledger id and an entry id are integers of 0..2^63-1; the first entry of a ledger is 0 and -1 stands for "none".
A bookie id is text: `host:port` or any given name.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from fastbk.errors import ConfigError

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
    if not 0 <= ledger_id <= ID_MAX:
        raise ConfigError(f"ledger id {ledger_id} is not in 0..2^63-1")
    return ledger_id


def check_bookie_id(bookie_id: BookieId) -> BookieId:
    """Return `bookie_id` if Apache's rules allow it; raise ConfigError otherwise."""
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id in _RESERVED_BOOKIE_IDS:
        raise ConfigError(
            f"bookie id {bookie_id!r}: 1 to 255 letters, digits and the characters : - _ . are allowed,"
            " and it may not be 'readonly'"
        )
    return bookie_id
