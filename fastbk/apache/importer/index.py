"""What an index of an Apache bookie says, whichever of its two kinds it is.

A location is the number of an entry log, shifted left by 32 bits, and the offset of the entry's bytes in it, which
begin behind their length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fastbk.apache.importer.records import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOWHERE, UNKNOWN = 0, -1
"""In the place of a location: the index does not name the entry; the index cannot be read there."""
FIRST_OFFSET = 1024 + LENGTH.size
"""No entry begins before it: an entry log has a header."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A ledger that an index lists.

    Attributes:
        ledger_id: 0..2^63-1.
        is_fenced, is_in_limbo: as the bookie left it; only RocksDB knows of limbo.
        master_key: what the bookie compared; empty: it had none.
        explicit_lac: the body as its writer sent it, digest included; empty: none.
    """

    ledger_id: int
    is_fenced: bool = False
    is_in_limbo: bool = False
    master_key: bytes = field(default=b"", repr=False)
    explicit_lac: bytes = b""


class Index(Protocol):
    """One index, open for reading. Nothing here raises for damage: it is reported, and what it hides is `UNKNOWN`."""

    name: str
    """For people: its kind and where it lies."""

    def covers(self, log: Path) -> bool:
        """Return whether this index is that of an entry log."""

    def ledgers(self) -> Iterator[Listed]:
        """Yield the ledgers that it lists."""

    def location(self, ledger_id: int, entry_id: int) -> int:
        """Return where an entry counts, `NOWHERE`, or `UNKNOWN`."""

    def entries(self, is_wanted: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        """Yield ledger and entry of all that it names, ascending in each ledger; of ledgers that are wanted."""

    def close(self) -> None:
        """Close it."""


def is_location(value: int) -> bool:
    """Return whether a number may be a location."""
    return value > 0 and value & 0xFFFFFFFF >= FIRST_OFFSET
