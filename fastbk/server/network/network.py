"""A worker's event loop side: the listener, the bell, the timer, and the end.

`Network` owns the connections by slot. One C call receives from all that are readable (`Worker.poll`), another answers
everything once the bell rang (an eventfd of journal and index). The timer, once a second, looks at deadlines and at
what a lost wake-up may have left.

INV-N5: no client ends a worker. An exception that a connection led to ends that connection (`Connection.failed`), and
is counted and logged. A round over many connections, such as the timer's, ends the one that raises and goes on with
the others. The worker ends only for what no connection can cause: broken shared memory, or a lost supervisor.

`IdleConnections` closes connections when most are in use. A connection may be silent for as long as it likes: Apache's
clients open channels that they need later. Once three quarters of `[network] connections_max` are in use, silent
connections are closed until no more than that are left, so that new clients find room. Clients open a closed channel
again when they need it.

INV-N6: where clients authenticate themselves, connections whose client has not done so yet have a share of their own.
It is a quarter of all, and at most half of what the others leave. Beyond it one of them is closed, whatever it
sends.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
import traceback
from collections import Counter
from typing import TYPE_CHECKING

from fastbk.errors import StorageError
from fastbk.native.ffi import NativeStoppedError
from fastbk.native.worker import (
    CONNECTIONS_FAILED,
    LIMITS,
    QUOTA_STEP_S,
    SILENT_CLOSED,
    UNAUTHENTICATED_CLOSED,
    WAITS_QUOTA,
)
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.printable_text import printable
from fastbk.security.admission import Admission
from fastbk.security.rights import NOBODY
from fastbk.server.child import SupervisorGone
from fastbk.server.network.acceptor import Acceptor
from fastbk.server.network.audit_trail import AuditTrail
from fastbk.server.network.connection import Connection
from fastbk.server.network.handlers import ApacheHandlers, DigestRequests, Handlers
from fastbk.server.network.principals import Principals, Quotas, QuotaWaits

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.worker import Event, Worker
    from fastbk.security.admission import Client
    from fastbk.server.child import Offer
    from fastbk.server.configuration.bookie_config import WorkerConfig
    from fastbk.server.configuration.settings import NetworkSettings


SWEEP_INTERVAL_S = 1.0
BACKLOG = 1024
CLOSE_TIMEOUT_S = 1.0
"""How long the last replies may take to leave once everything is answered."""
_WORKERS_OWN = (StorageError, NativeStoppedError, SupervisorGone)
"""What no client causes: poisoned shared memory is a StorageError."""


class Network:
    """Serves one listener until drained."""

    def __init__(
        self,
        worker: Worker,
        config: WorkerConfig,
        bell_fd: int,
        loop: asyncio.AbstractEventLoop,
        send: Offer,
        number: int = 0,
    ) -> None:
        """Read the files of certificates, tokens and users. Raises ConfigError. `send`: reaches the supervisor."""
        self.worker = worker
        self.loop = loop
        self.quotas = Quotas(config.quotas, config.worker_count, worker)
        self.admission = admission = Admission(
            config.tls,
            config.authentication,
            config.authorization,
            config.cluster_id,
            refuse_more=self.quotas.refusal,
        )
        hello_timeout_s = config.settings.hello_timeout_ms / 1000
        self._acceptor = (
            None if config.tls.mode == "off" else Acceptor(self, config.tls, hello_timeout_s)
        )
        self.digests = DigestRequests(worker, loop, send)
        self.connections: dict[int, Connection] = {}
        self.audit = AuditTrail(worker, number, self.connections, send, is_on=config.is_audited)
        self._quota_waits = QuotaWaits()
        self.handlers = Handlers(config, worker, admission, self.audit, send, self._reply)
        self.apache = ApacheHandlers(config, worker, admission, self.audit)
        self.principals = Principals(
            admission, worker, config.authentication.refresh_interval_s, self.audit, self.quotas
        )
        self._idle = IdleConnections(worker, self.connections)
        self._limits = LimitLog("worker.limit_reached")
        self._contained = LimitLog("connection.failed")
        self._complaints = LimitLog("loop.complained")
        self.keep_alive = keep_alive(config.settings)
        self._bell_fd = bell_fd
        self._poll_fd = worker.poll_fd
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._quota_timer: asyncio.TimerHandle | None = None
        self._is_collect_due = False
        self._failure: asyncio.Future[None] = loop.create_future()
        self._drained: asyncio.Future[None] | None = None
        self._all_gone: asyncio.Future[None] | None = None

    async def start(self, listener: socket.socket) -> int:
        """Listen; return the port (0 for a unix socket)."""
        self.loop.set_exception_handler(self._on_exception)
        self.loop.add_reader(self._bell_fd, self._on_bell)
        self.loop.add_reader(self._poll_fd, self._on_input)
        self._on_bell()  # from here on the others know that this worker sleeps
        self._timer = self.loop.call_later(SWEEP_INTERVAL_S, self._on_timer)
        address = listener.getsockname()
        if self._acceptor is not None:
            self._acceptor.start(listener, BACKLOG)
        else:
            self._server = await self.loop.create_server(
                lambda: Connection(self), sock=listener, backlog=BACKLOG
            )
        return int(address[1]) if isinstance(address, tuple) else 0

    async def failed(self) -> None:
        """Return never; raise what makes this worker useless."""
        await asyncio.shield(self._failure)

    def fail(self, error: BaseException) -> None:
        """Have `failed` raise `error`."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def drain(self, timeout_s: float) -> int:
        """Stop accepting and reading, answer what is under way, close. Return the requests left unanswered."""
        if self._server is not None:
            self._server.close()
        if self._acceptor is not None:
            self._acceptor.close()
        self._act(self.worker.drain())
        self._drained = self.loop.create_future()
        self._on_bell()
        try:
            await asyncio.wait_for(self._drained, timeout_s)
        except TimeoutError:
            pass
        left = self.worker.pending
        for connection in list(self.connections.values()):
            connection.close()
        if self.connections:
            self._all_gone = self.loop.create_future()
            try:
                await asyncio.wait_for(self._all_gone, CLOSE_TIMEOUT_S)
            except TimeoutError:
                pass
        return left

    def stop(self) -> None:
        """Leave the loop; the worker's memory may be unmapped after this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._quota_timer is not None:
            self._quota_timer.cancel()
        self.digests.stop()
        self.loop.remove_reader(self._bell_fd)
        self.loop.remove_reader(self._poll_fd)
        for connection in list(self.connections.values()):
            connection.abort()

    def collect_soon(self) -> None:
        """Collect once in the next turn of the loop."""
        if not self._is_collect_due:
            self._is_collect_due = True
            self.loop.call_soon(self._collect_later)

    @property
    def serves_tls(self) -> bool:
        """Whether clients may upgrade."""
        return self._acceptor is not None

    def open(self, connection: Connection) -> None:
        """Go on with a connection whose first bytes are there."""
        assert self._acceptor is not None
        self._acceptor.opened(connection)

    def came(self, connection: Connection) -> None:
        """Keep a connection that has a slot, and have others make room for the next."""
        self.connections[connection.slot] = connection
        is_authenticated = connection.client.principal is not NOBODY
        self._idle.opened(connection.slot, connection.address, is_authenticated=is_authenticated)
        self._idle.make_room(self.loop.time())

    def admitted(self, connection: Connection) -> None:
        """Its client is served from now on, or still not."""
        if connection.client.principal is not NOBODY:
            self._idle.authenticated(connection.slot)
        self.principals.admitted(connection)

    def left(self, connection: Connection) -> None:
        """Forget a connection."""
        try:
            self.audit.take_requests()
        finally:
            self.connections.pop(connection.slot, None)
            self._idle.closed(connection.slot)
            if self._acceptor is not None:
                self._acceptor.left(connection)
            self.principals.left(connection)

    def contains(self, connection: Connection, error: Exception) -> bool:
        """Count and log an exception that came of a connection; False: of none, and the worker ends (INV-N5)."""
        return self._is_contained(error, connection.address, connection.client.principal.name)

    def _is_contained(self, error: Exception, address: str, principal: str = "") -> bool:
        """Count and log an exception that a connection led to; False: none did, and the worker fails."""
        if isinstance(error, _WORKERS_OWN):
            self.fail(error)
            return False
        reason = printable(f"{type(error).__name__}: {error}")
        if isinstance(error, OSError):  # the client's trouble, or its network's
            logs.debug("connection.broken", reason=reason, address=address)
            return True
        self.worker.count(CONNECTIONS_FAILED)
        self.audit.note("client.failed", address, principal, reason=reason)
        trace = "".join(traceback.format_exception(error, limit=-12))
        self._contained.note(
            type(error).__name__, reason=reason, address=address, principal=principal, trace=trace
        )
        return True

    def connection_is_gone(self) -> None:
        """A connection was closed."""
        if not self.connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)
        self._look_at_drain()

    def _collect_later(self) -> None:
        self._is_collect_due = False
        self._on_bell()

    def _on_input(self) -> None:
        self._act_on(*self.worker.poll())

    def _on_bell(self) -> None:
        self._act_on(*self.worker.collect())

    def _act_on(self, events: list[Event], is_more: bool) -> None:
        if events:
            self._act(events)
        if is_more:
            self.collect_soon()
        if self.quotas.are_on and self._quota_timer is None and self.worker.quota_waits:
            self._quota_timer = self.loop.call_later(QUOTA_STEP_S, self._on_quota_timer)
        self._look_at_drain()

    def _on_quota_timer(self) -> None:
        self._quota_timer = None
        self._on_bell()

    def _reply(self, client: Client, answer: Callable[[], bytes]) -> None:
        """Send an answer that comes late, if the client still has its connection."""
        connection = self.connections.get(client.slot)
        if connection is not None and connection.client is client:
            try:
                connection.act(self.worker.send(client.slot, answer()))
            except Exception as error:  # noqa: BLE001 - INV-N5: clients wait for one answer together
                connection.failed(error)

    def _on_timer(self) -> None:
        self._timer = self.loop.call_later(SWEEP_INTERVAL_S, self._on_timer)
        self._act(self.worker.sweep())
        self._on_bell()
        self._idle.make_room(self.loop.time())
        self.principals.sweep()
        self.audit.sweep()
        self._log_limits()
        self.digests.request_soon()

    def _log_limits(self) -> None:
        """Log limits that connections reached since the last sweep."""
        for limit, slot in LIMITS.items():
            new = self.worker.counter(slot) - self._limits.counts.get(limit, 0)
            if new:
                self._limits.note(limit, new, connections=len(self.connections))
        if self.quotas.are_on:
            self._quota_waits.poll(
                self.worker.counter(WAITS_QUOTA), self.worker.quota_waits, self.loop.time()
            )

    def _act(self, events: list[Event]) -> None:
        for slot, todo in events:
            connection = self.connections.get(slot)
            if connection is not None:
                try:
                    connection.act(todo)
                except Exception as error:  # noqa: BLE001 - INV-N5
                    connection.failed(error)

    def _look_at_drain(self) -> None:
        if self._drained is not None and not self._drained.done() and self.worker.pending == 0:
            self._drained.set_result(None)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error, transport = context.get("exception"), context.get("transport")
        if isinstance(error, Exception) and (transport is not None or isinstance(error, OSError)):
            # The loop found it between a socket and its connection, such as in TLS, and closes the socket.
            peer = (
                transport.get_extra_info("peername")
                if isinstance(transport, asyncio.BaseTransport)
                else None
            )
            self._is_contained(error, str(peer[0]) if isinstance(peer, tuple) else "")
        elif isinstance(error, BaseException):
            self.fail(error)
        else:
            self._complaints.note("loop", message=str(context.get("message")))


SEARCH_INTERVAL_S = 0.1
"""Between two searches for silent connections, at least."""
NEVER_HEARD_SWEEPS = 2
"""Sweeps, one a second, after which a connection that has not sent a byte counts as silent."""
SILENT_SWEEPS = 10
"""The same for a connection that has sent something, and that no request is under way for."""


class IdleConnections:
    """Finds the connections to close, first of the address that has the most."""

    def __init__(self, worker: Worker, connections: dict[int, Connection]) -> None:
        """`connections`: the open ones by slot; its owner keeps it."""
        self._worker = worker
        self._connections = connections
        self._addresses: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        self._bound = worker.connections_max - worker.connections_max // 4
        self._next_s = 0.0
        self._unauthenticated: dict[str, dict[int, None]] = {}
        """Slots by address, the oldest first."""
        self._unauthenticated_count = 0

    def opened(self, slot: int, address: str, *, is_authenticated: bool) -> None:
        """Note where a connection comes from."""
        self._addresses[slot] = address
        self._counts[address] += 1
        if not is_authenticated:
            self._unauthenticated.setdefault(address, {})[slot] = None
            self._unauthenticated_count += 1

    def authenticated(self, slot: int) -> None:
        """Note that it is known who a connection's client is."""
        address = self._addresses[slot]
        slots = self._unauthenticated.get(address, {})
        if slot in slots:
            del slots[slot]
            self._unauthenticated_count -= 1
            if not slots:
                del self._unauthenticated[address]

    def closed(self, slot: int) -> None:
        """Forget a connection."""
        if slot not in self._addresses:
            return  # its connection failed before it was noted
        self.authenticated(slot)
        address = self._addresses.pop(slot)
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def make_room(self, now_s: float) -> None:
        """Close unauthenticated connections beyond their share, and silent ones above three quarters of all."""
        self._close_unauthenticated()
        excess = len(self._connections) - self._unauthenticated_count - self._bound
        if excess <= 0 or now_s < self._next_s:
            return
        self._next_s = now_s + SEARCH_INTERVAL_S
        chosen = self._chosen(excess)
        self._worker.count(SILENT_CLOSED, len(chosen))
        for slot in chosen:
            self._connections[slot].abort()

    def _close_unauthenticated(self) -> None:
        others = len(self._connections) - self._unauthenticated_count
        most = self._worker.connections_max
        share = max(1, min(most // 4, (most - others) // 2))
        while self._unauthenticated_count > share:
            slots = max(self._unauthenticated.values(), key=len)
            slot = next(iter(slots))
            self.authenticated(slot)  # its end comes in a later turn of the loop
            self._worker.count(UNAUTHENTICATED_CLOSED)
            self._connections[slot].abort()

    def _chosen(self, count: int) -> list[int]:
        """Return at most `count` silent connections: of the address with the most, those that are silent longest."""
        silent: dict[str, list[tuple[bool, int, int]]] = {}
        for slot, sweeps, has_sent in self._worker.silent(self._worker.connections_max):
            address = self._addresses.get(slot)
            if address is None or slot in self._unauthenticated.get(address, ()):
                continue
            if sweeps >= (SILENT_SWEEPS if has_sent else NEVER_HEARD_SWEEPS):
                silent.setdefault(address, []).append((has_sent, -sweeps, slot))
        for found in silent.values():
            found.sort(reverse=True)  # the first to go is the last one
        addresses = [(-self._counts[address], address) for address in silent]
        heapq.heapify(addresses)
        chosen: list[int] = []
        while addresses and len(chosen) < count:
            size, address = heapq.heappop(addresses)
            chosen.append(silent[address].pop()[2])
            if silent[address]:
                heapq.heappush(addresses, (size + 1, address))
        return chosen


def keep_alive(settings: NetworkSettings) -> tuple[tuple[int, int], ...]:
    """Return the TCP options that find out a client whose machine is gone, with their values, as far as set."""
    options = (
        (socket.TCP_KEEPIDLE, settings.keep_alive_idle_s),
        (socket.TCP_KEEPINTVL, settings.keep_alive_interval_s),
        (socket.TCP_KEEPCNT, settings.keep_alive_questions_max),
    )
    return tuple((option, value) for option, value in options if value)
