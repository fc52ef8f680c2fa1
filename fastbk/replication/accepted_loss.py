"""Closing a ledger with losses accepted: what is left when bookies are lost that a recovery needs to prove its end.

`RecoverLedger` closes only at an end that covers all that was ever acknowledged (INV-Q3). When too many bookies of a
write set are gone or damaged, nobody can prove that any more, and it fails for ever. A person may then accept losses.
Only this procedure closes so (INV-Q4), and it names what it gives up:

1. OPEN becomes IN_RECOVERY: a writer that still lives can change no bookies any more.
2. Every member of the last ensemble is asked for its highest entry, with FENCE. Those that do not answer stay unfenced,
   and are named.
3. Entries are read from the best LAC on, with FENCE, from all of their write sets. A good copy proves that an entry
   exists. Qw - Qa + 1 answers "never acknowledged" prove that nothing from there on was. An entry for which neither
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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from fastbk.errors import Error, MetadataConflict, Unauthorized
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.model.quorum import lac_is_covered, missing_proof, write_set
from fastbk.replication.actions import Found, MarkReplicas, Outcome, ReadEntry
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Pacing, Replicas, entry_in

LOSS_KEY = "fastbk.accepted-loss"
"""Custom metadata of a ledger that was closed so: a JSON object with `given_up` and `unanswered`."""
RANGES_MAX = 100
"""So many ranges in doubt are named; the last one then covers the rest."""
READ_AT_ONCE_MIN = 16
TRIES_MAX = 5
"""Of one request to a bookie that is busy or still starting."""
_Range = tuple[EntryId, EntryId | None]
# Of (the good copy, what was said in its place, whether the bookie was not reached, now).
_Answered = Callable[[Found | None, Replicas, bool, float], None]


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
        self._answered: set[int] = set()
        self._asked = 0

    def begin(self, now_s: float) -> None:
        """Take the ledger over, or only look."""
        if self._is_dry_run:
            self._taken_over(self._known, now_s)
            return

        def in_recovery(current: LedgerMetadata) -> LedgerMetadata | None:
            is_open = current.state is LedgerState.OPEN
            return replace(current, state=LedgerState.IN_RECOVERY) if is_open else None

        self._run_for(
            MetadataUpdate(in_recovery, self._known, self._metadata_timeout_s),
            self._taken_over,
            now_s,
        )

    def _taken_over(self, taken: VersionedLedger, now_s: float) -> None:
        self._taken = taken
        metadata = taken.metadata
        if metadata.is_closed:
            self.loss.last_entry_id, self.loss.length = metadata.last_entry_id, metadata.length
            self._finish(self.loss, now_s)
            return
        fragment = metadata.fragments[-1]
        self.loss.lac = fragment.first_entry_id - 1
        self._asked = len(fragment.ensemble)
        for index, bookie_id in enumerate(fragment.ensemble):
            self._ask_entry(bookie_id, -1, partial(self._named_highest, index), TRIES_MAX)

    def _ask_entry(
        self, bookie_id: BookieId, entry_id: EntryId, then: _Answered, tries_left: int
    ) -> None:
        def answered(outcome: Outcome, now_s: float) -> None:
            said = Replicas()
            found = entry_in(outcome, entry_id)
            if found is None:
                said.record_reply(bookie_id, outcome)
            is_busy = bookie_id in said.passing and not isinstance(outcome, Error)
            if is_busy and tries_left > 1:
                again = partial(self._ask_entry, bookie_id, entry_id, then, tries_left - 1)
                self._retry_in(self._pacing.pause_max_s, lambda _: again())
            elif said.closed is not None:
                self._fail(said.closed, now_s)
            elif said.not_allowed:
                self._fail(
                    Unauthorized(
                        f"ledger {self._ledger_id}: {said.not_allowed}", ledger_id=self._ledger_id
                    ),
                    now_s,
                )
            else:
                then(found, said, isinstance(outcome, Error), now_s)

        request = ReadEntry(entry_id, fence=not self._is_dry_run, high_priority=True)
        self._ask(bookie_id, request, self._pacing.request_timeout_s, answered)

    # --- step 2 ------------------------------------------------------------------------------------------------

    def _named_highest(
        self, index: int, found: Found | None, said: Replicas, is_away: bool, now_s: float
    ) -> None:
        bookie_id = self._taken.metadata.fragments[-1].ensemble[index]
        if found is not None:
            self.loss.lac = max(self.loss.lac, found.lac)
            self._highest = max(self._highest, found.entry_id)
            self._lengths[found.entry_id] = found.length
        if found is not None or bookie_id in said.absent:
            self._answered.add(index)
        else:
            self.loss.unanswered[bookie_id] = said.said[bookie_id]
            if is_away:
                self._away.add(bookie_id)
        self._asked -= 1
        if self._asked:
            return
        metadata = self._taken.metadata
        shape = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        self.loss.may_still_acknowledge = not lac_is_covered(self._answered, *shape)
        # Some entries up to the LAC tell the length, should nothing be found behind it.
        self._first = max(0, self.loss.lac - metadata.ensemble_size + 1)
        self._last_found: EntryId = -1
        self._doubtful: list[_Range] = []
        self._in_doubt_in_a_row = 0
        self._missing: EntryId | None = None
        self._read_some(self._first, now_s)

    # --- steps 3 and 4 -----------------------------------------------------------------------------------------

    def _read_some(self, first: EntryId, now_s: float) -> None:
        """Decide some entries at once, then go on behind them."""
        count = max(self._taken.metadata.ensemble_size, READ_AT_ONCE_MIN)
        decided: dict[EntryId, bool | None] = {}
        # Set first: a member that is known to be away is not asked, so an entry may be decided at once.
        self._deciding = min(count, ID_MAX - first)
        for entry_id in range(first, first + self._deciding):
            self._decide(entry_id, decided, first, now_s)

    def _decide(
        self, entry_id: EntryId, decided: dict[EntryId, bool | None], first: EntryId, now_s: float
    ) -> None:
        metadata = self._taken.metadata
        ensemble = metadata.fragment_of(entry_id).ensemble
        members = [
            ensemble[index]
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        ]
        asked = [one for one in members if one not in self._away]
        absent: set[BookieId] = set()
        left = len(asked)
        proof = missing_proof(metadata.write_quorum, metadata.ack_quorum)

        def settle(at_s: float) -> None:
            if entry_id not in decided:
                decided[entry_id] = False if len(absent) >= proof else None
            self._one_decided(decided, first, at_s)

        def answered(found: Found | None, said: Replicas, is_away: bool, at_s: float) -> None:
            nonlocal left
            left -= 1
            if found is not None:
                decided[entry_id] = True
                self._lengths[entry_id] = found.length
                self.loss.lac = max(self.loss.lac, found.lac)
            absent.update(said.absent)
            if left == 0:
                settle(at_s)

        if not asked:
            settle(now_s)
        for bookie_id in asked:
            self._ask_entry(bookie_id, entry_id, answered, TRIES_MAX)

    def _one_decided(
        self, decided: dict[EntryId, bool | None], first: EntryId, now_s: float
    ) -> None:
        self._deciding -= 1
        if self._deciding:
            return
        for entry_id in sorted(decided):
            exists = decided[entry_id]
            if exists:
                self._last_found = entry_id
                self._in_doubt_in_a_row = 0
            elif exists is False and entry_id > self.loss.lac:
                self._missing = entry_id
                break
            else:
                # Bookies that say no of what was acknowledged have lost it: it is in doubt all the same.
                self._in_doubt(entry_id)
                self._in_doubt_in_a_row += 1
        end = max(decided)
        is_over = self._in_doubt_in_a_row >= self._taken.metadata.ensemble_size
        beyond = max(self._highest, self.loss.lac)
        self._lengths = {
            one: length for one, length in self._lengths.items() if one >= self._last_found
        } or self._lengths
        if self._missing is not None or (is_over and end > beyond):
            self._found_end(now_s)
        else:
            self._read_some(end + 1, now_s)

    def _in_doubt(self, entry_id: EntryId) -> None:
        ranges = self._doubtful
        if (ranges and ranges[-1][1] in (entry_id - 1, None)) or len(ranges) >= RANGES_MAX:
            ranges[-1] = ranges[-1][0], entry_id
        else:
            ranges.append((entry_id, entry_id))

    def _found_end(self, now_s: float) -> None:
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
        if self._is_dry_run:
            self._finish(loss, now_s)
            return
        owed = tuple(
            MissingReplica(bookie_id, self._first, None, "closed with losses accepted")
            for bookie_id in sorted(set(self._taken.metadata.fragments[-1].ensemble))
        )
        self._act(MarkReplicas(owed), self._marked)

    # --- steps 5 and 6 -----------------------------------------------------------------------------------------

    def _marked(self, outcome: Outcome, now_s: float) -> None:
        if isinstance(outcome, Error):
            self._fail(outcome, now_s)
            return
        base, loss = self._taken.metadata, self.loss

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

        change = MetadataUpdate(decide, self._taken, self._metadata_timeout_s)

        def closed(found: VersionedLedger, at_s: float) -> None:
            loss.is_closed = change.is_ours
            loss.last_entry_id = found.metadata.last_entry_id
            loss.length = found.metadata.length
            self._finish(loss, at_s)

        self._run_for(change, closed, now_s)
