"""Going over many ledgers, several at a time: how far it is, and which of them failed. For repairs of bookies."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import LedgerId

FAILURES_LISTED_MAX = 1000


@dataclass(slots=True)
class Progress:
    """How far it is.

    Attributes:
        ledgers, size_bytes: what there was to do when it began; bytes are an estimate from the metadata.
        ledgers_done, bytes_done, entries_copied, bytes_copied: what was done.
        entries_lost: of which no good copy is left anywhere.
        failed: ledgers that could not be done, and why (the first 1,000).
        done_through: all ledgers up to this id were done or have failed.
    """

    ledgers: int = 0
    size_bytes: int = 0
    ledgers_done: int = 0
    bytes_done: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    entries_lost: int = 0
    failed_count: int = 0
    failed: dict[LedgerId, str] = field(default_factory=dict)
    done_through: LedgerId = -1
    began_s: float = field(default_factory=time.monotonic)

    @property
    def is_whole(self) -> bool:
        """Whether every ledger was done, as far as this run has seen."""
        return self.failed_count == 0 and self.ledgers_done == self.ledgers

    def left_s(self) -> float | None:
        """Estimate the seconds that are left, None while nothing is known."""
        done = self.ledgers_done + self.failed_count
        if not done:
            return None
        # Bytes where they are known, ledgers where there are hardly any.
        share = done / max(1, self.ledgers)
        if self.size_bytes:
            share = min(share, max(self.bytes_done / self.size_bytes, 1e-9))
        return (time.monotonic() - self.began_s) * (1 - share) / share

    def count(self, ledger_id: LedgerId, reason: str) -> None:
        """Note that a ledger was done, or why it was not."""
        if not reason:
            self.ledgers_done += 1
            return
        self.failed_count += 1
        if len(self.failed) < FAILURES_LISTED_MAX:
            self.failed[ledger_id] = reason


P = TypeVar("P", bound=Progress)


async def go_over(
    progress: P,
    work: Sequence[tuple[LedgerId, int]],
    ledgers_at_once: int,
    one: Callable[[LedgerId], Awaitable[str]],
    on_progress: Callable[[P], None],
) -> P:
    """Do all of the work, which is (ledger id, estimated bytes) by rising id.

    `one` does a ledger and returns what could not be done of it, "" for nothing; a ledger that is deleted meanwhile is
    done, any other Error is its failure.
    """
    progress.ledgers = len(work)
    progress.size_bytes = sum(size_bytes for _, size_bytes in work)
    on_progress(progress)
    queue = deque(work)
    order = deque(ledger_id for ledger_id, _ in work)
    done: set[LedgerId] = set()

    async def worker() -> None:
        while queue:
            ledger_id, size_bytes = queue.popleft()
            try:
                reason = await one(ledger_id)
            except NoSuchLedger:
                reason = ""
            except Error as error:
                reason = str(error) or type(error).__name__
            progress.count(ledger_id, reason)
            progress.bytes_done += size_bytes
            done.add(ledger_id)
            while order and order[0] in done:
                progress.done_through = order.popleft()
                done.discard(progress.done_through)
            on_progress(progress)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(ledgers_at_once, len(work))):
            group.create_task(worker())
    return progress
