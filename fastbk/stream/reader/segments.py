"""A stream's segments as metadata has them: what a reader in many parts is planned by."""

from __future__ import annotations

from dataclasses import dataclass

from fastbk.stream.context import StreamContext


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment. Of an open one only number, ledger, and `first_seq` (where it is not -1) are known."""

    number: int
    """From 1."""
    ledger_id: int
    is_open: bool
    first_seq: int
    """The number of its first record; -1: not known, since the segment before it is open, too."""
    records: int
    last_entry_id: int
    """Of its last entry with records."""
    size_bytes: int
    """Of all its entries' data, one copy."""
    first_time_us: int
    last_time_us: int
    """Of its first and last record, in µs since 1970 by the writer's clock; times never fall within a segment."""


async def segments_of(context: StreamContext, first: int) -> list[SegmentInfo]:
    """Return the segments that are kept, ascending, from number `first` on: closed ones, then at most two open ones."""
    chain = (await context.store.read()).chain
    return [
        SegmentInfo(
            row.number,
            row.ledger_id,
            row.is_open,
            row.base_seq,
            row.records,
            row.last_entry_id,
            row.size_bytes,
            row.first_time_us,
            row.last_time_us,
        )
        async for row in context.store.rows_from(chain, max(first, chain.head))
    ]
