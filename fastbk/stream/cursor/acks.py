"""What a holder of a cursor knows to be done: acknowledgements come in, states to be kept go out. Pure (INV-S10)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from fastbk.invariant import check
from fastbk.stream.cursor.state import NONE, RANGES_MAX, CursorState, Data
from fastbk.stream.positions import DLSN


def behind(dlsn: DLSN) -> DLSN:
    """Return the position right behind a record: not behind that of the record after it, wherever that is."""
    return DLSN(dlsn.segment, dlsn.entry, dlsn.slot + 1)


class AckRanges:
    """Ranges `first` up to, not with, `end`, of sequence numbers; sorted, and none touches another.

    A position does not show which one is next: that takes the number of records in its entry. So ranges count by
    sequence numbers, and each also has the position behind its last record, so that the mark can move over it.

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


class CursorAcks:
    """The mark, and what is done behind it.

    Attributes:
        mark, mark_seq: see `CursorState`.
        changes: counts what has changed; what is kept of a cursor is compared by it.
    """

    def __init__(self, state: CursorState) -> None:
        self.mark = state.mark
        self.mark_seq = state.mark_seq
        self.ranges = AckRanges(state.firsts, state.ends, state.behinds)
        self.data: Data = dict(state.data)
        self.gaps = state.gaps
        self.gap_records = state.gap_records
        self.changes = 0

    def state(self, serial: int, epoch: int, time_us: int) -> CursorState:
        """Return all of it as a value."""
        return CursorState(
            serial,
            epoch,
            self.mark,
            self.mark_seq,
            tuple(self.ranges.firsts),
            tuple(self.ranges.ends),
            tuple(self.ranges.behinds),
            dict(self.data),
            time_us,
            self.gaps,
            self.gap_records,
        )

    def is_done(self, seq: int) -> bool:
        """Whether this record needs no more delivery."""
        return seq < self.mark_seq or (len(self.ranges) > 0 and seq in self.ranges)

    def not_done(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return what of these records is not done, as ranges `first` up to, not with, `end`."""
        return self.ranges.missing(max(first, self.mark_seq), end)

    def ack(self, seq: int, dlsn: DLSN) -> bool:
        """All up to this record, it included, is done; False, and nothing, if it was before."""
        if seq < self.mark_seq:
            return False
        self._move(seq + 1, behind(dlsn))
        return True

    def has_room(self, seq: int) -> bool:
        """Whether `ack_one` may be called: it needs no range more than there may be."""
        return (
            len(self.ranges) < RANGES_MAX
            or seq <= self.mark_seq
            or self.ranges.touches(seq, seq + 1)
        )

    def ack_one(self, seq: int, dlsn: DLSN) -> bool:
        """This record is done; False, and nothing, if it was before."""
        return self._done(seq, seq + 1, behind(dlsn))

    def _done(self, first: int, end: int, position: DLSN) -> bool:
        if first >= end or not self.not_done(first, end):
            return False
        if first <= self.mark_seq:
            self._move(end, position)
        else:
            self.ranges.add(first, end, position)
            self.changes += 1
        return True

    def _move(self, mark_seq: int, mark: DLSN) -> None:
        check(mark_seq > self.mark_seq, "INV-S10: a mark moves forward, or by a reset")
        reached, position = self.ranges.reach(mark_seq)
        self.mark_seq = reached
        self.mark = mark if position is None else position
        self.changes += 1

    def first_is(self, seq: int) -> None:
        """The first record that is not before the mark has this number: what a reader tells that began there."""
        if self.mark_seq == NONE:
            self._move(seq, self.mark)

    def pass_gap(self, first: int, end: int, position: DLSN) -> int:
        """These records are gone: nobody can do them any more. `position`: of what follows them.

        Returns how many of them were not done.
        """
        lost = sum(high - low for low, high in self.not_done(first, end))
        if lost:
            self.gaps += 1
            self.gap_records += lost
            self._done(first, end, position)
        return lost

    def reset(self, mark: DLSN, mark_seq: int = NONE) -> None:
        """Begin anew here: nothing at or behind it is done. `mark_seq`: NONE where its number is not known yet."""
        self.mark, self.mark_seq = mark, mark_seq
        self.ranges = AckRanges()
        self.changes += 1
