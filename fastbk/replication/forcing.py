"""Force: have the bookies confirm that everything they took of a ledger before is durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fastbk.errors import Error, NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.quorum import every_write_set_has
from fastbk.replication.actions import ForceLedger, Outcome, Reply
from fastbk.replication.procedure import Procedure
from fastbk.wire.statuses import Status, status_name


@dataclass(frozen=True, slots=True)
class ForcedTo:
    """Everything up to an entry was forced; `length`: bytes of data up to it."""

    entry_id: EntryId
    length: int


class ForceProcedure(Procedure[ForcedTo]):
    """Asks every member of the ensemble to force the ledger; made by `WriterMachine.forcing`.

    An ordinary ledger's acknowledged entries are durable already; there it needs the ack quorum of every write set.
    With deferred sync all members have to confirm, and one failure fails it. NotEnoughBookies with each bookie's
    reason as soon as it cannot succeed any more; the same call may succeed later.

    Args:
        to: what is acknowledged when it begins; the result.
        holds: by index, whether that bookie has acknowledged entries of this ledger. One that has not may say
            NO_LEDGER; from another that means loss.
        needs_all: deferred sync.
        timeout_s: of each request.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[BookieId],
        write_quorum: int,
        ack_quorum: int,
        to: ForcedTo,
        *,
        holds: Sequence[bool],
        needs_all: bool,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._ledger_id = ledger_id
        self._ensemble = tuple(ensemble)
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._to = to
        self._holds = tuple(holds)
        self._needs_all = needs_all
        self._timeout_s = timeout_s
        self._good = [False] * len(self._ensemble)
        self._silent = [True] * len(self._ensemble)
        self._failed: dict[BookieId, str] = {}

    def begin(self, now_s: float) -> None:
        """Ask all of them at once."""
        for index, bookie_id in enumerate(self._ensemble):
            answered = partial(self._answered, index)
            self._ask(bookie_id, ForceLedger(), self._timeout_s, answered)

    def _answered(self, index: int, outcome: Outcome, now_s: float) -> None:
        self._silent[index] = False
        if isinstance(outcome, Reply):
            status = outcome.status
            if status == Status.OK or (status == Status.NO_LEDGER and not self._holds[index]):
                self._good[index] = True
            else:
                self._failed[self._ensemble[index]] = status_name(status)
        else:
            assert isinstance(outcome, Error)
            self._failed[self._ensemble[index]] = str(outcome)
        if self._is_enough(self._good):
            self._finish(self._to, now_s)
        elif not self._is_enough([a or b for a, b in zip(self._good, self._silent, strict=True)]):
            self._fail(
                NotEnoughBookies(
                    f"ledger {self._ledger_id}: too few bookies confirmed the force; try again",
                    ledger_id=self._ledger_id,
                    entry_id=self._to.entry_id,
                    outcome="unknown",
                    replicas=self._failed,
                ),
                now_s,
            )

    def _is_enough(self, good: Sequence[bool]) -> bool:
        if self._needs_all:
            return all(good)
        return every_write_set_has(good, self._write_quorum, self._ack_quorum)
