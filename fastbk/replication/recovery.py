"""Recovery: closing a ledger whose writer is gone, at an end that covers all that was ever acknowledged (INV-Q3).

Any client may do it, several at the same time, and each may die at any step: nothing but the two compare-and-sets on
the metadata (INV-M1) decides, so whoever comes later goes on. The steps:

1. OPEN becomes IN_RECOVERY. A ledger that is already so is gone on with; one that is CLOSED is used as it is.
2. Every member of the last ensemble is fenced, until the answers are covered (`FenceEnsemble`).
3. Reading starts behind the best LAC heard, never below the last fragment: what lies before is final.
4. Entry after entry is proven to exist or to be missing (`ReadForRecovery`), by the ensembles of step 1.
5. What exists is written again in strict order, to its whole write set (`RewriteEntries`). `RewriteTail` does 4 and 5.
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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from fastbk.errors import Error, MetadataConflict, NoSuchEntry, NotEnoughBookies
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.model.quorum import write_set, write_sets
from fastbk.replication.ack_domains import acknowledging, deciding, recorded
from fastbk.replication.metadata_update import MetadataUpdate, Replacement
from fastbk.replication.procedure import (
    AddEntry,
    Choose,
    Found,
    Outcome,
    Procedure,
    ReadEntry,
    Replaced,
    Reply,
    Steps,
)
from fastbk.replication.replicas import Pacing, QuorumCoverage, Replicas, entry_in
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status


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
        self._tail: RewriteTail | None = None

    def steps(self) -> Steps[VersionedLedger]:
        """Take the steps of the module's text; begin anew when the last fragment changes."""
        stats, options, known = self.stats, self._options, self._known
        while True:
            stats.rounds += 1
            taken = yield from MetadataUpdate(in_recovery, known, options.metadata_timeout_s)
            metadata = taken.metadata
            if metadata.is_closed:
                stats.is_adopted = True
                return taken
            fenced = yield from FenceEnsemble(
                self._ledger_id, metadata, options.pacing, options.lost
            )
            tail = self._tail = RewriteTail(self._ledger_id, metadata, fenced, options)
            yield from tail
            self._count(tail)
            length = tail.length
            if length is None:
                length = yield from self._read_length(metadata, fenced.lac)
            try:
                return (yield from self._close(taken, tail, length))
            except _LastFragmentChanged:
                if stats.rounds >= options.rounds_max:
                    raise
            known = None

    def _count(self, tail: RewriteTail) -> None:
        stats, rewrite = self.stats, tail.rewrite
        stats.entries_rewritten += tail.missing - tail.lac - 1
        stats.copies_missing += rewrite.copies_missing
        stats.bookies_replaced += rewrite.bookies_replaced
        stats.replacements += rewrite.replacements

    def _read_length(self, metadata: LedgerMetadata, start: EntryId) -> Steps[int]:
        """Nothing was found behind the start: that entry has the length, and it is acknowledged."""
        found = yield from ReadForRecovery(
            self._ledger_id, metadata, start, self._options.pacing, is_acknowledged=True
        )
        if found is None:
            raise NoSuchEntry(
                f"entry {start} of ledger {self._ledger_id} was acknowledged, and its bookies say that it"
                " was not: they lost data; without it the ledger's length is not known",
                ledger_id=self._ledger_id,
                entry_id=start,
            )
        return found.length

    def _close(
        self, taken: VersionedLedger, tail: RewriteTail, length: int
    ) -> Steps[VersionedLedger]:
        base = taken.metadata
        last = tail.missing - 1
        used = _used(tail.rewrite.fragments, base.fragments[-1], last)

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            if current.is_closed:
                return None  # by another, or by us and the answer was lost
            is_same = current.fragments[-1] == base.fragments[-1]
            if current.state is not LedgerState.IN_RECOVERY or not is_same:
                raise _LastFragmentChanged(
                    f"ledger {self._ledger_id} is changed again and again while it is recovered",
                    ledger_id=self._ledger_id,
                )
            fragments = current.fragments[:-1] + used
            return replace(current, fragments=fragments).closed(last, length)

        change = MetadataUpdate(decide, taken, self._options.metadata_timeout_s)
        closed = yield from change
        self.stats.is_adopted = not change.is_ours
        return closed


def in_recovery(current: LedgerMetadata) -> LedgerMetadata | None:
    """Return what takes an open ledger over."""
    if current.state is LedgerState.OPEN:
        return replace(current, state=LedgerState.IN_RECOVERY)
    return None


def _used(fragments: list[Fragment], base: Fragment, last: EntryId) -> tuple[Fragment, ...]:
    """Return the fragments that hold entries up to `last`; a last fragment without any stays as it was."""
    used = tuple(fragment for fragment in fragments if fragment.first_entry_id <= last)
    return used or (base,)


# --- behind the start -----------------------------------------------------------------------------
#
# Steps 4 and 5: what exists behind the start is read, some entries ahead, and written again.


class RewriteTail(Procedure[None]):
    """Reads entry after entry behind the start, and has what exists written again, up to the first that is missing.

    Attributes:
        lac: where it starts: the best LAC of the fenced bookies.
        missing: when finished: the first entry that is missing.
        length: when finished: the ledger's length before that one; None: no entry was seen that tells it.
        rewrite: what was written again, and to whom.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        fenced: Fenced,
        options: RecoveryOptions,
    ) -> None:
        super().__init__()
        self.lac = fenced.lac
        self.missing: EntryId = ID_MAX + 1  # as far as is known
        self.length = 0 if fenced.lac == -1 else fenced.lengths.get(fenced.lac)
        self.rewrite = RewriteEntries(
            ledger_id, metadata, fenced.lac, options.pacing, self._read_on
        )
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._options = options
        # of all that are known to be somewhere
        self._highest = max(fenced.lac, fenced.highest)
        self._next_read = fenced.lac + 1
        self._next_write = fenced.lac + 1
        self._readings: dict[EntryId, ReadForRecovery] = {}
        self._outcomes: dict[EntryId, Procedure[Found | None]] = {}
        self._read_bytes = 0
        self._largest = fenced.largest_bytes

    def begin(self, now_s: float) -> None:
        """Read the first entries."""
        self._run(self.rewrite, self._rewritten, now_s)
        self._read_on(now_s)

    def _rewritten(self, rewrite: Procedure[None], now_s: float) -> None:
        if rewrite.error is not None:
            self._fail(rewrite.error, now_s)
        else:
            self._finish(None, now_s)

    def _read_on(self, now_s: float) -> None:
        """Read on as far as the window reaches."""
        while not self.is_finished and self._may_read():
            entry_id = self._next_read
            self._next_read += 1
            pacing = self._options.pacing
            reading = ReadForRecovery(self._ledger_id, self._metadata, entry_id, pacing)
            self._readings[entry_id] = reading
            self._run(reading, partial(self._was_read, entry_id), now_s)

    def _may_read(self) -> bool:
        # One beyond the highest entry that any answer told of: that one is probably missing.
        if self._next_read >= self.missing or self._next_read > self._highest + 1:
            return False
        first = self.rewrite.done
        if self._next_read == first:
            return True
        if self._next_read - first >= self._options.entries_max:
            return False
        held = self.rewrite.held_bytes + self._read_bytes
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
        self._read_on(now_s)

    def _is_missing(self, entry_id: EntryId) -> None:
        """Nothing at or behind this entry was acknowledged: stop reading there."""
        self.missing = min(self.missing, entry_id)
        for later in [reading for reading in self._readings if reading > entry_id]:
            self._readings.pop(later).cancel()

    def _write_on(self, now_s: float) -> None:
        """Hand on what was read, in strict order."""
        while self._next_write < self.missing and self._next_write in self._outcomes:
            part = self._outcomes.pop(self._next_write)
            if part.error is not None:
                # Only now: an entry before it might have turned out to be missing.
                self._fail(part.error, now_s)
                return
            found = part.value()
            assert found is not None
            self._read_bytes -= len(found.data)
            self._next_write += 1
            self.length = found.length
            self.rewrite.put(found, now_s)
            if self.is_finished:
                return
        if self._next_write == self.missing and not self.rewrite.is_finished:
            self.rewrite.no_more(now_s)


# --- reading forward ------------------------------------------------------------------------------
#
# The reading half of a recovery: fence the last ensemble, then decide entry by entry what exists.
#
# `FenceEnsemble` and `ReadForRecovery` send FENCE: a bookie answers such a read only when the fence
# is durable, so every answer
# that is counted comes from a bookie that the old writer can no longer complete an add on. Fencing
# only the first read is not enough: the message to one bookie may be lost, and an add later
# completes there (the simulator's script P1).


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

    Covered (INV-Q2): of every write set the members that did not answer contain no ack set, so the old writer's quorum
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
        # Earlier fragments are final: nothing below the last one's start is in doubt (the simulator's script P2).
        self._fenced = Fenced(fragment.first_entry_id - 1)

    def _record_reply(self, index: int, outcome: Outcome) -> bool:
        bookie_id = self._ensemble[index]
        entry = entry_in(outcome, -1)
        if entry is None:
            self._replicas.record_reply(bookie_id, outcome)
            return bookie_id in self._replicas.absent
        # Only what this digest covers; the number beside the entry counts for nothing (the simulator's script P19).
        self._fenced.lac = max(self._fenced.lac, entry.lac)
        self._fenced.highest = max(self._fenced.highest, entry.entry_id)
        self._fenced.largest_bytes = max(self._fenced.largest_bytes, len(entry.data))
        self._fenced.lengths[entry.entry_id] = entry.length
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

    All of its write set is asked at once. One good copy decides "exists". "Missing" takes NO_ENTRY or NO_LEDGER from so
    many bookies that the others contain no ack set (INV-Q5; by the plain count from Qw - Qa + 1), and is decided as
    soon as they are there, whatever the others may say (the simulator's script P5). When all have answered and neither
    is true, those that are away or busy are asked again, then it fails and says why.

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
        fragment = metadata.fragment_of(entry_id)
        self._indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        self._members: list[BookieId] = [fragment.ensemble[index] for index in self._indexes]
        self._ack_sets = deciding(metadata, fragment)
        self._is_acknowledged = is_acknowledged
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
        entry = entry_in(outcome, self._entry_id)
        replicas = self._replicas
        if entry is not None:
            self._finish(entry, now_s)
            return
        replicas.record_reply(bookie_id, outcome)
        if replicas.closed is not None or replicas.not_allowed:
            self._give_up(now_s)
        elif self._is_missing():
            self._finish(None, now_s)
        elif self._asked == 0:
            self._again(now_s)

    def _is_missing(self) -> bool:
        absent = self._replicas.absent
        both = zip(self._indexes, self._members, strict=True)
        left = [index for index, member in both if member not in absent]
        return not (left if self._is_acknowledged else self._ack_sets.contains(left))

    def _again(self, now_s: float) -> None:
        passing = [member for member in self._members if member in self._replicas.passing]
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


# --- writing back ---------------------------------------------------------------------------------
#
# The writing half of a recovery: every entry found is written again, until its write set's members
# that have it contain an ack set (Qa copies, which span domains where the ledger's ack sets do).
#
# Entries are taken, and completed, in strict order. An ack set is enough, but an entry is kept a
# little longer for the rest of its Qw copies, so that a bookie which fails a moment after the
# others have answered is still replaced; one that does not answer at all is not waited for again.
# Replaced is in memory only: the fragments made here reach the metadata with the close, in the same
# compare-and-set, or never (another recoverer may close first).
#
# The LAC inside the entries written here is the one that the recovery began with, however far it
# has come (INV-Q3). Until the close nothing behind it is certain: a competitor may close lower, and
# a reader that had seen a higher LAC would have read entries that then never were.


# Beyond this a bookie that still owes copies of entries that are done without it counts as failed.
OWED_COUNT_MAX = 64
# How long entries that have their ack quorum wait for a bookie, once in a recovery.
LAGGARD_WAIT_S = 0.05


class _Pending:
    """An entry that is not done: who acknowledged it."""

    __slots__ = ("acks", "found")

    def __init__(self, found: Found) -> None:
        self.found = found
        self.acks: set[int] = set()


class RewriteEntries(Procedure[None]):
    """Writes entries again with the recovery flag; finished when `no_more` was called and all are done.

    Attributes:
        done: the lowest entry that is not done yet; those before it are on an ack set at least.
        fragments: the last fragment as it was, and those that failing bookies made necessary.
        held_bytes: data of the entries that are not done.
        bookies_replaced, replacements: how often a member was replaced, and by whom.
        copies_missing: when finished: how many of the Qw copies of the entries were not acknowledged.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        lac: EntryId,
        pacing: Pacing,
        progressed: Callable[[float], None],
    ) -> None:
        """`progressed(now_s)` is called after `done` has moved."""
        super().__init__()
        self.done: EntryId = lac + 1
        self.fragments: list[Fragment] = [metadata.fragments[-1]]
        self.held_bytes = 0
        self.bookies_replaced = 0
        self.replacements: list[Replacement] = []
        self.copies_missing = 0
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._domains = recorded(metadata.custom)
        self._ack_sets = acknowledging(metadata, self._domains)
        self._is_located = self._domains is None or self._domains.of.keys() >= {
            *metadata.fragments[-1].ensemble
        }
        self._lac = lac
        self._pacing = pacing
        self._progressed = progressed
        self._write_sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self._pending: dict[EntryId, _Pending] = {}
        self._next = lac + 1
        self._is_last_known = False
        # Adds under way by index and entry, also of entries that are done without them.
        self._asked: list[dict[EntryId, int]] = [{} for _ in range(metadata.ensemble_size)]
        self._busy: list[Backoff | None] = [None] * metadata.ensemble_size
        self._failed: set[int] = set()
        self._replicas = Replicas()
        self._bad: set[BookieId] = set()
        self._is_choosing = False
        self._is_pausing = False
        self._untried: set[int] = set()
        self._laggards: set[int] = set()
        self._is_waiting_for_laggards = False

    # --- for the recovery --------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Wait for the first entry."""
        self._backoff = self._pacing.backoff(now_s)

    def put(self, found: Found, now_s: float) -> None:
        """Take the next entry."""
        assert found.entry_id == self._next
        self._next += 1
        if not self._pending:
            self._backoff.restart(now_s)
        pending = self._pending[found.entry_id] = _Pending(found)
        self.held_bytes += len(found.data)
        self.copies_missing += self._metadata.write_quorum
        for index in self._write_set(found.entry_id):
            if index not in self._failed:
                self._send(index, pending)
        self._settle(now_s)

    def no_more(self, now_s: float) -> None:
        """What was put is all there is."""
        self._is_last_known = True
        self._settle(now_s)

    # --- one copy ----------------------------------------------------------------------------------------------

    def _write_set(self, entry_id: EntryId) -> tuple[int, ...]:
        return self._write_sets[entry_id % self._metadata.ensemble_size]

    def _send(self, index: int, pending: _Pending) -> None:
        found = pending.found
        entry_id = found.entry_id

        def answered(outcome: Outcome, now_s: float) -> None:
            del self._asked[index][entry_id]
            self._answered(index, entry_id, outcome, now_s)

        request = AddEntry(entry_id, self._lac, found.length, found.data, recovery=True)
        bookie_id = self.fragments[-1].ensemble[index]
        tag = self._ask(bookie_id, request, self._pacing.request_timeout_s, answered)
        self._asked[index][entry_id] = tag

    def _answered(self, index: int, entry_id: EntryId, outcome: Outcome, now_s: float) -> None:
        pending = self._pending.get(entry_id)
        if isinstance(outcome, Reply) and outcome.status == Status.OK:
            self._busy[index] = None
            self.copies_missing -= 1
            if pending is not None:
                pending.acks.add(index)
                self._advance(now_s)
            return
        bookie_id = self.fragments[-1].ensemble[index]
        self._replicas.record_reply(bookie_id, outcome)
        if self._replicas.closed is not None or self._replicas.not_allowed:
            self._fail(self._error(), now_s)
        elif isinstance(outcome, Reply) and bookie_id in self._replicas.passing:
            self._is_busy(index, entry_id, now_s)
        else:
            self._index_failed(index, now_s)

    def _is_busy(self, index: int, entry_id: EntryId, now_s: float) -> None:
        """Offer the entry to a bookie that has no time just now again; for too long counts as failed."""
        backoff = self._busy[index]
        if backoff is None:
            backoff = self._busy[index] = self._pacing.backoff(now_s)
        pause_s = backoff.next_in_time_s(now_s)
        if pause_s is None or entry_id not in self._pending:
            self._index_failed(index, now_s)
            return

        def woken(_: float) -> None:
            self._asked[index].pop(entry_id)
            if (pending := self._pending.get(entry_id)) is not None:
                self._send(index, pending)

        self._asked[index][entry_id] = self._retry_in(pause_s, woken)

    def _advance(self, now_s: float) -> None:
        before = self.done
        while (pending := self._pending.get(self.done)) is not None:
            if not self._ack_sets.contains(pending.acks):
                break
            if owing := self._owing(self.done):
                self._wait_for_laggards(owing, now_s)
                break
            del self._pending[self.done]
            self.held_bytes -= len(pending.found.data)
            self.done += 1
        if self.done == before:
            return
        self._backoff.restart(now_s)
        for index in sorted(self._laggards):
            if len(self._asked[index]) - len(self._pending) > OWED_COUNT_MAX:
                bookie_id = self.fragments[-1].ensemble[index]
                self._replicas.said[bookie_id] = "too far behind the others"
                self._index_failed(index, now_s)
        if not self.is_finished:
            self._progressed(now_s)
            self._settle(now_s)

    def _owing(self, entry_id: EntryId) -> set[int]:
        """Return the indexes whose copy, or whose replacement, is worth waiting for."""
        return {
            index
            for index in self._write_set(entry_id)
            if (entry_id in self._asked[index] and index not in self._laggards)
            or index in self._untried
            or (index in self._failed and self._is_choosing)
        }

    def _wait_for_laggards(self, owing: set[int], now_s: float) -> None:
        if self._is_waiting_for_laggards:
            return
        self._is_waiting_for_laggards = True
        entry_id = self.done

        def woken(at_s: float) -> None:
            self._is_waiting_for_laggards = False
            if self.done == entry_id:
                self._laggards |= {one for one in owing if entry_id in self._asked[one]}
            self._advance(at_s)

        self._sleep(LAGGARD_WAIT_S, woken)

    # --- failing bookies ---------------------------------------------------------------------------------------

    def _index_failed(self, index: int, now_s: float) -> None:
        if self.is_finished:
            return
        self._failed.add(index)
        self._untried.add(index)
        self._bad.add(self.fragments[-1].ensemble[index])
        self._busy[index] = None
        for tag in self._asked[index].values():
            self._withdraw(tag)
        self._asked[index].clear()
        self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        """Do what is due now: finish, replace bookies that an entry waits for, or try again after a pause."""
        if self.is_finished or self._is_choosing:
            return
        if not self._pending:
            if self._is_last_known:
                self._finish(None, now_s)
            return
        if self._untried and self._is_wanted(self._untried):
            self._replace()
        elif not self._is_pausing and self._is_blocked():
            if self._is_located:
                self._pause(now_s)
            else:
                self._replace()

    def _is_wanted(self, indexes: set[int]) -> bool:
        return any(not indexes.isdisjoint(self._write_set(entry_id)) for entry_id in self._pending)

    def _is_blocked(self) -> bool:
        """Whether some entry cannot be completed by the bookies that have not failed."""
        for entry_id, pending in self._pending.items():
            able = [
                index
                for index in self._write_set(entry_id)
                if index in pending.acks or index not in self._failed
            ]
            if not self._ack_sets.contains(able):
                return True
        return False

    def _replace(self) -> None:
        self._is_choosing = self._is_located = True
        self._untried.clear()
        ensemble = self.fragments[-1].ensemble
        of = {} if self._domains is None else self._domains.of
        choose = Choose(ensemble, frozenset(self._failed), frozenset(self._bad), of)
        self._act(choose, self._chosen)

    def _chosen(self, outcome: Outcome, now_s: float) -> None:
        self._is_choosing = False
        replaced = outcome if isinstance(outcome, Replaced) else Replaced()
        ensemble = list(self.fragments[-1].ensemble)
        fresh = []
        for index, bookie_id in sorted(replaced.chosen.items()):
            # An ensemble never names a bookie twice; an index may be tried again meanwhile.
            if index in self._failed and bookie_id not in ensemble and bookie_id not in self._bad:
                ensemble[index] = bookie_id
                fresh.append(index)
        domains = self._domains
        if domains is not None:
            domains = domains.changed(ensemble, {**replaced.locations, **domains.of})
        # Where some are not wanted any more, the others need not span domains with those that stay.
        if fresh and (domains is None or domains.allows(self._metadata, ensemble)):
            self._change(tuple(ensemble), fresh)
        self._locate(replaced.locations)
        self._advance(now_s)
        self._settle(now_s)

    def _locate(self, locations: Mapping[BookieId, str]) -> None:
        """Learn where members are of which that is not known. In memory: once closed, nobody asks for it any more."""
        if self._domains is None:
            return
        fragment = self.fragments[-1]
        self._domains = self._domains.changed(fragment.ensemble, {**locations, **self._domains.of})
        fragments = (*self._metadata.fragments[:-1], fragment)
        self._ack_sets = acknowledging(replace(self._metadata, fragments=fragments), self._domains)

    def _change(self, ensemble: tuple[BookieId, ...], fresh: list[int]) -> None:
        """Go on with another ensemble from the first entry that is not done."""
        before = self.fragments[-1].ensemble
        fragment = Fragment(max(self.done, self.fragments[-1].first_entry_id), ensemble)
        if fragment.first_entry_id == self.fragments[-1].first_entry_id:
            self.fragments[-1] = fragment
        else:
            self.fragments.append(fragment)
        self.bookies_replaced += len(fresh)
        for index in fresh:
            left, first = before[index], fragment.first_entry_id
            reason = self._replicas.said.get(left, "it did not take an entry")
            self.replacements.append(Replacement(first, index, left, ensemble[index], reason))
        for index in fresh:
            self._failed.discard(index)
            self._untried.discard(index)
            self._laggards.discard(index)
        for pending in self._pending.values():
            for index in self._write_set(pending.found.entry_id):
                if index in fresh:
                    # The replaced bookie's copy does not count in this fragment (the simulator's script P12).
                    if index in pending.acks:
                        pending.acks.discard(index)
                        self.copies_missing += 1
                    self._send(index, pending)

    def _pause(self, now_s: float) -> None:
        pause_s = self._backoff.next_in_time_s(now_s)
        if pause_s is None:
            self._fail(self._error(), now_s)
            return
        self._is_pausing = True

        def woken(at_s: float) -> None:
            self._is_pausing = False
            # They may be back, or other bookies there to take their place.
            failed, self._failed = self._failed, set()
            self._untried.clear()
            for index in sorted(failed):
                self._bad.discard(self.fragments[-1].ensemble[index])
                for pending in self._pending.values():
                    is_owed = index in self._write_set(pending.found.entry_id)
                    if is_owed and index not in pending.acks:
                        self._send(index, pending)
            self._settle(at_s)

        self._retry_in(pause_s, woken)

    def _error(self) -> Error:
        what = f"ledger {self._ledger_id}: entry {self.done} could not be written to its ack quorum"
        error = self._replicas.error(what, ledger_id=self._ledger_id, entry_id=self.done)
        if isinstance(error, NotEnoughBookies):
            error.outcome = "unknown"
        return error
