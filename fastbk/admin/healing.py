"""Healing by an operator: recovery of lost bookies (`fastbk bookie recover`), and repair of a running one.

AutoRecovery heals by itself (`fastbk.autorecovery`). Here an operator begins it: `fastbk bookie recover`,
`decommission` and `repair`, or a request over HTTP.

The work is done on many ledgers, several at a time (`run_on_ledgers`): `Progress` says how far it is, and which of them
failed. A ledger that waits for bookies that do not answer, or for another process's lock, is *parked*: its turn ends,
the others go on, and it is tried once more behind all of them. `LedgerLocks` keeps AutoRecovery's processes away from a
ledger meanwhile.

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

Repair (`fastbk bookie repair`) makes the copies of a running bookie whole again, from the other
replicas. The bookie is asked for all that it should hold of every ledger that names it, or of the
ranges that it has itself found damaged. What it cannot show is copied to it. A ledger in limbo
leaves it by itself once its bookie holds all that the metadata of the closed ledger says
(`fastbk/gc/limbo.py`). Ledgers are repaired by rising id, so an interrupted repair goes on behind
the last one that was done.

Decisions 54 and 107.
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
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fastbk.admin.bookie_identity import free_id
from fastbk.admin.cluster import Uncloseable, uncloseable_of
from fastbk.client import Client, LedgerInfo
from fastbk.client.ensembles import log_replacements
from fastbk.errors import ConfigError, Error, NoSuchLedger, NotEnoughBookies, QuorumTimeout
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.copy_check import (
    Range,
    fragments_naming,
    is_expected,
    share_bytes,
    verified_copies,
)
from fastbk.replication.ledger_repair import LedgerRepaired, RepairLedger
from fastbk.replication.re_replication import LedgerReReplicated, ReReplicateLedger
from fastbk.replication.repair_options import CopyRate, RepairOptions
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


_admin_log = LibraryLog("fastbk.admin")


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
        _admin_log.warning("repair.marks_stay", bookie_id=str(bookie_id), reason=str(error))
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
    """One run of the recovery of a bookie, or of several: then none of them is given what another one held."""

    def __init__(
        self,
        client: Client,
        bookie_ids: BookieId | Collection[BookieId],
        plan: RecoveryPlan | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._bookie_ids = (
            (bookie_ids,) if isinstance(bookie_ids, str) else tuple(dict.fromkeys(bookie_ids))
        )
        self._plan = RecoveryPlan() if plan is None else plan
        self._on_progress = on_progress
        repair = self._plan.repair.limited(self._plan.bytes_per_s)
        repair = replace(repair, distance=client.pool.known.distance)
        self.progress = Progress(rate=repair.rate)
        self._patience = Patience(repair)
        self._locks = LedgerLocks(client, self._plan.repair.patience_s)

    async def find(self) -> list[tuple[LedgerId, int]]:
        """Return (id, estimated bytes) of all ledgers that name the bookies: 100 bytes of memory a ledger."""
        found = []
        async for info in infos_of(self._client, self._plan.ledger_ids):
            if named := self._named(info.metadata):
                size_bytes = sum(share_bytes(info.metadata, bookie_id) for bookie_id in named)
                found.append((info.ledger_id, size_bytes))
        return sorted(found)

    def _named(self, metadata: LedgerMetadata) -> list[BookieId]:
        """Return those of the bookies that a ledger names."""
        return [one for one in self._bookie_ids if fragments_naming(metadata, one)]

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
            for bookie_id in self._bookie_ids:
                await remove_outdated_marks(self._client, bookie_id)
        return progress

    async def check_gone(self) -> None:
        """Raise ConfigError if a bookie is alive and the plan does not allow that."""
        if self._plan.even_if_alive:
            return
        alive = {bookie.service.bookie_id for bookie in await self._client.list_bookies()}
        if found := [one for one in self._bookie_ids if one in alive]:
            raise ConfigError(
                f"bookie {', '.join(found)} is alive: stop it first (when it was killed, its registration ends"
                " within half a minute); `fastbk bookie recover --even-if-alive` empties one that goes on running"
            )

    async def _one(self, ledger_id: LedgerId) -> Attempt:
        attempt = await self._locks.run(ledger_id, self._recovered)
        if not attempt.is_parked:
            return attempt
        # Whoever holds the lock may have named another bookie by now.
        metadata = (await self._client.ledger_info(ledger_id)).metadata
        return attempt if self._named(metadata) else Attempt()

    async def _recovered(self, ledger_id: LedgerId) -> Attempt:
        """Recover what the bookies held of a ledger, one after the other; the first reason is told."""
        client = self._client
        metadata = (await client.ledger_info(ledger_id)).metadata
        members = metadata.fragments[-1].ensemble
        is_written = not metadata.is_closed and not set(self._bookie_ids).isdisjoint(members)
        if is_written and self._plan.open_ledgers == "close":
            await self._close(ledger_id)
            metadata = (await client.ledger_info(ledger_id)).metadata
        attempt = Attempt()
        for bookie_id in self._named(metadata):
            repaired = await self._repaired(ledger_id, bookie_id, metadata)
            progress = self.progress
            progress.entries_copied += repaired.entries
            progress.bytes_copied += repaired.size_bytes
            progress.entries_lost += repaired.lost_count
            reason = "; ".join(f"from entry {first}: {why}" for first, why in repaired.left.items())
            unanswered = frozenset[BookieId]().union(*repaired.parked.values())
            self._patience.note(unanswered)
            if reason and not attempt.reason:
                attempt = Attempt(reason, repaired.is_parked, unanswered)
        return attempt

    async def _repaired(
        self, ledger_id: LedgerId, bookie_id: BookieId, metadata: LedgerMetadata
    ) -> LedgerReReplicated:
        client = self._client
        members = {member for each in metadata.fragments for member in each.ensemble}
        repair = self._patience.options(members.difference(self._bookie_ids))
        procedure = ReReplicateLedger(ledger_id, bookie_id, repair, avoid=self._bookie_ids)
        repaired = await client.run_procedure(ledger_id, metadata, procedure)
        log_replacements(client.pool, ledger_id, "repair", repaired.replacements)
        if repaired.is_whole:
            # Metadata names other bookies, whose copies were confirmed.
            verified = verified_copies(bookie_id, metadata)
            await client.marks.update(ledger_id, remove=verified)
        return repaired

    async def _close(self, ledger_id: LedgerId) -> None:
        """Give the writer its grace; if the ledger still waits for a bookie then, fence and close it."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._plan.grace_s
        while True:
            metadata = (await self._client.ledger_info(ledger_id)).metadata
            members = metadata.fragments[-1].ensemble
            if metadata.is_closed or set(self._bookie_ids).isdisjoint(members):
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
        repair = replace(repair, distance=client.pool.known.distance)
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
        repaired = await self._run_repair(ledger_id)
        progress = self.progress
        progress.entries_checked += repaired.checked
        progress.entries_copied += repaired.healed
        progress.bytes_copied += repaired.size_bytes
        progress.entries_lost += repaired.lost_count
        progress.open += repaired.is_open
        reasons = [f"from entry {first}: {why}" for first, why in repaired.left.items()]
        if repaired.lost_count:
            some = ", ".join(map(str, list(repaired.lost)[:5]))
            reasons.append(f"{repaired.lost_count} entries have no good copy left ({some})")
        if repaired.refused_count:
            some = ", ".join(map(str, repaired.refused[:5]))
            reasons.append(
                f"{repaired.refused_count} entries came to it with other bytes or a wrong digest, and stay so ({some})"
            )
        unanswered = frozenset[BookieId]().union(*repaired.parked.values())
        self._patience.note(unanswered)
        return Attempt("; ".join(reasons), repaired.is_parked, unanswered)

    async def _run_repair(self, ledger_id: LedgerId) -> LedgerRepaired:
        metadata = (await self._client.ledger_info(ledger_id)).metadata
        ranges = None if self._plan.ranges is None else self._plan.ranges[ledger_id]
        repair = self._patience.options(
            {bookie_id for each in metadata.fragments for bookie_id in each.ensemble}
        )
        procedure = RepairLedger(ledger_id, self._bookie_id, repair, ranges)
        try:
            repaired = await self._client.run_procedure(ledger_id, metadata, procedure)
        except (NotEnoughBookies, QuorumTimeout):
            # The bookie itself is silent: the other ledgers do not each wait as long for it.
            self._patience.note({self._bookie_id})
            raise
        if repaired.is_whole:
            verified = verified_copies(self._bookie_id, metadata, ranges)
            await self._client.marks.update(ledger_id, remove=verified)
        return repaired
