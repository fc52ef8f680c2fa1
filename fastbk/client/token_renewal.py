"""Gives bookies a client's new token: a file that changes replaces the token of every open connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.errors import Error
from fastbk.observe.library_log import LibraryLog
from fastbk.tls.files import stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastbk.client.config import ClientConfig
    from fastbk.client.connection import Connection

INTERVAL_S = 5.0
"""Between two looks at the file."""
_log = LibraryLog("fastbk.client")


class TokenRenewal:
    """The renewals of one client; begins with its first connection."""

    def __init__(self, config: ClientConfig, connections: Callable[[], Iterable[Connection]]) -> None:
        self._config = config
        self._connections = connections
        self._path = config.credentials.token_file if config.credentials is not None else ""
        self._stamp = stamp_of([self._path])
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Look at the file from now on."""
        if self._path and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._look)

    def end(self) -> None:
        """Look no more."""
        self._path = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self._look)
        stamp = stamp_of([self._path])
        if stamp == self._stamp:
            return
        self._stamp = stamp
        for connection in self._connections():
            task = loop.create_task(self._renew(connection), name="fastbk renew token")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _renew(self, connection: Connection) -> None:
        config = self._config
        assert config.credentials is not None
        try:
            login = config.credentials.login()
            await connection.renew(config.client_name, config.connect_timeout, login)
        except Error as error:
            _log.warning("token.not_renewed", bookie=connection.bookie_id, reason=str(error))
