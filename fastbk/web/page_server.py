"""HTTP pages for machines: one server for those of bookies, gateways, janitors, healers and consoles, which add theirs.

It runs beside the data path and never in it. Connections, and bounds on what a peer can stretch, are `server.py`'s: one
answer a connection. A POST must say that its body is JSON: a web page that a person has open cannot
send that to another origin without being asked first, and nothing here answers that question. The same goes for PUT
and DELETE, whatever their body says it is. `page_admission.py` refuses what web pages of other sites send.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from fastbk.errors import ConfigError, Error, StorageError
from fastbk.model.ids import MEANT_BOOKIE
from fastbk.observe import logs
from fastbk.observe.events import Query
from fastbk.observe.logs import LimitLog
from fastbk.observe.prometheus import family
from fastbk.printable_text import printable_json
from fastbk.web.page_admission import ANY_HOST, CHANGING, PageAdmission, SiteGuard, Visitor, kind_of
from fastbk.web.server import Answer, Bounds, Head, HttpListener, HttpServer, body_size

if TYPE_CHECKING:
    from fastbk.observe.event_log import EventLog
    from fastbk.security.rights import Principal
    from fastbk.security.tls import RefreshedContext

BODY_BYTES_MAX = 64 * 1024
REQUEST_TIMEOUT_S = 5.0
ROUTE_TIMEOUT_S = 30.0
"""Time that a route has for its answer; then 504."""
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
JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
Response = tuple[int, str, bytes]
"""Status, content type and body."""


class Request(msgspec.Struct, frozen=True):
    """What a page that answers every method itself gets. `method` is GET for HEAD, too; `principal`: whose request it
    is, None: a stranger's.
    """

    method: str
    query: dict[str, str] = msgspec.field(default_factory=dict)
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
        self._routes_running = 0
        self._limits = LimitLog("http.limit_reached")
        bounds = Bounds(
            head_limit="requests",
            heads_max=REQUESTS_MAX,
            head_timeout_s=REQUEST_TIMEOUT_S,
            answers_max=(ANSWERS_MAX, 0),
            answer_timeout_s=REQUEST_TIMEOUT_S,
        )
        faults = LimitLog("http.connection_failed", level="error")
        self._server = HttpServer(self, bounds, self._limits.note, faults)
        self._is_loopback = True
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
        self.port, self._is_loopback = listener.port, listener.is_loopback
        await self._server.serve(listener)

    async def close(self) -> None:
        """Stop listening and cut what is under way."""
        await self._server.close()

    async def answer(
        self, method: str, target: str, body: bytes = b"", principal: Principal | None = None
    ) -> Response:
        """Return the answer to a request that is admitted."""
        path, _, query = target.partition("?")
        if (page := self._whole.get(path)) is not None:
            arguments = dict(parse_qsl(query, keep_blank_values=True))
            return await page(
                Request("GET" if method == "HEAD" else method, arguments, body, principal)
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

    # --- what the server needs of a site ------------------------------------------------------------------------------

    def meet(self, writer: asyncio.StreamWriter) -> asyncio.StreamWriter:
        """Return the connection: who it is depends on what the request shows, too."""
        return writer

    async def respond(
        self, peer: asyncio.StreamWriter, head: Head, body: bytes, refusal: Answer | None
    ) -> Answer:
        """Return the answer to a request of a client that may make it, else the refusal; note both."""
        method, target, _ = head
        visitor = self._admission.visitor(peer, head.header("authorization"))
        answer = refusal or self._refusal(visitor, method, target)
        if answer is None:
            answer = Answer(*await self._admitted(method, target, body, visitor.principal))
        path = target.partition("?")[0][:200]
        logs.debug("http.answered", method=method, path=path, status=answer.status)
        self._admission.answered(peer, visitor, method, target, answer.status)
        return answer

    def failure(self, status: int, text: str) -> Answer:
        """Return the answer to what is no request, or ended in a fault."""
        return Answer(*_failed(status, text)) if status == 500 else _refused(status, text)

    def _refusal(self, visitor: Visitor, method: str, target: str) -> Answer | None:
        """Return the answer to a client that may not use the page; None: it may."""
        path = target.partition("?")[0]
        refused = self._admission.refusal(visitor, kind_of(method, path))
        if refused is None:
            return None
        self._limits.note("rights", path=path[:200], principal=visitor.name)
        return _refused(*refused)

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

    def check(self, head: Head) -> Answer | int:
        """Return the size of the body that follows, or the refusal of a request that is refused at once."""
        if head.headers is None:
            return _refused(400, "not HTTP/1")
        method, path = head.method, head.target.partition("?")[0]
        kind = kind_of(method, path)
        unwanted = self._guard.refusal(
            head.headers,
            changes=kind in CHANGING and method not in _WITH_BODY,
            any_host=kind in ANY_HOST and not self._is_loopback,
        )
        if unwanted is not None:
            self._limits.note(unwanted[0], path=path[:200], host=head.header("host")[:200])
            return _refused(403, unwanted[1])
        meant = head.header(MEANT_BOOKIE.lower())
        if meant and self.bookie_id and meant != self.bookie_id:
            text = f"this is the page of bookie {self.bookie_id}, not of the one that was meant"
            return _refused(421, text)
        if method not in _WITH_BODY:
            return 0
        # A page that answers everything of its path takes any type: none of that kind does anything for a POST.
        if method == "POST" and path not in self._whole and head.content_type != JSON:
            return _refused(415, "a POST needs Content-Type: application/json")
        size = body_size(head, BODY_BYTES_MAX, default="0")
        return size if isinstance(size, int) else _refused(size[0], f"a body {size[1]}")


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
        arguments: dict[str, Any]
        if method == "POST":
            arguments = decoded_object(body or b"{}")
        else:
            arguments = dict(parse_qsl(query, keep_blank_values=True))
        async with asyncio.timeout(ROUTE_TIMEOUT_S):
            return 200, JSON, printable_json(await handler(arguments)) + b"\n"
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


def _refused(status: int, text: str) -> Answer:
    return Answer(status, TEXT, f"{text}\n".encode())
