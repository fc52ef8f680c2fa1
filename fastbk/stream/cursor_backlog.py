"""How much a cursor has before it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fastbk.errors import NoSuchEntry, PositionTruncated
from fastbk.stream.context import StreamContext
from fastbk.stream.cursor_acks import CursorAcks
from fastbk.stream.cursor_state import NONE
from fastbk.stream.lag import average_bytes
from fastbk.stream.positions import AtSeq
from fastbk.stream.records import Record
from fastbk.stream.search import first, first_from, get, tail_position


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not done of what readers can see."""

    records: int
    """Exact; what was truncated does not count."""
    size_bytes: int
    """About: from the average of the segments that are closed, else of the last record."""
    seconds: float
    """Since the first of them was appended, by the clocks of its writer and of this machine; 0 if there is none."""


async def backlog_of(context: StreamContext, acks: CursorAcks) -> Backlog:
    """Return the backlog behind what is done. Raises what reads and metadata raise."""
    tail = await tail_position(context)
    if tail is None or tail.next <= acks.mark:
        return Backlog(0, 0, 0.0)
    oldest = await _oldest(context, acks)
    if oldest is None or oldest.seq > tail.seq:
        return Backlog(0, 0, 0.0)
    records = sum(high - low for low, high in acks.not_done(oldest.seq, tail.seq + 1))
    if not records:
        return Backlog(0, 0, 0.0)
    each = average_bytes((await context.store.read()).chain)
    if each is None:
        each = float(len((await get(context, tail.dlsn)).payload))
    seconds = max(0.0, time.time() - oldest.time_us / 1_000_000)
    return Backlog(records, round(records * each), seconds)


async def _oldest(context: StreamContext, acks: CursorAcks) -> Record | None:
    """Return the first record that is not done, or the first that is still there."""
    if acks.mark_seq == NONE:
        chain = (await context.store.read()).chain
        return await first_from(context, chain, max(acks.mark, chain.trim))
    try:
        return await get(context, AtSeq(acks.mark_seq))
    except PositionTruncated:
        return await first(context)
    except NoSuchEntry:
        return None
