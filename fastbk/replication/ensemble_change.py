"""What a change of the ensemble makes of a ledger's metadata. Pure; decided anew after each conflict (INV-M1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastbk.errors import LedgerClosed, LedgerFenced, MetadataConflict
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState


@dataclass(frozen=True, slots=True)
class Replacement:
    """One bookie that was replaced: where, by which other, and why."""

    first_entry_id: EntryId
    index: int
    bookie_id: BookieId
    replacement: BookieId
    reason: str


@dataclass(frozen=True, slots=True)
class EnsembleChange:
    """Other bookies from an entry on.

    Attributes:
        known: the metadata that its maker stands on.
        start: where the new fragment starts: LAC + 1, with the head frozen there (INV-E1).
        chosen: the new bookies by index.
    """

    ledger_id: LedgerId
    known: LedgerMetadata
    start: EntryId
    chosen: Mapping[int, BookieId]

    def of(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """Return `metadata` with the change, None if nothing is left to change.

        A bookie that somebody else has replaced stays replaced; one that somebody else has put into the ensemble is
        not put there twice. Raises LedgerClosed, LedgerFenced (in recovery), or MetadataConflict when it is no longer
        the ledger that this writer writes.
        """
        check_open(self.ledger_id, metadata)
        self._check_same(metadata)
        last = metadata.fragments[-1]
        before = self.known.fragments[-1].ensemble
        ensemble = list(last.ensemble)
        for index, bookie_id in self.chosen.items():
            if ensemble[index] == before[index] and bookie_id not in ensemble:
                ensemble[index] = bookie_id
        if tuple(ensemble) == last.ensemble:
            return None
        kept = metadata.fragments
        if last.first_entry_id == self.start:
            kept = kept[:-1]
        return replace(metadata, fragments=(*kept, Fragment(self.start, tuple(ensemble))))

    def _check_same(self, metadata: LedgerMetadata) -> None:
        """A writer can follow others that replace bookies, but none that moves fragments or quorums under it."""
        last = metadata.fragments[-1]
        if last.first_entry_id > self.start:
            fault = (
                f"somebody else started a fragment at entry {last.first_entry_id}, and this writer has"
                f" written up to {self.start - 1}"
            )
        elif len(set(last.ensemble)) < len(last.ensemble):
            fault = "somebody else named a bookie twice in its last fragment"
        elif _quorums(metadata) != _quorums(self.known):
            fault = "somebody else changed its quorums"
        else:
            return
        raise MetadataConflict(
            f"ledger {self.ledger_id}: {fault}: go on in a new ledger",
            ledger_id=self.ledger_id,
            outcome="unknown",
        )


def _quorums(metadata: LedgerMetadata) -> tuple[int, int, int]:
    return metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum


def check_open(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
    """Raise LedgerClosed or LedgerFenced unless the ledger is open."""
    if metadata.state is LedgerState.CLOSED:
        raise LedgerClosed(
            f"ledger {ledger_id} was closed by another client at entry {metadata.last_entry_id}:"
            " go on in a new one",
            ledger_id=ledger_id,
            outcome="unknown",
        )
    if metadata.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(
            f"ledger {ledger_id} is being recovered by another client: go on in a new one",
            ledger_id=ledger_id,
        )
