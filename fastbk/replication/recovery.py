"""Recovery: closing a ledger whose writer is gone, at an end that covers all that was ever acknowledged (INV-Q3).

Any client may do it, several at the same time, and each may die at any step: nothing but the two compare-and-sets on
the metadata (INV-M1) decides, so whoever comes later goes on. The steps:

1. OPEN becomes IN_RECOVERY. A ledger that is already so is gone on with; one that is CLOSED is used as it is.
2. Every member of the last ensemble is fenced, until the answers are covered (`FenceEnsemble`).
3. Reading starts behind the best LAC heard, never below the last fragment: what lies before is final.
4. Entry after entry is proven to exist or to be missing (`ReadForRecovery`), by the ensembles of step 1.
5. What exists is written again in strict order, to its whole write set (`RewriteEntries`).
6. The first entry that is missing is the end; when everything before it is on Qa bookies, one compare-and-set closes
   the ledger: last entry, length and the fragments that failing bookies made necessary, all at once or not at all.
7. Entries behind the first missing one were never acknowledged and are ignored.
8. If another closed first, its end is adopted and nothing of ours is added. If only other things changed (custom
   metadata, replaced bookies of earlier fragments), they are kept. If the last fragment changed, recovery begins anew.

**The length.** Each entry carries the ledger's length up to and with itself, so the last entry that was found tells it.
When none was found behind the start, the start's own entry has to be seen: a fencing answer often is that entry, else
it is read; it is acknowledged, so it is there. The length of an answer that merely *names* the start as its LAC would
count entries that are cut off.

For the driver: an ordinary procedure. `RecoverLedger(ledger_id, known).value()` is the closed metadata; raises
Unauthorized (another password), DigestMismatch, NotEnoughBookies (`replicas` says why, bookie by bookie; the ledger
stays IN_RECOVERY: try again later), NoSuchLedger, MetadataUnavailable, MetadataConflict. It asks for ReadEntry with
FENCE, AddEntry with RECOVERY, Choose, Sleep and the metadata. `cancel()` stops it anywhere. `stats` may be read at
any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from fastbk.errors import MetadataConflict, NoSuchEntry
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.actions import Found
from fastbk.replication.ensemble_change_result import Replacement
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure
from fastbk.replication.recovery_reads import Fenced, FenceEnsemble, ReadForRecovery
from fastbk.replication.recovery_writes import RewriteEntries
from fastbk.replication.replicas import Pacing


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """How a recovery goes about it.

    Attributes:
        pacing: of the requests to bookies.
        metadata_timeout_s: how long an unavailable metadata store is asked again, for each of the two changes.
        entries_max: entries that are being read, or read and not yet written again; at least 1.
        size_bytes_max: of their data, as far as it can be foreseen; one entry is always allowed.
        rounds_max: how often it begins anew because the last fragment changed under it; at least 1.
        lost: bookies that are known to be gone: they are not asked for the LAC, so nobody waits for them.
    """

    pacing: Pacing = field(default_factory=Pacing)
    metadata_timeout_s: float = 10.0
    entries_max: int = 16
    size_bytes_max: int = 8 * 1024 * 1024
    rounds_max: int = 5
    lost: frozenset[BookieId] = frozenset()


@dataclass(slots=True)
class RecoveryStats:
    """What a recovery did.

    Attributes:
        entries_rewritten: entries found behind the start, each now on Qa bookies at least.
        copies_missing: how many of their Qw copies were not acknowledged before the close.
        bookies_replaced, replacements: members that failed while entries were written again, and who took their places.
        rounds: how often it began; more than 1 when the last fragment changed under it.
        is_adopted: another client closed the ledger; its end is the result.
    """

    entries_rewritten: int = 0
    copies_missing: int = 0
    bookies_replaced: int = 0
    replacements: list[Replacement] = field(default_factory=list)
    rounds: int = 0
    is_adopted: bool = False


class _LastFragmentChanged(MetadataConflict):
    """The metadata that this recovery read by is no longer the ledger's."""


class RecoverLedger(Procedure[VersionedLedger]):
    """Brings a ledger to CLOSED; see the module's text. `known`: its metadata as last read, None reads it first."""

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger | None,
        options: RecoveryOptions | None = None,
    ) -> None:
        super().__init__()
        self.stats = RecoveryStats()
        self._ledger_id = ledger_id
        self._known = known
        self._options = RecoveryOptions() if options is None else options

    def begin(self, now_s: float) -> None:
        """Take the ledger over."""
        self._take_over(self._known, now_s)

    # --- step 1 ------------------------------------------------------------------------------------------------

    def _take_over(self, known: VersionedLedger | None, now_s: float) -> None:
        self.stats.rounds += 1
        update = MetadataUpdate(_in_recovery, known, self._options.metadata_timeout_s)
        self._run_for(update, self._taken_over, now_s)

    def _taken_over(self, taken: VersionedLedger, now_s: float) -> None:
        if taken.metadata.is_closed:
            self.stats.is_adopted = True
            self._finish(taken, now_s)
            return
        self._taken = taken
        options = self._options
        fence = FenceEnsemble(self._ledger_id, taken.metadata, options.pacing, options.lost)
        self._run_for(fence, self._was_fenced, now_s)

    # --- steps 2 to 5 ------------------------------------------------------------------------------------------

    def _was_fenced(self, fenced: Fenced, now_s: float) -> None:
        self._fenced = fenced
        self._start: EntryId = self._fenced.lac
        self._highest = max(
            self._start, self._fenced.highest
        )  # of all that are known to be somewhere
        self._missing: EntryId = ID_MAX + 1  # the first entry that is missing, as far as is known
        self._next_read = self._start + 1
        self._next_write = self._start + 1
        self._readings: dict[EntryId, ReadForRecovery] = {}
        self._outcomes: dict[EntryId, Procedure[Found | None]] = {}
        self._read_bytes = 0
        self._largest = self._fenced.largest_bytes
        self._length: int | None = self._fenced.lengths.get(self._start)
        if self._start == -1:
            self._length = 0
        self._rewrite = RewriteEntries(
            self._ledger_id,
            self._taken.metadata,
            self._start,
            self._options.pacing,
            self._go_on,
        )
        self._run_for(self._rewrite, self._rewritten, now_s)
        self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        """Read on as far as the window reaches."""
        while not self.is_finished and self._may_read():
            entry_id = self._next_read
            self._next_read += 1
            pacing = self._options.pacing
            reading = ReadForRecovery(self._ledger_id, self._taken.metadata, entry_id, pacing)
            self._readings[entry_id] = reading
            self._run(reading, partial(self._was_read, entry_id), now_s)

    def _may_read(self) -> bool:
        # One beyond the highest entry that any answer told of: that one is probably missing.
        if self._next_read >= self._missing or self._next_read > self._highest + 1:
            return False
        first = self._rewrite.done
        if self._next_read == first:
            return True
        if self._next_read - first >= self._options.entries_max:
            return False
        held = self._rewrite.held_bytes + self._read_bytes
        return held + (len(self._readings) + 1) * self._largest <= self._options.size_bytes_max

    def _was_read(self, entry_id: EntryId, part: Procedure[Found | None], now_s: float) -> None:
        del self._readings[entry_id]
        self._outcomes[entry_id] = part
        if part.error is None:
            found = part.value()
            if found is None:
                self._is_missing(entry_id)
            else:
                self._highest = max(self._highest, entry_id)
                self._largest = max(self._largest, len(found.data))
                self._read_bytes += len(found.data)
        self._write_on(now_s)
        self._go_on(now_s)

    def _is_missing(self, entry_id: EntryId) -> None:
        """Nothing at or behind this entry was acknowledged: stop reading there."""
        self._missing = min(self._missing, entry_id)
        for later in [one for one in self._readings if one > entry_id]:
            self._readings.pop(later).cancel()

    def _write_on(self, now_s: float) -> None:
        """Hand on what was read, in strict order."""
        while self._next_write < self._missing and self._next_write in self._outcomes:
            part = self._outcomes.pop(self._next_write)
            if part.error is not None:
                # Only now: an entry before it might have turned out to be missing.
                self._fail(part.error, now_s)
                return
            found = part.value()
            assert found is not None
            self._read_bytes -= len(found.data)
            self._next_write += 1
            self._length = found.length
            self._rewrite.put(found, now_s)
            if self.is_finished:
                return
        if self._next_write == self._missing and not self._rewrite.is_finished:
            self._rewrite.no_more(now_s)

    # --- steps 6 to 8 ------------------------------------------------------------------------------------------

    def _rewritten(self, _: None, now_s: float) -> None:
        stats = self.stats
        stats.entries_rewritten += self._missing - self._start - 1
        stats.copies_missing += self._rewrite.copies_missing
        stats.bookies_replaced += self._rewrite.bookies_replaced
        stats.replacements += self._rewrite.replacements
        if self._length is not None:
            self._close(self._length, now_s)
            return
        metadata, pacing = self._taken.metadata, self._options.pacing
        reading = ReadForRecovery(
            self._ledger_id, metadata, self._start, pacing, is_acknowledged=True
        )
        self._run_for(reading, self._start_was_read, now_s)

    def _start_was_read(self, found: Found | None, now_s: float) -> None:
        if found is None:
            self._fail(
                NoSuchEntry(
                    f"entry {self._start} of ledger {self._ledger_id} was acknowledged, and its bookies say that it"
                    " was not: they lost data; without it the ledger's length is not known",
                    ledger_id=self._ledger_id,
                    entry_id=self._start,
                ),
                now_s,
            )
            return
        self._close(found.length, now_s)

    def _close(self, length: int, now_s: float) -> None:
        base = self._taken.metadata
        last = self._missing - 1
        tail = _used(self._rewrite.fragments, base.fragments[-1], last)

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            if current.is_closed:
                return None  # by another, or by us and the answer was lost
            is_same = current.fragments[-1] == base.fragments[-1]
            if current.state is not LedgerState.IN_RECOVERY or not is_same:
                raise _LastFragmentChanged(
                    f"ledger {self._ledger_id} is changed again and again while it is recovered",
                    ledger_id=self._ledger_id,
                )
            fragments = current.fragments[:-1] + tail
            return replace(current, fragments=fragments).closed(last, length)

        def closed(update: Procedure[VersionedLedger], at_s: float) -> None:
            if update.error is not None:
                is_to_repeat = isinstance(update.error, _LastFragmentChanged)
                if is_to_repeat and self.stats.rounds < self._options.rounds_max:
                    self._take_over(None, at_s)
                else:
                    self._fail(update.error, at_s)
                return
            self.stats.is_adopted = not change.is_ours
            self._finish(update.value(), at_s)

        change = MetadataUpdate(decide, self._taken, self._options.metadata_timeout_s)
        self._run(change, closed, now_s)


def _in_recovery(current: LedgerMetadata) -> LedgerMetadata | None:
    if current.state is LedgerState.OPEN:
        return replace(current, state=LedgerState.IN_RECOVERY)
    return None


def _used(fragments: list[Fragment], base: Fragment, last: EntryId) -> tuple[Fragment, ...]:
    """Return the fragments that hold entries up to `last`; a last fragment without any stays as it was."""
    used = tuple(one for one in fragments if one.first_entry_id <= last)
    return used or (base,)
