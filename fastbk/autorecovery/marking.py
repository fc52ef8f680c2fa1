"""Marking the ledgers of due bookies: a scan over all metadata that goes on where the auditor before left it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from fastbk.autorecovery.figures import MarkingCounts
from fastbk.autorecovery.ledger_pages import page_after
from fastbk.autorecovery.state import ClusterState, Marking
from fastbk.client import Client, LedgerInfo
from fastbk.errors import StorageError
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.copy_check import last_of_fragment

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


class MarkingScan:
    """Scans for due bookies, one after the other."""

    def __init__(
        self, client: Client, state: ClusterState, counts: MarkingCounts | None = None
    ) -> None:
        self.counts = MarkingCounts() if counts is None else counts
        self._client = client
        self._state = state
        self._before = 0, 0
        self._took_s = 0.0
        self._reading_s = 0.0

    async def run(
        self, due: Callable[[], Mapping[BookieId, int]], may_work: Callable[[], bool]
    ) -> None:
        """Mark ledgers of due bookies for about `RUN_S` seconds.

        A scan that was begun, by this auditor or another, goes on where it was, and ends before the next one begins.

        Args:
            due: bookies that are to be marked now -> their times of loss. It is called for each page, since a bookie
                may return meanwhile.
            may_work: also called for each page; a scan that may not go on stays where it is.
        """
        began_s = asyncio.get_running_loop().time()
        marking = (await self._state.audit.read()).marking
        if not marking.bookies:
            marking = Marking(dict(due()))
            if not marking.bookies:
                return
            await self._save(marking)
            _log.info("autorecovery.marking_started", bookies=sorted(marking.bookies))
        loop = asyncio.get_running_loop()
        end_s = began_s + RUN_S
        while may_work() and loop.time() < end_s:
            losses = due()
            still = {one for one, lost_ms in marking.bookies.items() if losses.get(one) == lost_ms}
            read_s = loop.time()
            page = await page_after(self._client, marking.after) if still else []
            self._reading_s += loop.time() - read_s
            if not page:
                break
            await self._mark_page(page, still)
            marking = Marking(marking.bookies, page[-1].ledger_id)
            await self._save(marking)
        else:
            self._took_s += loop.time() - began_s
            return
        self._took_s += loop.time() - began_s
        # The bookies first: an end between the two scans once more, and leaves nothing out.
        if still:
            done = {one: marking.bookies[one] for one in still}
            await self._state.lost_bookies.change(lambda lost: lost.marked(done))
        await self._save(Marking())
        self._count_scan()
        _log.info("autorecovery.marking_ended", bookies=sorted(still))

    def _count_scan(self) -> None:
        """Count a scan, as far as this process did it."""
        counts = self.counts
        counts.scan_ledgers.add(counts.ledgers - self._before[0])
        counts.scan_bytes.add(counts.bytes_marked - self._before[1])
        counts.scan_ms.add(self._took_s * 1000)
        counts.reading_ms.add(self._reading_s * 1000)
        self._before = counts.ledgers, counts.bytes_marked
        self._took_s = self._reading_s = 0.0

    async def _mark_page(self, page: list[LedgerInfo], bookies: Collection[BookieId]) -> None:
        todo = []
        for one in page:
            missing = [each for bookie in bookies for each in owed_by_lost(one.metadata, bookie)]
            if missing:
                todo.append((one.ledger_id, missing))
                self.counts.ledgers += 1
                self.counts.bytes_marked += one.metadata.length
        for at in range(0, len(todo), MARKS_AT_ONCE):
            some = todo[at : at + MARKS_AT_ONCE]
            await asyncio.gather(*(self._mark(*one) for one in some))

    async def _mark(self, ledger_id: LedgerId, missing: list[MissingReplica]) -> None:
        try:
            await self._client.marks.update(ledger_id, add=missing)
        except StorageError as error:
            # One damaged mark must not keep all ledgers behind it from being marked.
            _log.error("autorecovery.ledger_unmarked", ledger_id=ledger_id, reason=str(error))

    async def _save(self, marking: Marking) -> None:
        await self._state.audit.change(lambda audit: replace(audit, marking=marking))
