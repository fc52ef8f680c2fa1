"""Ledgers that a chain names and does not need: deleted, then forgotten (INV-S8)."""

from __future__ import annotations

from fastbk.errors import Error
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain.changes import forget_deleted
from fastbk.stream.chain.store import VersionedChain
from fastbk.stream.context import StreamContext

_log = LibraryLog("fastbk.stream")


async def delete_pending(context: StreamContext, known: VersionedChain) -> VersionedChain:
    """Delete the chain's doomed ledgers; what cannot be done now is left to the janitor."""
    if not known.chain.doomed:
        return known
    gone: list[int] = []
    try:
        for ledger_id in known.chain.doomed:
            await context.client.records.retire_ledger_id(ledger_id)
            gone.append(ledger_id)
        if gone:
            known = await context.store.change(
                lambda chain: forget_deleted(chain, tuple(gone)), known
            )
    except Error as error:
        _log.info("stream.doomed_ledgers_wait", stream=context.name, reason=str(error))
    return known
