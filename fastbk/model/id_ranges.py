"""A set of ids as ranges: some bytes a range, however many ids it holds. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class IdRanges:
    """Ids from 0; ranges are (first, last), both included, ascending, and never touch each other."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(ranges):
            self.add(first, last)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __contains__(self, one: int) -> bool:
        at = bisect_right(self._firsts, one) - 1
        return at >= 0 and one <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def add(self, first: int, last: int) -> None:
        """Add the ids from `first` to `last`."""
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high], self._lasts[low:high] = [first], [last]

    def remove(self, one: int) -> None:
        """Remove one id; nothing happens if it is not there."""
        at = bisect_right(self._firsts, one) - 1
        if at < 0 or one > self._lasts[at]:
            return
        first, last = self._firsts[at], self._lasts[at]
        left = [(a, b) for a, b in ((first, one - 1), (one + 1, last)) if a <= b]
        self._firsts[at : at + 1] = [a for a, _ in left]
        self._lasts[at : at + 1] = [b for _, b in left]

    def drop_lowest(self, ranges_max: int) -> int:
        """Keep at most so many ranges, the highest; return how many went."""
        surplus = max(0, len(self) - ranges_max)
        del self._firsts[:surplus], self._lasts[:surplus]
        return surplus
