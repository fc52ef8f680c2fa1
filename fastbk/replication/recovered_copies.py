"""Which copies a recovered ledger misses: its dead writer may have known of some, and told nobody.

Entries below the LAC that a recovery begins with are not written again. So each bookie of each
fragment is asked which entries it holds. That reads no data. Earlier fragments are checked, too: a
bookie may have been away since then, while its writer replaced another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica, merged
from fastbk.replication.actions import ListEntries, MarkReplicas, Outcome, Reply
from fastbk.replication.copying import share_of
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import ABSENT_STATUSES
from fastbk.wire.statuses import Status, status_text

Range = tuple[EntryId, EntryId]
RANGES_A_CALL = 4096
REASON = "found missing after a recovery"
_ABSENT = (*ABSENT_STATUSES, Status.OTHER_CREATION)


class _Part(NamedTuple):
    """What one bookie is to hold of a fragment: the share of `member` of [first, last]."""

    member: int
    first: EntryId
    last: EntryId


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
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._registered = registered
        self._found: list[MissingReplica] = []
        self._shares: dict[BookieId, list[_Part]] = {}
        for bookie_id, part in _parts_of(metadata):
            if bookie_id not in unable:
                self._shares.setdefault(bookie_id, []).append(part)
        self._asked = 0

    def begin(self, now_s: float) -> None:
        """Ask all bookies side by side."""
        for bookie_id, parts in self._shares.items():
            if bookie_id in self._registered:
                self._list(bookie_id, parts[0].first)
            else:
                self._unknown(bookie_id, parts[0].first, "it was away")
        self._end_if_done(now_s)

    def _list(self, bookie_id: BookieId, first: EntryId) -> None:
        self._asked += 1
        request = ListEntries(first, RANGES_A_CALL)
        then = partial(self._listed, bookie_id, first)
        self._ask(bookie_id, request, self._timeout_s, then)

    def _listed(self, bookie_id: BookieId, first: EntryId, outcome: Outcome, now_s: float) -> None:
        self._asked -= 1
        is_told = isinstance(outcome, Reply) and outcome.status in (Status.OK, *_ABSENT)
        if not is_told:
            assert isinstance(outcome, Reply | Error)
            reason = str(outcome) if isinstance(outcome, Error) else status_text(outcome.status)
            self._unknown(bookie_id, first, reason)
        else:
            assert isinstance(outcome, Reply)
            end = self._metadata.last_entry_id
            behind = outcome.next_entry_id if outcome.status == Status.OK else -1
            told = behind - 1 if first < behind <= end else end
            self._compare(bookie_id, (first, told), outcome.ranges)
            if told < end:
                self._list(bookie_id, told + 1)
        self._end_if_done(now_s)

    def _compare(self, bookie_id: BookieId, told: Range, held: Sequence[Range]) -> None:
        metadata = self._metadata
        for part in self._shares[bookie_id]:
            span = max(part.first, told[0]), min(part.last, told[1])
            for one in lacking(metadata, part.member, span, held):
                self._found.append(MissingReplica(bookie_id, *one, REASON))

    def _unknown(self, bookie_id: BookieId, first: EntryId, reason: str) -> None:
        """Take the bookie's whole share from `first` on for missing."""
        for part in self._shares[bookie_id]:
            if part.last >= first:
                said = f"not checked after a recovery: {reason}"
                at = max(first, part.first)
                self._found.append(MissingReplica(bookie_id, at, part.last, said))

    def _end_if_done(self, now_s: float) -> None:
        if self._asked or self.is_finished:
            return
        found = merged(self._found)
        if not found:
            self._finish((), now_s)
            return

        def marked(outcome: Outcome, at_s: float) -> None:
            if isinstance(outcome, Error):
                self._fail(outcome, at_s)
            else:
                self._finish(found, at_s)

        self._act(marked, MarkReplicas, found)


def _parts_of(metadata: LedgerMetadata) -> Iterator[tuple[BookieId, _Part]]:
    firsts = [one.first_entry_id for one in metadata.fragments]
    lasts = [*(first - 1 for first in firsts[1:]), metadata.last_entry_id]
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
