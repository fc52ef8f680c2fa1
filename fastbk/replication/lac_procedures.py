"""Asking bookies for a ledger's LAC: the last entry that is known to be acknowledged.

Only what a good digest covers counts (P19): the LAC inside an entry, or the body that a writer told explicitly. The
number a bookie puts beside them is never used. Entries of earlier fragments are acknowledged, so the result is never
below the last fragment's first entry - 1.

For the driver: ordinary procedures; the value is the LAC, -1 if nothing is acknowledged. They ask for AskLac without
waiting, and Sleep. The metadata handed in should be fresh: they ask the last ensemble that it names. A closed ledger
needs no asking: its metadata says the last entry.
"""

from __future__ import annotations

from fastbk.errors import Error, NotEnoughBookies
from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import lac_is_covered
from fastbk.replication.actions import AskLac, Outcome, Reply
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Backoff, Pacing, Replicas
from fastbk.wire.statuses import Status


class ReadLastConfirmed(Procedure[EntryId]):
    """Asks all of the last ensemble until the answers must contain every LAC that anybody has seen.

    Covered (INV-Q2): of every write set fewer than Qa members are left that did not answer. While too few answer,
    those that are away or busy are asked again; then it raises NotEnoughBookies, DigestMismatch or Unauthorized.

    Attributes:
        best: the highest LAC proven so far; of use also when the procedure fails.
        fenced: whether some bookie says that the ledger is fenced: its writer is finished.
    """

    def __init__(self, ledger_id: LedgerId, metadata: LedgerMetadata, pacing: Pacing) -> None:
        super().__init__()
        fragment = metadata.fragments[-1]
        self.best: EntryId = fragment.first_entry_id - 1
        self.fenced = False
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._pacing = pacing
        self._ensemble = fragment.ensemble
        self._valid: set[int] = set()
        self._asked = 0
        self._replicas = Replicas()

    def begin(self, now_s: float) -> None:
        """Ask all."""
        self._backoff = Backoff(self._pacing, now_s)
        self._ask_those(list(range(len(self._ensemble))))

    def _ask_those(self, indexes: list[int]) -> None:
        for index in indexes:

            def answered(outcome: Outcome, now_s: float, index: int = index) -> None:
                self._answered(index, outcome, now_s)

            self._asked += 1
            bookie_id = self._ensemble[index]
            self._ask(bookie_id, AskLac(), self._pacing.request_timeout_s, answered)

    def _answered(self, index: int, outcome: Outcome, now_s: float) -> None:
        self._asked -= 1
        bookie_id = self._ensemble[index]
        is_valid = False
        if isinstance(outcome, Reply):
            self.fenced = self.fenced or outcome.fenced
            # What is proven counts even if something else in the answer is damaged; such an answer covers nothing.
            self.best = max([self.best, *outcome.lacs])
            is_valid = outcome.status == Status.OK and not outcome.damaged
        if not is_valid:
            self._replicas.hear(bookie_id, outcome)
            is_valid = bookie_id in self._replicas.absent
        if self._replicas.closed is not None:
            self._give_up(now_s)
            return
        if is_valid:
            self._valid.add(index)
        if self._is_covered(self._valid):
            self._finish(self.best, now_s)
        elif self._asked == 0:
            self._all_answered(now_s)

    def _is_covered(self, answered: set[int]) -> bool:
        metadata = self._metadata
        return lac_is_covered(
            answered, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )

    def _all_answered(self, now_s: float) -> None:
        passing = [
            index for index, one in enumerate(self._ensemble) if one in self._replicas.passing
        ]
        # Waiting helps only if those that may come back would be enough.
        is_of_use = passing and self._is_covered(self._valid.union(passing))
        pause_s = self._backoff.next_pause_s(now_s) if is_of_use else None
        if pause_s is None:
            self._give_up(now_s)
            return

        def woken(_: Outcome, __: float) -> None:
            self._replicas.forget(self._ensemble[index] for index in passing)
            self._ask_those(passing)

        self._sleep(pause_s, woken)

    def _give_up(self, now_s: float) -> None:
        self._fail(self._error(), now_s)

    def _error(self) -> Error:
        what = f"ledger {self._ledger_id}: too few bookies told their LAC"
        return self._replicas.error(what, ledger_id=self._ledger_id)


class TryReadLastConfirmed(ReadLastConfirmed):
    """Asks all of the last ensemble once and takes the best that is proven, however few answer.

    The result may be older than what others have seen. Raises only when no bookie at all gave a valid answer.
    """

    def _all_answered(self, now_s: float) -> None:
        if self._valid:
            self._finish(self.best, now_s)
        else:
            self._give_up(now_s)

    def _error(self) -> Error:
        error = super()._error()
        if isinstance(error, NotEnoughBookies):
            error.message = f"ledger {self._ledger_id}: no bookie told its LAC; try again"
        return error
