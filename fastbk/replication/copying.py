"""Copying the share that one bookie holds of a fragment to another bookie.

Copies are written with the recovery flag, so fenced ledgers can be repaired, and say what the originals said. It goes
on past entries that nobody has, and counts them. It stops at an entry that bookies may have that do not answer.

The short runs of a striped ledger's share are read many at once (`ReadSpan`). What that does not get is read run by run
(`ReadRange`), and so is every share of a ledger that is not striped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from fastbk.errors import ClientClosed, MetadataUnavailable, NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import share
from fastbk.replication.actions import AddEntry, Found, Outcome, Reply
from fastbk.replication.copy_rate import CopyRate
from fastbk.replication.procedure import Procedure
from fastbk.replication.reading import ReadOptions, ReadRange
from fastbk.replication.replicas import PASSING_STATUSES, Pacing
from fastbk.replication.span_reading import ReadSpan, Run, SpanRead, choose_sources
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status, status_name

LOST_LISTED_MAX = 100
_ADD_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Bounds of a repair. `bytes_per_s` 0: as fast as it goes. `rate`: shared with other repairs, None: with none."""

    entries_in_flight_max: int = 256
    bytes_in_flight_max: int = 8 * 1024 * 1024
    read_entries_max: int = 1000
    read_bytes_max: int = 1024 * 1024
    bytes_per_s: float = 0.0
    rate: CopyRate | None = None
    request_timeout_s: float = 10.0
    metadata_timeout_s: float = 30.0
    patience_s: float = 20.0
    """How long a ledger waits for holders that do not answer, once; then it is parked (`ShareCopied.unread`)."""
    patience_after_s: float = 1.0
    """The same from then on, for the ledger's other fragments."""
    recheck_after_s: float = 3600.0
    """A target that was given nothing for so long before it is named gets its share again: what nobody counts on may
    have been dropped there meanwhile. Must be far shorter than any bookie's [gc] over_replicated_age.
    """
    backoff_min_s: float = 0.02
    backoff_max_s: float = 1.0

    def pacing(self, give_up_s: float) -> Pacing:
        """Return the pacing of requests that are given up after so long."""
        return Pacing(
            request_timeout_s=self.request_timeout_s,
            give_up_s=give_up_s,
            pause_min_s=self.backoff_min_s,
            pause_max_s=self.backoff_max_s,
        )

    def wait_s(self, now_s: float) -> float:
        """Return how long the shared rate has the next read wait."""
        return 0.0 if self.rate is None else self.rate.wait_s(now_s)

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Count what was read in the shared rate."""
        if self.rate is not None:
            self.rate.spend(size_bytes, now_s)

    def less_patient(self) -> RepairOptions:
        """Return the options for what is left of a ledger of which something had to be parked."""
        return replace(self, patience_s=min(self.patience_s, self.patience_after_s))


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
    ) -> None:
        """Begin.

        Args:
            runs: only these ranges of ids of the share, ascending.
            passes_conflicts: what the target holds with other bytes is counted, and the rest copied.
        """
        super().__init__()
        self.copied = ShareCopied()
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._fragment = fragment
        self._lost = fragment.ensemble[index]
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
        self._queue: deque[Found] = deque()
        self._entries_in_flight = 0
        self._bytes_in_flight = 0
        self._next_read_s = 0.0

    def begin(self, now_s: float) -> None:
        """Read the first run."""
        self._next_read_s = now_s
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
            self._write(self._queue.popleft())
        if not self._is_resting and not self._is_read and not self._queue:
            self._read(now_s)
        if self._is_read and not self._queue and not self._entries_in_flight:
            self._finish(self.copied, now_s)

    # --- reading -----------------------------------------------------------------------------------------------

    def _read(self, now_s: float) -> None:
        """Take what was read, no faster than allowed, or begin with the next run."""
        wait_s = max(self._next_read_s - now_s, self._options.wait_s(now_s))
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
        sources = choose_sources(metadata, self._fragment, self._lost, self._silent, turn)
        span = ReadSpan(self._ledger_id, metadata.ensemble_size, runs, sources, options)
        self._is_resting = True
        self._run_for(span, self._span_read, now_s)

    def _span_read(self, read: SpanRead, now_s: float) -> None:
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
        return sorted((*bookies[first:], *bookies[:first]), key=self._lost.__eq__)

    def _read_options(self) -> ReadOptions:
        options = self._options
        # One answer is read ahead.
        return ReadOptions(
            batch_entries=options.read_entries_max,
            batch_bytes=options.read_bytes_max,
            size_bytes_max=1,
            pacing=options.pacing(self._patience_s),
        )

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
        self._options.spend(size_bytes, now_s)
        if self._options.bytes_per_s > 0:
            self._next_read_s = (
                max(self._next_read_s, now_s) + size_bytes / self._options.bytes_per_s
            )
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
        unanswered = reading.unanswered - {self._lost}
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
        self._pump(now_s)

    # --- writing -----------------------------------------------------------------------------------------------

    def _write(self, entry: Found, tries: int = 1, former: Backoff | None = None) -> None:
        self._entries_in_flight += 1
        self._bytes_in_flight += len(entry.data)
        options = self._options
        backoff = former or Backoff(2 * options.backoff_min_s, options.backoff_max_s)

        def answered(outcome: Outcome, now_s: float) -> None:
            copied = self.copied
            status = outcome.status if isinstance(outcome, Reply) else None
            if status == Status.OK:
                if copied.entries:
                    copied.silence_s = max(copied.silence_s, now_s - copied.last_taken_s)
                copied.last_taken_s = now_s
                copied.entries += 1
                copied.last_entry_id = max(copied.last_entry_id, entry.entry_id)
                copied.size_bytes += len(entry.data)
                settled()
                self._pump(now_s)
                return
            if self._passes_conflicts and status == Status.CONFLICT:
                copied.refused_count += 1
                if len(copied.refused) < LOST_LISTED_MAX:
                    copied.refused.append(entry.entry_id)
                settled()
                self._pump(now_s)
                return
            if (status is None or status in PASSING_STATUSES) and tries < _ADD_TRIES_MAX:
                self._retry_in(backoff.next_s(), again)
                return
            said = str(outcome) if status is None else status_name(status)
            self._fail(
                NotEnoughBookies(
                    f"ledger {self._ledger_id}: bookie {self._target} did not take entry {entry.entry_id}",
                    ledger_id=self._ledger_id,
                    entry_id=entry.entry_id,
                    replicas={self._target: said},
                ),
                now_s,
            )

        def settled() -> None:
            self._entries_in_flight -= 1
            self._bytes_in_flight -= len(entry.data)

        def again(_: float) -> None:
            settled()
            self._write(entry, tries + 1, backoff)

        # The copy says what the original said: LAC and length are those it was written with.
        request = AddEntry(entry.entry_id, entry.lac, entry.length, entry.data, recovery=True)
        self._ask(self._target, request, options.request_timeout_s, answered)
