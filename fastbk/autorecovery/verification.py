"""The check of all ledgers: do bookies hold what metadata promises? In cycles, whose position is kept in metadata.

Our bookies list the entries that they hold, which reads no data: their own scrub reads it. Apache's bookies that give
no list are read in full. A copy counts as missing only when two checks, at least a minute apart, did not find it, and
the bookie has answered both: silence and a bookie that is away are not "missing".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from fastbk.autorecovery.figures import VerificationCounts
from fastbk.autorecovery.ledger_pages import page_after, read_page
from fastbk.autorecovery.marking import REASON
from fastbk.autorecovery.state import SUSPECTS_MAX, ClusterState, Cycle, clock_ms
from fastbk.client import Client, LedgerInfo
from fastbk.errors import NoSuchLedger, StorageError
from fastbk.meta.api import BookieService
from fastbk.meta.unfinished_recoveries import LISTED_MAX, note_recoveries
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerState
from fastbk.model.missing_replica import MissingReplica, merged, without
from fastbk.observe.library_log import LibraryLog
from fastbk.rate_limit import RateLimit
from fastbk.replication.copy_listing import CopiesListed, ListCopies
from fastbk.replication.repair_options import CopyRate, RepairOptions

LEDGERS_PER_S = 500.0
"""Checked at most, so that a cycle over many small ledgers leaves metadata and bookies alone."""
CYCLE_INTERVAL_S = 600.0
"""Between the beginnings of two cycles, at least."""
CONFIRM_AFTER_S = 60.0
SUSPECTS_INTERVAL_S = 1800.0
"""Ledgers of which not all copies were found are checked again so often, however long a cycle takes."""
LEDGERS_AT_ONCE = 8
DOUBTS_MAX = 10_000
"""Ledgers that wait for their second check; others are found again in the next cycle."""
LIST_BYTES = 4096
"""What a list counts against the cluster's copy rate."""
HOLE = "found missing by the check of all ledgers"
RUN_S = 20.0
_TIMEOUT_S = 10.0
_log = LibraryLog("fastbk.autorecovery")


@dataclass(slots=True)
class _Doubt:
    """What a first check did not find, and when."""

    missing: tuple[MissingReplica, ...]
    found_s: float


class Verification:
    """The checks of one auditor.

    Attributes:
        named: bookies that metadata named in the cycle under way, as far as this process has read it.
        named_last: bookies that the last cycle named which this process read wholly; None before the first.
        named_last_ms: when that cycle began.
    """

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        rate: CopyRate,
        *,
        ledgers_per_s: float = LEDGERS_PER_S,
        cycle_interval_s: float = CYCLE_INTERVAL_S,
        confirm_after_s: float = CONFIRM_AFTER_S,
        counts: VerificationCounts | None = None,
    ) -> None:
        """`rate`: the copy rate of this process, which its reads and lists count against."""
        self.counts = VerificationCounts() if counts is None else counts
        self._client = client
        self._state = state
        self._rate = rate
        self._pace = RateLimit(ledgers_per_s)
        self._cycle_interval_s = cycle_interval_s
        self._confirm_after_s = confirm_after_s
        self._doubts: dict[LedgerId, _Doubt] = {}
        self._silent: set[BookieId] = set()
        self._recoveries: list[LedgerId] = []
        """Ledgers that the cycle under way found in recovery, as far as this process has read it."""
        self.named: set[BookieId] = set()
        self.named_last: frozenset[BookieId] | None = None
        self.named_last_ms = 0
        self._is_read_wholly = False
        self._suspects_s = asyncio.get_running_loop().time()

    async def run(
        self, due: Callable[[], frozenset[BookieId]], may_work: Callable[[], bool]
    ) -> None:
        """Check ledgers for a while; return when there is nothing to do now, or after about `RUN_S` seconds.

        `due`: lost bookies whose delay is over.
        """
        cycle = (await self._state.audit.read()).cycle
        now_ms = clock_ms()
        if cycle.ended_ms or not cycle.began_ms:
            if cycle.began_ms and now_ms - cycle.began_ms < self._cycle_interval_s * 1000:
                await self._confirm(due)
                return
            cycle = Cycle(began_ms=now_ms)
            self.named, self._is_read_wholly = set(), True
            self._recoveries = []
        loop = asyncio.get_running_loop()
        end_s = loop.time() + RUN_S
        if loop.time() - self._suspects_s >= SUSPECTS_INTERVAL_S:
            self._suspects_s = loop.time()
            cycle = await self._check_suspects(cycle, due, may_work)
        while may_work() and loop.time() < end_s:
            await self._confirm(due)
            page = await page_after(self._client, cycle.after)
            self.named.update(
                bookie_id
                for one in page
                for fragment in one.metadata.fragments
                for bookie_id in fragment.ensemble
            )
            services = await self._services()
            self._silent.clear()
            before = self.counts.unsure, self.counts.holes
            suspects: list[LedgerId] = []
            for at in range(0, len(page), LEDGERS_AT_ONCE):
                await self._wait_for_rate(may_work)
                if not may_work():
                    return
                some = page[at : at + LEDGERS_AT_ONCE]
                found = await asyncio.gather(
                    *(self._first_check(one, services, due()) for one in some)
                )
                suspects += [
                    one.ledger_id for one, is_whole in zip(some, found, strict=True) if not is_whole
                ]
                await asyncio.sleep(self._pace.take(len(some)))
            recoveries = [
                one.ledger_id for one in page if one.metadata.state is LedgerState.IN_RECOVERY
            ]
            self._recoveries = [*self._recoveries, *recoveries][:LISTED_MAX]
            cycle = self._moved(cycle, page, before, suspects)
            await self._save(cycle)
            if cycle.ended_ms:
                await self._client.call_store(
                    partial(note_recoveries, found=tuple(self._recoveries))
                )
                return

    def _moved(
        self,
        cycle: Cycle,
        page: list[LedgerInfo],
        before: tuple[int, int],
        suspects: list[LedgerId],
    ) -> Cycle:
        now_ms, counts = clock_ms(), self.counts
        if not page:
            counts.cycles += 1
            if self._is_read_wholly:
                self.named_last, self.named_last_ms = frozenset(self.named), cycle.began_ms
            counts.cycle_ms.add(now_ms - cycle.began_ms)
            seconds = (now_ms - cycle.began_ms) / 1000
            _log.info(
                "autorecovery.cycle_ended",
                ledgers=cycle.ledgers,
                unsure=cycle.unsure,
                seconds=round(seconds, 1),
            )
            return replace(cycle, ended_ms=now_ms)
        return replace(
            cycle,
            after=page[-1].ledger_id,
            ledgers=cycle.ledgers + len(page),
            unsure=cycle.unsure + counts.unsure - before[0],
            missing=cycle.missing + counts.holes - before[1],
            suspects=(*cycle.suspects, *suspects)[:SUSPECTS_MAX],
        )

    async def _save(self, cycle: Cycle) -> None:
        if cycle.ended_ms:
            await self._state.audit.change(
                lambda audit: replace(audit, cycle=cycle, last_cycle=cycle)
            )
        else:
            await self._state.audit.change(lambda audit: replace(audit, cycle=cycle))

    async def _wait_for_rate(self, may_work: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while may_work():
            wait_s = self._rate.wait_s(loop.time())
            if wait_s <= 0:
                return
            await asyncio.sleep(wait_s)

    async def _services(self) -> dict[BookieId, BookieService]:
        found = await self._client.list_bookies()
        return {one.service.bookie_id: one.service for one in found}

    # --- one ledger --------------------------------------------------------------------------------------------

    async def _first_check(
        self,
        info: LedgerInfo,
        services: Mapping[BookieId, BookieService],
        due: frozenset[BookieId],
    ) -> bool:
        """Check one ledger; return whether all copies were found."""
        self.counts.ledgers += 1
        fragments = info.metadata.fragments
        self.counts.fragments.add(len(fragments))
        self.counts.bookies.add(len({bookie for one in fragments for bookie in one.ensemble}))
        try:
            listed = await self._list(info, services, due)
        except StorageError as error:
            self._unchecked(info.ledger_id, error)
            return False
        if listed.missing and len(self._doubts) < DOUBTS_MAX:
            found_s = asyncio.get_running_loop().time()
            self._doubts.setdefault(info.ledger_id, _Doubt(merged(listed.missing), found_s))
        return not listed.missing and not listed.unknown

    async def _check_suspects(
        self, cycle: Cycle, due: Callable[[], frozenset[BookieId]], may_work: Callable[[], bool]
    ) -> Cycle:
        """Check those of this cycle and the last one again; return the cycle without those that are whole."""
        last = (await self._state.audit.read()).last_cycle
        ids = sorted({*cycle.suspects, *last.suspects})
        whole: set[LedgerId] = set()
        services = await self._services() if ids else {}
        for at in range(0, len(ids), LEDGERS_AT_ONCE):
            await self._wait_for_rate(may_work)
            if not may_work():
                break
            some = ids[at : at + LEDGERS_AT_ONCE]
            infos = await read_page(self._client, some)
            checked = await asyncio.gather(
                *(self._first_check(one, services, due()) for one in infos)
            )
            doubtful = {
                one.ledger_id for one, is_whole in zip(infos, checked, strict=True) if not is_whole
            }
            whole.update(one for one in some if one not in doubtful)
            await asyncio.sleep(self._pace.take(len(some)))
        await self._state.audit.change(
            lambda audit: replace(audit, last_cycle=_without(audit.last_cycle, whole))
        )
        return _without(cycle, whole)

    def _unchecked(self, ledger_id: LedgerId, error: StorageError) -> None:
        """One ledger, or its mark, is damaged: the check of the others goes on."""
        self.counts.unsure += 1
        _log.error("autorecovery.ledger_unchecked", ledger_id=ledger_id, reason=str(error))

    async def _confirm(self, due: Callable[[], frozenset[BookieId]]) -> None:
        """Check again what a first check did not find; mark what is still not there."""
        now_s = asyncio.get_running_loop().time()
        ripe = [
            (ledger_id, one)
            for ledger_id, one in self._doubts.items()
            if now_s - one.found_s >= self._confirm_after_s
        ]
        services = await self._services() if ripe else {}
        for ledger_id, doubt in ripe:
            del self._doubts[ledger_id]
            try:
                await self._confirm_one(ledger_id, doubt, services, due())
            except NoSuchLedger:
                continue
            except StorageError as error:
                self._unchecked(ledger_id, error)

    async def _confirm_one(
        self,
        ledger_id: LedgerId,
        doubt: _Doubt,
        services: Mapping[BookieId, BookieService],
        due: frozenset[BookieId],
    ) -> None:
        info = await self._client.ledger_info(ledger_id)
        listed = await self._list(info, services, due)
        again = merged(listed.missing)
        # What both checks did not find: what is left of one without the rest of it.
        both = without(doubt.missing, without(doubt.missing, again))
        if not both:
            return
        self.counts.holes += 1
        marked = [replace(one, reason=HOLE, marked_ms=0) for one in both]
        await self._client.marks.update(ledger_id, add=marked)
        _log.warning(
            "autorecovery.hole_found",
            ledger_id=ledger_id,
            bookies=sorted({one.bookie_id for one in both}),
            ranges=len(both),
        )

    async def _list(
        self,
        info: LedgerInfo,
        services: Mapping[BookieId, BookieService],
        due: frozenset[BookieId],
    ) -> CopiesListed:
        """Check one ledger; mark what due bookies were to hold, count what nobody answered."""
        unlisted = {bookie_id for bookie_id, one in services.items() if one.endpoint() is None}
        procedure = ListCopies(
            info.ledger_id,
            info.metadata,
            services.keys() - self._silent,
            unlisted,
            _TIMEOUT_S,
            HOLE,
            reads=RepairOptions(rate=self._rate, patience_s=_TIMEOUT_S),
        )
        listed = await self._client.run_procedure(info.ledger_id, info.metadata, procedure)
        self._rate.spend(LIST_BYTES * listed.requests, asyncio.get_running_loop().time())
        self.counts.requests += listed.requests
        # A registered bookie that does not answer is left out of the rest of this page: ledgers must not each wait.
        self._silent.update(one.bookie_id for one in listed.unknown if one.bookie_id in services)
        lost = [one for one in listed.unknown if one.bookie_id in due]
        if lost:
            marked = [replace(one, reason=REASON) for one in lost]
            await self._client.marks.update(info.ledger_id, add=marked)
        self.counts.unsure += len(lost) < len(listed.unknown)
        return listed


def _without(cycle: Cycle, whole: set[LedgerId]) -> Cycle:
    """Return a cycle without these suspects, unless there may be more than are listed: the last one says how far."""
    if len(cycle.suspects) >= SUSPECTS_MAX:
        return cycle
    return replace(cycle, suspects=tuple(one for one in cycle.suspects if one not in whole))
