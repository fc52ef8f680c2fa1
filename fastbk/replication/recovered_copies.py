"""Which copies a recovered ledger misses: its dead writer may have known of some, and told nobody.

Entries below the LAC that a recovery begins with are not written again. So each bookie of each
fragment is asked which entries it holds. That reads no data. Earlier fragments are checked, too: a
bookie may have been away since then, while its writer replaced another one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fastbk.errors import Error
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica, merged
from fastbk.replication.actions import MarkReplicas, Outcome
from fastbk.replication.copy_listing import CopiesListed, ListCopies
from fastbk.replication.procedure import Procedure

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

    def begin(self, now_s: float) -> None:
        """Ask all bookies."""
        self._run_for(self._listing, self._were_listed, now_s)

    def _were_listed(self, listed: CopiesListed, now_s: float) -> None:
        unchecked = [
            replace(one, reason=f"not checked after a recovery: {one.reason}")
            for one in listed.unknown
        ]
        found = merged((*listed.missing, *unchecked))
        if not found:
            self._finish((), now_s)
            return

        def marked(outcome: Outcome, at_s: float) -> None:
            if isinstance(outcome, Error):
                self._fail(outcome, at_s)
            else:
                self._finish(found, at_s)

        self._act(marked, MarkReplicas, found)
