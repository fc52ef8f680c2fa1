"""Closing a ledger by its writer: one compare-and-set that says where it ends (INV-M1)."""

from __future__ import annotations

from dataclasses import replace

from fastbk.errors import LedgerClosed
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure


class CloseLedger(Procedure[VersionedLedger]):
    """Brings a ledger from OPEN or IN_RECOVERY to CLOSED at its writer's end; the result is the metadata then.

    A ledger that somebody has begun to recover is closed all the same: the writer's LAC covers everything that was
    acknowledged, and the recoverer adopts this close. Closed already: at the same end it is success, at another
    LedgerClosed, which names both. A store that does not answer for `timeout_s`: MetadataUnavailable, outcome unknown.

    Args:
        known: what was last read; None reads first.
        last_entry_id: the writer's LAC, -1 for an empty ledger.
        length: bytes of data of all entries up to it.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger | None,
        last_entry_id: EntryId,
        length: int,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._ledger_id = ledger_id
        self._known = known
        self._last_entry_id = last_entry_id
        self._length = length
        self._timeout_s = timeout_s

    def begin(self, now_s: float) -> None:
        """Close by what is known, or read first."""
        self._run(MetadataUpdate(self._decide, self._known, self._timeout_s), self._ended, now_s)

    def _decide(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        if not metadata.is_closed:
            return replace(
                metadata,
                state=LedgerState.CLOSED,
                last_entry_id=self._last_entry_id,
                length=self._length,
            )
        if (metadata.last_entry_id, metadata.length) == (self._last_entry_id, self._length):
            return None
        raise LedgerClosed(
            f"ledger {self._ledger_id} was closed by another client at entry {metadata.last_entry_id}"
            f" ({metadata.length} bytes), this writer's last is {self._last_entry_id} ({self._length} bytes):"
            " read what is there",
            ledger_id=self._ledger_id,
            entry_id=self._last_entry_id,
            outcome="unknown",
        )

    def _ended(self, update: Procedure[VersionedLedger], now_s: float) -> None:
        if update.error is not None:
            self._fail(update.error, now_s)
        else:
            self._finish(update.value(), now_s)
