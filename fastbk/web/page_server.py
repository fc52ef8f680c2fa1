"""HTTP pages for machines: one server for those of bookies, gateways, janitors, healers and consoles, which add theirs.

It runs beside the data path and never in it. Small on purpose: one answer a connection, bounds on everything that a
peer can stretch (INV-B1; `guards.py`). A POST must say that its body is JSON: a web page that a person has open cannot
send that to another origin without being asked first, and nothing here answers that question. The same goes for PUT
and DELETE, whatever their body says it is. `guards.py` refuses what web pages of other sites send.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from fastbk.errors import ConfigError, Error, StorageError
from fastbk.model.ids import MEANT_BOOKIE
from fastbk.observe import logs
from fastbk.observe.event_record import Query
from fastbk.observe.logs import LimitLog
from fastbk.observe.prometheus import family
from fastbk.printable_text import printable_json
from fastbk.web.guards import Places, SiteGuard
from fastbk.web.http_head import parsed_head
from fastbk.web.listener import REQUEST_BYTES_MAX, HttpListener
from fastbk.web.page_admission import ANY_HOST, CHANGING, PageAdmission, Visitor, kind_of

if TYPE_CHECKING:
    from fastbk.observe.event_log import EventLog
    from fastbk.security.rights import Principal
    from fastbk.security.tls import RefreshedContext

BODY_BYTES_MAX = 64 * 1024
REQUEST_TIMEOUT_S = 5.0
ROUTE_TIMEOUT_S = 30.0
"""For what a route does; its answer comes after at most this, or 504."""
REQUESTS_MAX = 256
"""Connections whose request has not arrived completely; beyond it the oldest of the address with the most is closed."""
ANSWERS_MAX = 64
"""Connections whose answer is not read yet; beyond it the oldest of the address with the most is closed."""
ROUTES_MAX = 32
"""Requests that routes and pages work on; beyond it 503. The server's own pages are not counted."""

Handler = Callable[[dict[str, Any]], Awaitable[object]]
"""Gets a GET's query or a POST's JSON object, returns what the answer's JSON is made of. A ConfigError becomes 400,
another Error 503 if trying again may help, else 409; all with {"error": text}."""

TEXT = "text/plain; charset=utf-8"
DISCARDED_BYTES_MAX, DISCARD_S = 64 * 1024, 0.2
"""What is read of a request that is too large, before it is answered."""
JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
            405: "Method Not Allowed", 409: "Conflict", 413: "Content Too Large", 415: "Unsupported Media Type",
            421: "Misdirected Request", 431: "Request Header Fields Too Large",
            500: "Internal Server Error", 503: "Service Unavailable", 504: "Gateway Timeout"}  # fmt: skip

Response = tuple[int, str, bytes]
"""Status, content type and body."""


@dataclass(frozen=True)
class Request:
    """What a page that answers every method itself gets. `method` is GET for HEAD, too; `principal`: whose request it
    is, None: a stranger's.
    """

    method: str
    query: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    principal: Principal | None = None


Page = Callable[[Request], Awaitable[Response]]
"""Answers every method of its path, errors included."""


class PageServer:
    """The listener, and the pages that others add.

    Attributes:
        port: where it listens; 0 before.
        bookie_id: of the bookie whose pages these are, "" if they are no bookie's. Requests that mean another one are
            refused: a page on loopback is registered for its own machine, where another bookie's may have that port.
    """

    own_paths: tuple[str, ...] = ()
    bookie_id = ""

    def __init__(
        self, allowed_hosts: Iterable[str] = (), admission: PageAdmission | None = None
    ) -> None:
        """`allowed_hosts`: names that clients call this server by, beside localhost and the machine's."""
        self._admission = admission or PageAdmission()
        self._routes: dict[tuple[str, str], Handler] = {}
        self._whole: dict[str, Page] = {}
        self._quick: set[str] = set()
        self._guard = SiteGuard(allowed_hosts)
        self._listener: HttpListener | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._requests, self._answers = Places(REQUESTS_MAX), Places(ANSWERS_MAX)
        self._routes_running = 0
        self._limits = LimitLog("http.limit_reached")
        self._faults = LimitLog("http.connection_failed", level="error")
        self.port = 0

    def refused(self) -> dict[str, int]:
        """Return how often each limit closed or refused something; limits that were not reached are missing."""
        return dict(self._limits.counts)

    def add_route(self, method: str, path: str, handler: Handler) -> None:
        """Have `handler` answer `method` (GET or POST) of `path`, with JSON. One a method and path."""
        if method not in ("GET", "POST") or (method, path) in self._routes:
            raise ValueError(f"{method} {path}: not GET or POST, or given to somebody already")
        self._routes[method, path] = handler

    def add_page(self, path: str, page: Page, *, is_quick: bool = False) -> None:
        """Have `page` answer whatever is asked of `path`. One a path.

        `is_quick`: it never waits, so it is answered however many routes run.
        """
        if path in self._whole:
            raise ValueError(f"{path}: given to somebody already")
        self._whole[path] = page
        if is_quick:
            self._quick.add(path)

    async def open(self, host: str, port: int, tls: RefreshedContext | None = None) -> None:
        """Listen, with `tls` encrypted. Raises OSError."""
        await self.serve(await HttpListener.bind(host, port, tls))

    async def serve(self, listener: HttpListener) -> None:
        """Serve a port that was bound before; `close` closes it."""
        self._listener, self.port = listener, listener.port
        await listener.start(self._serve)

    async def close(self) -> None:
        """Stop listening and cut what is under way."""
        if self._listener is not None:
            await self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def answer(
        self, method: str, target: str, body: bytes = b"", principal: Principal | None = None
    ) -> Response:
        """Return the answer to a request that is admitted."""
        path, _, query = target.partition("?")
        if (page := self._whole.get(path)) is not None:
            asked = dict(parse_qsl(query, keep_blank_values=True))
            return await page(
                Request("GET" if method == "HEAD" else method, asked, body, principal)
            )
        handler = self._routes.get(("GET" if method == "HEAD" else method, path))
        if handler is not None:
            return await _routed(handler, method, query, body)
        if method not in ("GET", "HEAD"):
            if (
                method == "POST"
                and ("GET", path) not in self._routes
                and path not in self.own_paths
            ):
                return 404, TEXT, self._paths()
            return 405, TEXT, b"not for this path\n"
        return self._own_page(path, query)

    def _own_page(self, path: str, query: str) -> Response:
        """Answer a GET of a path that nobody was given."""
        del path, query
        return 404, TEXT, self._paths()

    def _paths(self) -> bytes:
        added = [f"{method} {path}" for method, path in sorted(self._routes)]
        return (", ".join([*self.own_paths, *added, *sorted(self._whole)]) + "\n").encode()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            method, target, refusal, body, authorization = await self._received(reader, writer)
            visitor = self._admission.visitor(writer, authorization)
            refusal = refusal or self._refusal(visitor, method, target)
            status, kind, content = refusal or await self._admitted(
                method, target, body, visitor.principal
            )
            logs.debug(
                "http.answered", method=method, path=target.partition("?")[0][:200], status=status
            )
            self._admission.answered(writer, visitor, method, target, status)
            answer = _encoded(status, kind, content, has_body=method != "HEAD")
            await self._sent(writer, answer)
        except asyncio.LimitOverrunError:
            await self._refuse_head(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # it did not ask properly or is gone: nothing to say
        except Exception as error:  # noqa: BLE001 - one client's exception is not the server's
            trace = traceback.format_exc(limit=-12)
            self._faults.note(type(error).__name__, reason=repr(error), trace=trace)
            await self._sent(
                writer,
                _encoded(*_failed(500, "a fault of this server's: see its log"), has_body=True),
            )
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _received(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, str, Response | None, bytes, str]:
        """Return method, target, the refusal if there is one, the body, and what `Authorization` says."""
        if self._requests.enter(writer.transport):
            self._limits.note("requests")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, headers = parsed_head(head)
                refusal, body_bytes = self._checked(method, target, headers)
                body = b"" if refusal else await reader.readexactly(body_bytes)
                return method, target, refusal, body, (headers or {}).get("authorization", "")
        except TimeoutError:
            self._limits.note("request_timeout")
            raise
        finally:
            self._requests.leave(writer.transport)

    async def _refuse_head(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._limits.note("request_size")
        left = DISCARDED_BYTES_MAX
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                # The kernel resets a connection that is closed with something unread, and the answer is lost.
                while left > 0 and (some := await reader.read(left)):
                    left -= len(some)
        text = f"the request line and headers have more than {REQUEST_BYTES_MAX} bytes\n"
        await self._sent(writer, _encoded(431, TEXT, text.encode(), has_body=True))

    def _refusal(self, visitor: Visitor, method: str, target: str) -> Response | None:
        """Return the answer to a client that may not use the page; None: it may."""
        path = target.partition("?")[0]
        refused = self._admission.refusal(visitor, kind_of(method, path))
        if refused is None:
            return None
        self._limits.note("rights", path=path[:200], principal=visitor.name)
        return refused[0], TEXT, f"{refused[1]}\n".encode()

    async def _admitted(
        self, method: str, target: str, body: bytes, principal: Principal | None
    ) -> Response:
        """Answer a request, if not too many are being answered."""
        path = target.partition("?")[0]
        if path in self._quick or path in self.own_paths:
            return await self.answer(method, target, body, principal)
        if self._routes_running >= ROUTES_MAX:
            self._limits.note("routes")
            return 503, TEXT, b"too many requests are being answered: try again later\n"
        self._routes_running += 1
        try:
            return await self.answer(method, target, body, principal)
        finally:
            self._routes_running -= 1

    async def _sent(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        """Have the peer read the answer, for as long as it may take."""
        if self._answers.enter(writer.transport):
            self._limits.note("answers")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                # Closed only once all of it is with the kernel: a transport that is closed before cannot be aborted
                # any more when it has sent the rest (Python 3.11 raises AttributeError then).
                writer.transport.set_write_buffer_limits(0)
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            self._limits.note("answer_timeout")
        finally:
            self._answers.leave(writer.transport)

    def _checked(
        self, method: str, target: str, headers: dict[str, str] | None
    ) -> tuple[Response | None, int]:
        """Return the refusal of a request that is to be refused at once, and the size of the body that follows."""
        if headers is None:
            return (400, TEXT, b"not HTTP/1\n"), 0
        path = target.partition("?")[0]
        kind = kind_of(method, path)
        is_local = self._listener is None or self._listener.is_loopback
        unwanted = self._guard.refusal(
            headers,
            changes=kind in CHANGING and method not in _WITH_BODY,
            any_host=kind in ANY_HOST and not is_local,
        )
        if unwanted is not None:
            self._limits.note(unwanted[0], path=path[:200], host=headers.get("host", "")[:200])
            return (403, TEXT, unwanted[1].encode()), 0
        meant = headers.get(MEANT_BOOKIE.lower(), "")
        if meant and self.bookie_id and meant != self.bookie_id:
            text = f"this is the page of bookie {self.bookie_id}, not of the one that was meant\n"
            return (421, TEXT, text.encode()), 0
        if method not in _WITH_BODY:
            return None, 0
        return _body(method, headers, takes_any=path in self._whole)


def add_event_page(server: PageServer, log: EventLog) -> None:
    """Have `server` answer `/events` from the process's `log`.

    Its query: `since`, `until`, `kind`, `limit`, `after`, `newest`.
    """

    async def answer(parameters: dict[str, Any]) -> object:
        query = Query.of(parameters, time.time())
        try:
            return msgspec.to_builtins(await asyncio.to_thread(log.read, query))
        except OSError as error:
            raise StorageError(
                f"the files of events cannot be read: {error}", retryable=True
            ) from error

    server.add_route("GET", "/events", answer)


def refused_lines(metric: str, refused: dict[str, int]) -> list[str]:
    """Return lines for `/metrics`; a limit has a series from the first time that it was reached."""
    if not refused:
        return []
    text = "HTTP requests and connections that a limit refused or closed, by limit."
    series = [(f'limit="{limit}"', count) for limit, count in sorted(refused.items())]
    return family(f"{metric}_total", "counter", text, series)


_WITH_BODY = ("POST", "PUT", "DELETE")


def decoded_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is. Raises ConfigError."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is no JSON object, or a very deep one: {error}") from None


_route_faults = LimitLog("http.route_failed", level="error")


async def _routed(handler: Handler, method: str, query: str, body: bytes) -> Response:
    try:
        asked: dict[str, Any]
        if method == "POST":
            asked = decoded_object(body or b"{}")
        else:
            asked = dict(parse_qsl(query, keep_blank_values=True))
        async with asyncio.timeout(ROUTE_TIMEOUT_S):
            return 200, JSON, printable_json(await handler(asked)) + b"\n"
    except ConfigError as error:
        return _failed(400, str(error))
    except TimeoutError:
        return _failed(504, f"not done after {ROUTE_TIMEOUT_S:.0f} s")
    except Exception as error:  # noqa: BLE001 - a route's fault must not end the page
        if not isinstance(error, Error):
            trace = traceback.format_exc(limit=-8)
            _route_faults.note(type(error).__name__, reason=repr(error), trace=trace)
            return _failed(500, f"a fault of this bookie's: {error!r}; see its log")
        return _failed(503 if error.retryable else 409, str(error))


def _failed(status: int, text: str) -> Response:
    return status, JSON, printable_json({"error": text}) + b"\n"


def _body(method: str, headers: dict[str, str], *, takes_any: bool) -> tuple[Response | None, int]:
    """Return the refusal of a request with a body, if there is one, and the body's size.

    `takes_any`: POSTs of any type; no page of that kind does anything for one.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and not takes_any and kind != JSON:
        return (415, TEXT, b"a POST needs Content-Type: application/json\n"), 0
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
        return (400, TEXT, b"a body needs a Content-Length\n"), 0
    if len(length) > 9 or int(length) > BODY_BYTES_MAX:
        return (413, TEXT, b"the body is too long\n"), 0
    return None, int(length)


def _encoded(status: int, kind: str, body: bytes, *, has_body: bool) -> bytes:
    asks = "WWW-Authenticate: Bearer\r\n" if status == 401 else ""
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n{asks}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n"
    )
    return lines.encode() + (body if has_body else b"")
