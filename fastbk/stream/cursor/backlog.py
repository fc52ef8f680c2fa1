"""How much a cursor has before it: on request, and as figures that a janitor's passes find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastbk.client.client import Client
from fastbk.errors import (
    DataLost,
    Error,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    PositionTruncated,
)
from fastbk.stream.chain import Chain, made_behind_us
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext, clock_us
from fastbk.stream.cursor.state import NONE, CursorAcks
from fastbk.stream.cursor.store import CursorInfo, cursors_of
from fastbk.stream.namespace.listing import StreamSnapshot
from fastbk.stream.pattern.store import PatternHolds
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
    backlogs: list[tuple[CursorInfo, Backlog | None]] = []
    if not cursors:
        return []
    try:
        tail = await tail_position(context)
    except (DataLost, NoSuchLedger, NotEnoughBookies):
        return [(cursor, None) for cursor in cursors]
    for cursor in cursors:
        mark_seq = cursor.mark_seq

        def behind(first: int, end: int, mark_seq: int = mark_seq) -> list[tuple[int, int]]:
            return [(max(first, mark_seq), end)]

        try:
            backlogs.append((cursor, await _backlog(context, tail, cursor.mark, mark_seq, behind)))
        except (DataLost, NoSuchLedger, NotEnoughBookies):
            backlogs.append((cursor, None))
    return backlogs


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


# --- a janitor's figures --------------------------------------------------------------------------
#
# How far cursors are behind, as a janitor's passes find it: figures for dashboards and alarms, of a
# bounded number.
#
# Streams that have cursors are looked at in each pass, the others as seldom as they change. Bookies
# that do not answer must not hold up what a janitor is for: after the first that does not in time,
# a pass asks none any more.


BY_CHARACTERS_MAX = 200
"""Maximum length of the name of who moves a cursor, as its map says it."""
BACKLOG_TIMEOUT_S = 2.0
"""How long bookies may take to tell how far the cursors of one stream are behind."""


@dataclass(frozen=True, slots=True)
class CursorGauge:
    """One cursor, as the last pass found it."""

    stream: str
    cursor: str
    by: str
    """Who moves it, where its map says so."""
    backlog: Backlog | None
    """None: bookies did not tell it."""
    moved_s: float
    """Since its mark was put where it is."""


class CursorGauges:
    """What is known of the cursors of all streams.

    Attributes:
        left_out: cursors that were found and are not told of, since there are more than the limit.
    """

    def __init__(self, client: Client, limit: int, patterns: PatternHolds | None = None) -> None:
        """`limit`: cursors that are told of; 0: none, and nothing is asked. `patterns`: None: read for this alone."""
        self.left_out = 0
        self._client = client
        self._patterns = patterns or PatternHolds(client.records)
        self._limit = limit
        self._known: dict[str, tuple[list[CursorGauge], int]] = {}
        """By stream that has cursors: which gauges are reported, and how many are left out."""
        self._seen: set[str] = set()
        self._is_first = True
        self._is_away = False

    def all(self) -> list[CursorGauge]:
        """Return all of them, by stream and name."""
        found = [one for some, _ in self._known.values() for one in some]
        return sorted(found, key=lambda one: (one.stream, one.cursor))

    def begin(self) -> None:
        """A pass begins."""
        self._seen.clear()
        self._patterns.begin()
        self._is_away = False

    def end(self) -> None:
        """A pass over all streams has ended: those that it did not see are gone."""
        self._known = {one: held for one, held in self._known.items() if one in self._seen}
        self.left_out = sum(left_out for _, left_out in self._known.values())
        self._is_first = False

    async def measure(self, found: StreamSnapshot, *, is_thorough: bool) -> None:
        """Look at a stream's cursors, if it has any or may have, and at those of patterns that read it.

        Raises MetadataUnavailable, StorageError.
        """
        stream_id = found.stream_id
        self._seen.add(stream_id)
        is_due = stream_id in self._known or is_thorough or self._is_first
        if not self._limit or not found.path or not is_due:
            return
        cursors = await cursors_of(self._client.records, stream_id)
        if found.record is not None:
            cursors += await self._patterns.of_stream(found.record, stream_id)
        others = sum(len(some) for one, (some, _) in self._known.items() if one != stream_id)
        shown = cursors[: max(0, self._limit - others)]
        left_out, now_us = len(cursors) - len(shown), clock_us()
        if not cursors:
            self._known.pop(stream_id, None)
            return
        # Named before bookies are asked: others of this pass count it meanwhile.
        self._known[stream_id] = [_gauge(found.path, one, None, now_us) for one in shown], left_out
        if shown:
            gauges = [
                _gauge(found.path, one, backlog, now_us)
                for one, backlog in await self._backlogs(found, shown)
            ]
            self._known[stream_id] = gauges, left_out

    async def _backlogs(
        self, found: StreamSnapshot, cursors: list[CursorInfo]
    ) -> list[tuple[CursorInfo, Backlog | None]]:
        if not self._is_away:
            try:
                async with asyncio.timeout(BACKLOG_TIMEOUT_S):
                    return await backlogs_of(self._context(found), cursors)
            except (TimeoutError, Error):
                self._is_away = True
        return [(cursor, None) for cursor in cursors]

    def _context(self, found: StreamSnapshot) -> StreamContext:
        client = self._client
        store = ChainStore(client.records, found.stream_id, client.config.metadata_timeout)
        return StreamContext(client, store, found.path)


def _gauge(path: str, info: CursorInfo, backlog: Backlog | None, now_us: int) -> CursorGauge:
    moved_s = max(0.0, (now_us - info.moved_at_us) / 1e6)
    return CursorGauge(
        path, info.label, str(info.data.get("by", ""))[:BY_CHARACTERS_MAX], backlog, moved_s
    )
