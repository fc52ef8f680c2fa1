"""Which entries each bookie of one ensemble is to hold, counted and compared. Pure (INV-Q1)."""

from __future__ import annotations

from collections.abc import Collection

from fastbk.model.ids import EntryId
from fastbk.model.quorum import write_sets


class WriteSets:
    """The shares of an ensemble of `size` bookies; a bookie's share are the entries in whose write set it is.

    Attributes:
        write_sets: by entry id mod `size`, the indexes of the bookies that hold it.
        is_striped: some entry is not on all bookies.
    """

    __slots__ = ("is_striped", "size", "write_quorum", "write_sets")

    def __init__(self, size: int, write_quorum: int) -> None:
        self.size = size
        self.write_quorum = write_quorum
        self.is_striped = write_quorum < size
        self.write_sets = write_sets(size, write_quorum)

    def owns(self, index: int, entry_id: EntryId) -> bool:
        """Return whether bookie `index` is to hold the entry."""
        return (index - entry_id) % self.size < self.write_quorum

    def owns_any(self, index: int, start: EntryId, end: EntryId) -> bool:
        """Return whether bookie `index` is to hold any entry of [start, end)."""
        if not self.is_striped:
            return start < end
        return any(self.owns(index, one) for one in range(start, min(end, start + self.size)))

    def short_without(self, down: Collection[int], ack_quorum: int) -> set[int]:
        """Return those of the indexes `down` that are in a write set which has no ack quorum without them."""
        short: set[int] = set()
        for write_set in self.write_sets:
            lacking = [one for one in write_set if one in down]
            if self.write_quorum - len(lacking) < ack_quorum:
                short.update(lacking)
        return short

    def count(self, index: int, start: EntryId, end: EntryId) -> int:
        """Return how many entries of [start, end) bookie `index` is to hold."""
        whole, rest = divmod(max(0, end - start), self.size)
        return whole * self.write_quorum + sum(
            self.owns(index, start + offset) for offset in range(rest)
        )
