"""Deleting a stream's old segments, in two steps (INV-S9), its doomed ledgers (INV-S8), and pages nobody names.

Every step may be repeated by anybody after a crash of whoever began it: the chain names a ledger until it is deleted,
and a page's record goes when no chain can name it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from fastbk.client.client import Client
from fastbk.errors import MetadataConflict, StorageError
from fastbk.meta.records import Change
from fastbk.rate_limit import RateLimit
from fastbk.stream.chain.chain import Chain, Segment
from fastbk.stream.chain.changes import drop_deleted, forget_deleted, mark_deleting
from fastbk.stream.chain.store import ChainStore, VersionedChain, page_name
from fastbk.stream.janitor.audit import Audit
from fastbk.stream.paths import number_of_page, pages_path

TOGETHER = 16
"""Ledgers that are deleted at once."""
DROPPED_AT_ONCE = 256
"""Segments that leave the chain by one change."""
PAGES_AT_ONCE = 50


@dataclass(slots=True)
class Deleter:
    """Deletes ledgers, with a line of the audit log before, so many a second."""

    client: Client
    audit: Audit = field(default_factory=Audit)
    pace: RateLimit = field(default_factory=lambda: RateLimit(1000.0))
    ledgers: int = 0
    """Deleted so far."""
    orphans: int = 0
    """Of these, those that were no segment: made or reserved, and never needed."""
    size_bytes: int = 0
    """Of the entries of deleted segments, each once; bookies give it back when their gc looks."""

    async def ledgers_of(
        self, stream_id: str, rows: Sequence[Segment], others: Sequence[int], reason: str
    ) -> None:
        """Delete ledgers that the stream's chain names: of segments, and others; those that are gone already are fine.

        One that was never made will never be made, however slow its writer is.
        """
        segments = {row.ledger_id for row in rows}
        ledger_ids = [*(row.ledger_id for row in rows), *others]
        for at in range(0, len(ledger_ids), TOGETHER):
            some = ledger_ids[at : at + TOGETHER]
            await self.audit.record(
                reason, *({"stream": stream_id, "ledger": ledger_id} for ledger_id in some)
            )
            retire = self.client.records.retire_ledger_id
            retiring = (retire(one, stream_id, is_segment=one in segments) for one in some)
            ends = await asyncio.gather(*retiring, return_exceptions=True)
            for end in ends:
                if end is not None:
                    raise end
            self.ledgers += len(some)
            await asyncio.sleep(self.pace.take(len(some)))
        self.orphans += len(others)
        self.size_bytes += sum(row.size_bytes for row in rows)


async def delete_pending(
    deleter: Deleter, store: ChainStore, known: VersionedChain
) -> VersionedChain:
    """Delete the ledgers that the chain names and does not need."""
    doomed = known.chain.doomed
    if not doomed:
        return known
    await deleter.ledgers_of(store.stream_id, (), doomed, "doomed: no record is in it")
    return await store.change(lambda chain: forget_deleted(chain, doomed), known)


async def delete_below(
    deleter: Deleter, store: ChainStore, known: VersionedChain, below: int, reason: str
) -> VersionedChain:
    """Delete closed segments below this number, but for the newest closed one."""
    known = await store.change(lambda chain: mark_deleting(chain, below), known)
    return await finish_deleting(deleter, store, known, reason)


async def finish_deleting(
    deleter: Deleter, store: ChainStore, known: VersionedChain, reason: str
) -> VersionedChain:
    """Delete what is marked: ledgers, then rows, then pages."""
    while known.chain.head < known.chain.deleting:
        chain = known.chain
        try:
            some = [row async for row in _marked(store, chain)]
        except StorageError:
            known = await store.read()
            if known.chain.head == chain.head:
                raise
            continue  # another janitor was faster: the page is gone with its segments
        await deleter.ledgers_of(store.stream_id, some, (), reason)
        last = some[-1]
        dropped = partial(drop_deleted, below=last.number + 1, head_seq=last.end_seq)
        known = await store.change(dropped, known)
        gone = {page.page for page in chain.pages} - {page.page for page in known.chain.pages}
        if gone:
            await delete_unnamed_pages(deleter.client, store, known)
    return known


async def _marked(store: ChainStore, chain: Chain) -> AsyncGenerator[Segment, None]:
    """Yield the next rows that are marked, some of them."""
    end = min(chain.deleting, chain.head + DROPPED_AT_ONCE)
    async for row in store.rows_from(chain, chain.head):
        if row.number >= end:
            return
        yield row


async def delete_unnamed_pages(client: Client, store: ChainStore, known: VersionedChain) -> None:
    """Delete records of pages that no chain names, nor ever will: segments are gone, or another one was faster.

    One whose number is not below the chain's `next_page` may be written for a change that is under way.
    """
    parent = pages_path(store.stream_id)
    named = {page_name(page) for page in known.chain.pages}
    unnamed = [
        name
        for name in await client.records.children(parent)
        if name not in named and number_of_page(name) < known.chain.next_page
    ]
    await delete_records(client, [f"{parent}/{name}" for name in unnamed])


async def delete_records(client: Client, paths: Sequence[str]) -> None:
    """Delete records that nobody changes; those that are gone already are fine."""
    for at in range(0, len(paths), PAGES_AT_ONCE):
        some = paths[at : at + PAGES_AT_ONCE]
        for path, found in zip(some, await client.records.read_all(some), strict=True):
            if found is not None:
                with suppress(MetadataConflict):  # somebody else has deleted it
                    await client.records.change(Change(path, None, found.version))
