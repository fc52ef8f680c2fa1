"""Bringing back the copies of one ledger that a lost bookie held.

The metadata names the new bookie only after that has every entry of the share. The change depends on the bookie's
identity, which gets a new version whenever it starts. A bookie that lost its data after the copies would come back
without knowing that this ledger counts on it, and would say "no" of what was acknowledged.

Everything is repeatable: what is left to do is what metadata still names, so a repair that was cut off is simply run
again. It goes on with the same new bookie, if it is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fastbk.errors import Error, IdentityChanged, MetadataUnavailable, NoSuchLedger
from fastbk.meta.api import IdentityVersion, VersionedIdentity, VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.replication.actions import (
    Choose,
    ListEntries,
    Outcome,
    ReadEntry,
    ReadIdentity,
    Replaced,
    Reply,
)
from fastbk.replication.copying import CopyShare, LedgerCopied, ShareCopied, share_of
from fastbk.replication.ensemble_change import Replacement
from fastbk.replication.metadata_update import PAUSE_MAX_S, PAUSE_MIN_S, MetadataUpdate
from fastbk.replication.procedure import Procedure
from fastbk.replication.repair_options import RepairOptions
from fastbk.replication.replicas import ABSENT_STATUSES, entry_in
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status

COPIES_MAX = 3
"""A share is copied to one bookie so often at most: copying stood still, or the bookie was started anew."""


@dataclass(slots=True)
class LedgerReReplicated(LedgerCopied):
    """What became of one ledger; its parts are fragments, and `left` those that still name the lost bookie.

    Attributes:
        fragments: how many fragments name another bookie now. entries: copied.
        has_no_target: no bookie could be chosen for a fragment.
    """

    fragments: int = 0
    entries: int = 0
    has_no_target: bool = False
    replacements: list[Replacement] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it names the lost bookie any more."""
        return not self.left


@dataclass(frozen=True, slots=True)
class _Share:
    """A fragment's share, from its first entry to `last`, that `target` is given in the lost bookie's place.

    Attributes:
        index: of the lost bookie in the ensemble.
        identity: the target's, read before it was given anything; None: it has none.
        tries_left: how often all of it may be given again.
    """

    known: VersionedLedger
    fragment: Fragment
    index: int
    last: EntryId
    target: BookieId
    identity: IdentityVersion | None = None
    tries_left: int = COPIES_MAX - 1

    @property
    def first(self) -> EntryId:
        return self.fragment.first_entry_id


class ReReplicateLedger(Procedure[LedgerReReplicated]):
    """Replaces one bookie in all finished fragments of a ledger, each after its share was copied.

    The fragment that an open ledger is being written to is left as it is, and said so: its writer replaces the bookie
    itself, or whoever closes it by recovery makes it a finished one first.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        lost: BookieId,
        options: RepairOptions | None = None,
        begun: BegunCopies | None = None,
    ) -> None:
        """`begun`: copies that an earlier attempt began; it is kept for the next one."""
        super().__init__()
        self.repaired = LedgerReReplicated(ledger_id)
        self._ledger_id = ledger_id
        self._lost = lost
        self._options = RepairOptions() if options is None else options
        self._refusing: dict[BookieId, str] = {}
        self._begun: BegunCopies = {} if begun is None else begun

    def begin(self, now_s: float) -> None:
        """Read the metadata."""
        self._read_metadata(self._was_read)

    def _was_read(self, outcome: Outcome, now_s: float) -> None:
        if isinstance(outcome, VersionedLedger):
            self._next(outcome, now_s)
        elif isinstance(outcome, NoSuchLedger):
            self._deleted(now_s)
        else:
            assert isinstance(outcome, Error)
            self._fail(outcome, now_s)

    def _deleted(self, now_s: float) -> None:
        self.repaired.is_deleted = True
        self.repaired.left.clear()
        self._finish(self.repaired, now_s)

    def _next(self, known: VersionedLedger, now_s: float) -> None:
        """Take the first fragment that names the lost bookie and was not given up."""
        metadata = known.metadata
        ends = [one.first_entry_id - 1 for one in metadata.fragments[1:]]
        ends.append(metadata.last_entry_id if metadata.is_closed else -1)
        for at, fragment in enumerate(metadata.fragments):
            if self._lost not in fragment.ensemble or fragment.first_entry_id in self.repaired.left:
                continue
            if at == len(ends) - 1 and not metadata.is_closed:
                self.repaired.left[fragment.first_entry_id] = (
                    "the ledger is open: its writer replaces the bookie, or recover the ledger first"
                )
                continue
            self._replace(known, fragment, ends[at], now_s)
            return
        self._finish(self.repaired, now_s)

    def _replace(
        self, known: VersionedLedger, fragment: Fragment, last: EntryId, now_s: float
    ) -> None:
        index = fragment.ensemble.index(self._lost)
        begun = self._begun.get((self._lost, fragment.first_entry_id))
        if (
            begun is not None
            and begun.target not in (*fragment.ensemble, *self._refusing)
            and now_s - begun.taken_s < self._options.recheck_after_s
        ):
            self._read_identity(
                _Share(known, fragment, index, last, begun.target), self._go_on, now_s
            )
        else:
            self._choose(known, fragment, index, last)

    def _go_on(self, share: _Share, now_s: float) -> None:
        """Copy what a bookie does not list that an earlier attempt gave some of the share."""
        listing = ListHeld(share.target, share.first, share.last, self._options.request_timeout_s)

        def listed(held: HeldEntries, at_s: float) -> None:
            if held.error:
                del self._begun[self._lost, share.first]
                self._choose(share.known, share.fragment, share.index, share.last)
            else:
                self._copy(share, at_s, held)

        self._run_for(listing, listed, now_s)

    def _choose(
        self, known: VersionedLedger, fragment: Fragment, index: int, last: EntryId
    ) -> None:
        def chosen(outcome: Outcome, at_s: float) -> None:
            found = outcome if isinstance(outcome, Replaced) else Replaced()
            target = found.chosen.get(index)
            if target is None:
                reasons = dict(found.left_out) | self._refusing
                said = "; ".join(f"{one}: {why}" for one, why in reasons.items())
                said = said or "none may be taken but those that hold it; start another"
                self.repaired.left[fragment.first_entry_id] = f"no bookie to copy to: {said}"
                self.repaired.has_no_target = not self._refusing
                self._next(known, at_s)
                return
            self._read_identity(_Share(known, fragment, index, last, target), self._copy, at_s)

        exclude = frozenset(self._refusing) | {self._lost}
        self._act(Choose(fragment.ensemble, frozenset({index}), exclude), chosen)

    def _read_identity(
        self, share: _Share, then: Callable[[_Share, float], None], now_s: float
    ) -> None:
        """Read which life of the bookie it is, before that takes or lists any of the share (INV-E3)."""
        backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, self._options.metadata_timeout_s, now_s)

        def read(outcome: Outcome, at_s: float) -> None:
            if isinstance(outcome, Error):
                is_away = isinstance(outcome, MetadataUnavailable)
                pause_s = backoff.next_in_time_s(at_s) if is_away else None
                if pause_s is None:
                    self._fail(outcome, at_s)
                else:
                    self._retry_in(pause_s, lambda _: self._act(ReadIdentity(share.target), read))
                return
            assert outcome is None or isinstance(outcome, VersionedIdentity)
            identity = None if outcome is None else IdentityVersion(share.target, outcome.version)
            then(replace(share, identity=identity), at_s)

        self._act(ReadIdentity(share.target), read)

    def _copy(self, share: _Share, now_s: float, held: HeldEntries | None = None) -> None:
        known, options = share.known, self._options
        runs = share_of(share.index, known.metadata, share.first, share.last)
        copy = CopyShare(
            self._ledger_id,
            known.metadata,
            share.fragment,
            share.index,
            share.last,
            share.target,
            options,
            runs=runs if held is None else held.without(runs),
        )

        def copied(_: Procedure[ShareCopied], then_s: float) -> None:
            repaired, result = self.repaired, copy.copied
            repaired.entries += result.entries
            repaired.size_bytes += result.size_bytes
            is_cut = bool(copy.error is not None or result.lost_count or result.unread)
            if is_cut or not self._is_stale(result, then_s):
                self._copied(share, copy, then_s)
            else:
                why = f"stood still for more than {options.recheck_after_s:g} s each time"
                self._copy_again(share, why, then_s)

        self._run(copy, copied, now_s)

    def _copy_again(self, share: _Share, why: str, now_s: float) -> None:
        """Give the bookie its share once more: what it has already it only confirms, and from then on it keeps it."""
        if share.tries_left:
            self._read_identity(replace(share, tries_left=share.tries_left - 1), self._copy, now_s)
        else:
            self.repaired.left[share.first] = f"copying to {share.target} {why}"
            self._next(share.known, now_s)

    def _is_stale(self, share: ShareCopied, now_s: float) -> bool:
        """Return whether the target may have dropped some of it again, not being named yet (INV-G2)."""
        silence_s = max(share.silence_s, now_s - share.last_taken_s)
        return share.last_entry_id >= 0 and silence_s >= self._options.recheck_after_s

    def _copied(self, share: _Share, copy: CopyShare, now_s: float) -> None:
        repaired, copied, known = self.repaired, copy.copied, share.known
        if copy.error is not None:
            self._begun.pop((self._lost, share.first), None)
            self._refusing[share.target] = str(copy.error)
            self._next(known, now_s)  # the same fragment, another target
            return
        if copied.entries:
            self._begun[self._lost, share.first] = BegunCopy(share.target, copied.last_taken_s)
        repaired.count_lost(copied)
        if copied.unread:
            repaired.park(share.first, copied)
            # The other fragments do not wait as long again for bookies that do not answer.
            self._options = self._options.less_patient()
            self._next(known, now_s)
            return
        if copied.lost_count:
            # Naming a bookie that lacks entries would make it answer "no" for what was acknowledged.
            repaired.left[share.first] = f"{copied.lost_count} entries have no readable copy left"
            self._next(known, now_s)
            return
        self._name(share, copied, now_s)

    def _name(self, share: _Share, copied: ShareCopied, now_s: float) -> None:
        """Name the new bookie in the metadata, if the fragment is still as it was (INV-M1).

        And only while the bookie is what it was before the copies: else it is given them again (INV-E3).
        """
        fragment, target = share.fragment, share.target

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            fragments = list(current.fragments)
            if fragment not in fragments or not _is_finished(current, fragment):
                return None
            ensemble = list(fragment.ensemble)
            ensemble[share.index] = target
            fragments[fragments.index(fragment)] = Fragment(share.first, tuple(ensemble))
            return replace(current, fragments=tuple(fragments))

        update = MetadataUpdate(
            decide, share.known, self._options.metadata_timeout_s, share.identity
        )

        def updated(_: Procedure[VersionedLedger], at_s: float) -> None:
            if isinstance(update.error, NoSuchLedger):
                self._deleted(at_s)
            elif isinstance(update.error, IdentityChanged):
                self._copy_again(
                    share, "was in vain: it was started anew each time before it was named", at_s
                )
            elif update.error is not None:
                self._fail(update.error, at_s)
            else:
                current = update.value()
                now = current.metadata.fragment_of(share.first)
                if target in now.ensemble:
                    self._begun.pop((self._lost, share.first), None)
                    reason = "it is being recovered"
                    change = Replacement(share.first, share.index, self._lost, target, reason)
                    self.repaired.replacements.append(change)
                    self._named(current, now, target, copied, at_s)
                    return
                if self._lost in now.ensemble:
                    self.repaired.left[share.first] = (
                        "its metadata changed meanwhile: run the repair again"
                    )
                self._next(current, at_s)

        self._run(update, updated, now_s)

    def _named(
        self,
        known: VersionedLedger,
        now: Fragment,
        target: BookieId,
        copied: ShareCopied,
        now_s: float,
    ) -> None:
        """Give it its share once more if naming it has taken that long: named, it drops nothing any more (INV-G2)."""
        if not self._is_stale(copied, now_s):
            self._confirm(known, now, target, copied.last_entry_id, now_s)
            return
        again = CopyShare(
            self._ledger_id,
            known.metadata,
            now,
            now.ensemble.index(target),
            copied.last_entry_id,
            target,
            self._options,
        )

        def done(_: Procedure[ShareCopied], at_s: float) -> None:
            if again.error is None and not again.copied.lost_count:
                self._confirm(known, now, target, copied.last_entry_id, at_s)
                return
            self.repaired.left[now.first_entry_id] = (
                f"bookie {target}, named in its place, may lack copies: recover {target}, too"
            )
            self._next(known, at_s)

        self._run(again, done, now_s)

    def _confirm(
        self,
        known: VersionedLedger,
        fragment: Fragment,
        target: BookieId,
        last_entry_id: EntryId,
        now_s: float,
    ) -> None:
        """Have the new bookie show the last copy now that metadata names it.

        One of Apache's has no identity of ours that naming it could depend on. If it lost its data after the copy and
        before it was named, it says "no" of what was acknowledged (P7).
        """

        def answered(outcome: Outcome, at_s: float) -> None:
            if entry_in(outcome, last_entry_id) is not None:
                self.repaired.fragments += 1
            else:
                self.repaired.left[fragment.first_entry_id] = (
                    f"bookie {target}, named in its place, does not show what it was given: recover {target}, too"
                )
            self._next(known, at_s)

        if last_entry_id < 0:
            self.repaired.fragments += 1
            self._next(known, now_s)
            return
        self._ask(target, ReadEntry(last_entry_id), self._options.request_timeout_s, answered)


def _is_finished(metadata: LedgerMetadata, fragment: Fragment) -> bool:
    return metadata.is_closed or fragment != metadata.fragments[-1]


# --- copies that were begun -----------------------------------------------------------------------
#
# Going on with a share that an earlier attempt began to copy: to the same bookie, and what that
# does not list. Pure.
#
# An attempt ends early when holders of an entry do not answer. The next one would choose any
# bookie, and copy all of the share again.


Run: TypeAlias = tuple[EntryId, EntryId]
RANGES_A_CALL = 4096
RANGES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """`target` took the last entry of a share at `taken_s`, by the driver's clock."""

    target: BookieId
    taken_s: float


BegunCopies: TypeAlias = dict[tuple[BookieId, EntryId], BegunCopy]
"""By the lost bookie and the first entry of the fragment."""


@dataclass(slots=True)
class HeldEntries:
    """Ranges of ids that a bookie lists, ascending. `error`: why it gave no list; then nothing counts as held."""

    ranges: list[Run] = field(default_factory=list)
    error: str = ""

    def without(self, runs: Iterator[Run]) -> Iterator[Run]:
        """Yield what of `runs` is not held, and always the last id: who takes it again shows that it is there."""
        at, last = 0, -1
        for first, last in runs:
            position = first
            while at < len(self.ranges) and self.ranges[at][0] <= last:
                held_first, held_last = self.ranges[at]
                if held_first > position:
                    yield position, held_first - 1
                position = max(position, held_last + 1)
                if held_last > last:
                    break
                at += 1
            if position <= last:
                yield position, last
        if last >= 0 and self.holds(last):
            yield last, last

    def holds(self, entry_id: EntryId) -> bool:
        """Return whether an entry is in a range."""
        return any(first <= entry_id <= last for first, last in reversed(self.ranges))


class ListHeld(Procedure[HeldEntries]):
    """Asks one bookie which entries it holds from `first` to `last`. Never fails."""

    def __init__(
        self, bookie_id: BookieId, first: EntryId, last: EntryId, timeout_s: float
    ) -> None:
        super().__init__()
        self._bookie_id = bookie_id
        self._first = first
        self._last = last
        self._timeout_s = timeout_s
        self._held = HeldEntries()

    def begin(self, now_s: float) -> None:
        """Ask for the first ranges."""
        self._ask(
            self._bookie_id, ListEntries(self._first, RANGES_A_CALL), self._timeout_s, self._listed
        )

    def _listed(self, outcome: Outcome, now_s: float) -> None:
        held = self._held
        if isinstance(outcome, Reply) and outcome.status in ABSENT_STATUSES:
            self._finish(held, now_s)
        elif isinstance(outcome, Reply) and outcome.status == Status.OK:
            held.ranges += [one for one in outcome.ranges if one[0] <= self._last]
            is_more = self._first < outcome.next_entry_id <= self._last
            if is_more and len(held.ranges) < RANGES_MAX:
                self._first = outcome.next_entry_id
                self.begin(now_s)
            else:
                self._finish(held, now_s)
        else:
            assert isinstance(outcome, Reply | Error)
            self._finish(HeldEntries(error=str(outcome)), now_s)
