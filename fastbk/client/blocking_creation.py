"""Creating a ledger's metadata without a loop, also when the store's answer is lost."""

from __future__ import annotations

from contextlib import suppress

from fastbk.errors import MetadataConflict, MetadataUnavailable, NoSuchLedger
from fastbk.meta import MetadataStore
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata


def create_in(store: MetadataStore, ledger_id: LedgerId, value: LedgerMetadata) -> VersionedLedger:
    """Create a ledger. Raises MetadataConflict when another creation has the id."""
    try:
        return VersionedLedger(value, store.create_ledger(ledger_id, value))
    except (MetadataConflict, MetadataUnavailable):
        # The answer of a creation that took effect may have been lost: the token tells.
        with suppress(NoSuchLedger):
            found = store.read_ledger(ledger_id)
            if found.metadata.creation_token == value.creation_token:
                return found
        raise
