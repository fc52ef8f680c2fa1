"""Removes the marks of copies that metadata does not expect of a bookie any more.

Apache's AutoRecovery and Apache's clients know only their own node of an under-replicated ledger. When they name
another bookie or delete the ledger, our mark stays. `fastbk bookie repair|recover` removes it.
"""

from __future__ import annotations

from fastbk.admin.naming import last_of_fragment
from fastbk.client import Client
from fastbk.errors import NoSuchLedger
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica


def is_expected(metadata: LedgerMetadata, missing: MissingReplica) -> bool:
    """Return whether metadata names the bookie for some of these entries, or may still do so."""
    if not metadata.is_closed:
        return True
    for at, fragment in enumerate(metadata.fragments):
        last = last_of_fragment(metadata, at)
        assert last is not None
        first = max(fragment.first_entry_id, missing.first_entry_id)
        if missing.bookie_id in fragment.ensemble and first <= last and first < missing.end:
            return True
    return False


async def remove_outdated_marks(client: Client, bookie_id: BookieId) -> int:
    """Remove the outdated marks of one bookie; return how many ledgers had some."""
    removed = 0
    for mark in await client.marks.list():
        missing = [one for one in mark.missing if one.bookie_id == bookie_id]
        if not missing:
            continue
        try:
            metadata = (await client.ledger_info(mark.ledger_id)).metadata
            missing = [one for one in missing if not is_expected(metadata, one)]
        except NoSuchLedger:
            pass
        if missing:
            await client.marks.update(mark.ledger_id, remove=missing)
            removed += 1
    return removed
