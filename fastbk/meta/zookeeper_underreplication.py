"""What Apache's AutoRecovery keeps in ZooKeeper below `<root>/underreplication`: read, and what operators change of it.

LAYOUT                                  type "BASIC", version 1
ledgers/0000/0000/0000/0007/urL0000000007   a ledger that misses copies: the bookies that lack them, and since when
locks/urL0000000007                     ephemeral: who copies it just now
disable                                 AutoRecovery rests while it is there
lostBookieRecoveryDelay                 seconds between the loss of a bookie and the marking of its ledgers
auditorelection/V_0000000003            ephemeral: a vote; the lowest number is the auditor
checkallledgersctime, placementpolicycheckctime, replicascheckctime     when each check ended last

All but the last three hold protobuf's text form. Every byte is as Apache's bookies write and read it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper_calls import BadVersion, Call, NodeExists, NoNode, ResultUnknown
from fastbk.meta.zookeeper_tool import ClusterSession
from fastbk.model import protobuf, protobuf_text
from fastbk.model.ids import BookieId, LedgerId

LAYOUT_BYTES = b'type: "BASIC"\nversion: 1\n'
_LEDGER_NAME = re.compile(r"urL(\d{10,19})")
_VOTE_NAME = re.compile(r"V_(\d+)")


class Check(enum.Enum):
    """A check of the auditor; the values are the names of the nodes that tell when it ended last."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A ledger that misses copies.

    Attributes:
        missing: the bookies that lack them, as they were told; one may stand there several times.
        marked_ms: since when, by the clock of who marked it; None where that is not kept.
    """

    ledger_id: LedgerId
    missing: tuple[BookieId, ...]
    marked_ms: int | None = None


# --- paths and bytes ---------------------------------------------------------------------------------------------


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

    def check(self, check: Check) -> str:
        """Return where it stands when a check ended last."""
        return f"{self.base}/{check.value}"


def ledger_id_of(name: str) -> LedgerId | None:
    """Return the id of a node's name, None if it marks no ledger."""
    match = _LEDGER_NAME.fullmatch(name)
    return None if match is None else int(match[1])


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
        return UnderreplicatedLedger(ledger_id, missing, None if word is None else int(word))
    except ValueError as error:
        raise StorageError(f"the mark of ledger {ledger_id} is damaged: {error}") from error


def bookie_bytes(bookie_id: BookieId) -> bytes:
    """Return what a lock, or a vote for the auditor, holds."""
    return f'bookieId: "{protobuf_text.quoted(bookie_id.encode())}"\n'.encode()


def parse_bookie(raw: bytes) -> BookieId:
    """Return whom a lock or a vote names, "" for nobody. Raises StorageError."""
    try:
        return (protobuf_text.parse(raw).content("bookieId") or b"").decode()
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


# --- the nodes ---------------------------------------------------------------------------------------------------


class Underreplication(ClusterSession):
    """AutoRecovery's state of one cluster. A session of its own; every call ends within about `timeout_s` seconds."""

    def __init__(self, location: ZooKeeperLocation, timeout_s: float = 10.0) -> None:
        """Connect. Raises ConfigError where there is no cluster or a layout that is not known, MetadataUnavailable."""
        self._paths = UnderreplicationPaths(location.root)
        super().__init__(location, timeout_s)

    def _check(self, call: Call) -> None:
        node = call.get(self._paths.layout)
        if node is not None:
            _check_layout(node.data)

    # --- switches ------------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Return whether AutoRecovery is allowed to work (somebody has to run it besides)."""
        return self._call("AutoRecovery's switch").exists(self._paths.disable) is None

    def disable(self) -> bool:
        """Let AutoRecovery rest; return False if it did so before."""
        call = self._call("disable AutoRecovery")
        self._prepare(call)
        return self._create(call, self._paths.disable, b"")

    def enable(self) -> bool:
        """Let AutoRecovery work again; return False if it was allowed to before."""
        call = self._call("enable AutoRecovery")
        was_disabled = call.exists(self._paths.disable) is not None
        while call.exists(self._paths.disable) is not None:
            call.again()
            with suppress(NoNode, ResultUnknown):
                call.delete(self._paths.disable)
        return was_disabled

    def lost_bookie_delay_s(self) -> int | None:
        """Return how long a bookie may be away before its ledgers are marked; None: no auditor ever set it."""
        node = self._call("the delay of lost bookies").get(self._paths.lost_bookie_delay)
        if node is None:
            return None
        try:
            return int(node.data)
        except ValueError as error:
            path = self._paths.lost_bookie_delay
            raise StorageError(f"{path} holds no number: {node.data[:100]!r}") from error

    def set_lost_bookie_delay(self, seconds: int) -> None:
        """Set that delay. The auditor looks for lost bookies at every write, also one of the same number."""
        call = self._call("set the delay of lost bookies")
        self._prepare(call)
        self._put(call, self._paths.lost_bookie_delay, str(seconds).encode())

    def check_time_ms(self, check: Check) -> int:
        """Return when a check ended last, in ms since 1970; -1: never."""
        node = self._call("the time of a check").get(self._paths.check(check))
        return -1 if node is None else parse_check_time(node.data)

    def set_check_time(self, check: Check, time_ms: int) -> None:
        """Set that time; an old one lets the next auditor check at once."""
        call = self._call("set the time of a check")
        self._prepare(call)
        self._put(call, self._paths.check(check), check_time_bytes(time_ms))

    # --- who and what --------------------------------------------------------------------------------------------

    def auditor(self) -> BookieId | None:
        """Return the elected auditor, None if there is none."""
        call = self._call("the auditor")
        votes = []
        for name in call.children(self._paths.election) or []:
            match = _VOTE_NAME.fullmatch(name)
            if match is not None:
                votes.append((int(match[1]), name))
        for _, name in sorted(votes):
            node = call.get(f"{self._paths.election}/{name}")
            if node is not None:
                return parse_bookie(node.data)
        return None

    def ledgers(
        self, wanted: Callable[[UnderreplicatedLedger], bool] = lambda _: True
    ) -> Iterator[UnderreplicatedLedger]:
        """Yield the marked ledgers, folder by folder; those that come or go meanwhile may be missed."""
        folders = [self._paths.ledgers]
        while folders:
            folder = folders.pop()
            call = self._call("list ledgers that miss copies")
            below: list[str] = []
            for name in sorted(call.children(folder) or []):
                path = f"{folder}/{name}"
                ledger_id = ledger_id_of(name)
                if ledger_id is None:
                    below.append(path)
                    continue
                node = call.get(path)
                if node is not None:
                    found = parse_ledger(ledger_id, node.data)
                    if wanted(found):
                        yield found
            folders += reversed(below)

    def worker_of(self, ledger_id: LedgerId) -> str | None:
        """Return who copies a ledger just now (a host's name), None if nobody does."""
        node = self._call("who copies a ledger").get(self._paths.lock(ledger_id))
        return None if node is None else parse_bookie(node.data)

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
            there = parse_ledger(ledger.ledger_id, node.data)
            added = [one for one in ledger.missing if one not in there.missing]
            if not added:
                return
            both = UnderreplicatedLedger(
                ledger.ledger_id, (*there.missing, *added), ledger.marked_ms or there.marked_ms
            )
            with suppress(MetadataConflict):
                self._put(call, path, ledger_bytes(both), node.version)
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


def _check_layout(raw: bytes) -> None:
    try:
        message = protobuf_text.parse(raw)
        found = (message.content("type"), message.word("version"))
    except ValueError:
        found = (raw[:100], None)
    if found != (b"BASIC", "1"):
        raise ConfigError(f"AutoRecovery's nodes have a layout that is not known: {found}")
