"""`fastbk bookie recover`: copies what a lost bookie held to others, ledger by ledger, and names them instead.

What is left to do is what metadata still names: an interrupted recovery is simply run again, and does only the rest.
Ledgers that were open when their bookie was lost get a grace period in which their writers may replace it; then they
are fenced and closed by recovery, which ends their writers (as Apache's auto-recovery does, too).

A ledger whose other holders do not answer is parked, with the reason; the next run does it once they are back. So is
one whose lock another process holds: its copies are being made already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from fastbk.admin.ledger_locks import LedgerLocks
from fastbk.admin.ledger_progress import Attempt, Patience, Progress, run_on_ledgers
from fastbk.admin.ledger_references import infos_of, remove_outdated_marks
from fastbk.client import Client
from fastbk.client.ensembles import log_replacements
from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId, LedgerId
from fastbk.replication.copy_check import fragments_naming, share_bytes, verified_copies
from fastbk.replication.re_replication import LedgerReReplicated, ReReplicateLedger
from fastbk.replication.repair_options import RepairOptions


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
        alive = {one.service.bookie_id for one in await self._client.list_bookies()}
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
