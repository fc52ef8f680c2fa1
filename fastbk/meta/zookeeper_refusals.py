"""Finds out that ZooKeeper refuses a session for good, because its data was restored from an older copy.

A server refuses a session that has seen a later transaction (zxid) than the server has, and closes the connection
without a word. A follower that lags does so for a moment, too, and any other server then takes the session. After a
restore every server refuses it, for ever. So while a session has no connection, a thread reads each server's last
zxid by ZooKeeper's command `srvr`, which changes nothing. Once every server was behind for longer than a session lasts,
the session is to be begun anew. A server that does not answer may have the newer data, and is waited for.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fastbk.errors import ConfigError
from fastbk.retry import jittered

PROBE_INTERVAL_S = 1.0
ANSWER_TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 4096
_ZXID = re.compile(rb"^Zxid: 0x([0-9a-fA-F]+)\s*$", re.MULTILINE)


def server_zxid(
    server: str, timeout_s: float = ANSWER_TIMEOUT_S, context: ssl.SSLContext | None = None
) -> int | None:
    """Return the last zxid of the server at host:port, None if it does not say, or does not serve.

    `context`: of connections to a secureClientPort.

    A name may stand for several servers, as in Kubernetes: then the highest of theirs, None unless all say theirs. An
    address of a family of which nobody answers does not count: many servers listen at IPv4 alone.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    encrypt = None if context is None else partial(context.wrap_socket, server_hostname=host)
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return None
    zxids: dict[int, list[int | None]] = {}
    for family, _, _, _, address in dict.fromkeys(found):
        zxids.setdefault(family, []).append(_zxid_at(family, address, timeout_s, encrypt))
    counted = [some for some in zxids.values() if any(one is not None for one in some)]
    known = [zxid for some in counted for zxid in some if zxid is not None]
    return max(known) if known and len(known) == sum(map(len, counted)) else None


def _zxid_at(
    family: int,
    address: Any,  # noqa: ANN401 -- as the family
    timeout_s: float,
    encrypt: Callable[[socket.socket], ssl.SSLSocket] | None,
) -> int | None:
    answer = b""
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as plain:
        plain.settimeout(timeout_s)
        plain.connect(address)
        with plain if encrypt is None else encrypt(plain) as connection:
            connection.sendall(b"srvr")
            while len(answer) < ANSWER_BYTES_MAX and (some := connection.recv(ANSWER_BYTES_MAX)):
                answer += some
    found = _ZXID.search(answer)
    return None if found is None else int(found[1], 16)


def why_refused(seen_zxid: int, zxids: dict[str, int | None]) -> str:
    """Return why every server refuses a session that has seen `seen_zxid`; empty unless every one does."""
    behind = {
        server: zxid for server, zxid in zxids.items() if zxid is not None and zxid < seen_zxid
    }
    if not zxids or len(behind) < len(zxids):
        return ""
    last = ", ".join(f"{server} at {zxid:#x}" for server, zxid in behind.items())
    return (
        f"ZooKeeper refuses this session, which has seen the transaction {seen_zxid:#x}: every server's data is older"
        f" ({last}). It was restored from an older copy"
    )


class RefusalWatch:
    """Watches one session's servers while it has no connection.

    Attributes:
        reason: why every server refuses the session; empty while not every one does.
    """

    def __init__(
        self,
        servers: tuple[str, ...],
        session_timeout_s: float,
        on_refused: Callable[[str], None],
        on_refused_for_good: Callable[[str], None],
        context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """`on_refused` is called when it begins, `on_refused_for_good` once it has lasted longer than a session.

        `context` gives that of encrypted connections.
        """
        self.reason = ""
        self._context = context
        self._servers = servers
        self._session_timeout_s = session_timeout_s
        self._on_refused = on_refused
        self._on_refused_for_good = on_refused_for_good
        self._lock = threading.Lock()
        self._connected: threading.Event | None = None
        """Set when the connection is there again; None while it is there."""

    def disconnected(self, seen_zxid: int) -> None:
        """Begin to watch. `seen_zxid`: the last transaction that the session has seen."""
        with self._lock:
            if self._connected is not None or seen_zxid <= 0:
                return
            self._connected = threading.Event()
            threading.Thread(
                target=self._run,
                args=(self._connected, seen_zxid),
                name="fastbk-zookeeper-refusals",
                daemon=True,
            ).start()

    def connected(self) -> str:
        """End watching; return the reason if every server has refused the session meanwhile."""
        with self._lock:
            reason, self.reason = self.reason, ""
            if self._connected is not None:
                self._connected.set()
                self._connected = None
            return reason

    def _zxids(self) -> dict[str, int | None]:
        try:
            context = self._context()
        except ConfigError:
            return dict.fromkeys(self._servers)  # files that are being replaced
        return {one: server_zxid(one, context=context) for one in self._servers}

    def _run(self, connected: threading.Event, seen_zxid: int) -> None:
        since_s: float | None = None
        # Many clients lose their connections at the same moment.
        while not connected.wait(jittered(PROBE_INTERVAL_S)):
            reason = why_refused(seen_zxid, self._zxids())
            with self._lock:
                if connected.is_set():
                    return
                # Once proven it stays: what is written since may bring the servers past that transaction.
                self.reason = self.reason or reason
            now_s = time.monotonic()
            if not reason:
                since_s = None
            elif since_s is None:
                since_s = now_s
                self._on_refused(reason)
            elif now_s - since_s > self._session_timeout_s:
                self._on_refused_for_good(reason)
                return
