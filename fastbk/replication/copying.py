"""Copying the share that one bookie holds of a fragment to another bookie.

Copies are written with the recovery flag, so fenced ledgers can be repaired, and say what the originals said. It goes
on past entries that nobody has, and counts them. It stops at an entry that bookies may have that do not answer.

The short runs of a striped ledger's share are read many at once (`ReadSpan`). What that does not get is read run by run
(`ReadRange`), and so is every share of a ledger that is not striped. Consecutive copies are added in one request, and
one by one where a bookie does not take several: one of Apache's, or one that has some of them otherwise.

Copying rests for the rate and for the bookies' back-pressure, at the source and at the target.

Decisions 110 and 112.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastbk.errors import ClientClosed, MetadataUnavailable, NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import share, write_set
from fastbk.placement.config import Distance
from fastbk.replication.options import ReadOptions
from fastbk.replication.procedure import (
    AddEntries,
    AddEntry,
    Found,
    Gather,
    Outcome,
    Procedure,
    ReadEntries,
    Reply,
    SendRequest,
    Steps,
    attempt,
)
from fastbk.replication.reading import ReadRange
from fastbk.replication.repair_options import RepairOptions
from fastbk.replication.replicas import PASSING_STATUSES
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status, status_name

LOST_LISTED_MAX = 100
PRESSED_SHARE = 0.5
"""A bookie with which copying may work less than this is asked behind the others."""
_ADD_TRIES_MAX = 5


@dataclass(slots=True)
class ShareCopied:
    """What became of one share: entries and bytes written, ids that nobody could give (the first 100 by name).

    `refused_count`, `refused`: ids that the target holds with other bytes, where that is passed over (the first 100).
    `unread`: why the copying stopped: no holder of an entry could give it, and `unanswered`, which may have it, did not
    answer. The entry is not lost; the share is copied once these answer.
    """

    entries: int = 0
    last_entry_id: EntryId = -1
    """The highest one that was written."""
    last_taken_s: float = 0.0
    """When the target took an entry last."""
    silence_s: float = 0.0
    """The longest time between two entries that the target took."""
    size_bytes: int = 0
    lost_count: int = 0
    lost: dict[EntryId, str] = field(default_factory=dict)
    refused_count: int = 0
    refused: list[EntryId] = field(default_factory=list)
    unread: str = ""
    unanswered: frozenset[BookieId] = frozenset()


@dataclass(slots=True)
class LedgerCopied:
    """What became of one ledger's copies.

    Attributes:
        size_bytes: copied. lost_count, lost: entries of which nobody has a good copy (the first 100 by name).
        left: parts (by first entry) that were not made whole, and why.
        parked: parts among them that can be copied once bookies answer that did not; and those bookies.
        is_deleted: it was deleted meanwhile.
    """

    ledger_id: LedgerId
    size_bytes: int = 0
    lost_count: int = 0
    lost: dict[EntryId, str] = field(default_factory=dict)
    left: dict[EntryId, str] = field(default_factory=dict)
    parked: dict[EntryId, frozenset[BookieId]] = field(default_factory=dict)
    is_deleted: bool = False

    @property
    def is_parked(self) -> bool:
        """Whether all that is left waits for bookies that do not answer."""
        return bool(self.left) and self.left.keys() == self.parked.keys()

    def count_lost(self, copied: ShareCopied) -> None:
        """Add the entries that nobody could give."""
        self.lost_count += copied.lost_count
        self.lost.update(copied.lost)

    def park(self, first: EntryId, copied: ShareCopied) -> None:
        """Leave the part from `first` on as it is until bookies answer that did not."""
        self.left[first] = copied.unread
        self.parked[first] = copied.unanswered


def share_of(
    index: int, metadata: LedgerMetadata, first: EntryId, last: EntryId
) -> Iterator[tuple[EntryId, EntryId]]:
    """Yield the runs of ids of [first, last] that bookie `index` of the ensemble is to hold, ascending."""
    return share(index, metadata.ensemble_size, metadata.write_quorum, first, last)


class Standing(NamedTuple):
    """By what a copier prefers one source to another: the lower goes first.

    A bookie whose writers wait for copying comes behind the others of the region; but to spare it, nothing is copied
    from another region: copying rests for it instead (INV-P9).
    """

    is_far: bool = False
    is_pressed: bool = False
    distance: Distance = Distance.UNKNOWN


def unknown_standing(bookie_id: BookieId) -> Standing:
    """All are as good."""
    return Standing()


class CopyShare(Procedure[ShareCopied]):
    """Copies the share of one index of a fragment to `target`; fails when the target cannot take it."""

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        fragment: Fragment,
        index: int,
        last: EntryId,
        target: BookieId,
        options: RepairOptions,
        *,
        runs: Iterator[tuple[EntryId, EntryId]] | None = None,
        passes_conflicts: bool = False,
        holder_is_up: bool = False,
    ) -> None:
        """Begin.

        Args:
            runs: only these ranges of ids of the share, ascending.
            passes_conflicts: what the target holds with other bytes is counted, and the rest copied.
            holder_is_up: the bookie whose share it is gives it, too; else it is lost, and is asked last.
        """
        super().__init__()
        self.copied = ShareCopied()
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._fragment = fragment
        self._holder = fragment.ensemble[index]
        self._lost = frozenset[BookieId]() if holder_is_up else frozenset({self._holder})
        if runs is None:
            runs = share_of(index, metadata, fragment.first_entry_id, last)
        self._runs = runs
        self._target = target
        self._options = options
        self._passes_conflicts = passes_conflicts
        self._reading: ReadRange | None = None
        self._run_last: EntryId = -1
        self._is_striped = metadata.ensemble_size > metadata.write_quorum
        self._ahead: deque[Run] = deque()
        self._left: deque[Run] = deque()
        self._silent: set[BookieId] = set()
        self._spans = 0
        self._is_resting = False
        self._is_read = False
        self._patience_s = options.patience_s
        self._worked_with: set[BookieId] = set()
        self._worked_from_s = 0.0
        self._takes_batches = options.batch_entries_max > 1
        self._queue: deque[Found] = deque()
        self._entries_in_flight = 0
        self._bytes_in_flight = 0

    def begin(self, now_s: float) -> None:
        """Read the first run."""
        self._worked_from_s = now_s
        self._pump(now_s)

    def _pump(self, now_s: float) -> None:
        options = self._options
        while (
            self._queue
            and self._entries_in_flight < options.entries_in_flight_max
            and (
                self._entries_in_flight == 0 or self._bytes_in_flight < options.bytes_in_flight_max
            )
        ):
            self._write(self._next_batch(), now_s)
        if not self._is_resting and not self._is_read and not self._queue:
            self._read(now_s)
        if self._is_read and not self._queue and not self._entries_in_flight:
            self._finish(self.copied, now_s)

    # --- reading -----------------------------------------------------------------------------------------------

    def _read(self, now_s: float) -> None:
        """Take what was read, no faster than allowed, or begin with the next run."""
        wait_s = self._options.wait_s(self._worked_with, now_s - self._worked_from_s, now_s)
        if wait_s > 0:
            self._is_resting = True
            self._sleep(wait_s, self._woken)
        elif self._reading is not None:
            self._take(self._reading, now_s)
        elif self._left:
            self._begin_run(*self._left.popleft(), now_s)
        elif not (runs := self._next_runs()):
            self._is_read = True
        elif self._is_striped:
            self._begin_span(runs, now_s)
        else:
            self._begin_run(*runs[0], now_s)

    def _next_runs(self) -> list[Run]:
        """Return the next run, of a striped ledger as many as one answer may hold; none at the end."""
        runs: list[Run] = []
        entries = 0
        while not runs or (self._is_striped and entries < self._options.read_entries_max):
            run = self._ahead.popleft() if self._ahead else next(self._runs, None)
            if run is None:
                break
            runs.append(run)
            entries += run[1] - run[0] + 1
        return runs

    def _begin_span(self, runs: list[Run], now_s: float) -> None:
        metadata, options = self._metadata, self._read_options()
        self._spans += 1
        turn = self._ledger_id + self._spans
        away = self._silent | self._lost
        sources = choose_sources(metadata, self._fragment, self._holder, away, turn, self._standing)
        span = ReadSpan(self._ledger_id, metadata.ensemble_size, runs, sources, options)
        self._is_resting = True
        self._run(span, self._span_read, now_s)

    def _span_read(self, span: Procedure[SpanRead], now_s: float) -> None:
        read = span.value()
        self._is_resting = False
        self._silent |= read.silent
        self._left.extend(read.left)
        self._ahead.extendleft(reversed(read.ahead))
        self._found(read.found, now_s)

    def _begin_run(self, first: EntryId, last: EntryId, now_s: float) -> None:
        reading = ReadRange(
            self._ledger_id,
            self._metadata,
            first,
            last,
            self._read_options(),
            self._in_order,
            self._pump,
        )
        self._reading, self._run_last = reading, last
        self._run(reading, lambda _, at_s: self._pump(at_s), now_s)

    def _in_order(self, bookies: Sequence[BookieId]) -> list[BookieId]:
        """Return whom to ask first: each ledger another one, so that not one bookie gives all; the lost one last."""
        first = self._ledger_id % len(bookies)
        return sorted(
            (*bookies[first:], *bookies[:first]),
            key=lambda bookie: (bookie in self._lost, self._standing(bookie)),
        )

    def _standing(self, bookie_id: BookieId) -> Standing:
        distance = self._options.distance(bookie_id)
        is_pressed = self._options.pressure.share(bookie_id) < PRESSED_SHARE
        return Standing(distance is Distance.OTHER, is_pressed, distance)

    def _read_options(self) -> ReadOptions:
        return self._options.reads(self._patience_s, self._was_asked)

    def _was_asked(
        self, bookie_id: BookieId, outcome: Outcome, asked_s: float, now_s: float
    ) -> None:
        self._worked_with.add(bookie_id)
        self._options.note_read(bookie_id, outcome, asked_s, now_s)

    def _take(self, reading: ReadRange, now_s: float) -> None:
        found = reading.take_found(now_s)
        if not found:
            if reading.is_finished:
                self._run_over(reading, now_s)
            return
        self._found(found, now_s)

    def _found(self, found: list[Found], now_s: float) -> None:
        """Queue what was read; the rate counts what is copied."""
        self._queue.extend(found)
        size_bytes = sum(len(one.data) for one in found)
        self._options.rate.spend(size_bytes, now_s)
        self._pump(now_s)

    def _run_over(self, reading: ReadRange, now_s: float) -> None:
        """Go on behind a run that was read, or behind the entry in it that nobody has: it is written off.

        An entry that a silent bookie may have is not written off: copying ends there. To wait for the same bookie at
        each entry anew would take days.
        """
        self._reading = None
        error = reading.error
        if isinstance(error, ClientClosed):
            self._fail(error, now_s)
            return
        unanswered = reading.unanswered - self._lost
        if error is not None and (unanswered or isinstance(error, MetadataUnavailable)):
            self.copied.unread, self.copied.unanswered = str(error), unanswered
            self._is_read = True
            self._pump(now_s)
            return
        if error is not None:
            # Whoever else may have it has answered; the lost bookie had its time.
            self._patience_s = 0.0
            self.copied.lost_count += 1
            if len(self.copied.lost) < LOST_LISTED_MAX:
                self.copied.lost[reading.position] = str(error)
            if reading.position < self._run_last:
                self._begin_run(reading.position + 1, self._run_last, now_s)
                return
        self._read(now_s)

    def _woken(self, now_s: float) -> None:
        self._is_resting = False
        self._worked_from_s = now_s
        self._worked_with.clear()
        self._pump(now_s)

    # --- writing -----------------------------------------------------------------------------------------------

    def _next_batch(self) -> list[Found]:
        """Take consecutive entries from the queue, as many as go into one request."""
        options, queue = self._options, self._queue
        batch = [queue.popleft()]
        size_bytes = len(batch[0].data)
        most = (
            min(options.batch_entries_max, options.entries_in_flight_max)
            if self._takes_batches
            else 1
        )
        while (
            queue
            and len(batch) < most
            and queue[0].entry_id == batch[-1].entry_id + 1
            and size_bytes + len(queue[0].data) <= options.batch_bytes_max
        ):
            size_bytes += len(queue[0].data)
            batch.append(queue.popleft())
        return batch

    def _write(
        self, batch: list[Found], asked_s: float, tries: int = 1, former: Backoff | None = None
    ) -> None:
        size_bytes = sum(len(one.data) for one in batch)
        self._entries_in_flight += len(batch)
        self._bytes_in_flight += size_bytes
        options = self._options
        backoff = former or Backoff(2 * options.backoff_min_s, options.backoff_max_s)

        def answered(outcome: Outcome, now_s: float) -> None:
            self._worked_with.add(self._target)
            options.note_write(self._target, outcome, asked_s, now_s)
            status = outcome.status if isinstance(outcome, Reply) else None
            if (status is None or status in PASSING_STATUSES) and tries < _ADD_TRIES_MAX:
                self._retry_in(backoff.next_s(), again)
                return
            settled()
            if status == Status.OK:
                self._taken(batch, size_bytes, now_s)
            elif len(batch) > 1 and status is not None:
                # One of Apache's, one with other limits, or one that has some of them otherwise.
                self._takes_batches = self._takes_batches and status == Status.CONFLICT
                for one in batch:
                    self._write([one], now_s)
                return
            elif self._passes_conflicts and status == Status.CONFLICT:
                self._refused(batch[0].entry_id)
            else:
                said = str(outcome) if status is None else status_name(status)
                self._fail(self._not_taken(batch[0].entry_id, said), now_s)
                return
            self._pump(now_s)

        def settled() -> None:
            self._entries_in_flight -= len(batch)
            self._bytes_in_flight -= size_bytes

        def again(at_s: float) -> None:
            settled()
            self._write(batch, at_s, tries + 1, backoff)

        # The copies say what the originals said: LACs and lengths are those that they were written with.
        first = batch[0]
        request = (
            AddEntries(batch)
            if len(batch) > 1
            else AddEntry(first.entry_id, first.lac, first.length, first.data, recovery=True)
        )
        self._ask(self._target, request, options.request_timeout_s, answered)

    def _taken(self, batch: Sequence[Found], size_bytes: int, now_s: float) -> None:
        copied = self.copied
        if copied.entries:
            copied.silence_s = max(copied.silence_s, now_s - copied.last_taken_s)
        copied.last_taken_s = now_s
        copied.entries += len(batch)
        copied.last_entry_id = max(copied.last_entry_id, batch[-1].entry_id)
        copied.size_bytes += size_bytes
        self._options.copied(len(batch), size_bytes)

    def _refused(self, entry_id: EntryId) -> None:
        self.copied.refused_count += 1
        if len(self.copied.refused) < LOST_LISTED_MAX:
            self.copied.refused.append(entry_id)

    def _not_taken(self, entry_id: EntryId, said: str) -> NotEnoughBookies:
        return NotEnoughBookies(
            f"ledger {self._ledger_id}: bookie {self._target} did not take entry {entry_id}",
            ledger_id=self._ledger_id,
            entry_id=entry_id,
            replicas={self._target: said},
        )


# --- reading spans --------------------------------------------------------------------------------
#
# Reading one bookie's share of a striped fragment in few requests: of each other holder a whole
# span of ids. Pure.
#
# The share of an ensemble's bookie is many short runs: with E = 3 and Qw = 2, two ids of each
# three. A request for each run costs more than its entries. So a few holders, which have the whole
# share together, are asked for everything that they hold of a span, and what is not of the share is
# dropped: with Qw = 2 that is half, in general less than that.
#
# It asks each holder once and proves nothing. What it does not get is `left`, and is read with all
# patience by `ReadRange`, which asks every holder before it says that an entry is lost.


Run = tuple[EntryId, EntryId]


@dataclass(slots=True)
class SpanRead:
    """What came of a span.

    Attributes:
        found: entries of the share, by rising id. left: runs that no answer had.
        ahead: runs behind what the shortest answer reached, untouched.
        silent: holders that gave nothing at all.
    """

    found: list[Found] = field(default_factory=list)
    left: list[Run] = field(default_factory=list)
    ahead: list[Run] = field(default_factory=list)
    silent: set[BookieId] = field(default_factory=set)


def choose_sources(
    metadata: LedgerMetadata,
    fragment: Fragment,
    holder: BookieId,
    away: Collection[BookieId],
    turn: int,
    standing: Callable[[BookieId], Standing] = unknown_standing,
) -> dict[int, BookieId]:
    """Return who is asked for which ids of the share, by id modulo E: few holders, and not the same ones each `turn`.

    The share is that of `holder`, which gives it alone unless it is `away`, far or pressed. Ids that only those that
    are away hold are not in it. Far and pressed ones are asked only for what others lack.
    """
    size, ensemble = metadata.ensemble_size, fragment.ensemble
    index_of_share = ensemble.index(holder)
    holders = {one: write_set(one, size, metadata.write_quorum) for one in range(size)}
    due = {one for one, indexes in holders.items() if index_of_share in indexes}
    candidates = [
        (index_of_share + turn + offset) % size
        for offset in range(size)
        if ensemble[(index_of_share + turn + offset) % size] not in away
    ]
    stands = {index: standing(ensemble[index]) for index in candidates}
    candidates.sort(key=stands.__getitem__)
    chosen: dict[int, BookieId] = {}
    while due and candidates:
        best = min(
            candidates,
            key=lambda index: (
                stands[index].is_far,
                stands[index].is_pressed,
                -sum(index in holders[one] for one in due),
            ),
        )
        covered = {one for one in due if best in holders[one]}
        candidates.remove(best)
        chosen.update(dict.fromkeys(covered, ensemble[best]))
        due -= covered
    return chosen


class ReadSpan(Procedure[SpanRead]):
    """Reads these runs of one share, each id from the holder in `sources`; the value is a `SpanRead`."""

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble_size: int,
        runs: Sequence[Run],
        sources: Mapping[int, BookieId],
        options: ReadOptions,
    ) -> None:
        super().__init__()
        self._ledger_id = ledger_id
        self._runs = runs
        self._span = SpanRead()
        self._options = options
        self._wanted: dict[BookieId, set[EntryId]] = {}
        for first, last in runs:
            for entry_id in range(first, last + 1):
                source = sources.get(entry_id % ensemble_size)
                if source is not None:
                    self._wanted.setdefault(source, set()).add(entry_id)
        self._last = runs[-1][1]

    def steps(self) -> Steps[SpanRead]:
        """Ask all at once."""
        parts = yield from Gather(self._read_from(*one) for one in self._wanted.items())
        return self._sorted([one for part in parts for one in part if one.entry_id <= self._last])

    def _read_from(self, source: BookieId, wanted: set[EntryId]) -> Steps[list[Found]]:
        """Return what a holder has of its part."""
        options, asked_s, last = self._options, self._now_s, max(wanted)
        request = ReadEntries(min(wanted), last, options.batch_entries, options.batch_bytes)
        outcome = yield from attempt(SendRequest(source, request, options.pacing.request_timeout_s))
        options.noted(source, outcome, asked_s, self._now_s)
        if not isinstance(outcome, Reply) or outcome.status != Status.OK:
            self._span.silent.add(source)
            return []
        # What is damaged hides how far the answer goes: the rest of this holder's part is left.
        if not outcome.damaged and request.first < outcome.next_entry_id <= last:
            self._last = min(self._last, outcome.next_entry_id - 1)
        return [one for one in outcome.found if one.entry_id in wanted]

    def _sorted(self, found: list[Found]) -> SpanRead:
        """Return what was found, and the runs that are left or ahead."""
        read = self._span
        read.found = sorted(found, key=lambda one: one.entry_id)
        there = {one.entry_id for one in read.found}
        for first, last in self._runs:
            if last > self._last:
                read.ahead.append((max(first, self._last + 1), last))
            for entry_id in range(first, min(last, self._last) + 1):
                if entry_id in there:
                    continue
                if read.left and read.left[-1][1] == entry_id - 1:
                    read.left[-1] = read.left[-1][0], entry_id
                else:
                    read.left.append((entry_id, entry_id))
        return read
