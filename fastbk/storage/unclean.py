"""`unclean`: lies in a ledger directory from a bookie's start to its clean stop.

Written before anything of that life is acknowledged, and removed once all of it is in entry logs and nothing will come.
It says how that life acknowledged. What a life with `sync = "never"` acknowledged may be gone after a crash, of any
ledger that it held: its successor puts them into limbo before it answers anything (P23). With `sync = "always"` replay
has everything, and the file only tells people that the last stop was no clean one; unless `is_lost`: replay has met
damage, and fences of ledgers that nobody here knows of may be lost with it (INV-F2).

    {"format": 1, "incarnation" (hex), "sync": "always" | "never", "started_s", "is_lost", "crc"} (`small_files.py`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.storage.small_files import SealedFile

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

NAME = "unclean"
FORMAT = 1
UNSYNCED = "never"


class Unclean(msgspec.Struct, frozen=True, kw_only=True):
    """A life that did not stop cleanly. `started_s`: wall clock. `is_lost`: it has met damage in the journal."""

    incarnation: str
    sync: str
    started_s: int
    is_lost: bool = False
    format: int = FORMAT

    @property
    def has_lost(self) -> bool:
        """Whether what it acknowledged may be gone."""
        return self.is_lost or self.sync == UNSYNCED


WORST = Unclean(incarnation="", sync=UNSYNCED, started_s=0)
"""What a damaged file is taken for."""


_FILE = SealedFile(NAME, Unclean, FORMAT)
decode, write_unclean, remove_unclean = _FILE.decode, _FILE.write, _FILE.remove


def read_unclean(disk: Disk, directory: str) -> Unclean | None:
    """Return what the last life left behind, None after a clean stop.

    A damaged file is taken for the worse: a life that lost what it acknowledged. Raises FormatTooNewError, OSError.
    """
    try:
        return _FILE.read(disk, directory)
    except CorruptDataError:
        return WORST


def mark_lost(disk: Disk, directory: str, incarnation: int) -> None:
    """Have the next boot put every ledger into limbo that metadata names this bookie for. Raises OSError."""
    unclean = read_unclean(disk, directory)
    flag = unclean or Unclean(incarnation=f"{incarnation:016x}", sync="always", started_s=0)
    write_unclean(disk, directory, msgspec.structs.replace(flag, is_lost=True))
