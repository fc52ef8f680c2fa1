"""The bookie's HTTP page for machines: /metrics, /livez, /readyz. Loopback unless configured
otherwise.

It runs in the supervisor, beside the data path and never in it. Small on purpose: GET and HEAD, one
answer a connection, bounds on everything that a peer can stretch (INV-B1).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.lifecycle import Lifecycle

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
            503: "Service Unavailable"}  # fmt: skip


class AdminServer:
    """The listener and its few pages."""

    def __init__(self, life: Lifecycle, metrics: Metrics) -> None:
        self._life = life
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=REQUEST_BYTES_MAX, start_serving=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut what is under way."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body for a request."""
        if method not in ("GET", "HEAD"):
            return 405, _TEXT, b"only GET and HEAD\n"
        page = path.partition("?")[0]
        if page == "/metrics":
            return 200, _METRICS, self._metrics.text().encode()
        if page == "/livez":
            live = self._life.is_live
            body = {"live": live, "state": self._life.state.value, "reason": self._life.reason}
            return (200 if live else 503), _JSON, msgspec.json.encode(body) + b"\n"
        if page == "/readyz":
            reasons = self._life.not_ready(time.monotonic())
            readiness = {"ready": not reasons, "state": self._life.state.value, "reasons": reasons}
            return (503 if reasons else 200), _JSON, msgspec.json.encode(readiness) + b"\n"
        return 404, _TEXT, b"/metrics, /livez, /readyz\n"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) >= CONNECTIONS_MAX:
                return
            self._connections.add(task)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._respond(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it did not ask properly or does not read: nothing to say
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    def _respond(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            status, kind, body = 400, _TEXT, b"not HTTP/1\n"
        else:
            status, kind, body = self.answer(words[0], words[1])
        lines = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n"
        )
        return lines.encode() + (b"" if words[0] == "HEAD" else body)
