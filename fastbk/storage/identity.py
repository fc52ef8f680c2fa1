"""`identity.json`: whose data a directory holds.

It lies in every journal and ledger directory; metadata knows the same under the bookie's id, and
`fastbk.storage.identity_check` says what may be started with (INV-D1).

It says which journal/index pair a ledger lives in, too: a ledger falls into one of 64 shards by a hash of its id, for
good, and the map of shards in every identity says which pair has a shard (INV-D3). The map changes only when a shard is
moved (`fastbk.server.offline`).

Decisions 31, 38 and 45.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.native.segment import PAIRS_MAX, SHARD_COUNT, shard_of
from fastbk.printable_text import printable
from fastbk.storage.small_files import SealedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "identity.json"
FORMAT = 1
ROLES = ("journal", "ledger")
Shards = tuple[int, ...]
"""The pair of each shard: `SHARD_COUNT` numbers."""


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
    import secrets  # with hashlib 4 ms, and a bookie is born once

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
    import secrets

    return secrets.randbelow((1 << 63) - 1) + 1


def _check(identity: Identity, name: str) -> None:
    try:
        number = identity.incarnation_number
    except ValueError:
        number = 0
    if (
        identity.role not in ROLES
        or not 0 < number < 1 << 64
        or identity.starts < 0
        or not is_map(identity.shards, identity.pairs)
        or not 0 <= identity.pair < identity.pairs
    ):
        raise CorruptDataError(
            f"{name}: role {printable(identity.role, 80)!r}, incarnation"
            f" {printable(identity.incarnation, 80)!r}, pair {identity.pair} of"
            f" {identity.pairs}"
        )


_FILE = SealedFile(NAME, Identity, FORMAT, _check)
decode, read_identity, write_identity = _FILE.decode, _FILE.read, _FILE.write


def pair_of(ledger_id: int, shards: Sequence[int]) -> int:
    """Return the pair that a ledger lives in."""
    return shards[shard_of(ledger_id)]


def even_shards(pair_count: int) -> Shards:
    """Return the map that a bookie is born with: as many shards for each pair as go."""
    return tuple(shard % pair_count for shard in range(SHARD_COUNT))


def is_map(shards: Sequence[int], pair_count: int) -> bool:
    """Return whether this can be the map of a bookie with so many pairs."""
    return (
        1 <= pair_count <= PAIRS_MAX
        and len(shards) == SHARD_COUNT
        and all(0 <= pair < pair_count for pair in shards)
    )


def evened(shards: Sequence[int], pair_count: int) -> list[tuple[int, int]]:
    """Return (shard, new pair) of the fewest moves after which no pair has two shards more than another."""
    held: list[list[int]] = [[] for _ in range(pair_count)]
    for shard, pair in enumerate(shards):
        held[pair].append(shard)
    moves: list[tuple[int, int]] = []
    while True:
        fullest = max(range(pair_count), key=lambda pair: len(held[pair]))
        emptiest = min(range(pair_count), key=lambda pair: len(held[pair]))
        if len(held[fullest]) - len(held[emptiest]) < 2:
            return moves
        shard = held[fullest].pop()
        held[emptiest].append(shard)
        moves.append((shard, emptiest))
