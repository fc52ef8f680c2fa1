"""The ledgers that a command is about, and the marks of a bookie that are outdated.

Apache's AutoRecovery and Apache's clients know only their own node of an under-replicated ledger.
When they name another bookie or delete the ledger, our mark stays. `fastbk bookie repair` and
`fastbk bookie recover` remove it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from fastbk.client import Client, LedgerInfo
from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.copy_check import is_expected

_log = LibraryLog("fastbk.admin")


async def infos_of(
    client: Client, ledger_ids: Iterable[LedgerId] | None
) -> AsyncIterator[LedgerInfo]:
    """Yield these ledgers, or all. Raises NoSuchLedger for one that is named and not there."""
    if ledger_ids is None:
        async for info in client.list_ledgers():
            yield info
    else:
        for ledger_id in ledger_ids:
            yield await client.ledger_info(ledger_id)


async def remove_outdated_marks(client: Client, bookie_id: BookieId) -> int:
    """Remove the outdated marks of one bookie; return how many ledgers had some.

    A mark that cannot be read or changed, maybe of a ledger that never named the bookie, stays: reports show it, and it
    is no failure of what was copied.
    """
    try:
        return await _remove_outdated_marks(client, bookie_id)
    except Error as error:
        _log.warning("repair.marks_stay", bookie_id=str(bookie_id), reason=str(error))
        return 0


async def _remove_outdated_marks(client: Client, bookie_id: BookieId) -> int:
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
