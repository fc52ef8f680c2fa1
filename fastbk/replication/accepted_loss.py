"""Closing a ledger with losses accepted: what is left when bookies are lost that a recovery needs to prove its end.

`RecoverLedger` closes only at an end that covers all that was ever acknowledged (INV-Q3). When too many bookies of a
write set are gone or damaged, nobody can prove that any more, and it fails for ever. A person may then accept losses.
Only this procedure closes so (INV-Q4), and it names what it gives up:

1. OPEN becomes IN_RECOVERY: a writer that still lives can change no bookies any more.
2. Every member of the last ensemble is asked for its highest entry, with FENCE. Those that do not answer stay unfenced,
   and are named.
3. Entries are read from the best LAC on, with FENCE, from all of their write sets. A good copy proves that an entry
   exists. Answers "never acknowledged" of so many that the others contain no ack set (INV-Q5; by the plain count
   Qw - Qa + 1) prove that nothing from there on was. An entry for which neither
   is true is *in doubt*: it may have been acknowledged, and nobody that answers has it.
4. Reading ends at the first entry that was never acknowledged, or after a whole round of the ensemble in doubt beyond
   the highest entry that anybody named.
5. All members are marked as owing copies from the LAC on, so that a repair verifies them and copies what they miss.
6. One compare-and-set closes the ledger behind the last entry found, never before the LAC. The custom metadata
   LOSS_KEY keeps what was given up.

Nothing is written again: a copy on one bookie stays on one until the repair. A dry run does steps 2 to 4 without FENCE.

Decision 139.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fastbk.errors import Error, MetadataConflict, Unauthorized
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.model.quorum import write_set
from fastbk.replication.ack_domains import deciding
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import (
    Found,
    Gather,
    MarkReplicas,
    Procedure,
    ReadEntry,
    SendRequest,
    Sleep,
    Steps,
    attempt,
)
from fastbk.replication.recovery import in_recovery
from fastbk.replication.replicas import Pacing, Replicas, entry_in

LOSS_KEY = "fastbk.accepted-loss"
"""Custom metadata of a ledger that was closed so: a JSON object with `given_up` and `unanswered`."""
RANGES_MAX = 100
"""So many ranges in doubt are named; the last one then covers the rest."""
READ_AT_ONCE_MIN = 16
TRIES_MAX = 5
"""Maximum tries of one request to a bookie that is busy or still starting."""
_Range = tuple[EntryId, EntryId | None]


class _Answer(NamedTuple):
    """The good copy, what a bookie said in its place, and whether it was not reached."""

    found: Found | None
    said: Replicas
    is_away: bool


@dataclass(slots=True)
class AcceptedLoss:
    """What closing a ledger so does, or did.

    Attributes:
        last_entry_id, length: where it ends.
        lac: the best last add confirmed that anybody named: all up to it was acknowledged.
        given_up: ranges of entries that may have been acknowledged and that nobody who answers has; the end of the last
            one is None where nothing proves how far it goes.
        unanswered: bookies of the last ensemble that could not answer, and why. The ledger is not fenced on them.
        may_still_acknowledge: the unanswered ones are enough to acknowledge an append of a writer that still lives.
        is_closed: it was closed with this call. False: a dry run, or another client had closed it.
    """

    ledger_id: LedgerId
    last_entry_id: EntryId = -1
    length: int = 0
    lac: EntryId = -1
    given_up: list[_Range] = field(default_factory=list)
    unanswered: dict[BookieId, str] = field(default_factory=dict)
    may_still_acknowledge: bool = False
    is_closed: bool = False

    def as_json(self) -> str:
        """Return what the ledger's metadata keeps."""
        return json.dumps({"given_up": self.given_up, "unanswered": self.unanswered})


class CloseAcceptingLoss(Procedure[AcceptedLoss]):
    """Closes a ledger behind the last entry that can be found; see the module's text.

    Raises Unauthorized for another password, NoSuchLedger, MetadataUnavailable, MetadataConflict.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger,
        pacing: Pacing,
        metadata_timeout_s: float = 10.0,
        *,
        is_dry_run: bool = False,
    ) -> None:
        super().__init__()
        self.loss = AcceptedLoss(ledger_id)
        self._ledger_id = ledger_id
        self._known = known
        self._pacing = pacing
        self._metadata_timeout_s = metadata_timeout_s
        self._is_dry_run = is_dry_run
        self._highest: EntryId = -1
        self._lengths: dict[EntryId, int] = {}
        self._away: set[BookieId] = set()
        self._first: EntryId = 0
        self._last_found: EntryId = -1
        self._doubtful: list[_Range] = []
        self._in_doubt_in_a_row = 0
        self._missing: EntryId | None = None

    def steps(self) -> Steps[AcceptedLoss]:
        """Take the steps of the module's text; a dry run only looks."""
        loss, taken = self.loss, self._known
        if not self._is_dry_run:
            taken = yield from MetadataUpdate(in_recovery, taken, self._metadata_timeout_s)
        metadata = taken.metadata
        if metadata.is_closed:
            loss.last_entry_id, loss.length = metadata.last_entry_id, metadata.length
            return loss
        yield from self._find_lac(metadata)
        yield from self._find_end(metadata)
        self._name_losses()
        if not self._is_dry_run:
            owed = tuple(
                MissingReplica(bookie_id, self._first, None, "closed with losses accepted")
                for bookie_id in sorted(set(metadata.fragments[-1].ensemble))
            )
            yield MarkReplicas(owed)
            yield from self._close(taken)
        return loss

    def _ask_for(self, bookie_id: BookieId, entry_id: EntryId) -> Steps[_Answer]:
        """Ask a bookie for an entry, again while it is busy."""
        request = ReadEntry(entry_id, fence=not self._is_dry_run, high_priority=True)
        for tries_left in reversed(range(TRIES_MAX)):
            outcome = yield from attempt(
                SendRequest(bookie_id, request, self._pacing.request_timeout_s)
            )
            said, found = Replicas(), entry_in(outcome, entry_id)
            if found is None:
                said.record_reply(bookie_id, outcome)
            is_away = isinstance(outcome, Error)
            if not tries_left or is_away or bookie_id not in said.passing:
                break
            yield Sleep(self._pacing.pause_max_s, is_retry=True)
        if said.closed is not None:
            raise said.closed
        if said.not_allowed:
            raise Unauthorized(
                f"ledger {self._ledger_id}: {said.not_allowed}", ledger_id=self._ledger_id
            )
        return _Answer(found, said, is_away)

    # --- step 2 ------------------------------------------------------------------------------------------------

    def _find_lac(self, metadata: LedgerMetadata) -> Steps[None]:
        """Ask every member of the last ensemble for its highest entry."""
        loss, fragment = self.loss, metadata.fragments[-1]
        loss.lac = fragment.first_entry_id - 1
        answers = yield from Gather(self._ask_for(one, -1) for one in fragment.ensemble)
        answered: set[int] = set()
        for index, (bookie_id, answer) in enumerate(zip(fragment.ensemble, answers, strict=True)):
            found = answer.found
            if found is not None:
                loss.lac = max(loss.lac, found.lac)
                self._highest = max(self._highest, found.entry_id)
                self._lengths[found.entry_id] = found.length
            if found is not None or bookie_id in answer.said.absent:
                answered.add(index)
            else:
                loss.unanswered[bookie_id] = answer.said.said[bookie_id]
                if answer.is_away:
                    self._away.add(bookie_id)
        loss.may_still_acknowledge = not deciding(metadata).none_without(answered)
        # Some entries up to the LAC tell the length, should nothing be found behind it.
        self._first = max(0, loss.lac - metadata.ensemble_size + 1)

    # --- steps 3 and 4 -----------------------------------------------------------------------------------------

    def _find_end(self, metadata: LedgerMetadata) -> Steps[None]:
        """Decide some entries at once, then go on behind them."""
        count = max(metadata.ensemble_size, READ_AT_ONCE_MIN)
        first = self._first
        while True:
            entry_ids = range(first, first + min(count, ID_MAX - first))
            decided = yield from Gather(self._decide(metadata, one) for one in entry_ids)
            for entry_id, exists in zip(entry_ids, decided, strict=True):
                if exists:
                    self._last_found = entry_id
                    self._in_doubt_in_a_row = 0
                elif exists is False and entry_id > self.loss.lac:
                    self._missing = entry_id
                    return
                else:
                    # Bookies that say no of what was acknowledged have lost it: it is in doubt all the same.
                    self._in_doubt(entry_id)
                    self._in_doubt_in_a_row += 1
            self._lengths = {
                one: length for one, length in self._lengths.items() if one >= self._last_found
            } or self._lengths
            is_over = self._in_doubt_in_a_row >= metadata.ensemble_size
            if is_over and entry_ids[-1] > max(self._highest, self.loss.lac):
                return
            first = entry_ids[-1] + 1

    def _decide(self, metadata: LedgerMetadata, entry_id: EntryId) -> Steps[bool | None]:
        """Return whether an entry exists; None: in doubt."""
        fragment = metadata.fragment_of(entry_id)
        ensemble = fragment.ensemble
        indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        asked = [ensemble[index] for index in indexes if ensemble[index] not in self._away]
        answers = yield from Gather(self._ask_for(one, entry_id) for one in asked)
        absent: set[BookieId] = set()
        exists = False
        for answer in answers:
            absent |= answer.said.absent
            if answer.found is not None:
                exists = True
                self._lengths[entry_id] = answer.found.length
                self.loss.lac = max(self.loss.lac, answer.found.lac)
        if exists:
            return True
        left = [index for index in indexes if ensemble[index] not in absent]
        return None if deciding(metadata, fragment).contains(left) else False

    def _in_doubt(self, entry_id: EntryId) -> None:
        ranges = self._doubtful
        if (ranges and ranges[-1][1] in (entry_id - 1, None)) or len(ranges) >= RANGES_MAX:
            ranges[-1] = ranges[-1][0], entry_id
        else:
            ranges.append((entry_id, entry_id))

    def _name_losses(self) -> None:
        loss = self.loss
        last = loss.last_entry_id = max(self._last_found, loss.lac)
        at_or_below = [one for one in self._lengths if one <= last]
        loss.length = self._lengths[max(at_or_below)] if at_or_below else 0
        for first, end in self._doubtful:
            assert end is not None
            if end <= last:
                loss.given_up.append((first, end))
            else:
                if first <= last:
                    loss.given_up.append((first, last))
                break
        if self._missing is None:
            loss.given_up.append((last + 1, None))
        elif self._missing > last + 1:
            loss.given_up.append((last + 1, self._missing - 1))

    # --- step 6 ------------------------------------------------------------------------------------------------

    def _close(self, taken: VersionedLedger) -> Steps[None]:
        base, loss = taken.metadata, self.loss

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            if current.is_closed:
                return None
            if current.fragments[-1] != base.fragments[-1]:
                raise MetadataConflict(
                    f"ledger {self._ledger_id} was changed meanwhile: run this again",
                    ledger_id=self._ledger_id,
                )
            custom = {**current.custom, LOSS_KEY: loss.as_json().encode()}
            return replace(current, custom=custom).closed(loss.last_entry_id, loss.length)

        change = MetadataUpdate(decide, taken, self._metadata_timeout_s)
        closed = yield from change
        loss.is_closed = change.is_ours
        loss.last_entry_id, loss.length = closed.metadata.last_entry_id, closed.metadata.length
