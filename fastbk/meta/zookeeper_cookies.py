"""The cookies of a cluster in ZooKeeper as they stand, for tools that look at one or change it by hand.

Bookies do not use this: they write their cookie together with their identity (`fastbk.meta.zookeeper_bookies`). One
whose cookie was deleted is unknown to the cluster, whatever its identity says.
"""

from __future__ import annotations

from contextlib import suppress

from fastbk.errors import MetadataConflict, StorageError
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper_admin import ClusterSession
from fastbk.meta.zookeeper_calls import BadVersion, Call, NodeExists, NoNode, ResultUnknown
from fastbk.meta.zookeeper_paths import Paths
from fastbk.model.ids import BookieId, check_bookie_id


class Cookies(ClusterSession):
    """The cookies' nodes. A session of its own; every call ends within about `timeout_s` seconds."""

    def __init__(self, location: ZooKeeperLocation, timeout_s: float = 10.0) -> None:
        """Connect. Raises ConfigError where there is no cluster, MetadataUnavailable."""
        super().__init__(location, timeout_s)
        self._paths = Paths(location.root)

    def names(self) -> list[BookieId]:
        """Return the ids of all bookies that have one."""
        return sorted(self._session.call("list cookies").children(self._paths.cookies) or [])

    def read(self, bookie_id: BookieId) -> bytes | None:
        """Return a cookie, None if there is none."""
        node = self._session.call("read a cookie").get(self._path(bookie_id))
        return None if node is None else node.data

    def create(self, bookie_id: BookieId, data: bytes) -> None:
        """Make one. Raises MetadataConflict if there is one."""
        call = self._session.call("make a cookie")
        path = self._path(bookie_id)
        while True:
            call.again()
            try:
                call.create(path, data)
            except NoNode:
                call.ensure(self._paths.cookies)
            except NodeExists:
                raise MetadataConflict(f"bookie {bookie_id} has a cookie already") from None
            except ResultUnknown:
                call.sync(path)
                node = call.get(path)
                if node is not None and node.data == data:
                    return
            else:
                return

    def update(self, bookie_id: BookieId, data: bytes) -> None:
        """Replace one, whatever it says. Raises StorageError if there is none."""
        call = self._session.call("replace a cookie")
        while True:
            call.again()
            with suppress(ResultUnknown):
                try:
                    call.set(self._path(bookie_id), data, -1)
                except NoNode:
                    raise _missing(bookie_id) from None
                return

    def delete(self, bookie_id: BookieId, *, only: bytes | None = None) -> None:
        """Remove one; with `only`, if it says that. Raises StorageError if there is none, MetadataConflict."""
        call = self._session.call("delete a cookie")
        path, version = self._path(bookie_id), -1
        is_unknown = False
        while True:
            call.again()
            try:
                if only is not None:
                    version = _version_of(call, path, bookie_id, only)
                call.delete(path, version)
            except NoNode:
                if is_unknown:
                    return
                raise _missing(bookie_id) from None
            except BadVersion:
                raise _changed(bookie_id) from None
            except ResultUnknown:
                is_unknown = True
            else:
                return

    def _path(self, bookie_id: BookieId) -> str:
        return self._paths.cookie(check_bookie_id(bookie_id))


def _version_of(call: Call, path: str, bookie_id: BookieId, data: bytes) -> int:
    """Return the version of a node with that data. Raises NoNode, MetadataConflict."""
    node = call.get(path)
    if node is None:
        raise NoNode
    if node.data != data:
        raise _changed(bookie_id)
    return node.version


def _changed(bookie_id: BookieId) -> MetadataConflict:
    return MetadataConflict(f"the cookie of bookie {bookie_id} has been changed: look again")


def _missing(bookie_id: BookieId) -> StorageError:
    return StorageError(f"bookie {bookie_id} has no cookie")
