"""Gives bookies a client's new token: a file that changes replaces the token of every open connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, Error
from fastbk.observe.library_log import LibraryLog
from fastbk.security.credentials import TOKEN, Login
from fastbk.security.tls import Stamp, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastbk.client.config import ClientConfig
    from fastbk.client.connection import Connection

INTERVAL_S = 5.0
"""Between two looks at the file."""
_log = LibraryLog("fastbk.client")


class TokenRenewal:
    """The renewals of one client; begins with its first connection."""

    def __init__(
        self, config: ClientConfig, connections: Callable[[], Iterable[Connection]]
    ) -> None:
        self._config = config
        self.on_token: Callable[[], None] = lambda: None
        """Called when the file has a new one, and again while some connections have not got it."""
        self._connections = connections
        self._path = config.credentials.token_file if config.credentials is not None else ""
        self._stamp: Stamp = ()
        self.token = b""
        """What the file had when it changed last; empty: it has not changed."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[Connection, asyncio.Task[None]] = {}

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
        for task in self._tasks.values():
            task.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self._look)
        before = self.token
        self._read()
        # One that was being opened has the old token, one that did not answer kept it.
        have_old = [
            one for one in self._connections() if self.token and one.token not in (b"", self.token)
        ]
        for connection in have_old:
            if connection not in self._tasks:
                task = loop.create_task(self._renew(connection), name="fastbk renew token")
                self._tasks[connection] = task
        # All connections may have been opened since the file changed.
        if have_old or (before and self.token != before):
            self.on_token()

    def _read(self) -> None:
        assert self._config.credentials is not None
        stamp = stamp_of([self._path])
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.token = self._config.credentials.token()
        except ConfigError as error:
            _log.warning("token.not_read", reason=str(error))

    async def _renew(self, connection: Connection) -> None:
        config = self._config
        try:
            await connection.renew(
                config.client_name, config.connect_timeout, Login(TOKEN, self.token, None)
            )
        except Error as error:
            _log.warning("token.not_renewed", bookie=connection.bookie_id, reason=str(error))
        finally:
            del self._tasks[connection]
