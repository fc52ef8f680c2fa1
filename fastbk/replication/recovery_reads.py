"""The reading half of a recovery: fence the last ensemble, then decide entry by entry what exists.

Both ask with FENCE: a bookie answers such a read only when the fence is durable, so every answer that is counted
comes from a bookie that the old writer can no longer complete an add on. Fencing only the first read is not enough:
the message to one bookie may be lost, and an add later completes there (P1).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import missing_proof, write_set
from fastbk.replication.actions import Found, Outcome, ReadEntry
from fastbk.replication.procedure import Procedure
from fastbk.replication.quorum_coverage import QuorumCoverage
from fastbk.replication.replicas import Pacing, Replicas, entry_in


@dataclass(slots=True)
class Fenced:
    """What the fenced bookies of the last ensemble know.

    Attributes:
        lac: everything up to it is acknowledged for certain: the best LAC that a good digest covers, or the last
            entry before the last fragment.
        highest: the highest entry that any of them holds, -1 if none.
        largest_bytes: the largest data among the entries that were seen.
        lengths: the ledger's length at those entries that were seen.
    """

    lac: EntryId
    highest: EntryId = -1
    largest_bytes: int = 0
    lengths: dict[EntryId, int] = field(default_factory=dict)


class FenceEnsemble(QuorumCoverage[Fenced]):
    """Reads entry -1 with FENCE from every member of the last ensemble, until the answers are covered.

    Covered (INV-Q2): of every write set fewer than Qa members are left that did not answer, so the old writer's quorum
    is gone, and what was acknowledged is known to one that answered. An entry with a good digest, NO_ENTRY and
    NO_LEDGER are answers; CANNOT_TELL, errors and damaged copies are not. Another key anywhere ends it (Unauthorized).

    Those not heard by then are let go: should they be asked for entries later, that fences them too.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        pacing: Pacing,
        lost: Collection[BookieId] = (),
    ) -> None:
        request = ReadEntry(-1, fence=True, high_priority=True)
        super().__init__(ledger_id, metadata, pacing, request, lost)
        fragment = metadata.fragments[-1]
        # Earlier fragments are final: nothing below the last one's start is in doubt (P2).
        self._fenced = Fenced(fragment.first_entry_id - 1)

    def _record_reply(self, index: int, outcome: Outcome) -> bool:
        bookie_id = self._ensemble[index]
        found = entry_in(outcome, -1)
        if found is None:
            self._replicas.record_reply(bookie_id, outcome)
            return bookie_id in self._replicas.absent
        # Only what this digest covers; the number beside the entry counts for nothing (P19).
        self._fenced.lac = max(self._fenced.lac, found.lac)
        self._fenced.highest = max(self._fenced.highest, found.entry_id)
        self._fenced.largest_bytes = max(self._fenced.largest_bytes, len(found.data))
        self._fenced.lengths[found.entry_id] = found.length
        return True

    def _is_hopeless(self) -> bool:
        return super()._is_hopeless() or bool(self._replicas.not_allowed)

    def _covered(self) -> Fenced:
        return self._fenced

    def _error(self) -> Error:
        what = f"ledger {self._ledger_id}: too few bookies of the last ensemble could be fenced"
        return self._replicas.error(what, ledger_id=self._ledger_id)


class ReadForRecovery(Procedure[Found | None]):
    """Decides whether one entry exists: the result is a good copy, or None when it was never acknowledged for certain.

    All of its write set is asked at once. One good copy decides "exists". "Missing" takes NO_ENTRY or NO_LEDGER from
    Qw - Qa + 1 bookies, and is decided as soon as they are there, whatever the others may say (P5). When all have
    answered and neither is true, those that are away or busy are asked again, then it fails and says why.

    `is_acknowledged`: the entry is known to be so; then its bookies were wrong to say no, and all of them must.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        entry_id: EntryId,
        pacing: Pacing,
        *,
        is_acknowledged: bool = False,
    ) -> None:
        super().__init__()
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._pacing = pacing
        ensemble = metadata.fragment_of(entry_id).ensemble
        indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        self._members: list[BookieId] = [ensemble[index] for index in indexes]
        self._proof = missing_proof(metadata.write_quorum, metadata.ack_quorum)
        if is_acknowledged:
            self._proof = metadata.write_quorum
        self._asked = 0
        self._replicas = Replicas()

    def begin(self, now_s: float) -> None:
        """Ask the whole write set."""
        self._backoff = self._pacing.backoff(now_s)
        self._request_from(self._members)

    def _request_from(self, bookie_ids: list[BookieId]) -> None:
        request = ReadEntry(self._entry_id, fence=True, high_priority=True)
        self._asked += len(bookie_ids)
        for bookie_id in bookie_ids:
            answered = partial(self._answered, bookie_id)
            self._ask(bookie_id, request, self._pacing.request_timeout_s, answered)

    def _answered(self, bookie_id: BookieId, outcome: Outcome, now_s: float) -> None:
        self._asked -= 1
        found = entry_in(outcome, self._entry_id)
        replicas = self._replicas
        if found is not None:
            self._finish(found, now_s)
            return
        replicas.record_reply(bookie_id, outcome)
        if replicas.closed is not None or replicas.not_allowed:
            self._give_up(now_s)
        elif len(replicas.absent) >= self._proof:
            self._finish(None, now_s)
        elif self._asked == 0:
            self._again(now_s)

    def _again(self, now_s: float) -> None:
        passing = [one for one in self._members if one in self._replicas.passing]
        pause_s = self._backoff.next_in_time_s(now_s) if passing else None
        if pause_s is None:
            self._give_up(now_s)
            return

        def woken(_: float) -> None:
            self._replicas.forget(passing)
            self._request_from(passing)

        self._retry_in(pause_s, woken)

    def _give_up(self, now_s: float) -> None:
        what = f"entry {self._entry_id} of ledger {self._ledger_id} can be neither read nor proven to be missing"
        error = self._replicas.error(what, ledger_id=self._ledger_id, entry_id=self._entry_id)
        self._fail(error, now_s)
