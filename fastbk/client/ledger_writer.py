"""The asyncio writer of one ledger: admission, deadlines and close around the pipe."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from fastbk.client.add_pipe import Waiter, pipe_of
from fastbk.client.async_tools import TAKEN_AWAY, may_end_quietly
from fastbk.client.config import ClientConfig
from fastbk.client.explicit_lac_sender import LacGuard
from fastbk.client.ledger_options import wrong_use_of_ids
from fastbk.client.runner import LedgerIo, run
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    DuplicateEntryId,
    Error,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    QuorumTimeout,
)
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.meter import SENT, Figures, Latency, Meter, Source, duration_figures, sending
from fastbk.option_checks import checked_integer, checked_timeout, owned_bytes, owned_list
from fastbk.replication.add_machine import AddMachine, too_large
from fastbk.replication.writer_machine import WriterMachine

Data: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")


CALLS_PER_TURN = 64
"""So many calls of `ready` may return without letting other tasks run."""


def called_by(appending: Coroutine[Any, Any, T], name: str) -> Coroutine[Any, Any, T]:
    """Name what an append returns by the line that called it.

    An append that nobody awaits does nothing. Python warns of such a coroutine by its name, and knows itself only the
    line that lets it go.
    """
    caller = sys._getframe(2)
    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    appending.__qualname__ = f"{name} (called at {place})"  # type: ignore[attr-defined]
    return appending


class LedgerWriter:
    """Appends to one ledger; made by `Client.create_ledger`. Safe to share between tasks of one loop.

    Cancellation, also in fastbk/client/README.md:

    | cancelled call | what was sent | the entry |
    |---|---|---|
    | `append`, `append_many` while they wait for room | nothing of what had no room | does not exist |
    | `append` after that | the entry stays in the pipe, in its place | outcome unknown to the caller |
    | `append_many` after that | what was admitted stays in the pipe | outcome unknown to the caller |
    | a future of `append_nowait` | as above: cancelling it withdraws nothing | outcome unknown to the caller |
    | `flush`, `force`, `ready` | nothing changes | as before |
    | `close` | the writer takes no more adds; call `close` again to finish | as before |

    A `timeout` that passes is the same with QuorumTimeout in place of CancelledError. Other adds, their order and the
    connections are never affected.

    Leaving an `async with` block closes the ledger. It raises LedgerFenced and NoSuchLedger only if no call has raised
    it before; `close` always does.
    """

    def __init__(
        self, machine: WriterMachine, io: LedgerIo, config: ClientConfig, *, explicit_ids: bool
    ) -> None:
        self.ledger_id = io.ledger_id
        self.has_explicit_ids = explicit_ids
        self._io = io
        self._config = config
        self._entries_max = config.entries_in_flight_max
        self._loop = asyncio.get_running_loop()
        self._blocked: Error | None = None
        self._is_reported = False  # by a call: another client has the ledger, or has deleted it
        self._room: deque[asyncio.Future[None]] = deque()
        # Whoever waits for room holds the gate; meanwhile nobody may pass.
        self._gate = asyncio.Lock()
        self._gated = 0
        self._ready_calls = 0
        self._done = False
        self._held: ReorderBuffer[asyncio.Future[EntryId]] | None = None
        if explicit_ids:
            self._held = ReorderBuffer(
                self.ledger_id, config.entries_in_flight_max, config.bytes_in_flight_max
            )
        self._machine = machine
        self._adds = machine.adds
        self._pipe = pipe_of(machine, io, config, self._progressed)
        self._source: Source | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last read or wrote it."""
        return self._machine.known.metadata

    # --- appending ---------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        pipe = self._pipe
        state = f"next entry {pipe.next_entry_id}, {pipe.entries_in_flight} not acknowledged"
        return f"<LedgerWriter of ledger {self.ledger_id}: {state if self._blocked is None else self._blocked}>"

    def append_nowait(
        self, data: Data, *, entry_id: EntryId | None = None
    ) -> asyncio.Future[EntryId]:
        """Admit an entry and return a future of its id, resolved when the ack quorum has it, in entry order.

        Raises BufferFull when the bounds are reached (await `ready()`), or what ended the writer. For `entry_id` see
        `append`.
        """
        if type(data) is not bytes:
            data = owned_bytes(data)
        if self._blocked is not None:
            raise self._reported(self._blocked)
        if self._held is not None or entry_id is not None:
            return self._hold(data, entry_id)
        size, pipe = len(data), self._pipe
        if self._gated or not self._has_room(size):
            raise BufferFull(
                f"ledger {self.ledger_id}: {pipe.entries_in_flight} entries of {pipe.bytes_in_flight} bytes are in"
                " flight; await ready()"
            )
        if size > pipe.data_bytes_max:
            self._check_size(size)
        return pipe.admit_one(data, size)

    def append(
        self, data: Data, *, entry_id: EntryId | None = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, EntryId]:
        """Append one entry, and return its id once the ack quorum has it durably. To be awaited, or made a task.

        Waits for room first. `timeout` covers all of it; without one the client's append_timeout ends the writer.
        A failed append ends the writer: nothing behind it is ever acknowledged. For cancellation see the class.

        `entry_id`: the id to use, with a writer that was made with `explicit_ids`, and only there. Ids may come in any
        order; one that comes early is held until all below it are there. Raises DuplicateEntryId for one that was
        used, BufferFull when too much is held, QuorumTimeout when those below it did not come within append_timeout:
        it is still held then, and the writer goes on.
        """
        if type(data) is not bytes:
            data = owned_bytes(data)
        limit_s = checked_timeout(timeout)
        if limit_s is None:
            return called_by(self._append(data, entry_id), "LedgerWriter.append")
        return called_by(self._append_within(data, entry_id, limit_s), "LedgerWriter.append")

    async def _append(self, data: bytes, entry_id: EntryId | None) -> EntryId:
        try:
            if self._held is not None or entry_id is not None or self._blocked is not None:
                return await self._acknowledged(
                    self.append_nowait(data, entry_id=entry_id), entry_id
                )
            size = len(data)
            if self._gated or not self._has_room(size) or size > self._pipe.data_bytes_max:
                return await self._append_in_turn(data)
            return await self._pipe.admit_one(data, size)
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    async def _acknowledged(
        self, future: asyncio.Future[EntryId], entry_id: EntryId | None
    ) -> EntryId:
        """Wait for an entry that may be held for others before it, which may never come."""
        limit_s = self._config.append_timeout
        try:
            await asyncio.wait([future], timeout=limit_s)
        except asyncio.CancelledError:
            future.cancel()
            raise
        first = self._pipe.next_entry_id
        if future.done() or entry_id is None or entry_id < first:
            return await future  # what was sent ends by the limit of the pipe
        raise QuorumTimeout(
            f"ledger {self.ledger_id}: entry {entry_id} waits for entry {first}, which did not come within"
            f" {limit_s:g} s. It is held until then: append entry {first}",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
            outcome="not_written",
        )

    async def _append_within(
        self, data: bytes, entry_id: EntryId | None, timeout_s: float
    ) -> EntryId:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._append(data, entry_id)
        except TimeoutError:
            raise self._too_late(timeout_s) from None

    def _too_late(self, timeout: float) -> QuorumTimeout:
        return QuorumTimeout(
            f"ledger {self.ledger_id}: what was appended was not acknowledged within {timeout:g} s;"
            " it stays in the pipe, so read before appending it again",
            ledger_id=self.ledger_id,
            replicas=self._adds.trouble(),
        )

    async def _append_in_turn(self, data: bytes) -> EntryId:
        self._check_size(len(data))
        self._gated += 1
        try:
            async with self._gate:
                await self._wait_for_room(len(data))
                future = self._pipe.admit_one(data, len(data))
        finally:
            self._gated -= 1
        return await future

    def _check_size(self, size: int) -> None:
        if size > self._pipe.data_bytes_max:
            raise too_large(self.ledger_id, size, self._pipe.data_bytes_max)

    def _hold(self, data: bytes, entry_id: EntryId | None) -> asyncio.Future[EntryId]:
        held = self._held
        if held is None or entry_id is None:
            raise wrong_use_of_ids(self.ledger_id, entry_id)
        self._check_size(len(data))
        future: asyncio.Future[EntryId] = self._loop.create_future()
        held.hold(entry_id, self._pipe.next_entry_id, data, future)
        self._send_held(held)
        return future

    def _send_held(self, held: ReorderBuffer[asyncio.Future[EntryId]]) -> None:
        """Admit what is next, and all behind it that is there, as far as there is room."""
        pipe = self._pipe
        while (size := held.size_of(pipe.next_entry_id)) is not None and self._has_room(size):
            data, future = held.pop(pipe.next_entry_id)
            pipe.admit_one(data, size).add_done_callback(partial(_pass_on, future))

    def admit(self, datas: list[bytes], size: int, waiter: Waiter) -> None:
        """Take entries of `size` bytes in all, for `fastbk.sync`, which has checked size and room.

        What has ended the writer is given to `waiter`.
        """
        if self._blocked is None:
            self._pipe.admit(datas, size, waiter, None)
            return
        error = self._blocked.copy()
        error.outcome = "not_written"
        waiter.set_exception(error)

    def append_many(
        self, datas: Sequence[Data], *, timeout: float | None = None
    ) -> Coroutine[Any, Any, tuple[EntryId, EntryId]]:
        """Append entries with consecutive ids; return the first and the last id once all are acknowledged.

        Not atomic: after a failure or cancellation a prefix may be written. More than the bounds allow is admitted
        in pieces, and no other append gets in between. To be awaited, or made a task.
        """
        limit_s, owned = checked_timeout(timeout), owned_list(datas, "datas")
        if not owned:
            raise ConfigError("append_many needs at least one entry")
        return called_by(self._append_many(owned, limit_s), "LedgerWriter.append_many")

    async def _append_many(
        self, owned: list[bytes], timeout_s: float | None
    ) -> tuple[EntryId, EntryId]:
        if timeout_s is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._append_many(owned, None)
            except TimeoutError:
                raise self._too_late(timeout_s) from None
        if self._held is not None:
            raise wrong_use_of_ids(self.ledger_id, None)
        for data in owned:
            self._check_size(len(data))
        if self._blocked is not None:
            raise self._reported(self._blocked)
        piece, size = self._piece(owned, 0)
        try:
            if not self._gated and len(piece) == len(owned) and self._has_room(size):
                return await self._pipe.admit_many(owned, size)
            return await self._append_in_pieces(owned)
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    async def _append_in_pieces(self, owned: list[bytes]) -> tuple[EntryId, EntryId]:
        self._gated += 1
        try:
            async with self._gate:
                first = self._pipe.next_entry_id
                offset = 0
                while True:
                    await self._wait_for_room(len(owned[offset]))
                    piece, size = self._piece(owned, offset)
                    future = self._pipe.admit_many(piece, size)
                    offset += len(piece)
                    if offset == len(owned):
                        break
                    # Only the last piece's answer is awaited: acks come in order, and so do failures.
                    future.add_done_callback(_seen)
        finally:
            self._gated -= 1
        _, last = await future
        return first, last

    def _piece(self, owned: list[bytes], at: int) -> tuple[list[bytes], int]:
        """Return what has room of `owned[at:]`, at least one entry, and its bytes."""
        config = self._config
        entries = config.entries_in_flight_max - self._pipe.entries_in_flight
        room = config.bytes_in_flight_max - self._pipe.bytes_in_flight
        piece = [owned[at]]
        size = len(owned[at])
        for data in owned[at + 1 : at + max(1, entries)]:
            if size + len(data) > room:
                break
            piece.append(data)
            size += len(data)
        return piece, size

    # --- room --------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Return whether `append_nowait` takes so many bytes now."""
        return not self._gated and self._has_room(size)

    def _has_room(self, size: int) -> bool:
        pipe = self._pipe
        entries = pipe.next_entry_id - self._adds.head
        return entries == 0 or (
            entries < self._entries_max
            and pipe.bytes_in_flight + size <= self._config.bytes_in_flight_max
        )

    async def room(self, size: int) -> None:
        """Return when `size` bytes have room, for `fastbk.sync`; raises what ended the writer."""
        async with self._gate:
            await self._wait_for_room(size)

    async def ready(self) -> None:
        """Return when `append_nowait` has room for an entry of ordinary size; raises what ended the writer.

        Lets other tasks run now and then while there is room, too: a loop of `ready` and `append_nowait` stalls none.
        """
        self._ready_calls += 1
        if self._ready_calls % CALLS_PER_TURN == 0:
            await asyncio.sleep(0)
        async with self._gate:
            await self._wait_for_room(1)

    async def _wait_for_room(self, size: int) -> None:
        while True:
            if self._blocked is not None:
                raise self._reported(self._blocked)
            if self._has_room(size):
                return
            future: asyncio.Future[None] = self._loop.create_future()
            self._room.append(future)
            try:
                await future
            finally:
                if future in self._room:
                    self._room.remove(future)

    def _reported(self, ended: Error) -> Error:
        """Return what has ended the writer, for a call that raises it."""
        self._is_reported = self._is_reported or isinstance(ended, TAKEN_AWAY)
        return ended.copy()

    def _progressed(self) -> None:
        """The head has moved, or the writer has ended."""
        failure = self._adds.failure
        if failure is not None:
            if self._blocked is None:
                self._blocked = failure
            self._give_up_held(failure)
        elif self._held:
            self._send_held(self._held)
        if self._room:
            self._wake_room()

    def _give_up_held(self, cause: Error) -> None:
        """Fail what is held: it was never sent."""
        for future in self._held.pop_all() if self._held is not None else ():
            if not future.done():
                error = cause.copy()
                error.outcome = "not_written"
                future.set_exception(error)

    def _wake_room(self) -> None:
        room, self._room = self._room, deque()
        for future in room:
            if not future.done():
                future.set_result(None)

    # --- flush, force, close -----------------------------------------------------------------------------------

    async def flush(self, *, timeout: float | None = None) -> None:
        """Return when everything appended so far is acknowledged; raises what ended the writer."""
        limit_s = checked_timeout(timeout, self._config.append_timeout)
        if self._machine.failure is not None:
            raise self._reported(self._machine.failure)
        try:
            async with asyncio.timeout(limit_s):
                await self._pipe.wait_for_all()
        except TAKEN_AWAY:
            self._is_reported = True
            raise
        except TimeoutError:
            raise QuorumTimeout(
                f"ledger {self.ledger_id}: entries from {self._adds.head} on were not acknowledged"
                f" within {limit_s:g} s",
                ledger_id=self.ledger_id,
                entry_id=self._adds.head,
                replicas=self._adds.trouble(),
            ) from None

    async def force(self, *, timeout: float | None = None) -> None:
        """Flush, then have the bookies confirm that everything they took before is durable.

        An acknowledged entry is durable already; this also asks of each write set's ack quorum. With deferred sync
        it asks all bookies, and only then may readers see what was appended: the LAC moves to where this began.
        NotEnoughBookies when too few confirm; the same call may succeed later.
        """
        limit_s = checked_timeout(timeout, self._config.append_timeout)
        self._check_open()
        end_s = self._loop.time() + limit_s
        await self.flush(timeout=limit_s)
        left_s = max(0.001, end_s - self._loop.time())
        self._machine.forced(await run(self._machine.forcing(left_s), self._io))
        self._pipe.lac_sender.schedule()

    async def write_last_add_confirmed(self) -> EntryId:
        """Tell the bookies the LAC now, so that readers see the last entries; return it.

        Without this they learn it from the next entry, or `explicit_lac_interval` after the writer has fallen idle
        (within a second while the application keeps the event loop for itself), or at once with `publish="immediate"`.
        """
        self._check_open()
        return await self._pipe.lac_sender.send()

    def publish_at_once(self, *, is_wanted: bool) -> None:
        """Have the LAC leave before whoever waits for the last acknowledgement runs (INV-C5), or leave it to the timer.

        The loop of `fastbk.sync` is no application's, and is always free: there the timer is enough.
        """
        self._pipe.publishes_at_once = is_wanted

    def guarded_by(self, guard: LacGuard) -> None:
        """Have the LAC sent by the guard's thread while the application keeps the loop for itself (INV-C7)."""
        guard.watch(self._pipe.lac_sender)

    def send_lac(self) -> None:
        """Send bookies the LAC before this returns, with an entry that waits to be sent, or by itself.

        Whoever calls this after an acknowledgement has readers see it however long the loop is busy afterwards.
        """
        self._pipe.send_lac()

    def _check_open(self) -> None:
        if self._adds.failure is not None:
            raise self._reported(self._adds.failure)
        if self._done and self._blocked is not None:
            raise self._reported(self._blocked)

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush, then close the ledger in the metadata with its LAC and length. A second call does nothing.

        Raises what ended the writer, if anything did, after the ledger was closed at the last acknowledged entry;
        a fenced writer's ledger is left to whoever fenced it. With deferred sync the ledger ends at the last forced
        entry: force first. Entries that were held for others before them fail, not written.
        """
        limit_s = checked_timeout(timeout, self._config.close_timeout)
        if self._done:
            return
        if self._blocked is None:
            self._blocked = LedgerClosed(
                f"ledger {self.ledger_id} is closed: go on in a new one", ledger_id=self.ledger_id
            )
        self._give_up_held(self._blocked)
        self._wake_room()
        end_s = self._loop.time() + limit_s
        await self._settle(limit_s)
        machine = self._machine
        failure = machine.failure
        if failure is None:
            left_s = end_s - self._loop.time()
            await self._pipe.wait_for_laggards(min(self._config.laggard_wait, left_s))
            failure = machine.failure
        if not isinstance(failure, LedgerFenced):
            self._pipe.settle()
            closing = machine.closing(max(0.001, end_s - self._loop.time()))
            try:
                await run(closing, self._io)
            except (LedgerClosed, NoSuchLedger):
                # For good: there is nothing to call `close` again for.
                self._finish()
                raise
            self._io.closed_with_missing(self.ledger_id, machine.marked)
        self._finish()
        if failure is not None:
            raise failure.copy()

    def _finish(self) -> None:
        self._done = True
        self._pipe.stop()
        self._end_measuring()

    async def _settle(self, timeout_s: float) -> None:
        """Wait until nothing is in flight; what is still in flight at the deadline fails."""
        try:
            await self.flush(timeout=timeout_s)
        except Error as error:
            if self._machine.failure is None:
                self._pipe.end(error)

    def block(self, error: Error) -> None:
        """Admit nothing more; without any I/O, for a forked child."""
        self._blocked = error

    def abandon(self, error: ClientClosed) -> None:
        """End the writer without closing the ledger, as the client's close does with writers that are left."""
        if self._done:
            return
        self._blocked = error
        self._done = True
        self._pipe.lac_sender.send_last()
        self._pipe.end(error)
        self._pipe.stop()
        self._end_measuring()

    @property
    def ended(self) -> Error | None:
        """Why it takes no more appends, None while it does."""
        return self._blocked

    @property
    def adds(self) -> AddMachine:
        """What bookies have acknowledged, refused and not answered yet."""
        return self._adds

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to close."""
        return self._done

    @property
    def data_bytes_max(self) -> int:
        """The largest entry that all bookies take, as far as is known."""
        return self._pipe.data_bytes_max

    # --- for a client that is about to be closed -----------------------------------------------------------------

    lost_event = "client.appends_lost"

    @property
    def label(self) -> str:
        """What it has taken."""
        return f"appends to ledger {self.ledger_id}"

    @property
    def is_unsettled(self) -> bool:
        """Whether entries were taken that are neither acknowledged nor have failed."""
        return self._adds.failure is None and (self.pending > 0 or bool(self._held))

    @property
    def trouble(self) -> str:
        """Why entries have failed; empty: none has."""
        if self._held:
            return "entries wait for others before them that were not appended"
        return "" if self._adds.failure is None else str(self._adds.failure)

    async def until_settled(self) -> None:
        """Return when all that was taken so far is acknowledged, or has failed."""
        with suppress(Error):
            await self._pipe.wait_for_all()

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last acknowledged entry, -1 before the first."""
        return self._machine.last_add_confirmed

    @property
    def pending(self) -> int:
        """How many entries are admitted and not acknowledged."""
        return self._pipe.entries_in_flight

    def stats(self) -> WriterStats:
        """Return this writer's figures now."""
        latency = self._pipe.clock.histogram.latency()
        return WriterStats.of(self._machine, self.pending, self._pipe.bytes_in_flight, latency)

    @property
    def entries_resent(self) -> int:
        """Copies that were sent again after a lost connection or a refusal."""
        return self._adds.entries_resent

    @property
    def ensemble_changes(self) -> int:
        """How often it took other bookies in place of some."""
        return self._machine.changes

    def measure(self, meter: Meter) -> None:
        """Have this writer's figures observed until it ends."""
        self._source = meter.add(sending(), self._figures)

    def _figures(self) -> Figures:
        return {
            SENT: self._adds.head,
            "fastbk.client.send.size": self._adds.length_confirmed,
            "fastbk.client.send.pending": self.pending,
            "fastbk.client.send.buffered": self._pipe.bytes_in_flight,
            "fastbk.client.send.resent": self._adds.entries_resent,
            "fastbk.client.send.ensemble_changes": self._machine.changes,
            **duration_figures("send", self._pipe.clock.histogram.latency()),
        }

    def _end_measuring(self) -> None:
        if self._source is not None:
            self._source.close()

    def bookies_changed(self, read_only: Collection[BookieId]) -> None:
        """Tell the writer that other bookies may be had, and which take no adds; the client does."""
        if not self._done:
            self._pipe.bookies_changed(read_only)

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_reported = self._is_reported
        try:
            await self.close()
        except Error as closing:
            if not may_end_quietly(closing, error, is_reported=was_reported):
                raise


def _pass_on(to: asyncio.Future[EntryId], future: asyncio.Future[EntryId]) -> None:
    if future.cancelled() or to.done():
        return
    error = future.exception()
    if error is None:
        to.set_result(future.result())
    else:
        to.set_exception(error)


def _seen(future: asyncio.Future[tuple[EntryId, EntryId]]) -> None:
    if not future.cancelled():
        future.exception()


# --- ids of the caller's --------------------------------------------------------------------------
#
# Entries whose ids the caller chose, held until all before them are there: what is sent is always
# dense (INV-C1).
#
# So no bookie ever has an entry without the writer having sent the one before it, and a recovery
# that finds a gap may rely on it. No I/O.


class ReorderBuffer(Generic[T]):
    """What came before its turn, each with whatever waits for it. Bounded in entries and bytes.

    Attributes:
        size_bytes: bytes of data held.
    """

    def __init__(self, ledger_id: LedgerId, entries_max: int, bytes_max: int) -> None:
        self.size_bytes = 0
        self._ledger_id = ledger_id
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._held: dict[EntryId, tuple[bytes, T]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, entry_id: EntryId, next_entry_id: EntryId, data: bytes, waiter: T) -> None:
        """Take an entry; `next_entry_id`: the lowest id that was not given yet.

        Raises DuplicateEntryId for one that was, BufferFull when there is no room for one that is not the next.
        """
        checked_integer("entry_id", entry_id, 0, ID_MAX)
        if entry_id < next_entry_id or entry_id in self._held:
            raise DuplicateEntryId(
                f"ledger {self._ledger_id}: entry {entry_id} was appended before: give each id once",
                ledger_id=self._ledger_id,
                entry_id=entry_id,
            )
        is_full = (
            len(self._held) >= self._entries_max or self.size_bytes + len(data) > self._bytes_max
        )
        if is_full and entry_id != next_entry_id:
            raise BufferFull(
                f"ledger {self._ledger_id}: {len(self._held)} entries of {self.size_bytes} bytes wait for"
                f" entry {next_entry_id}; append that one",
                ledger_id=self._ledger_id,
                entry_id=entry_id,
            )
        self._held[entry_id] = (data, waiter)
        self.size_bytes += len(data)

    def size_of(self, entry_id: EntryId) -> int | None:
        """Return the bytes of an entry that is held, None if it is not."""
        held = self._held.get(entry_id)
        return None if held is None else len(held[0])

    def pop(self, entry_id: EntryId) -> tuple[bytes, T]:
        """Give out an entry that is held."""
        data, waiter = self._held.pop(entry_id)
        self.size_bytes -= len(data)
        return data, waiter

    def pop_all(self) -> list[T]:
        """Give up everything that is held; return what waits for it, by id."""
        held, self._held = self._held, {}
        self.size_bytes = 0
        return [waiter for _, (_, waiter) in sorted(held.items(), key=lambda one: one[0])]


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriterStats:
    """Figures of one writer at one moment."""

    entries: int
    """Acknowledged entries."""
    bytes: int
    """Bytes of their data."""
    entries_in_flight: int
    bytes_in_flight: int
    entries_resent: int
    """Copies sent again after a lost connection or a refusal."""
    held_bytes: int
    """Encoded entries that are held until every bookie has them."""
    lagging: dict[BookieId, int]
    """Entries that each bookie has yet to acknowledge; they are sent when it takes them."""
    under_replicated: dict[BookieId, int]
    """Acknowledged entries that each bookie was to hold and will not get from this writer."""
    trouble: dict[BookieId, str]
    """Bookies that do not answer well, and why."""
    ensemble: tuple[BookieId, ...]
    """The bookies that are written to now."""
    ensemble_changes: int
    """How often this writer took others in place of some."""
    append_latency: Latency
    """Time of an entry from the turn of the event loop that sent it to its acknowledgement by the ack quorum."""

    @property
    def is_under_replicated(self) -> bool:
        """Whether some acknowledged entry has fewer copies than the write quorum."""
        return any(self.under_replicated.values()) or any(self.lagging.values())

    @classmethod
    def of(
        cls, writer: WriterMachine, in_flight: int, bytes_in_flight: int, latency: Latency
    ) -> WriterStats:
        """Return the figures of a writer with this machine."""
        machine = writer.adds
        return cls(
            entries=machine.head,
            bytes=machine.length_confirmed,
            entries_in_flight=in_flight,
            bytes_in_flight=bytes_in_flight,
            entries_resent=machine.entries_resent,
            held_bytes=machine.held_bytes,
            lagging={
                bookie: machine.lagging(index) for index, bookie in enumerate(machine.ensemble)
            },
            under_replicated=dict(zip(machine.ensemble, machine.under_replicated, strict=True)),
            trouble=machine.trouble(),
            ensemble=writer.ensemble,
            ensemble_changes=writer.changes,
            append_latency=latency,
        )
