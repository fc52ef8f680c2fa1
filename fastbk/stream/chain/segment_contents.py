"""What a closed ledger holds, as a segment: found by its first entry and its last ones (INV-S1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastbk.client.entries import Entry
from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import ProtocolError, StorageError
from fastbk.native.stream_codec import KIND_INDEX, Head, read_head
from fastbk.stream.chain.chain import NONE
from fastbk.stream.chain.changes import Contents
from fastbk.stream.positions import DLSN


async def contents_of(reader: LedgerReader, number: int, base_txid: int = 0) -> Contents:
    """Return what the closed ledger of segment `number` holds; `base_txid`: what its ids are relative to.

    Raises StorageError for a ledger that is no segment, and what reads raise.
    """
    last_entry_id = reader.metadata.last_entry_id
    if last_entry_id is None or last_entry_id < 0:
        return Contents(0)
    read = _heads_of(reader)
    head, entry_id, index_entry_id = await read(last_entry_id), last_entry_id, NONE
    if head.kind == KIND_INDEX:
        index_entry_id, entry_id = last_entry_id, last_entry_id - 1
        if entry_id < 0:
            return Contents(0)
        head = await read(entry_id)
    first = head if entry_id == 0 else await read(0)
    if KIND_INDEX in (head.kind, first.kind):
        raise StorageError(f"ledger {reader.ledger_id} is no segment: an index lies before its end")
    return Contents(
        records=head.first_record + head.record_count,
        first_txid=base_txid + first.first_txid,
        last_txid=base_txid + head.last_txid,
        first_time_us=first.time_us,
        last_time_us=head.time_us,
        last_dlsn=DLSN(number, entry_id, head.record_count - 1),
        index_entry_id=index_entry_id,
        size_bytes=reader.metadata.length or 0,
    )


def _heads_of(reader: LedgerReader) -> Callable[[int], Awaitable[Head]]:
    async def read(entry_id: int) -> Head:
        (entry,) = [one async for one in reader.read(entry_id, entry_id)]
        return head_of(entry)

    return read


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
