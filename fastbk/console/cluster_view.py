"""What the console knows of its cluster: read in the background, so that no page waits for a bookie.

The overview is that of `fastbk top` (`fastbk/overview`). Its figures are kept for an hour, for charts.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from fastbk.console.event_reader import EventReader
from fastbk.console.history import History
from fastbk.console.stream_index import StreamIndex
from fastbk.errors import Error
from fastbk.meta.hold import read_hold
from fastbk.overview.poller import OverviewPoller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.overview.values import BookieRow, ClusterOverview
    from fastbk.stream.client import Client

INTERVAL_S = 5.0
CURSORS_MAX = 1000
"""Whose lag is read and kept."""
METADATA_TIMEOUT_S = 10.0


class ClusterView:
    """One cluster, a few seconds old. `async with` reads until its end.

    Attributes:
        client: of the cluster.
        overview: None: nothing was read yet.
        hold: why metadata is on hold, "" if it is not.
        history: names are `cluster/FIGURE`, `bookie/ID/FIGURE` and `cursor/STREAM:CURSOR/lag`.
        streams: all of them. events: reads what happened.
    """

    def __init__(
        self, client: Client, uri: str, pages: Sequence[str] = (), *, interval_s: float = INTERVAL_S
    ) -> None:
        """`uri`: of the cluster's metadata. `pages`: HOST:PORT of janitors' and healers', for their events."""
        self.client = client
        self.overview: ClusterOverview | None = None
        self.hold = ""
        self.history = History()
        self.streams = StreamIndex(client)
        self._interval_s = interval_s
        self.events = EventReader(client, uri, pages)
        self._poller = OverviewPoller(client, cursors_max=CURSORS_MAX)
        self._cursors_shown: object = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._poll(), name="fastbk console overview"),
            loop.create_task(self.streams.run(), name="fastbk console streams"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._poller.close()

    @property
    def is_reading(self) -> bool:
        """Whether the background still reads: False is a fault of ours."""
        return all(not task.done() for task in self._tasks)

    def bookie(self, bookie_id: str) -> BookieRow | None:
        """Return a bookie's row."""
        rows = () if self.overview is None else self.overview.bookies
        return next((one for one in rows if one.bookie_id == bookie_id), None)

    async def _poll(self) -> None:
        async with contextlib.aclosing(self._poller.overviews(self._interval_s)) as overviews:
            async for overview in overviews:
                self.overview = overview
                self._note(overview)
                with contextlib.suppress(
                    Error, TimeoutError
                ):  # the overview has the error of the same store
                    async with asyncio.timeout(METADATA_TIMEOUT_S):
                        hold = await self.client.call_store(read_hold)
                    self.hold = "" if hold is None else str(hold)

    def _note(self, overview: ClusterOverview) -> None:
        at_s, history = overview.at_s, self.history
        is_known = any(one.adds_per_s is not None for one in overview.bookies)
        history.add("cluster/adds", at_s, overview.adds_per_s if is_known else None)
        history.add("cluster/bytes", at_s, overview.add_bytes_per_s if is_known else None)
        p99s = [one.add.p99_s for one in overview.bookies if one.add is not None]
        history.add("cluster/add_p99", at_s, 1000 * max(p99s) if p99s else None)
        marked = None if overview.healing is None else float(overview.healing.marked)
        history.add("cluster/marked", at_s, marked)
        for one in overview.bookies:
            name = f"bookie/{one.bookie_id}"
            history.add(f"{name}/adds", at_s, one.adds_per_s)
            history.add(f"{name}/bytes", at_s, one.add_bytes_per_s)
            history.add(f"{name}/add_p99", at_s, None if one.add is None else 1000 * one.add.p99_s)
            history.add(
                f"{name}/commit_p99", at_s, None if one.commit is None else 1000 * one.commit.p99_s
            )
        if overview.cursors is self._cursors_shown:
            return  # lags are read less often than bookies
        self._cursors_shown = overview.cursors
        for cursor in overview.cursors:
            lag = None if cursor.backlog_records is None else float(cursor.backlog_records)
            history.add(lag_name(cursor.stream, cursor.cursor), at_s, lag)


def lag_name(stream: str, cursor: str) -> str:
    """Return the name of the series of a cursor's lag, in records."""
    return f"cursor/{stream}:{cursor}/lag"
