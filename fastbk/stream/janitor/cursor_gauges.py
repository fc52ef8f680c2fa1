"""How far cursors are behind, as a janitor's passes find it: figures for dashboards and alarms, of a bounded number.

Streams that have cursors are looked at in each pass, the others as seldom as they change. Bookies that do not answer
must not hold up what a janitor is for: after the first that does not in time, a pass asks none any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastbk.client.client import Client
from fastbk.errors import Error
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.context import StreamContext, clock_us
from fastbk.stream.cursor.backlog import Backlog, backlogs_of
from fastbk.stream.cursor.store import CursorInfo, cursors_of
from fastbk.stream.janitor.all_streams import StreamSnapshot
from fastbk.stream.pattern.store import PatternHolds

BY_CHARACTERS_MAX = 200
"""Of who moves a cursor, as its map says it."""
ASK_S = 2.0
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
        """By stream, of those that have cursors: what is told of, and how many are left out."""
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
        told = cursors[: max(0, self._limit - others)]
        left_out, now_us = len(cursors) - len(told), clock_us()
        if not cursors:
            self._known.pop(stream_id, None)
            return
        # Named before bookies are asked: others of this pass count it meanwhile.
        self._known[stream_id] = [_gauge(found.path, one, None, now_us) for one in told], left_out
        if told:
            gauges = [
                _gauge(found.path, one, backlog, now_us)
                for one, backlog in await self._backlogs(found, told)
            ]
            self._known[stream_id] = gauges, left_out

    async def _backlogs(
        self, found: StreamSnapshot, cursors: list[CursorInfo]
    ) -> list[tuple[CursorInfo, Backlog | None]]:
        if not self._is_away:
            try:
                async with asyncio.timeout(ASK_S):
                    return await backlogs_of(self._context(found), cursors)
            except (TimeoutError, Error):
                self._is_away = True
        return [(one, None) for one in cursors]

    def _context(self, found: StreamSnapshot) -> StreamContext:
        client = self._client
        store = ChainStore(client.records, found.stream_id, client.config.metadata_timeout)
        return StreamContext(client, store, found.path)


def _gauge(path: str, info: CursorInfo, backlog: Backlog | None, now_us: int) -> CursorGauge:
    moved_s = max(0.0, (now_us - info.moved_at_us) / 1e6)
    return CursorGauge(
        path, info.label, str(info.data.get("by", ""))[:BY_CHARACTERS_MAX], backlog, moved_s
    )
