"""Copies that bookies lack although their entries are acknowledged: given to replacements, or marked. Pure.

A bookie that is replaced may lack entries below the head. These belong to the former fragment, and what a replacement
stores of them counts for no ack quorum (INV-E1). The writer does three things:

1. It marks them in the metadata, right after the ensemble change.
2. It sends those that it still holds to the replacement, in front of the entries of the new fragment.
3. Once the replacement has acknowledged its whole share of them, a compare-and-set splits the former fragment and names
   the replacement for exactly these entries. Then the mark goes.

A ledger may also name bookies that are away or read-only when it is created. All of their share is marked then. The
mark goes, but for what they have not acknowledged, when the writer has closed the ledger.

A writer that dies anywhere in between leaves the mark, and copies that nobody counts on. A ledger that is no longer
open is not split: its mark stays for a repair. Entries that the writer no longer holds are only marked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from fastbk.errors import LedgerClosed, LedgerFenced, NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.missing_replica import MissingReplica, merged, without
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.metadata_update import MetadataUpdate, check_open
from fastbk.replication.procedure import MarkReplicas, Procedure, Steps
from fastbk.retry import Backoff, exact


@dataclass(frozen=True, slots=True)
class UnderReplicatedShare:
    """Entries [start, end) of finished fragments, whose share at `index` the bookie `holder` has or is given.

    `former`: the bookies that metadata may name for it.
    """

    index: int
    holder: BookieId
    start: EntryId
    end: EntryId
    former: frozenset[BookieId]


def split(
    metadata: LedgerMetadata, shares: Iterable[UnderReplicatedShare]
) -> tuple[LedgerMetadata, tuple[MissingReplica, ...]]:
    """Return the metadata that names the holders of `shares`, and what it no longer names others for.

    A fragment in which somebody else has replaced the former bookie stays as it is, and so do one that names the holder
    at another index and the last one.
    """
    fragments, freed = list(metadata.fragments), []
    for share in shares:
        parts: list[Fragment] = []
        for fragment, next_one in itertools.pairwise(fragments):
            end = next_one.first_entry_id
            first, last = max(fragment.first_entry_id, share.start), min(end, share.end) - 1
            former = fragment.ensemble[share.index]
            if last < first or former not in share.former or share.holder in fragment.ensemble:
                parts.append(fragment)
                continue
            ensemble = list(fragment.ensemble)
            ensemble[share.index] = share.holder
            if fragment.first_entry_id < first:
                parts.append(fragment)
            parts.append(Fragment(first, tuple(ensemble)))
            if last + 1 < end:
                parts.append(Fragment(last + 1, fragment.ensemble))
            freed.append(MissingReplica(former, first, last))
        fragments = [*parts, fragments[-1]]
    return replace(metadata, fragments=tuple(fragments)), tuple(freed)


def owed_by(bookie_ids: Collection[BookieId]) -> list[MissingReplica]:
    """Return what is marked when a ledger is created whose ensemble names these missing bookies (INV-E4).

    All of their share: a client that recovers the ledger after a crash of its writer cannot find out what they got.
    """
    return [MissingReplica(one, 0, None, _AWAY) for one in sorted(bookie_ids)]


class UnderReplication:
    """What the members of one writer's ensemble, present and former, lack of acknowledged entries.

    Attributes:
        ready: shares that their holders have acknowledged whole; the metadata does not name these yet.
        marked: what this writer has marked and not unmarked.
        unsure: what a change of the mark was about that the store did not answer: it may be marked.
        lost: the indexes of members that have lost all that they had.
    """

    def __init__(self, adds: AddMachine) -> None:
        self.ready: list[UnderReplicatedShare] = []
        self.marked: tuple[MissingReplica, ...] = ()
        self.unsure: tuple[MissingReplica, ...] = ()
        self.lost: set[int] = set()
        self._adds = adds
        self._missing: tuple[MissingReplica, ...] = ()  # of bookies that were replaced
        self._away: frozenset[BookieId] = frozenset()
        self._open: dict[int, UnderReplicatedShare] = {}
        # From where on metadata names each member, as far as this writer has changed that.
        self._named_from = [adds.head] * len(adds.ensemble)

    def begin_without(self, bookie_ids: Collection[BookieId]) -> None:
        """Members were away or read-only when the ledger was created, and what `owed_by` says of them is marked."""
        self._away = frozenset(bookie_ids)
        self.marked = merged((*self.marked, *owed_by(bookie_ids)))

    @property
    def is_copying(self) -> bool:
        """Whether replacements are being given entries of former fragments."""
        return bool(self._open)

    def replace(self, index: int, bookie_id: BookieId, reason: str, *, is_lost: bool) -> None:
        """Put another bookie into a member's place, with the head frozen, and note what both lack.

        `is_lost`: the member has lost all that it had.
        """
        adds, head, before = self._adds, self._adds.head, self._adds.ensemble[index]
        named_from = self._named_from[index]
        self.lost.discard(index)
        if is_lost:
            named_from = 0  # also earlier fragments may name it
        lacking = [(0, head)] if is_lost else adds.lacking(index)
        former = {before}
        share = self._open.pop(index, None)
        if share is not None:
            former |= share.former
            if not is_lost:
                done = min(adds.stored_below(index), share.end)
                self._acknowledged(replace(share, end=max(share.start, done)))
        text = f"replaced from entry {head} on: {reason}"
        self._missing = merged((*self._missing, *_missing(before, lacking, named_from, head, text)))
        start = adds.replace(index, bookie_id, is_lost=is_lost)
        if adds.owns_any(index, start, head):
            self._open[index] = UnderReplicatedShare(
                index, bookie_id, start, head, frozenset(former)
            )
        self._named_from[index] = head

    def collect(self) -> None:
        """Take the shares that their holders have acknowledged whole."""
        for index, share in list(self._open.items()):
            if not self._adds.owns_any(index, self._adds.stored_below(index), share.end):
                del self._open[index]
                self._acknowledged(share)

    def _acknowledged(self, share: UnderReplicatedShare) -> None:
        """Take a share but for what was given up while it was copied."""
        start = share.start
        for first, end in [*self._adds.given_up[share.index], (share.end, share.end)]:
            stop = min(first, share.end)
            if self._adds.owns_any(share.index, start, stop):
                self.ready.append(replace(share, start=start, end=stop))
            start = max(start, end)

    def named(
        self, shares: Iterable[UnderReplicatedShare], freed: Sequence[MissingReplica]
    ) -> None:
        """The metadata names the holders of `shares`, and no longer others for `freed`."""
        gone = set(shares)
        self.ready = [one for one in self.ready if one not in gone]
        self._missing = without(self._missing, freed)

    # --- marks -------------------------------------------------------------------------------------------------

    def to_mark(self) -> tuple[MissingReplica, ...]:
        """Return what is to be marked while the ledger is written. What members lack has no end yet."""
        adds = self._adds
        found = [*self._missing, *owed_by(self._away.intersection(adds.ensemble))]
        for index, bookie_id in enumerate(adds.ensemble):
            if index in self.lost:
                found.append(MissingReplica(bookie_id, 0, None, _LOST))
                continue
            given_up = [
                first for first, end in adds.given_up[index] if end > self._named_from[index]
            ]
            if given_up:
                first = max(given_up[0], self._named_from[index])
                found.append(MissingReplica(bookie_id, first, None, _NOT_HELD))
        return merged(found)

    def to_mark_at_end(self) -> tuple[MissingReplica, ...]:
        """Return what is to be marked when the ledger ends at the head."""
        adds = self._adds
        found = list(self._missing)
        for index, bookie_id in enumerate(adds.ensemble):
            named_from = self._named_from[index]
            reason = "not acknowledged when the ledger was closed"
            lacking = adds.lacking(index)
            if index in self.lost:
                named_from, reason, lacking = 0, _LOST, [(0, adds.head)]
            found += _missing(bookie_id, lacking, named_from, adds.head, reason)
        return merged(found)

    def unmarked(self, wanted: tuple[MissingReplica, ...]) -> tuple[MissingReplica, ...]:
        """Return what of `wanted` is not marked yet, or may not be."""
        return without(wanted, without(self.marked, self.unsure))

    def outdated(self, wanted: tuple[MissingReplica, ...]) -> tuple[MissingReplica, ...]:
        """Return what may be marked and is not `wanted` any more: its copies were acknowledged."""
        return without(self.maybe_marked, wanted)

    @property
    def maybe_marked(self) -> tuple[MissingReplica, ...]:
        """What this writer has marked, or may have, and has not unmarked."""
        return merged((*self.marked, *self.unsure))

    def mark_changed(self, add: Sequence[MissingReplica], remove: Sequence[MissingReplica]) -> None:
        """The store has changed the mark."""
        self.marked = merged((*without(self.marked, remove), *add))
        self.unsure = without(self.unsure, (*add, *remove))

    def mark_unanswered(
        self, add: Sequence[MissingReplica], remove: Sequence[MissingReplica]
    ) -> None:
        """The store may have changed the mark, or may still do so."""
        self.unsure = merged((*self.unsure, *add, *remove))


_AWAY = "the bookie was away or read-only when the ledger was created"
_LOST = "its data was lost"
_NOT_HELD = "it was away for longer than its writer could hold entries for it"


def _missing(
    bookie_id: BookieId,
    ranges: Iterable[tuple[EntryId, EntryId]],
    start: EntryId,
    end: EntryId,
    reason: str,
) -> Iterable[MissingReplica]:
    for range_start, range_end in ranges:
        first, last = max(range_start, start), min(range_end, end) - 1
        if first <= last:
            yield MissingReplica(bookie_id, first, last, reason)


# --- the writer's marks ---------------------------------------------------------------------------
#
# What an open ledger's writer does about copies that bookies lack, one step at a time. Pure.
#
# It marks them, and names replacements in the metadata for the copies that they were given of
# former fragments.


# How often replacements are looked at that are being given entries of former fragments.
LOOK_S = 0.2
# After a step that the metadata store did not answer; doubled each time.
RETRY_MIN_S = 0.5
RETRY_MAX_S = 30.0
_TIMEOUT_S = 10.0


class ChangeMark(Procedure[VersionedLedger | None]):
    """Changes the ledger's mark once; fails with the store's error."""

    def __init__(self, add: tuple[MissingReplica, ...], remove: tuple[MissingReplica, ...]) -> None:
        super().__init__()
        self.add = add
        self.remove = remove

    def steps(self) -> Steps[None]:
        """Ask for it."""
        yield MarkReplicas(self.add, self.remove)


class CopyKeeper:
    """Chooses the next step, one at a time: mark what is missing, name replacements, unmark.

    Attributes:
        owed: what members lack.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        adds: AddMachine,
        away: Collection[BookieId] = (),
        jitter: Callable[[float], float] = exact,
    ) -> None:
        """`away`: members that were away or read-only when the ledger was created. `jitter`: of pauses."""
        self.owed = UnderReplication(adds)
        self.owed.begin_without(away)
        self._ledger_id = ledger_id
        self._adds = adds
        self._step: NameReplacements | ChangeMark | None = None
        self._is_any = False
        self._retry_s = 0.0
        self._backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        self._jitter = jitter

    def replace(self, index: int, bookie_id: BookieId, reason: str, *, is_lost: bool) -> EntryId:
        """Put another bookie into a member's place; return the entry that its fragment begins with."""
        self._is_any = True
        self.owed.replace(index, bookie_id, reason, is_lost=is_lost)
        return self._adds.head

    def next_step(
        self, known: VersionedLedger, now_s: float
    ) -> tuple[Procedure[VersionedLedger | None] | None, float | None]:
        """Return what is to be run now, then `ended` to be called, and when to look again."""
        if self._step is not None:
            return None, None
        if not (self._is_any or self.owed.lost or any(self._adds.given_up)):
            return None, None
        if now_s < self._retry_s:
            return None, self._retry_s
        owed = self.owed
        owed.collect()
        wanted = owed.to_mark()
        if add := owed.unmarked(wanted):
            self._step = ChangeMark(add, ())
        elif owed.ready:
            self._step = NameReplacements(self._ledger_id, known, owed.ready, _TIMEOUT_S)
        elif remove := owed.outdated(wanted):
            self._step = ChangeMark((), remove)
        return self._step, now_s + LOOK_S if owed.is_copying else None

    def ended(self, now_s: float) -> VersionedLedger | None:
        """Take the outcome of the step; return the metadata as it was left, None if it was not changed."""
        step, self._step = self._step, None
        assert step is not None
        if step.error is None:
            self._backoff.restart()
            return self._done(step)
        self._unanswered(step)
        if isinstance(step.error, LedgerClosed | LedgerFenced | NoSuchLedger):
            # The writer learns of it by itself. What was marked stays marked.
            self.owed.ready.clear()
            return None
        self._retry_s = now_s + self._jitter(self._backoff.next_s())
        return None

    def _done(self, step: NameReplacements | ChangeMark) -> VersionedLedger | None:
        owed = self.owed
        if isinstance(step, NameReplacements):
            owed.named(step.shares, step.freed)
            return step.value()
        owed.mark_changed(step.add, step.remove)
        return None

    def give_up(self) -> None:
        """Begin no step any more: the ledger is about to be closed. One under way may still be done."""
        step, self._step = self._step, None
        if step is not None:
            self._unanswered(step)

    def _unanswered(self, step: NameReplacements | ChangeMark) -> None:
        if isinstance(step, ChangeMark):
            self.owed.mark_unanswered(step.add, step.remove)


class NameReplacements(Procedure[VersionedLedger | None]):
    """Splits fragments of an open ledger by compare-and-set, each after its share is whole (INV-M1, INV-E1, INV-E3).

    Fails with LedgerClosed or LedgerFenced once the ledger is not open any more: the mark stays for a repair then.

    Attributes:
        freed: when finished: what the metadata no longer names the former bookies for.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger,
        shares: Sequence[UnderReplicatedShare],
        timeout_s: float,
    ) -> None:
        super().__init__()
        self.shares = tuple(shares)
        self.freed: tuple[MissingReplica, ...] = ()
        self._ledger_id = ledger_id
        self._known = known
        self._timeout_s = timeout_s

    def steps(self) -> Steps[VersionedLedger | None]:
        """Write what follows from what is known."""
        return (yield from MetadataUpdate(self._decide, self._known, self._timeout_s))

    def _decide(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        check_open(self._ledger_id, metadata)
        wanted, self.freed = split(metadata, self.shares)
        return wanted if self.freed else None
