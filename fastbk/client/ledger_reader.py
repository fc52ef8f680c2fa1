"""The asyncio reader of one ledger: I/O around the read machines, prefetch, tailing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import TypeAlias

from fastbk.client.asking_lac import LacPoller, ask_all_lacs
from fastbk.client.bookie_pool import BookiePool
from fastbk.client.config import ClientConfig
from fastbk.client.entries import Batch, Entry
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    Error,
    NoSuchEntry,
    NotEnoughBookies,
    QuorumTimeout,
)
from fastbk.meta.api import VersionedLedger, Watch
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.native import client_codec as codec
from fastbk.replication.read_machine import LacMachine, Patience, ReadMachine, ReadRequest
from fastbk.wire.statuses import Status

Found: TypeAlias = list[tuple[EntryId, EntryId, memoryview]]

# How many runs of a striped ledger are asked for at the same time.
_STRIPED_PARTS = 8
_STRIPED_PART_ENTRIES = 64
# A bookie that failed is asked last for this long.
_AVOID_S = 5.0
_TRY_S_MIN = 0.25


class LedgerReader:
    """Reads one ledger; made by `Client.open_ledger`. Safe to share between tasks of one loop.

    Cancelling a call, or leaving an `async for`, withdraws it: a late answer is dropped by its request id.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        ledger_codec: codec.LedgerCodec,
        password: bytes,
        pool: BookiePool,
        config: ClientConfig,
        read_metadata: Callable[[LedgerId], Awaitable[VersionedLedger]],
        watch_ledger: Callable[[LedgerId, Callable[[], None]], Awaitable[Watch]],
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self._codec = ledger_codec
        self._password = password
        self._pool = pool
        self._config = config
        self._read_metadata = read_metadata
        self._watch_ledger = watch_ledger
        self._lac: EntryId = metadata.last_entry_id
        self._avoid: dict[BookieId, float] = {}
        self._prefer = random.randrange(1 << 16)
        self._replicas_skipped = 0
        self._closed = False

    # --- LAC ---------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self.metadata.is_closed

    @property
    def last_known(self) -> EntryId:
        """The highest entry that this reader knows to be acknowledged; no I/O."""
        return self._lac

    async def last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask the bookies for the last acknowledged entry, -1 if there is none; only good digests count.

        Returns once the answers must contain every LAC that anybody has seen. A closed ledger needs no asking.
        While too many bookies are away or busy it goes on asking until the time is over.
        """
        self._check()
        if self.metadata.is_closed:
            return self._lac
        limit_s = self._config.read_timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        patience = Patience(self._config.backoff_min, self._config.backoff_max, end_s)
        machine = LacMachine(self.metadata)
        while True:
            left_s = max(0.001, end_s - loop.time())
            await ask_all_lacs(self._pool, self._codec, self._password, machine, left_s)
            if machine.is_covered:
                break
            said = dict(machine.said)
            pause_s = patience.pause_s(machine, loop.time())
            if pause_s is None:
                raise NotEnoughBookies(
                    f"ledger {self.ledger_id}: too few bookies told their LAC; try again",
                    ledger_id=self.ledger_id,
                    replicas=said,
                )
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.0))
            self._check()
        self._lac = max(self._lac, machine.last_add_confirmed)
        return self._lac

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Yield the entries first..last in order; `last` None: up to the last acknowledged one known now.

        Raises NoSuchEntry for ids beyond that, and what `DigestMismatch` and `NotEnoughBookies` say.
        """
        async with contextlib.aclosing(self.read_batches(first, last)) as batches:
            async for batch in batches:
                for one in batch:
                    yield one

    async def read_batches(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[Batch, None]:
        """Like `read`, a Batch of consecutive entries at a time: the fast way."""
        end = await self._last_readable(first, last)
        if end < first:
            return
        queue: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue(
            max(1, self._config.prefetch_batches - 1)
        )
        task = asyncio.get_running_loop().create_task(self._fill(queue, first, end))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _fill(
        self, queue: asyncio.Queue[Batch | BaseException | None], first: EntryId, last: EntryId
    ) -> None:
        try:
            async with contextlib.aclosing(self._batches(first, last)) as batches:
                async for batch in batches:
                    await queue.put(batch)
            await queue.put(None)
        except Exception as error:  # noqa: BLE001 - whoever reads waits for it, whatever it is
            await queue.put(error)

    async def _last_readable(self, first: EntryId, last: EntryId | None) -> EntryId:
        self._check()
        if first < 0 or (last is not None and last < first):
            raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")
        known = self._lac
        if (last is None or last > known) and not self.metadata.is_closed:
            known = await self.last_add_confirmed()
        if last is None:
            return known
        if last > known:
            raise NoSuchEntry(
                f"ledger {self.ledger_id}: entry {last} is beyond the last acknowledged one, {known};"
                " wait for it with tail(), or use read_unconfirmed()",
                ledger_id=self.ledger_id,
                entry_id=last,
            )
        return last

    async def _batches(self, first: EntryId, last: EntryId) -> AsyncGenerator[Batch, None]:
        """Yield the range in order; a striped ledger's is read in parts at the same time."""
        if self.metadata.ensemble_size == self.metadata.write_quorum:
            machine = self._machine(first, last)
            while found := await self._next(machine):
                yield Batch(self.ledger_id, found)
            return
        loop = asyncio.get_running_loop()
        step = _STRIPED_PARTS * _STRIPED_PART_ENTRIES
        for start in range(first, last + 1, step):
            tasks = [
                loop.create_task(self._all(part, min(part + _STRIPED_PART_ENTRIES - 1, last)))
                for part in range(start, min(start + step, last + 1), _STRIPED_PART_ENTRIES)
            ]
            try:
                for task in tasks:
                    yield Batch(self.ledger_id, await task)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _all(self, first: EntryId, last: EntryId) -> Found:
        machine = self._machine(first, last)
        everything: Found = []
        while found := await self._next(machine):
            everything += found
        return everything

    def _machine(self, first: EntryId, last: EntryId) -> ReadMachine:
        now_s = asyncio.get_running_loop().time()
        avoid = [bookie for bookie, until_s in self._avoid.items() if until_s > now_s]
        return ReadMachine(
            self.ledger_id, self.metadata, first, last, prefer=self._prefer, avoid=avoid
        )

    async def _next(self, machine: ReadMachine, timeout: float | None = None) -> Found:
        """Return the next entries of the machine's range, [] at its end; raises its error.

        While bookies are only away or busy it goes on asking until the time is over.
        """
        loop = asyncio.get_running_loop()
        limit_s = self._config.read_timeout if timeout is None else timeout
        end_s = loop.time() + limit_s
        patience = Patience(self._config.backoff_min, self._config.backoff_max, end_s)
        while True:
            while (request := machine.next_request()) is not None:
                left_s = end_s - loop.time()
                if left_s <= 0:
                    raise QuorumTimeout(
                        f"ledger {self.ledger_id}: entry {machine.position} was not read within {limit_s:g} s",
                        ledger_id=self.ledger_id,
                        entry_id=machine.position,
                        outcome="not_written",
                    )
                # One replica must not use up the time of all: a stopped process accepts and never answers.
                share_s = max(_TRY_S_MIN, left_s / (self.metadata.write_quorum + 1))
                found = await self._ask(machine, request, min(left_s, share_s))
                if found:
                    return found
            error = machine.error
            if error is None:
                return []
            pause_s = patience.pause_s(machine, loop.time())
            if pause_s is None:
                raise error
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.0))
            self._check()

    async def _ask(self, machine: ReadMachine, request: ReadRequest, timeout_s: float) -> Found:
        config = self._config
        try:
            answer = await self._pool.peer(request.bookie_id).request(
                lambda request_id: codec.put_read_batch(
                    request_id,
                    self.ledger_id,
                    request.first,
                    request.last,
                    config.read_batch_entries,
                    config.read_batch_bytes,
                ),
                timeout_s,
            )
        except Error as error:
            self._avoid_for_now(request.bookie_id)
            machine.unreached(request.bookie_id, error)
            return []
        if answer.status != Status.OK:
            machine.refused(request.bookie_id, answer.status)
            return []
        found = self._codec.check_entries(answer.entries, answer.extra)
        taken = machine.answered(
            request.bookie_id,
            [one[0] for one in found],
            request.last,
            damaged=len(found) < len(answer.extra) // 4,
        )
        self._replicas_skipped += machine.replicas_skipped
        machine.replicas_skipped = 0
        if taken:
            self._avoid.pop(request.bookie_id, None)
            # Each entry carries the LAC of its time.
            self._lac = max(self._lac, found[taken - 1][1])
        return found[:taken]

    def _avoid_for_now(self, bookie_id: BookieId) -> None:
        self._avoid[bookie_id] = asyncio.get_running_loop().time() + _AVOID_S

    async def read_unconfirmed(
        self, first: EntryId, last: EntryId, *, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries first..last that bookies hold, acknowledged or not, up to the first that is missing.

        What lies beyond the LAC may not be there later: a recovery may cut it off.
        """
        self._check()
        if not 0 <= first <= last:
            raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")
        entries: list[Entry] = []
        machine = self._machine(first, last)
        try:
            while found := await self._next(machine, timeout):
                entries += [Entry(self.ledger_id, entry_id, data) for entry_id, _, data in found]
        except NoSuchEntry:
            pass
        return entries

    # --- tailing -----------------------------------------------------------------------------------------------

    async def tail(self, first: EntryId = 0) -> AsyncGenerator[Entry, None]:
        """Yield entries from `first` on as they are acknowledged, for ever; ends after the last one of a closed ledger.

        Waits by long polls. When no bookie answers for `read_timeout`, raises NotEnoughBookies.
        """
        self._check()
        changed = asyncio.Event()
        watch: Watch | None = None
        if not self.metadata.is_closed:
            watch = await self._watch_ledger(self.ledger_id, changed.set)
            changed.set()
        try:
            async with contextlib.aclosing(self._follow(first, changed)) as entries:
                async for entry in entries:
                    yield entry
        finally:
            if watch is not None:
                watch.close()

    async def _follow(
        self, position: EntryId, changed: asyncio.Event
    ) -> AsyncGenerator[Entry, None]:
        poller = LacPoller(self._pool, self._codec, self._password, self._config)
        loop = asyncio.get_running_loop()
        turn, heard_s = self._prefer, loop.time()
        while True:
            if changed.is_set() and not self.metadata.is_closed:
                changed.clear()
                self._see((await self._read_metadata(self.ledger_id)).metadata)
            if self._lac >= position:
                async with contextlib.aclosing(self.read(position, self._lac)) as entries:
                    async for entry in entries:
                        position = entry.entry_id + 1
                        yield entry
                heard_s = loop.time()
                continue
            if self.metadata.is_closed:
                return
            ensemble = self.metadata.fragments[-1].ensemble
            news = await poller.poll(ensemble[turn % len(ensemble)], position)
            self._lac = max(self._lac, news.last_add_confirmed)
            if news.trouble is None:
                heard_s = loop.time()
            elif loop.time() - heard_s > self._config.read_timeout:
                raise NotEnoughBookies(
                    f"ledger {self.ledger_id}: no bookie answered the tailing reader: {news.trouble};"
                    " tail again from the last entry seen",
                    ledger_id=self.ledger_id,
                    entry_id=position,
                )
            if news.data is not None:
                yield Entry(self.ledger_id, position, news.data)
                position += 1
            elif self._lac < position:
                # Another bookie may know more, and the ledger may be closed.
                turn += 1
                changed.set()
                if not news.waited:
                    await asyncio.sleep(self._config.backoff_min)

    def _see(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        if metadata.is_closed:
            self._lac = metadata.last_entry_id

    # --- the rest ----------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Return this reader's figures: `replicas_skipped` copies were missing, damaged or not to be had."""
        return {"last_known": self._lac, "replicas_skipped": self._replicas_skipped}

    def _check(self) -> None:
        if self._closed or self._pool.is_closed:
            raise ClientClosed(
                "this reader is closed: open the ledger again", ledger_id=self.ledger_id
            )

    async def close(self) -> None:
        """Take no more calls."""
        self._closed = True

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
