"""The metadata store of a cluster: ZooKeeper, in Apache BookKeeper's layout and bytes. See `fastbk.meta.api`.

Beside Apache's nodes there are a few of our own under `<root>/ID-fastbk`; `fastbk.meta.zookeeper.paths` shows them all.

Records (`fastbk.meta.records`) are a node each below `<own>/records`. A node without data is no record but stands on
the way to others; it is made when something below it is, and goes with the record above it.

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
from contextlib import suppress

from fastbk.errors import ConfigError, MetadataConflict
from fastbk.meta.api import (
    LIST_PAGE_COUNT,
    NO_CLUSTER_REMEDY,
    BadIdentity,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    IdentityVersion,
    LedgerRead,
    VersionedIdentity,
    VersionedLedger,
    WatchHandle,
)
from fastbk.meta.records import (
    VALUE_BYTES_MAX,
    Change,
    VersionedRecord,
    bad_record,
    check_folder,
    check_path,
    children_subject,
    conflict,
    count_within,
    has_some_below,
    record_names,
    record_subject,
)
from fastbk.meta.rollback import new_hold, place_hold
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper.bookies import Identities, ZooKeeperLease, list_bookies
from fastbk.meta.zookeeper.ledgers import Ledgers
from fastbk.meta.zookeeper.paths import (
    OWN_NAME,
    OWN_NAME_OLD,
    Layout,
    Paths,
    flat_ledger_id,
    layout_text,
    parse_layout,
)
from fastbk.meta.zookeeper.session import (
    SESSION_TIMEOUT_S,
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
from fastbk.meta.zookeeper.underreplication import (
    UnderreplicatedNodes,
    ZooKeeperCoordination,
    ZooKeeperReplicaMarks,
)
from fastbk.meta.zookeeper.watches import ZooKeeperWatches
from fastbk.model.ids import BookieId, LedgerId, check_bookie_id
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.pulsar_racks import RACKS_BYTES_MAX

_READ_AT_ONCE = 500
_COUNTERS = 64
"""Number of counters of deletions. A change is tried again if another node of its counter is deleted at the same
moment.
"""


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
        missing = [index for index, node in enumerate(nodes) if _record(node) is None]
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
        for start in range(0, len(names), _READ_AT_ONCE):
            some = names[start : start + _READ_AT_ONCE]
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
        """Versions of the nodes, the folder's too. None: it was never made."""

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
    nodes: list[Node | None] = []
    for start in range(0, len(paths), _READ_AT_ONCE):
        nodes += call.get_all(paths[start : start + _READ_AT_ONCE])
    return nodes


def _parents_first(ops: Sequence[Op]) -> list[Op]:
    """Return a transaction that makes a node before those below it; the rest keeps its order."""
    made = sorted((op for op in ops if op.kind == "create"), key=lambda op: op.path.count("/"))
    return [op for op in ops if op.kind != "create"] + made


def _may_be_ours(change: Change, node: Node | None) -> bool:
    """Return whether a record is as the change would have left it."""
    if change.value is None:
        return node is None
    return node is not None and node.data == change.value and _version(node) != change.version


class ZooKeeperStore:
    """A `MetadataStore` in ZooKeeper. Every call ends within about `timeout_s` seconds."""

    def __init__(
        self,
        location: ZooKeeperLocation,
        timeout_s: float = 10.0,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> None:
        """Connect and read the layout. Raises ConfigError where there is no cluster, MetadataUnavailable."""
        self.uri = location.uri
        self._session = Session(location.servers, timeout_s, session_timeout_s, location.root)
        try:
            call = self._session.call("open")
            self._layout = read_layout(call, location)
            self._paths = find_paths(call, location.root)
        except BaseException:
            self._session.close()
            raise
        self._session.on_rolled_back(self._hold)
        self._ledgers = Ledgers(self._paths, self._layout)
        self._identities = Identities(self._paths)
        self._watches = ZooKeeperWatches(self._session, self._paths, self._ledgers.path)
        self.records = ZooKeeperRecords(
            self._session, self._watches, self._paths.records, self._paths.record_deletions
        )
        self.coordination = ZooKeeperCoordination(
            self._session, self._watches, location.root, self._paths.own
        )
        nodes = UnderreplicatedNodes(self._session, location.root)
        self.marks = ZooKeeperReplicaMarks(self.records, nodes)

    def _hold(self, reason: str) -> None:
        """Put metadata on hold before anything else is done in a session that began since it was rolled back."""
        place_hold(self, new_hold(reason))

    # --- ledgers -----------------------------------------------------------------------------------------------

    def instance_id(self) -> str:
        """Return the cluster's id; empty where Apache's tools never wrote one."""
        return _instance_id(self._session.call("read the cluster's id"), self._paths)

    def next_ledger_id(self) -> LedgerId:
        """Draw the next ledger id."""
        return self._ledgers.next_id(self._session.call("draw a ledger id"))

    def highest_drawn_id(self) -> LedgerId:
        """Return the last id drawn, as the counter's node says."""
        return self._ledgers.highest_drawn_id(self._session.call("read the counter of ledger ids"))

    def move_ids_above(self, ledger_id: LedgerId) -> None:
        """Move the counter (INV-M3)."""
        self._ledgers.move_ids_above(
            self._session.call("move the counter of ledger ids"), ledger_id
        )

    def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> int:
        """Store a new ledger; its version is 0. One with the same creation token is taken for ours."""
        return self._ledgers.create(
            self._session.call(f"create ledger {ledger_id}"), ledger_id, metadata
        )

    def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata and version."""
        return self._ledgers.read(self._session.call(f"read ledger {ledger_id}"), ledger_id)

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRead]:
        """Return several ledgers' metadata."""
        return self._ledgers.read_all(self._session.call("read ledgers"), ledger_ids)

    def update_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Compare-and-set on `version` (INV-M1), and on a bookie's identity."""
        call = self._session.call(f"update ledger {ledger_id}")
        return self._ledgers.update(call, ledger_id, metadata, version, if_identity)

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Remove a ledger."""
        self._ledgers.delete(self._session.call(f"delete ledger {ledger_id}"), ledger_id, version)

    def list_ledgers(
        self, after: LedgerId = -1, count_max: int = LIST_PAGE_COUNT
    ) -> list[LedgerId]:
        """Return one page of ids."""
        return self._ledgers.page(self._session.call("list ledgers"), after, count_max)

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[LedgerId], None]
    ) -> WatchHandle:
        """Tell of changes of one ledger."""
        return self._watches.add(ledger_id, lambda: callback(ledger_id))

    # --- bookies -----------------------------------------------------------------------------------------------

    def register_bookie(self, service: BookieService, *, writable: bool) -> ZooKeeperLease:
        """Announce a bookie, taking over what an earlier process of the same data left."""
        check_bookie_id(service.bookie_id)
        _write_layout(self._session.call("write the layout"), self._paths, self._layout)
        return ZooKeeperLease(self._session, self._paths, service, writable=writable)

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the live bookies."""
        return list_bookies(self._session.call("list bookies"), self._paths)

    def watch_bookies(self, callback: Callable[[], None]) -> WatchHandle:
        """Tell of changes of the set of live bookies."""
        return self._watches.add(None, callback)

    def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Return a bookie's identity."""
        return self._identities.read(self._session.call(f"identity of {bookie_id}"), bookie_id)

    def foreign_cookie(self, bookie_id: BookieId) -> bytes | None:
        """Return the cookie of an Apache bookie of that id."""
        call = self._session.call(f"cookie of {bookie_id}")
        return self._identities.foreign_cookie(call, bookie_id)

    def write_identity(
        self, identity: BookieIdentity, version: int | None, *, replaced_cookie: bytes | None = None
    ) -> int:
        """Create or compare-and-set an identity, and the bookie's cookie."""
        call = self._session.call(f"identity of {identity.bookie_id}")
        instance_id = _instance_id(call, self._paths)
        return self._identities.write(call, identity, version, instance_id, replaced_cookie)

    def delete_identity(self, bookie_id: BookieId, version: int) -> None:
        """Forget an identity and its cookie."""
        call = self._session.call(f"identity of {bookie_id}")
        self._identities.delete(call, bookie_id, version)

    def list_identities(self) -> list[BookieIdentity | BadIdentity]:
        """Return all identities."""
        return self._identities.list(self._session.call("list identities"))

    def pulsar_racks(self) -> bytes | None:
        """Return Pulsar's node, if there is one that this process may read, of a size that can be right."""
        path = self._paths.pulsar_racks
        call = self._session.call(f"read {path}")
        try:
            (size_bytes,) = call.sizes([path])
            if size_bytes > RACKS_BYTES_MAX:
                bad_record(path, f"{size_bytes:,} bytes, of {RACKS_BYTES_MAX:,} that are read")
                return None
            node = call.get(path) if size_bytes else None
        except ConfigError as error:
            bad_record(path, error)
            return None
        return None if node is None else node.data or None

    def close(self) -> None:
        """End the session; registrations go with it. Does nothing a second time, and in a forked child."""
        if not self._session.is_inherited:
            self._watches.close()
            self._session.close()


def read_layout(call: Call, location: ZooKeeperLocation) -> Layout:
    """Return the cluster's layout. Raises ConfigError if there is no cluster, or one of another layout."""
    paths = Paths(location.root)
    node = call.get(paths.layout)
    if node is None:
        call.sync(paths.root)
        node = call.get(paths.layout)
    if node is None:
        return _unwritten_layout(call, location, paths)
    try:
        layout = parse_layout(node.data)
    except ValueError as error:
        raise ConfigError(
            f"{paths.layout} says {str(error)!r}: that layout is not known"
        ) from error
    if location.layout not in (None, layout):
        raise ConfigError(
            f"{location.uri}: the cluster there has the layout {layout.value}; write zk+{layout.value}"
        )
    return layout


def _unwritten_layout(call: Call, location: ZooKeeperLocation, paths: Paths) -> Layout:
    """Return the layout of a cluster without the node LAYOUT. Raises ConfigError if there is no cluster.

    Pulsar's set-up makes a cluster's INSTANCEID and no LAYOUT, and Pulsar's own driver never reads or writes one: its
    ledgers lie as in the hierarchical layout. Apache's clients take the layout of their URI, or the hierarchical one.

    Without INSTANCEID nothing shows that this is the cluster of the bookies: its metadata may be lost. With it, a
    bookie compares the id with its cookies (INV-D1).
    """
    names = call.children(paths.root)
    if names is None:
        raise ConfigError(
            f"there is no cluster at {location.uri}: check the path. {NO_CLUSTER_REMEDY}"
        )
    if call.exists(paths.instance_id) is None:
        raise ConfigError(
            f"{location.uri} has neither LAYOUT nor INSTANCEID: that is no cluster, or one that lost metadata. Check"
            f" the path. {NO_CLUSTER_REMEDY}"
        )
    is_flat = any(flat_ledger_id(name) is not None for name in names)
    layout = location.layout or (Layout.FLAT if is_flat else Layout.HIERARCHICAL)
    if is_flat and layout is not Layout.FLAT:
        raise ConfigError(
            f"{location.uri}: LAYOUT is missing there, and ledgers lie as in the flat layout; write zk+flat"
        )
    return layout


def _write_layout(call: Call, paths: Paths, layout: Layout) -> None:
    """Write LAYOUT where it is missing, as Apache's bookies do. Raises ConfigError if another one came first."""
    while (node := call.get(paths.layout)) is None:
        call.again()
        with suppress(NodeExists, ResultUnknown):
            call.create(paths.layout, layout_text(layout))
    if node.data != layout_text(layout):
        raise ConfigError(
            f"{paths.layout} says {node.data.decode(errors='replace')!r} since a moment ago, not {layout.value}:"
            " start again"
        )


def find_paths(call: Call, root: str) -> Paths:
    """Return the paths of the cluster at `root`, with our own node by the name that it has there.

    Where both names are, a process of a version that knows only the old one came later: what it writes is not seen.
    """
    for is_sure in (False, True):
        if is_sure:
            # A server that is behind must not have us begin a second node beside the old one.
            call.sync(root)
        for name in (OWN_NAME, OWN_NAME_OLD):
            if call.exists(f"{root}/{name}") is not None:
                return Paths(root, name)
    return Paths(root)


def _instance_id(call: Call, paths: Paths) -> str:
    node = call.get(paths.instance_id)
    return "" if node is None else node.data.decode("utf-8", "replace")
