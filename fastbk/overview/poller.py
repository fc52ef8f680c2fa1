"""Reads the pages of all bookies again and again, and makes a `ClusterOverview` of them.

A bookie that does not answer costs a round its timeout, once, beside the others. Metadata is read in the background: a
round shows what was read last, and why there is nothing newer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Self

from fastbk.meta.api import BookieRegistration, Endpoint
from fastbk.meta.hold import read_hold
from fastbk.model.health import NO_OPEN_LEDGERS, OpenLedgerFacts
from fastbk.overview.background_value import BackgroundValue
from fastbk.overview.bookie_history import NAMES, BookieHistory, BookieSample
from fastbk.overview.cluster_facts import (
    CursorReader,
    HealingReader,
    read_backup_age,
    read_open_ledgers,
)
from fastbk.overview.hot_ledgers import (
    CANDIDATES_MAX,
    SHOWN_MAX,
    LedgerFactsCache,
    added_up,
    by_stream,
    hottest,
)
from fastbk.overview.metric_text import MetricText
from fastbk.overview.page_reader import PageError, PageReader, page_endpoint
from fastbk.overview.values import ClusterOverview, CursorLag, Healing
from fastbk.stream.client import Client

PAGE_TIMEOUT_S = 1.5
METADATA_TIMEOUT_S = 10.0
BOOKIES_INTERVAL_S = 2.0
IDENTITIES_INTERVAL_S = 10.0
HEALING_INTERVAL_S = 5.0
OPEN_LEDGERS_INTERVAL_S = 30.0
OPEN_LEDGERS_TIMEOUT_S = 60.0
CURSORS_INTERVAL_S = 30.0
CURSORS_TIMEOUT_S = 60.0
CURSORS_MAX = 200
NEWEST_EVENT = "/events?newest=1&limit=1"
NOT_FOUND = 404


class OverviewPoller:
    """Makes overviews of one cluster. Use it in `async with`, in the loop of its client."""

    def __init__(
        self,
        client: Client,
        metadata_uri: str = "",
        *,
        page_timeout_s: float = PAGE_TIMEOUT_S,
        cursors_max: int = CURSORS_MAX,
        open_ledgers_timeout_s: float = OPEN_LEDGERS_TIMEOUT_S,
    ) -> None:
        """Nothing is read yet.

        Args:
            client: of the cluster; it stays the caller's.
            metadata_uri: shown in overviews.
            page_timeout_s: for one page of a bookie, above 0.
            cursors_max: cursors whose backlog is read; 0: none, and streams are not read.
            open_ledgers_timeout_s: to find ledgers that cannot be closed: while a bookie is away all are read.
        """
        self._uri = metadata_uri
        self._pages = PageReader(timeout_s=page_timeout_s, tls=client.config.tls)
        self._histories: dict[str, BookieHistory] = {}
        self._missing: set[tuple[str, str]] = set()
        """Bookies and pages that they do not have: they are of an older version."""
        self._facts = LedgerFactsCache(client)
        self._bookies: BackgroundValue[list[BookieRegistration] | None] = BackgroundValue(
            "bookies", client.list_bookies, None,
            interval_s=BOOKIES_INTERVAL_S / 2, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip

        async def identities() -> list[str]:
            listed = await client.call_store(lambda store: store.list_identities())
            return [one.bookie_id for one in listed]

        self._identities: BackgroundValue[list[str]] = BackgroundValue(
            "known bookies", identities, [],
            interval_s=IDENTITIES_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip
        self._healing: BackgroundValue[Healing | None] = BackgroundValue(
            "healing", HealingReader(client).read, None,
            interval_s=HEALING_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip
        self._cursors: BackgroundValue[tuple[tuple[CursorLag, ...], int]] = BackgroundValue(
            "cursors", CursorReader(client, cursors_max).read, ((), 0),
            interval_s=CURSORS_INTERVAL_S, timeout_s=CURSORS_TIMEOUT_S,
        )  # fmt: skip
        self._ledgers: BackgroundValue[None] = BackgroundValue(
            "hot ledgers", self._facts.read, None, interval_s=0.5, timeout_s=METADATA_TIMEOUT_S
        )

        async def hold() -> str:
            found = await client.call_store(read_hold)
            return "" if found is None else str(found)

        self._hold: BackgroundValue[str] = BackgroundValue(
            "hold", hold, "", interval_s=HEALING_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S
        )
        self._backup_age: BackgroundValue[float | None] = BackgroundValue(
            "age of the last backup", lambda: read_backup_age(client), None,
            interval_s=HEALING_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip
        self._open_ledgers: BackgroundValue[OpenLedgerFacts] = BackgroundValue(
            "ledgers that cannot be closed", lambda: read_open_ledgers(client), NO_OPEN_LEDGERS,
            interval_s=OPEN_LEDGERS_INTERVAL_S, timeout_s=open_ledgers_timeout_s,
        )  # fmt: skip
        self._values: list[BackgroundValue[Any]] = [
            self._bookies,
            self._identities,
            self._healing,
            self._hold,
            self._backup_age,
            self._open_ledgers,
        ]
        if cursors_max:
            self._values.append(self._cursors)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End what is under way."""
        await asyncio.gather(*(one.close() for one in [*self._values, self._ledgers]))

    async def overviews(self, interval_s: float = 2.0) -> AsyncGenerator[ClusterOverview, None]:
        """Yield an overview every `interval_s`, above 0, or as fast as bookies answer."""
        await self.settled(METADATA_TIMEOUT_S, only_bookies=True)
        while True:
            began_s = time.monotonic()
            yield await self.poll()
            await asyncio.sleep(max(0.05, began_s + interval_s - time.monotonic()))

    async def settled(self, within_s: float, *, only_bookies: bool = False) -> None:
        """Begin to read metadata, and return when all of it was read once, or after that time.

        `only_bookies`: return when the list of bookies was read.
        """
        for one in self._values:
            one.refresh()
        waiting = [self._bookies] if only_bookies else self._values
        await asyncio.gather(*(one.settled(within_s) for one in waiting))

    async def poll(self) -> ClusterOverview:
        """Read the pages of all bookies once, and return the overview. Takes at most about two page timeouts."""
        for one in self._values:
            one.refresh()
        listed = self._bookies.value or []
        await asyncio.gather(*(self._read(one) for one in listed))
        now_s = time.monotonic()
        self._note_unregistered(listed, now_s)
        rows = [one.row(now_s) for one in self._histories.values()]
        hot = added_up(
            one.newest.hot
            for one in self._histories.values()
            if one.newest is not None and one.is_answering
        )
        self._facts.want(sorted(hot, key=lambda one: -hot[one][0])[:CANDIDATES_MAX])
        self._ledgers.refresh()
        ledgers = hottest(hot, self._facts.known)
        cursors, left_out = self._cursors.value
        return ClusterOverview(
            time.time(),
            self._uri,
            tuple(sorted(rows, key=lambda row: row.sickness())),
            ledgers[:SHOWN_MAX],
            by_stream(ledgers),
            cursors,
            left_out,
            self._healing.value,
            tuple(one.error for one in [*self._values, self._ledgers] if one.error),
            self._hold.value,
            self._backup_age.value,
            self._open_ledgers.value,
        )

    def _note_unregistered(self, listed: list[BookieRegistration], now_s: float) -> None:
        if self._bookies.value is None:
            return
        registered = {one.service.bookie_id for one in listed}
        known = {*self._identities.value, *registered}
        for bookie_id in known - registered:
            self._history(bookie_id).note_unregistered(now_s)
        for bookie_id in set(self._histories) - known:
            if self._identities.value:  # its cookie was deleted: it belongs to the cluster no more
                del self._histories[bookie_id]
                self._missing -= {one for one in self._missing if one[0] == bookie_id}

    def _history(self, bookie_id: str, http: str = "") -> BookieHistory:
        found = self._histories.get(bookie_id)
        if found is None:
            found = self._histories[bookie_id] = BookieHistory(bookie_id)
        found.http = http or found.http
        return found

    async def _read(self, registration: BookieRegistration) -> None:
        service = registration.service
        endpoint = page_endpoint(service)
        if endpoint is None:
            reason = "it has no HTTP page: give its [http] section a `listen`"
            now_s = time.monotonic()
            self._history(service.bookie_id).note_silence(reason, now_s, has_page=False)
            return
        history = self._history(
            service.bookie_id, f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}"
        )
        try:
            # By itself: a bookie that does not answer takes one turn of the reader, and not four.
            info = await self._pages.read_object(endpoint, "/info", service.bookie_id)
            metrics, hot, events = await asyncio.gather(
                self._pages.read(endpoint, "/metrics?names=fastbk", service.bookie_id),
                self._read_optional(service.bookie_id, endpoint, "/hot"),
                self._read_optional(service.bookie_id, endpoint, NEWEST_EVENT),
            )
        except PageError as error:
            history.note_silence(str(error), time.monotonic())
            return
        parsed = MetricText.parse(metrics.decode("utf-8", "replace"), NAMES)
        history.add(BookieSample(time.monotonic(), parsed, info, hot, events))

    async def _read_optional(
        self, bookie_id: str, endpoint: Endpoint, target: str
    ) -> dict[str, Any]:
        """Return the answer of a page that older versions do not have; then an empty one."""
        if (bookie_id, target) in self._missing:
            return {}
        try:
            return await self._pages.read_object(endpoint, target, bookie_id)
        except PageError as error:
            if error.status != NOT_FOUND:
                raise
            self._missing.add((bookie_id, target))
            return {}
