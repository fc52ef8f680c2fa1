"""How much a cursor has before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastbk.errors import (
    DataLost,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    PositionTruncated,
)
from fastbk.stream.chain.chain import Chain, made_behind_us
from fastbk.stream.context import StreamContext, clock_us
from fastbk.stream.cursor.acks import CursorAcks
from fastbk.stream.cursor.state import NONE
from fastbk.stream.cursor.store import CursorInfo
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.reader.search import Position, first, first_from, get, tail_position
from fastbk.stream.reader.stream_reader import average_bytes
from fastbk.stream.records import Record


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
    return await _backlog(context, tail, acks.mark, acks.mark_seq, acks.not_done)


async def backlogs_of(
    context: StreamContext, cursors: Sequence[CursorInfo]
) -> list[tuple[CursorInfo, Backlog | None]]:
    """Return the backlog of each cursor, as its record has it; None where bookies do not tell it now.

    What was done out of order counts as not done: the record says how many such ranges there are, not which.
    """
    found: list[tuple[CursorInfo, Backlog | None]] = []
    if not cursors:
        return []
    try:
        tail = await tail_position(context)
    except (DataLost, NoSuchLedger, NotEnoughBookies):
        return [(one, None) for one in cursors]
    for one in cursors:
        mark_seq = one.mark_seq

        def behind(first: int, end: int, mark_seq: int = mark_seq) -> list[tuple[int, int]]:
            return [(max(first, mark_seq), end)]

        try:
            found.append((one, await _backlog(context, tail, one.mark, mark_seq, behind)))
        except (DataLost, NoSuchLedger, NotEnoughBookies):
            found.append((one, None))
    return found


async def _backlog(
    context: StreamContext,
    tail: Position | None,
    mark: DLSN,
    mark_seq: int,
    not_done: Callable[[int, int], list[tuple[int, int]]],
) -> Backlog:
    if tail is None or tail.next <= mark:
        return Backlog(0, 0, 0.0)
    oldest = await _oldest(context, mark, mark_seq)
    if oldest is None or oldest.seq > tail.seq:
        return Backlog(0, 0, 0.0)
    records = sum(high - low for low, high in not_done(oldest.seq, tail.seq + 1))
    if not records:
        return Backlog(0, 0, 0.0)
    chain = (await context.store.read()).chain
    each = average_bytes(chain)
    if each is None:
        each = float(len((await get(context, tail.dlsn)).payload))
    seconds = max(0.0, (clock_us() - _appended_us(chain, oldest)) / 1_000_000)
    return Backlog(records, round(records * each), seconds)


def _appended_us(chain: Chain, record: Record) -> int:
    """Return when a record was appended; a time that has not come yet says only: before the next segment (INV-S22)."""
    now_us, place = clock_us(), record.dlsn.segment - chain.first_row
    if record.time_us <= now_us:
        return record.time_us
    made_us = made_behind_us(chain.rows, place) if place >= 0 else None
    return now_us if made_us is None else made_us


async def _oldest(context: StreamContext, mark: DLSN, mark_seq: int) -> Record | None:
    """Return the first record that is not done, or the first that is still there."""
    if mark_seq == NONE:
        chain = (await context.store.read()).chain
        return await first_from(context, chain, max(mark, chain.trim))
    try:
        return await get(context, AtSeq(mark_seq))
    except PositionTruncated:
        return await first(context)
    except NoSuchEntry:
        return None
