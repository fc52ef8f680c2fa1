"""The port of an HTTP server: bound first, and served once the pages are there.

A bookie binds the port at once, so that a port in use ends its start. The pages are imported later, beside the replay.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

REQUEST_BYTES_MAX = 8192


class HttpListener:
    """The bound sockets of one host and port. Connections are refused before `start`."""

    def __init__(self, server: asyncio.Server, connections: asyncio.Future[Serve]) -> None:
        """See `bind`."""
        self._server = server
        self._serve = connections
        self.port: int = server.sockets[0].getsockname()[1]

    @staticmethod
    async def bind(host: str, port: int) -> HttpListener:
        """Return the listener of a port. Raises OSError."""
        serve: asyncio.Future[Serve] = asyncio.get_running_loop().create_future()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve.result()(reader, writer)

        server = await asyncio.start_server(
            connected, host, port, limit=REQUEST_BYTES_MAX, start_serving=False
        )
        return HttpListener(server, serve)

    async def start(self, serve: Serve) -> None:
        """Listen, and have `serve` called with each connection. Once only."""
        self._serve.set_result(serve)
        await self._server.start_serving()

    async def close(self) -> None:
        """Stop listening."""
        self._server.close()
        await self._server.wait_closed()
