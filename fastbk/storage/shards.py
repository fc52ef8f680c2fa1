"""Which journal/index pair a ledger lives in.

A ledger falls into one of 64 shards by a hash of its id, for good; a map in `identity.json` of every directory says
which pair has a shard (INV-D3). The map changes only when a shard is moved (`fastbk.storage.move`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.native.shard import PAIRS_MAX, SHARD_COUNT, shard_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Shards = tuple[int, ...]
"""The pair of each shard: `SHARD_COUNT` numbers."""


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
