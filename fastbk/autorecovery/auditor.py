"""The auditor: finds lost bookies and holes, marks under-replicated ledgers, and divides the copy rate.

One process is elected (`fastbk.autorecovery.healer`). Its passes are independent: one that fails or takes long stops
no other one. What they have done is kept in metadata, so the next auditor goes on there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from fastbk.autorecovery.figures import AuditorCounts
from fastbk.autorecovery.lost_bookies import (
    HealingHold,
    Judged,
    LossRules,
    LostBookies,
    delay_of,
    judge,
)
from fastbk.autorecovery.marking import MarkingScan
from fastbk.autorecovery.rate_leases import ANNOUNCE_INTERVAL_S, RateLeases
from fastbk.autorecovery.state import ClusterState, Leases, LiveWorkers, Maintenance, clock_ms
from fastbk.autorecovery.verification import (
    CONFIRM_AFTER_S,
    CYCLE_INTERVAL_S,
    LEDGERS_PER_S,
    Verification,
)
from fastbk.client import Client
from fastbk.errors import Error
from fastbk.meta.api import MetadataStore, Watch
from fastbk.meta.coordination import Check
from fastbk.meta.last_backup import read_last_backup
from fastbk.model.ids import BookieId
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.repair_options import CopyRate
from fastbk.units import format_utc_ms

_log = LibraryLog("fastbk.autorecovery")
FORGET_WORKERS_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorOptions:
    """How often the auditor looks. Seconds between the end of a pass and the next one."""

    bookie_interval_s: float = 5.0
    verify_interval_s: float = 5.0
    verify_ledgers_per_s: float = LEDGERS_PER_S
    cycle_interval_s: float = CYCLE_INTERVAL_S
    confirm_after_s: float = CONFIRM_AFTER_S


class Auditor:
    """The auditor's passes over one cluster, while this process is elected.

    Attributes:
        pass_ended_s: when each kind of pass ended last, by the loop's clock; for liveness.
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
            ("leases", lambda: self._grant(leases), ANNOUNCE_INTERVAL_S),
            ("workers", self._forget_workers, FORGET_WORKERS_INTERVAL_S),
        ]
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
                for one in kinds:
                    group.create_task(self._repeat(*one))
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
            registered = {one.service.bookie_id for one in store.list_bookies()}
            known = {one.bookie_id for one in store.list_identities()}
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
