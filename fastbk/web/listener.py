"""The port of an HTTP server, bound first and served once the pages are there; and places for connections that wait.

A bookie binds the port at once, so that a port in use ends its start. The pages are imported later, beside the replay.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fastbk.config import is_loopback
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine

    from fastbk.security.tls import RefreshedContext

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

REQUEST_BYTES_MAX = 8192
BACKLOG = 100
HANDSHAKES_MAX = 256
"""TLS handshakes under way; beyond it the oldest of the address with the most is given up."""
HANDSHAKE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 2.0
ACCEPT_PAUSE_S = 0.1
"""After an error that only others can end, such as a full table of files."""


class Held(Protocol):
    """What holds a place: an asyncio transport."""

    def abort(self) -> None:
        """Close at once."""

    def get_extra_info(self, name: str) -> object:
        """Return the peer's address for `peername`."""


class Places:
    """The places for connections that wait for their peer.

    Who holds many costs itself one: for another connection the oldest of the address that has the most is closed
    (INV-B1). So a connection that is slow costs only others that are slow in the same way.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._addresses: dict[Held, str] = {}
        self._by_address: dict[str, dict[Held, None]] = {}
        """Of each address the oldest first."""

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, connection: Held) -> bool:
        """Give a connection a place; return whether another one was closed for it."""
        is_full = len(self._addresses) >= self._count_max
        if is_full:
            most = max(self._by_address.values(), key=len)
            oldest = next(iter(most))
            self.leave(oldest)
            oldest.abort()
        peer = connection.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return is_full

    def leave(self, connection: Held) -> None:
        """Free the connection's place, if it still has one."""
        address = self._addresses.pop(connection, None)
        if address is not None:
            del self._by_address[address][connection]
            if not self._by_address[address]:
                del self._by_address[address]


class HttpListener:
    """The bound sockets of one host and port. Connections are refused before `start`."""

    def __init__(
        self, sockets: list[socket.socket], tls: RefreshedContext | None, handshakes_max: int
    ) -> None:
        """See `bind`."""
        self._sockets = sockets
        self._tls = tls
        self._handshakes = Places(handshakes_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int = sockets[0].getsockname()[1]
        self.is_loopback = all(is_loopback(str(one.getsockname()[0])) for one in sockets)
        """Whether only this machine reaches it."""

    @staticmethod
    async def bind(
        host: str,
        port: int,
        tls: RefreshedContext | None = None,
        handshakes_max: int = HANDSHAKES_MAX,
    ) -> HttpListener:
        """Return the listener of a port, with `tls` an encrypted one. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                sockets.append(_bound(family, address))
        except BaseException:
            for one in sockets:
                one.close()
            raise
        return HttpListener(sockets, tls, handshakes_max)

    async def start(self, serve: Serve) -> None:
        """Listen, and have `serve` called with each connection. Once only."""

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=REQUEST_BYTES_MAX)
            return asyncio.StreamReaderProtocol(reader, serve)

        await self.start_protocols(protocol)

    async def start_protocols(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Listen, and have a protocol made for each connection. Once only."""
        asyncio.get_running_loop().set_exception_handler(_contained)
        for one in self._sockets:
            one.listen(BACKLOG)
            self._run(self._accept(one, protocol))

    async def close(self) -> None:
        """Stop listening, and end handshakes that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(
        self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                _unaccepted.note(str(error.errno), reason=error.strerror)
                await asyncio.sleep(ACCEPT_PAUSE_S)
            else:
                opening = _Opening(self._run(self._open(sock, protocol)), peer)
                if self._tls is not None:  # without it nobody has to be waited for
                    self._handshakes.enter(opening)
                    opening.task.add_done_callback(opening.left(self._handshakes))
                # the others' turn: accepting goes on as long as somebody connects
                await asyncio.sleep(0)

    async def _open(self, sock: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.current()
        try:
            await loop.connect_accepted_socket(protocol, sock, **_tls_arguments(context))
        except Exception as error:  # noqa: BLE001 - the peer's trouble, whatever TLS makes of it
            logs.debug("http.handshake_failed", reason=repr(error))
            sock.close()


_failures = LimitLog("http.connection_failed", level="error")
_complaints = LimitLog("loop.complained", level="error")
_unaccepted = LimitLog("http.cannot_accept")


def _contained(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what a connection's bytes led to at a bounded rate; the loop has closed the connection."""
    error = context.get("exception")
    log = _failures if "transport" in context or "protocol" in context else _complaints
    if isinstance(error, BaseException):
        trace = "".join(traceback.format_exception(error, limit=-12))
        log.note(
            type(error).__name__,
            message=str(context.get("message")),
            reason=repr(error),
            trace=trace,
        )
    else:
        log.note("loop", message=str(context.get("message")))


@dataclass(frozen=True, eq=False)
class _Opening:
    """A connection whose handshake is under way."""

    task: asyncio.Task[None]
    peer: object

    def abort(self) -> None:
        self.task.cancel()

    def get_extra_info(self, name: str) -> object:
        return self.peer if name == "peername" else None

    def left(self, places: Places) -> Callable[[object], None]:
        return lambda _: places.leave(self)


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except BaseException:
        one.close()
        raise
    return one


def _tls_arguments(context: ssl.SSLContext | None) -> dict[str, Any]:
    if context is None:
        return {}
    return {
        "ssl": context,
        "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S,
        "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S,
    }
