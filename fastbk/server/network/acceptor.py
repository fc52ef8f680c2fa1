"""Accepts connections where TLS is on: the first byte tells TLS from the protocols in the clear.

That byte is looked at and left in the socket, since what a transport has received before its `start_tls` is lost. Until
it is there the connection has a slot and no transport: C's poll waits for it, and silent ones make room as all others.
With TLS it waits for the client's whole first record, too: who sends less costs no handshake. Handshakes begin at a
bounded rate, and the addresses that want one take turns, so that an address that wants many waits for itself.

Decision 114.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from typing import TYPE_CHECKING

from fastbk.limits import RateLimit
from fastbk.native.worker import TLS_FAILED, TLS_HANDSHAKES
from fastbk.observe.logs import LimitLog
from fastbk.printable_text import printable
from fastbk.security.settings import server_tls
from fastbk.server.network.connection import Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from fastbk.security.settings import TlsSettings
    from fastbk.server.network.connection import Owner

TLS_FIRST_BYTE = b"\x16"
RECORD_HEAD_BYTES, RECORD_BYTES_MAX = 5, 16 * 1024
CLIENT_HELLO = b"\x01"
ACCEPTS_A_TURN = 64
ACCEPT_PAUSE_S = 0.1
"""Pause after an error that only others can end, such as a full table of files."""
SHUTDOWN_TIMEOUT_S = 2.0
"""How long a client may take to read the last frame, and to say that it has."""
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class NoHelloError(ConnectionError):
    """A client's first bytes are those of TLS, and the next ones are not."""

    reason = "what came is no ClientHello"


class Turns:
    """Connections that wait for a handshake, with what begins it. Their addresses take turns."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[Connection, Callable[[], None]]] = {}
        """The address whose turn is next comes first; of an address the connection that waits for longest."""

    def add(self, connection: Connection, begin: Callable[[], None]) -> None:
        """Wait, behind all others of its address."""
        self._by_address.setdefault(connection.address, {})[connection] = begin

    def remove(self, connection: Connection) -> None:
        """Wait no more: it is gone."""
        waiting = self._by_address.get(connection.address, {})
        if waiting.pop(connection, None) is not None and not waiting:
            del self._by_address[connection.address]

    def next(self) -> Callable[[], None] | None:
        """Return what begins the next handshake; None: nobody waits."""
        if not self._by_address:
            return None
        address = next(iter(self._by_address))
        waiting = self._by_address.pop(address)
        begin = waiting.pop(next(iter(waiting)))
        if waiting:
            self._by_address[address] = waiting
        return begin


class Acceptor:
    """The listener of one worker, and its TLS handshakes."""

    def __init__(self, network: Owner, settings: TlsSettings, handshake_timeout_s: float) -> None:
        """Read the certificate. Raises ConfigError."""
        self._network = network
        self._loop = network.loop
        self._context = server_tls(settings)
        self._handshake_timeout_s = handshake_timeout_s
        self._limit = RateLimit(settings.handshakes_rate, clock_s=network.loop.time)
        self._turns = Turns()
        self._timer: asyncio.TimerHandle | None = None
        self._listener: socket.socket | None = None
        self._failures = LimitLog("connection.tls_failed")
        self._unaccepted = LimitLog("worker.cannot_accept")
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, listener: socket.socket, backlog: int) -> None:
        """Listen."""
        listener.setblocking(False)
        listener.listen(backlog)
        self._listener = listener
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. Handshakes under way go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def opened(self, connection: Connection) -> None:
        """Go on with a connection whose first bytes are there: give it its transport, or its turn for TLS."""
        descriptor = connection.descriptor
        head = _peeked(descriptor, RECORD_HEAD_BYTES + 1)
        if not head:
            connection.abort()
        elif connection.upgrading is None and head[:1] != TLS_FIRST_BYTE:
            assert connection.waiting_socket is not None
            connection.opening = self._run(self._open(connection, connection.waiting_socket))
        else:
            self._await_hello(connection, descriptor, head)

    def left(self, connection: Connection) -> None:
        """It is gone."""
        self._turns.remove(connection)

    def _await_hello(self, connection: Connection, descriptor: int, head: bytes) -> None:
        size_bytes = _hello_bytes(head)
        if size_bytes is None:
            self._failed(connection, NoHelloError(), secured=True)
        elif len(_peeked(descriptor, size_bytes)) >= size_bytes:
            if connection.awaited_bytes > 1:
                _wake_at(descriptor, 1)
            self._wait_for_turn(connection)
        elif connection.awaited_bytes != size_bytes:
            _wake_at(descriptor, size_bytes)
            connection.await_bytes(size_bytes)
        elif _has_ended(descriptor):
            connection.abort()
        else:  # the kernel is short of memory and tells of what there is
            if connection.awaited_bytes > 1:
                _wake_at(descriptor, 1)
            self._wait_for_turn(connection)

    def _wait_for_turn(self, connection: Connection) -> None:
        if (transport := connection.upgrading) is not None:
            self._turns.add(
                connection,
                lambda: self._begin(connection, lambda: self._upgrade(connection, transport)),
            )
        elif connection.secure():
            sock, context = connection.waiting_socket, self._context
            assert sock is not None
            self._turns.add(
                connection,
                lambda: self._begin(
                    connection, lambda: self._open(connection, sock, context.current())
                ),
            )
        self._begin_handshakes()

    def _begin(
        self, connection: Connection, work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        try:
            connection.opening = self._run(work())
        except Exception as error:  # noqa: BLE001 - INV-N5
            self._failed(connection, error, secured=True)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF:
                    raise
                self._unaccepted.note(errno.errorcode[error.errno], reason=error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
                return
            sock.setblocking(False)
            Connection(self._network).await_first_byte(sock, address)

    def _accept_again(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _begin_handshakes(self) -> None:
        """Begin as many as the rate allows; the rest has its turn by the timer, its deadline running meanwhile."""
        while self._timer is None and (begin := self._turns.next()) is not None:
            begin()
            if (wait_s := self._limit.take(1)) > 0:
                self._timer = self._loop.call_later(wait_s, self._begin_again)

    def _begin_again(self) -> None:
        self._timer = None
        self._begin_handshakes()

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(
        self, connection: Connection, sock: socket.socket, context: ssl.SSLContext | None = None
    ) -> None:
        secured = context is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=context,
                ssl_handshake_timeout=self._handshake_timeout_s if secured else None,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S if secured else None,
            )
            if secured:
                self._succeeded(connection)
        except Exception as error:  # noqa: BLE001 - OpenSSL's, Python's ssl or the loop's; INV-N5
            self._failed(connection, error, secured=secured)

    async def _upgrade(self, connection: Connection, transport: asyncio.Transport) -> None:
        try:
            secure = await self._loop.start_tls(
                transport,
                connection,
                self._context.current(),
                server_side=True,
                ssl_handshake_timeout=self._handshake_timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
            if secure is None:
                raise ConnectionResetError("the connection was lost")
            connection.upgraded(secure)
            self._succeeded(connection)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(connection, error, secured=True)

    def _succeeded(self, connection: Connection) -> None:
        self._network.worker.count(TLS_HANDSHAKES)
        self._network.audit.note(
            "tls.handshake", connection.address, connection.client.principal.name
        )

    def _failed(self, connection: Connection, error: Exception, *, secured: bool) -> None:
        if secured:
            self._network.worker.count(TLS_FAILED)
            reason = _reason_of(error)
            self._network.audit.note("tls.failed", connection.address, reason=reason)
            self._failures.note(reason, address=connection.address)
        connection.abort()


def _reason_of(error: Exception) -> str:
    for name in ("verify_message", "reason"):
        if text := getattr(error, name, None):
            return printable(str(text))
    return type(error).__name__


# ------------------------------------------------------------------ what lies in a socket


def _peeked(descriptor: int, size_bytes: int) -> bytes:
    """Return what came first, and leave it there; b"": nothing did, or the connection is broken."""
    sock = socket.socket(fileno=descriptor)
    try:
        return sock.recv(size_bytes, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return b""
    finally:
        sock.detach()


def _wake_at(descriptor: int, size_bytes: int) -> None:
    """Have the socket be readable once so much is there, or it has ended."""
    sock = socket.socket(fileno=descriptor)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
    finally:
        sock.detach()


def _has_ended(descriptor: int) -> bool:
    """Return whether the client sends no more."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


def _hello_bytes(head: bytes) -> int | None:
    """Return how many bytes are needed to know more of a ClientHello, or to have all of it; None: it is none."""
    is_record = head[:1] == TLS_FIRST_BYTE and head[1:2] in (b"", b"\x03")
    if not is_record or head[RECORD_HEAD_BYTES:] not in (b"", CLIENT_HELLO):
        return None
    if len(head) <= RECORD_HEAD_BYTES:
        return RECORD_HEAD_BYTES + 1
    size_bytes = int.from_bytes(head[3:RECORD_HEAD_BYTES], "big")
    return RECORD_HEAD_BYTES + size_bytes if 0 < size_bytes <= RECORD_BYTES_MAX else None
