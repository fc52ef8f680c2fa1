"""What Apache's AutoRecovery keeps in ZooKeeper below `<root>/underreplication`, and how ours shares it.

LAYOUT                                  type "BASIC", version 1
ledgers/0000/0000/0000/0007/urL0000000007   a ledger that misses copies: the bookies that lack them, and since when
locks/urL0000000007                     ephemeral: who copies it just now
disable                                 AutoRecovery rests while it is there
lostBookieRecoveryDelay                 seconds between the loss of a bookie and the marking of its ledgers
auditorelection                         who was elected last
auditorelection/V_0000000003            ephemeral: a vote; the lowest number is the auditor
checkallledgersctime, placementpolicycheckctime, replicascheckctime     when each check ended last

All but the last three hold protobuf's text form. Every byte is as Apache's bookies write and read it.

A lock of ours has a second ephemeral node, `<own>/lock_holders/<id>`, made and deleted in the lock's transactions. It
tells the lock from one that another session made under the same name.

Decision 106.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.api import (
    UNREADABLE,
    Check,
    JoinedWatch,
    Watch,
    check_delay,
    stored_number,
    trigger_audit,
)
from fastbk.meta.records import RecordStore, bad_record
from fastbk.meta.replica_marks import (
    READ_AT_ONCE,
    LedgerMark,
    ReplicaMarks,
    UnderreplicatedLedger,
)
from fastbk.meta.zookeeper.session import (
    BadVersion,
    Call,
    Node,
    NodeExists,
    NoNode,
    Op,
    ResultUnknown,
    Session,
)
from fastbk.meta.zookeeper.watches import ZooKeeperWatches, children_at, node_at
from fastbk.model import protobuf
from fastbk.model.ids import ID_MAX, BookieId, LedgerId, check_ledger_id
from fastbk.model.missing_replica import MissingReplica

# --- marked ledgers ----------------------------------------------------------------------------------------------
#
# Apache's nodes of under-replicated ledgers, below `<root>/underreplication`, and our marks that
# keep them up to date.
#
# Apache's tools list the nodes, and its ReplicationWorker deletes a node after it has checked only
# the first and the last entry of each fragment. So a node names bookies and nothing else, and which
# entries are missing stands in our own mark. A range without an end has no node: Apache's worker
# would fence a ledger that its writer still writes.


APACHE_REASON = "marked by AutoRecovery"
"""Reason of a mark that only Apache's auditor or tools made."""
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
    lines = [f'replica: "{protobuf.quoted(one.encode())}"\n' for one in ledger.missing]
    if ledger.marked_ms is not None:
        lines.append(f"ctime: {ledger.marked_ms}\n")
    return "".join(lines).encode()


def parse_ledger(ledger_id: LedgerId, raw: bytes) -> UnderreplicatedLedger:
    """Return what the node of a marked ledger says. Raises StorageError."""
    try:
        message = protobuf.parse_text(raw)
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
            for start in range(0, len(found), READ_AT_ONCE):
                part = found[start : start + READ_AT_ONCE]
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


_VOTE_NAME = re.compile(r"V_(\d+)")
_READ_AT_ONCE = 500


# --- bytes -------------------------------------------------------------------------------------------------------


def bookie_bytes(name: str) -> bytes:
    """Return what a lock (a host's name) or a vote (a bookie's id) holds."""
    return f'bookieId: "{protobuf.quoted(name.encode())}"\n'.encode()


def parse_bookie(raw: bytes) -> BookieId:
    """Return whom a lock or a vote names, "" for nobody. Raises StorageError."""
    try:
        return (protobuf.parse_text(raw).content("bookieId") or b"").decode()
    except ValueError as error:
        raise StorageError(f"a lock or vote of AutoRecovery is damaged: {error}") from error


def check_time_bytes(time_ms: int) -> bytes:
    """Return what the node of a check holds, in protobuf's binary form."""
    out = bytearray()
    protobuf.put_int(out, 1, time_ms)
    return bytes(out)


def parse_check_time(raw: bytes) -> int:
    """Return when a check ended last, in ms since 1970; -1: it is not said. Raises StorageError."""
    try:
        return next((one.integer() for one in protobuf.fields(raw) if one.number == 1), -1)
    except ValueError as error:
        raise StorageError(f"the time of an auditor's check is damaged: {error}") from error


# --- votes and locks of this process -----------------------------------------------------------------------------


class ZooKeeperVote:
    """A vote: an ephemeral node. No number is given twice, so its path names no other vote."""

    def __init__(self, coordination: ZooKeeperCoordination, path: str, node: Node) -> None:
        self._coordination = coordination
        self._path = path
        self._node = node
        self._is_closed = self._is_gone = self._is_announced = False

    @property
    def is_lost(self) -> bool:
        """Whether the vote is gone, as far as this process knows."""
        return (
            self._is_closed or self._is_gone or not self._coordination.is_current(self._node.owner)
        )

    def is_elected(self) -> bool:
        """Return whether ours is the lowest vote, in a session that lives (INV-H1)."""
        if self.is_lost:
            return False
        lowest = self._coordination.lowest_vote(self._path, self._node)
        if lowest is None:
            self._is_gone = True
        is_elected = lowest is True and not self.is_lost
        if is_elected and not self._is_announced:
            self._coordination.announce(self._node.data)
            self._is_announced = True
        return is_elected

    def close(self) -> None:
        """Withdraw the vote."""
        if not self._is_closed:
            self._is_closed = True
            self._coordination.withdraw(self._path, self._node)


class ZooKeeperLock:
    """A ledger's lock: Apache's node, and the one that says that it is ours."""

    def __init__(
        self, coordination: ZooKeeperCoordination, ledger_id: LedgerId, holder_path: str
    ) -> None:
        self.ledger_id = ledger_id
        self._coordination = coordination
        self._holder_path = holder_path
        self._lock = threading.Lock()
        self._is_released = False

    def is_held(self) -> bool:
        """Return whether the lock is still held."""
        return not self._is_released and self._coordination.holds(self.ledger_id, self._holder_path)

    def release(self) -> None:
        """Give the lock back."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        self._coordination.release(self.ledger_id, self._holder_path)


# --- the nodes ---------------------------------------------------------------------------------------------------


class ZooKeeperCoordination(UnderreplicatedNodes):
    """A `Coordination` over the session of a store."""

    def __init__(self, session: Session, watches: ZooKeeperWatches, root: str, own: str) -> None:
        super().__init__(session, root)
        self._watches = watches
        self._holders = f"{own}/lock_holders"
        self._lock = threading.Lock()
        self._voting = threading.Lock()
        self._votes: set[str] = set()
        self._unreleased: dict[str, LedgerId] = {}
        self._is_layout_known = False

    # --- switches ------------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Return whether AutoRecovery is allowed to work."""
        return self._call("AutoRecovery's switch").exists(self._paths.disable) is None

    def disable(self) -> bool:
        """Let AutoRecovery rest."""
        call = self._call("disable AutoRecovery")
        self._prepare(call)
        return self._create(call, self._paths.disable, b"")

    def enable(self) -> bool:
        """Let AutoRecovery work again."""
        call = self._call("enable AutoRecovery")
        was_disabled = call.exists(self._paths.disable) is not None
        while call.exists(self._paths.disable) is not None:
            call.again()
            with suppress(NoNode, ResultUnknown):
                call.delete(self._paths.disable)
        return was_disabled

    def lost_bookie_delay_s(self) -> int | None:
        """Return how long a bookie may be away before its ledgers are marked."""
        node = self._call("the delay of lost bookies").get(self._paths.lost_bookie_delay)
        if node is None:
            return None
        return stored_number(self._paths.lost_bookie_delay, node.data)

    def set_lost_bookie_delay(self, seconds: int) -> None:
        """Set that delay. Raises ConfigError."""
        check_delay(seconds)
        call = self._call("set the delay of lost bookies")
        self._prepare(call)
        self._put(call, self._paths.lost_bookie_delay, str(seconds).encode())

    def trigger_audit(self) -> None:
        """Have the auditor check for lost bookies now."""
        trigger_audit(self)

    def check_time_ms(self, check: Check) -> int:
        """Return when a check ended last."""
        path = self._paths.check(check.value)
        node = self._call("the time of a check").get(path)
        try:
            return -1 if node is None else parse_check_time(node.data)
        except StorageError as error:
            bad_record(path, error)
            return -1

    def set_check_time(self, check: Check, time_ms: int) -> None:
        """Set that time."""
        call = self._call("set the time of a check")
        self._prepare(call)
        self._put(call, self._paths.check(check.value), check_time_bytes(time_ms))

    def watch_switches(self, callback: Callable[[], None]) -> Watch:
        """Call back after a write of the switch or of the delay."""
        paths = (self._paths.disable, self._paths.lost_bookie_delay)
        return JoinedWatch([self._watches.add(node_at(path), callback) for path in paths])

    # --- the auditor ---------------------------------------------------------------------------------------------

    def vote(self, voter: BookieId) -> ZooKeeperVote:
        """Stand for election."""
        call = self._call("vote for an auditor")
        data = bookie_bytes(voter)
        prefix = f"{self._paths.election}/V_"
        with self._voting:
            while True:
                call.again()
                path: str | None = None
                try:
                    path = call.create(prefix, data, ephemeral=True, sequence=True)
                except NoNode:
                    self._prepare(call)
                    call.ensure(self._paths.election)
                except ResultUnknown:
                    call.sync(self._paths.election)
                    path = self._vote_without_answer(call, data)
                node = None if path is None else call.get(path)
                if path is not None and node is not None:
                    self._votes.add(path)
                    return ZooKeeperVote(self, path, node)

    def _vote_without_answer(self, call: Call, data: bytes) -> str | None:
        """Return a vote of this session that no answer came for, None if it was not made."""
        for _, path in self._vote_paths(call):
            node = None if path in self._votes else call.get(path)
            if node is not None and node.data == data and self.is_current(node.owner):
                return path
        return None

    def _vote_paths(self, call: Call) -> list[tuple[int, str]]:
        names = call.children(self._paths.election) or []
        matches = [match for match in map(_VOTE_NAME.fullmatch, names) if match is not None]
        return sorted((int(one[1]), f"{self._paths.election}/{one[0]}") for one in matches)

    def auditor(self) -> BookieId | None:
        """Return the elected auditor."""
        call = self._call("the auditor")
        for _, path in self._vote_paths(call):
            node = call.get(path)
            if node is not None:
                return _bookie(path, node)
        return None

    def watch_election(self, callback: Callable[[], None]) -> Watch:
        """Call back after votes came or went."""
        return self._watches.add(children_at(self._paths.election), callback)

    def lowest_vote(self, path: str, vote: Node) -> bool | None:
        """Return whether a vote is the lowest one, None if it is gone; used by votes."""
        call = self._call("the auditor's election")
        # Not by a server that has not seen yet that our session ended.
        call.sync(self._paths.election)
        node = call.exists(path)
        if node is None or (node.created_zxid, node.owner) != (vote.created_zxid, vote.owner):
            return None
        return [one for _, one in self._vote_paths(call)][:1] == [path]

    def announce(self, data: bytes) -> None:
        """Write who was elected into the node above the votes, as Apache's elected auditor does; used by votes."""
        self._put(self._call("announce the auditor"), self._paths.election, data)

    def withdraw(self, path: str, vote: Node) -> None:
        """Remove a vote of this process; used by votes."""
        with self._voting:
            self._votes.discard(path)
        call = self._call("withdraw a vote")
        while (node := call.exists(path)) is not None and node.created_zxid == vote.created_zxid:
            call.again()
            with suppress(NoNode, ResultUnknown):
                call.delete(path)

    # --- locks ---------------------------------------------------------------------------------------------------

    def lock(self, ledger_id: LedgerId, holder: str) -> ZooKeeperLock | None:
        """Take the lock of a ledger."""
        path = self._paths.lock(check_ledger_id(ledger_id))
        holder_path = f"{self._holders}/{uuid.uuid4().hex}"
        ops = [
            Op.create(path, bookie_bytes(holder), ephemeral=True),
            Op.create(holder_path, ephemeral=True),
        ]
        call = self._call(f"lock ledger {ledger_id}")
        self._release_rest(call)
        while True:
            call.again()
            try:
                call.multi(ops)
            except NodeExists:
                return None
            except NoNode:
                self._prepare(call)
                call.ensure(self._holders)
            except ResultUnknown:
                call.sync(path)
                if self._is_ours(call, path, holder_path):
                    break
            else:
                break
        return ZooKeeperLock(self, ledger_id, holder_path)

    def _is_ours(self, call: Call, path: str, holder_path: str) -> bool:
        lock, holder = call.get_all([path, holder_path])
        # A server that is behind may still show what an earlier session of this process had.
        return _is_pair(lock, holder) and lock is not None and self.is_current(lock.owner)

    def holds(self, ledger_id: LedgerId, holder_path: str) -> bool:
        """Return whether a lock of this process is still there; used by locks."""
        call = self._session.impatient_call(f"the lock of ledger {ledger_id}")
        return self._is_ours(call, self._paths.lock(ledger_id), holder_path)

    def release(self, ledger_id: LedgerId, holder_path: str) -> None:
        """Remove a lock of this process, now, or with the next one: its session goes on. Used by locks (INV-H2)."""
        with self._lock:
            self._unreleased[holder_path] = ledger_id
        self._release_rest(self._call(f"release ledger {ledger_id}"))

    def _release_rest(self, call: Call) -> None:
        with self._lock:
            unreleased = list(self._unreleased.items())
        for holder_path, ledger_id in unreleased:
            path = self._paths.lock(ledger_id)
            while (nodes := call.get_all([path, holder_path]))[1] is not None:
                call.again()
                with suppress(NoNode, ResultUnknown):
                    if _is_pair(*nodes):
                        # Both or none: when the second node is gone, the lock is another session's by now.
                        call.multi([Op.delete(holder_path), Op.delete(path)])
                    else:
                        call.delete(holder_path)
            with self._lock:
                self._unreleased.pop(holder_path, None)

    def worker_of(self, ledger_id: LedgerId) -> str | None:
        """Return who holds a ledger's lock."""
        path = self._paths.lock(check_ledger_id(ledger_id))
        node = self._call("who copies a ledger").get(path)
        return None if node is None else _bookie(path, node)

    def locks(self) -> Iterator[tuple[LedgerId, str]]:
        """Yield all locks with their holders."""
        names = sorted(self._call("list locks").children(self._paths.locks) or [])
        found = [(ledger_id_of(name), f"{self._paths.locks}/{name}") for name in names]
        for start in range(0, len(found), _READ_AT_ONCE):
            some = found[start : start + _READ_AT_ONCE]
            nodes = self._call("read locks").get_all(path for _, path in some)
            for (ledger_id, path), node in zip(some, nodes, strict=True):
                if ledger_id is not None and node is not None:
                    yield ledger_id, _bookie(path, node)

    # --- requests ------------------------------------------------------------------------------------------------

    def is_current(self, session_id: int) -> bool:
        """Return whether a session is the one that this process has; used by votes."""
        return not self._session.is_closed and self._session.last_id == session_id

    def _call(self, what: str) -> Call:
        """Begin a call. Raises ConfigError where the nodes' layout is not known."""
        call = super()._call(what)
        if not self._is_layout_known:
            node = call.get(self._paths.layout)
            if node is not None:
                _check_layout(node.data)
                self._is_layout_known = True
        return call


def _bookie(path: str, node: Node) -> BookieId:
    """Return whom a lock or vote names; UNREADABLE: it counts all the same, as long as its session (INV-M17)."""
    try:
        return parse_bookie(node.data)
    except StorageError as error:
        bad_record(path, f"{error}; it goes with the session that made it")
        return UNREADABLE


def _is_pair(lock: Node | None, holder: Node | None) -> bool:
    """Return whether one transaction made both nodes."""
    return lock is not None and holder is not None and lock.created_zxid == holder.created_zxid


def _check_layout(raw: bytes) -> None:
    try:
        message = protobuf.parse_text(raw)
        found = (message.content("type"), message.word("version"))
    except ValueError:
        found = (raw[:100], None)
    if found != (b"BASIC", "1"):
        raise ConfigError(f"AutoRecovery's nodes have a layout that is not known: {found}")
