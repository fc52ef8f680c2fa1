"""Apache's nodes of under-replicated ledgers, below `<root>/underreplication`, and our marks that keep them up to date.

Apache's tools list the nodes, and its ReplicationWorker deletes a node after it has checked only the first and the last
entry of each fragment. So a node names bookies and nothing else, and which entries are missing stands in our own mark.
A range without an end has no node: Apache's worker would fence a ledger that its writer still writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from fastbk.errors import MetadataConflict, StorageError
from fastbk.meta.records import RecordStore, bad_record
from fastbk.meta.replica_marks import (
    READ_AT_ONCE,
    LedgerMark,
    ReplicaMarks,
    UnderreplicatedLedger,
)
from fastbk.meta.zookeeper_calls import BadVersion, Call, Node, NodeExists, NoNode, ResultUnknown
from fastbk.meta.zookeeper_session import Session
from fastbk.model import protobuf_text
from fastbk.model.ids import ID_MAX, BookieId, LedgerId
from fastbk.model.missing_replica import MissingReplica

APACHE_REASON = "marked by AutoRecovery"
"""Of a mark that only Apache's auditor or tools made."""
LAYOUT_BYTES = b'type: "BASIC"\nversion: 1\n'
_FOLDERS_AT_ONCE = 100
_LEDGER_NAME = re.compile(r"urL(\d{10,19})")


class UnderreplicationPaths:
    """The paths below the root of a cluster (as "/ledgers")."""

    def __init__(self, root: str) -> None:
        self.base = f"{root}/underreplication"
        self.layout = f"{self.base}/LAYOUT"
        self.ledgers = f"{self.base}/ledgers"
        self.locks = f"{self.base}/locks"
        self.disable = f"{self.base}/disable"
        self.lost_bookie_delay = f"{self.base}/lostBookieRecoveryDelay"
        self.election = f"{self.base}/auditorelection"

    def ledger(self, ledger_id: LedgerId) -> str:
        """Return where a ledger is marked: its id's four groups of 16 bits in hex, then the id in decimal."""
        groups = "/".join(f"{ledger_id >> shift & 0xFFFF:04x}" for shift in (48, 32, 16, 0))
        return f"{self.ledgers}/{groups}/urL{ledger_id:010d}"

    def lock(self, ledger_id: LedgerId) -> str:
        """Return the lock of who copies a ledger."""
        return f"{self.locks}/urL{ledger_id:010d}"

    def check(self, name: str) -> str:
        """Return where it stands when a check ended last."""
        return f"{self.base}/{name}"


def ledger_id_of(name: str) -> LedgerId | None:
    """Return the id of a node's name, None if it marks no ledger."""
    match = _LEDGER_NAME.fullmatch(name)
    return None if match is None or int(match[1]) > ID_MAX else int(match[1])


def ledger_bytes(ledger: UnderreplicatedLedger) -> bytes:
    """Return what the node of a marked ledger holds."""
    lines = [f'replica: "{protobuf_text.quoted(one.encode())}"\n' for one in ledger.missing]
    if ledger.marked_ms is not None:
        lines.append(f"ctime: {ledger.marked_ms}\n")
    return "".join(lines).encode()


def parse_ledger(ledger_id: LedgerId, raw: bytes) -> UnderreplicatedLedger:
    """Return what the node of a marked ledger says. Raises StorageError."""
    try:
        message = protobuf_text.parse(raw)
        missing = tuple(one.decode() for one in message.contents("replica"))
        word = message.word("ctime")
        marked_ms = None if word is None else int(word)
        if marked_ms is not None and not 0 <= marked_ms <= ID_MAX:
            raise ValueError(f"its time is {marked_ms}")
        return UnderreplicatedLedger(ledger_id, missing, marked_ms)
    except ValueError as error:
        raise StorageError(f"the mark of ledger {ledger_id} is damaged: {error}") from error


def _ledger(path: str, ledger_id: LedgerId, node: Node) -> UnderreplicatedLedger | None:
    """Return what the node of a marked ledger says; None: nobody can read it, which stops nothing (INV-M17)."""
    try:
        return parse_ledger(ledger_id, node.data)
    except StorageError as error:
        bad_record(path, error)
        return None


class UnderreplicatedNodes:
    """The nodes of marked ledgers below the root of a cluster."""

    def __init__(self, session: Session, root: str) -> None:
        self._session = session
        self._paths = UnderreplicationPaths(root)

    def ledgers(self) -> Iterator[UnderreplicatedLedger]:
        """Yield the marked ledgers by id, some folders at once; those that come or go meanwhile may be missed."""
        folders = [self._paths.ledgers]  # the next one is the last
        while folders:
            some = folders[: -_FOLDERS_AT_ONCE - 1 : -1]
            del folders[-_FOLDERS_AT_ONCE:]
            call = self._call("list ledgers that miss copies")
            below: list[str] = []
            found: list[tuple[LedgerId, str]] = []
            for folder, names in zip(some, call.children_all(some), strict=True):
                for name in sorted(names or []):
                    ledger_id = ledger_id_of(name)
                    path = f"{folder}/{name}"
                    if ledger_id is None:
                        below.append(path)
                    else:
                        found.append((ledger_id, path))
            folders += reversed(below)
            for at in range(0, len(found), READ_AT_ONCE):
                part = found[at : at + READ_AT_ONCE]
                nodes = self._call("read marks").get_all(path for _, path in part)
                for (ledger_id, path), node in zip(part, nodes, strict=True):
                    if node is not None and (marked := _ledger(path, ledger_id, node)) is not None:
                        yield marked

    def mark(self, ledger: UnderreplicatedLedger) -> None:
        """Mark a ledger, or add to its mark the bookies that are not in it yet."""
        call = self._call(f"mark ledger {ledger.ledger_id}")
        self._prepare(call)
        path = self._paths.ledger(ledger.ledger_id)
        while True:
            call.again()
            node = call.get(path)
            if node is None:
                call.ensure(path.rpartition("/")[0])
                with suppress(NoNode):
                    if self._create(call, path, ledger_bytes(ledger)):
                        return
                continue
            # What nobody can read says nothing: what is added takes its place.
            there = _ledger(path, ledger.ledger_id, node) or UnderreplicatedLedger(
                ledger.ledger_id, ()
            )
            added = [one for one in ledger.missing if one not in there.missing]
            if not added:
                return
            both = UnderreplicatedLedger(
                ledger.ledger_id, (*there.missing, *added), ledger.marked_ms or there.marked_ms
            )
            with suppress(MetadataConflict):
                self._put(call, path, ledger_bytes(both), node.version)
                return

    def unmark(self, ledger_id: LedgerId, repaired: Callable[[BookieId], bool]) -> None:
        """Remove the repaired bookies from a ledger's node, and the node with the last of them."""
        call = self._call(f"unmark ledger {ledger_id}")
        path = self._paths.ledger(ledger_id)
        while (node := call.get(path)) is not None:
            call.again()
            there = _ledger(path, ledger_id, node)
            if there is None:
                return
            left = tuple(one for one in there.missing if not repaired(one))
            if left == there.missing:
                return
            with suppress(MetadataConflict, NoNode, BadVersion, ResultUnknown):
                if left:
                    fewer = UnderreplicatedLedger(ledger_id, left, there.marked_ms)
                    self._put(call, path, ledger_bytes(fewer), node.version)
                else:
                    call.delete(path, node.version)
                return

    # --- requests ------------------------------------------------------------------------------------------------

    def _call(self, what: str) -> Call:
        return self._session.call(what)

    def _prepare(self, call: Call) -> None:
        """Make the parents as the first Java process of AutoRecovery does."""
        paths = self._paths
        if call.exists(paths.locks) is not None:
            return
        call.ensure(paths.base)
        self._create(call, paths.layout, LAYOUT_BYTES)
        call.ensure(paths.ledgers)
        call.ensure(paths.locks)

    def _create(self, call: Call, path: str, data: bytes) -> bool:
        """Make a node; return False if there is one. Raises NoNode."""
        while True:
            try:
                call.create(path, data)
            except NodeExists:
                return False
            except ResultUnknown:
                call.sync(path)
                if call.exists(path) is not None:
                    return True
            else:
                return True

    def _put(self, call: Call, path: str, data: bytes, version: int | None = None) -> None:
        """Set a node's data, or make it (not if a `version` is wanted). Raises MetadataConflict."""
        while True:
            call.again()
            try:
                call.set(path, data, -1 if version is None else version)
                return
            except (NoNode, BadVersion):
                if version is not None:
                    raise MetadataConflict(f"{path} was changed: read it again") from None
                if self._create(call, path, data):
                    return
            except ResultUnknown:
                call.sync(path)
                node = call.get(path)
                if node is not None and node.data == data:
                    return


class ZooKeeperReplicaMarks(ReplicaMarks):
    """Marks whose finished ranges Apache's tools see, too."""

    def __init__(self, records: RecordStore, nodes: UnderreplicatedNodes) -> None:
        super().__init__(records)
        self._nodes = nodes

    def foreign(self) -> Iterator[LedgerMark]:
        """Yield the marks that only Apache's AutoRecovery made: of all of a bookie's entries."""
        nodes = self._nodes.ledgers()
        while some := list(islice(nodes, READ_AT_ONCE)):
            own = self.read_all([one.ledger_id for one in some])
            for node, mark in zip(some, own, strict=True):
                if not mark.missing and not mark.fault:
                    since_ms = node.marked_ms or 0
                    yield LedgerMark(
                        node.ledger_id,
                        tuple(
                            MissingReplica(one, 0, None, APACHE_REASON, since_ms)
                            for one in dict.fromkeys(node.missing)
                        ),
                    )

    def under_replicated(self) -> Iterator[UnderreplicatedLedger]:
        """Yield the ledgers that Apache's nodes name, by id."""
        return self._nodes.ledgers()

    def _changed(
        self,
        ledger_id: LedgerId,
        marked: tuple[MissingReplica, ...],
        removed: Sequence[MissingReplica],
    ) -> None:
        ended = [one for one in marked if one.last_entry_id is not None]
        if ended:
            bookies = tuple(dict.fromkeys(one.bookie_id for one in ended))
            since_ms = min(one.marked_ms for one in ended)
            self._nodes.mark(UnderreplicatedLedger(ledger_id, bookies, since_ms))
        repaired = {one.bookie_id for one in removed} - {one.bookie_id for one in marked}
        if repaired:
            self._nodes.unmark(ledger_id, repaired.__contains__)
