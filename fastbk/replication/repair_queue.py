"""Repairs of what bookies lack of closed ledgers: one step, and the order of steps. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import ID_MAX, BookieId, LedgerId
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.actions import MarkReplicas, Outcome
from fastbk.replication.ledger_repair import LedgerRepaired, RepairLedger
from fastbk.replication.procedure import Procedure
from fastbk.replication.repair_options import RepairOptions
from fastbk.retry import Backoff

LEDGERS_MAX = 1000
"""Ledgers that wait for a repair at most; others stay marked."""
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 10.0
_OPTIONS = RepairOptions(request_timeout_s=5.0, patience_s=5.0)


class RepairMissing(Procedure[bool]):
    """Repairs marked entries of a closed ledger at one bookie, and removes the mark.

    The result is whether nothing of the mark is left to do, as with a ledger that was deleted.

    Attributes:
        reason: why something is left to do, "" where nothing is.
    """

    def __init__(self, ledger_id: LedgerId, missing: MissingReplica) -> None:
        super().__init__()
        self.reason = ""
        self._ledger_id = ledger_id
        self._missing = missing

    def begin(self, now_s: float) -> None:
        """Heal the bookie's copies."""
        missing = self._missing
        last = ID_MAX if missing.last_entry_id is None else missing.last_entry_id
        ranges = [(missing.first_entry_id, last)]
        healing = RepairLedger(self._ledger_id, missing.bookie_id, _OPTIONS, ranges)
        self._run_for(healing, self._healed, now_s)

    def _healed(self, healed: LedgerRepaired, now_s: float) -> None:
        if healed.is_deleted:
            self._finish(True, now_s)
        elif healed.is_open or not healed.is_whole:
            self.reason = healed.why_not_whole
            self._finish(False, now_s)
        else:
            self._act(self._unmarked, MarkReplicas, (), (self._missing,))

    def _unmarked(self, outcome: Outcome, now_s: float) -> None:
        if isinstance(outcome, Error) and not isinstance(outcome, NoSuchLedger):
            self._fail(outcome, now_s)
        else:
            self._finish(True, now_s)


class RepairQueue:
    """What one client has to repair: one repair after the other, in rounds with pauses.

    Attributes:
        due_s: when the next round is to begin.
    """

    def __init__(self) -> None:
        self.due_s = 0.0
        self._waiting: dict[LedgerId, tuple[MissingReplica, ...]] = {}
        self._round: deque[tuple[LedgerId, MissingReplica]] = deque()
        self._backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)

    def __len__(self) -> int:
        """Return how many ledgers wait."""
        return len(self._waiting)

    def add(self, ledger_id: LedgerId, missing: tuple[MissingReplica, ...]) -> None:
        """Repair these when their bookies are there."""
        if missing and (len(self._waiting) < LEDGERS_MAX or ledger_id in self._waiting):
            self._waiting[ledger_id] = missing
            self.hurry()

    def hurry(self) -> None:
        """Begin the next round at once: there is more to do, or bookies came."""
        self.due_s = 0.0
        self._backoff.restart()

    def clear(self) -> None:
        """Give up everything; it stays marked."""
        self._waiting.clear()
        self._round.clear()

    def begin_round(self, writable: Collection[BookieId], now_s: float) -> None:
        """Take what can be tried now: the bookies `writable` are registered and take adds."""
        self.due_s = now_s + self._backoff.next_s()
        self._round.extend(
            (ledger_id, one)
            for ledger_id, missing in self._waiting.items()
            for one in missing
            if one.bookie_id in writable
        )

    def next(self) -> tuple[LedgerId, MissingReplica] | None:
        """Return the next repair of this round, None at its end."""
        return self._round.popleft() if self._round else None

    def repaired(self, ledger_id: LedgerId, missing: MissingReplica) -> None:
        """Nothing of this is left to do."""
        left = tuple(one for one in self._waiting.get(ledger_id, ()) if one != missing)
        self._backoff.restart()
        if left:
            self._waiting[ledger_id] = left
        else:
            self._waiting.pop(ledger_id, None)

    def deleted(self, ledger_id: LedgerId) -> None:
        """There is no such ledger any more."""
        self._waiting.pop(ledger_id, None)
