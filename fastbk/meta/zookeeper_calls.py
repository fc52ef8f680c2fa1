"""The requests of one public call on a session with ZooKeeper: they share a deadline, and never hang.

- A read that lost its connection is asked again, until the deadline.
- A write that lost its connection may have happened: `ResultUnknown` goes to whoever knows how to find out, and only
  when the deadline passes before that to the user, as MetadataUnavailable with outcome "unknown".
- Nothing is handed to kazoo while there is no connection: kazoo would keep it, and send it after the caller gave up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kazoo import exceptions

from fastbk.errors import ConfigError, Error, MetadataUnavailable

if TYPE_CHECKING:
    from fastbk.meta.zookeeper_session import Session

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
        found = self._read(lambda zk: [zk.get_children_async(path) for path in listed])
        return [None if names is None else [str(name) for name in names] for names in found]

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
            return ConfigError(
                f"{where} does not accept this process's user or password: check FASTBK_ZOOKEEPER_FILE, and start anew"
            )
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
