"""What the console knows of its cluster: read in the background, so that no page waits for a bookie.

The overview is that of `fastbk top` (`fastbk/overview`). Its figures are kept for an hour, for charts.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from fastbk.admin.cluster import ClusterEvents, EventSource, event_pages, read_cluster_events
from fastbk.errors import Error, StorageError
from fastbk.meta.rollback import read_hold
from fastbk.observe import logs
from fastbk.overview.poller import OverviewPoller
from fastbk.stream.namespace.listing import StreamSnapshot, all_streams, kept_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta import MetadataStore
    from fastbk.observe.events import Query
    from fastbk.overview.values import BookieRow, ClusterOverview
    from fastbk.stream.chain import Chain, KindName
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
        return next((row for row in rows if row.bookie_id == bookie_id), None)

    async def _poll(self) -> None:
        async with contextlib.aclosing(self._poller.overviews(self._interval_s)) as overviews:
            async for overview in overviews:
                self.overview = overview
                self._note(overview)
                # the overview has the error of the same store
                with contextlib.suppress(Error, TimeoutError):
                    async with asyncio.timeout(METADATA_TIMEOUT_S):
                        hold = await self.client.call_store(read_hold)
                    self.hold = "" if hold is None else str(hold)

    def _note(self, overview: ClusterOverview) -> None:
        at_s, history = overview.at_s, self.history
        is_known = any(bookie.adds_per_s is not None for bookie in overview.bookies)
        history.add("cluster/adds", at_s, overview.adds_per_s if is_known else None)
        history.add("cluster/bytes", at_s, overview.add_bytes_per_s if is_known else None)
        p99s = [bookie.add.p99_s for bookie in overview.bookies if bookie.add is not None]
        history.add("cluster/add_p99", at_s, 1000 * max(p99s) if p99s else None)
        marked = None if overview.healing is None else float(overview.healing.marked)
        history.add("cluster/marked", at_s, marked)
        for bookie in overview.bookies:
            name = f"bookie/{bookie.bookie_id}"
            history.add(f"{name}/adds", at_s, bookie.adds_per_s)
            history.add(f"{name}/bytes", at_s, bookie.add_bytes_per_s)
            history.add(
                f"{name}/add_p99", at_s, None if bookie.add is None else 1000 * bookie.add.p99_s
            )
            history.add(
                f"{name}/commit_p99",
                at_s,
                None if bookie.commit is None else 1000 * bookie.commit.p99_s,
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


# --- the last hour of figures -----------------------------------------------------------------------------------------

POINTS_MAX = 720
"""Maximum points of a series: an hour of points 5 s apart. A point takes 16 bytes."""
SERIES_MAX = 4000
"""Beyond it the one that got no point for longest is forgotten. All series full take 46 MB."""


@dataclass(slots=True)
class Series:
    """Points in the order of their times, in seconds since 1970. A value that was not known is NaN."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at_s: float, value: float) -> None:
        """Add a point, and forget the oldest beyond POINTS_MAX."""
        # A quarter at once: to cut one off moves all others.
        if len(self.times_s) >= POINTS_MAX + POINTS_MAX // 4:
            del self.times_s[: -POINTS_MAX + 1], self.values[: -POINTS_MAX + 1]
        self.times_s.append(at_s)
        self.values.append(value)

    def last(self, count: int = POINTS_MAX) -> tuple[list[float], list[float | None]]:
        """Return times and values of the last points; None stands for a value that was not known."""
        values = [None if math.isnan(value) else value for value in self.values[-count:]]
        return list(self.times_s[-count:]), values


class History:
    """Series by their names: so many of so many points, whatever the cluster does."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._series: OrderedDict[str, Series] = OrderedDict()

    def __len__(self) -> int:
        return len(self._series)

    def add(self, name: str, at_s: float, value: float | None) -> None:
        """Add a point; None: the value is not known."""
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= self._series_max:
                self._series.popitem(last=False)
            series = self._series[name] = Series()
        self._series.move_to_end(name)
        series.add(at_s, math.nan if value is None else value)

    def get(self, name: str) -> Series:
        """Return a series; one that is not known has no points."""
        return self._series.get(name) or Series()


# --- all streams ------------------------------------------------------------------------------------------------------

PASS_INTERVAL_S = 15.0
"""Pause between two passes; a pass over many streams may use a fifth of the time."""
SHARE_MAX = 0.2
STREAMS_MAX = 100_000
"""Listed; further ones are counted. A row takes 1 to 2 KB."""
LEDGERS_MAX = 100
"""Maximum ledgers of a row: the newest ones. A search for an older ledger finds the ledger, which names its stream."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream, as the last pass found it. Sizes are of its closed segments, one copy.

    Attributes:
        path: namespace and name. namespace: without the name, "": the root.
        open_segments: 1 while somebody writes, or did.
        last_time_us: of the last record of a closed segment, since 1970; -1: none.
        ledgers: of the newest segments, LEDGERS_MAX at most, the newest last.
    """

    path: str
    namespace: str
    stream_id: str
    segments: int
    open_segments: int
    records: int
    size_bytes: int
    last_time_us: int
    is_sealed: bool
    owner: str
    ledgers: array[int]
    fault: str = ""
    """Why its records cannot be read; "": they can."""
    kind: KindName = "writer"
    """Who appends: one writer, or producers."""


class StreamIndex:
    """All streams of a cluster by path, read in the background: lists and searches answer from memory.

    Attributes:
        rows: sorted by path.
        left_out: streams beyond STREAMS_MAX.
        read_s: wall clock of the last whole pass; None: none has ended.
        took_s: how long it took.
        error: why there is nothing newer, "" if there is.
    """

    def __init__(self, client: Client) -> None:
        """Nothing is read yet."""
        self._client = client
        self.rows: tuple[StreamRow, ...] = ()
        self.left_out = 0
        self.read_s: float | None = None
        self.took_s = 0.0
        self.error = ""

    async def run(self) -> None:
        """Pass over all streams again and again, until cancelled."""
        while True:
            began_s = time.monotonic()
            try:
                await self.pass_once()
                self.error = ""
            except Error as error:
                self.error = f"streams cannot be read: {error}"
                logs.warning("console.streams_not_read", reason=str(error))
            self.took_s = time.monotonic() - began_s
            await asyncio.sleep(max(PASS_INTERVAL_S, self.took_s / SHARE_MAX))

    async def pass_once(self) -> None:
        """Read all streams once. Raises MetadataUnavailable, StorageError."""
        rows: list[StreamRow] = []
        left_out = 0
        async for snapshots in all_streams(self._client.records):
            found = await self._rows_of(snapshots)
            room = STREAMS_MAX - len(rows)
            rows += found[:room]
            left_out += len(found) - len(found[:room])
            await asyncio.sleep(0)
        rows.sort(key=lambda row: row.path)
        self.rows, self.left_out, self.read_s = tuple(rows), left_out, time.time()

    async def _size_of(self, chain: Chain) -> int:
        try:
            (size_bytes,) = await kept_bytes(self._client.records, [chain])
        except StorageError:
            return 0
        return size_bytes

    async def _rows_of(self, snapshots: Sequence[StreamSnapshot]) -> list[StreamRow]:
        shown = [
            (one, one.record, one.known.chain)
            for one in snapshots
            if one.path
            and one.record is not None
            and one.known is not None
            and not one.record.deleting
        ]
        try:
            sizes = await kept_bytes(self._client.records, [chain for _, _, chain in shown])
        except StorageError:  # one page of one of them: the others are asked for alone
            sizes = [await self._size_of(chain) for _, _, chain in shown]
        bad = [
            StreamRow(
                one.path, one.path.rpartition("/")[0], one.stream_id, 0, 0, 0, 0, -1, False, "", array("q"),
                str(one.trouble),
            )
            for one in snapshots
            if one.path and one.known is None and one.trouble is not None
        ]  # fmt: skip
        return bad + [
            StreamRow(
                snapshot.path,
                snapshot.path.rpartition("/")[0],
                snapshot.stream_id,
                chain.next_number - chain.head,
                len(chain.open_rows),
                chain.end_seq - chain.head_seq,
                size_bytes,
                chain.newest_time_us,
                chain.is_sealed,
                chain.owner,
                array("q", (row.ledger_id for row in chain.rows[-LEDGERS_MAX:])),
                kind=chain.kind.label,
            )
            for (snapshot, _, chain), size_bytes in zip(shown, sizes, strict=True)
        ]


# --- events -----------------------------------------------------------------------------------------------------------

EVENTS_TIMEOUT_S = 4.0
SOURCES_S = 30.0
"""How often metadata is read for bookies that came."""
FRESH_S = 3.0
"""Whoever wants the same in this time gets the same answer."""
QUERIES_MAX = 16
"""Whose answers are kept."""

_Key = tuple[str, str, frozenset[str], str]


class EventReader:
    """Reads events from the pages of all bookies when somebody opens the page Events, one reading at a time."""

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
            wanted = [source for source in self._sources if bookie_id in ("", source.name)]
            found = await asyncio.to_thread(
                read_cluster_events, wanted, query, None, EVENTS_TIMEOUT_S
            )
            self._answers[key] = time.monotonic(), found
            self._answers.move_to_end(key)
            if len(self._answers) > QUERIES_MAX:
                self._answers.popitem(last=False)
            return found

    def _listed(self, store: MetadataStore) -> list[EventSource]:
        return event_pages(store, self._uri, more=self._pages, timeout_s=EVENTS_TIMEOUT_S)
