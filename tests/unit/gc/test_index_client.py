"""gc over several indexes (A19): asked as one, told about what lives with each."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from fastbk.errors import Error
from fastbk.gc.index_client import AllPairs
from fastbk.storage.identity import even_shards, pair_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARDS = even_shards(3)


@dataclass
class FakeIndex:
    """One pair's ledgers; pages of two."""

    mine: list[int] = field(default_factory=list)
    in_limbo: set[int] = field(default_factory=set)
    told: list[list[int]] = field(default_factory=list)
    is_silent: bool = False

    def ids(self) -> array[int]:
        if self.is_silent:
            raise Error("silent")
        return array("q", sorted(self.mine))

    def limbo_ids(self) -> set[int]:
        return self.in_limbo

    def limbo_over(self, ledger_ids: list[int], *, fenced: bool) -> int:
        assert fenced
        self.told.append(ledger_ids)
        return len(self.in_limbo & set(ledger_ids))

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        assert reason == "gone"
        self.told.append(ledger_ids)
        return len(set(self.mine) & set(ledger_ids))

    def settled(self, cursor: int) -> tuple[list[tuple[int, int]], int]:
        page = [(one, one * 10) for one in self.mine[cursor : cursor + 2]]
        return page, cursor + 2 if cursor + 2 < len(self.mine) else 0

    def drop(self, copies: Sequence[tuple[int, int]], reason: str) -> int:
        assert reason == "too many"
        self.told.append([one for one, _ in copies])
        return len(copies)


def three(ledgers: int = 30) -> list[FakeIndex]:
    return [
        FakeIndex([one for one in range(ledgers) if pair_of(one, SHARDS) == pair])
        for pair in range(3)
    ]


def test_all_ledgers_of_all_pairs_are_listed_once() -> None:
    indexes = three()
    every = AllPairs(indexes, SHARDS)
    assert list(every.ids()) == list(range(30))
    indexes[0].in_limbo, indexes[2].in_limbo = {1}, {2, 3}
    assert every.limbo_ids() == {1, 2, 3}


@pytest.mark.parametrize("empty", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_settled_ledgers_come_in_pages_from_one_pair_after_the_other(
    empty: tuple[int, ...],
) -> None:
    indexes = three()
    for pair in empty:
        indexes[pair].mine.clear()
    every = AllPairs(indexes, SHARDS)
    found, cursor = every.settled(0)
    pages = 1
    while cursor:
        page, cursor = every.settled(cursor)
        found += page
        pages += 1
    assert sorted(found) == sorted((one, one * 10) for index in indexes for one in index.mine)
    assert pages >= 3, "no pair is passed over"


def test_each_pair_is_told_about_its_own_ledgers_alone() -> None:
    """INV-D3."""
    indexes = three()
    every = AllPairs(indexes, SHARDS)
    doomed = [3, 4, 5, 29, 1000]
    assert every.delete(doomed, "gone") == 4
    assert every.drop([(one, 7) for one in doomed], "too many") == 5
    assert every.limbo_over(doomed, fenced=True) == 0
    for pair, index in enumerate(indexes):
        mine = [one for one in doomed if pair_of(one, SHARDS) == pair]
        assert index.told == ([mine] * 3 if mine else [])


def test_a_silent_index_ends_the_cycle() -> None:
    """INV-G1: what one index does not say must not look like what is not there."""
    indexes = three()
    indexes[1].is_silent = True
    with pytest.raises(Error, match="silent"):
        AllPairs(indexes, SHARDS).ids()
