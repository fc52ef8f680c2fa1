"""Creates and removes clusters in ZooKeeper, as Apache's `metaformat` and `initnewcluster` do, and
opens short sessions for tools that read or change nodes. No bookie calls this.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.format_level import LEVEL_PATH, first_record
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper.bookies import list_bookies
from fastbk.meta.zookeeper.paths import Layout, Paths, layout_text
from fastbk.meta.zookeeper.security import VARIABLE
from fastbk.meta.zookeeper.session import (
    BadVersion,
    Call,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    ResultUnknown,
    Session,
)
from fastbk.meta.zookeeper.store import read_layout
from fastbk.model.ids import BookieId, check_bookie_id

LAYOUT_DEFAULT = Layout.HIERARCHICAL
FORMAT_TIMEOUT_S = 3600.0
# What Apache's tools and fastbk put directly below a root, besides parts of ledgers' paths.
_KNOWN_NAMES = re.compile(
    r"LAYOUT|INSTANCEID|available|cookies|underreplication|disableHealthCheck|fastbk|idgen(-long)?|ID-.*"
    r"|\d{2,3}|L\d{10,19}"
)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What `show` says about a cluster."""

    uri: str
    layout: str
    instance_id: str
    writable_bookies: tuple[str, ...]
    readonly_bookies: tuple[str, ...]
    cookies: tuple[str, ...]
    """Every bookie that ever was and was not taken out of the cluster."""


@contextmanager
def _session(location: ZooKeeperLocation, timeout_s: float) -> Iterator[Session]:
    session = Session(location.servers, timeout_s, root=location.root)
    try:
        yield session
    finally:
        session.close()


def exists(location: ZooKeeperLocation, timeout_s: float = 10.0) -> bool:
    """Return whether there is anything at the location's path. Raises MetadataUnavailable."""
    with _session(location, timeout_s) as session:
        return session.call("look").exists(location.root) is not None


def init(
    location: ZooKeeperLocation, timeout_s: float = 10.0, *, instance_id: str | None = None
) -> str:
    """Make a new cluster and return its instance id; `instance_id`: of a cluster that is rebuilt or restored.

    A rebuilt one has the first format level, until it is finalized, or the record of its level is restored.

    Without a layout in the location it gets the hierarchical one. Raises MetadataConflict when there is one
    already, MetadataUnavailable.
    """
    with _session(location, timeout_s) as session:
        return _init(session.call("make a cluster"), location, instance_id)


def format_cluster(location: ZooKeeperLocation, timeout_s: float = 10.0) -> str:
    """Remove everything at the location's path, the ledgers of all clients included, and make a new cluster.

    Without a layout in the location it keeps the one it had. Raises MetadataConflict while bookies are alive:
    they would free all their data.
    """
    with _session(location, timeout_s) as session:
        call = session.call("format", FORMAT_TIMEOUT_S)
        paths = Paths(location.root)
        alive = [bookie.service.bookie_id for bookie in list_bookies(call, paths)]
        if alive:
            raise MetadataConflict(f"bookies are alive: stop them first: {', '.join(alive)}")
        if location.layout is None and call.exists(paths.layout) is not None:
            with suppress(ConfigError):
                layout = read_layout(call, location)
                location = ZooKeeperLocation(location.servers, location.root, layout)
        _remove(call, location.root)
        return _init(call, location)


def nuke(location: ZooKeeperLocation, instance_id: str | None, timeout_s: float = 10.0) -> bool:
    """Remove a cluster, its root included; return False if there is nothing.

    Args:
        location: its layout does not matter.
        instance_id: that the cluster must have; None: whichever it has.
        timeout_s: for connecting; removing may take up to an hour.

    Raises MetadataConflict while bookies are alive, for another instance id, and where something lies that no cluster
    has: the path is perhaps not the one that was meant. Nothing was removed then.
    """
    with _session(location, timeout_s) as session:
        call = session.call("nuke", FORMAT_TIMEOUT_S)
        paths = Paths(location.root)
        names = call.children(paths.root)
        if names is None:
            return False
        if instance_id is not None:
            node = call.get(paths.instance_id)
            found = "" if node is None else node.data.decode("utf-8", "replace")
            if found != instance_id:
                raise MetadataConflict(f"the cluster's instance id is {found!r}, not {instance_id}")
        alive = [bookie.service.bookie_id for bookie in list_bookies(call, paths)]
        if alive:
            raise MetadataConflict(f"bookies are alive: stop them first: {', '.join(alive)}")
        strange = sorted(name for name in names if not _KNOWN_NAMES.fullmatch(name))
        if strange:
            raise MetadataConflict(f"{paths.root} holds what no cluster has: {', '.join(strange)}")
        _remove(call, paths.root)
        return True


def secure(location: ZooKeeperLocation, timeout_s: float = 10.0, *, is_dry: bool = False) -> int:
    """Give all nodes of a cluster the rights of FASTBK_ZOOKEEPER_FILE; return how many there are.

    Children come before their parents, so that a run that is cut off can be repeated. Raises ConfigError where the file
    names nobody, or ZooKeeper does not allow it; MetadataUnavailable.
    """
    with _session(location, timeout_s) as session:
        if session.acl_of(location.root) is None:
            raise ConfigError(f"{VARIABLE} names nobody in [acl]: whom are the nodes to belong to?")
        call = session.call("secure", FORMAT_TIMEOUT_S)
        if call.exists(location.root) is None:
            raise ConfigError(f"there is no cluster at {location.uri}")
        return _secure(call, location.root, is_dry=is_dry)


def _secure(call: Call, path: str, *, is_dry: bool) -> int:
    count = sum(
        _secure(call, f"{path}/{name}", is_dry=is_dry) for name in call.children(path) or []
    )
    while not is_dry:
        call.again()
        try:
            return count + call.secure(path)
        except ResultUnknown:
            continue  # it may be done again
    return count + 1


def show(location: ZooKeeperLocation, timeout_s: float = 10.0) -> ClusterFacts:
    """Return what a cluster is. Raises ConfigError if there is none, MetadataUnavailable."""
    with _session(location, timeout_s) as session:
        call = session.call("show")
        paths = Paths(location.root)
        layout = read_layout(call, location)
        instance = call.get(paths.instance_id)
        bookies = list_bookies(call, paths)
        return ClusterFacts(
            uri=location.uri,
            layout=layout.value,
            instance_id="" if instance is None else instance.data.decode("utf-8", "replace"),
            writable_bookies=tuple(
                bookie.service.bookie_id for bookie in bookies if bookie.writable
            ),
            readonly_bookies=tuple(
                bookie.service.bookie_id for bookie in bookies if not bookie.writable
            ),
            cookies=tuple(sorted(call.children(paths.cookies) or [])),
        )


def _init(call: Call, location: ZooKeeperLocation, instance_id: str | None = None) -> str:
    paths = Paths(location.root)
    layout = location.layout or LAYOUT_DEFAULT
    level = [] if instance_id else [Op.create(f"{paths.records}/{LEVEL_PATH}", first_record())]
    instance_id = instance_id or str(uuid.uuid4())
    parent = location.root.rpartition("/")[0]
    if parent:
        call.ensure(parent)
    ops = [
        Op.create(paths.root),
        Op.create(paths.available),
        Op.create(paths.readonly),
        Op.create(paths.cookies),
        Op.create(paths.instance_id, instance_id.encode()),
        Op.create(paths.layout, layout_text(layout)),
        Op.create(paths.own),
        Op.create(paths.identities),
        Op.create(paths.deleted),
        Op.create(paths.records),
        Op.create(f"{paths.records}/{LEVEL_PATH.rpartition('/')[0]}"),
        *level,
    ]
    while True:
        call.again()
        try:
            call.multi(ops)
        except (NodeExists, ResultUnknown):
            call.sync(paths.root)
            found = call.get(paths.instance_id)
            if found is not None and found.data == instance_id.encode():
                return instance_id
            if found is not None:
                raise MetadataConflict(
                    f"there is a cluster at {location.uri} already, with the id"
                    f" {found.data.decode(errors='replace')}: start bookies with this URI, or choose another path"
                ) from None
            if call.exists(paths.root) is not None:
                raise MetadataConflict(
                    f"there is something at {location.uri} already, which has no INSTANCEID: choose another path."
                    " If a cluster was there, restore its metadata first (docs/metadata-backup.md)"
                ) from None
        else:
            return instance_id


def _remove(call: Call, path: str) -> None:
    """Remove a node and everything below it; what somebody adds meanwhile is removed too."""
    while True:
        call.again()
        for name in call.children(path) or []:
            _remove(call, f"{path}/{name}")
        try:
            call.delete(path)
        except NoNode:
            return
        except (NotEmpty, ResultUnknown):
            continue
        else:
            return


class ClusterSession:
    """A session of its own with the cluster of a location; `with` ends it."""

    def __init__(self, location: ZooKeeperLocation, timeout_s: float) -> None:
        """Connect. Raises ConfigError where there is no cluster, MetadataUnavailable."""
        self._session = Session(location.servers, timeout_s, root=location.root)
        try:
            call = self._session.call("open")
            read_layout(call, location)
            self._check(call)
        except BaseException:
            self._session.close()
            raise

    def _check(self, call: Call) -> None:
        """Look at what else has to be right; a subclass raises where it is not, and the session ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._session.close()


# --- cookies -----------------------------------------------------------------------------------------------------
#
# The cookies of a cluster in ZooKeeper as they stand, for tools that look at one or change it by hand.
#
# Bookies do not use this: they write their cookie together with their identity
# (`fastbk.meta.zookeeper.bookies`). One whose cookie was deleted is unknown to the cluster,
# whatever its identity says.


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
