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
from fastbk.native.shard import PAIRS_MAX, SHARD_COUNT
from fastbk.storage import small_files

if TYPE_CHECKING:
    from fastbk.native.disk import Disk
    from fastbk.storage.shards import Shards

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


def encode(move: Move) -> bytes:
    """Return the bytes of the record."""
    return small_files.encode(move)


def decode(raw: bytes, name: str = NAME) -> Move:
    """Return the record in a file's bytes. Raises CorruptDataError, FormatTooNewError."""
    move = small_files.decode(raw, Move, FORMAT, name)
    pairs_are_right = move.source != move.target and all(
        0 <= pair < PAIRS_MAX for pair in (move.source, move.target)
    )
    shards_are_right = all(0 <= shard < SHARD_COUNT for shard in move.shards)
    if not pairs_are_right or not shards_are_right or move.phase not in (COPYING, MOVED):
        raise CorruptDataError(f"{name}: says what cannot be")
    return move


def read_move(disk: Disk, directory: str) -> Move | None:
    """Return the move that has not ended, None when there is none. Raises like `decode`, and OSError."""
    path = f"{directory}/{NAME}"
    try:
        return decode(disk.read_file(path), path)
    except FileNotFoundError:
        return None


def write_move(disk: Disk, directory: str, move: Move) -> None:
    """Put the record there, whole and durable."""
    disk.replace_file(f"{directory}/{NAME}", encode(move))


def remove_move(disk: Disk, directory: str) -> None:
    """Remove the record, durably: the move has ended."""
    disk.unlink(f"{directory}/{NAME}")
    disk.sync_directory(directory)
