"""Many ledger ids, ascending, in eight bytes each: a Python set takes ten times as much, which at ten million ledgers
is more than all else that a bookie needs.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


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
    at = 0
    for page in pages:
        end = bisect_right(local, page[-1], at)
        if end > at:
            yield from sorted(set(local[at:end]).difference(page))
        at = end
    yield from local[at:]


def in_both(some: array[int], others: array[int]) -> Iterator[int]:
    """Yield the ids that both arrays hold; both ascend."""
    at = 0
    for one in some:
        at = bisect_left(others, one, at)
        if at == len(others):
            return
        if others[at] == one:
            yield one
