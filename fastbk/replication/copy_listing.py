"""Which entries of a ledger's finished fragments its bookies lack, by their own lists. Pure.

A bookie lists the entries that it holds, which reads no data. Bookies that give no list (many of Apache's) are left
out, or read in full.

"Cannot tell" is never "missing": what a bookie does not answer is in `unknown`, not in `missing`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica, merged
from fastbk.replication.copy_check import CheckCopies
from fastbk.replication.copying import share_of
from fastbk.replication.procedure import (
    Gather,
    ListEntries,
    MarkReplicas,
    Procedure,
    Reply,
    SendRequest,
    Steps,
)
from fastbk.replication.repair_options import RepairOptions
from fastbk.replication.replicas import ABSENT_STATUSES
from fastbk.wire.statuses import Status, status_text

Range = tuple[EntryId, EntryId]
RANGES_A_CALL = 4096
AWAY = "it was away"
_ABSENT = (*ABSENT_STATUSES, Status.OTHER_CREATION)


class _Part(NamedTuple):
    """What one bookie is to hold of a fragment: the share of `member` of [first, last]."""

    member: int
    first: EntryId
    last: EntryId


@dataclass(slots=True)
class CopiesListed:
    """What the bookies of a ledger hold.

    Attributes:
        missing: entries that bookies are to hold and do not. unknown: shares of which nothing is known.
        checked: bookies that were asked to the end. requests: how many it took.
    """

    missing: list[MissingReplica] = field(default_factory=list)
    unknown: list[MissingReplica] = field(default_factory=list)
    checked: set[BookieId] = field(default_factory=set)
    requests: int = 0


class ListCopies(Procedure[CopiesListed]):
    """Asks the bookies of all finished fragments what they hold, all at once. Never fails."""

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        registered: Collection[BookieId],
        unlisted: Collection[BookieId],
        timeout_s: float,
        reason: str,
        *,
        reads: RepairOptions | None = None,
    ) -> None:
        """Check all finished fragments; of an open ledger those before the last.

        Args:
            ledger_id, metadata: of the ledger.
            registered: bookies that are up.
            unlisted: those of them that give no list.
            timeout_s: of one request.
            reason: the text of `missing`.
            reads: how the `unlisted` are read in full; None: they are left out.
        """
        super().__init__()
        self.listed = CopiesListed()
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._registered = registered
        self._unlisted = unlisted
        self._reason = reason
        self._reads = reads
        self._shares: dict[BookieId, list[_Part]] = {}
        for bookie_id, part in _parts_of(metadata):
            if reads is not None or bookie_id not in unlisted:
                self._shares.setdefault(bookie_id, []).append(part)

    def steps(self) -> Steps[CopiesListed]:
        """Ask all bookies side by side."""
        branches: list[Steps[None]] = []
        for bookie_id, parts in self._shares.items():
            if bookie_id not in self._registered:
                self._unknown(bookie_id, parts[0].first, AWAY)
            elif bookie_id in self._unlisted:
                branches.append(self._read(bookie_id))
            else:
                branches.append(self._list(bookie_id))
        yield from Gather(branches)
        return self.listed

    # --- lists -------------------------------------------------------------------------------------------------

    def _list(self, bookie_id: BookieId) -> Steps[None]:
        parts = self._shares[bookie_id]
        first, end = parts[0].first, parts[-1].last
        while first <= end:
            self.listed.requests += 1
            try:
                reply: Reply = yield SendRequest(
                    bookie_id, ListEntries(first, RANGES_A_CALL), self._timeout_s
                )
            except Error as error:
                self._unknown(bookie_id, first, str(error))
                return
            if reply.status not in (Status.OK, *_ABSENT):
                self._unknown(bookie_id, first, status_text(reply.status))
                return
            behind = reply.next_entry_id if reply.status == Status.OK else -1
            through = behind - 1 if first < behind <= end else end
            self._compare(bookie_id, (first, through), reply.ranges)
            first = through + 1
        self.listed.checked.add(bookie_id)

    def _compare(self, bookie_id: BookieId, listed: Range, held: Sequence[Range]) -> None:
        metadata = self._metadata
        for part in self._shares[bookie_id]:
            span = max(part.first, listed[0]), min(part.last, listed[1])
            for one in lacking(metadata, part.member, span, held):
                self.listed.missing.append(MissingReplica(bookie_id, *one, self._reason))

    # --- reads -------------------------------------------------------------------------------------------------

    def _runs_of(self, bookie_id: BookieId) -> Iterator[Range]:
        for part in self._shares[bookie_id]:
            yield from share_of(part.member, self._metadata, part.first, part.last)

    def _read(self, bookie_id: BookieId) -> Steps[None]:
        assert self._reads is not None
        runs, is_done = self._runs_of(bookie_id), False
        while not is_done:
            reading = CheckCopies(bookie_id, runs, -1, self._reads, is_exact=True)
            with suppress(Error):
                yield from reading
            for bad, why in zip(reading.bad, reading.reasons, strict=True):
                self.listed.missing.append(
                    MissingReplica(bookie_id, *bad, f"{self._reason}: {why}")
                )
            runs, is_done = reading.rest(), reading.is_done
            if reading.error is not None:
                self._unknown(bookie_id, next(runs, (0, 0))[0], str(reading.error))
                return
        self.listed.checked.add(bookie_id)

    # --- both --------------------------------------------------------------------------------------------------

    def _unknown(self, bookie_id: BookieId, first: EntryId, reason: str) -> None:
        """Note that nothing is known of the bookie's whole share from `first` on."""
        for part in self._shares[bookie_id]:
            if part.last >= first:
                at = max(first, part.first)
                self.listed.unknown.append(MissingReplica(bookie_id, at, part.last, reason))


def _parts_of(metadata: LedgerMetadata) -> Iterator[tuple[BookieId, _Part]]:
    firsts = [one.first_entry_id for one in metadata.fragments]
    end = metadata.last_entry_id if metadata.is_closed else -1
    lasts = [*(first - 1 for first in firsts[1:]), end]
    for fragment, last in zip(metadata.fragments, lasts, strict=True):
        for index, bookie_id in enumerate(fragment.ensemble):
            if last >= fragment.first_entry_id:
                yield bookie_id, _Part(index, fragment.first_entry_id, last)


def lacking(
    metadata: LedgerMetadata, index: int, span: Range, held: Sequence[Range]
) -> Iterator[Range]:
    """Yield a range for each gap between the ranges `held` that takes in some of a share.

    A range begins and ends with an entry of the share, which is that of `index`; `held` ascends.
    The cost is that of `held`, however long the gaps are.
    """
    at, last = span
    for first_held, last_held in (*held, (last + 1, last + 1)):
        if at > last:
            return
        gap_end = min(last, first_held - 1)
        if at <= gap_end:
            edge = metadata.ensemble_size - 1
            head = next(share_of(index, metadata, at, min(gap_end, at + edge)), None)
            if head is not None:
                *_, tail = share_of(index, metadata, max(at, gap_end - edge), gap_end)
                yield head[0], tail[1]
        at = max(at, last_held + 1)


# --- beside a recovery ----------------------------------------------------------------------------
#
# Which copies a recovered ledger misses: its dead writer may have known of some, and told nobody.
#
# Entries below the LAC that a recovery begins with are not written again. So each bookie of each
# fragment is asked which entries it holds. That reads no data. Earlier fragments are checked, too:
# a bookie may have been away since then, while its writer replaced another one.


REASON = "found missing after a recovery"


class CheckRecoveredCopies(Procedure[tuple[MissingReplica, ...]]):
    """Asks bookies what they hold of a closed ledger; marks and returns what they lack.

    A bookie that is away, or cannot tell, may lack its whole share. Bookies that speak only
    Apache's protocols are left out: many of them give no list.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        registered: Collection[BookieId],
        unable: Collection[BookieId],
        timeout_s: float,
    ) -> None:
        """Check all fragments.

        Args:
            metadata: of the closed ledger.
            registered: bookies that can be asked.
            unable: those of them that give no list.
            timeout_s: of one request.
        """
        super().__init__()
        self._listing = ListCopies(ledger_id, metadata, registered, unable, timeout_s, REASON)

    def steps(self) -> Steps[tuple[MissingReplica, ...]]:
        """Ask all bookies, and mark."""
        listed = yield from self._listing
        unchecked = [
            replace(one, reason=f"not checked after a recovery: {one.reason}")
            for one in listed.unknown
        ]
        missing = merged((*listed.missing, *unchecked))
        if missing:
            yield MarkReplicas(missing)
        return missing
