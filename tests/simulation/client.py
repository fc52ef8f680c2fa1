"""A client as a node: channels to bookies, requests with deadlines, and the procedures that run on it.

It is the simulator's driver of the product's procedures, as the asyncio client is the product's own: it sends what they
ask for, tells them what comes of it, and knows nothing of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies, QuorumTimeout
from fastbk.meta.api import IdentityVersion, VersionedIdentity, VersionedLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.placement.choose_ensemble import BookieView
from fastbk.replication.procedure import AddEntry, BookieRequest, MarkReplicas, Outcome, Reply
from tests.simulation.kernel import STALE, Kernel, Node
from tests.simulation.network import TO_BOOKIE, Connection, Network

if TYPE_CHECKING:
    from tests.simulation.bookie import Bookie
    from tests.simulation.domains import Racks
    from tests.simulation.running import Running
    from tests.simulation.store import Store

ADDS, READS = 0, 1
CONNECT_TIMEOUT_S = 1.0
BACKOFF_S = (0.05, 1.0)
METADATA_TIMEOUT_S = 1.0

Done: TypeAlias = Callable[[Outcome], None]


class Channel:
    """One of a client's two connections to a bookie, made when it is wanted and again when it is lost."""

    __slots__ = (
        "bookie",
        "connecting",
        "connection",
        "lane",
        "listeners",
        "pending",
        "queue",
        "tries",
    )

    def __init__(self, bookie: Bookie, lane: int) -> None:
        self.bookie = bookie
        self.lane = lane
        self.connection: Connection | None = None
        self.connecting: Connection | None = None
        self.tries = 0
        self.listeners: list[Any] = []
        self.pending: dict[int, Done] = {}
        self.queue: list[tuple[int, LedgerId, bytes, BookieRequest]] = []


class Client(Node):
    """A process that writes, recovers and reads ledgers.

    Attributes:
        incarnations: what each bookie said when it was first met; another one is not talked to.
        views: the writable bookies, as the metadata store last told.
        runnings: the procedures under way.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        store: Store,
        bookies: dict[BookieId, Bookie],
        name: str,
        racks: Racks,
    ) -> None:
        super().__init__(kernel, name)
        self.racks = racks
        self.network = network
        self.store = store
        self.bookies = bookies
        self.rng = kernel.rng(f"client {name}")
        self.is_alive = True
        self.incarnations: dict[BookieId, int] = {}
        self.views: tuple[BookieView, ...] = ()
        self.runnings: list[Running[Any]] = []
        self._channels: dict[tuple[BookieId, int], Channel] = {}
        self._metadata: dict[int, Done] = {}
        self._request_id = 0
        store.clients.append(self)

    def crash(self) -> None:
        """End at once: nothing that it was at goes on, its connections are cut."""
        self.is_alive = False
        self.life += 1
        self.doing = "dead"
        self.runnings.clear()
        self._metadata.clear()
        if self in self.store.clients:
            self.store.clients.remove(self)
        for channel in self._channels.values():
            for connection in (channel.connection, channel.connecting):
                if connection is not None:
                    self._drop(connection)
        self._channels.clear()

    # --- channels ----------------------------------------------------------------------------------------------

    def channel(self, bookie_id: BookieId, lane: int) -> Channel:
        """Return a channel, made if necessary; it connects when it is used."""
        key = (bookie_id, lane)
        found = self._channels.get(key)
        if found is None:
            found = self._channels[key] = Channel(self.bookies[bookie_id], lane)
        return found

    def want(self, channel: Channel) -> None:
        """Connect if it is not."""
        if channel.connection is None and channel.connecting is None:
            connection = self.network.connect(self, channel.bookie, channel.lane)
            channel.connecting = connection
            self.network.send(connection, TO_BOOKIE, channel.bookie.connect)
            self.kernel.after(CONNECT_TIMEOUT_S, self, self.connect_timed_out, channel, connection)

    def connect_timed_out(self, channel: Channel, connection: Connection) -> object:
        """The bookie has not said hello."""
        if channel.connecting is not connection:
            return STALE
        self._drop(connection)
        self._failed(channel, "not reached in time", is_gone=False)
        return None

    def count_on(self, bookie_ids: Iterable[BookieId]) -> None:
        """Remember the incarnations of bookies that are chosen for a fragment: the product takes only those that said
        hello to it just before (`fastbk.client.ensembles`)."""
        for bookie_id in bookie_ids:
            self.incarnations.setdefault(bookie_id, self.bookies[bookie_id].incarnation)

    def accepted(self, connection: Connection, incarnation: int) -> object:
        """The bookie said hello: compare who it is."""
        channel = self._channels.get((connection.bookie.name, connection.lane))
        if channel is not None and channel.connection is connection:
            return STALE  # said twice
        if channel is None or channel.connecting is not connection:
            self._drop(connection)
            return STALE
        known = self.incarnations.setdefault(connection.bookie.name, incarnation)
        if known != incarnation:
            self._drop(connection)
            self._failed(channel, "its data was lost", is_gone=True)
            return None
        connection.incarnation = incarnation
        channel.connecting = None
        channel.connection = connection
        channel.tries = 0
        queue, channel.queue = channel.queue, []
        for request_id, ledger_id, key, request in queue:
            if request_id in channel.pending:
                self._send(channel, connection, request_id, ledger_id, key, request)
        for listener in list(channel.listeners):
            listener.channel_ready(connection.bookie.name)
        return None

    def refused(self, connection: Connection) -> object:
        """Nobody listens there."""
        channel = self._channels.get((connection.bookie.name, connection.lane))
        if channel is None or channel.connecting is not connection:
            return STALE
        self._drop(connection)
        self._failed(channel, "refused the connection", is_gone=False)
        return None

    def lost(self, connection: Connection) -> object:
        """The connection was cut: by the network, or because the bookie ended."""
        channel = self._channels.get((connection.bookie.name, connection.lane))
        connection.client_open = False
        if channel is None or connection not in (channel.connection, channel.connecting):
            return STALE
        self._failed(channel, "the connection was lost", is_gone=False)
        return None

    def _drop(self, connection: Connection) -> None:
        if connection.client_open:
            connection.client_open = False
            self.network.send(connection, TO_BOOKIE, connection.bookie.hung_up)

    def _failed(self, channel: Channel, reason: str, *, is_gone: bool) -> None:
        channel.connection = channel.connecting = None
        channel.queue.clear()
        pending, channel.pending = channel.pending, {}
        bookie_id = channel.bookie.name
        for done in pending.values():
            done(NotEnoughBookies(f"bookie {bookie_id}: {reason}"))
        for listener in list(channel.listeners):
            listener.channel_lost(bookie_id, reason, is_gone)
        if channel.listeners:
            channel.tries += 1
            pause_s = min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** min(channel.tries, 6))
            self.kernel.after(
                pause_s * (0.75 + 0.5 * self.rng.random()), self, self.reconnect, channel
            )

    def reconnect(self, channel: Channel) -> object:
        if (
            not channel.listeners
            or channel.connection is not None
            or channel.connecting is not None
        ):
            return STALE
        self.want(channel)
        return None

    def subscribe(self, bookie_id: BookieId, listener: Any) -> None:
        """Keep the add channel up and tell `listener` what becomes of it."""
        channel = self.channel(bookie_id, ADDS)
        channel.listeners.append(listener)
        if channel.connection is not None:
            listener.channel_ready(bookie_id)
        else:
            self.want(channel)

    def unsubscribe(self, bookie_id: BookieId, listener: Any) -> None:
        channel = self.channel(bookie_id, ADDS)
        if listener in channel.listeners:
            channel.listeners.remove(listener)

    # --- requests ----------------------------------------------------------------------------------------------

    def ask(
        self,
        ledger_id: LedgerId,
        key: bytes,
        bookie_id: BookieId,
        request: BookieRequest,
        timeout_s: float,
        done: Done,
    ) -> tuple[Channel, int]:
        """Send a request; `done` gets the Reply or the Error, never before this returns."""
        channel = self.channel(bookie_id, ADDS if isinstance(request, AddEntry) else READS)
        self._request_id += 1
        request_id = self._request_id
        channel.pending[request_id] = done
        connection = channel.connection
        if connection is None:
            channel.queue.append((request_id, ledger_id, key, request))
            self.want(channel)
        else:
            self._send(channel, connection, request_id, ledger_id, key, request)
        self.kernel.after(timeout_s, self, self.ask_timed_out, channel, request_id)
        return channel, request_id

    def _send(
        self,
        channel: Channel,
        connection: Connection,
        request_id: int,
        ledger_id: LedgerId,
        key: bytes,
        request: BookieRequest,
    ) -> None:
        self.store.checks.sent(self.name, channel.bookie.name, ledger_id, request)
        self.network.send(
            connection, TO_BOOKIE, channel.bookie.receive, request_id, ledger_id, key, request
        )

    def ask_timed_out(self, channel: Channel, request_id: int) -> object:
        done = channel.pending.pop(request_id, None)
        if done is None:
            return STALE
        done(QuorumTimeout(f"bookie {channel.bookie.name} gave no answer"))
        return None

    def told(self, connection: Connection, request_id: int, reply: Reply) -> object:
        """A bookie answered; only the connection that the request went over counts (P24)."""
        channel = self._channels.get((connection.bookie.name, connection.lane))
        if channel is None or channel.connection is not connection:
            return STALE
        done = channel.pending.pop(request_id, None)
        if done is None:
            return STALE
        done(reply)
        return None

    def told_adds(
        self, connection: Connection, ledger_id: LedgerId, verdicts: list[tuple[int, int, int]]
    ) -> object:
        """A bookie answered adds of a writer: (first entry, count, status) for each run."""
        channel = self._channels.get((connection.bookie.name, connection.lane))
        if channel is None or channel.connection is not connection:
            return STALE
        # Also from bookies that a writer no longer wants: it has to know by itself.
        for running in list(self.runnings):
            if running.ledger.ledger_id == ledger_id:
                running.answered(connection.bookie.name, verdicts)
        return None

    # --- metadata ----------------------------------------------------------------------------------------------

    def read_metadata(self, ledger_id: LedgerId, done: Done) -> None:
        request_id = self._expect(done)
        self.network.post(self, self.store, self.store.read, self, request_id, ledger_id)

    def update_metadata(
        self,
        ledger_id: LedgerId,
        metadata: Any,
        version: int,
        done: Done,
        if_identity: IdentityVersion | None = None,
    ) -> None:
        request_id = self._expect(done)
        update = self.store.update
        self.network.post(
            self, self.store, update, self, request_id, ledger_id, metadata, version, if_identity
        )

    def read_identity(self, bookie_id: BookieId, done: Done) -> None:
        request_id = self._expect(done)
        self.network.post(self, self.store, self.store.read_identity, self, request_id, bookie_id)

    def mark_replicas(self, ledger_id: LedgerId, action: MarkReplicas, done: Done) -> None:
        request_id = self._expect(done)
        self.network.post(self, self.store, self.store.mark, self, request_id, ledger_id, action)

    def _expect(self, done: Done) -> int:
        self._request_id += 1
        self._metadata[self._request_id] = done
        self.kernel.after(METADATA_TIMEOUT_S, self, self.metadata_timed_out, self._request_id)
        return self._request_id

    def metadata_timed_out(self, request_id: int) -> object:
        """The store did not answer: whether it did anything is unknown."""
        done = self._metadata.pop(request_id, None)
        if done is None:
            return STALE
        done(MetadataUnavailable("the metadata store gave no answer"))
        return None

    def told_metadata(
        self, request_id: int, outcome: VersionedLedger | VersionedIdentity | int | Error | None
    ) -> object:
        done = self._metadata.pop(request_id, None)
        if done is None:
            return STALE
        if isinstance(outcome, VersionedLedger):
            self.store.checks.metadata_read(self.name, outcome)
        done(outcome)
        return None

    def metadata_was_changed(self, ledger_id: LedgerId, versioned: VersionedLedger) -> object:
        told = False
        for running in list(self.runnings):
            if running.ledger.ledger_id == ledger_id and running.watch is not None:
                running.watch(versioned)
                told = True
        return None if told else STALE

    def told_bookies(self, writable: tuple[BookieId, ...]) -> object:
        views = tuple(self.racks.view_of(one) for one in writable)
        if not self.is_alive or views == self.views:
            return STALE
        self.views = views
        for running in list(self.runnings):
            running.bookies_changed()
        return None
