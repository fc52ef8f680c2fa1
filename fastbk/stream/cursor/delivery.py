"""What a cursor hands out of what its reader gives: what is not done yet, and gaps only where something was missed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fastbk.errors import ConfigError, DataLost, Error, PositionTruncated
from fastbk.stream.context import one_at_a_time
from fastbk.stream.cursor.state import NONE, CursorAcks
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Chunk, Gap

if TYPE_CHECKING:
    from fastbk.stream.reader.stream_reader import StreamReader

WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""Chunks that were handed out and are kept to find a record's number by its position."""


class CursorDelivery:
    """One holder's. One call of `next` at a time."""

    def __init__(
        self,
        source: StreamReader[Gap],
        acks: CursorAcks,
        changed: Callable[[], None],
        *,
        raises: bool,
        name: str = "",
        is_polled: bool = False,
    ) -> None:
        """`changed()` is called when records were passed by that are gone. `raises`: then `next` raises, for good.

        `name`: for messages. `is_polled`: it is asked without a wait, again and again: no answer yet is no end.
        """
        self._source = source
        self._acks = acks
        self._changed = changed
        self._raises = raises
        self._failure: Error | None = None
        self._parts: deque[Chunk] = deque()
        self._gap: Gap | None = None
        self._is_reported = False
        self._expected = acks.mark_seq
        self._bound: int | None = None
        self._name = name
        self._is_polled = is_polled
        self._window: deque[Chunk] = deque()
        self._window_bytes = 0

    @one_at_a_time
    async def next(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        """Return records that follow each other and are not done, or a gap; None after `timeout` s, or at the end.

        Cancelled, it loses nothing. Raises PositionTruncated, DataLost; what the reader raises.
        """
        loop = asyncio.get_running_loop()
        end_s = None if timeout is None else loop.time() + timeout
        while True:
            if self._failure is not None:
                raise self._failure.copy()
            part = self._part(max_records)
            if part is not None:
                return part
            left_s = None if end_s is None else max(0.0, end_s - loop.time())
            item = await self._source.read(max_records, max_bytes, left_s)
            if isinstance(item, Gap):
                # Whether anything was missed the next record's number tells: what was done may have been deleted.
                self._gap = _joined(self._gap, item)
                continue
            if item is None:
                # While more is on its way, the number of what comes tells how many are gone.
                is_end = not self._is_polled or self._gap is None or self._source.caught_up()
                return self._track_end() if is_end else None
            gap = self._track(item)
            self._parts.append(item)
            if gap is not None:
                return gap

    def __repr__(self) -> str:
        return f"cursor {self._name}"

    def give_back(self, chunk: Chunk) -> None:
        """These records, the last that were handed out, are handed out next."""
        self._parts.appendleft(chunk)

    @property
    def held(self) -> Chunk | None:
        """What was read and not handed out yet, the first of it; None if nothing is."""
        return self._parts[0] if self._parts else None

    @property
    def held_records(self) -> int:
        """How many records were read and not handed out yet."""
        return sum(map(len, list(self._parts)))

    def _part(self, max_records: int) -> Chunk | None:
        while self._parts:
            chunk = self._parts.popleft()
            first = chunk.first_seq
            missing = self._acks.not_done(first, first + len(chunk))
            if not missing:
                continue
            low, high = missing[0]
            high = min(high, low + max_records)
            if high < first + len(chunk):
                self._parts.appendleft(chunk[high - first :])
            part = chunk[low - first : high - first]
            self._remember(part)
            if self._bound is not None:
                self._bound = max(self._bound, high)
            return part
        return None

    def _track(self, chunk: Chunk) -> Gap | None:
        """Take note of what came; return the gap before it, if something not done is missing."""
        first, expected = chunk.first_seq, self._expected
        gap, self._gap = self._gap, None
        is_reported, self._is_reported = self._is_reported and gap is None, False
        self._expected = first + len(chunk)
        if expected == NONE and (gap is None or self._acks.mark_seq != NONE):
            self._acks.first_is(first)
            return None
        if expected == NONE and gap is not None and gap.records is None:
            self._acks.first_is(first)
            return self._missed(gap)
        if expected == NONE:
            # What was missed has numbers, since it is known how many there were.
            assert gap is not None
            expected = first - (gap.records or 0)
            self._acks.first_is(expected)
        missing = sum(high - low for low, high in self._acks.not_done(expected, first))
        if not missing:
            return None
        if is_reported:
            self._pass(expected, first, chunk.first_dlsn)
            return None
        kind: Literal["trimmed", "lost"] = "lost" if gap is None else gap.kind
        at = self._acks.mark if gap is None else gap.first
        found = self._missed(Gap(kind, at, chunk.first_dlsn, missing))
        self._pass(expected, first, chunk.first_dlsn)
        return found

    def _pass(self, first: int, end: int, position: DLSN) -> None:
        self._acks.pass_gap(first, end, position)
        self._changed()

    def _track_end(self) -> Gap | None:
        """Nothing comes now, or ever: return the gap that was met, if something not done may be missing."""
        gap, self._gap = self._gap, None
        if gap is None or gap.records == 0:
            return None
        if self._expected == NONE or gap.records is None:
            # How many there were the next record's number tells; that something is gone is told only once.
            self._is_reported = True
            return self._missed(gap)
        first, end = self._expected, self._expected + gap.records
        missing = sum(high - low for low, high in self._acks.not_done(first, end))
        self._expected = end
        if not missing:
            return None
        found = self._missed(replace(gap, records=missing))
        self._pass(first, end, gap.next)
        return found

    def _missed(self, gap: Gap) -> Gap:
        if self._raises:
            self._failure = error_of(gap, self._name)
            raise self._failure.copy()
        return gap

    # --- by position ----------------------------------------------------------------------------------------------

    def _remember(self, part: Chunk) -> None:
        self._window.append(part)
        self._window_bytes += len(part.data)
        while self._window_bytes > WINDOW_BYTES_MAX and len(self._window) > 1:
            self._window_bytes -= len(self._window.popleft().data)

    def seq_of(self, dlsn: DLSN) -> int:
        """Return the number of a record that was handed out lately. Raises ConfigError for another."""
        for part in reversed(self._window):
            if part.first_dlsn <= dlsn <= part.last_dlsn:
                index = part.index_of(dlsn)
                if part[index].dlsn == dlsn:
                    return part.first_seq + index
        raise ConfigError(f"{dlsn} was not handed out lately: give the record, or the chunk")

    def is_stale(self, seq: int, *, is_ahead: bool) -> bool:
        """Whether this record was handed out before the last `seek` only: it will be handed out again, or was left.

        `is_ahead`: iteration has it at hand, and has not handed it out.
        """
        return self._bound is not None and (is_ahead or seq >= self._bound)

    async def seek(self, mark: DLSN) -> None:
        """Go on at the mark, whose number is not known."""
        await self._source.seek(mark)
        self._bound = 0
        self._gap, self._failure, self._is_reported = None, None, False
        self._parts.clear()
        self._window.clear()
        self._window_bytes = 0
        self._expected = NONE


def _joined(first: Gap | None, then: Gap) -> Gap:
    """Return two gaps with nothing between them as one."""
    if first is None:
        return then
    known = first.records is not None and then.records is not None
    records = (first.records or 0) + (then.records or 0) if known else None
    return Gap(first.kind, first.first, then.next, records)


def error_of(gap: Gap, name: str) -> Error:
    """Return what is raised for a gap. `name`: of the stream and the cursor."""
    gone = f"{gap.records} records from {gap.first} on are gone before they were done"
    text = f"cursor {name}: {gone}; what is next is {gap.next}"
    if gap.kind == "trimmed":
        truncated = PositionTruncated(f"{text}: reset the cursor, or open it with on_gap='yield'")
        truncated.first_available = str(gap.next)
        return truncated
    lost = DataLost(f"{text}: reset the cursor, or open it with on_gap='yield'")
    lost.first, lost.next = str(gap.first), str(gap.next)
    return lost
