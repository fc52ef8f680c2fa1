"""Asking bookies for a ledger's LAC: the last entry that is known to be acknowledged.

Only what a good digest covers counts (P19): the LAC inside an entry, or the body that a writer told explicitly. The
number a bookie puts beside them is never used. Entries of earlier fragments are acknowledged, so the result is never
below the last fragment's first entry - 1.

For the driver: ordinary procedures; the value is the LAC, -1 if nothing is acknowledged. They ask for ReadLac without
waiting, and Sleep. The metadata handed in should be fresh: they ask the last ensemble that it names. A closed ledger
needs no asking: its metadata says the last entry.
"""

from __future__ import annotations

from fastbk.errors import Error, NotEnoughBookies
from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.actions import Outcome, ReadLac, Reply
from fastbk.replication.quorum_coverage import QuorumCoverage
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status


class ReadLastConfirmed(QuorumCoverage[EntryId]):
    """Asks all of the last ensemble until the answers must contain every LAC that anybody has seen.

    Covered (INV-Q2): of every write set fewer than Qa members are left that did not answer. While too few answer,
    those that are away or busy are asked again; then it raises NotEnoughBookies, DigestMismatch or Unauthorized.

    Attributes:
        best: the highest LAC proven so far; of use also when the procedure fails.
        fenced: whether some bookie says that the ledger is fenced: its writer is finished.
    """

    def __init__(self, ledger_id: LedgerId, metadata: LedgerMetadata, pacing: Pacing) -> None:
        super().__init__(ledger_id, metadata, pacing, ReadLac())
        fragment = metadata.fragments[-1]
        self.best: EntryId = fragment.first_entry_id - 1
        self.fenced = False

    def _record_reply(self, index: int, outcome: Outcome) -> bool:
        if isinstance(outcome, Reply):
            self.fenced = self.fenced or outcome.fenced
            # What is proven counts even if something else in the answer is damaged; such an answer covers nothing.
            self.best = max([self.best, *outcome.lacs])
            if outcome.status == Status.OK and not outcome.damaged:
                return True
        bookie_id = self._ensemble[index]
        self._replicas.record_reply(bookie_id, outcome)
        return bookie_id in self._replicas.absent

    def _covered(self) -> EntryId:
        return self.best

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
            self._fail(self._error(), now_s)

    def _error(self) -> Error:
        error = super()._error()
        if isinstance(error, NotEnoughBookies):
            error.message = f"ledger {self._ledger_id}: no bookie told its LAC; try again"
        return error
