"""Copies that metadata counts on no more: a repair named other bookies, and this one came back with its data.

Dropping a copy too many saves space, dropping one that is needed loses redundancy; so every doubt keeps:

- only closed ledgers: an open one's writer, and whoever recovers one, write to bookies that metadata does not name yet;
- metadata does not name this bookie in two looks that lie `age_s` apart, and the ledger's change mark is the same in
  both: no add came, not even one that found its entry here already. A repair gives copies first and names the bookie
  afterwards; one that stands still for longer than `age_s` looks again itself before it names anybody
  (`fastbk.replication.re_replication`);
- the index compares the change mark once more when it begins to drop (INV-G2), and keeps the ledger's fence.

Each local ledger is looked at once every `age_s`, so many a second, and candidates once more when they are due: the
metadata store sees one read a copy and `age_s`. What is remembered is some hundred bytes a candidate; a restart forgets
it, and takes one more `age_s`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.gc.ledger_listing import READ_IDS, read_ledgers
from fastbk.meta.records import BadRecord
from fastbk.model.ledger import LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.gc.dead_ledgers import Cluster, Rules
    from fastbk.gc.index_client import AllPairs
    from fastbk.limits import RateLimit
    from fastbk.meta.api import MetadataStore, VersionedLedger
    from fastbk.model.ids import BookieId
    from fastbk.model.ledger import LedgerMetadata

LEDGERS_A_LOOK = 2000
"""Maximum ledgers of the round in one step; then others have their turn."""
CANDIDATES_MAX = 200_000
"""More are found in later rounds, once these are gone."""

Copy = tuple[int, int]
"""A ledger and its change mark."""


class CopiesCheck(msgspec.Struct, frozen=True):
    """What one look did.

    Attributes:
        read: ledgers whose metadata was read.
        candidates: copies that metadata does not count on, as far as is known.
        dropped: copies that were handed to the index to be dropped.
        refused: whether too many were due to go without an operator's word.
        is_round_over: whether every local ledger has been looked at in this round.
        stopped: why it ended early; empty when it did not.
    """

    read: int = 0
    candidates: int = 0
    dropped: int = 0
    refused: bool = False
    is_round_over: bool = False
    stopped: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """A candidate as it was at the first look."""

    changed: int
    at_s: float


def is_over_replicated(bookie_id: BookieId, metadata: LedgerMetadata) -> bool:
    """Return whether a closed ledger's metadata counts on this bookie for nothing at all."""
    if metadata.state is not LedgerState.CLOSED:
        return False
    return not any(bookie_id in fragment.ensemble for fragment in metadata.fragments)


class CopiesWatch(msgspec.Struct):
    """Looks at the metadata of local ledgers, some at a time, round after round. `pace`: in ledgers a second."""

    local: AllPairs
    store: MetadataStore
    cluster: Cluster
    bookie_id: BookieId
    pace: RateLimit
    rules: Rules
    age_s: float
    clock_s: Callable[[], float] = time.monotonic
    on_seen: Callable[[int, VersionedLedger], None] = lambda ledger_id, found: None
    candidates: dict[int, Candidate] = msgspec.field(default_factory=dict)
    _cursor: int = 0
    _page: list[Copy] = msgspec.field(default_factory=list)
    _is_last_page: bool = False
    _ledgers: int = 0
    """Seen in this round."""
    _ledgers_before: int = 0

    def check(self, *, force: bool = False) -> CopiesCheck:
        """Go on with the round: read some ledgers' metadata, take note of candidates, drop those that are due.

        Args:
            force: an operator's word that most copies may go.
        """
        read = 0
        try:
            self.cluster.check()
            while read < LEDGERS_A_LOOK and (some := self._next()):
                read += len(some)
                self._note(self._unnamed(some), some)
        except (Error, OSError) as error:
            return CopiesCheck(
                read, len(self.candidates), stopped=f"{type(error).__name__}: {error}"
            )
        is_over = not self._page and self._is_last_page
        if is_over:
            self._cursor, self._is_last_page = 0, False
            self._ledgers_before, self._ledgers = self._ledgers, 0
        look = self.drop_due(force=force)
        return CopiesCheck(
            read + look.read, look.candidates, look.dropped, look.refused, is_over, look.stopped
        )

    def drop_due(self, *, force: bool = False) -> CopiesCheck:
        """Check a second time the candidates that are old enough; give the unchanged ones to the index."""
        now_s = self.clock_s()
        due = [
            (ledger_id, seen.changed)
            for ledger_id, seen in self.candidates.items()
            if now_s - seen.at_s >= self.age_s
        ]
        if not due:
            return CopiesCheck(candidates=len(self.candidates))
        local = max(self._ledgers_before, self._ledgers, len(self.candidates))
        if self.rules.is_too_much(len(due), local) and not force:
            return CopiesCheck(
                candidates=len(self.candidates),
                refused=True,
                stopped=(
                    f"metadata does not name this bookie for {len(due)} of {local} ledgers: if it is to lose them, drop"
                    " the copies by `fastbk bookie gc run --force`, or allow it for good with [gc] delete_ratio_max"
                ),
            )
        read = dropped = 0
        try:
            self.cluster.check()
            for at in range(0, len(due), READ_IDS):
                some = due[at : at + READ_IDS]
                unnamed = self._unnamed(some)
                read += len(some)
                if unnamed:
                    dropped += self.local.drop(unnamed, self._reason())
                for ledger_id, _ in some:
                    del self.candidates[ledger_id]
        except (Error, OSError) as error:
            stopped = f"{type(error).__name__}: {error}"
            return CopiesCheck(read, len(self.candidates), dropped, stopped=stopped)
        return CopiesCheck(read, len(self.candidates), dropped)

    def _reason(self) -> str:
        return (
            f"closed in metadata {self.cluster.instance_id}, which named other bookies for all of it"
            f" in two looks {self.age_s:g} s apart"
        )

    def _next(self) -> list[Copy]:
        """Return the next ledgers of this round; none at its end."""
        while not self._page and not self._is_last_page:
            self._page, self._cursor = self.local.settled(self._cursor)
            self._is_last_page = self._cursor == 0
            self._ledgers += len(self._page)
        some, self._page = self._page[:READ_IDS], self._page[READ_IDS:]
        return some

    def _unnamed(self, copies: Sequence[Copy]) -> list[Copy]:
        """Return those that metadata does not count on now. A ledger that is not there is the collector's."""
        found = read_ledgers(self.store, [ledger_id for ledger_id, _ in copies], self.pace)
        unnamed = []
        for copy, (ledger_id, read) in zip(copies, found, strict=True):
            if read is None or isinstance(read, BadRecord):
                continue
            self.on_seen(ledger_id, read)
            if is_over_replicated(self.bookie_id, read.metadata):
                unnamed.append(copy)
        return unnamed

    def _note(self, unnamed: list[Copy], looked_at: list[Copy]) -> None:
        """Take note of candidates; the first look is the one since which nothing has changed."""
        now_s = self.clock_s()
        still = dict(unnamed)
        for ledger_id, _ in looked_at:
            changed = still.get(ledger_id)
            seen = self.candidates.get(ledger_id)
            if changed is None:
                self.candidates.pop(ledger_id, None)
            elif (seen is None or seen.changed != changed) and (
                seen is not None or len(self.candidates) < CANDIDATES_MAX
            ):
                self.candidates[ledger_id] = Candidate(changed, now_s)
