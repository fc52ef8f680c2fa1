"""Moving copies for an operator: `fastbk cluster rebalance`. Faults of placement are mended, then disks are evened out.

    rebalance = Rebalance(client, RebalanceOptions())
    outlook = await rebalance.plan()           # reads metadata twice, moves nothing
    progress = await rebalance.run()           # the same plan, over ledgers as they are now

`fastbk.client.placement_moves` plans. What is left to do is what metadata says, so a run that was stopped, or killed,
is simply made again: it plans from where copies are then. Two at once do no harm. Each holds the lock of the ledgers
that it works on, and a move is given up where metadata is not as it was planned from.

A bookie that does not take copies gets no more in this run, and the moves to it are given up. Ledgers that miss copies
are healing's: they are left. So are open ledgers, whose writers may change their bookies at any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fastbk.admin.cluster import bookie_states
from fastbk.admin.healing import TICK_S, Attempt, LedgerLocks, Patience, Progress
from fastbk.client import Client, LedgerInfo
from fastbk.client.placement_judge import PlacementJudge, read_judge
from fastbk.client.placement_moves import (
    PASSES_MAX,
    TOLERANCE,
    Disk,
    LedgerMoves,
    MovePlanner,
    move_copies,
)
from fastbk.errors import ConfigError, Error, MetadataUnavailable, NoSuchLedger
from fastbk.meta import MetadataStore
from fastbk.model.ids import BookieId, LedgerId
from fastbk.replication.repair_options import RepairOptions

JUDGE_AGE_MAX_S = 30.0
"""Rules and places of bookies are read again after so long: a run takes hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceOptions:
    """How to go about it.

    Attributes:
        faults_only: disks are left as uneven as they are.
        leaving: bookies that are to hold nothing in the end.
        tolerance: how far from its goal a bookie may be, as a share of that.
        ledgers_at_once: 1..64; each holds up to 8 MiB.
        seed: which copies are drawn.
    """

    faults_only: bool = False
    leaving: frozenset[BookieId] = frozenset()
    tolerance: float = TOLERANCE
    ledgers_at_once: int = 4
    seed: int = 0
    repair: RepairOptions = field(default_factory=RepairOptions)

    def __post_init__(self) -> None:
        if not 1 <= self.ledgers_at_once <= 64:
            raise ConfigError(f"ledgers_at_once={self.ledgers_at_once}: must be 1..64")
        if not 0 < self.tolerance < 1:
            raise ConfigError(f"tolerance={self.tolerance:g}: must be more than 0 and less than 1")


@dataclass(slots=True)
class Flow:
    """Copies that go from one bookie to another."""

    copies: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Outlook:
    """What a plan would do.

    Attributes:
        ledgers: closed ones. open: ledgers that are left as they are.
        moving: ledgers of which copies move. copies, size_bytes: that move.
        least_bytes: that have to move for even disks, if there were no rules.
        mended: misplaced fragments that get fewer faults. unmended: those for which no moves were found.
        flows: by the bookie that gives and the one that gets.
        before, after: bytes by bookie, as metadata has them.
    """

    ledgers: int = 0
    open: int = 0
    moving: int = 0
    copies: int = 0
    size_bytes: int = 0
    least_bytes: int = 0
    mended: int = 0
    unmended: int = 0
    flows: dict[tuple[BookieId, BookieId], Flow] = field(default_factory=dict)
    before: dict[BookieId, int] = field(default_factory=dict)
    after: dict[BookieId, int] = field(default_factory=dict)

    def add(self, planned: LedgerMoves) -> None:
        """Add a ledger."""
        self.ledgers += 1
        self.moving += bool(planned.moves)
        self.mended += planned.mended
        self.unmended += planned.unmended
        for move, size_bytes in zip(planned.moves, planned.size_bytes, strict=True):
            flow = self.flows.setdefault((move.source, move.target), Flow())
            flow.copies += 1
            flow.size_bytes += size_bytes
            self.copies += 1
            self.size_bytes += size_bytes


@dataclass(slots=True)
class MoveProgress(Progress):
    """How far it is. `active`: ledgers whose copies are being moved now."""

    active: set[LedgerId] = field(default_factory=set)


class Rebalance:
    """One run: a plan, and then perhaps its moves."""

    def __init__(
        self,
        client: Client,
        options: RebalanceOptions | None = None,
        on_progress: Callable[[MoveProgress], None] = lambda _: None,
    ) -> None:
        self._client = client
        chosen = RebalanceOptions() if options is None else options
        repair = replace(chosen.repair, distance=client.pool.known.distance)
        self._options = replace(chosen, repair=repair)
        self._on_progress = on_progress
        self._patience = Patience(self._options.repair)
        self._locks = LedgerLocks(client, 0.0)
        self._planner: MovePlanner | None = None
        self._unlisted: frozenset[BookieId] = frozenset()
        self.outlook = Outlook()
        self.progress = MoveProgress(rate=self._options.repair.rate)

    async def plan(self) -> Outlook:
        """Read all metadata and plan. Raises ConfigError for a leaving bookie that is not up."""
        judge, disks = await self._read_bookies()
        options = self._options
        if unknown := sorted(options.leaving - disks.keys()):
            raise ConfigError(
                f"{', '.join(unknown)}: does not answer, so nothing can be moved from there;"
                " `fastbk bookie decommission` copies what a stopped bookie held"
            )
        planner = self._planner = MovePlanner(
            judge,
            disks,
            leaving=options.leaving,
            faults_only=options.faults_only,
            seed=options.seed,
            tolerance=options.tolerance,
        )
        for bookie_id in judge.places.keys() - disks.keys():
            planner.leave_out(bookie_id)
        async for info in self._client.list_ledgers():
            planner.count(info.metadata)
        for _ in range(PASSES_MAX):
            outlook = Outlook(before=planner.held_bytes)
            planner.begin()
            async for info in self._client.list_ledgers():
                if info.metadata.is_closed:
                    outlook.add(planner.plan(info.metadata))
                else:
                    outlook.open += 1
            outlook.after = planner.planned_bytes
            outlook.least_bytes = 0 if options.faults_only else planner.least_bytes
            if options.faults_only or not planner.end():
                break
        self.outlook = outlook
        return outlook

    async def run(self) -> MoveProgress:
        """Move what the plan wants, ledger by ledger."""
        assert self._planner is not None, "plan first"
        progress, outlook = self.progress, self.outlook
        progress.ledgers, progress.size_bytes = outlook.moving, outlook.size_bytes
        progress.began_s = time.monotonic()
        if not outlook.moving:
            return progress
        self._planner.begin()
        judge_s = progress.began_s
        free = asyncio.Semaphore(self._options.ledgers_at_once)
        ticking = asyncio.create_task(self._tick())
        try:
            async with asyncio.TaskGroup() as group:
                async for info in self._client.list_ledgers():
                    if time.monotonic() - judge_s >= JUDGE_AGE_MAX_S:
                        judge_s = time.monotonic()
                        with suppress(MetadataUnavailable):  # what is known goes on to count
                            self._planner.judge_by(await self._client.call_store(read_judge))
                    planned = self._planner.plan(info.metadata)
                    if planned.moves:
                        await free.acquire()
                        task = group.create_task(self._moved(info, planned))
                        task.add_done_callback(lambda _: free.release())
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])
        # Ledgers that were deleted or made meanwhile change how many there are.
        progress.ledgers = progress.ended
        return progress

    async def _tick(self) -> None:
        while True:
            self._on_progress(self.progress)
            await asyncio.sleep(TICK_S)

    async def _read_bookies(self) -> tuple[PlacementJudge, Mapping[BookieId, Disk]]:
        judge = await self._client.call_store(read_judge)
        states = [state for state in await bookie_states(self._client, []) if state.state != "down"]
        sizes = {
            state.bookie_id: Disk(state.info.disk_total_bytes, state.info.disk_free_bytes)
            for state in states
            if state.info is not None and state.info.disk_total_bytes
        }
        # One that does not say how large it is counts as one of the others.
        usual = sorted(sizes.values(), key=lambda disk: disk.size_bytes)
        middle = usual[len(usual) // 2] if usual else Disk(1, 1)
        disks = {
            state.bookie_id: sizes.get(state.bookie_id, middle)
            for state in states
            if state.state != "silent"
        }

        def unlisted(store: MetadataStore) -> frozenset[BookieId]:
            services = [bookie.service for bookie in store.list_bookies()]
            return frozenset(each.bookie_id for each in services if each.endpoint() is None)

        self._unlisted = await self._client.call_store(unlisted)
        return judge, disks

    # --- one ledger --------------------------------------------------------------------------------------------

    async def _moved(self, info: LedgerInfo, planned: LedgerMoves) -> None:
        """Make the moves of a ledger; what happens to it ends no other one's."""
        self.progress.active.add(info.ledger_id)
        try:
            attempt = await self._locks.run(
                info.ledger_id, lambda ledger_id: self._move(ledger_id, planned)
            )
        except NoSuchLedger:
            attempt = Attempt()
        except Error as error:
            attempt = Attempt(str(error) or type(error).__name__, is_parked=error.retryable)
        if attempt.reason:
            assert self._planner is not None
            self._planner.give_up(zip(planned.moves, planned.size_bytes, strict=True))
        self.progress.active.discard(info.ledger_id)
        self.progress.bytes_done += sum(planned.size_bytes)
        self.progress.count(info.ledger_id, attempt)
        self._on_progress(self.progress)

    async def _move(self, ledger_id: LedgerId, planned: LedgerMoves) -> Attempt:
        client, progress = self._client, self.progress
        if (await client.marks.read(ledger_id)).missing:
            return Attempt("it misses copies: they are made first", is_parked=True)
        members = {member for move in planned.moves for member in (*move.ensemble, move.target)}
        repair = self._patience.options(members)
        done = await move_copies(
            client, ledger_id, planned.moves, repair, "rebalance", self._unlisted
        )
        progress.entries_copied += done.entries
        progress.bytes_copied += done.size_bytes
        progress.entries_lost += done.lost_count
        unanswered = frozenset[BookieId]().union(*done.parked.values())
        self._patience.note(unanswered)
        assert self._planner is not None
        for bookie_id in done.refusing:
            self._planner.leave_out(bookie_id)
        reason = "; ".join(f"from entry {first}: {why}" for first, why in done.left.items())
        # Entries that nobody has are found again by each run: that is no matter of time.
        return Attempt(reason, is_parked=not done.lost_count, unanswered=unanswered)
