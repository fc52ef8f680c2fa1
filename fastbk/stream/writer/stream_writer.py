"""The writer of a stream: takes records, waits for room, and says when they are kept.

`engine.py` has the way of the records to the ledgers.

Decision 154.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from fastbk.client.async_tools import TAKEN_AWAY, SharedEnd, may_end_quietly
from fastbk.client.ledger_writer import called_by
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    Error,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    QuorumTimeout,
    QuotaExceeded,
    StreamSealed,
    WriterFailed,
    WriterFenced,
    WrongType,
)
from fastbk.observe.tracing import tracer_of
from fastbk.option_checks import checked_timeout, owned_bytes, owned_list
from fastbk.stream.chain import Contents, StreamKind, close_segment, seal
from fastbk.stream.chain_store import VersionedChain
from fastbk.stream.context import ContextLike, StreamContext, context_of
from fastbk.stream.opening import check_bookies, delete_pending, new_owner, open_stream, slots_of
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.records import HeadersLike, put_headers
from fastbk.stream.writer.engine import AppendEngine, StreamWriterStats
from fastbk.stream.writer.queue import EntryQueue, WriterQueue
from fastbk.stream.writer.traced_appends import TracedAppends

Data: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")
K = TypeVar("K")
H = TypeVar("H")
PUBLISH_S = 1.0
"""How long a block that an exception ends waits for bookies to have the LAC."""
WAITING_MAX = 10_000
"""Appends of one writer that wait for room at a time."""
CALLS_PER_TURN = 64
"""So many calls of `ready` may return without letting other tasks run: some 100 us of records."""


class StreamWriter:
    """Appends to one stream; made by `Stream.writer()`. Safe to share between tasks of one loop.

    `async with` opens it: whoever wrote before is fenced. Leaving the block flushes and closes. It raises WriterFenced
    and StreamNotFound only if no call has raised it before. Leaving it by an exception aborts: readers see what was
    acknowledged (INV-S17), and nothing more is waited for. The first append that fails ends the writer (INV-S5); open
    the stream again and go on behind `last_txid`. Cancelling the await of an append's future withdraws nothing.
    """

    def __init__(self, context: ContextLike, options: WriterOptions) -> None:
        self._given: ContextLike = context
        if isinstance(context, StreamContext):
            self._context = context
        self._options = options
        self._engine: AppendEngine | None = None
        self._is_closed = False
        self._is_reported = False
        """A call has raised that another has the stream, or has deleted it."""
        self._end = SharedEnd()
        self.epoch = 0
        """Epoch of this opening; rises with each."""

    @property
    def last_txid(self) -> int:
        """The last transaction id appended, acknowledged or not; -1 in an empty stream."""
        return self._opened().queue.last_txid

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last record that was acknowledged, also by earlier writers; None in an empty stream."""
        return self._opened().last_dlsn

    @property
    def unacked_bytes(self) -> int:
        """What was appended and not acknowledged yet."""
        return self._opened().queue.unacked_bytes

    @property
    def failure(self) -> Error | None:
        """What ended the writer; None while it goes on."""
        return self._opened().failure

    def stats(self) -> StreamWriterStats:
        """Return this writer's figures now."""
        return self._opened().stats(self._backpressure.waiting)

    def __repr__(self) -> str:
        engine = self._engine
        if engine is None or self._is_closed:
            return f"<StreamWriter of {self._given.name}, {'closed' if self._is_closed else 'not open'}>"
        state = f"last {engine.last_dlsn}, {engine.queue.unacked_bytes} bytes not acknowledged"
        return f"<StreamWriter of {self._given.name}: {state if engine.failure is None else engine.failure}>"

    def _opened(self) -> AppendEngine:
        if self._engine is None:
            raise ClientClosed(f"the writer of {self._given.name} is not open: use `async with`")
        return self._engine

    def _check(self) -> AppendEngine:
        """Return the engine if appends can be taken. Raises what ended the writer, of an append that was not sent."""
        engine = self._opened()
        if engine.failure is not None:
            raise engine.unsent()
        if self._is_closed:
            raise ClientClosed(f"the writer of {self._context.name} is closed")
        return engine

    async def open(self) -> None:
        """Take the stream over; `async with` does it. Raises StreamSealed, StreamNotFound, and what recovery raises.

        WrongStreamKind: the stream is for producers; nobody was fenced.
        QuotaExceeded: a namespace that it is in has as many bytes as it may; nobody was fenced. See the option
        `over_quota`. NotEnoughBookies: no segment could be made now; nobody was fenced.
        """
        if self._engine is not None or self._is_closed:
            raise ClientClosed(
                f"the writer of {self._given.name} was opened before: make another one"
            )
        self._context = await context_of(self._given)
        async with slots_of(self._context.client):
            policy = await self._context.policy()
            if not self._options.over_quota:
                self._context.check_room()  # before anybody is fenced for nothing
            await check_bookies(self._context, policy)
            known = await self._open_chain()
            queue = await self._queue_for(known)
            # The chain that this leaves may be another writer's already: ours is the epoch of the opening (INV-S6).
            await delete_pending(self._context, known)
        self.epoch = known.chain.epoch
        self._loop = asyncio.get_running_loop()
        progress = asyncio.Event()
        tracer = tracer_of(self._context.client.config.tracing)
        engine = AppendEngine(
            self._context, self._options, known, policy, progress.set, queue, tracer
        )
        self._backpressure = Backpressure(engine, progress, self._context.name)
        self._engine = engine

    async def _queue_for(self, known: VersionedChain) -> EntryQueue:
        """Return the queue of appends behind what the stream has; all its segments are closed."""
        options, name = self._options, self._context.name
        queue = WriterQueue(
            options.entry_bytes_max,
            options.batch_bytes,
            options.unacked_bytes_max,
            known.chain.last_txid,
        )
        tracer = tracer_of(self._context.client.config.tracing)
        self._intake = queue if tracer is None else TracedAppends(tracer, queue, name)
        return queue

    async def _open_chain(self) -> VersionedChain:
        client, store, owner = self._context.client, self._context.store, new_owner()
        try:
            return await open_stream(client, store, owner, StreamKind.WRITER)
        except StreamSealed as error:
            raise StreamSealed(
                f"{self._context.name} has ended: it was sealed, and nothing can be appended any more"
            ) from error
        except MetadataConflict as error:
            if not error.retryable:
                raise
            # So many ledgers wait to be deleted that no other may be doomed: make room.
            await delete_pending(self._context, await store.read())
            return await open_stream(client, store, owner, StreamKind.WRITER)

    # --- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, DLSN]:
        """Append a record, and return its position once the ack quorum has it. To be awaited, or made a task.

        Waits for room first, in the order in which appends begin to wait. `timeout` covers all of it, in seconds:
        QuorumTimeout, and the writer goes on. `txid` None: one more than the last. Raises, and nothing was taken:
        TxidOutOfOrder, RecordTooLarge, BufferFull when 10,000 wait for room, what ended the writer (WriterFenced,
        WriterFailed).
        """
        limit_s = checked_timeout(timeout)
        data, raw_key, raw = owned_record(payload, key, headers)

        def take(engine: AppendEngine) -> asyncio.Future[DLSN]:
            return self._take(engine, data, txid, raw_key, raw)

        return called_by(self._append(take, limit_s), "StreamWriter.append")

    async def _append(
        self, take: Callable[[AppendEngine], asyncio.Future[DLSN]], timeout_s: float | None
    ) -> DLSN:
        try:
            engine = self._check()
            if timeout_s is None and self._backpressure.may_pass:
                # Nearly every append: it needs no closure and no deadline.
                try:
                    taken = take(engine)
                except BufferFull:
                    pass  # larger than what is left: it waits
                else:
                    return await taken
            return await self._backpressure.append(lambda: take(engine), timeout_s)
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    def append_nowait(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> asyncio.Future[DLSN]:
        """Take a record and return a future of its position, resolved when the ack quorum has it, in call order.

        As `append`, but it waits for no room: BufferFull (await `ready()`).
        """
        try:
            return self._admit(*owned_record(payload, key, headers), txid)
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    def _admit(
        self, data: bytes, key: bytes | None, headers: bytes, txid: int | None
    ) -> asyncio.Future[DLSN]:
        """Do as `append_nowait` with what `owned_record` returned; for `fastbk.sync`."""
        engine = self._check()
        self._backpressure.check_no_waiters()
        return self._take(engine, data, txid, key, headers)

    def _take(
        self, engine: AppendEngine, data: bytes, txid: int | None, key: bytes | None, headers: bytes
    ) -> asyncio.Future[DLSN]:
        future: asyncio.Future[DLSN] = self._loop.create_future()
        self._intake.put(data, txid, key, headers, future)
        engine.queued()
        return future

    def append_batch(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, DLSN]:
        """Append records that are all kept or none: they become one entry. Returns the first one's position.

        The others follow it, slot by slot. Waits and raises as `append`, and ConfigError for an empty batch. What has
        more than `entry_bytes_max` bytes is RecordTooLarge. What is larger than the room that `unacked_bytes_max`
        leaves waits until it fits into twice of that, or is alone.
        """
        limit_s = checked_timeout(timeout)
        owned = owned_batch(payloads, txids, keys, headers)

        def take(engine: AppendEngine) -> asyncio.Future[DLSN]:
            return self._take_batch(engine, *owned)

        return called_by(self._append(take, limit_s), "StreamWriter.append_batch")

    def append_batch_nowait(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
    ) -> asyncio.Future[DLSN]:
        """Append as `append_batch`, but wait for no room: BufferFull (await `ready()`). Returns a future."""
        try:
            return self._admit_batch(*owned_batch(payloads, txids, keys, headers))
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    def _admit_batch(
        self,
        datas: Sequence[bytes],
        txids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
    ) -> asyncio.Future[DLSN]:
        """Do as `append_batch_nowait` with what `owned_batch` returned; for `fastbk.sync`."""
        engine = self._check()
        self._backpressure.check_no_waiters()
        return self._take_batch(engine, datas, txids, keys, headers)

    def _take_batch(
        self,
        engine: AppendEngine,
        datas: Sequence[bytes],
        txids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
    ) -> asyncio.Future[DLSN]:
        future: asyncio.Future[DLSN] = self._loop.create_future()
        self._intake.put_batch(datas, txids, keys, headers, future)
        engine.queued()
        return future

    def append_many(
        self,
        payloads: Iterable[Data],
        *,
        txids: Iterable[int] | None = None,
        keys: Iterable[Data | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
    ) -> Coroutine[Any, Any, tuple[DLSN, DLSN]]:
        """Append records one behind the other (not atomic); return the first and the last one's position.

        Waits for room, and for the last acknowledgement. Raises ConfigError, and nothing was sent, for no record, and
        for another number of `txids`, `keys` or `headers` than of payloads; otherwise what `append` raises.
        """
        rows = rows_of(payloads, txids, keys, headers)
        return called_by(self._append_many(rows), "StreamWriter.append_many")

    async def _append_many(
        self, rows: Iterable[tuple[Data, int | None, Data | None, HeadersLike]]
    ) -> tuple[DLSN, DLSN]:
        try:
            return await self._append_rows(rows)
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    async def _append_rows(
        self, rows: Iterable[tuple[Data, int | None, Data | None, HeadersLike]]
    ) -> tuple[DLSN, DLSN]:
        first = last = None
        for payload, txid, key, headers in rows:
            await self.ready()
            data, raw_key, raw = owned_record(payload, key, headers)
            last = await self._backpressure.taken(
                lambda: self._take(self._check(), data, txid, raw_key, raw)  # noqa: B023
            )
            first = first or last
        if first is None or last is None:
            raise ConfigError("append_many needs at least one record")
        end = await last
        return await first, end

    async def ready(self) -> None:
        """Return when `append_nowait` has room; raises what ended the writer.

        Lets other tasks run now and then while there is room, too: a loop of `ready` and `append_nowait` stalls none.
        """
        try:
            self._check()
            await self._backpressure.ready()
            self._check()
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    async def flush(self, *, timeout: float | None = None) -> DLSN | None:
        """Wait until all appends so far are acknowledged; return the last record's position. Raises what ended it.

        QuorumTimeout after `timeout` seconds; the writer goes on. None: as long as an append may take.
        """
        engine = self._opened()
        try:
            async with asyncio.timeout(checked_timeout(timeout)):
                await self._backpressure.passed()
                await engine.until_settled()
        except TimeoutError:
            name = self._context.name
            raise QuorumTimeout(f"{name}: not all was acknowledged within {timeout:g} s") from None
        if engine.failure is not None:
            self._is_reported = True
            raise engine.failure.copy()
        return engine.last_dlsn

    async def publish(self) -> DLSN | None:
        """Flush, and have readers see it: returns when bookies were told how far they may read."""
        last = await self.flush()
        await self._publish(self._opened())
        return last

    async def _publish(self, engine: AppendEngine) -> None:
        current = () if engine.segment is None else (engine.segment,)
        for segment in (*engine.lifecycle.unended, *current):
            if segment.records:
                try:
                    await segment.ledger.write_last_add_confirmed()
                except (LedgerClosed, LedgerFenced):
                    if engine.failure is not None:
                        raise engine.failure.copy() from None
                    continue  # all of it was acknowledged: whoever closes the ledger shows it

    async def roll(self) -> None:
        """Flush, and end the segment; what comes next goes to a new one. Nothing happens to an empty one.

        QuorumTimeout: no new one could be made, or the old one ended, within the client's `close_timeout`, which
        counts from when their turn has come among all streams of the client; the writer goes on, and rolls when it can.
        QuotaExceeded: a namespace has no room for a new one; the writer goes on in the one it has.
        """
        await self.flush()
        engine = self._check()
        if engine.segment is None or not engine.segment.records:
            return
        try:
            async with engine.lifecycle.in_time(self._context.client.config.close_timeout):
                await engine.rolling.roll()
                await engine.lifecycle.until_idle()
        except TimeoutError:
            raise _ended_too_late(self._context, engine)  # noqa: B904 -- it has its cause
        self._check()

    # --- the end ------------------------------------------------------------------------------------------------

    async def seal(self) -> DLSN | None:
        """End the stream for good, and the writer. Returns the last record's position.

        After MetadataUnavailable it can be called again, also when `close` was called before.
        """
        engine = self._opened()
        await self.close()
        if engine.failure is not None:
            raise engine.failure.copy()
        epoch = self.epoch
        try:
            async with slots_of(self._context.client):
                await self._context.store.change(lambda chain: seal(chain, epoch))
        except MetadataConflict as error:
            raise WriterFenced(
                f"{self._context.name}: another writer has opened it: {error}", outcome="written"
            ) from error
        return self.last_dlsn

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush, end the segment, and take no more appends. Raises what ended the writer.

        QuorumTimeout: all is kept, but the segment could not be ended within the client's `close_timeout`, counted as
        for `roll`; whoever opens the stream next does that. Cancelled, it is an `abort`; after `timeout` seconds, too.
        Called again, it waits for the first call's end, and raises the same.
        """
        limit_s = checked_timeout(timeout)
        self._is_closed = True
        engine = self._engine
        if engine is None:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._end.reach(lambda: self._close(engine), self.abort)
        except TimeoutError:
            raise QuorumTimeout(f"{self._context.name}: not closed within {timeout:g} s") from None

    async def _close(self, engine: AppendEngine) -> None:
        try:
            if isinstance(engine.failure, QuotaExceeded):
                with suppress(TimeoutError):  # its segment is being ended: see `AppendEngine`
                    async with engine.lifecycle.in_time(self._context.client.config.close_timeout):
                        await engine.lifecycle.until_idle()
            await self.flush()
            async with engine.lifecycle.in_time(self._context.client.config.close_timeout):
                await end_segments(self._context, engine, self.epoch)
        except TimeoutError:
            raise _ended_too_late(self._context, engine)  # noqa: B904 -- it has its cause
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            engine.stop()
        if engine.lifecycle.known.chain.doomed:
            with suppress(TimeoutError):  # then it is the janitor's
                async with asyncio.timeout(self._context.client.config.close_timeout):
                    async with slots_of(self._context.client):
                        await delete_pending(self._context, engine.lifecycle.known)

    def abort(self) -> None:
        """Take no more appends and wait for nothing: what is under way is decided when the stream is opened next.

        Bookies are sent how far readers may see; leaving an `async with` block by an exception also waits until they
        have it.
        """
        self._is_closed = True
        if self._engine is not None:
            self._engine.fail(WriterFailed(f"{self._context.name}: the writer was aborted"))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            was_reported = self._is_reported
            try:
                await self.close()
            except Error as closing:
                if not may_end_quietly(closing, None, is_reported=was_reported):
                    raise
        elif kind is QuotaExceeded:
            with suppress(Error):
                await self.close()
        elif self._engine is not None:
            try:
                with suppress(Error, TimeoutError):
                    async with asyncio.timeout(PUBLISH_S):
                        await self._publish(self._engine)
            finally:
                self.abort()


class Bounded(Protocol):
    """What takes appends, and ends by its first failure: a writer's engine, or a producer's."""

    failure: Error | None

    @property
    def queue(self) -> HasRoom:
        """What was taken."""

    def unsent(self) -> Error:
        """Return the error of an append that was never sent, of one that has ended."""


class HasRoom(Protocol):
    """What counts bytes that are not acknowledged."""

    @property
    def has_room(self) -> bool:
        """Whether they are within their bound."""


class Backpressure:
    """Room for an opened writer's appends: who waits for it, in which order, and for how long.

    Appends that wait hold the gate one after the other, in the order of their calls (INV-S5).
    Meanwhile no other append may pass them, so `append_nowait` is refused although bytes may have
    become free.

    Attributes:
        waiting: appends that wait for room.
    """

    def __init__(self, engine: Bounded, progress: asyncio.Event, name: str) -> None:
        """`progress`: set when there may be room again, or the engine has ended. `name`: the stream's."""
        self._engine = engine
        self._progress = progress
        self._name = name
        self._gate = asyncio.Lock()
        self._ready_calls = 0
        self.waiting = 0

    @property
    def may_pass(self) -> bool:
        """Whether an append may be taken at once: there is room, and nobody waits for it."""
        return not self.waiting and self._engine.queue.has_room

    def check_no_waiters(self) -> None:
        """Raise BufferFull where an append that is taken now would pass others."""
        if self.waiting:
            raise BufferFull(f"{self.waiting} appends wait for room: await ready()")

    async def append(self, take: Callable[[], asyncio.Future[T]], timeout_s: float | None) -> T:
        """Call `take`, now or when its turn has come and there is room, and await what it returns.

        Raises BufferFull where too many wait, QuorumTimeout.
        """
        if self.waiting >= WAITING_MAX:
            raise BufferFull(f"{WAITING_MAX} appends wait for room already: await them")
        taken = self._taken_now(take)
        try:
            async with asyncio.timeout(timeout_s):
                if taken is None:
                    taken = await self._taken_in_turn(take)
                return await taken
        except TimeoutError:
            raise QuorumTimeout(
                f"{self._name}: the append was not acknowledged within {timeout_s:g} s",
                outcome="not_written" if taken is None else "unknown",
            ) from None

    async def taken(self, take: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Call `take`, now or when its turn has come and there is room; return what it returns."""
        return self._taken_now(take) or await self._taken_in_turn(take)

    def _taken_now(self, take: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T] | None:
        """Call `take`; None where it has to wait: for others, for room, or since it is larger than what is left."""
        if not self.may_pass:
            return None
        try:
            return take()
        except BufferFull:
            return None

    async def _taken_in_turn(self, take: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        self.waiting += 1
        try:
            async with self._gate:
                while True:
                    await self._until_room()
                    try:
                        return take()
                    except BufferFull:
                        # Larger than what is left: each acknowledgement leaves more. Alone it is always taken.
                        self._progress.clear()
                        await self._progress.wait()
        finally:
            self.waiting -= 1

    async def ready(self) -> None:
        """Return when there is room, behind all that wait for it; now and then let other tasks run.

        Raises what ended the writer.
        """
        self._ready_calls += 1
        if self.waiting or self._ready_calls % CALLS_PER_TURN == 0:
            await asyncio.sleep(0)
        async with self._gate:
            await self._until_room()

    async def passed(self) -> None:
        """Return when all that wait now have had their turn."""
        if self.waiting:
            async with self._gate:
                pass

    async def _until_room(self) -> None:
        engine = self._engine
        while engine.failure is None and not engine.queue.has_room:
            self._progress.clear()
            await self._progress.wait()
        if engine.failure is not None:
            raise engine.unsent()


async def end_segments(context: StreamContext, engine: AppendEngine, epoch: int) -> None:
    """Close the segment that is written, and remove the next one, which is empty. Raises what ended the writer."""
    lifecycle = engine.lifecycle
    engine.rolling.stop()
    if engine.segment is not None:
        lifecycle.end(engine.segment)
    await lifecycle.until_idle()
    if engine.failure is not None:
        raise engine.failure.copy()
    if lifecycle.ready is None:
        return
    # Nothing was written to it: it goes, and its ledger is deleted as it is.
    unused = lifecycle.take().ledger
    unused.abandon(ClientClosed(f"{context.name}: the writer was closed"))
    try:
        async with lifecycle.turn():
            lifecycle.known = await context.store.change(
                lambda chain: close_segment(chain, unused.ledger_id, Contents(0), epoch),
                lifecycle.known,
            )
    except MetadataConflict as error:
        engine.fail(error)
        raise WriterFenced(
            f"{context.name}: another writer has opened it: {error}", outcome="written"
        ) from error


def _ended_too_late(context: StreamContext, engine: AppendEngine) -> QuorumTimeout:
    """Return the error of a segment that could not be ended in time, with what kept it as its cause."""
    trouble = engine.lifecycle.trouble or slots_of(context.client).trouble
    error = QuorumTimeout(
        f"{context.name}: its segment could not be ended in time ({trouble}); all appends are kept, and it is"
        " ended when that is possible, by whoever writes the stream then",
        outcome="written",
    )
    error.__cause__ = trouble
    return error


def owned_record(
    payload: Data, key: Data | None, headers: HeadersLike
) -> tuple[bytes, bytes | None, bytes]:
    """Return a record's payload, key and headers as copies that nobody changes. Raises WrongType, ConfigError."""
    data = payload if type(payload) is bytes else owned_bytes(payload, "payload")
    if key is not None and type(key) is not bytes:
        key = owned_bytes(key, "key")
    return data, key, b"" if headers == () or headers is None else put_headers(headers)


def owned_batch(
    payloads: Sequence[Data],
    txids: Sequence[int] | None,
    keys: Sequence[Data | None] | None,
    headers: Sequence[HeadersLike] | None,
) -> tuple[list[bytes], Sequence[int] | None, list[bytes | None] | None, list[bytes] | None]:
    """Return a batch as copies that nobody changes. Raises WrongType, ConfigError."""
    datas = owned_list(payloads, "payloads")
    beside = (txids, keys, headers)
    if not datas or any(one is not None and len(one) != len(datas) for one in beside):
        raise ConfigError(
            "a batch has at least one record, and as many ids, keys and headers as payloads"
        )
    owned_keys = None
    if keys is not None:
        owned_keys = [None if key is None else owned_bytes(key, "key") for key in keys]
    raw = None if headers is None else [put_headers(header) for header in headers]
    return datas, txids, owned_keys, raw


def rows_of(
    payloads: Iterable[T],
    txids: Iterable[int] | None,
    keys: Iterable[K] | None,
    headers: Iterable[H] | None,
) -> Iterable[tuple[T, int | None, K | None, H | tuple[()]]]:
    """Put payloads beside their ids, keys and headers. Raises ConfigError at once where they are not as many.

    Payloads with nothing beside them may come from a generator without an end.
    """
    is_one = isinstance(payloads, bytes | bytearray | memoryview | str)
    if is_one or not isinstance(payloads, Iterable):
        raise WrongType(f"payloads must be a list of buffers, not {type(payloads).__name__}")
    if txids is None and keys is None and headers is None:
        return ((payload, None, None, ()) for payload in payloads)
    datas = list(payloads)
    ids: list[int | None] = _beside(datas, txids, "transaction ids", None)
    named: list[K | None] = _beside(datas, keys, "keys", None)
    headed: list[H | tuple[()]] = _beside(datas, headers, "headers", ())
    return zip(datas, ids, named, headed, strict=True)


def _beside(datas: list[T], given: Iterable[H] | None, what: str, missing: K) -> list[H | K]:
    """Return what stands beside the records. Raises ConfigError where it is not as many, or no list."""
    if given is None:
        return [missing] * len(datas)
    if isinstance(given, bytes | bytearray | memoryview | str | Mapping):
        raise WrongType(f"{what} must be a list, one for each record, not {type(given).__name__}")
    beside: list[H | K] = list(given)
    if len(beside) != len(datas):
        raise ConfigError(f"{len(beside)} {what} were given for {len(datas)} records")
    return beside
