"""`fastbk bookie repair`: makes the copies of a running bookie whole again, from the other replicas.

Of every ledger that names it (or of the ranges that it has itself found damaged) it is asked for all that it should
hold; what it cannot show is copied to it. A ledger in limbo leaves it by itself once its bookie holds all that the
metadata of the closed ledger says (`fastbk/gc/limbo.py`). Ledgers are looked at by rising id, so an interrupted repair
goes on behind the last one that was done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fastbk.admin.cluster import Uncloseable, uncloseable_of
from fastbk.admin.ledger_locks import LedgerLocks
from fastbk.admin.ledger_progress import (
    FAILURES_LISTED_MAX,
    Attempt,
    Patience,
    Progress,
    run_on_ledgers,
)
from fastbk.admin.ledger_references import remove_outdated_marks
from fastbk.client import Client
from fastbk.errors import ConfigError, NotEnoughBookies, QuorumTimeout
from fastbk.model.ids import BookieId, LedgerId
from fastbk.replication.copy_check import Range, fragments_naming, share_bytes, verified_copies
from fastbk.replication.ledger_repair import LedgerRepaired, RepairLedger
from fastbk.replication.repair_options import RepairOptions


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
        registered = {one.service.bookie_id for one in await self._client.list_bookies()}
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
        alive = {one.service.bookie_id for one in await self._client.list_bookies()}
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
