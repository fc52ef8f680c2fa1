"""What a closed ledger holds, as a segment: by its first entry and its last ones (INV-S1), and by its index."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise

from fastbk.client.ledger_reader import Entry, LedgerReader
from fastbk.errors import ProtocolError, StorageError
from fastbk.native.stream_codec import (
    CODEC_NONE,
    HEAD_BYTES,
    KIND_INDEX,
    KIND_PROVENANCE,
    KIND_RECORDS,
    Head,
    put_head,
    read_head,
)
from fastbk.stream.chain import NONE, Contents
from fastbk.stream.context import clock_us
from fastbk.stream.positions import AHEAD_US_MAX, DLSN, TXID_MAX
from fastbk.stream.records import RECORDS_MAX


async def contents_of(reader: LedgerReader, number: int, base_txid: int = 0) -> Contents:
    """Return what the closed ledger of segment `number` holds; `base_txid`: what its ids are relative to.

    Raises StorageError for a ledger that is no segment, and what reads raise.
    """
    last_entry_id = reader.metadata.last_entry_id
    if last_entry_id is None or last_entry_id < 0:
        return Contents(0)
    last = await _head(reader, last_entry_id)
    if last.kind == KIND_INDEX and last_entry_id == 0:
        return Contents(0)
    index_entry_id = last_entry_id if last.kind == KIND_INDEX else NONE
    entry_id = last_with_records(last, last_entry_id)
    if last.kind == KIND_PROVENANCE and last.first_record == 0:
        return _without_records(reader, last)
    if entry_id == NONE:
        raise StorageError(f"ledger {reader.ledger_id} is no segment: its end names no entry")
    head = last if entry_id == last_entry_id else await _head(reader, entry_id)
    first = head if entry_id == 0 else await _head(reader, 0)
    if head.kind != KIND_RECORDS or first.kind == KIND_INDEX:
        raise StorageError(f"ledger {reader.ledger_id} is no segment: an index lies before its end")
    records = head.first_record + head.record_count
    if records > (entry_id + 1) * RECORDS_MAX or not 0 <= base_txid + head.last_txid <= TXID_MAX:
        raise StorageError(
            f"ledger {reader.ledger_id} is no segment: its last entry says {records} records, and transaction id"
            f" {base_txid + head.last_txid}",
            ledger_id=reader.ledger_id,
        )
    return Contents(
        records=records,
        first_txid=base_txid + max(first.first_txid, 0),
        last_txid=base_txid + head.last_txid,
        first_time_us=_time_us(first),
        last_time_us=_time_us(last),
        last_dlsn=DLSN(number, entry_id, head.record_count - 1),
        index_entry_id=index_entry_id,
        size_bytes=reader.metadata.length or 0,
        epoch=first.epoch,
    )


def _without_records(reader: LedgerReader, last: Head) -> Contents:
    """Return what a ledger holds in which producers' names were opened, and nothing was appended."""
    return Contents(
        0,
        first_txid=last.first_txid,
        last_txid=last.last_txid,
        first_time_us=_time_us(last),
        last_time_us=_time_us(last),
        size_bytes=reader.metadata.length or 0,
        epoch=last.epoch,
    )


def _time_us(head: Head) -> int:
    """Return an entry's time: a clock that was wrong, or lies, must not hold up what goes by time for good.

    Clocks differ a little.
    """
    return min(max(head.time_us, 0), clock_us() + AHEAD_US_MAX // 2)


def last_with_records(last: Head, entry_id: int) -> int:
    """Return the id of the last entry with records, up to the entry `entry_id` with this head; NONE: there is none.

    Behind it lie only the segment's index, and entries that opened producers' names.
    """
    if last.kind == KIND_RECORDS:
        return entry_id
    if last.kind == KIND_PROVENANCE and not last.records_distance:
        return NONE
    return max(entry_id - (last.records_distance or 1), NONE)


async def _head(reader: LedgerReader, entry_id: int) -> Head:
    (entry,) = [one async for one in reader.read(entry_id, entry_id)]
    return head_of(entry)


async def holds_byte(reader: LedgerReader, position: int) -> bool:
    """Return whether bookies hold the byte at `position` of all the data of a closed ledger.

    Each entry says how many bytes there are up to its end. Entries that say so of more than they have cannot cover all
    positions: of those that are drawn, this is true for a share that is at most the share of bytes that are there.
    Raises what reads raise.
    """
    low, high = 0, reader.metadata.last_entry_id or 0
    while low < high:
        middle = (low + high) // 2
        length, _ = await _length(reader, middle)
        low, high = (low, middle) if length > position else (middle + 1, high)
    length, size_bytes = await _length(reader, low)
    return length - size_bytes <= position < length


async def _length(reader: LedgerReader, entry_id: int) -> tuple[int, int]:
    """Return the bytes of data up to the end of an entry, as its writer said, and those of the entry itself."""
    (batch,) = [one async for one in reader.read_batches(entry_id, entry_id)]
    return batch.lengths[0], batch.size_bytes


def head_of(entry: Entry) -> Head:
    """Return an entry's head. Raises StorageError for what is no entry of a stream."""
    try:
        return read_head(entry.data)
    except ProtocolError as error:
        raise StorageError(
            f"ledger {entry.ledger_id} is no segment: its entry {entry.entry_id} is none of a stream's",
            ledger_id=entry.ledger_id,
            entry_id=entry.entry_id,
        ) from error


# --- the index behind a segment's records -----------------------------------------------------------------------
# Its body is a table of at most ROWS_MAX rows of four numbers of 8 bytes, little-endian: an entry's id, the records of
# the segment before it, its first transaction id (relative to the segment's base) and its time. The rows lie at even
# distances, and the first one is the first entry.

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

    def entry(
        self, epoch: int, records: int, last_txid: int, time_us: int, records_distance: int = 0
    ) -> bytes:
        """Return the index entry of a segment with so many records; `records_distance`: see `boundary/stream.h`."""
        body = array("q", [word for row in self._rows for word in row]).tobytes()
        head = bytearray(HEAD_BYTES)
        size = len(body)
        put_head(
            head,
            Head(
                KIND_INDEX,
                CODEC_NONE,
                epoch,
                0,
                records,
                last_txid,
                last_txid,
                time_us,
                size,
                size,
                records_distance=records_distance,
            ),
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
