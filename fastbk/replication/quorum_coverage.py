"""Asking the whole last ensemble one question until enough have answered: what fencing and the LAC have in common.

Covered (INV-Q2): of every write set fewer than Qa members are left that did not answer. So whatever Qa bookies have
done together is known to one that answered, and those that are left can do nothing together.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TypeVar

from fastbk.errors import Error
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import lac_is_covered
from fastbk.replication.actions import BookieRequest, Outcome
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Pacing, Replicas

T = TypeVar("T")


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
        return lac_is_covered(
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
