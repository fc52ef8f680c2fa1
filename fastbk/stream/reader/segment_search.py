"""One segment, looked at by entry or by key; see `search.py`."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Literal, NamedTuple

from fastbk.client.entries import Entry
from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import (
    DigestMismatch,
    Error,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolError,
    StorageError,
)
from fastbk.native.stream_codec import KIND_INDEX, KIND_RECORDS, Head
from fastbk.stream.chain.chain import NONE, PageRef, Segment
from fastbk.stream.chain.segment_contents import RECORD, TIME, TXID, SegmentIndex, head_of
from fastbk.stream.context import StreamContext
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.gaps import lost
from fastbk.stream.records import Chunk, Record, chunk_of

FAN = 7
"""Entries whose heads are read at the same time; each round leaves an eighth."""
_COLUMNS = {"txid": TXID, "time": TIME, "seq": RECORD}


class Key(NamedTuple):
    """What to search by: transaction id, time in µs since 1970, or sequence number."""

    kind: Literal["txid", "time", "seq"]
    value: int


def key_of_row(key: Key, row: Segment | PageRef) -> bool:
    """Return whether the row's last record is not before the key. An open segment's may always be."""
    if isinstance(row, Segment) and row.is_open:
        return True
    if key.kind == "txid":
        return row.last_txid >= key.value
    if key.kind == "time":
        return row.last_time_us >= key.value
    assert isinstance(row, Segment)  # a page does not say where it ends
    return row.end_seq > key.value


def is_reached(key: Key, record: Record) -> bool:
    """Return whether a record is not before the key."""
    if key.kind == "txid":
        return record.txid >= key.value
    return (record.time_us if key.kind == "time" else record.seq) >= key.value


def index_in(chunk: Chunk, key: Key) -> int:
    """Return the place of the first record of a chunk that is not before the key; len(chunk) if there is none."""
    return bisect_left(range(len(chunk)), True, key=lambda at: is_reached(key, chunk[at]))


class SegmentAt:
    """Opens a segment's ledger, without recovery; `async with`."""

    def __init__(self, context: StreamContext, row: Segment) -> None:
        self._context = context
        self._row = row
        self._base_seq = row.base_seq
        self._probed: dict[int, Entry] = {}
        self._last: int | None = None if row.is_open else row.last_entry_id
        self._confirmed: int | None = None

    async def __aenter__(self) -> SegmentAt:
        """Raises NoSuchLedger."""
        return await self.open()

    async def open(self) -> SegmentAt:
        """Open the ledger and return this: for who keeps it open longer than a block. Raises NoSuchLedger."""
        client, ledger_id = self._context.client, self._row.ledger_id
        self._reader: LedgerReader = await client.open_ledger(ledger_id, recovery=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the ledger."""
        await self._reader.close()

    async def has_moved(self) -> bool:
        """Ask an open segment's bookies anew; return whether another entry is the last one than before."""
        confirmed = await self._reader.last_add_confirmed()
        if confirmed == self._confirmed:
            return False
        self._confirmed, self._last = confirmed, None
        return True

    def forget(self) -> None:
        """Have `has_moved` answer True: what it said before could not be made use of."""
        self._confirmed = None

    async def last_entry(self, *, fresh: bool = True) -> int:
        """Return the last visible entry with records, -1 if there is none."""
        if self._last is None:
            reader = self._reader
            ask = reader.last_add_confirmed if fresh else reader.try_last_add_confirmed
            last = await ask() if self._confirmed is None else self._confirmed
            if last >= 0 and head_of(await self._raw(last)).kind == KIND_INDEX:
                last -= 1
            self._last = last
        return self._last

    async def _raw(self, entry_id: int) -> Entry:
        """Return an entry. Raises DataLost."""
        try:
            async for batch in self._reader.read_batches(entry_id, entry_id):
                return next(iter(batch))
        except (NoSuchEntry, DigestMismatch) as error:
            number = self._row.number
            first, behind = DLSN(number, entry_id, 0), DLSN(number, entry_id + 1, 0)
            raise lost(self._context.name, first, behind, error) from error
        raise NoSuchEntry(f"ledger {self._row.ledger_id} has no entry {entry_id}")

    async def entry(self, entry_id: int) -> Chunk:
        """Return an entry's records; it must be visible. Raises DataLost, StorageError."""
        raw = self._probed.get(entry_id) or await self._raw(entry_id)
        row, base_seq = self._row, await self._base()
        try:
            return chunk_of(row.number, entry_id, [raw.data], base_seq, row.base_txid)
        except ProtocolError as error:
            raise StorageError(
                f"ledger {row.ledger_id} is no segment: {error}", ledger_id=row.ledger_id
            ) from error

    async def _base(self) -> int:
        """Return the number of the segment's first record."""
        if self._base_seq == NONE:
            self._base_seq = await first_sequence(self._context, self._row)
        return self._base_seq

    async def last(self, *, fresh: bool = True) -> Chunk | None:
        """Return the last visible entry's records, None if there is none."""
        last = await self.last_entry(fresh=fresh)
        return None if last < 0 else await self.entry(last)

    async def find(self, key: Key) -> Record | None:
        """Return the first visible record that is not before the key, None if there is none."""
        low, high = 0, await self.last_entry()
        if high < 0:
            return None
        if self._row.index_entry_id != NONE:
            index = SegmentIndex((await self._raw(self._row.index_entry_id)).data)
            first, behind = index.entries_for(_COLUMNS[key.kind], self._relative(key))
            low = min(first, high)
            if behind is not None:
                # A number is in an entry before that of the row behind it; a key may first be reached there.
                high = min(high, max(low, behind - (2 if key.kind == "seq" else 1)))
        await self._base()
        low = await self._narrowed(key, low, high)
        while low <= high:
            chunk = await self.entry(low)
            at = index_in(chunk, key)
            if at < len(chunk):
                return chunk[at]
            low += 1
        return None

    def _relative(self, key: Key) -> int:
        if key.kind == "txid":
            return key.value - self._row.base_txid
        return key.value - self._row.base_seq if key.kind == "seq" else key.value

    def _is_last_reached(self, key: Key, head: Head) -> bool:
        """Return whether the last record of an entry is not before the key."""
        if key.kind == "time":
            return head.time_us >= key.value
        if key.kind == "txid":
            return self._row.base_txid + head.last_txid >= key.value
        return self._base_seq + head.first_record + head.record_count > key.value

    async def _narrowed(self, key: Key, low: int, high: int) -> int:
        """Return the first entry of low..high whose last record is not before the key; `high` if none before it is."""
        while low < high:
            count = high - low
            step = max(1, -(-count // (FAN + 1)))
            probes = list(range(low + step - 1, high, step))
            raws = await asyncio.gather(*map(self._raw, probes))
            self._probed = dict(zip(probes, raws, strict=True))
            # Their heads say enough: no body is decompressed.
            reached = [self._is_last_reached(key, head_of(raw)) for raw in raws]
            at = reached.index(True) if True in reached else len(probes)
            if at < len(probes):
                high = probes[at]
            if at > 0:
                low = probes[at - 1] + 1
        return low


# --- an open segment's first number -----------------------------------------------------------------------------

PART_ENTRIES = 64


async def first_sequence(context: StreamContext, row: Segment) -> int:
    """Return the number of the first record of `row`, a segment that has one; the chain may not say it yet.

    A writer goes on in the second open segment only when all it sent to the first is acknowledged: then everything
    that the first one's bookies hold stays, also what lies beyond its LAC, and its last record ends the numbers.
    """
    while row.base_seq == NONE:
        chain = (await context.store.read()).chain
        now = await context.store.row(chain, row.number)
        if now is None or now.ledger_id != row.ledger_id:
            raise NoSuchLedger(
                f"{context.name}: segment {row.number} is gone", ledger_id=row.ledger_id
            )
        row = now
        before = await context.store.row(chain, row.number - 1)
        if row.base_seq == NONE and before is not None and before.base_seq != NONE:
            try:
                return before.base_seq + await _records_of(context, before)
            except NoSuchLedger:
                # Deleted, or closed and deleted, meanwhile: the chain knows.
                if (await context.store.read()).chain == chain:
                    raise
    return row.base_seq


async def _records_of(context: StreamContext, row: Segment) -> int:
    if not row.is_open:
        return row.records
    async with await context.client.open_ledger(row.ledger_id, recovery=False) as reader:
        last: Entry | None = None
        at = max(await reader.last_add_confirmed() - 1, 0)
        while True:
            found = await reader.read_unconfirmed(at, at + PART_ENTRIES - 1)
            for entry in found:
                if head_of(entry).kind == KIND_RECORDS:
                    last = entry
            if len(found) < PART_ENTRIES:
                break
            at += PART_ENTRIES
        if last is None:
            raise Error(
                f"{context.name}: segment {row.number} has no record, and one behind it has"
            )
        head = head_of(last)
        return head.first_record + head.record_count
