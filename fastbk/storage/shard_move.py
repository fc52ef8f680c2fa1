"""The record of a move of shards from one pair to another (INV-D3): `move.json` in the first pair's ledger directory.

It is there from before the first byte is copied until nothing is left to do. Whoever finds it when the bookie is
started or moved next, undoes the move (`COPYING`: the map still names the source) or finishes it (`MOVED`: the target
holds everything durably; some identities may name the source still). So writing `MOVED` is the one step in which the
shards change their pair, for all directories at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.native.segment import PAIRS_MAX, SHARD_COUNT
from fastbk.storage.small_files import SealedFile

if TYPE_CHECKING:
    from fastbk.storage.identity import Shards

NAME = "move.json"
FORMAT = 1
COPYING, MOVED = "copying", "moved"


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Shards on their way from the pair `source` to the pair `target`; `incarnation`: hex, of the bookie."""

    incarnation: str
    source: int
    target: int
    shards: tuple[int, ...]
    phase: str = COPYING
    format: int = FORMAT

    def applied_to(self, shards: Shards) -> Shards:
        """Return the map as it is after the move. Again is harmless."""
        return tuple(
            self.target if shard in self.shards else pair for shard, pair in enumerate(shards)
        )


def _check(move: Move, name: str) -> None:
    pairs_are_right = move.source != move.target and all(
        0 <= pair < PAIRS_MAX for pair in (move.source, move.target)
    )
    shards_are_right = all(0 <= shard < SHARD_COUNT for shard in move.shards)
    if not pairs_are_right or not shards_are_right or move.phase not in (COPYING, MOVED):
        raise CorruptDataError(f"{name}: says what cannot be")


_FILE = SealedFile(NAME, Move, FORMAT, _check)
decode, read_move, write_move, remove_move = _FILE.decode, _FILE.read, _FILE.write, _FILE.remove
