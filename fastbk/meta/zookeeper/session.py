"""A session with ZooKeeper, and the calls that the store makes on it. This is the only module that knows kazoo.

`Session` is kept over lost connections. It begins anew when it expired, and when every server refuses it since
ZooKeeper's data was restored from an older copy (`RefusalWatch`). A `Call` is the requests of one public call: they
share a deadline, and never hang.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import int_struct, write_string
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from fastbk.errors import ClientClosed, ConfigError, Error, MetadataUnavailable
from fastbk.meta.zookeeper import security as zookeeper_security
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import jittered

if TYPE_CHECKING:
    from fastbk.security.tls import TlsFiles


SESSION_TIMEOUT_S = 10.0
_RECONNECT_PAUSE_MAX_S = 1.0
_STOP_TIMEOUT_S = 2.0
_REPEATED_TIMEOUT_S = 2.0
_PATIENCE_S = 0.5
_LOGIN_CHECK_S = 0.1
"""How often whoever waits for a connection checks whether there will never be one."""
"""A server that is left for another one is replaced well within this."""

# kazoo tells of each attempt to connect. What matters of that is said here, once.
_kazoo_log = logging.getLogger("fastbk.meta.kazoo")
_kazoo_log.addHandler(logging.NullHandler())
_kazoo_log.propagate = False
# below it kazoo tells of each request, those with passwords included
_kazoo_log.setLevel(logging.INFO)


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
        self.is_login_refused = False
        """Whether a server has refused the login: kazoo does not connect again. It may be told before or after the
        session is there, and while no call is under way."""
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
        if not self.wait_connected(timeout_s):
            if self.is_login_refused:
                self.close()
                raise login_refused(f"ZooKeeper {self.servers}")
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
            **self._security_arguments(),
        )
        self._client = client
        client.add_listener(lambda state: self._state_changed(client, state))
        client.start_async()
        return client

    def _security_arguments(self) -> dict[str, Any]:
        """Return the login and the kind of connections of a client of kazoo's. Raises ConfigError."""
        security = self._security
        if security.tls_files is None:
            return security.login
        handler = TlsHandler(security.tls_files, verify_name=security.verify_name)
        return {**security.login, "handler": handler}

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
        """Wait for a connection; return whether there is one. Not any longer once a server has refused the login."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            if self._connected.wait(max(0.0, min(left_s, _LOGIN_CHECK_S))):
                return True
            if self.is_login_refused or left_s <= _LOGIN_CHECK_S:
                return False

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
            if client.client_state == KeeperState.AUTH_FAILED:
                self.is_login_refused = True
            if state == KazooState.LOST:
                self.last_id = 0
                self._log.expired()
            else:
                self._log.suspended()


def login_refused(where: str) -> ConfigError:
    """Return the error of a login that a server does not take; `where`: which one."""
    return ConfigError(
        f"{where} does not accept this process's user or password: check FASTBK_ZOOKEEPER_FILE, and start anew"
    )


def _stop(client: Any) -> None:  # noqa: ANN401 -- kazoo has no types
    with suppress(Exception):
        client.stop()
    with suppress(Exception):
        client.close()


# --- calls -------------------------------------------------------------------------------------------------------
#
# The requests of one public call on a session with ZooKeeper: they share a deadline, and never hang.
#
# - A read that lost its connection is asked again, until the deadline.
# - A write that lost its connection may have happened: `ResultUnknown` goes to whoever knows how to
#   find out, and only when the deadline passes before that to the user, as MetadataUnavailable with
#   outcome "unknown".
# - Nothing is handed to kazoo while there is no connection: kazoo would keep it, and send it after
#   the caller gave up.


NoNode = exceptions.NoNodeError
NodeExists = exceptions.NodeExistsError
BadVersion = exceptions.BadVersionError
NotEmpty = exceptions.NotEmptyError
_LOST = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,  # the parent of kazoo's ConnectionClosedError
    exceptions.SessionMovedError,
    exceptions.OperationTimeoutError,
    exceptions.ThrottledOpError,
    exceptions.CancelledError,
)
_NOT_ALLOWED = (exceptions.NoAuthError, exceptions.AuthFailedError, exceptions.InvalidACLError)
TRANSACTION_BYTES_MAX = 1_000_000
"""Of all parts with their paths and rights. A server with ZooKeeper's default (`jute.maxbuffer`, 1 MiB) cuts off the
session that sends more, for every request that is under way on it."""
_PART_BYTES = 64
"""What a part has beside its path, its data and its rights, at most."""
_ROLLED_BACK = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


class ResultUnknown(Exception):
    """The connection was lost while a write was under way: it happened or not."""


class Pending(Protocol):
    """kazoo's result of a request that was sent."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401 -- as the request
        """Return what came of it, or raise."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read."""

    data: bytes
    version: int
    created_zxid: int
    """Tells a node from one that was made under its name later."""
    written_zxid: int
    """The transaction that wrote it last: tells this content from every other that the name ever had."""
    owner: int
    """The session that an ephemeral node belongs to; 0 for others."""
    written_ms: int
    """When it was written last, by the server's clock."""
    children: int
    """How many nodes are directly below it."""
    children_created: int
    """How many nodes were ever made directly below it, modulo 2^31: the number of the next sequential one."""


@dataclass(frozen=True, slots=True)
class Op:
    """One part of a transaction."""

    kind: str
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequence: bool = False

    @classmethod
    def create(
        cls, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Op:
        """Make a node that must not be there; `sequence`: the server appends the next number to its name."""
        return cls("create", path, data, ephemeral=ephemeral, sequence=sequence)

    @classmethod
    def set(cls, path: str, data: bytes, version: int) -> Op:
        """Replace a node's data if it has `version` (-1: any)."""
        return cls("set", path, data, version)

    @classmethod
    def delete(cls, path: str, version: int = -1) -> Op:
        """Remove a node if it has `version` (-1: any)."""
        return cls("delete", path, version=version)

    @classmethod
    def check(cls, path: str, version: int) -> Op:
        """Let all fail if the node does not have `version`."""
        return cls("check", path, version=version)


class Call:
    """The requests of one public call, under one deadline."""

    def __init__(
        self, session: Session, what: str, timeout_s: float, patience_s: float | None = None
    ) -> None:
        """`patience_s`: longest wait for a connection that is away; None: until the deadline."""
        self.session = session
        self._what = what
        self._patience_s = timeout_s if patience_s is None else patience_s
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._may_have_written = False

    # --- reading -----------------------------------------------------------------------------------------------

    def get(self, path: str, watch: Callable[[Any], None] | None = None) -> Node | None:
        """Return a node, None if there is none (then `watch` is not set)."""
        return self.get_all([path], watch)[0]

    def get_all(
        self, paths: Iterable[str], watch: Callable[[Any], None] | None = None
    ) -> list[Node | None]:
        """Return several nodes; all are asked for at once."""
        listed = list(paths)
        found: list[Node | None] = []
        for answer in self._read(lambda zk: [zk.get_async(path, watch=watch) for path in listed]):
            if answer is None:
                found.append(None)
            else:
                data, stat = answer
                found.append(_node(data or b"", stat))
        return found

    def exists(self, path: str, watch: Callable[[Any], None] | None = None) -> Node | None:
        """Return a node without its data; `watch` is set also where there is none."""
        (stat,) = self._read(lambda zk: [zk.exists_async(path, watch=watch)])
        return stat and _node(b"", stat)

    def are_filled(self, paths: Iterable[str]) -> list[bool]:
        """Return whether each of several nodes has data or children; all are asked for at once, and no data comes."""
        return [
            stat is not None and bool(stat.dataLength or stat.numChildren)
            for stat in self._stats(paths)
        ]

    def sizes(self, paths: Iterable[str]) -> list[int]:
        """Return how many bytes each of several nodes has, 0 where there is none; asked for as by `are_filled`."""
        return [0 if stat is None else stat.dataLength for stat in self._stats(paths)]

    def _stats(self, paths: Iterable[str]) -> list[Any]:
        listed = list(paths)
        return self._read(lambda zk: [zk.exists_async(path) for path in listed])

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str] | None:
        """Return the names of a node's children, None if there is no such node (then `watch` is not set)."""
        (names,) = self._read(lambda zk: [zk.get_children_async(path, watch=watch)])
        return None if names is None else [str(name) for name in names]

    def children_all(self, paths: Iterable[str]) -> list[list[str] | None]:
        """Return the names of several nodes' children, asked for at once; None where there is no such node."""
        listed = list(paths)
        listings = self._read(lambda zk: [zk.get_children_async(path) for path in listed])
        return [None if names is None else [str(name) for name in names] for names in listings]

    def sync(self, path: str) -> None:
        """Have the server catch up: what was written before, by anybody, is seen by the reads that follow."""
        self._read(lambda zk: [zk.sync_async(path)])

    def _read(self, submit: Callable[[Any], list[Pending]]) -> list[Any]:
        while True:
            zk = self._connected()
            pending = submit(zk)
            try:
                return [self._wait_or_none(one) for one in pending]
            except _LOST as error:
                self._pause(error)

    def _wait_or_none(self, pending: Pending) -> Any:  # noqa: ANN401
        try:
            return self._wait(pending)
        except NoNode:
            return None

    # --- writing -----------------------------------------------------------------------------------------------

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """Make a node and return its path. Raises NodeExists, NoNode (its parent), ResultUnknown."""
        return str(
            self._write(
                lambda zk: zk.create_async(
                    path, data, self.session.acl_of(path), ephemeral=ephemeral, sequence=sequence
                )
            )
        )

    def set(self, path: str, data: bytes, version: int) -> None:
        """Replace a node's data if it has `version`. Raises NoNode, BadVersion, ResultUnknown."""
        self._write(lambda zk: zk.set_async(path, data, version))

    def delete(self, path: str, version: int = -1) -> None:
        """Remove a node if it has `version`. Raises NoNode, BadVersion, NotEmpty, ResultUnknown."""
        self._write(lambda zk: zk.delete_async(path, version))

    def multi(self, ops: Iterable[Op]) -> list[Any]:
        """Do all or nothing; return a result each. Raises what kept the first part from happening, or ResultUnknown.

        Raises ConfigError, and sends nothing, where it is more than a server takes.
        """
        listed = list(ops)
        self._check_size(listed)
        results = list(self._write(lambda zk: self._transaction(zk, listed).commit_async()))
        for result in results:
            if isinstance(result, _LOST):
                raise ResultUnknown from result
            if isinstance(result, _NOT_ALLOWED):
                raise self._not_allowed(result) from result
            if isinstance(result, Exception) and not isinstance(result, _ROLLED_BACK):
                raise result
        return results

    def _check_size(self, ops: list[Op]) -> None:
        size_bytes = sum(
            len(op.path) + len(op.data) + _PART_BYTES + self._acl_bytes(op) for op in ops
        )
        if size_bytes > TRANSACTION_BYTES_MAX:
            raise ConfigError(
                f"{self._what}: a transaction of {len(ops)} parts has {size_bytes} bytes, ZooKeeper takes"
                f" {TRANSACTION_BYTES_MAX}: change less at once"
            )

    def _acl_bytes(self, op: Op) -> int:
        acl = self.session.acl_of(op.path) if op.kind == "create" else None
        return sum(16 + len(one.id.scheme) + len(one.id.id) for one in acl or ())

    def _transaction(self, zk: Any, ops: list[Op]) -> Any:  # noqa: ANN401 -- kazoo has no types
        transaction = zk.transaction()
        for op in ops:
            if op.kind == "create":
                acl = self.session.acl_of(op.path)
                transaction.create(
                    op.path, op.data, acl, ephemeral=op.ephemeral, sequence=op.sequence
                )
            elif op.kind == "set":
                transaction.set_data(op.path, op.data, op.version)
            elif op.kind == "delete":
                transaction.delete(op.path, op.version)
            else:
                transaction.check(op.path, op.version)
        return transaction

    def secure(self, path: str) -> bool:
        """Give a node the rights that it would be made with; return whether it is there. Raises ConfigError."""
        acl = self.session.acl_of(path)
        try:
            self._write(lambda zk: zk.set_acls_async(path, acl))
        except NoNode:
            return False
        return True

    def ensure(self, path: str) -> None:
        """Make a node without data, and its parents, where they are missing."""
        while self.exists(path) is None:
            parent = path.rpartition("/")[0]
            if parent:
                self.ensure(parent)
            with suppress(NodeExists, NoNode, ResultUnknown):
                self.create(path)

    def delete_later(self, path: str) -> None:
        """Send a deletion, and do not care what becomes of it."""
        if self.session.is_connected:
            self.session.client.delete_async(path)

    def _write(self, submit: Callable[[Any], Pending]) -> Any:  # noqa: ANN401 -- as the request
        zk = self._connected()
        before, self._may_have_written = self._may_have_written, True
        try:
            answer = self._wait(submit(zk))
        except _LOST as error:
            self._pause(error)
            raise ResultUnknown from error
        except exceptions.ZookeeperError:
            # A server refused it: nothing came of this one.
            self._may_have_written = before
            raise
        self._may_have_written = before
        return answer

    # --- deadline ----------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; none or fewer when it has passed."""
        return self._deadline_s - time.monotonic()

    def again(self) -> None:
        """Allow one more attempt after a conflict with others. Raises MetadataUnavailable after the deadline."""
        if self.left_s <= 0:
            raise self._too_late("others kept changing the same record")

    def _connected(self) -> Any:  # noqa: ANN401 -- kazoo has no types
        if not self.session.wait_connected(min(self.left_s, self._patience_s)):
            if self.session.is_login_refused:
                raise self._not_allowed(exceptions.AuthFailedError())
            raise self._too_late("there is no connection", min(self._timeout_s, self._patience_s))
        self.session.report_rolled_back()
        return self.session.client

    def _pause(self, error: Exception) -> None:
        """Let kazoo see that the connection is gone. Raises MetadataUnavailable after the deadline."""
        if self.left_s <= 0:
            raise self._too_late(type(error).__name__) from error
        _ = self.session.client
        time.sleep(min(0.01, self.left_s))

    def _wait(self, pending: Pending) -> Any:  # noqa: ANN401 -- as the request
        try:
            return pending.get(timeout=max(0.001, self.left_s))
        except _NOT_ALLOWED as error:
            raise self._not_allowed(error) from error
        except self.session.client.handler.timeout_exception as error:
            raise self._too_late("it does not answer") from error

    def _not_allowed(self, error: Exception) -> ConfigError:
        where = f"{self._what}: ZooKeeper {self.session.servers}"
        if isinstance(error, exceptions.AuthFailedError):
            return login_refused(where)
        if isinstance(error, exceptions.InvalidACLError):
            return ConfigError(
                f"{where} does not accept an id of [acl]: check them in FASTBK_ZOOKEEPER_FILE, and whether ZooKeeper"
                " has an authProvider for each scheme"
            )
        return ConfigError(
            f"{where} does not allow it: check the nodes' access control lists, and who this process is"
            " (FASTBK_ZOOKEEPER_FILE)"
        )

    def _too_late(self, why: str, within_s: float | None = None) -> Error:
        within_s = self._timeout_s if within_s is None else within_s
        why = self.session.refusal or why
        return MetadataUnavailable(
            f"{self._what}: ZooKeeper {self.session.servers}: {why} within {within_s:.3g} s"
            + ("; read again before retrying" if self._may_have_written else ""),
            outcome="unknown" if self._may_have_written else "not_written",
        )


def _node(data: bytes, stat: Any) -> Node:  # noqa: ANN401 -- kazoo's
    """Return a node from what kazoo tells of it."""
    # The server counts what was created below, and shows creations and deletions together.
    created = ((stat.cversion + stat.numChildren) % 2**32) // 2
    return Node(
        data,
        stat.version,
        stat.czxid,
        stat.mzxid,
        stat.ephemeralOwner,
        stat.mtime,
        stat.numChildren,
        created,
    )


# --- refusals ----------------------------------------------------------------------------------------------------
#
# Finds out that ZooKeeper refuses a session for good, because its data was restored from an older copy.
#
# A server refuses a session that has seen a later transaction (zxid) than the server has, and
# closes the connection without a word. A follower that lags does so for a moment, too, and any
# other server then takes the session. After a restore every server refuses it, for ever. So while a
# session has no connection, a thread reads each server's last zxid by ZooKeeper's command `srvr`,
# which changes nothing. Once every server was behind for longer than a session lasts, the session
# is to be begun anew. A server that does not answer may have the newer data, and is waited for.


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
        addresses = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return None
    zxids: dict[int, list[int | None]] = {}
    for family, _, _, _, address in dict.fromkeys(addresses):
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
    match = _ZXID.search(answer)
    return None if match is None else int(match[1], 16)


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
        return {server: server_zxid(server, context=context) for server in self._servers}

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


# --- the log -----------------------------------------------------------------------------------------------------


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


# --- watches -----------------------------------------------------------------------------------------------------
#
# Has a server forget a watch: it would keep it until it fires or the connection ends. kazoo has no such request.
#
# ZooKeeper has it since 3.5.


_CHILDREN, _DATA = 1, 2
"""ZooKeeper's `WatcherType`."""


class _RemoveWatches:
    """The request, as kazoo's connection handles its own."""

    type = 18

    def __init__(self, client: Any, path: str, *, is_of_children: bool) -> None:  # noqa: ANN401 -- kazoo has no types
        self.path = path
        self._kind = _CHILDREN if is_of_children else _DATA
        self._kept: dict[str, object] = (
            client._child_watchers if is_of_children else client._data_watchers
        )

    def serialize(self) -> bytes:
        """Return it as it is sent."""
        return b"".join((write_string(self.path), int_struct.pack(self._kind)))

    def deserialize(self, answer: bytes, offset: int) -> bool:
        """Forget what kazoo keeps for the watch: in its own thread, where requests that came later are not there yet.

        Not called where the server had no such watch: then it has fired.
        """
        del answer, offset
        self._kept.pop(self.path, None)
        return True


def unwatch_later(session: Session, path: str, *, is_of_children: bool) -> None:
    """Send the request, behind all that was sent before, and do not care what becomes of it."""
    if session.is_connected:  # without a connection there are no watches
        with suppress(ClientClosed):
            client = session.client
            request = _RemoveWatches(client, path, is_of_children=is_of_children)
            client._call(request, client.handler.async_result())


# --- encrypted connections ---------------------------------------------------------------------------------------
#
# Encrypted connections to ZooKeeper, by the policy that all of fastbk's connections have.
#
# kazoo's own would also accept a certificate of any authority that the system trusts, and TLS 1.0.


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with connections that are made here.

    Attributes:
        problem: why the last handshake failed; empty after one that did not.
    """

    def __init__(self, files: TlsFiles, *, verify_name: bool) -> None:
        """Read the files. Raises ConfigError."""
        # Here and not above: most clusters' connections to ZooKeeper are not encrypted.
        from fastbk.security.tls import RefreshedContext, client_context

        super().__init__()
        self.problem = ""
        self._context = RefreshedContext(
            files, lambda: client_context(files, verify_name=verify_name)
        )

    def create_connection(
        self, address: tuple[str, int], timeout: float, *, hostname: str, **_: object
    ) -> socket.socket:
        """Connect and shake hands within `timeout` seconds. Raises OSError."""
        end_s = time.monotonic() + timeout
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(max(0.001, end_s - time.monotonic()))
            encrypted = self._context.current().wrap_socket(plain, server_hostname=hostname)
        except BaseException as error:
            plain.close()
            self.problem = _problem(error)
            raise
        self.problem = ""
        return encrypted


def _problem(error: BaseException) -> str:
    """Return what an operator has to mend after a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}; check ca_file, and which hosts it names"
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return f"it ended the TLS handshake ({error.reason}); does it accept certificate_file?"
    return f"no TLS handshake ({error}); is it the secureClientPort?"
