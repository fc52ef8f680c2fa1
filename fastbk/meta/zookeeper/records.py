"""Records in ZooKeeper: a node each below `<own>/records`. See `fastbk.meta.records`.

A node without data is no record but stands on the way to others; it is made when something below it is, and goes with
the record above it.

INV-M14: a version is the transaction that wrote the node last (mzxid). So it has 64 bits on any server, and no two
contents of a path ever had the same one, not even of a record that was deleted and made anew. The transaction that made
the node (czxid) and the node's own version would need 96 bits: an ensemble counts its elections above bit 32 of both.

INV-M15: a change is made on the very content that it names, also where that record is deleted and made anew while the
change is on its way. ZooKeeper can compare a node's own version only, and that begins at 0 with each node of the name.
So each deletion of a node also changes a counter, one of `_COUNTERS` by the node's path, in the same transaction; and
each change of a node that is there compares that counter, which it has read before the node.

Decision 141.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from fastbk.errors import MetadataConflict
from fastbk.meta.records import (
    VALUE_BYTES_MAX,
    Change,
    VersionedRecord,
    check_folder,
    check_path,
    children_subject,
    conflict,
    count_within,
    has_some_below,
    record_names,
    record_subject,
)
from fastbk.meta.subscriptions import WatchHandle
from fastbk.meta.zookeeper.session import (
    BadVersion,
    Call,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    ResultUnknown,
    Session,
)
from fastbk.meta.zookeeper.watches import ZooKeeperWatches

_READ_AT_ONCE = 500
_COUNTERS = 64
"""Of deletions: a change is tried again if another node of its counter is deleted at the same moment."""


def _version(node: Node) -> int:
    return node.written_zxid


def _record(node: Node | None) -> VersionedRecord | None:
    return VersionedRecord(node.data, _version(node)) if node is not None and node.data else None


class ZooKeeperRecords:
    """One store's way to its records."""

    def __init__(
        self, session: Session, watches: ZooKeeperWatches, root: str, deletions: str
    ) -> None:
        """`root`: the node above all records; `deletions`: above the counters."""
        self._session = session
        self._watches = watches
        self._root = root
        self._deletions = deletions

    def _path(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records; what a server that is behind does not know is asked for once more."""
        return self.read_some(paths, None)

    def read_some(
        self, paths: Sequence[str], bytes_max: int | None
    ) -> list[VersionedRecord | None]:
        """Return the first ones of several records; the sizes of many are read before (INV-M18)."""
        call = self._session.call("read records")
        nodes = _nodes(call, [self._path(path) for path in paths], bytes_max)
        missing = [at for at, node in enumerate(nodes) if _record(node) is None]
        if missing:
            call.sync(self._root)
            again = _nodes(call, [self._path(paths[at]) for at in missing], bytes_max)
            for at, node in zip(missing, again, strict=False):
                nodes[at] = node
            nodes = nodes[: missing[len(again)]] if len(again) < len(missing) else nodes
        return [_record(node) for node in nodes]

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do all of it in one transaction (INV-M1); what became of one whose answer was lost is found out."""
        for change in changes:
            change.check()
        what = changes[0].path if len(changes) == 1 else f"{len(changes)} records"
        call = self._session.call(f"change {what}")
        paths = [self._path(change.path) for change in changes]
        is_unknown = False
        while True:
            call.again()
            counters = _Counters(self._deletions, call)
            nodes = counters.read(paths)
            if is_unknown and all(map(_may_be_ours, changes, nodes)):
                break
            ops: list[Op] = []
            gone: set[str] = set()
            try:
                for change, path, node in zip(changes, paths, nodes, strict=True):
                    ops += self._ops(call, change, path, node, gone, counters)
            except MetadataConflict as error:
                # The connection was lost, and things are neither as before nor as they would be: who knows.
                error.outcome = "unknown" if is_unknown else "not_written"
                raise
            try:
                call.multi([*counters.ops(ops), *_parents_first(ops)])
            except NoNode:
                made = {path for change, path in zip(changes, paths, strict=True) if change.value}
                for parent in sorted({path.rpartition("/")[0] for path in made} - made):
                    call.ensure(parent)
                call.ensure(self._deletions)
            except (NodeExists, BadVersion, NotEmpty):
                call.sync(self._root)
            except ResultUnknown:
                is_unknown = True
                call.sync(self._root)
            else:
                break
        return self._versions(call, changes, paths)

    def _ops(
        self,
        call: Call,
        change: Change,
        path: str,
        node: Node | None,
        gone: set[str],
        counters: _Counters,
    ) -> list[Op]:
        """Return what does one change; `gone`: the nodes that parts before it delete, to which its own are added."""
        held = _record(node)
        if (held and held.version) != change.version:
            call.sync(path)
            node = call.get(path)
            held = _record(node)
            if (held and held.version) != change.version:
                raise conflict(change.path)
        if change.value is not None:
            if node is None:
                return [Op.create(path, change.value)]
            return [Op.set(path, change.value, node.version)]
        assert node is not None
        # One that has nothing below it is not asked what; if something comes meanwhile, the transaction fails.
        below = self._empty_below(call, change.path, path, gone, counters) if node.children else []
        ops = [*below, Op.delete(path, node.version)]
        gone.update(op.path for op in ops)
        return ops

    def _empty_below(
        self, call: Call, name: str, path: str, gone: set[str], counters: _Counters
    ) -> list[Op]:
        """Return what deletes the nodes below that only stood on the way to others, the lowest first."""
        ops: list[Op] = []
        for child in call.children(path) or []:
            below = f"{path}/{child}"
            (node,) = (None,) if below in gone else counters.read([below])
            if node is None:
                continue
            if node.data:
                raise has_some_below(name)
            ops += [
                *self._empty_below(call, name, below, gone, counters),
                Op.delete(below, node.version),
            ]
        return ops

    def _versions(self, call: Call, changes: Sequence[Change], paths: list[str]) -> list[int]:
        """Return the new versions, as they are read back: only the server knows who made a node."""
        wanted = [
            path for change, path in zip(changes, paths, strict=True) if change.value is not None
        ]
        nodes = dict(zip(wanted, _nodes(call, wanted), strict=True))
        versions = []
        for change, path in zip(changes, paths, strict=True):
            node = nodes.get(path)
            is_ours = node is not None and node.data == change.value
            # Somebody was faster since: a version that is gone already makes the caller's next change a conflict.
            versions.append(_version(node) if node is not None and is_ours else 0)
        return versions

    def children(self, path: str) -> list[str]:
        """Return the names below that are records or have some below them."""
        (names,) = self.children_of([path])
        return names

    def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names below several paths; some hundred requests at once, of which each answer is bounded."""
        call = self._session.call("list " + ", ".join(paths[:3]))
        found = [self._path(path) if check_folder(path) else self._root for path in paths]
        listed = call.children_all(found)
        if None in listed:
            call.sync(self._root)
            listed = call.children_all(found)
        return [
            self._not_empty(call, path, record_names(folder, names or []))
            for folder, path, names in zip(paths, found, listed, strict=True)
        ]

    @staticmethod
    def _not_empty(call: Call, path: str, names: list[str]) -> list[str]:
        there: list[str] = []
        for at in range(0, len(names), _READ_AT_ONCE):
            some = names[at : at + _READ_AT_ONCE]
            filled = call.are_filled(f"{path}/{name}" for name in some)
            there += [name for name, is_filled in zip(some, filled, strict=True) if is_filled]
        return there

    def watch(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Tell of changes of a record."""
        return self._watches.add(record_subject(path), callback)

    def watch_children(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Tell of names that come or go."""
        return self._watches.add(children_subject(path), callback)


class _Counters:
    """Counters of deletions as one attempt of a change has read them, each before the nodes that it stands for."""

    def __init__(self, folder: str, call: Call) -> None:
        self._folder = folder
        self._call = call
        self._versions: dict[str, int | None] = {}
        """Of the folder, too. None: it was never made."""

    def read(self, paths: Sequence[str]) -> list[Node | None]:
        """Return several nodes."""
        new = sorted({self._folder, *map(self._counter, paths)} - self._versions.keys())
        nodes = _nodes(self._call, [*new, *paths])  # a server answers in the order of the requests
        for counter, node in zip(new, nodes, strict=False):
            self._versions[counter] = None if node is None else node.version
        return nodes[len(new) :]

    def ops(self, ops: Sequence[Op]) -> list[Op]:
        """Return what has a transaction fail if a node was deleted since it was read, and counts its own deletions."""
        deleted = {self._counter(op.path) for op in ops if op.kind == "delete"}
        found: list[Op] = []
        used = sorted(deleted | {self._counter(op.path) for op in ops if op.kind == "set"})
        if used and self._versions[self._folder] is None:
            found.append(Op.create(self._folder))
        for one in used:
            version = self._versions[one]
            if version is None:
                found.append(Op.create(one))  # fails if somebody was first
            else:
                found.append(
                    Op.set(one, b"", version) if one in deleted else Op.check(one, version)
                )
        return found

    def _counter(self, path: str) -> str:
        return f"{self._folder}/{zlib.crc32(path.encode()) % _COUNTERS:02x}"


def _nodes(call: Call, paths: Sequence[str], bytes_max: int | None = None) -> list[Node | None]:
    """Return nodes; with `bytes_max` the first ones that have no more, one at least.

    Where there is room for all, however large, their sizes are not asked for. What grows between the sizes and the
    data is what somebody writes during one round trip.
    """
    if bytes_max is not None and len(paths) * VALUE_BYTES_MAX > bytes_max:
        some = paths[:_READ_AT_ONCE]
        paths = some[: count_within(call.sizes(some), bytes_max)]
    found: list[Node | None] = []
    for at in range(0, len(paths), _READ_AT_ONCE):
        found += call.get_all(paths[at : at + _READ_AT_ONCE])
    return found


def _parents_first(ops: Sequence[Op]) -> list[Op]:
    """Return a transaction that makes a node before those below it; the rest keeps its order."""
    made = sorted((op for op in ops if op.kind == "create"), key=lambda op: op.path.count("/"))
    return [op for op in ops if op.kind != "create"] + made


def _may_be_ours(change: Change, node: Node | None) -> bool:
    """Return whether a record is as the change would have left it."""
    if change.value is None:
        return node is None
    return node is not None and node.data == change.value and _version(node) != change.version
