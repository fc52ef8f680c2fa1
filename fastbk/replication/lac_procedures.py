"""Asking bookies for a ledger's LAC: the last entry that is known to be acknowledged.

Only what a good digest covers counts (the simulator's script P19): the LAC inside an entry, or the body that a writer
sent explicitly. The number a bookie puts beside them is never used. Entries of earlier fragments are acknowledged, so
the result is never below the last fragment's first entry - 1.

For the driver: ordinary procedures; the value is the LAC, -1 if nothing is acknowledged. They ask for ReadLac without
waiting, and Sleep. The metadata handed in should be fresh: they ask the last ensemble that it names. A closed ledger
needs no asking: its metadata says the last entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastbk.errors import Error, NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import write_set
from fastbk.replication.options import Order, PollOptions, unordered
from fastbk.replication.procedure import Found, Outcome, Procedure, ReadLac, Reply
from fastbk.replication.replicas import Pacing, QuorumCoverage, Replicas
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status


class ReadLastConfirmed(QuorumCoverage[EntryId]):
    """Asks all of the last ensemble until the answers must contain every LAC that anybody has seen.

    Covered (INV-Q2): of every write set the members that did not answer contain no ack set. While too few answer,
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


# --- the long poll --------------------------------------------------------------------------------

__all__ = ["LacNews", "Order", "PollLac", "PollOptions", "unordered"]


LATE_S = 0.1
"""An answer at the end of a wait may come so late without a timer's waking up for it."""


@dataclass(frozen=True, slots=True)
class LacNews:
    """What a poll brought.

    Attributes:
        lac: the highest LAC known now; below `position` if there was no news.
        entry: the entry at `position`, when it came along and is covered by `lac`.
        is_closed: the ledger is closed, and `lac` its last entry.
        fenced: a bookie says that the ledger is fenced: expect it to be closed soon.
        slow: the carrier, if it failed or others had the news before it; prefer others the next time.
    """

    lac: EntryId
    entry: Found | None = None
    is_closed: bool = False
    fenced: bool = False
    slow: BookieId | None = None


class PollLac(Procedure[LacNews]):
    """The long poll of a tailing reader: waits at the bookies until the LAC has reached entry `position`.

    The first of the order that holds the entry, the carrier, is asked to wait and to bring the entry itself
    (piggyback): where records come every millisecond that is the one request that each of them costs. Once it has
    failed, said something that helps nothing, or brought nothing for a grace, all members of the last ensemble wait, so
    that news comes within one round trip from whichever has it first: a slow, silent or lost one delays nothing by more
    than the grace. The others prove the LAC with their newest entry. The entry is handed out only once some digest
    proves a LAC that covers it; a bookie that answers but proves nothing yet is asked for its newest entry at once. A
    member that answers without news is asked again.

    A request that waits is silent, so its silence proves nothing. A member that has failed is asked after a pause, and
    only to wait for `pacing.pause_max_s`, until it has answered well once. So it is known within `pacing.give_up_s`
    that none is there any more, however long the poll is.

    It ends when the LAC has reached `position`, when the ledger was closed, or after `wait_s` without either, once some
    member has said that it has no news (that is no error: poll again). An idle poll costs one request of each member.
    It raises NotEnoughBookies (or DigestMismatch) when all members failed and none answered well for
    `pacing.give_up_s`, and when none answered at the end of its wait. Call `metadata_changed(metadata, now_s)`
    whenever a watch brings other metadata while it runs, and take the actions: members that left are let go, new ones
    asked, a close ends it. It asks for ReadLac and Sleep only.

    Attributes:
        trouble: bookie id -> why it does not answer well.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        position: EntryId,
        options: PollOptions | None = None,
        order: Order = unordered,
    ) -> None:
        super().__init__()
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._position = position
        self._options = PollOptions() if options is None else options
        self._order = order
        self._lac: EntryId = -1
        self._fenced = False
        self._entry: Found | None = None
        self._is_in_grace = False
        self._is_heard = False
        self._is_over = False
        self._carrier: BookieId | None = None
        self._has_carried = False
        self._end_s = 0.0
        # The pause before all are asked, and when they were.
        self._alone: int | None = None
        self._spread_s: float | None = None
        # Runs while all members fail.
        self._failing: int | None = None
        self._replicas = Replicas()
        # What is under way for each member: a request, or the pause before the next.
        self._waiting: dict[BookieId, int] = {}
        self._pauses: dict[BookieId, Backoff] = {}

    @property
    def trouble(self) -> dict[BookieId, str]:
        """Why members that do not answer well do not."""
        return dict(self._replicas.said)

    # --- events ------------------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Ask the carrier, unless there is nothing to wait for."""
        options = self._options
        self._end_s = now_s + options.wait_s
        if not options.is_quiet:
            alone_s = min(options.grace_s, options.wait_s)
            self._alone = self._sleep(alone_s, self._spread)
        self._check_metadata(now_s)
        if options.is_quiet and not self.is_finished:
            self._spread(now_s)

    def metadata_changed(self, metadata: LedgerMetadata, now_s: float) -> None:
        """Take newer metadata; then take the actions."""
        if not self.is_finished:
            self._metadata = metadata
            self._check_metadata(now_s)

    def _check_metadata(self, now_s: float) -> None:
        metadata = self._metadata
        if metadata.is_closed:
            self._news(metadata.last_entry_id, now_s, is_closed=True)
            return
        # Entries of earlier fragments are acknowledged.
        self._lac = max(self._lac, metadata.fragments[-1].first_entry_id - 1)
        if self._lac >= self._position:
            self._news(self._lac, now_s)
            return
        ensemble = metadata.fragments[-1].ensemble
        for bookie_id in [one for one in self._waiting if one not in ensemble]:
            self._withdraw(self._waiting.pop(bookie_id))
            self._replicas.forget([bookie_id])
        if self._carrier is None or self._carrier not in ensemble:
            self._carrier = self._choose_carrier()
            self._has_carried = False
        if any(one not in self._replicas.said for one in ensemble):
            self._stop_failing()
        for bookie_id in (self._carrier,) if self._spread_s is None else ensemble:
            if bookie_id not in self._waiting:
                self._wait_at(bookie_id, now_s)

    def _spread(self, now_s: float) -> None:
        """The carrier alone is not enough, or no longer: ask all the others."""
        if self._spread_s is not None:
            return
        self._spread_s = now_s
        if self._alone is not None:
            self._withdraw(self._alone)
        # Only now can there be any talk of its end: that of a poll which the carrier ends is never near. Members that
        # wait end it by their answers, so this is for those that are silent.
        left_s = max(0.0, self._end_s - now_s)
        self._sleep(left_s + LATE_S, self._time_is_over)
        for bookie_id in self._metadata.fragments[-1].ensemble:
            if bookie_id not in self._waiting:
                self._wait_at(bookie_id, now_s)

    def _choose_carrier(self) -> BookieId:
        metadata = self._metadata
        ensemble = metadata.fragments[-1].ensemble
        indexes = write_set(self._position, len(ensemble), metadata.write_quorum)
        return self._order([ensemble[index] for index in indexes])[0]

    def _time_is_over(self, now_s: float) -> None:
        if self._is_heard:
            self._news(self._lac, now_s)
            return
        # Those that waited as long as they were asked to are about to answer.
        self._is_over = True
        pacing = self._options.pacing
        left_s = max(pacing.request_timeout_s, pacing.give_up_s - self._options.wait_s)
        self._sleep(left_s, self._give_up)

    def _failed(self) -> None:
        """Begin to count when the last member has failed."""
        ensemble = self._metadata.fragments[-1].ensemble
        if self._failing is None and all(
            bookie_id in self._replicas.said for bookie_id in ensemble
        ):
            self._failing = self._sleep(self._options.pacing.give_up_s, self._give_up)

    def _answered_well(self, bookie_id: BookieId, *, had_failed: bool) -> None:
        self._is_heard = True
        self._replicas.forget([bookie_id])
        if had_failed:
            self._pauses.pop(bookie_id, None)
        self._stop_failing()

    def _stop_failing(self) -> None:
        if self._failing is not None:
            self._withdraw(self._failing)
            self._failing = None

    def _give_up(self, now_s: float) -> None:
        for bookie_id in self._waiting:
            self._replicas.said.setdefault(bookie_id, "no answer")
        what = f"ledger {self._ledger_id}: no bookie answered the tailing reader"
        hint = "tail again from the last entry seen"
        error = self._replicas.error(
            what, ledger_id=self._ledger_id, entry_id=self._position, hint=hint
        )
        self._fail(error, now_s)

    # --- one member --------------------------------------------------------------------------------------------

    def _wait_at(self, bookie_id: BookieId, now_s: float, *, is_proof: bool = False) -> None:
        """Ask a member to wait; `is_proof`: for what it has now, its newest entry."""
        wait_s = 0.0 if is_proof else max(0.0, self._end_s - now_s)
        if bookie_id in self._replicas.said:
            wait_s = min(wait_s, self._options.pacing.pause_max_s)
        is_carrier = bookie_id == self._carrier and not is_proof and self._entry is None
        request = ReadLac(self._position - 1, wait_s, piggyback=is_carrier)
        timeout_s = wait_s + self._options.pacing.request_timeout_s

        def answered(outcome: Outcome, at_s: float) -> None:
            del self._waiting[bookie_id]
            self._answered(bookie_id, is_carrier, outcome, at_s)

        self._waiting[bookie_id] = self._ask(bookie_id, request, timeout_s, answered)

    def _answered(
        self, bookie_id: BookieId, is_carrier: bool, outcome: Outcome, now_s: float
    ) -> None:
        is_valid = False
        had_failed = bookie_id in self._replicas.said
        if isinstance(outcome, Reply):
            self._fenced = self._fenced or outcome.fenced
            self._lac = max([self._lac, *outcome.lacs])
            for found in outcome.found:
                if found.entry_id == self._position:
                    self._entry = found
                    self._has_carried = self._has_carried or bookie_id == self._carrier
            is_valid = outcome.status == Status.OK and not outcome.damaged
        if not is_valid:
            self._replicas.record_reply(bookie_id, outcome)
            is_valid = bookie_id in self._replicas.absent
        if self._replicas.closed is not None:
            self._fail(self._replicas.closed, now_s)
            return
        if is_valid:
            self._answered_well(bookie_id, had_failed=had_failed)
        # A bookie counts whole milliseconds: one that has waited to the end may answer just before it.
        is_over = self._is_over or now_s >= self._end_s - self._options.grace_s
        if self._lac >= self._position:
            self._reached(now_s)
        elif is_over and is_valid and self._spread_s is not None:
            self._news(self._lac, now_s)
        elif is_carrier and self._entry is not None:
            # The entry came, and what proves that it is acknowledged can only be a newer one.
            self._wait_at(bookie_id, now_s, is_proof=True)
        else:
            self._rest(bookie_id, is_valid, now_s)
            self._spread(now_s)
            if not is_valid:
                self._failed()

    def _rest(self, bookie_id: BookieId, is_valid: bool, now_s: float) -> None:
        """Ask again after a pause: a bookie may answer at once and without news, while the ledger is fenced for one."""
        backoff = self._pauses.get(bookie_id)
        if backoff is None:
            backoff = self._pauses[bookie_id] = self._options.pacing.backoff(now_s)
            if is_valid:
                self._wait_at(bookie_id, now_s)
                return

        def woken(at_s: float) -> None:
            del self._waiting[bookie_id]
            self._wait_at(bookie_id, at_s)

        self._waiting[bookie_id] = self._retry_in(backoff.next_s(), woken)

    # --- the end -----------------------------------------------------------------------------------------------

    def _reached(self, now_s: float) -> None:
        """The LAC covers the entry: end now, or give the entry itself a moment."""
        carrier, grace_s = self._carrier, self._options.grace_s
        has_failed = carrier in self._replicas.said
        is_coming = carrier in self._waiting and not has_failed
        # Those that were asked when its grace was over have news at once: it was there already, and the carrier had
        # its moment.
        was_there = self._spread_s is not None and now_s - self._spread_s < grace_s
        is_slow = has_failed or (is_coming and was_there and not self._has_carried)
        # More than one entry is better read in a batch.
        if self._entry is not None or not is_coming or is_slow or self._lac > self._position:
            self._news(self._lac, now_s, slow=carrier if is_slow else None)
        elif not self._is_in_grace:
            self._is_in_grace = True
            self._sleep(grace_s, lambda s: self._news(self._lac, s, slow=self._carrier))

    def _news(
        self,
        lac: EntryId,
        now_s: float,
        *,
        is_closed: bool = False,
        slow: BookieId | None = None,
    ) -> None:
        entry = self._entry if lac >= self._position else None
        self._finish(LacNews(lac, entry, is_closed, self._fenced, slow), now_s)
