"""Brings copies back: recovery of lost bookies (`fastbk bookie recover`), and repair of a running
one (`fastbk bookie repair`).

Recovery copies what a lost bookie held to others, ledger by ledger, and names them instead. What is
left to do is what metadata still names: an interrupted recovery is simply run again, and does only
the rest. Ledgers that were open when their bookie was lost get a grace period in which their
writers may replace it; then they are fenced and closed by recovery, which ends their writers (as
Apache's auto-recovery does, too). A ledger whose other holders do not answer is parked, with the
reason; the next run does it once they are back. So is one whose lock another process holds: its
copies are being made already.

Operators request recoveries over HTTP, too (`RequestedRecoveries`): one at a time, in the
background, as Apache's bookies do it. A request is not kept: a process that ends forgets it, and it
is simply made again.

Repair makes the copies of a running bookie whole again, from the other replicas. The bookie is
asked for all that it should hold of every ledger that names it, or of the ranges that it has itself
found damaged. What it cannot show is copied to it. A ledger in limbo leaves it by itself once its
bookie holds all that the metadata of the closed ledger says (`fastbk/gc/limbo.py`). Ledgers are
repaired by rising id, so an interrupted repair goes on behind the last one that was done.

Decisions 54 and 107.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fastbk.admin.bookie_identity import free_id
from fastbk.admin.cluster import Uncloseable, uncloseable_of
from fastbk.admin.ledger_progress import (
    FAILURES_LISTED_MAX,
    Attempt,
    LedgerLocks,
    Patience,
    Progress,
    infos_of,
    remove_outdated_marks,
    run_on_ledgers,
)
from fastbk.client import Client
from fastbk.client.ensembles import log_replacements
from fastbk.errors import ConfigError, Error, NotEnoughBookies, QuorumTimeout
from fastbk.model.ids import BookieId, LedgerId
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.copy_check import Range, fragments_naming, share_bytes, verified_copies
from fastbk.replication.ledger_repair import LedgerRepaired, RepairLedger
from fastbk.replication.re_replication import LedgerReReplicated, ReReplicateLedger
from fastbk.replication.repair_options import CopyRate, RepairOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """How to go about it.

    Attributes:
        bytes_per_s: of data copied, over all ledgers; 0 = as fast as it goes.
        ledgers_at_once: how many are worked on at the same time; each holds up to 8 MiB.
        open_ledgers: "close" those whose writers do not replace the bookie within `grace_s`, or "skip" them.
        even_if_alive: also for a bookie that is registered: it is being emptied, not lost.
        ledger_ids: only these ledgers; None: all.
    """

    bytes_per_s: float = 0.0
    ledgers_at_once: int = 4
    open_ledgers: str = "close"
    grace_s: float = 20.0
    even_if_alive: bool = False
    ledger_ids: tuple[LedgerId, ...] | None = None
    repair: RepairOptions = field(default_factory=RepairOptions)

    def __post_init__(self) -> None:
        if self.open_ledgers not in ("close", "skip"):
            raise ConfigError(f"open_ledgers={self.open_ledgers!r}: must be close or skip")
        if not 1 <= self.ledgers_at_once <= 64:
            raise ConfigError(f"ledgers_at_once={self.ledgers_at_once}: must be 1..64")
        if self.bytes_per_s < 0 or self.grace_s < 0:
            raise ConfigError("bytes_per_s and grace_s must not be negative")


class BookieRecovery:
    """One run of the recovery of one bookie."""

    def __init__(
        self,
        client: Client,
        bookie_id: BookieId,
        plan: RecoveryPlan | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._bookie_id = bookie_id
        self._plan = RecoveryPlan() if plan is None else plan
        self._on_progress = on_progress
        repair = self._plan.repair.limited(self._plan.bytes_per_s)
        self.progress = Progress(rate=repair.rate)
        self._patience = Patience(repair)
        self._locks = LedgerLocks(client, self._plan.repair.patience_s)

    async def find(self) -> list[tuple[LedgerId, int]]:
        """Return (id, estimated bytes) of all ledgers that name the bookie: 100 bytes of memory a ledger."""
        found = []
        async for info in infos_of(self._client, self._plan.ledger_ids):
            if fragments_naming(info.metadata, self._bookie_id):
                found.append((info.ledger_id, share_bytes(info.metadata, self._bookie_id)))
        return sorted(found)

    async def run(self) -> Progress:
        """Do it. Raises ConfigError if the bookie is alive and the plan does not allow that."""
        await self.check_gone()
        progress = await run_on_ledgers(
            self.progress,
            await self.find(),
            self._plan.ledgers_at_once,
            self._one,
            self._on_progress,
        )
        if self._plan.ledger_ids is None:
            await remove_outdated_marks(self._client, self._bookie_id)
        return progress

    async def check_gone(self) -> None:
        """Raise ConfigError if the bookie is alive and the plan does not allow that."""
        if self._plan.even_if_alive:
            return
        alive = {bookie.service.bookie_id for bookie in await self._client.list_bookies()}
        if self._bookie_id in alive:
            raise ConfigError(
                f"bookie {self._bookie_id} is alive: stop it first (when it was killed, its registration ends"
                " within half a minute); `fastbk bookie recover --even-if-alive` empties one that goes on running"
            )

    async def _one(self, ledger_id: LedgerId) -> Attempt:
        attempt = await self._locks.run(ledger_id, self._recovered)
        if not attempt.is_parked:
            return attempt
        # Whoever holds the lock may have named another bookie by now.
        metadata = (await self._client.ledger_info(ledger_id)).metadata
        return attempt if fragments_naming(metadata, self._bookie_id) else Attempt()

    async def _recovered(self, ledger_id: LedgerId) -> Attempt:
        repaired = await self._repaired(ledger_id)
        progress = self.progress
        progress.entries_copied += repaired.entries
        progress.bytes_copied += repaired.size_bytes
        progress.entries_lost += repaired.lost_count
        reason = "; ".join(f"from entry {first}: {why}" for first, why in repaired.left.items())
        unanswered = frozenset[BookieId]().union(*repaired.parked.values())
        self._patience.note(unanswered)
        return Attempt(reason, repaired.is_parked, unanswered)

    async def _repaired(self, ledger_id: LedgerId) -> LedgerReReplicated:
        client = self._client
        info = await client.ledger_info(ledger_id)
        metadata = info.metadata
        last = metadata.fragments[-1]
        is_written = not metadata.is_closed and self._bookie_id in last.ensemble
        if is_written and self._plan.open_ledgers == "close":
            await self._close(ledger_id)
            metadata = (await client.ledger_info(ledger_id)).metadata
        others = {one for each in metadata.fragments for one in each.ensemble} - {self._bookie_id}
        repair = self._patience.options(others)
        repaired = await client.run_procedure(
            ledger_id, metadata, ReReplicateLedger(ledger_id, self._bookie_id, repair)
        )
        log_replacements(client.pool, ledger_id, "repair", repaired.replacements)
        if repaired.is_whole:
            # Metadata names other bookies, whose copies were confirmed.
            verified = verified_copies(self._bookie_id, metadata)
            await client.marks.update(ledger_id, remove=verified)
        return repaired

    async def _close(self, ledger_id: LedgerId) -> None:
        """Give the writer its grace; if the ledger still waits for the bookie then, fence and close it."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._plan.grace_s
        while True:
            metadata = (await self._client.ledger_info(ledger_id)).metadata
            if metadata.is_closed or self._bookie_id not in metadata.fragments[-1].ensemble:
                return
            left_s = end_s - loop.time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(0.5, left_s))
        reader = await self._client.open_ledger(
            ledger_id, recovery=True, password=metadata.password or b""
        )
        await reader.close()


WAITING_MAX = 16
_log = LibraryLog("fastbk.autorecovery")


@dataclass(frozen=True, slots=True)
class RequestedRecovery:
    """One request. `frees_id`: its cookie and identity go once no ledger names it any more."""

    bookie_id: BookieId
    frees_id: bool
    even_if_alive: bool = False


class RequestedRecoveries:
    """The requests that wait, and the one that is worked on.

    Attributes:
        done, failed: how many ended so.
    """

    def __init__(self, client: Client, uri: str, rate: CopyRate) -> None:
        """`rate`: what is copied counts against it."""
        self.done = 0
        self.failed = 0
        self._client = client
        self._uri = uri
        self._rate = rate
        self._requests: deque[RequestedRecovery] = deque()
        self._came = asyncio.Event()

    @property
    def pending(self) -> int:
        """How many wait or are worked on."""
        return len(self._requests)

    def recover(self, bookie_ids: Sequence[BookieId], *, delete_cookie: bool) -> None:
        """Begin to empty these. Raises ConfigError if too many requests wait; then none of these is done."""
        # Several that are alive would be given each other's copies.
        even_if_alive = len(bookie_ids) == 1 and not delete_cookie
        self._add(
            [RequestedRecovery(bookie_id, delete_cookie, even_if_alive) for bookie_id in bookie_ids]
        )

    def decommission(self, bookie_id: BookieId) -> None:
        """Begin to empty this one, which is not running, and to free its id. Raises ConfigError as `recover`."""
        self._add([RequestedRecovery(bookie_id, frees_id=True)])

    def _add(self, requests: list[RequestedRecovery]) -> None:
        new = [request for request in requests if request not in self._requests]
        if len(self._requests) + len(new) > WAITING_MAX:
            raise ConfigError(f"{len(self._requests)} recoveries wait already: request this later")
        for one in new:
            _log.info(
                "autorecovery.recovery_requested", bookie=one.bookie_id, frees_id=one.frees_id
            )
        self._requests.extend(new)
        self._came.set()

    async def run(self) -> None:
        """Work until it is cancelled."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._requests:
                await self._try(self._requests[0])
                self._requests.popleft()

    async def _try(self, request: RequestedRecovery) -> None:
        try:
            await self._recover(request)
        except Error as error:
            self._fail(request, str(error))
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the other requests
            self._fail(request, repr(error), error)

    async def _recover(self, request: RequestedRecovery) -> None:
        if request.frees_id:
            # Ledgers that restored metadata does not list may have copies there only.
            await self._client.records.check_not_held()
        plan = RecoveryPlan(
            even_if_alive=request.even_if_alive,
            repair=RepairOptions(rate=self._rate, patience_s=20.0),
        )
        recovery = BookieRecovery(self._client, request.bookie_id, plan)
        progress = await recovery.run()
        left = progress.failed_count + progress.parked_count
        if not left and request.frees_id:
            left = len(await recovery.find())
        facts = {
            "ledgers": progress.ledgers_done,
            "entries": progress.entries_copied,
            "size_bytes": progress.bytes_copied,
            "entries_lost": progress.entries_lost,
        }
        if left:
            reasons = {**progress.failed, **progress.parked}
            some = "; ".join(f"ledger {one}: {why}" for one, why in list(reasons.items())[:3])
            self._fail(
                request, f"{left} ledgers still name it: {some or 'they were made meanwhile'}"
            )
            return
        if request.frees_id:
            await asyncio.to_thread(free_id, self._uri, request.bookie_id)
        self.done += 1
        _log.info("autorecovery.recovery_ended", bookie=request.bookie_id, **facts)

    def _fail(
        self, request: RequestedRecovery, reason: str, fault: Exception | None = None
    ) -> None:
        self.failed += 1
        _log.error(
            "autorecovery.recovery_failed", bookie=request.bookie_id, reason=reason, failed=fault
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """How to go about it.

    Attributes:
        bytes_per_s: of data read from the bookie, and of data copied to it, over all ledgers; 0 = as fast as it goes.
        ledgers_at_once: 1..64; each holds up to 8 MiB.
        after: only ledgers with higher ids; -1 = all.
        ranges: ledger id -> ids to look at, ascending; None: all that name the bookie, whole.
    """

    bytes_per_s: float = 0.0
    ledgers_at_once: int = 4
    after: LedgerId = -1
    ranges: Mapping[LedgerId, Sequence[Range]] | None = None
    repair: RepairOptions = field(default_factory=RepairOptions)

    def __post_init__(self) -> None:
        if not 1 <= self.ledgers_at_once <= 64:
            raise ConfigError(f"ledgers_at_once={self.ledgers_at_once}: must be 1..64")
        if self.bytes_per_s < 0:
            raise ConfigError("bytes_per_s must not be negative")


@dataclass(slots=True)
class RepairProgress(Progress):
    """How far it is.

    Attributes:
        open: ledgers of which the fragment that is being written was not looked at.
        entries_checked: that the bookie showed with a good digest.
        uncloseable: ledgers on it that too few registered bookies let be closed (the first 1,000), and how many.
    """

    open: int = 0
    entries_checked: int = 0
    uncloseable: list[Uncloseable] = field(default_factory=list)
    uncloseable_count: int = 0


class BookieRepair:
    """One run of the repair of one bookie."""

    def __init__(
        self,
        client: Client,
        bookie_id: BookieId,
        plan: RepairPlan | None = None,
        on_progress: Callable[[RepairProgress], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._bookie_id = bookie_id
        self._plan = RepairPlan() if plan is None else plan
        self._on_progress = on_progress
        repair = self._plan.repair.limited(self._plan.bytes_per_s)
        self.progress = RepairProgress(rate=repair.rate)
        self._patience = Patience(repair)
        self._locks = LedgerLocks(client, self._plan.repair.patience_s)

    async def find(self) -> list[tuple[LedgerId, int]]:
        """Return (id, estimated bytes) of the ledgers to look at, by rising id; note which cannot be closed."""
        plan, progress = self._plan, self.progress
        registered = {bookie.service.bookie_id for bookie in await self._client.list_bookies()}
        progress.uncloseable, progress.uncloseable_count = [], 0
        found = []
        async for info in self._client.list_ledgers():
            if info.ledger_id <= plan.after:
                continue
            if plan.ranges is not None and info.ledger_id not in plan.ranges:
                continue
            if fragments_naming(info.metadata, self._bookie_id):
                size_bytes = share_bytes(info.metadata, self._bookie_id)
                found.append((info.ledger_id, 0 if plan.ranges is not None else size_bytes))
                waits = uncloseable_of(info.ledger_id, info.metadata, registered)
                if waits is not None:
                    progress.uncloseable_count += 1
                    if len(progress.uncloseable) < FAILURES_LISTED_MAX:
                        progress.uncloseable.append(waits)
        return sorted(found)

    async def run(self) -> RepairProgress:
        """Do it. Raises ConfigError if the bookie is not up."""
        alive = {bookie.service.bookie_id for bookie in await self._client.list_bookies()}
        if self._bookie_id not in alive:
            raise ConfigError(
                f"bookie {self._bookie_id} is not up: start it; `fastbk bookie recover` copies what a bookie held that"
                " does not come back"
            )
        self.progress.done_through = self._plan.after
        progress = await run_on_ledgers(
            self.progress,
            await self.find(),
            self._plan.ledgers_at_once,
            partial(self._locks.run, work=self._repaired),
            self._on_progress,
        )
        if self._plan.ranges is None:
            await remove_outdated_marks(self._client, self._bookie_id)
        return progress

    async def _repaired(self, ledger_id: LedgerId) -> Attempt:
        healed = await self._healed(ledger_id)
        progress = self.progress
        progress.entries_checked += healed.checked
        progress.entries_copied += healed.healed
        progress.bytes_copied += healed.size_bytes
        progress.entries_lost += healed.lost_count
        progress.open += healed.is_open
        reasons = [f"from entry {first}: {why}" for first, why in healed.left.items()]
        if healed.lost_count:
            some = ", ".join(map(str, list(healed.lost)[:5]))
            reasons.append(f"{healed.lost_count} entries have no good copy left ({some})")
        if healed.refused_count:
            some = ", ".join(map(str, healed.refused[:5]))
            reasons.append(
                f"{healed.refused_count} entries came to it with other bytes or a wrong digest, and stay so ({some})"
            )
        unanswered = frozenset[BookieId]().union(*healed.parked.values())
        self._patience.note(unanswered)
        return Attempt("; ".join(reasons), healed.is_parked, unanswered)

    async def _healed(self, ledger_id: LedgerId) -> LedgerRepaired:
        metadata = (await self._client.ledger_info(ledger_id)).metadata
        ranges = None if self._plan.ranges is None else self._plan.ranges[ledger_id]
        repair = self._patience.options(
            {one for each in metadata.fragments for one in each.ensemble}
        )
        healing = RepairLedger(ledger_id, self._bookie_id, repair, ranges)
        try:
            healed = await self._client.run_procedure(ledger_id, metadata, healing)
        except (NotEnoughBookies, QuorumTimeout):
            # The bookie itself is silent: the other ledgers do not each wait as long for it.
            self._patience.note({self._bookie_id})
            raise
        if healed.is_whole:
            verified = verified_copies(self._bookie_id, metadata, ranges)
            await self._client.marks.update(ledger_id, remove=verified)
        return healed
