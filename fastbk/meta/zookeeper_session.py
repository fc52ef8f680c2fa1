"""A session with ZooKeeper, kept over lost connections and begun anew when it expired, or when every server refuses it
since it was restored from an older copy (`fastbk.meta.zookeeper_refusals`).

This, `zookeeper_calls` and `zookeeper_unwatch` are the only places that know kazoo.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from fastbk.errors import ClientClosed, MetadataUnavailable
from fastbk.meta import zookeeper_security
from fastbk.meta.session_log import SessionLog
from fastbk.meta.zookeeper_calls import Call
from fastbk.meta.zookeeper_refusals import RefusalWatch

SESSION_TIMEOUT_S = 10.0
_RECONNECT_PAUSE_MAX_S = 1.0
_STOP_TIMEOUT_S = 2.0
_REPEATED_TIMEOUT_S = 2.0
_PATIENCE_S = 0.5
"""A server that is left for another one is replaced well within this."""

# kazoo tells of each attempt to connect. What matters of that is said here, once.
_kazoo_log = logging.getLogger("fastbk.meta.kazoo")
_kazoo_log.addHandler(logging.NullHandler())
_kazoo_log.propagate = False
_kazoo_log.setLevel(
    logging.INFO
)  # below it kazoo tells of each request, those with passwords included


class _Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A client whose next session, after one that expired, sees no older data either.

    kazoo forgets the last transaction that it saw. A server that is behind would then take the new session, and what is
    missing there would count as deleted.
    """

    def _reset(self) -> None:
        seen_zxid = getattr(self, "last_zxid", 0)
        super()._reset()
        self.last_zxid = seen_zxid


class Session:
    """One session with the servers, renewed by itself. Usable from any thread of the process that made it."""

    def __init__(
        self,
        servers: tuple[str, ...],
        timeout_s: float,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        root: str = "",
    ) -> None:
        """Connect. Raises MetadataUnavailable when no server answers within `timeout_s`, ConfigError.

        `root`: of the cluster, whose nodes are made with the rights that FASTBK_ZOOKEEPER_FILE names.
        """
        self._security = zookeeper_security.from_environment()
        self._root = root
        self.servers = ";".join(servers)
        self.timeout_s = timeout_s
        self.session_timeout_s = session_timeout_s
        self._pid = os.getpid()
        self._closed = False
        self.last_id = 0
        """The id of the session that was connected last, also while its connection is away; 0 once it expired."""
        self._log = SessionLog(self.servers, session_timeout_s)
        self._connected = threading.Event()
        self._on_connected: list[Callable[[], None]] = []
        self._on_rolled_back: Callable[[str], None] | None = None
        self._rolled_back = ""
        self._rolled_back_lock = threading.RLock()
        self._is_telling = False
        self._refusals = RefusalWatch(
            servers, session_timeout_s, self._log.refused, self._begin_anew, self._security.context
        )
        self._hosts = ",".join(servers)
        self._client = self._begin()
        if not self._connected.wait(timeout_s):
            why = self._security.why_silent(self._client.handler)
            self.close()
            raise MetadataUnavailable(
                f"ZooKeeper {self.servers} did not answer within {timeout_s:g} s: {why}",
                outcome="not_written",
            )

    def _begin(self) -> Any:  # noqa: ANN401 -- kazoo has no types
        """Return a client of kazoo's with a new session; it connects by itself."""
        client = _Client(
            hosts=self._hosts,
            timeout=self.session_timeout_s,
            # For ever: an outage of any length ends by itself.
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=_RECONNECT_PAUSE_MAX_S),
            logger=_kazoo_log,
            **self._security.client_arguments(),
        )
        self._client = client
        client.add_listener(lambda state: self._state_changed(client, state))
        client.start_async()
        return client

    def _begin_anew(self, reason: str) -> None:
        """Forget the session that every server refuses; its registrations run out, and are made again."""
        refused = self._client
        self._rolled_back = reason
        self._log.begun_anew(reason)
        self._refusals.connected()
        self._begin()
        _stop(refused)
        if self._closed:
            _stop(self._client)

    def acl_of(self, path: str) -> list[ACL] | None:
        """Return who may do what with a new node; None: everybody everything."""
        entries = self._security.entries(path, self._root)
        return (
            None
            if entries is None
            else [ACL(rights, Id(scheme, name)) for scheme, name, rights in entries]
        )

    def on_rolled_back(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)` before any other request when ZooKeeper was found to be restored from an older copy.

        It runs in the caller's thread, and makes calls itself; what it raises is raised, and it is called again.
        """
        self._on_rolled_back = callback

    @property
    def refusal(self) -> str:
        """Why every server refuses this session; empty while not every one does."""
        return self._refusals.reason

    @property
    def session_id(self) -> int:
        """The id of the current session, as ephemeral nodes name their owner; 0 while there is none."""
        found = self.client.client_id
        return 0 if found is None or found[0] is None else int(found[0])

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, where locks may be held by threads that are not there."""
        return self._pid != os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def is_connected(self) -> bool:
        """Whether a server answers at the moment."""
        return self._connected.is_set()

    @property
    def client(self) -> Any:  # noqa: ANN401 -- kazoo has no types
        """kazoo's client. Raises ClientClosed after `close`, and in a forked child."""
        if self.is_inherited:
            raise ClientClosed(
                "this metadata store was opened before a fork: open it again in the child"
            )
        if self._closed:
            raise ClientClosed("this metadata store is closed")
        return self._client

    def on_connected(self, callback: Callable[[], None]) -> None:
        """Call `callback` in a thread of kazoo's each time a connection is there again; it must not block."""
        self._on_connected.append(callback)

    def call(self, what: str, timeout_s: float | None = None) -> Call:
        """Begin a public call: all its requests share one deadline."""
        _ = self.client
        return Call(self, what, self.timeout_s if timeout_s is None else timeout_s)

    def impatient_call(self, what: str) -> Call:
        """Begin a call that is repeated soon anyway: it does not wait for a connection that is away."""
        _ = self.client
        timeout_s = min(self.timeout_s, max(_REPEATED_TIMEOUT_S, self.session_timeout_s / 3))
        return Call(self, what, timeout_s, patience_s=_PATIENCE_S)

    def report_rolled_back(self) -> None:
        """To be called before each request: see `on_rolled_back`."""
        if not self._rolled_back or self._on_rolled_back is None:
            return
        with self._rolled_back_lock:
            if self._is_telling or not self._rolled_back:
                return  # this is one of the callback's calls, or another thread's is done
            self._is_telling = True
            try:
                self._on_rolled_back(self._rolled_back)
                self._rolled_back = ""
            finally:
                self._is_telling = False

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait for a connection; return whether there is one."""
        return self._connected.wait(max(0.0, timeout_s))

    def close(self) -> None:
        """End the session: its ephemeral nodes go, if a server hears of it. A second call does nothing."""
        if self._closed or self.is_inherited:
            return
        self._closed = True
        is_connected = self._connected.is_set()
        self._refusals.connected()
        stopping = threading.Thread(
            target=_stop, args=(self._client,), name="fastbk-zookeeper-stop", daemon=True
        )
        stopping.start()
        # Without a connection kazoo may be in the middle of an attempt that takes as long as a session.
        if is_connected:
            stopping.join(_STOP_TIMEOUT_S)
        self._connected.set()  # whoever waits sees that it is closed

    def _state_changed(self, client: Any, state: str) -> None:  # noqa: ANN401 -- kazoo's
        if self._closed or client is not self._client:
            return
        if state == KazooState.CONNECTED:
            self.last_id = self.session_id
            # The servers may have come past the transaction by what others wrote since.
            self._rolled_back = self._refusals.connected() or self._rolled_back
            self._connected.set()
            self._log.connected()
            for callback in self._on_connected:
                callback()
        else:
            self._connected.clear()
            self._refusals.disconnected(client.last_zxid)
            if state == KazooState.LOST:
                self.last_id = 0
                self._log.expired()
            else:
                self._log.suspended()


def _stop(client: Any) -> None:  # noqa: ANN401 -- kazoo has no types
    with suppress(Exception):
        client.stop()
    with suppress(Exception):
        client.close()
