"""Naming replacements in the metadata for the copies of former fragments that they were given."""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.ensemble_change import check_open
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.owed_copies import OwedShare, split
from fastbk.replication.procedure import Procedure


class NameReplacements(Procedure[VersionedLedger | None]):
    """Splits fragments of an open ledger by compare-and-set, each after its share is whole (INV-M1, INV-E1, INV-E3).

    Fails with LedgerClosed or LedgerFenced once the ledger is not open any more: the mark stays for a repair then.

    Attributes:
        freed: when finished: what the metadata no longer names the former bookies for.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger,
        shares: Sequence[OwedShare],
        timeout_s: float,
    ) -> None:
        super().__init__()
        self.shares = tuple(shares)
        self.freed: tuple[MissingReplica, ...] = ()
        self._ledger_id = ledger_id
        self._known = known
        self._timeout_s = timeout_s

    def begin(self, now_s: float) -> None:
        """Write what follows from what is known."""
        self._run(MetadataUpdate(self._decide, self._known, self._timeout_s), self._ended, now_s)

    def _decide(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        check_open(self._ledger_id, metadata)
        wanted, self.freed = split(metadata, self.shares)
        return wanted if self.freed else None

    def _ended(self, update: Procedure[VersionedLedger], now_s: float) -> None:
        if update.error is not None:
            self._fail(update.error, now_s)
        else:
            self._finish(update.value(), now_s)
