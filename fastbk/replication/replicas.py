"""What the replicas that were asked for one thing said instead of it, who may say otherwise soon, and what it proves.

Three kinds of bad answers must never be mixed up (INV-Q2): "I never acknowledged it" (NO_ENTRY, NO_LEDGER) is a proof,
since bookies say it only from a healthy index (INV-X1); a bookie that is away or busy may answer in a moment;
everything else (CANNOT_TELL, IO_ERROR, a copy that fails its digest, another key) proves nothing and will not change
by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastbk.errors import (
    ClientClosed,
    DigestMismatch,
    Error,
    MetadataUnavailable,
    NotEnoughBookies,
    QuorumTimeout,
    Unauthorized,
)
from fastbk.model.ids import BookieId, EntryId
from fastbk.replication.actions import Found, Outcome, Reply
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status, status_name

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
        found = outcome.found[0]
        if entry_id in (-1, found.entry_id):
            return found
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
