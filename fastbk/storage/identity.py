"""`identity.json`: whose data a directory holds.

It lies in every journal and ledger directory; metadata knows the same under the bookie's id, and
`fastbk.storage.identity_check` says what may be started with (INV-D1).
"""

from __future__ import annotations

import secrets

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.native.shard import SHARD_COUNT
from fastbk.storage.shards import Shards, even_shards, is_map
from fastbk.storage.small_files import SealedFile

NAME = "identity.json"
FORMAT = 1
ROLES = ("journal", "ledger")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `identity.json`; ids are hex.

    `pair`: the number of the journal and index whose directory this is, of `pairs`. `starts`: how often this
    incarnation was started with it. `shards`: the pair that each shard lives in, the same in every directory (INV-D3).
    """

    bookie_id: str
    incarnation: str
    directory_id: str
    role: str
    created_s: int
    pair: int = 0
    starts: int = 0
    pairs: int = 1
    shards: Shards = (0,) * SHARD_COUNT
    format: int = FORMAT

    @property
    def incarnation_number(self) -> int:
        """The incarnation as the number that file headers hold."""
        return int(self.incarnation, 16)


def new_identity(
    bookie_id: str,
    incarnation: int,
    role: str,
    created_s: int,
    pair: int = 0,
    pairs: int = 1,
    shards: Shards | None = None,
) -> Identity:
    """Return the identity of a directory that is born now, with an id of its own."""
    return Identity(
        bookie_id=bookie_id,
        incarnation=f"{incarnation:016x}",
        directory_id=secrets.token_hex(16),
        role=role,
        created_s=created_s,
        pair=pair,
        pairs=pairs,
        shards=even_shards(pairs) if shards is None else shards,
    )


def new_incarnation() -> int:
    """Return a random incarnation, 1..2^63 - 1: one birth of one bookie."""
    return secrets.randbelow((1 << 63) - 1) + 1


def _check(identity: Identity, name: str) -> None:
    try:
        number = identity.incarnation_number
    except ValueError:
        number = 0
    if (
        identity.role not in ROLES
        or number <= 0
        or identity.starts < 0
        or not is_map(identity.shards, identity.pairs)
        or not 0 <= identity.pair < identity.pairs
    ):
        raise CorruptDataError(
            f"{name}: role {identity.role!r}, incarnation {identity.incarnation!r}, pair {identity.pair} of"
            f" {identity.pairs}"
        )


_FILE = SealedFile(NAME, Identity, FORMAT, _check)
decode, read_identity, write_identity = _FILE.decode, _FILE.read, _FILE.write
