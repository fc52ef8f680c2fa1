"""Making one bookie's copies of a ledger whole again, in place: it is asked for all that it should hold, and what it
does not show with a good digest is copied to it from the others.

Unlike `re_replication` nothing in the metadata changes: the bookie is up, but some of its copies are damaged, or lost
(limbo). Copies are written with the recovery flag: a bookie takes one beside a copy that fails its checksum, never in
place of a good one (INV-A5). Everything is repeatable, so a repair that was cut off is simply run again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fastbk.errors import Error, NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.placement.config import Distance
from fastbk.replication.copy_check import CheckCopies, Range
from fastbk.replication.copying import (
    LOST_LISTED_MAX,
    CopyShare,
    LedgerCopied,
    share_of,
)
from fastbk.replication.procedure import MarkReplicas, Procedure, ReadMetadata, Steps
from fastbk.replication.repair_options import RepairOptions, nowhere
from fastbk.retry import Backoff


@dataclass
class LedgerRepaired(LedgerCopied):
    """What became of one ledger's copies on one bookie.

    Attributes:
        checked: entries that it showed with a good digest. healed: copied to it.
        refused_count, refused: entries that it holds with other data or a wrong digest, and keeps so (INV-A5; some by
            name, fewer than 200).
        is_open: entries of a fragment that is being written are not looked at.
    """

    checked: int = 0
    healed: int = 0
    refused_count: int = 0
    refused: list[EntryId] = field(default_factory=list)
    is_open: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it holds all that it should of the finished fragments."""
        return not (self.left or self.lost_count or self.refused_count)

    @property
    def why_not_whole(self) -> str:
        """Why it does not hold all that it should, "" if it does."""
        reasons = [f"from entry {first}: {reason}" for first, reason in self.left.items()][:1]
        if self.lost_count:
            reasons.append(f"nobody has a good copy of {self.lost_count} entries")
        if self.refused_count:
            reasons.append(f"the bookie keeps other data of {self.refused_count} entries")
        if self.is_open:
            reasons.append("the ledger is not closed")
        return ", ".join(reasons)

    @property
    def is_parked(self) -> bool:
        """Whether all that is left waits for bookies that do not answer."""
        return not (self.lost_count or self.refused_count) and super().is_parked


class RepairLedger(Procedure[LedgerRepaired]):
    """Looks at one bookie's copies in all finished fragments of a ledger that name it, and heals them."""

    def __init__(
        self,
        ledger_id: LedgerId,
        bookie_id: BookieId,
        options: RepairOptions | None = None,
        ranges: Sequence[Range] | None = None,
    ) -> None:
        """`ranges`: only these ids, ascending; None: all that it should hold."""
        super().__init__()
        self.healed = LedgerRepaired(ledger_id)
        self._ledger_id = ledger_id
        self._bookie_id = bookie_id
        self._options = RepairOptions() if options is None else options
        self._ranges = ranges

    def steps(self) -> Steps[LedgerRepaired]:
        """Heal fragment after fragment."""
        try:
            known: VersionedLedger = yield ReadMetadata()
        except NoSuchLedger:
            self.healed.is_deleted = True
            return self.healed
        for fragment, last in self._fragments(known.metadata):
            yield from self._repair(known.metadata, fragment, last)
        return self.healed

    def _fragments(self, metadata: LedgerMetadata) -> Iterator[tuple[Fragment, EntryId]]:
        """Yield the finished fragments that name the bookie, and the last entry of each."""
        fragments = metadata.fragments
        for index, fragment in enumerate(fragments):
            if self._bookie_id not in fragment.ensemble:
                continue
            if index + 1 < len(fragments):
                yield fragment, fragments[index + 1].first_entry_id - 1
            elif metadata.is_closed:
                yield fragment, metadata.last_entry_id
            else:
                self.healed.is_open = True

    def _repair(self, metadata: LedgerMetadata, fragment: Fragment, last: EntryId) -> Steps[None]:
        """Look for what is bad, up to a bounded number of ranges; copy that; go on."""
        index = fragment.ensemble.index(self._bookie_id)
        runs = share_of(index, metadata, fragment.first_entry_id, last)
        if self._ranges is not None:
            runs = _within(runs, self._ranges)
        is_done = False
        while not is_done:
            look = CheckCopies(self._bookie_id, runs, self._through(last), self._options)
            try:
                yield from look
            finally:
                self.healed.checked += look.checked
            if look.bad:
                yield from self._copy(metadata, fragment, last, look)
            runs, is_done = look.rest(), look.is_done

    def _through(self, last: EntryId) -> EntryId:
        """Return how far one request may reach: never beyond the wanted ids."""
        if self._ranges is None:
            return last
        # A range of a striped ledger is many short runs of ids. One request covers all of them.
        return min(last, self._ranges[0][1]) if len(self._ranges) == 1 else -1

    def _copy(
        self, metadata: LedgerMetadata, fragment: Fragment, last: EntryId, look: CheckCopies
    ) -> Steps[None]:
        copy = CopyShare(
            self._ledger_id,
            metadata,
            fragment,
            fragment.ensemble.index(self._bookie_id),
            last,
            self._bookie_id,
            self._options,
            runs=iter(look.bad),
            passes_conflicts=True,
        )
        with suppress(Error):
            yield from copy
        healed, copied = self.healed, copy.copied
        healed.healed += copied.entries
        healed.size_bytes += copied.size_bytes
        healed.count_lost(copied)
        healed.refused_count += copied.refused_count
        if len(healed.refused) < LOST_LISTED_MAX:
            healed.refused += copied.refused
        if copy.error is not None:
            healed.left[look.bad[0][0]] = f"{copy.error} ({look.reasons[-1]})"
        elif copied.unread:
            healed.park(look.bad[0][0], copied)
            # The others do not wait as long again for bookies that do not answer.
            self._options = self._options.less_patient()


def _within(runs: Iterator[Range], wanted: Sequence[Range]) -> Iterator[Range]:
    """Yield the parts of `runs` that lie in `wanted`; both ascending."""
    offset = 0
    for first, last in runs:
        while offset < len(wanted) and wanted[offset][1] < first:
            offset += 1
        for low, high in wanted[offset:]:
            if low > last:
                break
            yield max(first, low), min(last, high)


# --- many ledgers ---------------------------------------------------------------------------------
#
# Repairs of what bookies lack of closed ledgers: one step, and the order of steps. Pure.


LEDGERS_MAX = 1000
"""Ledgers that wait for a repair at most; others stay marked."""
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 10.0
_OPTIONS = RepairOptions(request_timeout_s=5.0, patience_s=5.0)


class RepairMissing(Procedure[bool]):
    """Repairs marked entries of a closed ledger at one bookie, and removes the mark.

    The result is whether nothing of the mark is left to do, as with a ledger that was deleted.

    Attributes:
        reason: why something is left to do, "" where nothing is.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        missing: MissingReplica,
        distance: Callable[[BookieId], Distance] = nowhere,
    ) -> None:
        """`distance`: how far bookies are from this client."""
        super().__init__()
        self.reason = ""
        self._ledger_id = ledger_id
        self._missing = missing
        self._options = replace(_OPTIONS, distance=distance)

    def steps(self) -> Steps[bool]:
        """Heal the bookie's copies, and unmark them."""
        missing = self._missing
        last = ID_MAX if missing.last_entry_id is None else missing.last_entry_id
        ranges = [(missing.first_entry_id, last)]
        healed = yield from RepairLedger(self._ledger_id, missing.bookie_id, self._options, ranges)
        if healed.is_deleted:
            return True
        if healed.is_open or not healed.is_whole:
            self.reason = healed.why_not_whole
            return False
        with suppress(NoSuchLedger):
            yield MarkReplicas((), (missing,))
        return True


class RepairQueue:
    """What one client has to repair: one repair after the other, in rounds with pauses.

    Attributes:
        due_s: when the next round is to begin.
    """

    def __init__(self) -> None:
        self.due_s = 0.0
        self._waiting: dict[LedgerId, tuple[MissingReplica, ...]] = {}
        self._round: deque[tuple[LedgerId, MissingReplica]] = deque()
        self._backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)

    def __len__(self) -> int:
        """Return how many ledgers wait."""
        return len(self._waiting)

    def add(self, ledger_id: LedgerId, missing: tuple[MissingReplica, ...]) -> None:
        """Repair these when their bookies are there."""
        if missing and (len(self._waiting) < LEDGERS_MAX or ledger_id in self._waiting):
            self._waiting[ledger_id] = missing
            self.hurry()

    def hurry(self) -> None:
        """Begin the next round at once: there is more to do, or bookies came."""
        self.due_s = 0.0
        self._backoff.restart()

    def clear(self) -> None:
        """Give up everything; it stays marked."""
        self._waiting.clear()
        self._round.clear()

    def begin_round(self, writable: Collection[BookieId], now_s: float) -> None:
        """Take what can be tried now: the bookies `writable` are registered and take adds."""
        self.due_s = now_s + self._backoff.next_s()
        self._round.extend(
            (ledger_id, one)
            for ledger_id, missing in self._waiting.items()
            for one in missing
            if one.bookie_id in writable
        )

    def next(self) -> tuple[LedgerId, MissingReplica] | None:
        """Return the next repair of this round, None at its end."""
        return self._round.popleft() if self._round else None

    def repaired(self, ledger_id: LedgerId, missing: MissingReplica) -> None:
        """Nothing of this is left to do."""
        left = tuple(one for one in self._waiting.get(ledger_id, ()) if one != missing)
        self._backoff.restart()
        if left:
            self._waiting[ledger_id] = left
        else:
            self._waiting.pop(ledger_id, None)

    def deleted(self, ledger_id: LedgerId) -> None:
        """There is no such ledger any more."""
        self._waiting.pop(ledger_id, None)
