"""Which creation of a ledger id is meant (INV-T1).

After a rollback of metadata the same id can be given twice. Metadata holds a random number for each creation, the
`creation_token` of `fastbk.model.ledger.LedgerMetadata` (Apache's `cToken`; its clients write it, too). Clients send it
with each request, and bookies store its 32-bit mark with the ledger's key. 0 means that nobody named a creation.
"""

from __future__ import annotations

_FACTOR = 0xFF51AFD7ED558CCD
_MASK = 2**64 - 1


def token_of(creation_token: int) -> int:
    """Return the unsigned number that the wire carries for a token of metadata, which is signed."""
    return creation_token & _MASK


def creation_mark(creation_token: int) -> int:
    """Return a token's mark, as `fbk_creation_mark` does: 32 bits, 0 only for token 0."""
    token = creation_token & _MASK
    if token == 0:
        return 0
    token = ((token ^ token >> 33) * _FACTOR) & _MASK
    return (token ^ token >> 33) & 0xFFFFFFFF or 1
