"""What a reader has at hand: the records that come next, where it is, and where it ends; no I/O.

Whatever is taken is taken at once and moves the position with it: a call that is cancelled has taken nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fastbk.errors import ProtocolError, StorageError
from fastbk.observe.tracing import Attributes, Tracer, tracer_of
from fastbk.replication.entry_table import EntryTable, datas_of
from fastbk.stream.chain import NONE, Chain
from fastbk.stream.positions import DLSN, FIRST
from fastbk.stream.reader.read_ahead import ChainFollower, Ended, Entries, Missing, ReadAhead
from fastbk.stream.reader.search import Key, has_no_records_before, index_in
from fastbk.stream.records import Chunk, Gap, Record, chunk_of, chunk_of_run

if TYPE_CHECKING:
    from fastbk.stream.context import StreamContext

IN_PLACE_BYTES_MIN = 64 * 1024
"""Entries that came together and have so many bytes are a chunk of their own, decoded where they were received."""


class ReadBuffer:
    """One reader's.

    Attributes:
        ahead: where entries come from.
        is_over: nothing comes any more.
        last_time_us: of the last record that was handed out, 0 before.
        record_bytes: a record's part of the chunk that was decoded last, 0 before.
        taken: records that were handed out of chunks that are done with, and about how many bytes.
    """

    def __init__(
        self,
        name: str,
        position: DLSN,
        from_key: Key | None,
        ends: Sequence[DLSN | Key],
        keys_from: DLSN = FIRST,
        start_seq: int = NONE,
    ) -> None:
        """Records before `from_key` are not handed out, nor what is not before one of `ends`.

        Args:
            keys_from: what lies before it reaches no key of `ends`.
            start_seq: number of the record at `position`, NONE where it is not known. With it a start behind the last
                record of a segment that is gone by now is no gap.
        """
        self.ahead: ReadAhead | None = None
        self.is_over = False
        self.last_time_us = 0
        self.record_bytes = 0.0
        self.taken = (0, 0)
        self._chunk: Chunk | None = None
        self._at = 0
        self._name = name
        self._ends = ends
        self._keys_from = keys_from
        self._start = position, start_seq
        self.move_to(position, from_key)

    def move_to(self, position: DLSN, from_key: Key | None = None) -> None:
        """Forget what is at hand; go on there."""
        self.taken = self.taken_in_all()
        self._behind = position
        self._from_key = from_key
        self._chunk, self._at = None, 0
        self._seen: Chain | None = None
        self._behind_seq = NONE
        self._ends_behind = False
        self.is_over = self._is_past_end() or self._is_empty_range(from_key)
        self.ahead = None

    def let_go(self) -> None:
        """Forget what is at hand, to be read again from there."""
        position, seq = self.position, self.next_seq
        self.move_to(position, self._from_key)
        self._behind_seq = seq

    @property
    def end(self) -> DLSN | None:
        """The first of the positions that it ends at, None if there is none."""
        return min((end for end in self._ends if isinstance(end, DLSN)), default=None)

    def _is_past_end(self) -> bool:
        """Whether no record at `_behind` or later is before all ends."""
        position, seq = self._behind, max(self._behind_seq, 0)
        return any(
            position >= end if isinstance(end, DLSN) else end.kind == "seq" and seq >= end.value
            for end in self._ends
        )

    def _is_empty_range(self, start: Key | None) -> bool:
        """Whether no record can be at or behind this key and before all ends."""
        keys = [end for end in self._ends if isinstance(end, Key)]
        return start is not None and any(
            start.kind == end.kind and start.value >= end.value for end in keys
        )

    # --- where it is --------------------------------------------------------------------------------------------

    @property
    def position(self) -> DLSN:
        """Position of the next record."""
        chunk = self._chunk
        return self._behind if chunk is None else chunk[self._at :].first_dlsn

    def next_seq_in(self, chain: Chain) -> int:
        """Return the next record's number; before the first one was decoded that of its segment's first, or less.

        What is truncated is not next, as far as the chain says how many records that is: by whole segments.
        """
        least = _least_seq(chain)
        if self.next_seq != NONE:
            return max(self.next_seq, least)
        row = chain.row(self.position.segment)
        return max(least, NONE if row is None else row.base_seq, 0)

    @property
    def next_seq(self) -> int:
        """Its number, NONE where it is not known."""
        chunk = self._chunk
        return self._behind_seq if chunk is None else chunk.first_seq + self._at

    def taken_in_all(self) -> tuple[int, int]:
        """Return how many records were handed out, and about how many bytes."""
        (records, size_bytes), chunk, at = self.taken, self._chunk, self._at
        if chunk is None or at == 0:
            return records, size_bytes
        return records + at, size_bytes + round(chunk.entries_bytes * at / len(chunk))

    @property
    def has_items(self) -> bool:
        """Whether something is at hand, or was read ahead."""
        return self._chunk is not None or (self.ahead is not None and self.ahead.peek() is not None)

    # --- gaps ---------------------------------------------------------------------------------------------------

    def gap_at(self, chain: Chain) -> Gap | None:
        """Return what is missing where the reader is, by the chain as it is known now; None if nothing is."""
        self._pass_ends()
        if self.is_over:
            return None
        if chain is not self._seen:
            position = self.position
            if position < chain.trim:
                records = self._trimmed_records(chain, position)
                if records != 0:
                    return Gap("trimmed", position, chain.trim, records)
                seq = self.next_seq
                ahead = self.ahead
                self.move_to(chain.trim)
                self.ahead, self._behind_seq = ahead, seq
            self._seen = chain
        item = self.ahead.peek() if self._chunk is None and self.ahead is not None else None
        if isinstance(item, Missing):
            known = item.next_seq != NONE and self._behind_seq != NONE
            records = item.next_seq - self._behind_seq if known else None
            return Gap("lost", self._behind, item.next, records)
        return None

    def _trimmed_records(self, chain: Chain, position: DLSN) -> int | None:
        """Return how many records lie from `position` to the trim point, None where nobody knows."""
        trim = chain.trim
        begins = trim.entry == 0 and trim.slot == 0
        if has_no_records_before(trim, chain, position):
            return 0
        next_seq = self.next_seq
        if next_seq == NONE and position == self._start[0]:
            next_seq = self._start[1]
        if next_seq == NONE or not begins:
            return None
        first = chain.row(trim.segment)
        if first is not None and first.base_seq != NONE:
            return max(first.base_seq - next_seq, 0)
        if trim.segment == chain.head:
            return max(chain.head_seq - next_seq, 0)
        return None

    def pass_by(self, gap: Gap) -> None:
        """The gap was told: go on behind it."""
        if gap.kind == "trimmed":
            self.move_to(gap.next, self._from_key)
            return
        assert self.ahead is not None
        item = self.ahead.peek()
        assert isinstance(item, Missing)
        self.ahead.take()
        self._behind, self._behind_seq = gap.next, item.next_seq
        self.is_over = self._is_past_end()

    # --- records ------------------------------------------------------------------------------------------------

    def has_record(self, follower: ChainFollower | None) -> bool:
        """Whether `next_record` may be called: one is at hand, and nothing was told since it was looked at."""
        return (
            self._chunk is not None
            and follower is not None
            and follower.chain is self._seen
            and follower.failure is None
        )

    def next_record(self) -> Record:
        """Take one record. Raises ProtocolError for one that cannot be read; then nothing is taken."""
        chunk = self._chunk
        assert chunk is not None
        record = chunk[self._at]
        self._took(chunk, 1, record.time_us)
        return record

    def pass_record(self) -> Gap:
        """Take one record that cannot be read, as a gap."""
        chunk = self._chunk
        assert chunk is not None
        gap = unreadable_gap(chunk, self._at)
        self._took(chunk, 1, self.last_time_us)
        return gap

    def pass_entry(self) -> Gap:
        """Take the entry that cannot be decoded, as a gap; nobody knows how many records it has."""
        ahead = self.ahead
        item = None if ahead is None else ahead.peek()
        assert isinstance(item, Entries) and ahead is not None
        ahead.take()
        if item.count > 1:
            ahead.put_back([item.behind(1)])
        first = max(self._behind, DLSN(item.segment, item.first_entry, 0))
        self._behind, self._behind_seq = DLSN(item.segment, item.first_entry + 1, 0), NONE
        self.is_over = self._is_past_end()
        return Gap("lost", first, self._behind)

    def is_filling(self, max_bytes: int) -> bool:
        """Whether what is there could be more: something is, and less than `max_bytes`."""
        return (
            self._chunk is None
            and self.ahead is not None
            and isinstance(self.ahead.peek(), Entries)
            and self.ahead.queued_bytes < max_bytes
            and not self.ahead.is_complete
        )

    def fill(self, max_bytes: int) -> bool:
        """Decode what is there, and return whether a record is at hand.

        Raises EntryUnreadable for what is no entry of a stream, and then nothing is taken: again at each call.
        """
        while self._chunk is None and not self.is_over:
            self._pass_ends()
            item = self.ahead.peek() if self.ahead is not None else None
            if not isinstance(item, Entries):
                self.is_over = self.is_over or self._is_stream_over()
                return False
            self._decode(item, max_bytes)
        return self._chunk is not None

    def take(self, max_records: int, max_bytes: int) -> Chunk | None:
        """Take what is there; None if nothing is. Raises as `fill`."""
        if not self.fill(max_bytes):
            return None
        chunk = self._chunk
        assert chunk is not None
        part = chunk[self._at : self._at + max_records]
        self._took(chunk, len(part), part.last_time_us)
        return part

    def _took(self, chunk: Chunk, count: int, last_time_us: int) -> None:
        self._at += count
        self.last_time_us = last_time_us
        if self._at == len(chunk):
            self.taken = self.taken_in_all()
            self._chunk, self._at = None, 0
            self.is_over = self.is_over or self._ends_behind or self._is_past_end()

    def _pass_ends(self) -> None:
        """The ends of segments are passed as soon as they are known, so that a place has one name."""
        ahead = self.ahead
        while self._chunk is None and ahead is not None:
            item = ahead.peek()
            if not isinstance(item, Ended):
                return
            ahead.take()
            self._behind = max(self._behind, DLSN(item.segment + 1, 0, 0))
            self.is_over = self.is_over or self._is_past_end()

    def _is_stream_over(self) -> bool:
        ahead = self.ahead
        return ahead is not None and ahead.is_over and ahead.peek() is None

    def _readable(self, items: Sequence[Entries]) -> Chunk:
        """Return the entries before the one that cannot be decoded. Raises EntryUnreadable if there are none."""
        first, good = items[0], 0
        datas = [data for item in items for run in item.runs for data in datas_of(run)]
        try:
            for index, data in enumerate(datas):
                chunk_of(first.segment, first.first_entry + index, [data], 0, 0)
                good += 1
        except ProtocolError as error:
            if not good:
                assert self.ahead is not None
                self.ahead.put_back(items)
                place = DLSN(first.segment, first.first_entry, 0)
                raise EntryUnreadable(
                    f"{self._name}: the entry at {place} cannot be decoded: {error};"
                    f" behind it is {DLSN(first.segment, first.first_entry + 1, 0)}"
                ) from error
        return chunk_of(
            first.segment, first.first_entry, datas[: good or 1], first.base_seq, first.base_txid
        )

    def _decode(self, first: Entries, max_bytes: int) -> None:
        """Take entries of one segment that follow each other, up to `max_bytes`, and make a chunk of them."""
        ahead = self.ahead
        assert ahead is not None
        items, size_bytes, item = [first], first.size_bytes, first
        ahead.take()
        # What is large is left where it was received; small answers are worth a copy to make one chunk of them.
        while size_bytes < IN_PLACE_BYTES_MIN and isinstance(following := ahead.peek(), Entries):
            size_bytes += following.size_bytes
            is_next = following.first_entry == item.first_entry + item.count
            if following.segment != item.segment or not is_next or size_bytes > max_bytes:
                break
            items.append(following)
            item = following
            ahead.take()
        try:
            chunk = _chunk_of_items(items, max_bytes)
        except ProtocolError:
            chunk = self._readable(items)
        self.record_bytes = len(chunk.data) / max(len(chunk), 1)
        index = chunk.index_of(self._behind)
        if self._from_key is not None:
            index = max(index, index_in(chunk, self._from_key))
        self._ends_behind = False
        stop = len(chunk)
        for end in self._ends:
            place = chunk.index_of(end if isinstance(end, DLSN) else self._keys_from)
            if isinstance(end, Key):
                place = max(place, index_in(chunk, end))
            if place < len(chunk):
                stop, self._ends_behind = min(stop, place), True
        if chunk.first_seq + index != self._behind_seq != NONE and self._from_key is None:
            ahead.put_back(items)
            raise StorageError(
                f"{self._name}: record {self._behind_seq} was expected at {self._behind}, and"
                f" {chunk.first_seq + index} came: its numbers have a hole"
            )
        ahead.put_back(_behind(items, chunk.entries))
        self._behind, self._behind_seq = chunk.next_dlsn, chunk.first_seq + len(chunk)
        if index < stop:
            self._chunk, self._at = chunk[index:stop], 0
            self._from_key = None
            if stop < len(chunk):
                self._behind = chunk[stop:].first_dlsn
                self._behind_seq = chunk.first_seq + stop
        else:
            # All of it was skipped, and nothing may ever come behind it.
            self.is_over = self._ends_behind or self._is_past_end()


class EntryUnreadable(StorageError):
    """The next entry is none of a stream."""

    code = StorageError.code


def unreadable_gap(chunk: Chunk, at: int) -> Gap:
    """Return the gap that stands for one record of a chunk."""
    return Gap("lost", chunk[at:].first_dlsn, chunk[at : at + 1].next_dlsn, 1, chunk.stream)


def _chunk_of_items(items: Sequence[Entries], max_bytes: int) -> Chunk:
    """Return entries that follow each other, of one segment, as a chunk; of compressed ones as many as fit."""
    first = items[0]
    runs = [run for item in items for run in item.runs]
    if len(runs) == 1 and isinstance(runs[0], EntryTable):
        return chunk_of_run(
            first.segment, first.first_entry, runs[0], first.base_seq, first.base_txid, max_bytes
        )
    datas = [data for run in runs for data in datas_of(run)]
    return chunk_of(
        first.segment, first.first_entry, datas, first.base_seq, first.base_txid, max_bytes
    )


def _behind(items: Sequence[Entries], count: int) -> list[Entries]:
    """Return what is left of these behind the first `count` entries."""
    left: list[Entries] = []
    for item in items:
        if count < item.count:
            left.append(item if count <= 0 else item.behind(count))
        count -= item.count
    return left


def _least_seq(chain: Chain) -> int:
    """Return a number that all records which are not truncated have at least."""
    trim, row = chain.trim, chain.row(chain.trim.segment)
    if row is None:
        is_behind_all = not chain.rows or trim.segment > chain.rows[-1].number
        return chain.end_seq if is_behind_all else chain.head_seq
    if not row.is_open and trim.entry > row.last_entry_id:
        return max(chain.head_seq, row.base_seq + row.records)
    return max(chain.head_seq, row.base_seq)


# --- spans of traced records ----------------------------------------------------------------------
#
# A reader's buffer that makes a span of each record whose append was traced, when the record is
# handed out.


def buffer_of(
    context: StreamContext,
    position: DLSN,
    from_key: Key | None,
    ends: Sequence[DLSN | Key],
    keys_from: DLSN = FIRST,
    start_seq: int = NONE,
) -> ReadBuffer:
    """Return a reader's buffer, with spans or without."""
    tracer = tracer_of(context.client.config.tracing)
    if tracer is None:
        return ReadBuffer(context.name, position, from_key, ends, keys_from, start_seq)
    return TracedBuffer(context.name, position, from_key, ends, tracer, keys_from, start_seq)


class TracedBuffer(ReadBuffer):
    """`ReadBuffer` with spans."""

    def __init__(
        self,
        name: str,
        position: DLSN,
        from_key: Key | None,
        ends: Sequence[DLSN | Key],
        tracer: Tracer,
        keys_from: DLSN = FIRST,
        start_seq: int = NONE,
    ) -> None:
        super().__init__(name, position, from_key, ends, keys_from, start_seq)
        self._tracer = tracer
        self._span_name = f"receive {name}"
        self._attributes = {
            "messaging.system": "fastbk",
            "messaging.operation.type": "receive",
            "messaging.destination.name": name,
        }

    def next_record(self) -> Record:
        """Do the same as `ReadBuffer`."""
        record = super().next_record()
        if record.headers:
            self._received(record)
        return record

    def take(self, max_records: int, max_bytes: int) -> Chunk | None:
        """Do the same as `ReadBuffer`."""
        chunk = super().take(max_records, max_bytes)
        if chunk is not None:
            for row in chunk.rows_with_headers():
                # of a record that cannot be read: whoever looks at it is told
                with suppress(ProtocolError):
                    self._received(chunk[row])
        return chunk

    def _received(self, record: Record) -> None:
        segment, entry, slot = record.dlsn
        attributes: Attributes = {
            **self._attributes,
            "messaging.message.body.size": len(record.payload),
            "fastbk.segment": segment,
            "fastbk.entry.id": entry,
            "fastbk.slot": slot,
            "fastbk.record.age_ms": max(time.time_ns() // 1000 - record.time_us, 0) / 1e3,
        }
        self._tracer.received(self._span_name, attributes, record.headers)
