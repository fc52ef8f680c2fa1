"""Changes of a ledger's metadata by compare-and-set, through conflicts and unknown results (INV-M1).

What is wanted is a decision, not a value: after a conflict the metadata is read again and decided anew. When the
store did not answer, the change may have taken effect, or may do so later: it is read again too, and finding exactly
what was written is success. Nothing is ever assumed.

A change may depend on a bookie's identity, too. Every try depends on the same one, so a try whose answer was lost
cannot take effect after the bookie was started anew.

`EnsembleChange` is the decision of a writer that replaces bookies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fastbk.errors import (
    Error,
    IdentityChanged,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
)
from fastbk.meta.api import IdentityVersion, VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.ack_domains import AckDomains, custom_of_changed
from fastbk.replication.procedure import Procedure, ReadMetadata, Sleep, Steps, UpdateMetadata
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
        self._backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, timeout_s)
        self._last_error: Error | None = None

    def steps(self) -> Steps[VersionedLedger]:
        """Write at once what follows from what is known, or read first."""
        end_s = self._now_s + self._timeout_s
        self._backoff.restart(self._now_s)
        current = (yield from self._read()) if self._known is None else self._known
        written: LedgerMetadata | None = None
        while current.metadata != written:
            wanted = self._decide(current.metadata)
            if wanted is None or wanted == current.metadata:
                return current
            if self._last_error is not None and self._now_s >= end_s:
                raise self._last_error
            written = wanted
            version = yield from self._write(wanted, current.version)
            if version is not None:
                self.is_ours = True
                return VersionedLedger(wanted, version)
            current = yield from self._read()
        # An update whose answer was lost had taken effect.
        self.is_ours = True
        return current

    def _write(self, wanted: LedgerMetadata, version: int) -> Steps[int | None]:
        """Return the new version; None: it was not done, or nobody knows."""
        try:
            now: int = yield UpdateMetadata(wanted, version, self._if_identity)
            return now
        except IdentityChanged:
            raise
        except MetadataConflict as error:
            self._last_error = error
        except MetadataUnavailable as error:
            self._last_error = error
            yield from self._pause()
        return None

    def _read(self) -> Steps[VersionedLedger]:
        """Read the metadata, through outages of the store."""
        while True:
            try:
                known: VersionedLedger = yield ReadMetadata()
                return known
            except MetadataUnavailable as error:
                self._last_error = error
            yield from self._pause()

    def _pause(self) -> Steps[None]:
        """Wait before the store is asked again; raise the last error when it is time to give up."""
        pause_s = self._backoff.next_in_time_s(self._now_s)
        if pause_s is None:
            assert self._last_error is not None
            raise self._last_error
        yield Sleep(pause_s, is_retry=True)


# --- a change of the ensemble ---------------------------------------------------------------------


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
        domains: where ack sets span them: what its maker knows of the new ensemble (INV-P5).
    """

    ledger_id: LedgerId
    known: LedgerMetadata
    start: EntryId
    chosen: Mapping[int, BookieId]
    domains: AckDomains | None = None

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
        fragments = (*kept, Fragment(self.start, tuple(ensemble)))
        custom = custom_of_changed(metadata.custom, self.domains, ensemble)
        return replace(metadata, fragments=fragments, custom=custom)

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
