"""Bringing back the copies of one ledger that a lost bookie held.

The metadata names the new bookie only after that has every entry of the share. Everything is repeatable: what is left
to do is what metadata still names, so a repair that was cut off is simply run again. It goes on with the same new
bookie, if it is told of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fastbk.errors import Error, NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.replication.actions import Choose, Outcome, ReadEntry, Replaced
from fastbk.replication.begun_copies import BegunCopies, BegunCopy, HeldEntries, ListHeld
from fastbk.replication.copying import CopyShare, LedgerCopied, ShareCopied, share_of
from fastbk.replication.ensemble_change_result import Replacement
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure
from fastbk.replication.repair_options import RepairOptions
from fastbk.replication.replicas import entry_in

COPIES_MAX = 3
"""A share is copied so often at most because copying stood still."""


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
            self._go_on(known, fragment, index, begun.target, last, now_s)
        else:
            self._choose(known, fragment, index, last)

    def _go_on(
        self,
        known: VersionedLedger,
        fragment: Fragment,
        index: int,
        target: BookieId,
        last: EntryId,
        now_s: float,
    ) -> None:
        """Copy what a bookie does not list that an earlier attempt gave some of the share."""
        listing = ListHeld(target, fragment.first_entry_id, last, self._options.request_timeout_s)

        def listed(held: HeldEntries, at_s: float) -> None:
            if held.error:
                del self._begun[self._lost, fragment.first_entry_id]
                self._choose(known, fragment, index, last)
            else:
                self._copy(known, fragment, index, target, last, at_s, COPIES_MAX, held)

        self._run_for(listing, listed, now_s)

    def _choose(self, known: VersionedLedger, fragment: Fragment, index: int, last: EntryId) -> None:
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
            self._copy(known, fragment, index, target, last, at_s, COPIES_MAX)

        exclude = frozenset(self._refusing) | {self._lost}
        self._act(chosen, Choose, fragment.ensemble, frozenset({index}), exclude)

    def _copy(
        self,
        known: VersionedLedger,
        fragment: Fragment,
        index: int,
        target: BookieId,
        last: EntryId,
        now_s: float,
        tries: int,
        held: HeldEntries | None = None,
    ) -> None:
        runs = share_of(index, known.metadata, fragment.first_entry_id, last)
        copy = CopyShare(
            self._ledger_id,
            known.metadata,
            fragment,
            index,
            last,
            target,
            self._options,
            runs=runs if held is None else held.without(runs),
        )

        def copied(_: Procedure[ShareCopied], then_s: float) -> None:
            repaired, share = self.repaired, copy.copied
            repaired.entries += share.entries
            repaired.size_bytes += share.size_bytes
            is_cut = bool(copy.error is not None or share.lost_count or share.unread)
            if is_cut or not self._is_stale(share, then_s):
                self._copied(known, fragment, index, target, copy, then_s)
            elif tries > 1:
                # What it has already it only confirms, and from then on it keeps it.
                self._copy(known, fragment, index, target, last, then_s, tries - 1)
            else:
                repaired.left[fragment.first_entry_id] = (
                    f"copying to {target} stood still for more than {self._options.recheck_after_s:g} s each time"
                )
                self._next(known, then_s)

        self._run(copy, copied, now_s)

    def _is_stale(self, share: ShareCopied, now_s: float) -> bool:
        """Return whether the target may have dropped some of it again, not being named yet (INV-G2)."""
        silence_s = max(share.silence_s, now_s - share.last_taken_s)
        return share.last_entry_id >= 0 and silence_s >= self._options.recheck_after_s

    def _copied(
        self,
        known: VersionedLedger,
        fragment: Fragment,
        index: int,
        target: BookieId,
        copy: CopyShare,
        now_s: float,
    ) -> None:
        repaired, copied = self.repaired, copy.copied
        share = self._lost, fragment.first_entry_id
        if copy.error is not None:
            self._begun.pop(share, None)
            self._refusing[target] = str(copy.error)
            self._next(known, now_s)  # the same fragment, another target
            return
        if copied.entries:
            self._begun[share] = BegunCopy(target, copied.last_taken_s)
        repaired.count_lost(copied)
        if copied.unread:
            repaired.park(fragment.first_entry_id, copied)
            # The other fragments do not wait as long again for bookies that do not answer.
            self._options = self._options.less_patient()
            self._next(known, now_s)
            return
        if copied.lost_count:
            # Naming a bookie that lacks entries would make it answer "no" for what was acknowledged.
            repaired.left[fragment.first_entry_id] = (
                f"{copied.lost_count} entries have no readable copy left"
            )
            self._next(known, now_s)
            return
        self._name(known, fragment, index, target, copied, now_s)

    def _name(
        self,
        known: VersionedLedger,
        fragment: Fragment,
        index: int,
        target: BookieId,
        copied: ShareCopied,
        now_s: float,
    ) -> None:
        """Name the new bookie in the metadata, if the fragment is still as it was (INV-M1)."""

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            fragments = list(current.fragments)
            if fragment not in fragments or not _is_finished(current, fragment):
                return None
            ensemble = list(fragment.ensemble)
            ensemble[index] = target
            fragments[fragments.index(fragment)] = Fragment(
                fragment.first_entry_id, tuple(ensemble)
            )
            return replace(current, fragments=tuple(fragments))

        update = MetadataUpdate(decide, known, self._options.metadata_timeout_s)

        def updated(_: Procedure[VersionedLedger], at_s: float) -> None:
            if isinstance(update.error, NoSuchLedger):
                self._deleted(at_s)
            elif update.error is not None:
                self._fail(update.error, at_s)
            else:
                current = update.value()
                now = current.metadata.fragment_of(fragment.first_entry_id)
                if target in now.ensemble:
                    self._begun.pop((self._lost, fragment.first_entry_id), None)
                    first, reason = fragment.first_entry_id, "it is being recovered"
                    change = Replacement(first, index, self._lost, target, reason)
                    self.repaired.replacements.append(change)
                    self._named(current, fragment, now, target, copied, at_s)
                    return
                if self._lost in now.ensemble:
                    self.repaired.left[fragment.first_entry_id] = (
                        "its metadata changed meanwhile: run the repair again"
                    )
                self._next(current, at_s)

        self._run(update, updated, now_s)

    def _named(
        self,
        known: VersionedLedger,
        fragment: Fragment,
        now: Fragment,
        target: BookieId,
        copied: ShareCopied,
        now_s: float,
    ) -> None:
        """Give it its share once more if naming it has taken that long: named, it drops nothing any more (INV-G2)."""
        if not self._is_stale(copied, now_s):
            self._confirm(known, fragment, target, copied.last_entry_id, now_s)
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
                self._confirm(known, fragment, target, copied.last_entry_id, at_s)
                return
            self.repaired.left[fragment.first_entry_id] = (
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

        One that lost its data after the copy and before it was named could not know that this ledger counts on it, so
        it would say "no" of what was acknowledged (P7). From here on it knows.
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
