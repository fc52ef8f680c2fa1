"""Writes the changes of metadata sessions to a server's log.

Off by default, because an application's standard error is not ours. The supervisor and gc switch it
on. `fastbk.observe.logs` has the format.
"""

from __future__ import annotations

import time

from fastbk.observe import logs

_is_on = False


def enable() -> None:
    """Log what happens to the sessions of this process from now on."""
    global _is_on
    _is_on = True


class SessionLog:
    """The log of one session. Called from a thread of the session's own."""

    def __init__(self, servers: str, timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._lost_s: float | None = None

    def connected(self) -> None:
        """A server answers; said when none did before."""
        if self._lost_s is None:
            return
        away_s, self._lost_s = time.monotonic() - self._lost_s, None
        if _is_on:
            logs.info("metadata.connected", servers=self._servers, away_s=round(away_s, 1))

    def suspended(self) -> None:
        """The connection is lost; the session may live on."""
        self._lost_s = time.monotonic() if self._lost_s is None else self._lost_s
        if _is_on:
            logs.warning(
                "metadata.session_suspended",
                servers=self._servers,
                reason="the connection to ZooKeeper is lost",
                next=f"the session expires after {self._timeout_s:g} s without a connection",
            )

    def expired(self) -> None:
        """The session is over: the servers removed its ephemeral nodes."""
        self._lost_s = time.monotonic() if self._lost_s is None else self._lost_s
        if _is_on:
            logs.warning(
                "metadata.session_expired",
                servers=self._servers,
                reason="ZooKeeper ended the session and removed its registrations",
                next="a new session begins at once; the bookie registers again",
            )
