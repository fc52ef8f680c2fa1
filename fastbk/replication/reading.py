"""Reading a range of entries in order, from whichever replicas can give them.

Where E = Qw the range is asked for in batches, a striped ledger's in runs of ids that one bookie holds; several parts
of the range at the same time. The first answer of an unstriped ledger tells how many entries an answer has: from then
on its parts are as long as that and asked for side by side, as far as all of them have room, so that a bookie has the
next one to do while this one is received. They go to the same bookie: it reads ahead for who goes on and on.

The first bookie of the order is asked; the next one when its copy is missing, damaged, or not to be had. With
`speculative_s` the next one is asked as well when no answer came for so long, with `parallel` all are asked at once.
Only when all of a write set were asked without success is it an error, which names what each said. Those that are away
or busy are asked again until `pacing.give_up_s` passed without progress. Before that the metadata is read once more:
copies may have moved.

For the driver: `ReadRange(ledger_id, metadata, first, last, options, order)` is a procedure whose value is None; what
it found is pulled, in order and as soon as it is there:

    reading.start(now_s)
    loop:  perform reading.take_actions()
           found = reading.take_found(now_s)   # [] when nothing is there yet; may cause actions: take them again
           if found: hand it out
           elif reading.is_finished: reading.value(); done
           else wait for an outcome, reading.completed(tag, outcome, now_s)

What was found and not taken is bounded: a reader that does not take stops the asking. An error comes behind everything
that was found before it. It asks for ReadEntries, Sleep and, when nobody has an entry, ReadMetadata. A procedure that
has it as a part is told by `on_found(now_s)` that there is something to take.

Unconfirmed reading (`is_unconfirmed`): the range ends without an error before the first entry that is missing.
Errors: NoSuchEntry only with Qw - Qa + 1 proofs; DigestMismatch, Unauthorized, else NotEnoughBookies.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from fastbk.errors import Error, MetadataUnavailable, NoSuchEntry
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import missing_proof, write_set
from fastbk.replication.entry_table import size_bytes_of
from fastbk.replication.options import Order, ReadOptions, unordered
from fastbk.replication.procedure import Found, Outcome, Procedure, ReadEntries, ReadMetadata, Reply
from fastbk.replication.replicas import Replicas
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status

__all__ = ["Order", "ReadOptions", "ReadRange", "unordered"]

# How many parts of a striped ledger are read at the same time, and how long each is.
STRIPED_PARTS = 8
STRIPED_PART_ENTRIES = 64
# How many parts of another one are read at the same time, as far as what is asked for stays below `size_bytes_max`.
BATCHED_PARTS = 4
# What an entry has in an answer beside its data, about; and how full an answer is meant to be, for sizes differ.
_ENTRY_OVERHEAD_BYTES = 64
_FILLED = 0.9


class ReadRange(Procedure[None]):
    """Reads [first, last]; see the module's text.

    Attributes:
        position: the next entry to be taken.
        metadata: the newest that this procedure knows.
        slow: bookie id -> how often another was quicker, or it did not answer; for the order of later reads.
        skipped: how many copies were missing, damaged or not to be had.
        unanswered: bookies that may have the entry that it failed at, and did not answer.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        options: ReadOptions | None = None,
        order: Order = unordered,
        on_found: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__()
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.options = ReadOptions() if options is None else options
        self.position = first
        self.slow: dict[BookieId, int] = {}
        self.skipped = 0
        self.unanswered: frozenset[BookieId] = frozenset()
        self._order = order
        self._on_found = on_found
        self._last = last
        self._next_part = first
        self._unfinished: deque[ReadPart] = deque()
        self._behind: dict[ReadPart, list[Sequence[Found]]] = {}
        self._ready: list[Sequence[Found]] = []
        self._ready_bytes = 0
        self._behind_bytes = 0
        self._is_striped = metadata.ensemble_size != metadata.write_quorum
        # Until the first answer tells how large entries are there is one part, which ends with it.
        self._parts_max = STRIPED_PARTS if self._is_striped else 1
        self._part_entries = STRIPED_PART_ENTRIES if self._is_striped else max(1, last - first + 1)

    def begin(self, now_s: float) -> None:
        """Ask for the first entries."""
        self._begin_parts(now_s)
        self._end_if_read(now_s)

    def take_found(self, now_s: float) -> list[Found]:
        """Return the next entries in order, as many as are there; makes room for more: take the actions then."""
        return list(chain.from_iterable(self.take_tables(now_s)))

    def take_tables(self, now_s: float) -> list[Sequence[Found]]:
        """Like `take_found`, what each answer gave as it came: at least one entry each, no object made for any."""
        runs, self._ready = self._ready, []
        self._ready_bytes = 0
        if runs:
            self.position = runs[-1][-1].entry_id + 1
            if not self.is_finished:
                for part in list(self._unfinished):
                    part.go_on(now_s)
                self._begin_parts(now_s)
        return runs

    @property
    def found_bytes(self) -> int:
        """Data that was found and not taken yet."""
        return self._ready_bytes + self._behind_bytes

    # --- for the parts -----------------------------------------------------------------------------------------

    def in_order(self, bookies: Sequence[BookieId]) -> list[BookieId]:
        """Return these as they are to be asked: the order of the caller's, those that were slow here last."""
        ordered = list(self._order(bookies))
        if self.slow:
            ordered.sort(key=self.slow.__contains__)
        return ordered

    def was_slow(self, bookie_id: BookieId) -> None:
        """Ask that one last from now on."""
        self.slow[bookie_id] = self.slow.get(bookie_id, 0) + 1

    def has_room(self, part: ReadPart) -> bool:
        """Whether a part may ask; the first one always when there is nothing to take, so that it goes on."""
        if self.found_bytes < self.options.size_bytes_max:
            return True
        return not self._ready and part is self._unfinished[0]

    def took(self, part: ReadPart, found: Sequence[Found], now_s: float) -> None:
        """Keep what a part found."""
        size_bytes = size_bytes_of(found)
        if not self._is_striped:
            self._learn_sizes(part, len(found), size_bytes)
        if part is self._unfinished[0]:
            self._now_ready([found], size_bytes, now_s)
        else:
            self._behind.setdefault(part, []).append(found)
            self._behind_bytes += size_bytes

    # --- inside ------------------------------------------------------------------------------------------------

    def _learn_sizes(self, part: ReadPart, count: int, size_bytes: int) -> None:
        """Make parts as long as an answer; the one that was to be the whole range ends here."""
        options = self.options
        entry_bytes = size_bytes / count + _ENTRY_OVERHEAD_BYTES
        wanted = int(_FILLED * options.batch_bytes / entry_bytes)
        self._part_entries = max(1, min(wanted, options.batch_entries))
        if self._parts_max == 1 and part.end_here():
            self._parts_max = BATCHED_PARTS
            self._next_part = part.position

    def _may_begin(self) -> bool:
        under_way = len(self._unfinished)
        if under_way == 0 or self._is_striped:
            return under_way < self._parts_max
        # Each may bring an answer before the first one that is taken.
        asked_bytes = (under_way + 1) * self.options.batch_bytes
        is_room = self.found_bytes + asked_bytes <= self.options.size_bytes_max
        return under_way < self._parts_max and is_room

    def _begin_parts(self, now_s: float) -> None:
        while not self.is_finished and self._next_part <= self._last and self._may_begin():
            first = self._next_part
            last = min(self._last, first + self._part_entries - 1)
            self._next_part = last + 1
            part = ReadPart(self, first, last)
            self._unfinished.append(part)
            self._run(part, self._part_ended, now_s)

    def _part_ended(self, _: Procedure[None], now_s: float) -> None:
        """Hand on what is in order now."""
        while self._unfinished and self._unfinished[0].is_finished:
            part = self._unfinished.popleft()
            if part.error is not None:
                self.unanswered = part.unanswered
                self._fail(part.error, now_s)
                return
            if part.is_cut_short:
                self._finish(None, now_s)
                return
            if self._unfinished:
                self._in_front(self._unfinished[0], now_s)
        self._begin_parts(now_s)
        self._end_if_read(now_s)

    def _in_front(self, part: ReadPart, now_s: float) -> None:
        """That part is the first now: what it found so far is ready."""
        runs = self._behind.pop(part, [])
        size_bytes = sum(map(size_bytes_of, runs))
        self._behind_bytes -= size_bytes
        if runs:
            self._now_ready(runs, size_bytes, now_s)
        part.go_on(now_s)

    def _now_ready(self, runs: Sequence[Sequence[Found]], size_bytes: int, now_s: float) -> None:
        self._ready.extend(runs)
        self._ready_bytes += size_bytes
        if self._on_found is not None:
            self._on_found(now_s)

    def _end_if_read(self, now_s: float) -> None:
        if not self._unfinished and self._next_part > self._last and not self.is_finished:
            self._finish(None, now_s)


# --- one part of a range --------------------------------------------------------------------------
#
# One consecutive part of a range, read step by step from the replicas that hold it.
#
# A step asks for entries from `position` on and ends with the first answer that gives some. What
# the bookies said about one position is forgotten when it moves.


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
        return [ensemble[index] for index in reversed(indexes)], end

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
            consecutive = _consecutive(outcome.found, request.first, request.last)
            self._replied(bookie_id, request, outcome, consecutive, now_s)
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
        self._act(ReadMetadata(), self._metadata_read)

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
        # The plain count, also where ack sets span domains: what a recovery wrote again may be in one (INV-Q5).
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
