"""Marking the ledgers of due bookies: a scan over all metadata that goes on where the auditor before left it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from fastbk.autorecovery.state import ClusterState, Marking
from fastbk.client import Client, LedgerInfo
from fastbk.meta.api import MetadataStore
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.named_copies import last_of_fragment

PAGE_LEDGERS = 500
MARKS_AT_ONCE = 8
RUN_S = 20.0
REASON = "its bookie is lost"
_log = LibraryLog("fastbk.autorecovery")


def owed_by_lost(metadata: LedgerMetadata, bookie_id: BookieId) -> Iterator[MissingReplica]:
    """Yield what a lost bookie was to hold of a ledger, fragment by fragment."""
    for at, fragment in enumerate(metadata.fragments):
        if bookie_id not in fragment.ensemble:
            continue
        last = last_of_fragment(metadata, at)
        if last is None or last >= fragment.first_entry_id:
            yield MissingReplica(bookie_id, fragment.first_entry_id, last, REASON)


async def page_of(client: Client, after: LedgerId, count: int) -> list[LedgerInfo]:
    """Return the next ledgers with their metadata, empty at the end; one that is deleted meanwhile is left out."""

    def read(store: MetadataStore) -> list[LedgerInfo]:
        at = after
        while ids := store.list_ledgers(at, count):
            found = zip(ids, store.read_ledgers(ids), strict=True)
            page = [LedgerInfo(one, read.metadata, read.version) for one, read in found if read]
            if page:
                return page
            at = ids[-1]
        return []

    return await client.call_store(read)


class MarkingScan:
    """Scans for due bookies, one after the other.

    Attributes:
        ledgers_marked: since this process began.
        named: bookies that the last whole scan found in metadata; None before the first.
    """

    def __init__(self, client: Client, state: ClusterState) -> None:
        self.ledgers_marked = 0
        self.named: frozenset[BookieId] | None = None
        self._names: set[BookieId] | None = None  # of the scan that this process began
        self._client = client
        self._state = state

    async def run(self, due: Collection[BookieId], may_work: Callable[[], bool]) -> None:
        """Mark ledgers of the bookies that are due and not marked yet, for about `RUN_S` seconds.

        A scan that was begun, by this auditor or another, goes on where it was, and ends before the next one begins.
        `may_work` is called for each page: a scan that may not go on stays where it is.
        """
        marking = (await self._state.audit.read()).marking
        if not marking.bookies:
            marking = Marking(tuple(sorted(due)))
            await self._save(marking)
            _log.info("autorecovery.marking_started", bookies=list(marking.bookies))
        if marking.after < 0:
            self._names = set()
        end_s = asyncio.get_running_loop().time() + RUN_S
        while page := await page_of(self._client, marking.after, PAGE_LEDGERS):
            if not may_work() or asyncio.get_running_loop().time() > end_s:
                return
            await self._mark_page(page, marking.bookies)
            for one in page:
                for fragment in one.metadata.fragments:
                    if self._names is not None:
                        self._names.update(fragment.ensemble)
            marking = Marking(marking.bookies, page[-1].ledger_id)
            await self._save(marking)
        # The bookies first: an end between the two scans once more, and leaves nothing out.
        await self._state.lost_bookies.change(lambda lost: lost.marked(marking.bookies))
        await self._save(Marking())
        if self._names is not None:
            self.named, self._names = frozenset(self._names), None
        _log.info("autorecovery.marking_ended", bookies=list(marking.bookies))

    async def _mark_page(self, page: list[LedgerInfo], bookies: Collection[BookieId]) -> None:
        todo = []
        for one in page:
            missing = [each for bookie in bookies for each in owed_by_lost(one.metadata, bookie)]
            if missing:
                todo.append((one.ledger_id, missing))
        for at in range(0, len(todo), MARKS_AT_ONCE):
            some = todo[at : at + MARKS_AT_ONCE]
            await asyncio.gather(
                *(self._client.marks.update(ledger_id, add=missing) for ledger_id, missing in some)
            )
            self.ledgers_marked += len(some)

    async def _save(self, marking: Marking) -> None:
        await self._state.audit.change(lambda audit: replace(audit, marking=marking))
