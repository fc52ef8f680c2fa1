"""How processes of AutoRecovery share the work of one cluster: its switches, the auditor's election, locks of ledgers.

Every metadata store has a `Coordination`. In ZooKeeper it is Apache's nodes and bytes
(`fastbk.meta.zookeeper.underreplication`), so fastbk's processes and Apache's exclude one another. In sqlite and in
memory it is records with leases (`fastbk.meta.sqlite.coordination`).

Calls block, are safe in any thread, and raise the store's errors (`fastbk.meta.api`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from fastbk.errors import ConfigError
from fastbk.meta.records import bad_record
from fastbk.model.ids import BookieId, LedgerId
from fastbk.option_checks import checked_integer

if TYPE_CHECKING:
    from fastbk.meta.api import Watch


UNREADABLE = "unreadable"
"""Stands for the name of whoever made a vote or lock that nobody can read."""
_NUMBER = re.compile(rb"\d{1,18}")


def stored_number(path: str, raw: bytes) -> int | None:
    """Return the number in a switch or the time of a check; None: it is none, so what holds without it holds (INV-M17).

    Without its delay a lost bookie waits as long as by default.
    """
    if _NUMBER.fullmatch(raw.strip()):
        return int(raw)
    bad_record(path, f"{raw[:100]!r} is no number; the default holds: setting it anew repairs it")
    return None


class Check(enum.Enum):
    """A check of the auditor; the values name where it stands when the check ended last."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class Vote(Protocol):
    """A vote in the auditor's election. It lasts until `close`, or until the session or lease behind it ends."""

    def is_elected(self) -> bool:
        """Return whether the voter is the auditor, by the store's own word (INV-H1). False once the session ended.

        The answer is as of now: ask again before each step that only the auditor may take.
        """

    @property
    def is_lost(self) -> bool:
        """Whether the vote is gone, as far as this process knows: a new vote is needed. Makes no request."""

    def close(self) -> None:
        """Withdraw the vote. A second call does nothing."""


class LedgerLock(Protocol):
    """The right to change one ledger's copies, until `release` or the end of the session or lease behind it."""

    ledger_id: LedgerId

    def is_held(self) -> bool:
        """Return whether the lock is still held; one read. Ask now and then while work goes on."""

    def release(self) -> None:
        """Give the lock back if it is still held (INV-H2). A second call does nothing."""


class Coordination(Protocol):
    """AutoRecovery's coordination in one metadata store."""

    # --- switches ------------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Return whether AutoRecovery is allowed to work (somebody has to run it besides)."""

    def enable(self) -> bool:
        """Let AutoRecovery work again; return False if it was allowed to before."""

    def disable(self) -> bool:
        """Let AutoRecovery rest; return False if it did so before."""

    def lost_bookie_delay_s(self) -> int | None:
        """Return how long a bookie may be away before its ledgers are marked; None: it was never set."""

    def set_lost_bookie_delay(self, seconds: int) -> None:
        """Set that delay, in seconds. The auditor checks for lost bookies at every write, also of the same number."""

    def trigger_audit(self) -> None:
        """Have the auditor check for lost bookies now. Raises ConfigError if there is none that would."""

    def check_time_ms(self, check: Check) -> int:
        """Return when a check ended last, in ms since 1970; -1: never."""

    def set_check_time(self, check: Check, time_ms: int) -> None:
        """Set that time; an old one lets the next auditor check at once."""

    def watch_switches(self, callback: Callable[[], None]) -> Watch:
        """Call back after AutoRecovery was enabled or disabled, or the delay was written, from now on."""

    # --- the auditor ---------------------------------------------------------------------------------------------

    def vote(self, voter: BookieId) -> Vote:
        """Stand for election. Of all votes the oldest one is elected."""

    def auditor(self) -> BookieId | None:
        """Return the elected auditor, None if there is none."""

    def watch_election(self, callback: Callable[[], None]) -> Watch:
        """Call back after votes came or went, from now on."""

    # --- locks ---------------------------------------------------------------------------------------------------

    def lock(self, ledger_id: LedgerId, holder: str) -> LedgerLock | None:
        """Take the lock of a ledger; None: somebody holds it, maybe this process. `holder`: a host's name."""

    def worker_of(self, ledger_id: LedgerId) -> str | None:
        """Return who holds a ledger's lock, None if nobody does."""

    def locks(self) -> Iterator[tuple[LedgerId, str]]:
        """Yield all locks with their holders; those that come or go meanwhile may be missed."""


class JoinedWatch:
    """Several watches that end together."""

    def __init__(self, watches: list[Watch]) -> None:
        self._watches = watches

    def close(self) -> None:
        """End all of them."""
        for one in self._watches:
            one.close()


DELAY_S_MAX = 2**31 - 1
"""Of lost bookies: what Apache's auditor reads."""


def check_delay(seconds: object) -> int:
    """Return a delay of lost bookies that can be stored. Raises ConfigError: every way in comes here.

    Apache's auditor takes no other; a negative one would end each of its passes, and ours.
    """
    return checked_integer("lostBookieRecoveryDelay", seconds, 0, DELAY_S_MAX)


def trigger_audit(coordination: Coordination) -> None:
    """Do what `Coordination.trigger_audit` says: the auditor listens to writes of the delay; the number stays."""
    if not coordination.is_enabled():
        raise ConfigError("Autorecovery is disabled. So giving up!")
    if coordination.auditor() is None:
        raise ConfigError("No auditor elected, though Autorecovery is enabled. So giving up.")
    coordination.set_lost_bookie_delay(max(coordination.lost_bookie_delay_s() or 0, 0))
