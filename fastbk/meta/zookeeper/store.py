"""The metadata store of a cluster: ZooKeeper, in Apache BookKeeper's layout and bytes. See `fastbk.meta.api`.

Beside Apache's nodes there are a few of our own under `<root>/ID-fastbk`; `fastbk.meta.zookeeper.paths` shows them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from fastbk.errors import ConfigError
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
)
from fastbk.meta.hold import new_hold, place_hold
from fastbk.meta.subscriptions import WatchHandle
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
from fastbk.meta.zookeeper.records import ZooKeeperRecords
from fastbk.meta.zookeeper.session import (
    SESSION_TIMEOUT_S,
    Call,
    NodeExists,
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
