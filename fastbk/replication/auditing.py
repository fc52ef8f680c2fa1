"""Reading every copy of a part of a ledger, from each bookie that should have it: all there, good, and the same?

Nothing is changed. A digest proves that a copy is what some writer sent, not that all copies are of the same entry: of
each copy its length and a checksum of its data are held against those of the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.copy_check import CheckCopies, Range
from fastbk.replication.copying import share_of
from fastbk.replication.procedure import Found, Gather, Procedure, Steps
from fastbk.replication.repair_options import RepairOptions

PART_ENTRIES_MAX = 65_536
LISTED_MAX = 100
AWAY = "the bookie is not up"

Sum = tuple[int, int]
"""The ledger's length up to and with an entry, and the CRC-32 of its data."""


@dataclass(slots=True)
class CopiesAudited:
    """One bookie's copies of a part.

    Attributes:
        due: entries that it should have. good: shown with a good digest; size_bytes: of their data.
        bad_count, bad: entries that it did not show; (first, last, why), the first 100 ranges.
        error: why it could not be asked to the end; what was not asked for is neither good nor bad.
    """

    bookie_id: BookieId
    due: int = 0
    good: int = 0
    size_bytes: int = 0
    bad_count: int = 0
    bad: list[tuple[EntryId, EntryId, str]] = field(default_factory=list)
    error: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether all that it should have is there and good."""
        return self.good == self.due and not self.error


@dataclass(slots=True)
class PartAudited:
    """All copies of the entries first..last of a ledger.

    Attributes:
        differing_count, differing: entries of which good copies are not the same; entry id -> the bookies whose copies
            are, group by group, the largest first (the first 100 by name).
        lost_count, lost: entries of which no good copy was shown, though every bookie was asked (the first 100).
    """

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    copies: list[CopiesAudited] = field(default_factory=list)
    differing_count: int = 0
    differing: dict[EntryId, tuple[tuple[BookieId, ...], ...]] = field(default_factory=dict)
    lost_count: int = 0
    lost: list[EntryId] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every copy is there, good, and like the others."""
        return all(copy.is_whole for copy in self.copies) and not self.differing_count


class AuditPart(Procedure[PartAudited]):
    """Looks at the copies of first..last, which lie in one fragment; never fails: what could not be asked is told."""

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        options: RepairOptions | None = None,
        away: Collection[BookieId] = (),
    ) -> None:
        """`rate` of the options is for each bookie: each gets one like it. `away`: known to be down, not asked.

        At most PART_ENTRIES_MAX entries.
        """
        super().__init__()
        if not 0 <= first <= last < first + PART_ENTRIES_MAX:
            raise ValueError(f"entries {first}..{last}: 1 to {PART_ENTRIES_MAX} of them")
        self._metadata = metadata
        self._options = RepairOptions() if options is None else options
        self._away = away
        self._audited = PartAudited(ledger_id, first, last)
        self._sums: dict[BookieId, dict[EntryId, Sum]] = {}

    def steps(self) -> Steps[PartAudited]:
        """Ask every bookie of the fragment, all at once; compare what they showed."""
        audited = self._audited
        fragment = next(
            one for one in reversed(self._metadata.fragments) if one.first_entry_id <= audited.first
        )
        looks: list[Steps[None]] = []
        for index, bookie_id in enumerate(fragment.ensemble):
            copies = CopiesAudited(bookie_id)
            audited.copies.append(copies)
            self._sums[bookie_id] = {}
            runs = list(share_of(index, self._metadata, audited.first, audited.last))
            copies.due = sum(last - first + 1 for first, last in runs)
            if bookie_id in self._away:
                copies.error = AWAY
            else:
                looks.append(self._look(copies, iter(runs)))
        yield from Gather(looks)
        self._compare()
        return audited

    def _look(self, copies: CopiesAudited, runs: Iterator[Range]) -> Steps[None]:
        """Look at one bookie's copies."""
        bookie_id, last = copies.bookie_id, self._audited.last
        options = self._options.limited(self._options.rate.bytes_per_s)
        sums = self._sums[bookie_id]

        def see(found: Found) -> None:
            sums[found.entry_id] = found.length, zlib.crc32(found.data)
            copies.size_bytes += len(found.data)

        while True:
            look = CheckCopies(bookie_id, runs, last, options, see, is_exact=True)
            with suppress(Error):
                yield from look
            copies.good += look.checked
            for (first, end), reason in zip(look.bad, look.reasons, strict=True):
                copies.bad_count += end - first + 1
                if len(copies.bad) < LISTED_MAX:
                    copies.bad.append((first, end, reason))
            if look.error is not None:
                copies.error = str(look.error)
            if look.error is not None or look.is_done:
                return
            runs = look.rest()

    def _compare(self) -> None:
        audited = self._audited
        are_all_asked = not any(copy.error for copy in audited.copies)
        for entry_id in range(audited.first, audited.last + 1):
            groups: dict[Sum, list[BookieId]] = {}
            for bookie_id, sums in self._sums.items():
                if entry_id in sums:
                    groups.setdefault(sums[entry_id], []).append(bookie_id)
            if len(groups) > 1:
                audited.differing_count += 1
                if len(audited.differing) < LISTED_MAX:
                    ordered = sorted(groups.values(), key=len, reverse=True)
                    audited.differing[entry_id] = tuple(map(tuple, ordered))
            elif not groups and are_all_asked:
                audited.lost_count += 1
                if len(audited.lost) < LISTED_MAX:
                    audited.lost.append(entry_id)
