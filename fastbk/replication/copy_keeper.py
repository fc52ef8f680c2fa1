"""What an open ledger's writer does about copies that bookies lack, one step at a time. Pure.

It marks them, and names replacements in the metadata for the copies that they were given of former
fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fastbk.errors import Error, LedgerClosed, LedgerFenced, NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.actions import MarkReplicas, Outcome
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.ensemble_change_result import check_open
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure
from fastbk.replication.under_replication import UnderReplicatedShare, UnderReplication, split
from fastbk.retry import Backoff, exact

# How often replacements are looked at that are being given entries of former fragments.
LOOK_S = 0.2
# After a step that the metadata store did not answer; doubled each time.
RETRY_MIN_S = 0.5
RETRY_MAX_S = 30.0
_TIMEOUT_S = 10.0


class ChangeMark(Procedure[VersionedLedger | None]):
    """Changes the ledger's mark once; fails with the store's error."""

    def __init__(self, add: tuple[MissingReplica, ...], remove: tuple[MissingReplica, ...]) -> None:
        super().__init__()
        self.add = add
        self.remove = remove

    def begin(self, now_s: float) -> None:
        """Ask for it."""
        self._act(self._answered, MarkReplicas, self.add, self.remove)

    def _answered(self, outcome: Outcome, now_s: float) -> None:
        if isinstance(outcome, Error):
            self._fail(outcome, now_s)
        else:
            self._finish(None, now_s)


class CopyKeeper:
    """Chooses the next step, one at a time: mark what is missing, name replacements, unmark.

    Attributes:
        owed: what members lack.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        adds: AddMachine,
        away: Collection[BookieId] = (),
        jitter: Callable[[float], float] = exact,
    ) -> None:
        """`away`: members that were away or read-only when the ledger was created. `jitter`: of pauses."""
        self.owed = UnderReplication(adds)
        self.owed.begin_without(away)
        self._ledger_id = ledger_id
        self._adds = adds
        self._step: NameReplacements | ChangeMark | None = None
        self._is_any = False
        self._retry_s = 0.0
        self._backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        self._jitter = jitter

    def replace(self, index: int, bookie_id: BookieId, reason: str, *, is_lost: bool) -> EntryId:
        """Put another bookie into a member's place; return the entry that its fragment begins with."""
        self._is_any = True
        self.owed.replace(index, bookie_id, reason, is_lost=is_lost)
        return self._adds.head

    def next_step(
        self, known: VersionedLedger, now_s: float
    ) -> tuple[Procedure[VersionedLedger | None] | None, float | None]:
        """Return what is to be run now, then `ended` to be called, and when to look again."""
        if self._step is not None:
            return None, None
        if not (self._is_any or self.owed.lost or any(self._adds.given_up)):
            return None, None
        if now_s < self._retry_s:
            return None, self._retry_s
        owed = self.owed
        owed.collect()
        wanted = owed.to_mark()
        if add := owed.unmarked(wanted):
            self._step = ChangeMark(add, ())
        elif owed.ready:
            self._step = NameReplacements(self._ledger_id, known, owed.ready, _TIMEOUT_S)
        elif remove := owed.outdated(wanted):
            self._step = ChangeMark((), remove)
        return self._step, now_s + LOOK_S if owed.is_copying else None

    def ended(self, now_s: float) -> VersionedLedger | None:
        """Take the outcome of the step; return the metadata as it was left, None if it was not changed."""
        step, self._step = self._step, None
        assert step is not None
        if step.error is None:
            self._backoff.restart()
            return self._done(step)
        self._unanswered(step)
        if isinstance(step.error, LedgerClosed | LedgerFenced | NoSuchLedger):
            # The writer learns of it by itself. What was marked stays marked.
            self.owed.ready.clear()
            return None
        self._retry_s = now_s + self._jitter(self._backoff.next_s())
        return None

    def _done(self, step: NameReplacements | ChangeMark) -> VersionedLedger | None:
        owed = self.owed
        if isinstance(step, NameReplacements):
            owed.named(step.shares, step.freed)
            return step.value()
        owed.mark_changed(step.add, step.remove)
        return None

    def give_up(self) -> None:
        """Begin no step any more: the ledger is about to be closed. One under way may still be done."""
        step, self._step = self._step, None
        if step is not None:
            self._unanswered(step)

    def _unanswered(self, step: NameReplacements | ChangeMark) -> None:
        if isinstance(step, ChangeMark):
            self.owed.mark_unanswered(step.add, step.remove)


class NameReplacements(Procedure[VersionedLedger | None]):
    """Splits fragments of an open ledger by compare-and-set, each after its share is whole (INV-M1, INV-E1, INV-E3).

    Fails with LedgerClosed or LedgerFenced once the ledger is not open any more: the mark stays for a repair then.

    Attributes:
        freed: when finished: what the metadata no longer names the former bookies for.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger,
        shares: Sequence[UnderReplicatedShare],
        timeout_s: float,
    ) -> None:
        super().__init__()
        self.shares = tuple(shares)
        self.freed: tuple[MissingReplica, ...] = ()
        self._ledger_id = ledger_id
        self._known = known
        self._timeout_s = timeout_s

    def begin(self, now_s: float) -> None:
        """Write what follows from what is known."""
        update = MetadataUpdate(self._decide, self._known, self._timeout_s)
        self._run_for(update, self._finish, now_s)

    def _decide(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        check_open(self._ledger_id, metadata)
        wanted, self.freed = split(metadata, self.shares)
        return wanted if self.freed else None
