"""HTTP of the console: uvicorn's behind our own listener, bounds on idle connections (INV-B1), and what guards a page.

uvicorn's server would take one TLS context for its whole life, and keeps a connection that never sends a request. So
`HttpListener` accepts, as it does for the bookies' pages, and uvicorn speaks HTTP on each connection.

Decision 164.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fastbk.errors import ConfigError
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.web.server import Places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fastbk.web.page_admission import SiteGuard
    from fastbk.web.server import HttpListener

IDLE_MAX = 256
"""Connections without a whole request; beyond it one of the address with the most is closed."""
REQUESTS_MAX = 64
"""Requests that are being answered; beyond it 503."""
HEAD_BYTES_MAX = 16_384
KEEP_ALIVE_S = 15
ABORT = "fastbk.abort"
"""In the state of a request: cuts its connection."""
ANSWER_S = 30.0
"""For a request, from its head to the last byte of its answer; then the connection is cut."""
STOP_S = 5.0
"""How long a stop waits for answers that are under way."""


class HttpEngine:
    """Serves one ASGI application on one port."""

    def __init__(self, app: ASGIApp) -> None:
        self._config = Config(
            bounded(app, REQUESTS_MAX), lifespan="off", log_config=None, log_level="critical", access_log=False,
            server_header=False, proxy_headers=False,
            ws="none", http="h11", h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=KEEP_ALIVE_S, interface="asgi3",
        )  # fmt: skip
        self._state = ServerState()
        self._idle = Places(IDLE_MAX)
        self._listener: HttpListener | None = None

    async def serve(self, listener: HttpListener) -> None:
        """Serve a port that was bound before; `close` closes it."""
        self._config.load()
        self._listener = listener
        await listener.start_protocols(self._protocol)

    async def close(self) -> None:
        """Stop listening, let answers that are under way end, and close all connections."""
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if tasks := list(self._state.tasks):
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self._state.connections):
            if (transport := connection.transport) is not None:
                transport.abort()

    def _protocol(self) -> asyncio.Protocol:
        return _Connection(self._idle, self._config, self._state)


class _Connection(H11Protocol):
    """A connection that has a place among the idle ones whenever no request of it is being answered."""

    def __init__(self, idle: Places, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._idle = idle
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {ABORT: self._cut}
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.leave(self.transport)
        self._is_lost = True
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._idle.leave(self.transport)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _cut(self) -> None:
        # Python 3.11 raises where a transport sent its last byte after it was closed, and is then aborted.
        if not self._is_lost:
            self.transport.abort()

    def _wait(self) -> None:
        self._idle.leave(self.transport)
        if self._idle.enter(self.transport):
            logs.debug("console.connection_closed", reason="too many idle connections")


def bounded(app: ASGIApp, requests_max: int) -> ASGIApp:
    """Return an application that answers 503 while `requests_max` requests are being answered."""
    running = 0
    cut = LimitLog("console.request_cut")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running
        if running >= requests_max:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"1")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send(
                {"type": "http.response.body", "body": b"too many requests at once: try again\n"}
            )
            return
        running += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                await app(scope, receive, send)
        except TimeoutError:
            cut.note("answer_timeout", path=scope["path"][:200], after_s=ANSWER_S)
            scope["state"][ABORT]()
        finally:
            running -= 1

    return serve


# --- what each request and answer passes ------------------------------------------------------------------------------

FORM_BYTES_MAX = 8192
FORM_FIELDS_MAX = 20
FORM_TIMEOUT_S = 5.0
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # with no-referrer, browsers send forms with `Origin: null`
    (
        b"referrer-policy",
        b"same-origin",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
NOT_STORED = (b"cache-control", b"no-store")
_SAFE = ("GET", "HEAD")


class Guard:
    """The outermost layer of the console: refuses requests, and adds the headers of answers.

    - A request must name this server in `Host`, as the bookies' pages require it (DNS rebinding).
    - A request that changes something must come from one of our own pages: `Origin` and `Sec-Fetch-Site` say so, and
      the form brings its session's key (`sessions.py`).
    - A page may load scripts, styles and data from this server only, nothing inline, and no other site may frame it.

    Attributes:
        refused: how often, by reason.
    """

    def __init__(self, app: ASGIApp, site: SiteGuard) -> None:
        """`site`: the names that this server may be called by."""
        self._app = app
        self._site = site
        self._limits = LimitLog("console.request_refused")

    @property
    def refused(self) -> dict[str, int]:
        """How often each rule refused a request."""
        return dict(self._limits.counts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        refusal = self._refusal(scope, headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                stored = any(name == b"cache-control" for name, _ in given)
                message = {
                    **message,
                    "headers": [*given, *HEADERS, *(() if stored else (NOT_STORED,))],
                }
            await send(message)

        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        rule, text = refusal
        self._limits.note(rule, path=scope["path"][:200], host=headers.get("host", "")[:200])
        kind = [(b"content-type", b"text/plain; charset=utf-8")]
        await guarded({"type": "http.response.start", "status": 403, "headers": kind})
        await guarded({"type": "http.response.body", "body": text.encode()})

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the rule and the text for the client; None for a request that is fine."""
        host = headers.get("host", "")
        # Two `Host`s are nobody's: the last one alone would be read here.
        count = sum(name == b"host" for name, _ in scope["headers"])
        if count != 1 or not self._site.is_own(host):
            return "host", (
                f'this console is not called "{host[:255]}": use its address, or start it with --http-host NAME\n'
            )
        if scope["method"] in _SAFE:
            return None
        origin = headers.get("origin")
        own = f"{scope['scheme']}://{host}".lower()
        site = headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (origin is not None and origin.lower() != own):
            return "cross_site", "a page of another site sent this: use the console's own pages\n"
        return None


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises ConfigError for what is none, TimeoutError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ConfigError("a form is sent as application/x-www-form-urlencoded")
    body = b""
    async with asyncio.timeout(FORM_TIMEOUT_S):
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES_MAX:
                raise ConfigError(f"a form has at most {FORM_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
    except ValueError as error:
        raise ConfigError(f"the form cannot be read: {error}") from None
    return dict(pairs)
