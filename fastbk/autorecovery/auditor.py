"""The auditor: finds lost bookies and holes, marks under-replicated ledgers, and divides the copy
rate.

One process is elected (`fastbk.autorecovery.healer`). Its passes are independent: one that fails or
takes long stops no other one. What they have done is kept in metadata, so the next auditor goes on
there. `PlacementAudit` beside this compares where copies are with the rules. There are two more long
ones:

`MarkingScan` marks the ledgers of due bookies, by a scan over all metadata.

`Verification` checks all ledgers in cycles: do bookies hold what metadata promises? Our bookies
list the entries that they hold, which reads no data: their own scrub reads it. Apache's bookies
that give no list are read in full. A copy counts as missing only when two checks, at least a minute
apart, did not find it, and the bookie has answered both: silence and a bookie that is away are not
"missing".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fastbk.autorecovery.lost_bookies import (
    HealingHold,
    Judged,
    LossRules,
    LostBookies,
    delay_of,
    judge,
)
from fastbk.autorecovery.placement_audit import INTERVAL_S as PLACEMENT_INTERVAL_S
from fastbk.autorecovery.placement_audit import PlacementAudit
from fastbk.autorecovery.rate_leases import ANNOUNCE_INTERVAL_S, RateLeases
from fastbk.autorecovery.state import (
    SUSPECTS_MAX,
    AuditorCounts,
    ClusterState,
    Cycle,
    Leases,
    LiveWorkers,
    Maintenance,
    Marking,
    MarkingCounts,
    VerificationCounts,
    clock_ms,
)
from fastbk.client import Client, LedgerInfo
from fastbk.client.bookie_locations import refresh_locations
from fastbk.errors import Error, NoSuchLedger, StorageError
from fastbk.limits import RateLimit
from fastbk.meta.api import BookieService, Check, MetadataStore, VersionedLedger, Watch
from fastbk.meta.health_records import LISTED_MAX, note_recoveries, read_last_backup
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica, merged, without
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.copy_check import last_of_fragment
from fastbk.replication.copy_listing import CopiesListed, ListCopies
from fastbk.replication.repair_options import CopyRate, RepairOptions
from fastbk.units import format_utc_ms

_log = LibraryLog("fastbk.autorecovery")
FORGET_WORKERS_INTERVAL_S = 60.0
MARKS_AT_ONCE = 8
RUN_S = 20.0
PLACES_PASSES = 3
"""Passes over the bookies between two looks at where they are."""
REASON = "its bookie is lost"
LEDGERS_PER_S = 500.0
"""Checked at most, so that a cycle over many small ledgers leaves metadata and bookies alone."""
CYCLE_INTERVAL_S = 600.0
"""Pause between the beginnings of two cycles, at least."""
CONFIRM_AFTER_S = 60.0
LOCATIONS_INTERVAL_S = 60.0
SUSPECTS_INTERVAL_S = 1800.0
"""Ledgers of which not all copies were found are checked again so often, however long a cycle takes."""
LEDGERS_AT_ONCE = 8
DOUBTS_MAX = 10_000
"""Ledgers that wait for their second check; others are found again in the next cycle."""
LIST_BYTES = 4096
"""What a list counts against the cluster's copy rate."""
HOLE = "found missing by the check of all ledgers"
_TIMEOUT_S = 10.0
PAGE_LEDGERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorOptions:
    """How often the auditor looks. Seconds between the end of a pass and the next one.

    Attributes:
        placement_interval_s: between two rounds over all closed ledgers that compare where their copies are with their
            rules; 0: there are none.
    """

    bookie_interval_s: float = 5.0
    verify_interval_s: float = 5.0
    verify_ledgers_per_s: float = LEDGERS_PER_S
    cycle_interval_s: float = CYCLE_INTERVAL_S
    confirm_after_s: float = CONFIRM_AFTER_S
    placement_interval_s: float = PLACEMENT_INTERVAL_S
    topology_script: Path | None = None
    """A program of this machine's operator that says where bookies are: the cluster's table gets it."""
    locations_interval_s: float = LOCATIONS_INTERVAL_S


class Auditor:
    """The auditor's passes over one cluster, while this process is elected.

    Attributes:
        pass_ended_s: when each kind of pass ended last, by the loop's clock; for liveness.
        placement: its `misplaced` has the ledgers that were found to lie otherwise than their rules want it.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        rate: CopyRate,
        options: AuditorOptions | None = None,
        session_lost_ms: int | None = None,
        counts: AuditorCounts | None = None,
    ) -> None:
        """`session_lost_ms`: when this process last lost its session with metadata; None: it never did."""
        options = AuditorOptions() if options is None else options
        self.counts = AuditorCounts() if counts is None else counts
        self.pass_ended_s: dict[str, float] = {}
        self._client = client
        self._name = name
        self._options = options
        self._session_lost_ms = session_lost_ms
        self._state = ClusterState(client.records)
        self.marking = MarkingScan(client, self._state, self.counts.marking)
        self.verification = Verification(
            client,
            self._state,
            rate,
            ledgers_per_s=options.verify_ledgers_per_s,
            cycle_interval_s=options.cycle_interval_s,
            confirm_after_s=options.confirm_after_s,
            counts=self.counts.verification,
        )
        self.placement = PlacementAudit(
            client, interval_s=options.placement_interval_s, counts=self.counts.placement
        )
        self._is_enabled = False
        self._holds: dict[BookieId | None, HealingHold] = {}
        self._due: frozenset[BookieId] = frozenset()
        self._to_mark: dict[BookieId, int] = {}
        self._registered_once: set[BookieId] = set()
        self._workers = LiveWorkers()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Pass until it is cancelled."""
        loop = asyncio.get_running_loop()
        leases = RateLeases(loop.time())
        options = self._options
        kinds: list[tuple[str, Callable[[], Awaitable[None]], float]] = [
            ("bookies", self.audit_bookies, options.bookie_interval_s),
            ("marking", self._mark, options.bookie_interval_s),
            ("verification", self._verify, options.verify_interval_s),
            ("placement", self._check_placement, PLACES_PASSES * options.bookie_interval_s),
            ("leases", lambda: self._grant(leases), ANNOUNCE_INTERVAL_S),
            ("workers", self._forget_workers, FORGET_WORKERS_INTERVAL_S),
        ]
        if options.topology_script is not None:
            kinds.append(("locations", self.refresh_locations, options.locations_interval_s))
        for name, *_ in kinds:
            self.pass_ended_s[name] = loop.time()

        def changed() -> None:
            loop.call_soon_threadsafe(self._changed.set)

        def watch_both(store: MetadataStore) -> list[Watch]:
            # Apache's tools have the auditor check at once by writing the delay.
            return [store.watch_bookies(changed), store.coordination.watch_switches(changed)]

        watches = await self._client.call_store(watch_both)
        try:
            async with asyncio.TaskGroup() as group:
                for kind in kinds:
                    group.create_task(self._repeat(*kind))
        finally:
            for one_watch in watches:
                one_watch.close()

    async def _repeat(
        self, name: str, one_pass: Callable[[], Awaitable[None]], interval_s: float
    ) -> None:
        """Pass again and again. An error ends a pass, not the others."""
        while True:
            try:
                await one_pass()
                self.pass_ended_s[name] = asyncio.get_running_loop().time()
            except Error as error:
                self._failed(name, error)
            except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the other passes
                self._failed(name, error)
            await self._pause(name, interval_s * random.uniform(0.8, 1.2))

    def _failed(self, name: str, error: Exception) -> None:
        self.counts.failed_passes += 1
        failed = None if isinstance(error, Error) else error
        _log.warning("autorecovery.pass_failed", kind=name, reason=repr(error), failed=failed)

    async def _pause(self, name: str, pause_s: float) -> None:
        if name != "bookies":
            await asyncio.sleep(pause_s)
            return
        self._changed.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return

    # --- bookies -----------------------------------------------------------------------------------------------

    async def audit_bookies(self) -> None:
        """Find out which bookies are lost and due, and store it."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def read(store: MetadataStore) -> tuple[set[BookieId], set[BookieId], bool, int | None]:
            coordination = store.coordination
            registered = {bookie.service.bookie_id for bookie in store.list_bookies()}
            known = {identity.bookie_id for identity in store.list_identities()}
            return registered, known, coordination.is_enabled(), coordination.lost_bookie_delay_s()

        registered, known, self._is_enabled, stored_s = await self._client.call_store(read)
        await self._note_backup()
        hold, maintenance = await self._state.hold.read(), await self._state.maintenance.read()
        rules = LossRules(delay_of(stored_s), self._session_lost_ms, hold, maintenance.bookies)
        self._note_holds(hold, maintenance)
        self._registered_once |= registered
        judged: list[Judged] = []

        def decide(before: LostBookies) -> LostBookies:
            everyone = self._known(known, before)
            judged.append(judge(before, everyone, registered, clock_ms(), rules))
            return judged[-1].after

        await self._state.lost_bookies.change(decide)
        await self._publish(judged[-1])
        self.counts.bookie_passes += 1
        self.counts.audit_ms.add((loop.time() - began_s) * 1000)

    async def _note_backup(self) -> None:
        """See when metadata was backed up."""
        self.counts.backup = await self._client.call_store(read_last_backup)

    def _note_holds(self, hold: HealingHold, maintenance: Maintenance) -> None:
        """Log which holds of operators began, were changed, or are over: of all bookies, and of single ones."""
        now_ms = clock_ms()
        held: dict[BookieId | None, HealingHold] = {}
        held.update(maintenance.current(now_ms))
        if hold.left_s(now_ms) > 0:
            held[None] = hold
        before, self._holds = self._holds, held
        for bookie, one in held.items():
            if before.get(bookie) != one:
                facts = {"until": format_utc_ms(one.until_ms), "reason": one.reason}
                if bookie is None:
                    _log.info("autorecovery.hold_began", **facts)
                else:
                    _log.info("autorecovery.maintenance_began", bookie=bookie, **facts)
        for bookie in before.keys() - held.keys():
            if bookie is None:
                _log.info("autorecovery.hold_ended")
            else:
                _log.info("autorecovery.maintenance_ended", bookie=bookie)

    def _known(self, identified: set[BookieId], before: LostBookies) -> set[BookieId]:
        """Return the bookies that can be lost.

        Apache's bookies have no identity of ours: they are known once they were registered, or a ledger names them.
        A lost one without an identity is forgotten when a whole check of all ledgers, begun later, found it nowhere.
        """
        verification = self.verification
        others = self._registered_once | verification.named | before.lost.keys()
        named = verification.named_last
        if named is None:
            return identified | others
        gone = {
            one
            for one, lost in before.lost.items()
            if one not in named | verification.named and lost.lost_ms < verification.named_last_ms
        }
        self._registered_once -= gone
        return identified | (others - gone)

    async def _publish(self, judged: Judged) -> None:
        now_ms = clock_ms()
        self.counts.losses += len(judged.new)
        self.counts.losses_cancelled += len(judged.returned)
        lost = judged.after.lost
        unmarked = {one: lost[one].lost_ms for one in judged.due if not lost[one].is_marked}
        before, self._due, self._to_mark = self._due, judged.due, unmarked
        for one in sorted(judged.new):
            _log.warning(
                "autorecovery.bookie_lost",
                bookie=one,
                due_in_s=round(judged.waiting.get(one, 0.0), 1),
                held=judged.held.get(one, ""),
            )
        for one in sorted(judged.returned):
            _log.info("autorecovery.bookie_returned", bookie=one)
        for one in sorted(judged.forgotten):
            _log.info("autorecovery.bookie_forgotten", bookie=one)
        for one in sorted(judged.due - before):
            away_s = (now_ms - lost[one].lost_ms) / 1000
            _log.warning("autorecovery.bookie_due", bookie=one, away_s=round(away_s, 1))
        waiting = {one: now_ms + int(left_s * 1000) for one, left_s in judged.waiting.items()}
        await self._state.audit.change(
            lambda audit: replace(
                audit,
                auditor=self._name,
                pass_ms=now_ms,
                due=tuple(sorted(judged.due)),
                waiting=waiting,
                held=dict(judged.held),
            )
        )

    async def refresh_locations(self) -> None:
        """Have the cluster's table say what the operator's script says."""
        script = self._options.topology_script
        assert script is not None
        changed = await self._client.call_store(lambda store: refresh_locations(store, script))
        if changed:
            _log.info("autorecovery.locations_changed", bookies=", ".join(changed[:LISTED_MAX]))

    # --- the other passes --------------------------------------------------------------------------------------

    def _may_work(self) -> bool:
        return self._is_enabled

    async def _mark(self) -> None:
        """Mark the ledgers of due bookies, and end a scan that an auditor before this one began."""
        is_begun = bool((await self._state.audit.read()).marking.bookies)
        if self._is_enabled and (self._to_mark or is_begun):
            await self.marking.run(lambda: self._to_mark, self._may_work)
            await self.audit_bookies()

    async def _verify(self) -> None:
        if not self._is_enabled:
            self.counts.verification.skipped += 1
            return
        before = self.verification.counts.cycles
        await self.verification.run(lambda: self._due, self._may_work)
        if self.verification.counts.cycles > before:
            now_ms = clock_ms()
            await self._client.call_store(
                lambda store: store.coordination.set_check_time(Check.ALL_LEDGERS, now_ms)
            )

    async def _check_placement(self) -> None:
        if self._is_enabled:
            await self.placement.run(self._may_work)

    async def _grant(self, leases: RateLeases) -> None:
        reports = await self._state.workers()
        settings = await self._state.settings.read()
        now_s = asyncio.get_running_loop().time()
        workers = self._workers.alive(reports, now_s)
        granted = leases.grant(workers, settings.bytes_per_s, now_s)
        await self._state.leases.put(Leases(self._name, granted))

    async def _forget_workers(self) -> None:
        """Remove the records of workers that have stored nothing for long."""
        reports = await self._state.workers()
        alive = self._workers.alive(reports, asyncio.get_running_loop().time())
        for name in reports.keys() - alive.keys():
            await self._state.worker(name).remove()


def owed_by_lost(metadata: LedgerMetadata, bookie_id: BookieId) -> Iterator[MissingReplica]:
    """Yield what a lost bookie was to hold of a ledger, fragment by fragment."""
    for index, fragment in enumerate(metadata.fragments):
        if bookie_id not in fragment.ensemble:
            continue
        last = last_of_fragment(metadata, index)
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
        for start in range(0, len(todo), MARKS_AT_ONCE):
            some = todo[start : start + MARKS_AT_ONCE]
            await asyncio.gather(*(self._mark(*one) for one in some))

    async def _mark(self, ledger_id: LedgerId, missing: list[MissingReplica]) -> None:
        try:
            await self._client.marks.update(ledger_id, add=missing)
        except StorageError as error:
            # One damaged mark must not keep all ledgers behind it from being marked.
            _log.error("autorecovery.ledger_unmarked", ledger_id=ledger_id, reason=str(error))

    async def _save(self, marking: Marking) -> None:
        await self._state.audit.change(lambda audit: replace(audit, marking=marking))


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
            for start in range(0, len(page), LEDGERS_AT_ONCE):
                await self._wait_for_rate(may_work)
                if not may_work():
                    return
                some = page[start : start + LEDGERS_AT_ONCE]
                results = await asyncio.gather(
                    *(self._first_check(one, services, due()) for one in some)
                )
                suspects += [
                    one.ledger_id
                    for one, is_whole in zip(some, results, strict=True)
                    if not is_whole
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
                    partial(note_recoveries, in_recovery=tuple(self._recoveries))
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
        bookies = await self._client.list_bookies()
        return {bookie.service.bookie_id: bookie.service for bookie in bookies}

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
        self.counts.bookies.add(
            len({bookie for fragment in fragments for bookie in fragment.ensemble})
        )
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
        for start in range(0, len(ids), LEDGERS_AT_ONCE):
            await self._wait_for_rate(may_work)
            if not may_work():
                break
            some = ids[start : start + LEDGERS_AT_ONCE]
            infos = await read_page(self._client, some)
            checked = await asyncio.gather(
                *(self._first_check(info, services, due()) for info in infos)
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
        unlisted = {
            bookie_id for bookie_id, service in services.items() if service.endpoint() is None
        }
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
    return replace(
        cycle, suspects=tuple(suspect for suspect in cycle.suspects if suspect not in whole)
    )


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
