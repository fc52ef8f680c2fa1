"""Complete listings of ledger ids: page by page from metadata, and many of them sorted in memory.

Sorted ids take eight bytes each. A Python set takes ten times as much, which at ten million ledgers is more than all
else that a bookie needs.

Bookies elsewhere have deleted live ledgers after a listing that left some out. So the pages are checked: only an empty
one ends the listing, and one that does not ascend ends it with an error.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from fastbk.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fastbk.limits import RateLimit
    from fastbk.meta.api import LedgerRead, MetadataStore


PAGE_IDS = 10_000
"""As many ledgers as ZooKeeper's hierarchical layouts have under one parent: a page reads one or two parents, and a
smaller one would read the same parent again and again."""
READ_IDS = 100
"""Ledgers whose metadata is read at once."""


def sorted_ids(pages: Iterable[Sequence[int]]) -> array[int]:
    """Return the ids of all pages, ascending, each once; the pages come in any order."""
    runs = [array("q", sorted(page)) for page in pages]
    return array("q", _distinct(heapq.merge(*runs)))


def _distinct(ids: Iterable[int]) -> Iterator[int]:
    last = -1
    for one in ids:
        if one != last:
            yield one
        last = one


def missing_from(local: array[int], pages: Iterable[Sequence[int]]) -> Iterator[int]:
    """Yield those of `local` that are in no page. Both ascend, the pages one behind the other, to the very end."""
    offset = 0
    for page in pages:
        end = bisect_right(local, page[-1], offset)
        if end > offset:
            yield from sorted(set(local[offset:end]).difference(page))
        offset = end
    yield from local[offset:]


def in_both(some: array[int], others: array[int]) -> Iterator[int]:
    """Yield the ids that both arrays hold; both ascend."""
    index = 0
    for one in some:
        index = bisect_left(others, one, index)
        if index == len(others):
            return
        if others[index] == one:
            yield one


class BadListing(Error):
    """The metadata store listed ledgers out of order: nothing may be concluded from what is not in its list."""


def listed_ledgers(store: MetadataStore, pace: RateLimit) -> Iterator[list[int]]:
    """Yield pages of ids, ascending over all pages; none is empty. Raises what the store does, and BadListing."""
    after = -1
    while page := store.list_ledgers(after, PAGE_IDS):
        if page[0] <= after or any(one >= other for one, other in pairwise(page)):
            raise BadListing(f"the listing behind ledger {after} does not ascend")
        yield page
        after = page[-1]
        pace.spend(len(page))


def read_ledgers(
    store: MetadataStore, ledger_ids: Sequence[int], pace: RateLimit, cost: int = 1
) -> Iterator[tuple[int, LedgerRead]]:
    """Yield each id with its metadata, None where there is none; READ_IDS at once, each at the pace of `cost` ids."""
    for start in range(0, len(ledger_ids), READ_IDS):
        some = list(ledger_ids[start : start + READ_IDS])
        yield from zip(some, store.read_ledgers(some), strict=True)
        pace.spend(cost * len(some))
