"""The client's connections: two for each bookie, one for adds and one for reads and fences, made when needed.

A third one goes only to bookies of Apache's, for what is not asked in version 2 of its protocol.

Adds may be held back by the bookie for want of credit; reads and fences on the second connection never wait behind
them. A channel that somebody subscribed to comes back by itself, with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from fastbk.client.config import ClientConfig
from fastbk.client.connecting import EndedUnauthenticated, TokenRenewal, open_connection
from fastbk.client.connection import (
    AddListener,
    Answer,
    Connection,
    Traffic,
    Use,
    late,
    next_slot,
    translation_of,
    use_of,
)
from fastbk.client.known_bookies import KnownBookies
from fastbk.client.ledger_tags import LedgerTag, LedgerTags, show
from fastbk.errors import ClientClosed, Error, NotEnoughBookies
from fastbk.meta.api import BookieRegistration, Endpoint
from fastbk.model.ids import BookieId
from fastbk.observe.meter import DISTANCE, TRAFFIC, Figures, Source, meter_of
from fastbk.observe.prometheus import family
from fastbk.placement.config import Distance
from fastbk.retry import Backoff, Retry, jittered

UNAUTHENTICATED_TRIES = 8
"""Within two seconds or so, where each ends at once."""
_REFRESH_S = 1.0
_REFRESH_WAIT_S = 1.0


class ChannelListener(Protocol):
    """A writer's view of the channels it sends adds through."""

    def channel_ready(self, bookie_id: BookieId) -> None:
        """The bookie can be written to."""

    def channel_lost(self, bookie_id: BookieId, reason: str) -> None:
        """It cannot be, or could not be reached again; what was sent may or may not have arrived."""

    def channel_drained(self, bookie_id: BookieId) -> None:
        """The bookie reads again after it had fallen behind."""


class Endable(Protocol):
    """What is under way and can be ended from outside."""

    def end(self, error: Error) -> None:
        """Fail with `error`."""


class Channel:
    """One connection to one bookie that is made again when it is lost and somebody wants it."""

    def __init__(self, pool: BookiePool, bookie_id: BookieId, use: Use, traffic: Traffic) -> None:
        self.bookie_id = bookie_id
        self.use = use
        self._traffic = traffic
        self.connection: Connection | None = None
        self.reconnects = 0
        self._pool = pool
        self._listeners: list[ChannelListener] = []
        self._task: asyncio.Task[Connection] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._backoff = Retry(pool.config.backoff_min, pool.config.backoff_max)
        self._was_missed = False
        self._refused = "the connection was lost at once"

    def subscribe(self, listener: ChannelListener) -> None:
        """Keep the channel up and tell `listener` about it; it is told at once if the channel is up."""
        self._listeners.append(listener)
        if self.connection is not None:
            listener.channel_ready(self.bookie_id)
        elif self._task is None and self._retry is None:
            self._start()

    def unsubscribe(self, listener: ChannelListener) -> None:
        """Stop telling `listener`; a channel that nobody subscribes to is not made again."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        if not self._listeners and self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def open(self, timeout_s: float) -> Connection:
        """Return the connection, made if necessary. Raises an Error with the reason."""
        if self.connection is not None:
            return self.connection
        if self._task is None:
            self._start()
        assert self._task is not None
        # Several callers wait for one attempt, and it goes on when one of them gives up.
        done, _ = await asyncio.wait([self._task], timeout=timeout_s)
        if not done:
            raise NotEnoughBookies(
                f"bookie {self.bookie_id} was not reached within {timeout_s:.3g} s"
            )
        (task,) = done
        if task.cancelled():
            raise ClientClosed("the client was closed")
        connection = task.result()
        if not self._is_current(connection):
            # It answered, and was not what it should be.
            raise NotEnoughBookies(f"bookie {self.bookie_id}: {self._refused}")
        return connection

    def _is_current(self, connection: Connection) -> bool:
        return self.connection is connection

    def _start(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._task = asyncio.get_running_loop().create_task(
            self._connect(), name=f"fastbk connect {self.bookie_id}"
        )
        self._task.add_done_callback(self._connected)

    async def _connect(self) -> Connection:
        """Connect, again where the bookie ended a connection of which it did not know yet whose it was.

        A bookie that strangers crowd keeps room for its clients by ending such connections, the oldest first: of
        several, one is quick enough.
        """
        retry = Backoff(self._pool.config.backoff_min, self._pool.config.backoff_max)
        for _ in range(UNAUTHENTICATED_TRIES - 1):
            try:
                return await self._try_to_connect()
            except EndedUnauthenticated:
                await asyncio.sleep(jittered(retry.next_s()))
        return await self._try_to_connect()

    async def _try_to_connect(self) -> Connection:
        pool = self._pool
        endpoint = await pool.address(self.bookie_id, fresh=self._was_missed)
        return await open_connection(
            endpoint.host,
            endpoint.port,
            bookie_id=self.bookie_id,
            client_name=pool.config.client_name,
            timeout_s=pool.config.connect_timeout,
            slots=pool.slots,
            on_lost=self._lost,
            on_drained=self._drained,
            tls=pool.tls,
            credentials=pool.config.credentials,
            apache=translation_of(pool.config, pool.known, self.bookie_id, endpoint, self.use),
        )

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            connection = task.result()
            reason = self._pool.check_incarnation(self.bookie_id, connection)
            if reason is None and connection.is_open:
                self._backoff.restart()
                self._was_missed = False
                self.connection = connection
                connection.traffic = self._traffic
                self._pool.token_renewal.begin()
                for listener in list(self._listeners):
                    listener.channel_ready(self.bookie_id)
                return
            reason = reason or "the connection was lost at once"
            self._refused = reason
            connection.abort(reason)
        elif isinstance(error, Error):
            reason = str(error)
        else:
            self._pool.report(error)
            reason = repr(error)
        self._was_missed = True  # it may listen elsewhere by now
        self._pool.failed(self.bookie_id)
        self._give_notice(reason)

    def _lost(self, reason: str) -> None:
        # Also called for connections that never said hello, or lost their place: their tasks report that.
        if self.connection is not None and not self.connection.is_open:
            self.connection = None
            self.reconnects += 1
            self._give_notice(reason)

    def _give_notice(self, reason: str) -> None:
        for listener in list(self._listeners):
            listener.channel_lost(self.bookie_id, reason)
        if self._listeners and not self._pool.is_closed and self._task is None:
            self._was_missed = True
            self._retry = asyncio.get_running_loop().call_later(
                self._backoff.pause_s(), self._start
            )

    def _drained(self) -> None:
        for listener in list(self._listeners):
            listener.channel_drained(self.bookie_id)

    async def close(self, timeout_s: float) -> None:
        """Send what was written and close; cut after `timeout_s`."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        connection = self.connection
        if connection is not None:
            connection.close()
            done, _ = await asyncio.wait([connection.closed], timeout=timeout_s)
            if not done:
                connection.abort("the client closed the connection")
                await connection.closed


class Peer:
    """A bookie as the client sees it."""

    def __init__(self, pool: BookiePool, bookie_id: BookieId) -> None:
        self.bookie_id = bookie_id
        self.traffic = traffic = Traffic()
        self.add_channel = Channel(pool, bookie_id, "adds", traffic)
        self.reads = Channel(pool, bookie_id, "reads", traffic)
        self.others = Channel(pool, bookie_id, "others", traffic)
        self.pool = pool

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All its channels."""
        return self.add_channel, self.reads, self.others

    def channel_for(self, frame: bytes | bytearray) -> Channel:
        """Return the channel that a request other than a writer's add goes by."""
        use = use_of(self.pool.config, self.pool.known, self.bookie_id, frame)
        return self.others if use == "others" else self.reads

    def send_request(
        self,
        build: Build,
        timeout_s: float,
        tell: Callable[[Answer | Error], None],
        tag: LedgerTag | None = None,
    ) -> PendingRequest:
        """Send a request other than a writer's add; `build(request_id)` encodes it. Nothing is told before it returns.

        `tag`: of the ledger, if bookies have to see one.
        Errors: NotEnoughBookies (not reached, or the connection was lost), QuorumTimeout.
        """
        return PendingRequest(self, build, timeout_s, tell, tag)

    async def request(self, build: Build, timeout_s: float) -> Answer:
        """Send a request other than a writer's add and return its answer. Raises what `send_request` reports."""
        future: asyncio.Future[Answer | Error] = asyncio.get_running_loop().create_future()

        def on_outcome(outcome: Answer | Error) -> None:
            if not future.done():
                future.set_result(outcome)

        sent_request = self.send_request(build, timeout_s, on_outcome)
        try:
            outcome = await future
        finally:
            sent_request.cancel()
        if isinstance(outcome, Error):
            raise outcome
        return outcome


class BookiePool:
    """All peers of one client, and what the metadata store says about where they are.

    Attributes:
        known: what is known of the bookies.
        runs: procedures that are under way, ended when the pool is closed.
        is_watched: whether changes of the bookies are announced, each by a look at them.
        listed: the bookies of the last look, while they are watched; None before the first, and during one.
    """

    def __init__(
        self,
        config: ClientConfig,
        list_bookies: Callable[[], Awaitable[list[BookieRegistration]]],
        report: Callable[[BaseException], None],
    ) -> None:
        self.config = config
        self.tls = config.tls.context() if config.tls is not None else None
        self.token_renewal = TokenRenewal(config, self._open_connections)
        self.tags = LedgerTags(
            config.credentials,
            lambda: self.token_renewal.token,
            lambda bookie_id, build: self.peer(bookie_id).request(build, config.read_timeout),
        )
        self.token_renewal.on_token = self.tags.refresh
        self.slots: dict[int, AddListener] = {}
        self.report = report
        self.is_closed = False
        self.known = KnownBookies(config)
        self.runs: set[Endable] = set()
        self.is_watched = False
        self.listed: list[BookieRegistration] | None = None
        self._list_bookies = list_bookies
        self._looks = 0
        self._newest_look = 0
        self._peers: dict[BookieId, Peer] = {}
        self._request_id = 0
        self._slot = 0
        self.traffic = TrafficByDistance(self)

    def peer(self, bookie_id: BookieId) -> Peer:
        """Return the peer of that id; no I/O."""
        peer = self._peers.get(bookie_id)
        if peer is None:
            peer = self._peers[bookie_id] = Peer(self, bookie_id)
        return peer

    def peers(self) -> list[Peer]:
        """Return all peers. Any thread may ask."""
        return list(self._peers.values())

    def _open_connections(self) -> list[Connection]:
        found = (channel.connection for peer in self._peers.values() for channel in peer.channels)
        return [one for one in found if one is not None]

    def next_request_id(self) -> int:
        """Return an id for a request other than an add; 0 is never used."""
        # Ids come around after 10^12 requests; those that are pending are younger than their deadlines.
        self._request_id = self._request_id % ((1 << 40) - 2) + 1
        return self._request_id

    def new_slot(self, listener: AddListener) -> int:
        """Return a slot for the adds of one writer: the upper bits of their request ids."""
        self._slot = next_slot(self._slot, self.slots)
        self.slots[self._slot] = listener
        return self._slot

    async def bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        self._looks += 1
        look = self._looks
        self.listed = None
        is_watched = self.is_watched
        bookies = await self._list_bookies()
        # Of two looks at once, the one that began later counts, whichever ends first.
        if look > self._newest_look:
            self._newest_look = look
            self.listed = bookies if is_watched and look == self._looks else None
            self.known.update(bookies, asyncio.get_running_loop().time())
        await self.known.learn_locations()
        return bookies

    async def address(self, bookie_id: BookieId, *, fresh: bool) -> Endpoint:
        """Return where the bookie listens; the last known place when it is not registered now."""
        if self.known.endpoint(bookie_id) is None:
            await self.bookies()
        elif fresh and self.known.age_s(asyncio.get_running_loop().time()) > _REFRESH_S:
            # Without metadata the last known place is still worth a try, and soon: adds wait for it.
            with contextlib.suppress(Error, TimeoutError):
                async with asyncio.timeout(_REFRESH_WAIT_S):
                    await self.bookies()
        endpoint = self.known.endpoint(bookie_id)
        if endpoint is None:
            raise NotEnoughBookies(f"bookie {bookie_id} is not registered")
        return endpoint

    def check_incarnation(self, bookie_id: BookieId, connection: Connection) -> str | None:
        """Return why the bookie may not be used: its data is not what this client knew."""
        assert connection.hello is not None
        return self.known.check_incarnation(bookie_id, connection.hello.incarnation, self.slots)

    def failed(self, bookie_id: BookieId) -> None:
        """Count an error of the bookie's towards its quarantine."""
        self.known.failed(bookie_id, asyncio.get_running_loop().time())

    def quarantine(self, bookie_id: BookieId) -> None:
        """Have new fragments avoid a bookie that had to be replaced."""
        self.known.quarantine(bookie_id, asyncio.get_running_loop().time())

    async def reach(
        self, bookie_ids: Sequence[BookieId], timeout_s: float
    ) -> dict[BookieId, Error]:
        """Connect to these for adds, all at once; return why those that do not answer are not reached."""
        tries = [self.peer(bookie_id).add_channel.open(timeout_s) for bookie_id in bookie_ids]
        missed: dict[BookieId, Error] = {}
        for bookie_id, result in zip(
            bookie_ids, await asyncio.gather(*tries, return_exceptions=True), strict=True
        ):
            if isinstance(result, ClientClosed) or (
                isinstance(result, BaseException) and not isinstance(result, Error)
            ):
                raise result
            if isinstance(result, Error):
                self.failed(bookie_id)
                missed[bookie_id] = result
        return missed

    async def close(self, timeout_s: float) -> None:
        """Close all connections; procedures that are under way end with ClientClosed."""
        self.is_closed = True
        self.token_renewal.end()
        self.tags.close()
        for run in list(self.runs):
            run.end(ClientClosed("the client was closed: make a new one"))
        channels = [channel for peer in self._peers.values() for channel in peer.channels]
        await asyncio.gather(*(channel.close(timeout_s) for channel in channels))
        self.traffic.close()


# --- what went how far ----------------------------------------------------------------------------
#
# Traffic with bookies by how far they are: what crosses regions costs money.
#
# Connections count by bookie, which costs an addition. Each look adds what has come since the last
# one to how far the bookie is now.


class TrafficByDistance:
    """One client's. Any thread may look."""

    def __init__(self, pool: BookiePool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._counted: dict[BookieId, tuple[int, ...]] = {}
        self._totals: dict[Distance, list[int]] = {one: [0] * len(TRAFFIC) for one in Distance}
        meter = meter_of(pool.config.tracing)
        self._of_distances = () if meter is None else tuple(OneDistance(self, d) for d in Distance)
        self._sources: list[Source] = []
        if meter is not None:
            self._sources = [meter.add(one.attributes, one.figures) for one in self._of_distances]

    def totals(self) -> Mapping[Distance, Sequence[int]]:
        """Return the counts of `TRAFFIC` for each distance."""
        with self._lock:
            for peer in self._pool.peers():
                counts = peer.traffic.counts
                before = self._counted.get(peer.bookie_id, (0,) * len(counts))
                if counts != before:
                    self._counted[peer.bookie_id] = counts
                    totals = self._totals[self._pool.known.distance(peer.bookie_id)]
                    for index, (now, then) in enumerate(zip(counts, before, strict=True)):
                        totals[index] += now - then
            return {one: tuple(counts) for one, counts in self._totals.items()}

    def metric_lines(self) -> list[str]:
        """Return the lines of Prometheus' text format, for the pages of services."""
        totals = self.totals()
        return [
            line
            for index, (name, text) in enumerate(TRAFFIC_METRICS.items())
            for line in family(
                name,
                "counter",
                text,
                [(f'distance="{one.label}"', counts[index]) for one, counts in totals.items()],
            )
        ]

    def close(self) -> None:
        """Count the traffic a last time."""
        for source in self._sources:
            source.close()


TRAFFIC_METRICS = {
    "fastbk_client_received_bytes_total": "bytes from bookies to this process, by how far they are",
    "fastbk_client_sent_bytes_total": "bytes from this process to bookies, by how far they are",
    "fastbk_client_read_entries_total": "entries from bookies, by how far they are",
    "fastbk_client_stored_copies_total": "copies of entries that bookies acknowledged, by how far they are",
}
"""In the order of `TRAFFIC`."""


class OneDistance:
    """What OpenTelemetry is told of one distance."""

    def __init__(self, traffic: TrafficByDistance, distance: Distance) -> None:
        self._traffic = traffic
        self._distance = distance
        self.attributes = {"messaging.system": "fastbk", DISTANCE: distance.label}

    def figures(self) -> Figures:
        """Return it now."""
        return dict(zip(TRAFFIC, self._traffic.totals()[self._distance], strict=True))


# --- one request ----------------------------------------------------------------------------------
#
# One request to one bookie on an asyncio loop: connect if need be, send, wait, with one deadline
# for all of it.


# Encodes a request, given its id.
Build: TypeAlias = Callable[[int], bytes | bytearray]


class PendingRequest:
    """A request on its way to one bookie; `tell` gets the answer or an Error, once, unless it was cancelled."""

    __slots__ = (
        "_connection",
        "_peer",
        "_request_id",
        "_tag",
        "_task",
        "_tell",
        "_timeout_s",
        "_timer",
    )

    def __init__(
        self,
        peer: Peer,
        build: Build,
        timeout_s: float,
        tell: Callable[[Answer | Error], None],
        tag: LedgerTag | None = None,
    ) -> None:
        """`tag`: is shown to the bookie first."""
        self._peer = peer
        self._tag = tag
        self._tell = tell
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_s, self._timed_out)
        self._request_id = peer.pool.next_request_id()
        frame = build(self._request_id)
        channel = peer.channel_for(frame)
        if channel.connection is not None:
            self._send(channel.connection, frame)
        else:
            self._task = loop.create_task(self._open(channel, frame))

    async def _open(self, channel: Channel, frame: bytes | bytearray) -> None:
        try:
            self._send(await channel.open(self._timeout_s), frame)
        except Error as error:
            self._end(error)

    def _send(self, connection: Connection, frame: bytes | bytearray) -> None:
        self._connection = connection
        if self._tag is not None:
            show(connection, self._tag, self._peer.pool.next_request_id())
        connection.send_request(self._request_id, frame, self._end)

    def _timed_out(self) -> None:
        if self._connection is not None:
            self._end(late(self._timeout_s))
        else:
            self._end(
                NotEnoughBookies(
                    f"bookie {self._peer.bookie_id} was not reached within {self._timeout_s:.3g} s"
                )
            )

    def _end(self, outcome: Answer | Error) -> None:
        self.cancel()
        if isinstance(outcome, Error):
            self._peer.pool.failed(self._peer.bookie_id)
        self._tell(outcome)

    def cancel(self) -> None:
        """Let go of it: a late answer is dropped."""
        self._timer.cancel()
        if self._connection is not None:
            self._connection.forget(self._request_id)
        elif self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
