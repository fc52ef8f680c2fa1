"""The repair of one marked ledger: what a replication worker does while it holds the ledger's lock. Pure.

A mark says which bookies may lack which entries. It may be old, so everything is checked again first:

1. Read the metadata, and drop what it no longer names (a *stale* part of the mark).
2. A bookie that is up is asked for its entries, and gets those that it lacks (`RepairLedger`). It may have come back
   empty, or in limbo; so a ledger whose ensemble is the whole cluster can be repaired, too.
3. A bookie that is gone is replaced, fragment by fragment (`ReReplicateLedger`). One that is away and not gone yet is
   waited for.
4. What was verified is removed from the mark. Nothing else is.

An open ledger whose last fragment names a gone bookie first gets a grace period: its writer replaces the bookie
itself. After that, the metadata is read again, and the ledger is fenced and closed by recovery. The gone bookie is not
asked for its LAC. A ledger whose recovery was begun and not ended gets the same period, for whoever recovers it, and is
closed then: it has no writer any more that could repair its last fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fastbk.errors import Error, NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import ID_MAX, BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica, merged
from fastbk.replication.copy_check import is_expected, verified_copies
from fastbk.replication.copy_listing import CheckRecoveredCopies
from fastbk.replication.copying import LedgerCopied
from fastbk.replication.ledger_repair import RepairLedger
from fastbk.replication.metadata_update import Replacement
from fastbk.replication.procedure import MarkReplicas, Procedure, ReadMetadata, Steps
from fastbk.replication.re_replication import BegunCopies, ReReplicateLedger
from fastbk.replication.recovery import RecoverLedger, RecoveryOptions
from fastbk.replication.repair_options import RepairOptions


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Which bookies are there.

    Attributes:
        present: registered. writable: those of them that take adds. unlisted: those that give no list of entries.
        gone: lost, and their delay is over.
    """

    present: frozenset[BookieId] = frozenset()
    writable: frozenset[BookieId] = frozenset()
    gone: frozenset[BookieId] = frozenset()
    unlisted: frozenset[BookieId] = frozenset()


@dataclass(slots=True)
class MarkedLedgerRepaired:
    """What became of one marked ledger.

    Attributes:
        entries, size_bytes: copied. lost_count: entries of which nobody has a good copy.
        stale: ranges of the mark that metadata no longer named.
        closed: it was open, and closed by recovery.
        needs_grace: it is open and names a gone bookie, or is being recovered; try again after the grace period.
        waits_for: bookies of the mark that are away, but not gone yet, or read-only.
        left: why copies are still missing, a text each. unanswered: bookies that may give them and did not answer.
        is_stuck: only a change of the cluster helps: no source, or no bookie to copy to.
        has_no_target: that is so since there is no bookie to copy to.
        is_open: a part of the mark is of a fragment that is being written.
        is_deleted: there is no such ledger any more.
        replacements: bookies that metadata names now in place of gone ones.
    """

    ledger_id: LedgerId
    entries: int = 0
    size_bytes: int = 0
    lost_count: int = 0
    stale: int = 0
    closed: bool = False
    needs_grace: bool = False
    waits_for: set[BookieId] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    unanswered: set[BookieId] = field(default_factory=set)
    is_stuck: bool = False
    has_no_target: bool = False
    is_open: bool = False
    is_deleted: bool = False
    replacements: list[Replacement] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the mark is left."""
        return not (self.left or self.needs_grace or self.waits_for or self.is_open)


class RepairMarkedLedger(Procedure[MarkedLedgerRepaired]):
    """Repairs what a ledger's mark says; see the module's text. Repeatable at any point."""

    def __init__(
        self,
        ledger_id: LedgerId,
        missing: Sequence[MissingReplica],
        view: ClusterView,
        options: RepairOptions | None = None,
        *,
        may_close: bool = False,
        begun: BegunCopies | None = None,
    ) -> None:
        """Begin.

        Args:
            ledger_id: of the ledger.
            missing: its mark.
            view: which bookies are there now.
            options: bounds of the copying.
            may_close: the grace period of an open ledger is over.
            begun: copies that an earlier attempt began and did not end; it is kept for the next one.
        """
        super().__init__()
        self.repaired = MarkedLedgerRepaired(ledger_id)
        self._ledger_id = ledger_id
        self._view = view
        self._options = RepairOptions() if options is None else options
        self._may_close = may_close
        self._begun = begun
        self._marked: dict[BookieId, list[MissingReplica]] = {}
        for one in merged(missing):
            self._marked.setdefault(one.bookie_id, []).append(one)

    def steps(self) -> Steps[MarkedLedgerRepaired]:
        """Read the metadata, for the mark may be old; then repair bookie after bookie."""
        repaired, view = self.repaired, self._view
        try:
            known: VersionedLedger = yield ReadMetadata()
        except NoSuchLedger:
            repaired.is_deleted = True
            return repaired
        yield from self._drop_stale(known.metadata)
        metadata = yield from self._close_if_due(known)
        while self._marked and not repaired.is_deleted:
            bookie_id, missing = self._marked.popitem()
            if not missing:
                continue
            if bookie_id in view.gone:
                yield from self._replace(bookie_id, metadata)
            elif bookie_id in view.writable:
                yield from self._refill(bookie_id, merged(missing), metadata)
            else:
                repaired.waits_for.add(bookie_id)
        return repaired

    def _drop_stale(self, metadata: LedgerMetadata) -> Steps[None]:
        marked = [one for each in self._marked.values() for one in each]
        stale = [one for one in marked if not is_expected(metadata, one)]
        if stale:
            yield MarkReplicas((), tuple(stale))
            self.repaired.stale = len(stale)
            for one in stale:
                self._marked[one.bookie_id].remove(one)

    # --- open ledgers ------------------------------------------------------------------------------------------

    def _close_if_due(self, known: VersionedLedger) -> Steps[LedgerMetadata]:
        """Close an open ledger that has no writer or waits for a gone bookie; first let others end that themselves."""
        repaired, metadata, options = self.repaired, known.metadata, self._options
        gone = self._view.gone.intersection(metadata.fragments[-1].ensemble)
        if metadata.is_closed or not (gone or metadata.state is LedgerState.IN_RECOVERY):
            return metadata
        if not self._may_close:
            repaired.needs_grace = True
            return metadata
        recovery_options = RecoveryOptions(
            pacing=options.pacing(options.patience_s),
            metadata_timeout_s=options.metadata_timeout_s,
            lost=gone,
        )
        recovery = RecoverLedger(self._ledger_id, known, recovery_options)
        with suppress(Error):
            yield from recovery
        repaired.replacements += recovery.stats.replacements
        if isinstance(recovery.error, NoSuchLedger):
            repaired.is_deleted = True
            return metadata
        if recovery.error is not None:
            repaired.left.append(f"it could not be closed: {recovery.error}")
            return metadata
        repaired.closed = True
        closed = recovery.value().metadata
        yield from self._mark_closed(closed)
        return closed

    def _mark_closed(self, metadata: LedgerMetadata) -> Steps[None]:
        """Mark what a dead writer and the recovery left on too few bookies; this or a later attempt repairs it."""
        view, timeout_s = self._view, self._options.request_timeout_s
        found = yield from CheckRecoveredCopies(
            self._ledger_id, metadata, view.present, view.unlisted, timeout_s
        )
        for one in found:
            self._marked.setdefault(one.bookie_id, []).append(one)

    # --- steps 2 to 4 ------------------------------------------------------------------------------------------

    def _refill(
        self, bookie_id: BookieId, missing: Sequence[MissingReplica], metadata: LedgerMetadata
    ) -> Steps[None]:
        """Give a bookie that is up what it lacks."""
        ends = [ID_MAX if one.last_entry_id is None else one.last_entry_id for one in missing]
        ranges = [(one.first_entry_id, end) for one, end in zip(missing, ends, strict=True)]
        repair = RepairLedger(self._ledger_id, bookie_id, self._options, ranges)
        with suppress(Error):
            yield from repair
        repaired, healed = self.repaired, repair.healed
        repaired.entries += healed.healed
        self._count(healed)
        if repair.error is not None:
            repaired.left.append(f"bookie {bookie_id}: {repair.error}")
        elif not healed.is_whole:
            repaired.left.append(f"bookie {bookie_id}: {healed.why_not_whole}")
            # The bookie keeps other data of these entries: a retry finds the same.
            repaired.is_stuck |= bool(healed.refused_count)
        else:
            repaired.is_open |= _is_of_open_part(metadata, missing)
            # Of a closed ledger also a mark without an end is verified wholly.
            verified = (
                missing if metadata.is_closed else verified_copies(bookie_id, metadata, ranges)
            )
            yield from self._unmark(verified)

    def _replace(self, bookie_id: BookieId, metadata: LedgerMetadata) -> Steps[None]:
        """Copy a gone bookie's share of all finished fragments to others, and name these."""
        repair = ReReplicateLedger(self._ledger_id, bookie_id, self._options, self._begun)
        with suppress(Error):
            yield from repair
        repaired, copied = self.repaired, repair.repaired
        repaired.entries += copied.entries
        repaired.replacements += copied.replacements
        self._count(copied)
        if repair.error is not None:
            repaired.left.append(f"bookie {bookie_id}: {repair.error}")
        elif copied.left:
            self._take_left(bookie_id, copied.left, metadata)
            repaired.is_stuck |= copied.has_no_target
            repaired.has_no_target |= copied.has_no_target
        else:
            yield from self._unmark(verified_copies(bookie_id, metadata))

    def _unmark(self, verified: Sequence[MissingReplica]) -> Steps[None]:
        if verified:
            with suppress(NoSuchLedger):
                yield MarkReplicas((), tuple(verified))

    def _take_left(
        self, bookie_id: BookieId, left: Mapping[int, str], metadata: LedgerMetadata
    ) -> None:
        last = metadata.fragments[-1].first_entry_id
        for first, reason in left.items():
            if self.repaired.needs_grace and first == last and not metadata.is_closed:
                continue  # its writer has time to replace the bookie
            self.repaired.left.append(f"bookie {bookie_id}, from entry {first}: {reason}")

    def _count(self, copied: LedgerCopied) -> None:
        repaired = self.repaired
        repaired.size_bytes += copied.size_bytes
        repaired.lost_count += copied.lost_count
        repaired.is_stuck |= bool(copied.lost_count)
        for bookies in copied.parked.values():
            repaired.unanswered |= bookies
            # Whoever has it is not even registered: asking again is of no use.
            repaired.is_stuck |= bool(bookies) and self._view.present.isdisjoint(bookies)


def _is_of_open_part(metadata: LedgerMetadata, missing: Sequence[MissingReplica]) -> bool:
    """Return whether a mark reaches into the fragment that is being written."""
    return not metadata.is_closed and any(
        one.end > metadata.fragments[-1].first_entry_id for one in missing
    )
