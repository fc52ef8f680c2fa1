"""The index behind a segment's records: which entry has which record, transaction id and time, at even distances.

Its body is a table of at most ROWS_MAX rows of four numbers of 8 bytes, little-endian: an entry's id, the records of
the segment before it, its first transaction id (relative to the segment's base) and its time. The first row is the
first entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise

from fastbk.errors import ProtocolError
from fastbk.native.stream_codec import HEAD_BYTES, KIND_INDEX, Head, put_head, read_head

ROWS_MAX = 4096
_ROW_WORDS = 4
ENTRY, RECORD, TXID, TIME = range(_ROW_WORDS)


class IndexBuilder:
    """Collects the index of a segment that is being written; its size does not grow with the segment's."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._stride = 1

    def add(self, entry_id: int, first_record: int, first_txid: int, time_us: int) -> None:
        """Tell of an entry; ids come without holes, from 0."""
        if entry_id % self._stride:
            return
        if len(self._rows) == ROWS_MAX:
            self._stride *= 2
            del self._rows[1::2]
            if entry_id % self._stride:
                return
        self._rows.append((entry_id, first_record, first_txid, time_us))

    def entry(self, epoch: int, records: int, last_txid: int, time_us: int) -> bytes:
        """Return the index entry of a segment with so many records."""
        body = array("q", [word for row in self._rows for word in row]).tobytes()
        head = bytearray(HEAD_BYTES)
        size = len(body)
        put_head(
            head, Head(KIND_INDEX, 0, epoch, 0, records, last_txid, last_txid, time_us, size, size)
        )
        return bytes(head) + body


class SegmentIndex:
    """A segment's index as it was read."""

    def __init__(self, entry: bytes | memoryview) -> None:
        """Raise ProtocolError for what is no index entry."""
        self.head = read_head(entry)
        body = bytes(entry[HEAD_BYTES:])
        if self.head.kind != KIND_INDEX or len(body) % (8 * _ROW_WORDS):
            raise ProtocolError(f"{len(entry)} bytes are no index entry of a segment")
        words = array("q", body)
        self._columns = [words[column::_ROW_WORDS] for column in range(_ROW_WORDS)]
        for column in self._columns:
            if any(one > other for one, other in pairwise(column)):
                raise ProtocolError("an index entry's rows are not in order")

    @property
    def records(self) -> int:
        """Records of the segment."""
        return self.head.first_record

    def entries_for(self, column: int, key: int) -> tuple[int, int | None]:
        """Return the entries that can hold the first record whose `column` is not less than `key`: from, and behind.

        None as the end: up to the segment's last one. For RECORD it is the one with that very record.
        """
        values, ids = self._columns[column], self._columns[ENTRY]
        if not len(ids):
            return 0, None
        find: Callable[..., int] = bisect_right if column == RECORD else bisect_left
        behind = find(values, key)
        first = ids[max(behind - 1, 0)]
        # Equal keys may go on over several rows: the first entry that has one is at or before the row found.
        return first, ids[behind] + 1 if behind < len(ids) else None
