"""Events of the cluster for the page Events: read when somebody opens it, and not more often than every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from fastbk.admin.cluster_events import ClusterEvents, EventSource, event_pages, read_cluster_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta import MetadataStore
    from fastbk.observe.event_record import Query
    from fastbk.stream.client import Client

TIMEOUT_S = 4.0
SOURCES_S = 30.0
"""How often metadata is read for bookies that came."""
FRESH_S = 3.0
"""Whoever wants the same in this time gets the same answer."""
QUERIES_MAX = 16
"""Whose answers are kept."""

_Key = tuple[str, str, frozenset[str], str]


class EventReader:
    """Reads events from the pages of all bookies, one reading at a time."""

    def __init__(self, client: Client, uri: str, pages: Sequence[str] = ()) -> None:
        """`pages`: HOST:PORT of janitors' and healers' pages, which metadata does not list."""
        self._client = client
        self._uri = uri
        self._pages = tuple(pages)
        self._sources: list[EventSource] = []
        self._sources_s = float("-inf")
        self._answers: OrderedDict[_Key, tuple[float, ClusterEvents]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def read(
        self, query: Query, words: tuple[str, str], bookie_id: str = ""
    ) -> ClusterEvents:
        """Return the newest events that a query admits. Raises Error.

        `words`: since and until as the user wrote them: as moments they differ with each reading.
        """
        key = (*words, query.kinds, bookie_id)
        async with self._turn:
            known = self._answers.get(key)
            if known is not None and time.monotonic() - known[0] < FRESH_S:
                return known[1]
            if time.monotonic() - self._sources_s > SOURCES_S:
                self._sources = await self._client.call_store(self._listed)
                self._sources_s = time.monotonic()
            wanted = [one for one in self._sources if bookie_id in ("", one.name)]
            found = await asyncio.to_thread(read_cluster_events, wanted, query, None, TIMEOUT_S)
            self._answers[key] = time.monotonic(), found
            self._answers.move_to_end(key)
            if len(self._answers) > QUERIES_MAX:
                self._answers.popitem(last=False)
            return found

    def _listed(self, store: MetadataStore) -> list[EventSource]:
        return event_pages(store, self._uri, more=self._pages, timeout_s=TIMEOUT_S)
