"""The bookie's HTTP during a start: the port at once, the pages beside the children's start.

No write needs the pages, and their import takes as long as a short replay.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from typing import TYPE_CHECKING

from fastbk.config import split_address
from fastbk.errors import StorageError
from fastbk.security.settings import http_tls
from fastbk.web.server import HttpListener

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from fastbk.apache.http.answers import BookieFacts
    from fastbk.observe.event_log import EventLog
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.web.page_server import Handler

PAGES = "fastbk.server.admin.pages"
SETTLED_WAIT_S = 0.1
"""How long the import of the pages waits for the check of the directories; metadata may not answer for longer."""


class HttpPages:
    """The HTTP server of one bookie."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        """To be set when the directories are settled: the import of the pages would delay that."""
        self._listener: HttpListener | None = None
        self._opening: asyncio.Task[None] | None = None
        self._roll: Callable[[], None] = lambda: None

    @property
    def port(self) -> int | None:
        """Where the pages are; None: there is no HTTP."""
        return None if self._listener is None else self._listener.port

    async def bind(self, config: BookieConfig, stack: AsyncExitStack) -> None:
        """Bind the configured port until `stack` closes; nothing for an empty one. Raises StorageError, ConfigError."""
        if not config.http.listen:
            return
        host, port = split_address(config.http.listen, "[http] listen")
        tls = http_tls(config.http, config.tls)
        try:
            self._listener = await HttpListener.bind(host, port, tls)
        except OSError as error:
            raise StorageError(
                f"cannot listen on {host}:{port} for HTTP: {error.strerror}: choose another by [http] listen"
            ) from error
        stack.push_async_callback(self._listener.close)

    def begin(
        self,
        stack: AsyncExitStack,
        make_facts: Callable[[], BookieFacts],
        info: Handler,
        slow: Handler,
        events: EventLog,
    ) -> None:
        """Begin to import and open the pages. `info`: answers `/info`. `slow`: answers `/slow`. `events`: `/events`."""
        self._opening = asyncio.create_task(self._open(stack, make_facts, info, slow, events))
        stack.push_async_callback(self._end)

    async def opened(self) -> None:
        """Return when the pages are served. Raises what kept them from it."""
        if self._opening is not None:
            await asyncio.shield(self._opening)

    def roll(self) -> None:
        """Let the window of Apache's quantiles move on."""
        self._roll()

    async def _open(
        self,
        stack: AsyncExitStack,
        make_facts: Callable[[], BookieFacts],
        info: Handler,
        slow: Handler,
        events: EventLog,
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_WAIT_S):
                await self.settled.wait()
        await asyncio.to_thread(importlib.import_module, PAGES)
        from fastbk.server.admin.apache_metrics import ApacheMetrics
        from fastbk.server.admin.pages import open_admin

        facts = make_facts()
        metrics = ApacheMetrics(facts.config, facts.metrics, facts.disks, facts.gc)
        self._roll = metrics.roll
        if self._listener is not None:
            await open_admin(stack, self._listener, facts, info, slow, events)

    async def _end(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
