"""Accepts connections where TLS is on: the first byte tells TLS from the protocols in the clear.

That byte is looked at and left in the socket, since what a transport has received before its `start_tls` is lost. Until
it is there the connection has a slot and no transport: C's poll waits for it, and silent ones make room as all others.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from typing import TYPE_CHECKING

from fastbk.native.worker import TLS_FAILED, TLS_HANDSHAKES
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.printable_text import printable
from fastbk.rate_limit import RateLimit
from fastbk.server.configuration.tls import server_tls
from fastbk.server.network.connection import Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from fastbk.server.configuration.tls import TlsSettings
    from fastbk.server.network.connection import Owner

TLS_FIRST_BYTE = b"\x16"
ACCEPTS_A_TURN = 64
ACCEPT_PAUSE_S = 0.1
"""After an error that only others can end, such as a full table of files."""
SHUTDOWN_TIMEOUT_S = 2.0
"""How long a client may take to read the last frame, and to say that it has."""
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """The listener of one worker, and its TLS handshakes."""

    def __init__(self, network: Owner, settings: TlsSettings, handshake_timeout_s: float) -> None:
        """Read the certificate. Raises ConfigError."""
        self._network = network
        self._loop = network.loop
        self._context = server_tls(settings)
        self._handshake_timeout_s = handshake_timeout_s
        self._limit = RateLimit(settings.handshakes_rate, clock_s=network.loop.time)
        self._waiting: deque[Connection] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._listener: socket.socket | None = None
        self._failures = LimitLog("connection.tls_failed")
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

    def opened(self, connection: Connection, sock: socket.socket) -> None:
        """Give a connection whose first byte is there the transport that it wants."""
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except OSError:
            first = b""
        if not first:
            connection.abort()
        elif first != TLS_FIRST_BYTE:
            connection.opening = self._run(self._open(connection, sock))
        elif connection.secure():
            self._waiting.append(connection)
            self._begin_handshakes()

    def upgrade(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Go on with TLS on a connection that began in the clear, was answered so, and is secure for C already."""
        connection.opening = self._run(self._upgrade(connection, transport))

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
                logs.warning("worker.cannot_accept", reason=error.strerror)
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
        while self._waiting and self._timer is None:
            connection = self._waiting.popleft()
            sock = connection.waiting_socket
            if sock is None:
                continue  # it is gone
            try:
                connection.opening = self._run(self._open(connection, sock, self._context.current()))
            except Exception as error:  # noqa: BLE001 - INV-N5
                self._failed(connection, error, secured=True)
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
        self._network.audit.note("tls.handshake", connection.address, connection.client.principal.name)

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
