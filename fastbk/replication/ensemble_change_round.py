"""One round of a writer's ensemble change: choose bookies, see that the metadata answers, freeze, compare-and-set."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fastbk.errors import Error, MetadataUnavailable
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId
from fastbk.replication.actions import Choose, Outcome, Replaced
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.ensemble_change_result import EnsembleChange
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
    """

    def __init__(
        self,
        adds: AddMachine,
        known: VersionedLedger,
        bad: Collection[int],
        avoid: frozenset[BookieId],
        still_wanted: StillWanted,
    ) -> None:
        super().__init__()
        self._adds = adds
        self._known = known
        self._bad = frozenset(bad)
        self._avoid = avoid
        self._still_wanted = still_wanted
        self._newest_version = known.version

    def begin(self, now_s: float) -> None:
        """Ask for other bookies."""
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
