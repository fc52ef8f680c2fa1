"""The one HTTP server: a port, connections that bring requests, and bounds on all that a peer can stretch (INV-B1).

`HttpListener` binds a port first, so that a port in use ends the start, and serves it once the pages are there.

A connection does one thing at a time: it sends a head, or a body, or reads an answer. Each has so many places and so
much time. Where there is no place, one of the address with the most is closed (`Places`): who is slow costs only others
that are slow in the same way. A request that arrived completely is never closed for another one. What one connection
leads to ends that connection alone.

What is served is a `Site`: pages, one answer a connection (`page_server.py`), or a gateway's operations, on connections
that stay open. Heads are parsed here and by no library: docs/decisions.md 164 has the figures.

Decision 164.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import traceback
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from fastbk.config import is_loopback
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastbk.observe.logs import LimitLog


# --- the port, and places for connections that wait -----------------------------------------------


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
"""Pause after an error that only others can end, such as a full table of files."""


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
        """Connections by address, of each the oldest first."""

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

    async def start_protocols(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
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
        self, listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]
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

    async def _open(
        self, sock: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
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


class _Opening(msgspec.Struct, frozen=True, eq=False):
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


# --- requests and answers -------------------------------------------------------------------------


LARGE_BYTES = 64 * 1024
"""Bodies and answers above it have places of their own, where a site has such."""
CHUNK_BYTES = 256 * 1024
"""What is encrypted at once: the transport keeps a copy of all that it was given."""
DISCARDED_BYTES_MAX, DISCARD_S = 64 * 1024, 0.2
"""What is read of a request that is too large, before it is answered."""
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
            405: "Method Not Allowed", 409: "Conflict", 413: "Content Too Large", 415: "Unsupported Media Type",
            421: "Misdirected Request", 423: "Locked", 431: "Request Header Fields Too Large",
            500: "Internal Server Error", 503: "Service Unavailable", 504: "Gateway Timeout"}  # fmt: skip
P = TypeVar("P")


class Head(NamedTuple):
    """The first line and the headers of a request, these by lower-case names; None: it is no HTTP/1 request."""

    method: str
    target: str
    headers: dict[str, str] | None

    def header(self, name: str, default: str = "") -> str:
        """Return a header's value."""
        return default if self.headers is None else self.headers.get(name, default)

    @property
    def content_type(self) -> str:
        """What the body is, without parameters, in small letters."""
        return self.header("content-type").partition(";")[0].strip().lower()


class Answer(NamedTuple):
    """What a request gets. `is_last`: the connection ends with it, though this site keeps others open."""

    status: int
    kind: str
    body: bytes
    is_last: bool = False


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def parsed_head(head: bytes) -> Head:
    """Return the head of an HTTP/1 request: one meaning, or none. Pure.

    A proxy in front that reads a head in another way would let one request hide in another, and pass it by its own
    checks. So a head is refused that others read differently: a name with spaces around it, a folded line, a line end
    of one byte.
    """
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or _CONTROL.search(first):
        return Head("", "", None)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            return Head("", "", None)
        name = name.lower()
        # Two hosts are nobody's: joined as lists are, they name no server.
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return Head(words[0], words[1], headers)


def body_size(head: Head, bytes_max: int, default: str = "") -> int | tuple[int, str]:
    """Return the size of the body that follows, or the status and text of a refusal.

    `default`: the length of a request that names none; "": it has to name one.
    """
    length = head.header("content-length", default)
    # A body in chunks, and a length that is named twice, have another meaning for others.
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in (head.headers or {}):
        return 400, "needs a Content-Length"
    if len(length) > 9 or int(length) > bytes_max:
        return 413, f"has at most {bytes_max} bytes"
    return int(length)


def encoded_answer(answer: Answer, *, is_last: bool) -> bytes:
    """Return the head of an answer."""
    challenge = "WWW-Authenticate: Bearer\r\n" if answer.status == 401 else ""
    end = "Connection: close\r\n" if is_last else ""
    return (
        f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Error')}\r\nContent-Type: {answer.kind}\r\n{challenge}"
        f"Content-Length: {len(answer.body)}\r\n{end}Cache-Control: no-store\r\n\r\n"
    ).encode()


# --- the server -----------------------------------------------------------------------------------


class Site(Protocol[P]):
    """What a server serves. `P`: what it knows of a connection's peer."""

    def meet(self, writer: asyncio.StreamWriter) -> P:
        """Return who is at the other end, as far as the connection shows it."""

    def check(self, head: Head) -> Answer | int:
        """Return the size of the body that follows a head, or the refusal of a request whose body is not read."""

    async def respond(self, peer: P, head: Head, body: bytes, refusal: Answer | None) -> Answer:
        """Return the answer to a request, which is a refusal where `check` gave one."""

    def failure(self, status: int, text: str) -> Answer:
        """Return an answer of the server's own: 431 to a head that is too large, 500 to what ended in a fault."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections may be in each state, and for how long.

    Attributes:
        head_limit: name of the first, in the log and in `/metrics`.
        heads_max, head_timeout_s: that wait for a request, or send its head.
        bodies_max: that send a body: small ones, and large ones. None: a body belongs to its head, and to its time.
        answers_max: that read an answer: a small one, a large one. (N, 0): all are alike.
        is_kept_open: after an answer a connection may send another request.
    """

    head_limit: str
    heads_max: int
    head_timeout_s: float
    bodies_max: tuple[int, int] | None = None
    body_timeout_s: float = 0.0
    answers_max: tuple[int, int]
    answer_timeout_s: float
    is_kept_open: bool = False


class HttpServer(Generic[P]):
    """All connections of one port."""

    def __init__(
        self, site: Site[P], bounds: Bounds, note_limit: Callable[[str], None], faults: LimitLog
    ) -> None:
        """`note_limit`: gets the name of a limit that closed a connection. `faults`: gets what ended in one of ours."""
        self._site = site
        self._bounds = bounds
        self._note_limit = note_limit
        self._faults = faults
        self._listener: HttpListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._heads = _Room(bounds.head_limit, (bounds.heads_max, 0), note_limit)
        self._bodies = _Room("bodies", bounds.bodies_max, note_limit) if bounds.bodies_max else None
        self._answers = _Room("answers", bounds.answers_max, note_limit)

    def __len__(self) -> int:
        return len(self._tasks)

    async def serve(self, listener: HttpListener) -> None:
        """Serve a port that was bound before; `close` closes it."""
        self._listener = listener
        await listener.start(self._serve)

    async def close(self) -> None:
        """Stop listening and cut what is under way."""
        if self._listener is not None:
            await self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            peer = self._site.meet(writer)
            while await self._answered(peer, reader, writer):
                pass
        except asyncio.LimitOverrunError:
            await self._refuse_head(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # it did not ask properly, was too slow or is gone: nothing to say
        except Exception as error:  # noqa: BLE001 - one client's exception is not the server's
            await self._contain(writer, error)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answered(
        self, peer: P, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether another may follow."""
        head, checked, body = await self._received(reader, writer)
        refusal = None if isinstance(checked, int) else checked
        answer = await self._site.respond(peer, head, body, refusal)
        is_last = answer.is_last or refusal is not None or not self._bounds.is_kept_open
        await self._send(writer, answer, is_last=is_last, has_body=head.method != "HEAD")
        return not is_last

    async def _received(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Head, Answer | int, bytes]:
        """Return a head, what `Site.check` says of it, and the body where that is no refusal."""
        bounds, body = self._bounds, b""
        with self._heads.place(writer):
            try:
                async with asyncio.timeout(bounds.head_timeout_s):
                    head = parsed_head(await reader.readuntil(b"\r\n\r\n"))
                    checked = self._site.check(head)
                    if self._bodies is None and isinstance(checked, int):
                        body = await reader.readexactly(checked)
            except TimeoutError:
                self._note_limit("request_timeout")
                raise
        if self._bodies is not None and isinstance(checked, int):
            with self._bodies.place(writer, checked):
                async with asyncio.timeout(bounds.body_timeout_s):
                    body = await reader.readexactly(checked)
        return head, checked, body

    async def _send(
        self, writer: asyncio.StreamWriter, answer: Answer, *, is_last: bool, has_body: bool = True
    ) -> None:
        """Have the peer read an answer, for as long as it may take."""
        body = answer.body if has_body else b""
        with self._answers.place(writer, len(body)):
            try:
                async with asyncio.timeout(self._bounds.answer_timeout_s):
                    if is_last:
                        # Closed only once all of it is with the kernel: a transport that is closed before cannot be
                        # aborted any more when it has sent the rest (Python 3.11 raises AttributeError then).
                        writer.transport.set_write_buffer_limits(0)
                    writer.write(encoded_answer(answer, is_last=is_last) + body[:CHUNK_BYTES])
                    await writer.drain()
                    for offset in range(CHUNK_BYTES, len(body), CHUNK_BYTES):
                        writer.write(body[offset : offset + CHUNK_BYTES])
                        await writer.drain()
                    if is_last:
                        writer.close()
                        await writer.wait_closed()
            except TimeoutError:
                self._note_limit("answer_timeout")
                raise

    async def _refuse_head(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._note_limit("request_size")
        left = DISCARDED_BYTES_MAX
        with contextlib.suppress(OSError):
            async with asyncio.timeout(DISCARD_S):
                # The kernel resets a connection that is closed with something unread, and the answer is lost.
                while left > 0 and (some := await reader.read(left)):
                    left -= len(some)
        text = f"the request line and headers have more than {REQUEST_BYTES_MAX} bytes"
        with contextlib.suppress(OSError):
            await self._send(writer, self._site.failure(431, text), is_last=True)

    async def _contain(self, writer: asyncio.StreamWriter, error: Exception) -> None:
        """Log what a connection's request led to, and answer that it was a fault of ours."""
        peer = writer.get_extra_info("peername")
        trace = "".join(traceback.format_exception(error, limit=-12))
        self._faults.note(type(error).__name__, reason=repr(error), address=str(peer), trace=trace)
        with contextlib.suppress(OSError):
            answer = self._site.failure(500, "a fault of this server's: see its log")
            await self._send(writer, answer, is_last=True)


class _Room:
    """The places for one thing that connections do; what is large has places of its own, where there are any."""

    def __init__(
        self, limit: str, counts_max: tuple[int, int], note_limit: Callable[[str], None]
    ) -> None:
        """`counts_max`: places for what is small, and for what is large; 0: all are alike."""
        small_max, large_max = counts_max
        self._limit = limit
        self._small = Places(small_max)
        self._large = Places(large_max) if large_max else None
        self._note_limit = note_limit

    @contextlib.contextmanager
    def place(self, writer: asyncio.StreamWriter, size_bytes: int = 0) -> Iterator[None]:
        """Have a place for what is sent or received, among those of its size."""
        is_large = self._large is not None and size_bytes > LARGE_BYTES
        places = self._large if is_large and self._large is not None else self._small
        if places.enter(writer.transport):
            self._note_limit(f"large_{self._limit}" if is_large else self._limit)
        try:
            yield
        finally:
            places.leave(writer.transport)
