"""One round of a writer's ensemble change: choose bookies, see that the metadata answers, freeze, compare-and-set."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fastbk.errors import Error, MetadataUnavailable
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.replication.actions import Choose, Outcome, Replaced
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.ensemble_change_result import EnsembleChange, check_open
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure

# Before metadata that is older than what is known is read again.
STALE_PAUSE_S = 0.05

# Of (replacements by index, now): those that are wanted still, each a bookie that is in no other place.
StillWanted: TypeAlias = Callable[[Mapping[int, BookieId], float], dict[int, BookieId]]


@dataclass(frozen=True, slots=True)
class NothingDone:
    """No bookies were to be had, or no metadata, or the bad ones have come back; `left_out`: why others were no use."""

    left_out: Mapping[BookieId, str] | None = field(default=None)


class CheckOpen(Procedure[bool]):
    """Reads the metadata: True when the ledger is open, False when nobody can say now.

    Fails with LedgerFenced, LedgerClosed or NoSuchLedger when it is the writer's no more.
    """

    def __init__(self, ledger_id: LedgerId) -> None:
        super().__init__()
        self._ledger_id = ledger_id

    def begin(self, now_s: float) -> None:
        """Read."""
        self._read_metadata(self._was_read)

    def _was_read(self, outcome: Outcome, now_s: float) -> None:
        if isinstance(outcome, VersionedLedger):
            try:
                check_open(self._ledger_id, outcome.metadata)
            except Error as error:
                self._fail(error, now_s)
            else:
                self._finish(True, now_s)
        elif isinstance(outcome, MetadataUnavailable):
            self._finish(False, now_s)
        else:
            assert isinstance(outcome, Error)
            self._fail(outcome, now_s)


class ChangeRound(Procedure[VersionedLedger | NothingDone]):
    """Replaces bad bookies in the metadata; the result is what the metadata says then, for the writer to adopt.

    Once it has frozen the head it ends only with a definite answer or an error that ends the writer (LedgerClosed,
    LedgerFenced, MetadataConflict, NoSuchLedger): while the result is unknown, an ack might count for a bookie that is
    no member any more. So it has no deadline of its own; the writer has one.

    Args:
        adds: the writer's; frozen by this, and thawed by the writer.
        known: the metadata whose last ensemble is that of `adds`.
        bad: indexes of the bookies to replace.
        avoid: bookies not to take.
        still_wanted: asked before the metadata is changed, since bookies come back.
        reads_first: a bookie refuses adds as fenced: the metadata is read before others are chosen, so that a writer
            whose ledger was taken over ends also where no other bookie is to be had (INV-E5).
    """

    def __init__(
        self,
        adds: AddMachine,
        known: VersionedLedger,
        bad: Collection[int],
        avoid: frozenset[BookieId],
        still_wanted: StillWanted,
        *,
        reads_first: bool = False,
    ) -> None:
        super().__init__()
        self._reads_first = reads_first
        self._adds = adds
        self._known = known
        self._bad = frozenset(bad)
        self._avoid = avoid
        self._still_wanted = still_wanted
        self._newest_version = known.version

    def begin(self, now_s: float) -> None:
        """Ask for other bookies."""
        if self._reads_first:
            self._run_for(CheckOpen(self._adds.ledger_id), self._open_checked, now_s)
        else:
            self._choose()

    def _open_checked(self, is_open: bool, now_s: float) -> None:
        if is_open:
            self._choose()
        else:
            self._finish(NothingDone(), now_s)

    def _choose(self) -> None:
        self._act(self._chosen, Choose, self._adds.ensemble, self._bad, self._avoid)

    def _chosen(self, outcome: Outcome, now_s: float) -> None:
        found = outcome if isinstance(outcome, Replaced) else Replaced()
        wanted = self._still_wanted(found.chosen, now_s)
        if not wanted:
            self._finish(NothingDone(found.left_out), now_s)
        elif self._adds.is_frozen or self._adds.needed_of(wanted):
            self._write(wanted, self._known, now_s)
        else:
            self._read_metadata(lambda read, at_s: self._probed(found.chosen, read, at_s))

    def _probed(self, chosen: Mapping[int, BookieId], outcome: Outcome, now_s: float) -> None:
        """A store that does not answer must not freeze a writer that can do without it."""
        wanted = self._still_wanted(chosen, now_s)
        if isinstance(outcome, MetadataUnavailable) or not wanted:
            self._finish(NothingDone(), now_s)
        elif isinstance(outcome, VersionedLedger):
            base = outcome if outcome.version >= self._known.version else self._known
            self._newest_version = base.version
            self._write(wanted, base, now_s)
        else:
            assert isinstance(outcome, Error)
            self._fail(outcome, now_s)

    def _write(
        self, chosen: Mapping[int, BookieId], base: VersionedLedger | None, now_s: float
    ) -> None:
        """Change the metadata first: nothing is acknowledged before it says so (INV-E1)."""
        adds = self._adds
        adds.freeze()
        change = EnsembleChange(adds.ledger_id, self._known.metadata, adds.head, chosen)

        def written(found: VersionedLedger, at_s: float) -> None:
            if found.version >= self._newest_version:
                self._finish(found, at_s)
                return
            # From a replica of the store that lags behind: what it names may have been replaced since.
            self._retry_in(STALE_PAUSE_S, lambda at_s: self._write(chosen, None, at_s))

        self._run_for(MetadataUpdate(change.of, base, math.inf), written, now_s)
