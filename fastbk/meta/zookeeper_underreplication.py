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
from contextlib import suppress

from fastbk.errors import ConfigError, StorageError
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper_admin import ClusterSession
from fastbk.meta.zookeeper_calls import Call, NoNode, ResultUnknown
from fastbk.meta.zookeeper_marks import (
    UnderreplicatedNodes,
    UnderreplicationPaths,
)
from fastbk.model import protobuf, protobuf_text
from fastbk.model.ids import BookieId, LedgerId

_VOTE_NAME = re.compile(r"V_(\d+)")


class Check(enum.Enum):
    """A check of the auditor; the values are the names of the nodes that tell when it ended last."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


# --- bytes -------------------------------------------------------------------------------------------------------


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


class Underreplication(UnderreplicatedNodes, ClusterSession):
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

    def trigger_audit(self) -> None:
        """Have the auditor look for lost bookies now. Raises ConfigError if there is none that would."""
        if not self.is_enabled():
            raise ConfigError("Autorecovery is disabled. So giving up!")
        if self.auditor() is None:
            raise ConfigError("No auditor elected, though Autorecovery is enabled. So giving up.")
        # The auditor listens to writes of this node; the number stays.
        self.set_lost_bookie_delay(self.lost_bookie_delay_s() or 0)

    def check_time_ms(self, check: Check) -> int:
        """Return when a check ended last, in ms since 1970; -1: never."""
        node = self._call("the time of a check").get(self._paths.check(check.value))
        return -1 if node is None else parse_check_time(node.data)

    def set_check_time(self, check: Check, time_ms: int) -> None:
        """Set that time; an old one lets the next auditor check at once."""
        call = self._call("set the time of a check")
        self._prepare(call)
        self._put(call, self._paths.check(check.value), check_time_bytes(time_ms))

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

    def worker_of(self, ledger_id: LedgerId) -> str | None:
        """Return who copies a ledger just now (a host's name), None if nobody does."""
        node = self._call("who copies a ledger").get(self._paths.lock(ledger_id))
        return None if node is None else parse_bookie(node.data)


def _check_layout(raw: bytes) -> None:
    try:
        message = protobuf_text.parse(raw)
        found = (message.content("type"), message.word("version"))
    except ValueError:
        found = (raw[:100], None)
    if found != (b"BASIC", "1"):
        raise ConfigError(f"AutoRecovery's nodes have a layout that is not known: {found}")
