"""A set of entries, a bit each: there may be hundreds of millions."""

from __future__ import annotations

PIECE_ENTRIES = 4096


class SeenEntries:
    """Which entries were seen. Memory: a bit for each and some 250 bytes for each piece of a ledger with any."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], int] = {}

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Take an entry in."""
        key = ledger_id, entry_id // PIECE_ENTRIES
        self._pieces[key] = self._pieces.get(key, 0) | 1 << entry_id % PIECE_ENTRIES

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether it was seen."""
        piece = self._pieces.get((ledger_id, entry_id // PIECE_ENTRIES), 0)
        return bool(piece >> entry_id % PIECE_ENTRIES & 1)
