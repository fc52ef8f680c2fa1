"""Metadata of many ledgers, page by page. One whose metadata cannot be read is left out: it stops no pass (INV-M17)."""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.client import Client, LedgerInfo
from fastbk.meta.api import MetadataStore, VersionedLedger
from fastbk.model.ids import LedgerId

PAGE_LEDGERS = 100


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
    found = zip(ledger_ids, store.read_ledgers(ledger_ids), strict=True)
    return [
        LedgerInfo(one, read.metadata, read.version)
        for one, read in found
        if isinstance(read, VersionedLedger)
    ]
