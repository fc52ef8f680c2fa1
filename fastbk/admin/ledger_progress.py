"""Work on many ledgers, for repairs of bookies: which ledgers, several at a time, how far it is,
and which of them failed.

A ledger that waits for bookies that do not answer, or for another process's lock, is *parked*: its
turn ends, the others go on, and it is tried once more behind all of them. `LedgerLocks` keeps
AutoRecovery's processes away from a ledger meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fastbk.client import Client, LedgerInfo
from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.copy_rate import CopyRate
from fastbk.replication.named_copies import is_expected
from fastbk.replication.repair_options import RepairOptions
from fastbk.retry import jittered

FAILURES_LISTED_MAX = 1000
ATTEMPTS_MAX = 2
"""A ledger that is parked so often stays so until the next run."""
TICK_S = 1.0
"""Progress is reported at least so often, also while nothing is done."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt at one ledger ended.

    Attributes:
        reason: why it is not whole; "": it is.
        is_parked: it can be done once bookies answer that did not, or another process's lock is free.
        unanswered: those bookies, as far as they are known.
    """

    reason: str = ""
    is_parked: bool = False
    unanswered: frozenset[BookieId] = frozenset()


class Patience:
    """How long a run waits for silent bookies: long once, so that ten thousand ledgers do not each wait anew."""

    def __init__(self, repair: RepairOptions) -> None:
        self._repair = repair
        self._silent: set[BookieId] = set()

    def note(self, bookie_ids: Collection[BookieId]) -> None:
        """These did not answer for as long as a ledger waits."""
        self._silent.update(bookie_ids)

    def options(self, members: Collection[BookieId]) -> RepairOptions:
        """Return the bounds for a ledger with these members."""
        if self._silent.isdisjoint(members):
            return self._repair
        patience_s = min(self._repair.patience_s, self._repair.patience_after_s)
        return replace(self._repair, patience_s=patience_s)


@dataclass(slots=True)
class Progress:
    """How far it is.

    Attributes:
        ledgers, size_bytes: what there was to do when it began; bytes are an estimate from the metadata.
        ledgers_done, bytes_done, entries_copied, bytes_copied: what was done.
        entries_lost: of which no good copy is left anywhere.
        failed: ledgers that could not be done, and why (the first 1,000).
        parked: ledgers that can be done once bookies answer that did not, or locks are free, and why (the first 1,000).
        waiting: ledgers that were parked once and are tried again behind the others.
        done_through: all ledgers up to this id were done, have failed, or are parked.
        rate: what the repairs share; it counts the bytes that they read, also within a ledger.
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
    parked_count: int = 0
    parked: dict[LedgerId, str] = field(default_factory=dict)
    waiting: int = 0
    done_through: LedgerId = -1
    began_s: float = field(default_factory=time.monotonic)
    rate: CopyRate = field(default_factory=CopyRate)
    _read_before: int = field(init=False)

    def __post_init__(self) -> None:
        self._read_before = self.rate.bytes_total

    @property
    def bytes_read(self) -> int:
        """How many bytes were read so far, of ledgers that are not done yet, too."""
        return self.rate.bytes_total - self._read_before

    @property
    def is_whole(self) -> bool:
        """Whether every ledger was done, as far as this run has seen."""
        return self.ledgers_done == self.ledgers

    @property
    def ended(self) -> int:
        """How many ledgers have come to their end in this run, good or bad."""
        return self.ledgers_done + self.failed_count + self.parked_count

    def left_s(self) -> float | None:
        """Estimate the seconds that are left, None while nothing is known."""
        # Bytes where they are known, ledgers where there are hardly any.
        shares = [self.ended / max(1, self.ledgers)] if self.ended else []
        if self.size_bytes:
            shares.append(min(1.0, max(self.bytes_done, self.bytes_read) / self.size_bytes))
        share = min(shares, default=0.0)
        if not share:
            return None
        return (time.monotonic() - self.began_s) * (1 - share) / share

    def count(self, ledger_id: LedgerId, attempt: Attempt) -> None:
        """Note that a ledger was done, or why it was not."""
        if not attempt.reason:
            self.ledgers_done += 1
            return
        self.parked_count += attempt.is_parked
        self.failed_count += not attempt.is_parked
        listed = self.parked if attempt.is_parked else self.failed
        if len(listed) < FAILURES_LISTED_MAX:
            listed[ledger_id] = attempt.reason


P = TypeVar("P", bound=Progress)


async def run_on_ledgers(
    progress: P,
    work: Sequence[tuple[LedgerId, int]],
    ledgers_at_once: int,
    one: Callable[[LedgerId], Awaitable[Attempt]],
    on_progress: Callable[[P], None],
) -> P:
    """Do all of the work, which is (ledger id, estimated bytes) by rising id.

    `one` does a ledger. One that is deleted meanwhile is done. An Error that may pass parks it, any other one fails it.
    No progress is reported when there is nothing to do.
    """
    progress.ledgers = len(work)
    progress.size_bytes = sum(size_bytes for _, size_bytes in work)
    if not work:
        return progress
    on_progress(progress)
    queue = deque((ledger_id, size_bytes, 1) for ledger_id, size_bytes in work)
    order = deque(ledger_id for ledger_id, _ in work)
    ended: set[LedgerId] = set()

    async def worker() -> None:
        while queue:
            ledger_id, size_bytes, number = queue.popleft()
            progress.waiting -= number > 1
            attempt = await _attempt(one, ledger_id)
            if attempt.is_parked and number < ATTEMPTS_MAX:
                progress.waiting += 1
                queue.append((ledger_id, size_bytes, number + 1))
                continue
            progress.count(ledger_id, attempt)
            progress.bytes_done += size_bytes
            ended.add(ledger_id)
            while order and order[0] in ended:
                progress.done_through = order.popleft()
                ended.discard(progress.done_through)
            on_progress(progress)

    ticking = asyncio.create_task(_tick(progress, on_progress))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(ledgers_at_once, len(work))):
                group.create_task(worker())
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
    return progress


async def _attempt(one: Callable[[LedgerId], Awaitable[Attempt]], ledger_id: LedgerId) -> Attempt:
    try:
        return await one(ledger_id)
    except NoSuchLedger:
        return Attempt()
    except Error as error:
        return Attempt(str(error) or type(error).__name__, is_parked=error.retryable)


async def _tick(progress: P, on_progress: Callable[[P], None]) -> None:
    """Report progress while ledgers are worked on: what is shown last must not be older than what was done."""
    while True:
        await asyncio.sleep(TICK_S)
        on_progress(progress)


_log = LibraryLog("fastbk.admin")


async def infos_of(
    client: Client, ledger_ids: Iterable[LedgerId] | None
) -> AsyncIterator[LedgerInfo]:
    """Yield these ledgers, or all. Raises NoSuchLedger for one that is named and not there."""
    if ledger_ids is None:
        async for info in client.list_ledgers():
            yield info
    else:
        for ledger_id in ledger_ids:
            yield await client.ledger_info(ledger_id)


async def remove_outdated_marks(client: Client, bookie_id: BookieId) -> int:
    """Remove the outdated marks of one bookie; return how many ledgers had some.

    A mark that cannot be read or changed, maybe of a ledger that never named the bookie, stays: reports show it, and it
    is no failure of what was copied.
    """
    try:
        return await _remove_outdated_marks(client, bookie_id)
    except Error as error:
        _log.warning("repair.marks_stay", bookie_id=str(bookie_id), reason=str(error))
        return 0


async def _remove_outdated_marks(client: Client, bookie_id: BookieId) -> int:
    removed = 0
    for mark in await client.marks.list():
        missing = [one for one in mark.missing if one.bookie_id == bookie_id]
        if not missing:
            continue
        try:
            metadata = (await client.ledger_info(mark.ledger_id)).metadata
            missing = [one for one in missing if not is_expected(metadata, one)]
        except NoSuchLedger:
            pass
        if missing:
            await client.marks.update(mark.ledger_id, remove=missing)
            removed += 1
    return removed


_POLL_S = 0.5


class LedgerLocks:
    """The locks of one run. A ledger that another process has locked is not waited for at its first turn."""

    def __init__(self, client: Client, patience_s: float) -> None:
        """`patience_s`: how long a ledger waits for its lock when its turn comes again."""
        self._client = client
        self._patience_s = patience_s
        self._tried: set[LedgerId] = set()

    async def run(
        self, ledger_id: LedgerId, work: Callable[[LedgerId], Coroutine[Any, Any, Attempt]]
    ) -> Attempt:
        """Work on a ledger under its lock; one whose lock cannot be had is parked.

        Raises LockLost, and what `work` raises.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (self._patience_s if ledger_id in self._tried else 0.0)
        while True:
            async with self._client.locks.hold(ledger_id, socket.gethostname()) as lock:
                if lock is not None:
                    self._tried.discard(ledger_id)
                    return await self._client.locks.run(lock, work(ledger_id))
            if loop.time() >= end_s:
                break
            await asyncio.sleep(jittered(_POLL_S))
        self._tried.add(ledger_id)
        holder = await self._client.locks.holder_of(ledger_id)
        reason = f"{holder or 'another process'} holds its lock and may be copying it: run this again later"
        return Attempt(reason, is_parked=True)
