"""One consecutive part of a range, read step by step from the replicas that hold it.

A step asks for entries from `position` on and ends with the first answer that gives some. What the bookies said about
one position is forgotten when it moves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from fastbk.errors import Error, MetadataUnavailable, NoSuchEntry
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import missing_proof, write_set
from fastbk.replication.actions import Found, Outcome, ReadEntries, Reply
from fastbk.replication.options import ReadOptions
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Replicas
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status

# One replica must not use up the time of all: a stopped process accepts and never answers.
TRY_S_MIN = 0.25


class Range(Protocol):
    """What a part asks of the range that it belongs to."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    options: ReadOptions
    skipped: int

    def in_order(self, bookies: Sequence[BookieId]) -> list[BookieId]:
        """Return these as they are to be asked, the best first."""

    def was_slow(self, bookie_id: BookieId) -> None:
        """Take note that another was quicker; ask it last from now on."""

    def has_room(self, part: ReadPart) -> bool:
        """Whether the part may ask for more."""

    def took(self, part: ReadPart, found: Sequence[Found], now_s: float) -> None:
        """Take what the part found next."""


class ReadPart(Procedure[None]):
    """Reads [first, last] in order and hands what it finds to `whole`.

    Attributes:
        position: the next entry that is to be found.
        is_cut_short: of an unconfirmed read: it ended before an entry that is missing.
        unanswered: when it failed: bookies that did not answer and may have the entry.
    """

    def __init__(self, whole: Range, first: EntryId, last: EntryId) -> None:
        super().__init__()
        self.position = first
        self.is_cut_short = False
        self.unanswered: frozenset[BookieId] = frozenset()
        self._whole = whole
        self._last = last
        self._asked: dict[BookieId, int] = {}
        self._timer: int | None = None
        self._replicas = Replicas()
        self._is_waiting_for_room = False
        self._metadata_was_read = False
        self._absent_before_read: frozenset[BookieId] = frozenset()
        self._metadata_error: Error | None = None
        self._give_up_at_s = 0.0
        self._backoff: Backoff | None = None

    def begin(self, now_s: float) -> None:
        """Ask for the first entries."""
        self._step(now_s)

    def go_on(self, now_s: float) -> None:
        """There may be room again."""
        if self._is_waiting_for_room:
            self._is_waiting_for_room = False
            self._step(now_s)

    def end_here(self) -> bool:
        """Leave what was not found yet to others; False: all of it was found."""
        is_short = self.position <= self._last
        self._last = self.position - 1
        return is_short

    # --- asking ------------------------------------------------------------------------------------------------

    def _step(self, now_s: float) -> None:
        """Ask for the entries at `position`, in a fresh step."""
        if self.position > self._last:
            self._finish(None, now_s)
            return
        if not self._whole.has_room(self):
            self._is_waiting_for_room = True
            return
        options = self._whole.options
        if self._backoff is None:
            self._backoff = options.pacing.backoff(now_s)
            self._give_up_at_s = now_s + options.pacing.give_up_s
        if options.parallel:
            while self._request_next(now_s):
                pass
        elif self._request_next(now_s) and options.speculative_s is not None:
            self._arm(Backoff(options.speculative_s, math.inf))
        if not self._asked:
            self._all_replied(now_s)

    def _arm(self, backoff: Backoff) -> None:
        def woken(now_s: float) -> None:
            self._timer = None
            if self._asked and self._request_next(now_s):
                self._arm(backoff)

        self._timer = self._sleep(backoff.next_s(), woken)  # exact: users set it

    def _request_next(self, now_s: float) -> bool:
        """Ask the best bookie that was not asked yet; False: there is none."""
        members, end = self._members()
        for bookie_id in self._whole.in_order(members):
            if bookie_id not in self._asked and bookie_id not in self._replicas.said:
                self._ask_for(bookie_id, end, now_s)
                return True
        return False

    def _ask_for(self, bookie_id: BookieId, end: EntryId, now_s: float) -> None:
        options = self._whole.options
        last = self._last_held_by(bookie_id, end)
        first = self.position
        request = ReadEntries(first, last, options.batch_entries, options.batch_bytes)
        left_s = self._give_up_at_s - now_s
        share_s = max(TRY_S_MIN, left_s / (self._whole.metadata.write_quorum + 1))
        timeout_s = min(options.pacing.request_timeout_s, share_s)
        answered = partial(self._answered, bookie_id, request, now_s)
        self._asked[bookie_id] = self._ask(bookie_id, request, timeout_s, answered)

    def _members(self) -> tuple[list[BookieId], EntryId]:
        """Return the bookies that hold `position`, and the last entry of its fragment that is wanted."""
        metadata = self._whole.metadata
        end = self._last
        ensemble = metadata.fragments[0].ensemble
        for fragment in metadata.fragments:
            if fragment.first_entry_id > self.position:
                end = min(end, fragment.first_entry_id - 1)
                break
            ensemble = fragment.ensemble
        indexes = write_set(self.position, len(ensemble), metadata.write_quorum)
        if metadata.write_quorum == len(ensemble):
            return list(ensemble), end
        # The bookie for which this entry is the first of a run holds the most of what follows.
        return [ensemble[one] for one in reversed(indexes)], end

    def _last_held_by(self, bookie_id: BookieId, end: EntryId) -> EntryId:
        metadata = self._whole.metadata
        ensemble = metadata.fragment_of(self.position).ensemble
        size = len(ensemble)
        if metadata.write_quorum == size:
            return end
        offset = (ensemble.index(bookie_id) - self.position) % size
        # Entry e is held by the indexes e mod E and the Qw - 1 behind it.
        return min(end, self.position + offset)

    # --- answers -----------------------------------------------------------------------------------------------

    def _answered(
        self,
        bookie_id: BookieId,
        request: ReadEntries,
        asked_s: float,
        outcome: Outcome,
        now_s: float,
    ) -> None:
        del self._asked[bookie_id]
        self._whole.options.noted(bookie_id, outcome, asked_s, now_s)
        if isinstance(outcome, Reply) and outcome.status == Status.OK:
            found = _consecutive(outcome.found, request.first, request.last)
            self._replied(bookie_id, request, outcome, found, now_s)
        else:
            self._failed(bookie_id, outcome, now_s)

    def _replied(
        self,
        bookie_id: BookieId,
        request: ReadEntries,
        reply: Reply,
        found: Sequence[Found],
        now_s: float,
    ) -> None:
        if found:
            self._moved(len(found))
        missing: Reply | None = None
        if self.position <= request.last:
            if reply.damaged and len(found) == len(reply.found):
                missing = reply
            elif reply.next_entry_id > self.position:
                # Passing an id over is the same word of honour as NO_ENTRY.
                missing = Reply(Status.NO_ENTRY)
        if not found:
            self._failed(bookie_id, missing or Reply(Status.OK), now_s)
            return
        if missing is not None:
            # It need not be asked for that one.
            self._replicas.record_reply(bookie_id, missing)
            self._whole.skipped += 1
        self._whole.took(self, found, now_s)
        self._step(now_s)

    def _moved(self, count: int) -> None:
        for other, tag in self._asked.items():
            if not self._whole.options.parallel:
                self._whole.was_slow(other)
            self._withdraw(tag)
        self._asked.clear()
        if self._timer is not None:
            self._withdraw(self._timer)
            self._timer = None
        self.position += count
        self._replicas = Replicas()
        self._backoff = None
        self._metadata_was_read = False

    def _failed(self, bookie_id: BookieId, outcome: Outcome, now_s: float) -> None:
        self._replicas.record_reply(bookie_id, outcome)
        self._whole.skipped += 1
        if isinstance(outcome, Error):
            self._whole.was_slow(bookie_id)
        if self._replicas.closed is not None:
            self._fail(self._replicas.closed, now_s)
        elif not self._request_next(now_s) and not self._asked:
            self._all_replied(now_s)

    # --- when nobody gave it -----------------------------------------------------------------------------------

    def _all_replied(self, now_s: float) -> None:
        if self._timer is not None:
            self._withdraw(self._timer)
            self._timer = None
        # Another part may have read newer metadata meanwhile: who is not to hold the entry by that proves nothing.
        absent = self._replicas.absent.intersection(self._members()[0])
        is_absent = self._is_proof(absent)
        if not self._metadata_was_read or (
            is_absent and not self._is_proof(self._absent_before_read.intersection(absent))
        ):
            # The copies may have moved to other bookies since; and whoever was replaced says "no" in good faith, so
            # what proves an absence was all said before the metadata that names those bookies is read.
            self._read_newest_metadata()
            return
        if is_absent:
            if self._metadata_error is None or self._whole.options.is_unconfirmed:
                self._is_missing(now_s)
            else:
                self._may_have_moved(self._metadata_error, now_s)
            return
        passing = () if self._replicas.not_allowed else tuple(self._replicas.passing)
        assert self._backoff is not None
        pause_s = self._backoff.next_in_time_s(now_s) if passing else None
        if pause_s is None:
            what = f"entry {self.position} of ledger {self._whole.ledger_id} could not be read"
            error = self._replicas.error(
                what, ledger_id=self._whole.ledger_id, entry_id=self.position
            )
            self.unanswered = frozenset(passing)
            self._fail(error, now_s)
            return

        def woken(at_s: float) -> None:
            self._replicas.forget(passing)
            self._step(at_s)

        self._retry_in(pause_s, woken)

    def _may_have_moved(self, error: Error, now_s: float) -> None:
        """Those asked never had the entry; whether others have it by now only the metadata can tell: a bookie that was
        replaced before the entry came to it says "no" in good faith."""
        assert self._backoff is not None
        pause_s = self._backoff.next_in_time_s(now_s)
        if pause_s is None or not isinstance(error, MetadataUnavailable):
            self._fail(error, now_s)
            return
        self._retry_in(pause_s, lambda _: self._read_newest_metadata())

    def _read_newest_metadata(self) -> None:
        self._metadata_was_read = True
        self._absent_before_read = frozenset(self._replicas.absent)
        self._read_metadata(self._metadata_read)

    def _metadata_read(self, outcome: Outcome, now_s: float) -> None:
        self._metadata_error = outcome if isinstance(outcome, Error) else None
        if isinstance(outcome, VersionedLedger):
            before, _ = self._members()
            self._whole.metadata = outcome.metadata
            after, _ = self._members()
            if before != after:
                self._replicas.forget(set(before).difference(after))
                self._step(now_s)
                return
        self._all_replied(now_s)

    def _is_proof(self, absent: Collection[BookieId]) -> bool:
        metadata = self._whole.metadata
        return len(absent) >= missing_proof(metadata.write_quorum, metadata.ack_quorum)

    def _is_missing(self, now_s: float) -> None:
        if self._whole.options.is_unconfirmed:
            self.is_cut_short = True
            self._finish(None, now_s)
            return
        ledger_id = self._whole.ledger_id
        self._fail(
            NoSuchEntry(
                f"entry {self.position} of ledger {ledger_id} was never acknowledged: read only up to the LAC",
                ledger_id=ledger_id,
                entry_id=self.position,
                replicas=self._replicas.said,
            ),
            now_s,
        )


def _consecutive(found: Sequence[Found], first: EntryId, last: EntryId) -> Sequence[Found]:
    """Return the leading entries with the ids first, first + 1, ... up to `last`."""
    count = len(found)
    # Ids ascend, so the ends tell about all of them: no look at each entry of a good answer.
    if count and found[0].entry_id == first and found[-1].entry_id == first + count - 1 <= last:
        return found
    taken = 0
    while taken < count and found[taken].entry_id == first + taken <= last:
        taken += 1
    return found[:taken]
