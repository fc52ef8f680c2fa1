"""Ledgers without `await`: the asyncio writer and reader on the loop's thread, for callers in other threads.

A writer numbers and counts appends in the thread of the caller, so ids and BufferFull come at once. They wait in a
queue that the loop is woken for once. Crossing over to the loop's thread costs more than many appends.

Decisions 97 and 148.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import Any, TypeVar

from fastbk.client.async_tools import may_end_quietly
from fastbk.client.config import ClientConfig
from fastbk.client.ledger_options import wrong_use_of_ids
from fastbk.client.ledger_reader import Batch, Entry, LedgerReaderStats
from fastbk.client.ledger_reader import LedgerReader as AsyncLedgerReader
from fastbk.client.ledger_writer import Data, WriterStats
from fastbk.client.ledger_writer import LedgerWriter as AsyncLedgerWriter
from fastbk.client.loop_thread import (
    CHECK_S,
    AppendQueue,
    ElementFetcher,
    ElementIterator,
    ListFetcher,
    LoopIterator,
    LoopThread,
    Turns,
    facade_text,
)
from fastbk.errors import BufferFull, ConfigError, Error, Outcome, QuorumTimeout
from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.tracing import tracer_of
from fastbk.option_checks import checked_timeout, owned_bytes, owned_list
from fastbk.replication.add_machine import split, too_large

T = TypeVar("T")
_CHUNK_ENTRIES = 512
_NONE: list[bytes] = []
"""Stands in the place of entries that were handed over: whoever keeps their `Pending` does not keep them."""


class LedgerWriter:
    """Appends to one ledger; made by `fastbk.sync.Client.create_ledger`. See the asyncio writer.

    Several threads may append. The writer goes on between calls: it hears acknowledgements, tells
    bookies the LAC, and replaces bookies that fail.
    """

    def __init__(
        self,
        thread: LoopThread[Any],
        inner: AsyncLedgerWriter,
        config: ClientConfig,
        *,
        explicit_ids: bool,
    ) -> None:
        self.ledger_id = inner.ledger_id
        self._thread = thread
        self._inner = inner
        inner.publish_at_once(is_wanted=False)
        self._adds = inner.adds
        self._config = config
        self._has_explicit_ids = explicit_ids
        self._pending_type = Pending if tracer_of(config.tracing) is None else TracedPending
        before = Pending(self, [], self._adds.next_entry_id - 1, 0)
        self._queue = AppendQueue(thread, self._send, before)
        # Written on the loop only.
        self._bytes_settled = 0
        self._lac_told: EntryId = -1
        # Of those who wait for room; meanwhile nobody may pass.
        self._turns = Turns()

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last read or wrote it."""
        return self._inner.metadata

    # --- appending ----------------------------------------

    def append(
        self, data: Data, *, entry_id: EntryId | None = None, timeout: float | None = None
    ) -> EntryId:
        """Append one entry and return its id once the ack quorum has it; see the asyncio writer."""
        checked_timeout(timeout)
        if self._has_explicit_ids or entry_id is not None:
            return self.append_nowait(data, entry_id=entry_id).result(timeout)
        begun_s = time.monotonic()
        owned = self._checked(data)
        size = len(owned)
        with self._queue.lock:
            pending = None if self._turns.waiting else self._put([owned], size)
        if pending is None:
            (pending,) = self._in_turn([[owned]], timeout)
        if timeout is None:
            return pending.result()
        return pending.result(max(0.0, begun_s + timeout - time.monotonic()))

    def append_many(
        self, datas: Sequence[Data], *, timeout: float | None = None
    ) -> tuple[EntryId, EntryId]:
        """Append entries with consecutive ids; return the first and last id once all have acks."""
        checked_timeout(timeout)
        owned = owned_list(datas, "datas")
        if not owned:
            raise ConfigError("append_many needs at least one entry")
        if self._has_explicit_ids:
            raise wrong_use_of_ids(self.ledger_id, None)
        for data in owned:
            self._check_size(data)
        self._check()
        begun_s = time.monotonic()
        pieces = split(owned, min(_CHUNK_ENTRIES, self._config.entries_in_flight_max))
        begun = self._in_turn(pieces, timeout)
        left_s = None if timeout is None else max(0.0, begun_s + timeout - time.monotonic())
        return begun[0].entry_id - len(pieces[0]) + 1, begun[-1].result(left_s)

    def append_nowait(self, data: Data, *, entry_id: EntryId | None = None) -> Pending:
        """Send an entry without waiting for its ack. Raises BufferFull at the bounds."""
        owned = self._checked(data)
        if self._has_explicit_ids or entry_id is not None:
            return self._thread.call_plain(lambda: self._hold(owned, entry_id))
        with self._queue.lock:
            pending = None if self._turns.waiting else self._put([owned], len(owned))
        if pending is None:
            raise BufferFull(f"ledger {self.ledger_id}: too much is in flight; call ready()")
        return pending

    def _hold(self, data: bytes, entry_id: EntryId | None) -> Pending:
        """Give the asyncio writer an entry with an id of the caller's. On the loop."""
        future = self._inner.append_nowait(data, entry_id=entry_id)
        assert entry_id is not None
        pending = Pending(self, [], entry_id, 0)

        def pass_on(_: object) -> None:
            error = future.exception()
            if error is None:
                pending.set_result(None)
            else:
                assert isinstance(error, Error)
                pending.set_exception(error)

        future.add_done_callback(pass_on)
        return pending

    def ready(self) -> None:
        """Return when `append_nowait` has room for an entry of ordinary size."""
        self._check()
        if not self._turns.waiting and self._has_room(1):
            return
        limit_s = self._config.append_timeout
        deadline_s = time.monotonic() + limit_s
        turn = object()
        try:
            if not self._turns.begin(turn, limit_s) or not self._wait_for_room(1, deadline_s):
                raise self._too_late(self._adds.head, limit_s, "unknown")
        finally:
            if turn in self._turns.waiting:
                self._turns.waiting.remove(turn)
            self._turns.notify()

    def _checked(self, data: Data) -> bytes:
        owned = data if type(data) is bytes else owned_bytes(data)
        self._check()
        self._check_size(owned)
        return owned

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._inner.data_bytes_max:
            raise too_large(self.ledger_id, len(data), self._inner.data_bytes_max)

    def _check(self) -> None:
        self._thread.check()
        ended = self._inner.ended
        if ended is not None:
            raise self._inner._reported(ended)

    # --- admission ----------------------------------------

    def _has_room(self, size: int) -> bool:
        return self._fits(self._queue.last(), size)

    def _fits(self, last: Pending, size: int) -> bool:
        """Return whether there is room for `size` bytes behind the last append."""
        config = self._config
        entries = last.entry_id + 1 - self._adds.head
        return entries == 0 or (
            entries < config.entries_in_flight_max
            and last._given - self._bytes_settled + size <= config.bytes_in_flight_max
        )

    def _put(self, datas: list[bytes], size: int) -> Pending | None:
        """Take entries if there is room; return what waits for the last one. The lock is held."""
        last = self._queue.last()
        if not self._fits(last, size):
            return None
        entry_id, given = last.entry_id + len(datas), last._given + size
        pending = self._pending_type(self, datas, entry_id, size, given)
        self._queue.put(pending)
        return pending

    def _in_turn(self, pieces: Sequence[list[bytes]], timeout: float | None) -> list[Pending]:
        """Take entries as soon as there is room, and let nobody else append meanwhile."""
        limit_s = self._config.append_timeout if timeout is None else timeout
        deadline_s = time.monotonic() + limit_s
        begun: list[Pending] = []
        turn = object()
        try:
            has_turn = self._turns.begin(turn, max(0.0, limit_s))
            for piece in pieces:
                size = sum(map(len, piece))
                if not has_turn or not self._wait_for_room(size, deadline_s):
                    outcome: Outcome = "unknown" if begun else "not_written"
                    raise self._too_late(self._adds.head, limit_s, outcome)
                with self._queue.lock:
                    pending = self._put(piece, size)
                assert pending is not None
                begun.append(pending)
        finally:
            if turn in self._turns.waiting:
                self._turns.waiting.remove(turn)
            self._turns.notify()
        return begun

    def _wait_for_room(self, size: int, deadline_s: float) -> bool:
        """Return whether there is room in time. It is the caller's turn: nobody takes it away."""

        async def waited() -> bool:
            try:
                async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                    await self._inner.room(size)
            except TimeoutError:
                return False
            return True

        self._check()
        while not self._has_room(size):
            if not self._queue.call(waited):
                return False
            self._check()
        return True

    def _send(self) -> None:
        """Give the asyncio writer all that was appended. On the loop."""
        admit = self._inner.admit
        for pending in self._queue.taken():
            datas, pending._datas = pending._datas, _NONE
            if type(pending) is Pending:
                admit(datas, pending._size, pending)
            else:
                assert isinstance(pending, TracedPending)
                pending.admit(admit, datas)

    # --- waiting ----------------------------------------

    def _new_latch(self, pending: Pending) -> threading.Lock:
        with self._queue.lock:
            if pending._latch is None:
                latch = threading.Lock()
                latch.acquire()
                pending._latch = latch
            return pending._latch

    def _wait(self, pending: Pending, timeout: float | None) -> None:
        """Wait until it is done; QuorumTimeout if it is not in time."""
        limit_s = timeout
        if limit_s is None and self._has_explicit_ids:
            limit_s = self._config.append_timeout  # what is held may never be sent
        end_s = float("inf") if limit_s is None else time.monotonic() + limit_s
        while not pending.done():
            self._thread.check()
            left_s = end_s - time.monotonic()
            # A client that is closed meanwhile may not know of what was just appended.
            if not pending._wait(max(0.0, min(left_s, CHECK_S))) and left_s <= CHECK_S:
                assert limit_s is not None
                is_held = self._has_explicit_ids and pending.entry_id >= self._adds.next_entry_id
                outcome: Outcome = "not_written" if is_held else "unknown"
                raise self._too_late(pending.entry_id, limit_s, outcome)

    def _too_late(self, entry_id: EntryId, limit_s: float, outcome: Outcome) -> QuorumTimeout:
        replicas: dict[BookieId, str] = {}
        with suppress(Error):
            replicas = self._thread.call_plain(self._adds.trouble)
        return QuorumTimeout(
            f"ledger {self.ledger_id}: entry {entry_id} was not acknowledged within {limit_s:g} s;"
            " it stays in the pipe, so read before appending it again",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
            outcome=outcome,
            replicas=replicas,
        )

    # --- flush, force, close ----------------------------------------

    def flush(self, *, timeout: float | None = None) -> None:
        """Return when all appended so far is acknowledged, and tell bookies the LAC for readers."""

        async def flushed() -> None:
            inner = self._inner
            await inner.flush(timeout=timeout)
            lac = inner.last_add_confirmed
            if lac > self._lac_told and inner.ended is None:
                self._lac_told = lac
                with suppress(Error, TimeoutError):
                    async with asyncio.timeout(min(1.0, self._config.read_timeout)):
                        await inner.write_last_add_confirmed()

        self._queue.call(flushed)

    def write_last_add_confirmed(self) -> EntryId:
        """Tell the bookies the LAC now, so that readers see the last entries; return it."""
        return self._queue.call(self._inner.write_last_add_confirmed)

    def force(self, *, timeout: float | None = None) -> None:
        """Flush, and have the bookies confirm that all is durable; see the asyncio writer."""
        self._queue.call(lambda: self._inner.force(timeout=timeout))

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, then close the ledger in the metadata. Raises what ended the writer."""
        checked_timeout(timeout)
        if not self._inner.is_done:
            self._queue.call(lambda: self._inner.close(timeout=timeout))

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last acknowledged entry, -1 before the first."""
        return self._inner.last_add_confirmed

    @property
    def pending(self) -> int:
        """How many entries are appended and not acknowledged."""
        if self._has_explicit_ids:
            return self._inner.pending
        return self._queue.last().entry_id + 1 - self._adds.head

    def stats(self) -> WriterStats:
        """Return this writer's figures now."""

        def live_stats() -> WriterStats:
            self._send()
            return self._inner.stats()

        return live_or_last(self._thread, live_stats, self._inner.stats)

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_reported = self._inner._is_reported
        try:
            self.close()
        except Error as closing:
            if not may_end_quietly(closing, error, is_reported=was_reported):
                raise


class Pending:
    """An append that was sent; `result()` waits for it."""

    __slots__ = ("_datas", "_error", "_given", "_is_done", "_latch", "_size", "_writer", "entry_id")

    def __init__(
        self,
        writer: LedgerWriter,
        datas: list[bytes],
        entry_id: EntryId,
        size: int,
        given: int = 0,
    ) -> None:
        """`entry_id`: of the last one. `given`: bytes of all that was appended up to this, it included."""
        self.entry_id = entry_id
        self._datas = datas
        self._writer = writer
        self._size = size
        self._given = given
        self._error: Error | None = None
        self._is_done = False
        self._latch: threading.Lock | None = None

    def done(self) -> bool:
        """Whether it is acknowledged or failed."""
        return self._is_done

    def result(self, timeout: float | None = None) -> EntryId:
        """Wait until it is acknowledged and return its id; raises as `append` does.

        Without `timeout` the client's append_timeout ends the wait, and with it the writer. For
        an entry that is held for others before it, only the wait ends.
        """
        checked_timeout(timeout)
        if not self._is_done:
            self._writer._wait(self, timeout)
        if self._error is not None:
            raise self._writer._inner._reported(self._error)
        return self.entry_id

    def _wait(self, timeout_s: float) -> bool:
        """Return whether it is done. Several threads may wait."""
        latch = self._latch
        if latch is None:
            latch = self._writer._new_latch(self)
        if not self._is_done:
            if not latch.acquire(timeout=timeout_s):
                return False
            latch.release()  # for the next one that waits
        return True

    # --- on the loop: what the pipe gives ----------------------------------------

    def set_result(self, _: object) -> None:
        """It is acknowledged."""
        self._writer._bytes_settled += self._size
        self._end()

    def set_exception(self, error: Error) -> None:
        """It has failed."""
        self._error = error
        self._end()

    def _end(self) -> None:
        # First this, then the latch: whoever makes a latch later looks at this once more.
        self._is_done = True
        if self._latch is not None:
            self._latch.release()


class TracedPending(Pending):
    """An append with the context of its caller, whose span it may be in."""

    __slots__ = ("_context",)

    def __init__(
        self,
        writer: LedgerWriter,
        datas: list[bytes],
        entry_id: EntryId,
        size: int,
        given: int = 0,
    ) -> None:
        super().__init__(writer, datas, entry_id, size, given)
        self._context = copy_context()

    def admit(self, admit: Callable[[list[bytes], int, Pending], None], datas: list[bytes]) -> None:
        """Give it to the asyncio writer, on the loop."""
        self._context.run(admit, datas, self._size, self)


def live_or_last(thread: LoopThread[Any], live: Callable[[], T], last: Callable[[], T]) -> T:
    """Return `live()` of the loop, or `last()` of a client that was closed."""
    if thread.is_closed is not None:
        return last()
    return thread.call_plain(live)


# --- the reader ------------------------------------------------------------------------------------


class LedgerReader:
    """Reads one ledger; made by `fastbk.sync.Client.open_ledger`. See the asyncio reader."""

    def __init__(self, thread: LoopThread[Any], inner: AsyncLedgerReader) -> None:
        self.ledger_id = inner.ledger_id
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this reader last read it."""
        return self._inner.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self._inner.is_closed

    @property
    def last_known(self) -> EntryId:
        """The highest entry that this reader knows to be acknowledged; no I/O."""
        return self._inner.last_known

    def last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask the bookies for the last acknowledged entry, -1 if there is none."""
        return self._thread.call(lambda: self._inner.last_add_confirmed(timeout=timeout))

    def try_last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask all bookies once and return the best that is proven, however few answer."""
        return self._thread.call(lambda: self._inner.try_last_add_confirmed(timeout=timeout))

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Yield the entries first..last in order; `last` None: up to the last acknowledged one."""
        fetcher: ElementFetcher[Entry] = ElementFetcher(
            lambda: self._inner.found_batches(first, last)
        )
        return ElementIterator(self._thread, fetcher)

    def read_batches(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Batch]:
        """Like `read`, a Batch of consecutive entries at a time. More is fetched meanwhile."""
        fetcher: ListFetcher[Batch] = ListFetcher(lambda: self._inner.found_batches(first, last))
        return LoopIterator(self._thread, fetcher)

    def read_unconfirmed(
        self, first: EntryId, last: EntryId, *, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries first..last that bookies hold, up to the first that is missing."""
        return self._thread.call(lambda: self._inner.read_unconfirmed(first, last, timeout=timeout))

    def read_last(self, *, timeout: float | None = None) -> Entry:
        """Return the last acknowledged entry; NoSuchEntry in an empty ledger."""
        return self._thread.call(lambda: self._inner.read_last(timeout=timeout))

    def tail(self, first: EntryId = 0) -> Iterator[Entry]:
        """Yield entries from `first` on as they are acknowledged, to the end of a closed ledger."""
        fetcher: ElementFetcher[Entry] = ElementFetcher(lambda: self._inner.tailed_batches(first))
        return ElementIterator(self._thread, fetcher)

    def tail_batches(self, first: EntryId = 0) -> Iterator[Batch]:
        """Like `tail`, a Batch of consecutive entries at a time: all that came meanwhile."""
        fetcher: ListFetcher[Batch] = ListFetcher(lambda: self._inner.tailed_batches(first))
        return LoopIterator(self._thread, fetcher)

    def stats(self) -> LedgerReaderStats:
        """Return this reader's figures now."""
        return self._inner.stats()

    def close(self) -> None:
        """Take no more calls. Those of other threads that are under way end with ClientClosed."""
        if self._thread.is_closed is None:
            self._thread.call(self._inner.close, goes_on=True)

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
