"""What a reader reads next, across segments: a state machine without I/O (INV-S11).

It knows one place, `segment` and `entry`, and moves it forward only: by entries that were read, by entries that are
lost, and by the end of a segment. Events name the ledger that they are about: those of another segment or ledger, and
repeated ones, change nothing, so that no segment is passed by twice and no entry is taken twice.

A segment is complete when its index entry was met, when its ledger is closed and read to its end, or when the chain
says what it holds and that was read. A ledger that is closed and empty is no end of a segment: the number will be used
again by another ledger, or the stream is sealed.
"""

from __future__ import annotations

import enum

from fastbk.stream.chain import NONE, Chain, Segment
from fastbk.stream.positions import DLSN


class Next(enum.Enum):
    """What is to be done."""

    READ = 1
    """Read segment `segment` from `entry` on; `begin` with its row."""
    WAIT = 2
    """Nothing is there to be read before the chain changes."""
    END = 3
    """The stream is sealed, and all of it was read."""
    TRIMMED = 4
    """The place lies before the trim point."""


class ReadPlan:
    """One reader's place.

    Attributes:
        segment, entry: the next entry to be read.
        base_seq: the number of the segment's first record, NONE while it is not known.
        next_seq: the sequence number behind the last record read, NONE where that is not known.
    """

    def __init__(self, position: DLSN) -> None:
        self.segment = position.segment
        self.entry = position.entry
        self.next_seq = NONE
        self._slot = position.slot
        self._ledger_id = NONE
        self.base_seq = NONE
        self._records: int | None = 0
        self._empty: tuple[int, int] | None = None

    @property
    def place(self) -> DLSN:
        """Where the next record may lie."""
        return DLSN(self.segment, self.entry, self._slot)

    def next(self, chain: Chain) -> Next:
        """Return what is to be done, by the chain as it is known now; it may be an old one."""
        if self.place < chain.trim:
            return Next.TRIMMED
        if self.segment >= chain.next_number:
            return Next.END if chain.is_sealed else Next.WAIT
        if self._empty is not None:
            row = chain.row(self.segment)
            if row is not None and row.is_open and self._empty == (row.number, row.ledger_id):
                return Next.WAIT
        return Next.READ

    def begin(self, row: Segment) -> bool:
        """The row of the segment was found: return whether there is anything to read in it; if not, it is complete.

        To be called before each reading of its ledger, also when that is begun again.
        """
        if row.number != self.segment:
            return False
        if row.ledger_id != self._ledger_id:
            # A number is used again only where nothing was read from the ledger before.
            self._ledger_id = row.ledger_id
            self._records = 0 if self.entry == 0 else None
        self._empty = None
        if row.base_seq != NONE:
            self.base_seq = row.base_seq
        if row.is_open or self.entry <= row.last_entry_id:
            return True
        self._records = row.records
        self.completed(row.number, row.ledger_id)
        return False

    def found_base(self, number: int, base_seq: int) -> None:
        """The number of that segment's first record was found out."""
        if number == self.segment and self.base_seq == NONE:
            self.base_seq = base_seq

    def read(
        self, number: int, ledger_id: int, first_entry: int, last_entry: int, records: int
    ) -> bool:
        """These entries were read; the segment has so many records up to their end. False: they are not to be taken."""
        if not self._is_about(number, ledger_id) or first_entry != self.entry:
            return False
        self.entry, self._slot = last_entry + 1, 0
        self._records = records
        if self.base_seq != NONE:
            self.next_seq = self.base_seq + records
        return True

    def lost(self, number: int, ledger_id: int, entry: int) -> None:
        """That entry cannot be read: it is passed by."""
        if self._is_about(number, ledger_id) and entry == self.entry:
            self.entry, self._slot = entry + 1, 0
            self._records = None
            self.next_seq = NONE

    def lost_all(self, row: Segment) -> None:
        """Nothing of that segment can be read: it is passed by."""
        if row.number != self.segment:
            return
        self.begin(row)
        self._records = None if row.is_open else row.records
        self.completed(row.number, row.ledger_id)

    def completed(self, number: int, ledger_id: int) -> None:
        """All of that segment was read; it has records."""
        if not self._is_about(number, ledger_id):
            return
        known = self.base_seq != NONE and self._records is not None
        self.segment, self.entry, self._slot = number + 1, 0, 0
        self.base_seq = self.base_seq + (self._records or 0) if known else NONE
        self.next_seq = self.base_seq
        self._ledger_id, self._records = NONE, 0

    def was_empty(self, number: int, ledger_id: int) -> None:
        """The segment's ledger is closed and holds no records: wait until the chain says what comes instead."""
        if self._is_about(number, ledger_id):
            self._empty = (number, ledger_id)

    def _is_about(self, number: int, ledger_id: int) -> bool:
        return number == self.segment and ledger_id == self._ledger_id
