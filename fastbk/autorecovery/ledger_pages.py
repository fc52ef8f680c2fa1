"""Metadata of many ledgers, page by page. A ledger with damaged metadata is logged and left out: it stops no pass."""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.client import Client, LedgerInfo
from fastbk.errors import NoSuchLedger, StorageError
from fastbk.meta.api import MetadataStore, VersionedLedger
from fastbk.model.ids import LedgerId
from fastbk.observe.library_log import LibraryLog

PAGE_LEDGERS = 500
_log = LibraryLog("fastbk.autorecovery")


async def page_after(client: Client, after: LedgerId) -> list[LedgerInfo]:
    """Return the next ledgers above `after`, up to `PAGE_LEDGERS`; empty at the end."""

    def read(store: MetadataStore) -> list[LedgerInfo]:
        at = after
        while ids := store.list_ledgers(at, PAGE_LEDGERS):
            if page := _infos(store, ids):
                return page
            at = ids[-1]
        return []

    return await client.call_store(read)


async def read_page(client: Client, ledger_ids: Sequence[LedgerId]) -> list[LedgerInfo]:
    """Return these ledgers, without those that are gone."""
    return await client.call_store(lambda store: _infos(store, ledger_ids))


def _infos(store: MetadataStore, ledger_ids: Sequence[LedgerId]) -> list[LedgerInfo]:
    found = zip(ledger_ids, readable(store, ledger_ids), strict=True)
    return [LedgerInfo(one, read.metadata, read.version) for one, read in found if read]


def readable(
    store: MetadataStore, ledger_ids: Sequence[LedgerId]
) -> list[VersionedLedger | None]:
    """Return the metadata of these ledgers, in their order; None for one that is gone or damaged."""
    try:
        return store.read_ledgers(ledger_ids)
    except StorageError:
        return [_read(store, one) for one in ledger_ids]


def _read(store: MetadataStore, ledger_id: LedgerId) -> VersionedLedger | None:
    try:
        return store.read_ledger(ledger_id)
    except NoSuchLedger:
        return None
    except StorageError as error:
        _log.error("autorecovery.ledger_unreadable", ledger_id=ledger_id, reason=str(error))
        return None
