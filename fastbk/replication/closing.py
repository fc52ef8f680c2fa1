"""Closing a ledger by its writer: one compare-and-set that says where it ends (INV-M1).

Before it, the writer marks what bookies lack of the ledger. The same compare-and-set names the replacements whose
shares of former fragments are whole; what was marked of these is unmarked after it.
"""

from __future__ import annotations

from dataclasses import replace

from fastbk.errors import Error, LedgerClosed, MetadataUnavailable
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.actions import MarkReplicas, Outcome
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure
from fastbk.replication.under_replication import UnderReplicatedShare, UnderReplication, split

# Before a mark that the store did not answer is written again.
MARK_PAUSE_S = 0.1


class CloseLedger(Procedure[VersionedLedger]):
    """Brings a ledger from OPEN or IN_RECOVERY to CLOSED at its writer's end; the result is the metadata then.

    A ledger that somebody has begun to recover is closed all the same: the writer's LAC covers everything that was
    acknowledged, and the recoverer adopts this close. Closed already: at the same end it is success, at another
    LedgerClosed, which names both. A store that does not answer for `timeout_s`: MetadataUnavailable, outcome unknown.

    Args:
        known: what was last read; None reads first.
        last_entry_id: the writer's LAC, -1 for an empty ledger.
        length: bytes of data of all entries up to it.
        owed: what bookies lack of the ledger; None: nothing.

    Attributes:
        is_ours: when finished: this procedure closed it; False: it was closed just so before.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger | None,
        last_entry_id: EntryId,
        length: int,
        timeout_s: float,
        owed: UnderReplication | None = None,
    ) -> None:
        super().__init__()
        self.is_ours = False
        self._owed = owed
        self._shares: tuple[UnderReplicatedShare, ...] = ()
        self._freed: tuple[MissingReplica, ...] = ()
        self._end_s = 0.0
        self._ledger_id = ledger_id
        self._known = known
        self._last_entry_id = last_entry_id
        self._length = length
        self._timeout_s = timeout_s

    def begin(self, now_s: float) -> None:
        """Mark what is missing, then close by what is known, or read first."""
        self._end_s = now_s + self._timeout_s
        if self._owed is not None:
            self._owed.collect()
            self._shares = tuple(self._owed.ready)
        self._mark(now_s)

    def _mark(self, now_s: float) -> None:
        owed = self._owed
        add = () if owed is None else owed.unmarked(owed.to_mark_at_end())
        if owed is None or not add:
            self._close(now_s)
            return

        def marked(outcome: Outcome, at_s: float) -> None:
            if not isinstance(outcome, Error):
                owed.mark_changed(add, ())
                self._close(at_s)
                return
            owed.mark_unanswered(add, ())
            if isinstance(outcome, MetadataUnavailable) and at_s + MARK_PAUSE_S < self._end_s:
                self._retry_in(MARK_PAUSE_S, self._mark)
            else:
                self._fail(outcome, at_s)

        self._act(marked, MarkReplicas, add)

    def _close(self, now_s: float) -> None:
        left_s = max(0.0, self._end_s - now_s)
        update = MetadataUpdate(self._decide, self._known, left_s)

        def ended(found: VersionedLedger, at_s: float) -> None:
            self.is_ours = update.is_ours
            self._closed(found, at_s)

        self._run_for(update, ended, now_s)

    def _decide(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        self._freed = ()
        if not metadata.is_closed:
            if metadata.state is LedgerState.OPEN:
                metadata, self._freed = split(metadata, self._shares)
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

    def _closed(self, found: VersionedLedger, now_s: float) -> None:
        owed = self._owed
        if owed is None:
            self._finish(found, now_s)
            return
        owed.named(self._shares, self._freed)
        outdated = owed.outdated(owed.to_mark_at_end())
        if not outdated:
            self._finish(found, now_s)
            return

        def unmarked(outcome: Outcome, at_s: float) -> None:
            # A mark that stays, since the store did not answer, is one for a repair to verify.
            if not isinstance(outcome, Error):
                owed.mark_changed((), outdated)
            self._finish(found, at_s)

        self._act(unmarked, MarkReplicas, (), outdated)
