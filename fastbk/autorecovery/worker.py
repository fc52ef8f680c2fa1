"""A replication worker: repairs marked ledgers, those with the fewest live copies first.

It locks a ledger, repairs it (`RepairMarkedLedger`), and gives the lock back on every path. It
works for any auditor, Apache's included; see `docs/autorecovery.md` for which rules hold then.
`MarkedLedgers` reads what is marked.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from fastbk.autorecovery.placement_mending import PlacementMending
from fastbk.autorecovery.rate_leases import ANNOUNCE_INTERVAL_S, LEASE_S, HeldLease
from fastbk.autorecovery.repair_order import LEDGERS_MAX, RepairOrder, live_copies
from fastbk.autorecovery.state import (
    ClusterState,
    LiveWorkers,
    MarkCounts,
    ParkedLedger,
    WorkerCounts,
    WorkerReport,
    clock_ms,
)
from fastbk.client import Client
from fastbk.client.ensembles import log_replacements
from fastbk.client.metadata_calls import LockLost
from fastbk.errors import Error, NoSuchLedger
from fastbk.formats import LEVEL_MAX
from fastbk.meta.api import MetadataStore
from fastbk.meta.records import BadRecord
from fastbk.meta.replica_marks import LedgerMark
from fastbk.meta.zookeeper.underreplication import APACHE_REASON
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.copy_check import share_bytes
from fastbk.replication.marked_repair import ClusterView, MarkedLedgerRepaired, RepairMarkedLedger
from fastbk.replication.re_replication import BegunCopies
from fastbk.replication.repair_options import CopyRate, RepairOptions

PARKED_LISTED_MAX = 20
LOCKED_RETRY_S = 10.0
WAIT_RETRY_S = 30.0
REFRESH_SHARE = 0.1
"""Reading the marks takes at most this share of the time."""
_log = LibraryLog("fastbk.autorecovery")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works.

    Attributes:
        ledgers_at_once: repaired at the same time, 1 to 64; each holds up to 8 MiB.
        refresh_interval_s: between two readings of the marks, at least.
        grace_s: how long the writer of an open ledger has to replace a gone bookie.
    """

    ledgers_at_once: int = 4
    refresh_interval_s: float = 2.0
    grace_s: float = 30.0


class LeasedRate:
    """The part of the cluster's copy rate that one process may use: it announces itself, and the auditor answers."""

    def __init__(
        self,
        client: Client,
        name: str,
        rate: CopyRate,
        *,
        limit: float = float("inf"),
        needs_auditor: bool = True,
    ) -> None:
        """`limit`: bytes a second of this process. `needs_auditor`: it copies nothing while no auditor is elected."""
        self._client = client
        self._name = name
        self._rate = rate
        self._limit = limit
        self._needs_auditor = needs_auditor
        self._state = ClusterState(client.records)
        self._record = self._state.worker(name)
        self._lease = HeldLease()
        self._counter = 0
        self._workers = LiveWorkers()

    async def announce(self, report: Callable[[int], WorkerReport]) -> None:
        """Store a report, and take the lease that answers an earlier one; due every `ANNOUNCE_INTERVAL_S`."""
        loop = asyncio.get_running_loop()
        self._counter += 1
        self._lease.announced(self._counter, loop.time())
        await self._record.put(report(self._counter))
        leases = await self._state.leases.read()
        lease = leases.leases.get(self._name)
        if lease is not None:
            self._lease.received(lease)
        rate, end_s = self._lease.bytes_per_s(loop.time()), self._lease.end_s
        if not rate:
            end_s = loop.time() + LEASE_S
            rate = await self._rate_without_our_auditor()
        # The lease ends by itself, also when the next announcement does not come through (INV-H5).
        self._rate.bytes_per_s, self._rate.end_s = min(rate, self._limit), end_s

    async def _rate_without_our_auditor(self) -> float:
        """Return what may be used while Apache's daemon is the auditor, which grants nothing: an equal part."""
        auditor = await self._client.call_store(lambda store: store.coordination.auditor())
        reports = await self._state.workers()
        workers = self._workers.alive(reports, asyncio.get_running_loop().time())
        if auditor in workers or (auditor is None and self._needs_auditor):
            return 0.0
        limit = (await self._state.settings.read()).bytes_per_s
        return limit / max(1, len(workers)) if limit > 0 else float("inf")

    async def withdraw(self) -> None:
        """Take the report away."""
        try:
            await self._record.remove()
        except Error:
            pass  # the auditor forgets it


class ReplicationWorker:
    """The repairs of one process.

    Attributes:
        rate: the copy rate that its lease allows; verification in the same process counts against it, too.
        refreshed_s: when it last read the marks, by the loop's clock; for liveness.
    """

    def __init__(self, client: Client, name: str, options: WorkerOptions | None = None) -> None:
        """`name`: of this process, in the cluster."""
        self.rate = CopyRate(0.0)
        self.counts = counts = WorkerCounts()
        self._copying = RepairOptions(
            rate=self.rate,
            distance=client.pool.known.distance,
            read_took=counts.read_took,
            write_took=counts.write_took,
            copied=counts.copied,
            request_timeout_s=5.0,
            patience_s=5.0,
        )
        self.refreshed_s = 0.0
        self._was_enabled = True
        self.marks = MarkedLedgers(client)
        self._client = client
        self._name = name
        self._options = WorkerOptions() if options is None else options
        self._state = ClusterState(client.records)
        self._lease = LeasedRate(client, name, self.rate)
        self._order = RepairOrder(zlib.crc32(name.encode()))
        self._view = ClusterView()
        self._grace: dict[LedgerId, float] = {}
        self._begun: dict[LedgerId, BegunCopies] = {}
        self.mending = PlacementMending(client, name, self._copying, counts)
        self._repairs: dict[LedgerId, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    @property
    def active(self) -> int:
        """How many ledgers it repairs now."""
        return len(self._repairs)

    @property
    def may_move(self) -> bool:
        """Whether it may work, and has nothing to repair: then copies may be moved."""
        return self._was_enabled and self.refreshed_s > 0 and not len(self._order)

    @property
    def parked(self) -> int:
        """How many ledgers are parked."""
        return len(self._order.parked)

    async def run(self) -> None:
        """Work until it is cancelled; then every lock is given back."""
        self.refreshed_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat("marks", self._refresh))
                group.create_task(self._repeat("announcement", self._announce))
        finally:
            await self._stop_repairs()
            await self._lease.withdraw()

    async def _repeat(self, what: str, one_pass: Callable[[], object]) -> None:
        """Pass again and again; `one_pass` returns the pause."""
        while True:
            pause_s = self._options.refresh_interval_s
            try:
                pause_s = await one_pass()  # type: ignore[misc]
            except Error as error:
                _log.warning("autorecovery.worker_failed", kind=what, reason=str(error))
            except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the worker
                _log.error(
                    "autorecovery.worker_failed", kind=what, reason=repr(error), failed=error
                )
            pause_s *= random.uniform(0.8, 1.0)
            if what != "marks":
                await asyncio.sleep(pause_s)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    # --- the lease ---------------------------------------------------------------------------------------------

    async def _announce(self) -> float:
        """Report, and take the lease that answers an earlier report."""
        await self._lease.announce(self.report)
        return ANNOUNCE_INTERVAL_S

    def report(self, counter: int = 0) -> WorkerReport:
        """Return what it is doing. `counter`: of this announcement."""
        counts, parked = self.counts, self._order.parked
        now_s, now_ms = asyncio.get_running_loop().time(), clock_ms()
        rate = self.rate.bytes_per_s
        return WorkerReport(
            counter=counter,
            report_ms=now_ms,
            active=tuple(sorted(self._repairs)),
            marked=len(self.marks.live_copies),
            bytes_left=self.marks.bytes_left,
            waiting=len(self._order.waiting) - len(parked),
            parked_count=len(parked),
            parked=tuple(
                ParkedLedger(one, waits.reason, now_ms - int((now_s - waits.since_s) * 1000))
                for one, waits in list(parked.items())[:PARKED_LISTED_MAX]
            ),
            bytes_per_s=None if rate == float("inf") else rate,
            ledgers_repaired=counts.repaired,
            entries_copied=counts.entries_copied,
            bytes_copied=counts.bytes_copied,
            failures=counts.failures,
            format_level=LEVEL_MAX,
        )

    # --- the marks ---------------------------------------------------------------------------------------------

    async def _refresh(self) -> float:
        """Read which ledgers are marked and which bookies are there, and begin repairs."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def read(store: MetadataStore) -> tuple[bool, str | None, ClusterView]:
            bookies = store.list_bookies()
            present = frozenset(bookie.service.bookie_id for bookie in bookies)
            writable = frozenset(bookie.service.bookie_id for bookie in bookies if bookie.writable)
            unlisted = frozenset(
                bookie.service.bookie_id for bookie in bookies if not bookie.service.endpoint()
            )
            coordination = store.coordination
            is_enabled, auditor = coordination.is_enabled(), coordination.auditor()
            return is_enabled, auditor, ClusterView(present, writable, unlisted=unlisted)

        is_enabled, auditor, view = await self._client.call_store(read)
        if is_enabled is not self._was_enabled:
            self._was_enabled = is_enabled
            _log.info("autorecovery.resumed" if is_enabled else "autorecovery.paused")
        if not is_enabled:
            await self._stop_repairs()
            self.refreshed_s = loop.time()
            return self._options.refresh_interval_s
        audit = await self._state.audit.read()
        if view.writable - self._view.writable or view.present - self._view.present:
            self._order.bookies_came(began_s)
        gone = frozenset(audit.due) if auditor == audit.auditor else frozenset()
        self._view = replace(view, gone=gone - view.present)
        await self.marks.read(view.present)
        self._order.replace(self.marks.live_copies.items(), loop.time())
        copies = self.marks.live_copies
        self._grace = {one: since_s for one, since_s in self._grace.items() if one in copies}
        self._begin_repairs()
        self.refreshed_s = loop.time()
        return max(self._options.refresh_interval_s, (loop.time() - began_s) / REFRESH_SHARE)

    # --- repairs -----------------------------------------------------------------------------------------------

    def _begin_repairs(self) -> None:
        while len(self._repairs) < self._options.ledgers_at_once:
            ledger_id = self._order.take()
            if ledger_id is None:
                break
            task = asyncio.get_running_loop().create_task(self._repair(ledger_id))
            self._repairs[ledger_id] = task
            task.add_done_callback(lambda _, ended=ledger_id: self._ended(ended))  # type: ignore[misc]
        if self.marks.is_cut and not len(self._order):
            self._wake.set()  # there are more marks than were read

    def _ended(self, ledger_id: LedgerId) -> None:
        self._repairs.pop(ledger_id, None)
        self._order.leave(ledger_id)
        self._begin_repairs()

    async def _stop_repairs(self) -> None:
        tasks = list(self._repairs.values())
        self._order.replace((), 0.0)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _repair(self, ledger_id: LedgerId) -> None:
        """Repair one ledger under its lock."""
        loop, order = asyncio.get_running_loop(), self._order
        began_s, had_lock = loop.time(), False
        try:
            async with self._client.locks.hold(ledger_id, self._name) as lock:
                if lock is None:
                    due_s = began_s + LOCKED_RETRY_S
                    order.wait_until(ledger_id, due_s, "another worker has it", began_s)
                    return
                had_lock = True
                self.counts.attempts += 1
                await self._client.locks.run(lock, self._repair_locked(ledger_id))
        except Error as error:
            self.counts.lost_locks += isinstance(error, LockLost)
            self._count_fault(error)
            self._failed(ledger_id, str(error))
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the other repairs
            self._count_fault(error)
            self._failed(ledger_id, repr(error), error)
        if had_lock:
            self.counts.repair_ms.add(
                (loop.time() - began_s) * 1000, ok=ledger_id not in order.waiting
            )

    async def _repair_locked(self, ledger_id: LedgerId) -> None:
        loop = asyncio.get_running_loop()
        mark = await self._mark_of(ledger_id)
        if not mark.missing:
            self._order.done(ledger_id)
            return
        try:
            metadata = (await self._client.ledger_info(ledger_id)).metadata
        except NoSuchLedger:
            await self._forget(ledger_id, mark)
            return
        first_s = self._grace.get(ledger_id)
        may_close = first_s is not None and loop.time() - first_s >= self._options.grace_s
        view = self._view_of(mark)
        begun = self._begun.setdefault(ledger_id, {})
        for is_last in (False, True):
            procedure = RepairMarkedLedger(
                ledger_id, mark.missing, view, self._copying, may_close=may_close, begun=begun
            )
            try:
                repaired = await self._client.run_procedure(ledger_id, metadata, procedure)
            finally:
                done = procedure.repaired
                self.counts.entries_lost += done.lost_count
                self.counts.ledgers_closed += done.closed
                log_replacements(self._client.pool, ledger_id, "autorecovery", done.replacements)
                if not begun:
                    self._begun.pop(ledger_id, None)
            if is_last or not repaired.has_no_target:
                break
            if not await self.mending.make_room(ledger_id, view.gone):
                break
            mark = await self._mark_of(ledger_id)
        await self._settle(ledger_id, mark, metadata, repaired)

    def _view_of(self, mark: LedgerMark) -> ClusterView:
        """Return the view for one ledger: what Apache's auditor has marked has had its delay."""
        view = self._view
        apaches = {one.bookie_id for one in mark.missing if one.reason == APACHE_REASON}
        return replace(view, gone=view.gone | (apaches - view.present))

    async def _mark_of(self, ledger_id: LedgerId) -> LedgerMark:
        """Return the mark as it is now that the ledger is locked; one of Apache's only as it was listed."""
        mark = await self._client.marks.read(ledger_id)
        if mark.missing:
            return mark
        listed = self.marks.foreign.get(ledger_id)
        return mark if listed is None else listed

    async def _forget(self, ledger_id: LedgerId, mark: LedgerMark) -> None:
        await self._client.marks.update(ledger_id, remove=mark.missing)
        self._order.done(ledger_id)
        self._grace.pop(ledger_id, None)
        self._begun.pop(ledger_id, None)

    async def _settle(
        self,
        ledger_id: LedgerId,
        mark: LedgerMark,
        metadata: LedgerMetadata,
        repaired: MarkedLedgerRepaired,
    ) -> None:
        """Decide what becomes of a ledger after an attempt."""
        order, now_s = self._order, asyncio.get_running_loop().time()
        if repaired.is_deleted:
            await self._forget(ledger_id, mark)
        elif repaired.is_whole:
            order.done(ledger_id)
            self._grace.pop(ledger_id, None)
            self.counts.repaired += 1
            _log.info(
                "autorecovery.ledger_repaired",
                ledger_id=ledger_id,
                entries=repaired.entries,
                size_bytes=repaired.size_bytes,
                closed=repaired.closed,
            )
        elif repaired.is_stuck:
            self._park(ledger_id, metadata, repaired)
        elif repaired.left:
            self._failed(ledger_id, "; ".join(repaired.left[:3]))
        elif repaired.needs_grace:
            self._grace.setdefault(ledger_id, now_s)
            due_s = self._grace[ledger_id] + self._options.grace_s
            order.wait_until(
                ledger_id, max(due_s, now_s), "its writer may replace the bookie", now_s
            )
        else:
            reason = "the ledger is open"
            if repaired.waits_for:
                reason = f"waits for {_names(repaired.waits_for)}"
            order.wait_until(ledger_id, now_s + WAIT_RETRY_S, reason, now_s)

    def _park(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, repaired: MarkedLedgerRepaired
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        reason = "; ".join(repaired.left[:3]) or "no good copy is left"
        if metadata.write_quorum == 1:
            reason = f"its write quorum is 1: {reason}"
        if self._order.park(ledger_id, reason, now_s):
            _log.error("autorecovery.ledger_parked", ledger_id=ledger_id, reason=reason)

    def _count_fault(self, error: Exception) -> None:
        name = type(error).__name__
        self.counts.faults[name] = self.counts.faults.get(name, 0) + 1

    def _failed(self, ledger_id: LedgerId, reason: str, fault: Exception | None = None) -> None:
        self.counts.failures += 1
        pause_s = self._order.failed(ledger_id, reason, asyncio.get_running_loop().time())
        _log.warning(
            "autorecovery.repair_failed",
            ledger_id=ledger_id,
            reason=reason,
            retry_in_s=pause_s,
            failed=fault,
        )


def _names(bookies: Collection[BookieId]) -> str:
    return ", ".join(sorted(bookies))


LEDGERS_A_READ = 100


class MarkedLedgers:
    """What the last reading found, up to `LEDGERS_MAX` ledgers.

    Attributes:
        live_copies: of each marked ledger; 0 for one that is gone, whose mark is to be dropped.
        foreign: the marks that only Apache's AutoRecovery made.
        bytes_left: of the copies that are missing, estimated.
        is_cut: there are more marked ledgers.
        counts: of those that were read.
    """

    def __init__(self, client: Client) -> None:
        self.live_copies: dict[LedgerId, int] = {}
        self.foreign: dict[LedgerId, LedgerMark] = {}
        self.bytes_left = 0
        self.is_cut = False
        self.counts = MarkCounts()
        self._client = client
        self._turn = 0

    async def read(self, present: Collection[BookieId]) -> None:
        """Read all marks anew. `present`: bookies that are up.

        Where there are too many, each reading begins at another page: ledgers that wait must not hide the others.
        """
        if self.is_cut:
            self._turn = random.randrange(256)
        copies: dict[LedgerId, int] = {}
        foreign: dict[LedgerId, LedgerMark] = {}
        bytes_left, is_cut = 0, False
        counts = MarkCounts()
        async for page in self._client.marks.pages(self._turn):
            if len(copies) + len(page) > LEDGERS_MAX and copies:
                is_cut = True
                break
            for start in range(0, len(page), LEDGERS_A_READ):
                bytes_left += await self._read_ledgers(
                    page[start : start + LEDGERS_A_READ], present, copies, counts
                )
            for mark in page:
                if all(one.reason == APACHE_REASON for one in mark.missing):
                    foreign[mark.ledger_id] = mark
        self.live_copies, self.foreign = copies, foreign
        self.bytes_left, self.is_cut, self.counts = bytes_left, is_cut, counts

    async def _read_ledgers(
        self,
        marks: Sequence[LedgerMark],
        present: Collection[BookieId],
        copies: dict[LedgerId, int],
        counts: MarkCounts,
    ) -> int:
        """Note the live copies of these; return the bytes that they miss."""
        bytes_left, now_ms = 0, clock_ms()
        ids = [one.ledger_id for one in marks]
        found = await self._client.call_store(lambda store: store.read_ledgers(ids))
        for mark, read in zip(marks, found, strict=True):
            marked_ms = min(
                (one.marked_ms for one in mark.missing if one.marked_ms), default=now_ms
            )
            age_s = (now_ms - marked_ms) / 1000
            if isinstance(read, BadRecord):
                # it stays marked, and waits until somebody can read it
                counts.add(None, 0, 0, age_s)
            elif read is None:
                copies[mark.ledger_id] = 0
                counts.add(None, 0, 0, age_s)
            else:
                metadata, missing = read.metadata, mark.missing
                live = copies[mark.ledger_id] = live_copies(metadata, missing, present)
                counts.add(live, metadata.ack_quorum, metadata.write_quorum, age_s)
                bytes_left += sum(
                    share_bytes(metadata, one) for one in {each.bookie_id for each in missing}
                )
        return bytes_left
