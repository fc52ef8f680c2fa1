"""Asking bookies for a ledger's LAC: the last entry that is known to be acknowledged.

Only what a good digest covers counts (the simulator's script P19): the LAC inside an entry, or the body that a writer
sent explicitly. The number a bookie puts beside them is never used. Entries of earlier fragments are acknowledged, so
the result is never below the last fragment's first entry - 1.

For the driver: ordinary procedures; the value is the LAC, -1 if nothing is acknowledged. They ask for ReadLac without
waiting, and Sleep. The metadata handed in should be fresh: they ask the last ensemble that it names. A closed ledger
needs no asking: its metadata says the last entry.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TypeVar

from fastbk.errors import Error, NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import meets_every_ack_quorum
from fastbk.replication.actions import BookieRequest, Outcome, ReadLac, Reply
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Pacing, Replicas
from fastbk.wire.statuses import Status

T = TypeVar("T")

# --- whose answers suffice ------------------------------------------------------------------------
#
# Asking the whole last ensemble one question until enough have answered: what fencing and the LAC
# have in common.
#
# Covered (INV-Q2): of every write set fewer than Qa members are left that did not answer. So
# whatever Qa bookies have done together is known to one that answered, and those that are left can
# do nothing together.


class QuorumCoverage(Procedure[T]):
    """Asks every member of the last ensemble `request`; those that are away or busy again while that may be of use.

    A subclass says which answers are valid (`_record_reply`), what the result is (`_covered`), and
    how it fails (`_error`).
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        pacing: Pacing,
        request: BookieRequest,
        lost: Collection[BookieId] = (),
    ) -> None:
        """`lost`: members that are not asked, as they are known to be gone."""
        super().__init__()
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._pacing = pacing
        self._request = request
        self._ensemble = metadata.fragments[-1].ensemble
        self._valid: set[int] = set()
        self._asked = 0
        self._replicas = Replicas()
        self._lost = lost

    def begin(self, now_s: float) -> None:
        """Ask all but the lost ones."""
        self._backoff = self._pacing.backoff(now_s)
        self._replicas.said.update((one, "lost: not asked") for one in self._lost)
        asked = [at for at, one in enumerate(self._ensemble) if one not in self._lost]
        if asked:
            self._request_from(asked)
        else:
            self._fail(self._error(), now_s)

    # --- for subclasses ----------------------------------------------------------------------------------------

    def _record_reply(self, index: int, outcome: Outcome) -> bool:
        """Take what member `index` answered; return whether it counts. Others are to be told to `_replicas`."""
        raise NotImplementedError

    def _is_hopeless(self) -> bool:
        """Return whether what was heard ends it at once."""
        return self._replicas.closed is not None

    def _covered(self) -> T:
        """Return the result."""
        raise NotImplementedError

    def _error(self) -> Error:
        """Return the error when too few answered."""
        raise NotImplementedError

    # --- inside ------------------------------------------------------------------------------------------------

    def _request_from(self, indexes: list[int]) -> None:
        self._asked += len(indexes)
        for index in indexes:
            answered = partial(self._answered, index)
            timeout_s = self._pacing.request_timeout_s
            self._ask(self._ensemble[index], self._request, timeout_s, answered)

    def _answered(self, index: int, outcome: Outcome, now_s: float) -> None:
        self._asked -= 1
        is_valid = self._record_reply(index, outcome)
        if self._is_hopeless():
            self._fail(self._error(), now_s)
            return
        if is_valid:
            self._valid.add(index)
        if self._is_covered(self._valid):
            self._finish(self._covered(), now_s)
        elif self._asked == 0:
            self._all_answered(now_s)

    def _is_covered(self, answered: set[int]) -> bool:
        metadata = self._metadata
        return meets_every_ack_quorum(
            answered, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )

    def _all_answered(self, now_s: float) -> None:
        passing = [
            index for index, one in enumerate(self._ensemble) if one in self._replicas.passing
        ]
        # Waiting helps only if those that may come back would be enough.
        is_of_use = passing and self._is_covered(self._valid.union(passing))
        pause_s = self._backoff.next_in_time_s(now_s) if is_of_use else None
        if pause_s is None:
            self._fail(self._error(), now_s)
            return

        def woken(_: float) -> None:
            self._replicas.forget(self._ensemble[index] for index in passing)
            self._request_from(passing)

        self._retry_in(pause_s, woken)


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
