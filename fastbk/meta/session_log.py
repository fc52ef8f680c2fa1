"""Logs the changes of metadata sessions. Servers write them as lines of their log (`library_log.forward`)."""

from __future__ import annotations

import time

from fastbk.observe.library_log import LibraryLog

_log = LibraryLog("fastbk.meta")


class SessionLog:
    """The log of one session. Called from a thread of the session's own."""

    def __init__(self, servers: str, timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._lost_s: float | None = None

    def connected(self) -> None:
        """A server answers; a change of state where none did before."""
        if self._lost_s is None:
            _log.debug("metadata.connected", servers=self._servers)
            return
        away_s, self._lost_s = time.monotonic() - self._lost_s, None
        _log.info("metadata.connected", servers=self._servers, away_s=round(away_s, 1))

    def suspended(self) -> None:
        """The connection is lost; the session may live on."""
        self._lost_s = time.monotonic() if self._lost_s is None else self._lost_s
        _log.warning(
            "metadata.session_suspended",
            servers=self._servers,
            reason="the connection to ZooKeeper is lost",
            next=f"the session expires after {self._timeout_s:g} s without a connection",
        )

    def expired(self) -> None:
        """The session is over: the servers removed its ephemeral nodes."""
        self._lost_s = time.monotonic() if self._lost_s is None else self._lost_s
        _log.warning(
            "metadata.session_expired",
            servers=self._servers,
            reason="ZooKeeper ended the session, and removed the registrations and locks that it had",
            next="a new session begins at once; what the session had is made again",
        )

    def refused(self, reason: str) -> None:
        """Every server refuses the session: their data is older than what it has seen."""
        _log.error(
            "metadata.session_refused",
            servers=self._servers,
            reason=reason,
            next="if newer data exists, restore that; if this lasts for"
            f" {self._timeout_s:g} s, a new session begins and metadata is put on hold",
        )

    def begun_anew(self, reason: str) -> None:
        """The refused session is forgotten, and a new one begins."""
        _log.error(
            "metadata.session_begun_anew",
            servers=self._servers,
            reason=reason,
            next="metadata is put on hold: see `fastbk metadata status`",
        )
