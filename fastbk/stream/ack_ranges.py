"""Records behind a cursor's mark that are done one by one, as ranges of sequence numbers. Pure.

Sequence numbers and not positions, because a position does not tell which one follows it: that takes the number of
records in its entry. With each range stands the position behind its last record, so that the mark can move over it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from fastbk.stream.positions import DLSN


class AckRanges:
    """Ranges `first` up to, not with, `end`; sorted, and none touches another.

    Attributes:
        firsts, ends: of each range.
        behinds: of each range, a position behind its last record and not behind the next record.
    """

    __slots__ = ("behinds", "ends", "firsts")

    def __init__(
        self, firsts: Sequence[int] = (), ends: Sequence[int] = (), behinds: Sequence[DLSN] = ()
    ) -> None:
        self.firsts = list(firsts)
        self.ends = list(ends)
        self.behinds = list(behinds)

    def __len__(self) -> int:
        return len(self.firsts)

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self.firsts, seq) - 1
        return at >= 0 and seq < self.ends[at]

    def __iter__(self) -> Iterator[tuple[int, int, DLSN]]:
        return zip(self.firsts, self.ends, self.behinds, strict=True)

    @property
    def records(self) -> int:
        """Records in all ranges."""
        return sum(self.ends) - sum(self.firsts)

    def touches(self, first: int, end: int) -> bool:
        """Whether `add` of this range needs no room: there is one that it overlaps or lies beside."""
        return bisect_left(self.ends, first) < bisect_right(self.firsts, end)

    def add(self, first: int, end: int, behind: DLSN) -> None:
        """Take a range, not empty, in; those that it overlaps or touches become one with it."""
        low, high = bisect_left(self.ends, first), bisect_right(self.firsts, end)
        if low < high:
            first = min(first, self.firsts[low])
            if self.ends[high - 1] >= end:
                end, behind = self.ends[high - 1], self.behinds[high - 1]
        self.firsts[low:high] = [first]
        self.ends[low:high] = [end]
        self.behinds[low:high] = [behind]

    def reach(self, mark_seq: int) -> tuple[int, DLSN | None]:
        """Drop what lies below the mark, or touches it; return where the mark gets by it, and that position if so."""
        count = bisect_right(self.firsts, mark_seq)
        if count == 0:
            return mark_seq, None
        end, behind = self.ends[count - 1], self.behinds[count - 1]
        del self.firsts[:count], self.ends[:count], self.behinds[:count]
        return (end, behind) if end > mark_seq else (mark_seq, None)

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return what of this range is in none of ours, as ranges."""
        found: list[tuple[int, int]] = []
        at = bisect_right(self.ends, first)
        while first < end and at < len(self.firsts) and self.firsts[at] < end:
            if self.firsts[at] > first:
                found.append((first, self.firsts[at]))
            first = self.ends[at]
            at += 1
        if first < end:
            found.append((first, end))
        return found
