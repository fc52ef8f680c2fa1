"""Bringing back the copies of one ledger that a lost bookie held.

The metadata names the new bookie only after that has every entry of the share. The change depends on the bookie's
identity, which gets a new version whenever it starts. A bookie that lost its data after the copies would come back
without knowing that this ledger counts on it, and would say "no" of what was acknowledged.

Everything is repeatable: what is left to do is what metadata still names, so a repair that was cut off is simply run
again. It goes on with the same new bookie, if it is told of it.

A *move* (`MoveCopies`) is the same for a bookie that is up, to a bookie that the caller chose: for placement, and to
even out disks. The old copy is a source, and stays where it is: the bookie's own gc drops it, long after metadata names
another one.

INV-P6: a move leaves no entry with fewer copies at any moment. Metadata names the new bookie only once that has shown
its whole share, in the life in which it was given it, and only while the fragment is as the move's maker saw it.

Decision 170.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fastbk.errors import Error, IdentityChanged, MetadataUnavailable, NoSuchLedger
from fastbk.meta.api import IdentityVersion, VersionedIdentity, VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.copy_check import last_of_fragment
from fastbk.replication.copy_listing import RANGES_A_CALL, lacking
from fastbk.replication.copying import CopyShare, LedgerCopied, ShareCopied, share_of
from fastbk.replication.metadata_update import PAUSE_MAX_S, PAUSE_MIN_S, MetadataUpdate, Replacement
from fastbk.replication.procedure import (
    ListEntries,
    MarkReplicas,
    Procedure,
    ReadEntry,
    ReadIdentity,
    ReadMetadata,
    Reply,
    SendRequest,
    Sleep,
    Steps,
    attempt,
    choose,
)
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
        refusing: bookies that did not take copies, and what they said.
    """

    fragments: int = 0
    entries: int = 0
    has_no_target: bool = False
    replacements: list[Replacement] = field(default_factory=list)
    refusing: dict[BookieId, str] = field(default_factory=dict)

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
        held: what the target lists of it already.
    """

    known: VersionedLedger
    fragment: Fragment
    index: int
    last: EntryId
    target: BookieId
    identity: IdentityVersion | None
    held: HeldEntries | None = None

    @property
    def first(self) -> EntryId:
        return self.fragment.first_entry_id

    @property
    def lost(self) -> BookieId:
        return self.fragment.ensemble[self.index]


class ReReplicateLedger(Procedure[LedgerReReplicated]):
    """Replaces one bookie in all finished fragments of a ledger, each after its share was copied.

    The fragment that an open ledger is being written to is left as it is, and said so: its writer replaces the bookie
    itself, or whoever closes it by recovery makes it a finished one first.
    """

    _holder_is_up = False

    def __init__(
        self,
        ledger_id: LedgerId,
        lost: BookieId,
        options: RepairOptions | None = None,
        begun: BegunCopies | None = None,
        avoid: Collection[BookieId] = (),
    ) -> None:
        """`begun`: copies that an earlier attempt began; it is kept for the next one. `avoid`: given no copies."""
        super().__init__()
        self.repaired = LedgerReReplicated(ledger_id)
        self._ledger_id = ledger_id
        self._lost = lost
        self._reason = "it is being recovered"
        self._options = RepairOptions() if options is None else options
        self._refusing = self.repaired.refusing
        self._begun: BegunCopies = {} if begun is None else begun
        self._avoid = frozenset(avoid)

    def steps(self) -> Steps[LedgerReReplicated]:
        """Take fragment after fragment."""
        try:
            known: VersionedLedger = yield ReadMetadata()
            while (part := self._next(known.metadata)) is not None:
                known = yield from self._replace(known, *part)
        except NoSuchLedger:
            self.repaired.is_deleted = True
            self.repaired.left.clear()
        return self.repaired

    def _next(self, metadata: LedgerMetadata) -> tuple[Fragment, EntryId] | None:
        """Return the first fragment that names the lost bookie and was not given up, and its last entry."""
        ends = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
        ends.append(metadata.last_entry_id if metadata.is_closed else -1)
        for index, fragment in enumerate(metadata.fragments):
            if self._lost not in fragment.ensemble or fragment.first_entry_id in self.repaired.left:
                continue
            if index == len(ends) - 1 and not metadata.is_closed:
                self.repaired.left[fragment.first_entry_id] = (
                    "the ledger is open: its writer replaces the bookie, or recover the ledger first"
                )
                continue
            return fragment, ends[index]
        return None

    def _replace(
        self, known: VersionedLedger, fragment: Fragment, last: EntryId
    ) -> Steps[VersionedLedger]:
        """Copy one share to a bookie and name that; return the metadata to go on with."""
        share = yield from self._begun_share(known, fragment, last)
        share = share or (yield from self._new_share(known, fragment, last))
        return known if share is None else (yield from self._give(share))

    def _give(self, share: _Share) -> Steps[VersionedLedger]:
        """Copy a share and name who has it; return the metadata to go on with."""
        why = ""
        for _ in range(COPIES_MAX):
            if why:
                # What it has already it only confirms, and from then on it keeps it.
                identity = yield from self._read_identity(share.target)
                share = replace(share, identity=identity, held=None)
            copy = yield from self._copy(share)
            copied, limit_s = copy.copied, self._options.recheck_after_s
            is_cut = bool(copy.error is not None or copied.lost_count or copied.unread)
            if not is_cut and self._is_stale(copied):
                why = f"stood still for more than {limit_s:g} s each time"
                continue
            if not self._copied(share, copy) or not (yield from self._is_shown(share)):
                return share.known
            try:
                return (yield from self._name(share, copied))
            except IdentityChanged:
                why = "was in vain: it was started anew each time before it was named"
        self.repaired.left[share.first] = f"copying to {share.target} {why}"
        return share.known

    def _is_shown(self, share: _Share) -> Steps[bool]:
        """Return whether the target may be named: it has taken all of the share."""
        del share
        yield from ()
        return True

    # --- whom to copy to ---------------------------------------------------------------------------------------

    def _begun_share(
        self, known: VersionedLedger, fragment: Fragment, last: EntryId
    ) -> Steps[_Share | None]:
        """Return what is left for a bookie that an earlier attempt gave some of the share; None: there is none."""
        begun = self._begun.get((self._lost, fragment.first_entry_id))
        if (
            begun is None
            or begun.target in (*fragment.ensemble, *self._refusing)
            or self._now_s - begun.taken_s >= self._options.recheck_after_s
        ):
            return None
        target, index = begun.target, fragment.ensemble.index(self._lost)
        identity = yield from self._read_identity(target)
        held = yield from list_held(
            target, fragment.first_entry_id, last, self._options.request_timeout_s
        )
        if held.error:
            del self._begun[self._lost, fragment.first_entry_id]
            return None
        return _Share(known, fragment, index, last, target, identity, held)

    def _new_share(
        self, known: VersionedLedger, fragment: Fragment, last: EntryId
    ) -> Steps[_Share | None]:
        """Choose a bookie for the share; None: there is none, and that is said."""
        index = fragment.ensemble.index(self._lost)
        exclude = frozenset(self._refusing) | {self._lost} | self._avoid
        choice = yield from choose(fragment.ensemble, frozenset({index}), exclude)
        target = choice.chosen.get(index)
        if target is None:
            reasons = dict(choice.left_out) | self._refusing
            reason = "; ".join(f"{bookie_id}: {why}" for bookie_id, why in reasons.items())
            reason = reason or "none may be taken but those that hold it; start another"
            if choice.shortage:
                reason = f"{choice.shortage} ({reason})"
            self.repaired.left[fragment.first_entry_id] = f"no bookie to copy to: {reason}"
            self.repaired.has_no_target = not self._refusing
            return None
        identity = yield from self._read_identity(target)
        return _Share(known, fragment, index, last, target, identity)

    def _read_identity(self, target: BookieId) -> Steps[IdentityVersion | None]:
        """Read which life of the bookie it is, before that takes or lists any of the share (INV-E3)."""
        timeout_s = self._options.metadata_timeout_s
        backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, timeout_s, self._now_s)
        while True:
            try:
                identity: VersionedIdentity | None = yield ReadIdentity(target)
            except MetadataUnavailable:
                pause_s = backoff.next_in_time_s(self._now_s)
                if pause_s is None:
                    raise
            else:
                return None if identity is None else IdentityVersion(target, identity.version)
            yield Sleep(pause_s, is_retry=True)

    # --- copying and naming ------------------------------------------------------------------------------------

    def _copy(self, share: _Share) -> Steps[CopyShare]:
        known, held = share.known, share.held
        runs = share_of(share.index, known.metadata, share.first, share.last)
        copy = CopyShare(
            self._ledger_id,
            known.metadata,
            share.fragment,
            share.index,
            share.last,
            share.target,
            self._options,
            runs=runs if held is None else held.without(runs),
            holder_is_up=self._holder_is_up,
        )
        with suppress(Error):
            yield from copy
        self.repaired.entries += copy.copied.entries
        self.repaired.size_bytes += copy.copied.size_bytes
        return copy

    def _is_stale(self, share: ShareCopied) -> bool:
        """Return whether the target may have dropped some of it again, not being named yet (INV-G2)."""
        silence_s = max(share.silence_s, self._now_s - share.last_taken_s)
        return share.last_entry_id >= 0 and silence_s >= self._options.recheck_after_s

    def _copied(self, share: _Share, copy: CopyShare) -> bool:
        """Return whether the target has all of it. If it refused, the same fragment gets another target."""
        repaired, copied = self.repaired, copy.copied
        if copy.error is not None:
            self._begun.pop((share.lost, share.first), None)
            self._refusing[share.target] = str(copy.error)
            return False
        if copied.entries:
            self._begun[share.lost, share.first] = BegunCopy(share.target, copied.last_taken_s)
        repaired.count_lost(copied)
        if copied.unread:
            repaired.park(share.first, copied)
            # The other fragments do not wait as long again for bookies that do not answer.
            self._options = self._options.less_patient()
            return False
        if copied.lost_count:
            # Naming a bookie that lacks entries would make it answer "no" for what was acknowledged.
            repaired.left[share.first] = f"{copied.lost_count} entries have no readable copy left"
            return False
        return True

    def _name(self, share: _Share, copied: ShareCopied) -> Steps[VersionedLedger]:
        """Name the new bookie in the metadata, if the fragment is still as it was (INV-M1).

        And only while the bookie is what it was before the copies: else it is given them again (INV-E3).
        """
        fragment, target, repaired = share.fragment, share.target, self.repaired

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            fragments = list(current.fragments)
            if fragment not in fragments or not _is_finished(current, fragment):
                return None
            ensemble = list(fragment.ensemble)
            ensemble[share.index] = target
            fragments[fragments.index(fragment)] = Fragment(share.first, tuple(ensemble))
            return replace(current, fragments=tuple(fragments))

        known = yield from MetadataUpdate(
            decide, share.known, self._options.metadata_timeout_s, share.identity
        )
        named = known.metadata.fragment_of(share.first)
        if named.ensemble[share.index] == target:
            self._begun.pop((share.lost, share.first), None)
            change = Replacement(share.first, share.index, share.lost, target, self._reason)
            repaired.replacements.append(change)
            trouble = yield from self._confirm(known.metadata, named, target, copied)
            if trouble:
                repaired.left[named.first_entry_id] = (
                    f"bookie {target}, named in its place, {trouble}: recover {target}, too"
                )
            else:
                repaired.fragments += 1
        elif share.lost in named.ensemble:
            repaired.left[share.first] = "its metadata changed meanwhile: run the repair again"
        return known

    def _confirm(
        self, metadata: LedgerMetadata, named: Fragment, target: BookieId, copied: ShareCopied
    ) -> Steps[str]:
        """Return why the new bookie may lack copies now that metadata names it, "" if it does not.

        It gets its share once more if naming it has taken that long: named, it drops nothing any more (INV-G2). Then
        it has to show the last copy. One of Apache's has no identity of ours that naming it could depend on. If it lost
        its data after the copy and before it was named, it says "no" of what was acknowledged (P7).
        """
        last, options = copied.last_entry_id, self._options
        if self._is_stale(copied):
            index = named.ensemble.index(target)
            again = CopyShare(self._ledger_id, metadata, named, index, last, target, options)
            with suppress(Error):
                yield from again
            if again.error is not None or again.copied.lost_count:
                return "may lack copies"
        if last < 0:
            return ""
        outcome = yield from attempt(
            SendRequest(target, ReadEntry(last), options.request_timeout_s)
        )
        return "" if entry_in(outcome, last) else "does not show what it was given"


def _is_finished(metadata: LedgerMetadata, fragment: Fragment) -> bool:
    return metadata.is_closed or fragment != metadata.fragments[-1]


# --- moves ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """One bookie's share of a fragment goes to another bookie. `ensemble`: of the fragment before that."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]
    source: BookieId
    target: BookieId

    @property
    def moved_ensemble(self) -> tuple[BookieId, ...]:
        """The ensemble behind it."""
        return tuple(self.target if member == self.source else member for member in self.ensemble)


class MoveCopies(ReReplicateLedger):
    """Moves copies of a closed ledger, one after the other; those of a fragment may stand on each other.

    A move that cannot be made ends those of its fragment: they are in `left`, with the reason. The ledger's lock keeps
    repairs away meanwhile. Without it nothing is lost either: then the compare-and-set gives up.
    """

    _holder_is_up = True

    def __init__(
        self,
        ledger_id: LedgerId,
        moves: Sequence[Move],
        options: RepairOptions | None = None,
        *,
        reason: str = "its copies are moved",
        unlisted: Collection[BookieId] = (),
    ) -> None:
        """`unlisted`: bookies that give no list of entries, Apache's: they show the last entry after they are named."""
        super().__init__(ledger_id, BookieId(""), options)
        self._moves = moves
        self._reason = reason
        self._unlisted = unlisted
        self._is_certain = False

    def steps(self) -> Steps[LedgerReReplicated]:
        """Make move after move."""
        repaired = self.repaired
        try:
            known: VersionedLedger = yield ReadMetadata()
            for move in self._moves:
                if move.first_entry_id in repaired.left:
                    continue
                share = yield from self._share_of(known, move)
                if share is not None:
                    known = yield from self._give(share)
                    yield from self._mark_doubtful(known.metadata, share)
                if refusal := self._refusing.get(move.target):
                    repaired.left.setdefault(move.first_entry_id, refusal)
        except NoSuchLedger:
            repaired.is_deleted = True
            repaired.left.clear()
        return repaired

    def _share_of(self, known: VersionedLedger, move: Move) -> Steps[_Share | None]:
        """Return what is to be copied; None: nothing, since it was done already, or cannot be, which is said."""
        metadata, first = known.metadata, move.first_entry_id
        if not metadata.is_closed:
            self.repaired.left[first] = "the ledger is open: its writer may change its bookies"
            return None
        positions = [
            index for index, each in enumerate(metadata.fragments) if each.first_entry_id == first
        ]
        ensemble = metadata.fragments[positions[0]].ensemble if positions else ()
        if ensemble == move.moved_ensemble:
            return None  # an answer was lost
        if ensemble != move.ensemble or move.target in ensemble:
            self.repaired.left[first] = "its metadata changed since the move was planned"
            return None
        if move.target in self._refusing:
            return None
        last = last_of_fragment(metadata, positions[0])
        assert last is not None
        identity = yield from self._read_identity(move.target)
        self._is_certain = identity is not None and move.target not in self._unlisted
        index = ensemble.index(move.source)
        fragment = metadata.fragments[positions[0]]
        return _Share(known, fragment, index, last, move.target, identity)

    def _is_shown(self, share: _Share) -> Steps[bool]:
        """Have the target list what it holds: nothing of the share may be missing (INV-P6)."""
        if share.target in self._unlisted:
            return True
        lack = yield from find_lack(
            share.target,
            share.known.metadata,
            share.index,
            share.first,
            share.last,
            self._options.request_timeout_s,
        )
        if lack:
            self.repaired.left[share.first] = f"bookie {share.target} took its copies, and {lack}"
        return not lack

    def _confirm(
        self, metadata: LedgerMetadata, named: Fragment, target: BookieId, copied: ShareCopied
    ) -> Steps[str]:
        """Ask nothing of a bookie that listed the share in the life in which it was named: it may be down by now."""
        if self._is_certain and not self._is_stale(copied):
            return ""
        return (yield from super()._confirm(metadata, named, target, copied))

    def _mark_doubtful(self, metadata: LedgerMetadata, share: _Share) -> Steps[None]:
        """Have repairs look at a copy that metadata names, and of which nobody knows whether it is there."""
        if (
            share.first in self.repaired.left
            and share.target in metadata.fragment_of(share.first).ensemble
        ):
            reason = "not shown after it was moved there"
            yield MarkReplicas((MissingReplica(share.target, share.first, share.last, reason),))


def find_lack(
    bookie_id: BookieId,
    metadata: LedgerMetadata,
    index: int,
    first: EntryId,
    last: EntryId,
    timeout_s: float,
) -> Steps[str]:
    """Return what a bookie does not list of the share of `index`, or why it gives no list; "" if it lists all."""
    while first <= last:
        try:
            reply: Reply = yield SendRequest(
                bookie_id, ListEntries(first, RANGES_A_CALL), timeout_s
            )
        except Error as error:
            return f"gives no list of them: {error}"
        if reply.status not in (Status.OK, *ABSENT_STATUSES):
            return f"gives no list of them: {reply.status}"
        behind = reply.next_entry_id if reply.status == Status.OK else -1
        through = behind - 1 if first < behind <= last else last
        for gap_first, gap_last in lacking(metadata, index, (first, through), reply.ranges):
            return f"does not list entries {gap_first} to {gap_last}"
        first = through + 1
    return ""


# --- copies that were begun -----------------------------------------------------------------------
#
# Going on with a share that an earlier attempt began to copy: to the same bookie, and what that
# does not list. Pure.
#
# An attempt ends early when holders of an entry do not answer. The next one would choose any
# bookie, and copy all of the share again.


Run: TypeAlias = tuple[EntryId, EntryId]
RANGES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """`target` took the last entry of a share at `taken_s`, by the driver's clock."""

    target: BookieId
    taken_s: float


BegunCopies: TypeAlias = dict[tuple[BookieId, EntryId], BegunCopy]
"""Copies that were begun, by the lost bookie and the first entry of the fragment."""


@dataclass(slots=True)
class HeldEntries:
    """Ranges of ids that a bookie lists, ascending. `error`: why it gave no list; then nothing counts as held."""

    ranges: list[Run] = field(default_factory=list)
    error: str = ""

    def without(self, runs: Iterator[Run]) -> Iterator[Run]:
        """Yield what of `runs` is not held, and always the last id: who takes it again shows that it is there."""
        index, last = 0, -1
        for first, last in runs:
            position = first
            while index < len(self.ranges) and self.ranges[index][0] <= last:
                held_first, held_last = self.ranges[index]
                if held_first > position:
                    yield position, held_first - 1
                position = max(position, held_last + 1)
                if held_last > last:
                    break
                index += 1
            if position <= last:
                yield position, last
        if last >= 0 and self.holds(last):
            yield last, last

    def holds(self, entry_id: EntryId) -> bool:
        """Return whether an entry is in a range."""
        return any(first <= entry_id <= last for first, last in reversed(self.ranges))


def list_held(
    bookie_id: BookieId, first: EntryId, last: EntryId, timeout_s: float
) -> Steps[HeldEntries]:
    """Ask one bookie which entries it holds from `first` to `last`. Never fails."""
    held = HeldEntries()
    while True:
        try:
            reply: Reply = yield SendRequest(
                bookie_id, ListEntries(first, RANGES_A_CALL), timeout_s
            )
        except Error as error:
            return HeldEntries(error=str(error))
        if reply.status in ABSENT_STATUSES:
            return held
        if reply.status != Status.OK:
            return HeldEntries(error=str(reply))
        held.ranges += [held_range for held_range in reply.ranges if held_range[0] <= last]
        if not first < reply.next_entry_id <= last or len(held.ranges) >= RANGES_MAX:
            return held
        first = reply.next_entry_id
