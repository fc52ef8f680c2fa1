"""The indexes of all journal/index pairs as one, for whoever asks about ledgers. Logs are each pair's own.

What is asked of all is the union of their answers; what is asked about certain ledgers goes to the pair each lives in.
An index that does not answer ends the call: a part of the truth is no basis for deletions (INV-G1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from fastbk.gc.ledger_listing import sorted_ids
from fastbk.storage.identity import pair_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fastbk.gc.index_client import IndexClient
    from fastbk.native.ledger_state import Listed
    from fastbk.server.gc_messages import Share

Copy = tuple[int, int]
"""A ledger and its change mark."""
T = TypeVar("T")


class AllPairs:
    """All local ledgers."""

    def __init__(self, indexes: Sequence[IndexClient], shards: Sequence[int]) -> None:
        """Take the indexes by pair, and the pair of each shard."""
        self._indexes = indexes
        self._shards = shards

    def ids(self) -> array[int]:
        """Return the ids of all local ledgers that are not deleted, ascending. Raises Error."""
        return sorted_ids([index.ids() for index in self._indexes])

    def limbo_ids(self) -> set[int]:
        """Return the ids of all ledgers in limbo. Raises Error."""
        return set().union(*(index.limbo_ids() for index in self._indexes))

    def limbo_over(self, ledger_ids: list[int], *, fenced: bool) -> int:
        """Have ledgers taken out of limbo; return how many were in it. Raises Error: then some may be out."""
        parts = self._by_index(ledger_ids, int)
        return sum(index.limbo_over(ids, fenced=fenced) for index, ids in parts)

    def holds(self, ledger_id: int, shares: list[Share]) -> bool:
        """Return whether all entries of these shares are on the disk of the pair that it lives in. Raises Error."""
        return self._indexes[pair_of(ledger_id, self._shards)].holds(ledger_id, shares)

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        """Have ledgers deleted; return how many were there. Raises Error: then some may be."""
        parts = self._by_index(ledger_ids, int)
        return sum(index.delete(ids, reason) for index, ids in parts)

    def settled(self, cursor: int) -> tuple[list[Copy], int]:
        """Return some ledgers that hold something, with change marks, and the cursor to go on with; 0: the end.

        One pair after the other. Raises Error.
        """
        count = len(self._indexes)
        of_index, pair = divmod(cursor, count)
        found, of_index = self._indexes[pair].settled(of_index)
        if of_index == 0:
            return found, (pair + 1) % count
        return found, of_index * count + pair

    def unconfirmed(self) -> tuple[array[int], array[int]]:
        """Return the ids of all unconfirmed ledgers, and of those whose expiry has begun, ascending. Raises Error."""
        parts = [index.unconfirmed() for index in self._indexes]
        return sorted_ids([every for every, _ in parts]), sorted_ids([some for _, some in parts])

    def confirm(self, listed: Sequence[Listed]) -> list[int]:
        """Have ledgers confirmed; return those that have another key or creation here. Raises Error: some may be."""
        parts = self._by_index(listed, lambda one: one.ledger_id)
        return [one for index, some in parts for one in index.confirm(some)]

    def admit(self, ledger_ids: list[int]) -> int:
        """Have room made for ledgers that are not here yet; return for how many. Raises Error: then for some."""
        return sum(index.admit(ids) for index, ids in self._by_index(ledger_ids, int))

    def begin_expiry(self, ledger_ids: list[int]) -> int:
        """Have nothing taken to ledgers any more; return to how many more. Raises Error: then to some."""
        return sum(index.begin_expiry(ids) for index, ids in self._by_index(ledger_ids, int))

    def expire(self, ledger_ids: list[int], reason: str, *, is_proven: bool = False) -> int:
        """Have ledgers forgotten whose expiry has begun; return how many were. Raises Error: then some may be.

        `is_proven`: metadata deleted them, so those that were fenced are remembered for a while (INV-G8).
        """
        parts = self._by_index(ledger_ids, int)
        return sum(index.expire(ids, reason, is_proven=is_proven) for index, ids in parts)

    def drop(self, copies: Sequence[Copy], reason: str) -> int:
        """Have copies dropped; return how many were taken on. Raises Error: then some may be."""
        parts = self._by_index(copies, lambda copy: copy[0])
        return sum(index.drop(some, reason) for index, some in parts)

    def _by_index(
        self, some: Iterable[T], ledger_id_of: Callable[[T], int]
    ) -> Iterator[tuple[IndexClient, list[T]]]:
        parts: dict[int, list[T]] = {}
        for one in some:
            parts.setdefault(pair_of(ledger_id_of(one), self._shards), []).append(one)
        for pair, those in sorted(parts.items()):
            yield self._indexes[pair], those
