"""One change of a ledger's metadata by compare-and-set, through conflicts and unknown results (INV-M1).

What is wanted is a decision, not a value: after a conflict the metadata is read again and decided anew. When the
store did not answer, the change may have taken effect, or may do so later: it is read again too, and finding exactly
what was written is success. Nothing is ever assumed.

A change may depend on a bookie's identity, too. Every try depends on the same one, so a try whose answer was lost
cannot take effect after the bookie was started anew.
"""

from __future__ import annotations

from collections.abc import Callable

from fastbk.errors import Error, IdentityChanged, MetadataConflict, MetadataUnavailable
from fastbk.meta.api import IdentityVersion, VersionedLedger
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.actions import Outcome, UpdateMetadata
from fastbk.replication.procedure import Procedure
from fastbk.retry import Backoff

PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 1.0


class MetadataUpdate(Procedure[VersionedLedger]):
    """Brings the metadata to where `decide` wants it; the result is what the store holds then.

    Args:
        decide: given the current metadata, return what it should be, or None if it is to stay as it is (that ends the
            procedure with it), or raise an Error, which ends the procedure. Called again after every re-read, so what
            it returns must follow from its argument alone, and it must recognise its own work: after an answer was
            lost others may have changed the metadata further.
        known: what was last read; None reads first.
        timeout_s: how long an unavailable store is asked again, and conflicts are met with another try; then
            MetadataUnavailable (outcome unknown) or MetadataConflict.
        if_identity: of a bookie; the procedure ends with IdentityChanged if it is another by now.

    Attributes:
        is_ours: when finished: the metadata is just what this procedure wrote; False: nothing had to be changed.
    """

    def __init__(
        self,
        decide: Callable[[LedgerMetadata], LedgerMetadata | None],
        known: VersionedLedger | None,
        timeout_s: float,
        if_identity: IdentityVersion | None = None,
    ) -> None:
        super().__init__()
        self.is_ours = False
        self._if_identity = if_identity
        self._decide = decide
        self._known = known
        self._timeout_s = timeout_s
        self._end_s = 0.0
        self._backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, timeout_s)
        self._written: LedgerMetadata | None = None
        self._last_error: Error | None = None

    def begin(self, now_s: float) -> None:
        """Write at once what follows from what is known, or read first."""
        self._end_s = now_s + self._timeout_s
        self._backoff.restart(now_s)
        if self._known is None:
            self._read_metadata(self._was_read)
        else:
            self._see(self._known, now_s)

    def _see(self, current: VersionedLedger, now_s: float) -> None:
        if current.metadata == self._written:
            # An update whose answer was lost had taken effect.
            self.is_ours = True
            self._finish(current, now_s)
            return
        try:
            wanted = self._decide(current.metadata)
        except Error as error:
            self._fail(error, now_s)
            return
        if wanted is None or wanted == current.metadata:
            self._finish(current, now_s)
        elif self._last_error is not None and now_s >= self._end_s:
            self._fail(self._last_error, now_s)
        else:
            self._write(wanted, current.version)

    def _write(self, wanted: LedgerMetadata, version: int) -> None:
        def updated(outcome: Outcome, now_s: float) -> None:
            if isinstance(outcome, int):
                self.is_ours = True
                self._finish(VersionedLedger(wanted, outcome), now_s)
            elif isinstance(outcome, MetadataConflict) and not isinstance(outcome, IdentityChanged):
                self._last_error = outcome
                self._read_metadata(self._was_read)
            elif isinstance(outcome, MetadataUnavailable):
                self._again(outcome, now_s)
            else:
                assert isinstance(outcome, Error)
                self._fail(outcome, now_s)

        self._written = wanted
        self._act(updated, UpdateMetadata, wanted, version, self._if_identity)

    def _was_read(self, outcome: Outcome, now_s: float) -> None:
        if isinstance(outcome, VersionedLedger):
            self._see(outcome, now_s)
        elif isinstance(outcome, MetadataUnavailable):
            self._again(outcome, now_s)
        else:
            assert isinstance(outcome, Error)
            self._fail(outcome, now_s)

    def _again(self, error: Error, now_s: float) -> None:
        self._last_error = error
        pause_s = self._backoff.next_in_time_s(now_s)
        if pause_s is None:
            self._fail(error, now_s)
        else:
            self._retry_in(pause_s, lambda _: self._read_metadata(self._was_read))
