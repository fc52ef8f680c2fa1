"""Deleting a stream's old segments, in two steps (INV-S9), its doomed ledgers (INV-S8), and pages nobody names.

Every step may be repeated by anybody after a crash of whoever began it: the chain names a ledger until it is deleted,
and a page's record goes when no chain can name it any more.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from fastbk.client.client import Client
from fastbk.errors import Error, MetadataConflict, StorageError
from fastbk.meta.records import Change
from fastbk.observe.library_log import LibraryLog
from fastbk.rate_limit import RateLimit
from fastbk.stream.chain.chain import Chain, Segment
from fastbk.stream.chain.changes import drop_deleted, forget_deleted, mark_deleting
from fastbk.stream.chain.segment_contents import holds_byte
from fastbk.stream.chain.store import ChainStore, VersionedChain, page_name
from fastbk.stream.janitor.audit import Audit
from fastbk.stream.janitor.retention import Item, first_number, last_number
from fastbk.stream.paths import number_of_page, pages_path

_log = LibraryLog("fastbk.stream.janitor")

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


class HeldSizes:
    """Which segments have as many bytes as their chain says, as far as bookies were asked (INV-W8).

    Who may append to a stream says how large its segments are. So positions of their bytes are drawn, and looked for:
    with `SAMPLES` of them, all are found only if nearly all of the bytes are there. A segment that lies counts nothing.
    """

    SAMPLES = 24
    PROOF_S = 60.0
    REMEMBERED_MAX = 100_000

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lying: OrderedDict[int, tuple[str, int, int]] = (
            OrderedDict()
        )  # by ledger: stream, number, bytes
        self._proven: OrderedDict[str, int] = (
            OrderedDict()
        )  # by stream: the last segment that was looked at

    def corrected(self, stream_id: str, items: Sequence[Item]) -> list[Item]:
        """Return these items with what their lying segments say taken off."""
        lies = [
            (number, size) for stream, number, size in self._lying.values() if stream == stream_id
        ]
        if not lies:
            return [*items]
        return [
            replace(item, size_bytes=item.size_bytes - sum(
                size for number, size in lies if first_number(item) <= number <= last_number(item)
            ))
            for item in items
        ]  # fmt: skip

    async def prove(self, store: ChainStore, items: Sequence[Item], samples: int = SAMPLES) -> bool:
        """Return whether positions in these items were all found. Raises what reads raise, TimeoutError."""
        total = sum(item.size_bytes for item in items)
        async with asyncio.timeout(self.PROOF_S):
            for _ in range(samples if total else 0):
                row, position = await self._row_at(store, items, random.randrange(total))
                if row.ledger_id not in self._lying and not await self._holds(row, position):
                    self._note(store.stream_id, row)
                    return False
        return True

    async def prove_new(
        self, store: ChainStore, items: Sequence[Item], samples: int = 4
    ) -> list[Item]:
        """Look at what has come to a stream since the last call; return the items, corrected.

        Where bookies do not answer, what they have is taken for what the chain says.
        """
        last = self._proven.get(store.stream_id, 0)
        fresh = [item for item in items if last_number(item) > last]
        with suppress(Error, TimeoutError):
            while fresh and not await self.prove(
                store, self.corrected(store.stream_id, fresh), samples
            ):
                pass
            if items:
                self._proven[store.stream_id] = last_number(items[-1])
                self._proven.move_to_end(store.stream_id)
                if len(self._proven) > self.REMEMBERED_MAX:
                    self._proven.popitem(last=False)
        return self.corrected(store.stream_id, items)

    async def _row_at(
        self, store: ChainStore, items: Sequence[Item], position: int
    ) -> tuple[Segment, int]:
        for item in items:
            if position < item.size_bytes:
                if isinstance(item, Segment):
                    return item, position
                rows = self.corrected(store.stream_id, await store.page(item))
                return await self._row_at(store, rows, position)
            position -= item.size_bytes
        raise StorageError(f"stream {store.stream_id}: a page has other sizes than its chain says")

    async def _holds(self, row: Segment, position: int) -> bool:
        reader = await self._client.open_ledger(row.ledger_id, recovery=False)
        async with reader:
            is_whole = reader.metadata.is_closed and row.size_bytes <= (reader.metadata.length or 0)
            return is_whole and await holds_byte(reader, position)

    def _note(self, stream_id: str, row: Segment) -> None:
        self._lying[row.ledger_id] = stream_id, row.number, row.size_bytes
        if len(self._lying) > self.REMEMBERED_MAX:
            self._lying.popitem(last=False)
        why = (
            f"it says {row.size_bytes} bytes, and its ledger does not have them: it counts nothing"
        )
        _log.warning(
            "janitor.segment_size_refused",
            stream=stream_id,
            segment=row.number,
            ledger_id=row.ledger_id,
            reason=why,
        )


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
