"""What the replicas that were asked for one thing said instead of it, who may say otherwise soon, and what it proves.

Three kinds of bad answers must never be mixed up (INV-Q2): "I never acknowledged it" (NO_ENTRY, NO_LEDGER) is a proof,
since bookies say it only from a healthy index (INV-X1); a bookie that is away or busy may answer in a moment;
everything else (CANNOT_TELL, IO_ERROR, a copy that fails its digest, another key) proves nothing and will not change
by itself.

`QuorumCoverage` asks the whole last ensemble one question until the answers suffice: fencing and the LAC are that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastbk.errors import (
    ClientClosed,
    DigestMismatch,
    Error,
    MetadataUnavailable,
    NotEnoughBookies,
    QuorumTimeout,
    Unauthorized,
)
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.ack_domains import deciding
from fastbk.replication.procedure import BookieRequest, Found, Outcome, Procedure, Reply
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status, status_name

T = TypeVar("T")

ABSENT_STATUSES = (Status.NO_ENTRY, Status.NO_LEDGER)
# Answers of a bookie that may give what was asked for a moment later.
PASSING_STATUSES = (Status.NOT_READY, Status.TOO_MANY_REQUESTS)
BAD_DIGEST = "the copy fails its digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How long a procedure waits for one answer, and how it asks again. Seconds, all above 0.

    Attributes:
        request_timeout_s: of one request to one bookie.
        give_up_s: bookies that are away or busy are asked again until nothing has gone forward for so long.
        pause_min_s, pause_max_s: between such rounds, doubled each time.
    """

    request_timeout_s: float = 10.0
    give_up_s: float = 10.0
    pause_min_s: float = 0.02
    pause_max_s: float = 1.0

    def backoff(self, now_s: float) -> Backoff:
        """Return the pauses between rounds that begin now."""
        return Backoff(self.pause_min_s, self.pause_max_s, self.give_up_s, now_s)


def entry_in(outcome: Outcome, entry_id: EntryId) -> Found | None:
    """Return the good copy of `entry_id` (-1: of any) that an answer to ReadEntry holds, None if there is none."""
    if isinstance(outcome, Reply) and outcome.status == Status.OK and outcome.found:
        entry = outcome.found[0]
        if entry_id in (-1, entry.entry_id):
            return entry
    return None


_NOT_ALLOWED: dict[int, str] = {
    Status.UNAUTHORIZED: "the password is not the ledger's",
    Status.FORBIDDEN: "this client's role or token does not allow it",
}


class Replicas:
    """What each bookie said that did not give what it was asked for.

    Attributes:
        said: bookie id -> reason, for an error's `replicas`.
        absent: those that said, as a proof, that they never acknowledged it.
        passing: those that may answer otherwise soon.
        not_allowed: why bookies refused it for good; empty where none did.
    """

    __slots__ = ("absent", "closed", "damaged", "not_allowed", "passing", "said")

    def __init__(self) -> None:
        self.said: dict[BookieId, str] = {}
        self.absent: set[BookieId] = set()
        self.passing: set[BookieId] = set()
        self.damaged = False
        self.not_allowed = ""
        self.closed: ClientClosed | None = None

    def record_reply(self, bookie_id: BookieId, outcome: Outcome) -> None:
        """Take the outcome of a SendRequest that gave nothing good."""
        self.passing.discard(bookie_id)
        if isinstance(outcome, Reply):
            self._record_answer(bookie_id, outcome)
            return
        assert isinstance(outcome, Error)
        self.said[bookie_id] = str(outcome)
        # Without metadata nobody can say where a bookie is that was never reached before; soon somebody may.
        if isinstance(outcome, NotEnoughBookies | QuorumTimeout | MetadataUnavailable):
            self.passing.add(bookie_id)
        elif isinstance(outcome, ClientClosed):
            self.closed = outcome

    def _record_answer(self, bookie_id: BookieId, reply: Reply) -> None:
        if reply.status == Status.OK:
            # Good, but not what was asked for: the bookie is confused, which says nothing about the entry.
            self.said[bookie_id] = BAD_DIGEST if reply.damaged else "answered something else"
            self.damaged = self.damaged or reply.damaged
            return
        self.said[bookie_id] = status_name(reply.status)
        if reply.status in ABSENT_STATUSES:
            self.absent.add(bookie_id)
        elif reply.status in PASSING_STATUSES:
            self.passing.add(bookie_id)
        elif reply.status in _NOT_ALLOWED:
            self.not_allowed = _NOT_ALLOWED[reply.status]

    def forget(self, bookie_ids: Iterable[BookieId]) -> None:
        """These are asked again: what they said no longer counts."""
        for bookie_id in bookie_ids:
            self.said.pop(bookie_id, None)
            self.passing.discard(bookie_id)
            self.absent.discard(bookie_id)

    def error(
        self, what: str, *, ledger_id: int, entry_id: EntryId | None = None, hint: str = "try again"
    ) -> Error:
        """Return the error that names each reason; its type is that of the gravest."""
        if self.closed is not None:
            return self.closed
        kind: type[Error] = NotEnoughBookies
        text = f"{what}; see what each bookie said, and {hint}"
        if self.not_allowed:
            kind, text = Unauthorized, f"{what}: {self.not_allowed}"
        elif self.damaged:
            kind = DigestMismatch
            text = f"{what}: no copy passes its digest; is the password right? else run a repair"
        return kind(text, ledger_id=ledger_id, entry_id=entry_id, replicas=self.said)


# --- whose answers suffice ------------------------------------------------------------------------
#
# Asking the whole last ensemble one question until enough have answered: what fencing and the LAC
# have in common.
#
# Covered (INV-Q2): of every write set the members that did not answer contain no ack set. So
# whatever an ack set has done together is known to one that answered, and those that are left can
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
        self._ack_sets = deciding(metadata)
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
        asked = [
            index for index, bookie_id in enumerate(self._ensemble) if bookie_id not in self._lost
        ]
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
        return self._ack_sets.none_without(answered)

    def _all_answered(self, now_s: float) -> None:
        passing = [
            index
            for index, bookie_id in enumerate(self._ensemble)
            if bookie_id in self._replicas.passing
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
