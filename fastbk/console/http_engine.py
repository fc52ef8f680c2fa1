"""uvicorn's HTTP behind our own listener: TLS files that are read anew, and bounds on idle connections (INV-B1).

uvicorn's server would take one TLS context for its whole life, and keeps a connection that never sends a request. So
`HttpListener` accepts, as it does for the bookies' pages, and uvicorn speaks HTTP on each connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.web.guards import Places

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from fastbk.web.listener import HttpListener

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
        for one in list(self._state.connections):
            one.shutdown()
        if tasks := list(self._state.tasks):
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for one in list(self._state.connections):
            if (transport := one.transport) is not None:
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
