"""The owner of one stream of producers: takes the stream over, and appends what its producers send.

`StreamOwner` is what a write service has of a stream. Its queue asks the table (`table.py`) about each frame when the
frame's entry is packed, not before: so an entry has the rows of all that it brings, and the table is never ahead of
what was sent by more than that entry (INV-S23). Answers wait for their entry (INV-S26).

INV-S37: an owner whose append fails answers nothing more, and its table is thrown away. It does not go on in another
segment, as the writer of a stream may (INV-S16): what was to be sent again would follow a table that has it already.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastbk.errors import Error, ProducerExpired, ProducerFenced, TooManyProducers
from fastbk.native.stream_codec import (
    CODEC_NONE,
    HEAD_BYTES,
    KIND_PROVENANCE,
    KIND_RECORDS,
    PROVENANCE_BYTES_MIN,
    Head,
    check_body,
    put_head,
)
from fastbk.observe.tracing import Span
from fastbk.producers.table import NO_NUMBER, Frame, NotNext, OwnerTable, TableOptions
from fastbk.stream.chain import Chain, StreamKind, release
from fastbk.stream.chain_store import VersionedChain
from fastbk.stream.context import StreamContext, clock_us
from fastbk.stream.kind import table_of
from fastbk.stream.opening import check_bookies, delete_pending, open_stream, slots_of
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import Row, put_producers
from fastbk.stream.writer.engine import AppendEngine, StreamWriterStats
from fastbk.stream.writer.queue import EntryPlace
from fastbk.stream.writer.stream_writer import end_segments

OPTIONS = WriterOptions(
    batch_bytes=256 * 1024, unacked_bytes_max=256 * 1024 * 1024, entry_bytes_max=1024 * 1024
)
"""How an owner packs. What it holds is bounded by the service: `pending_bytes` says how much that is."""
Bytes = bytes | memoryview


class OwnerEnded(Error):
    """The owner has ended, and nobody knows what became of this. The next owner does: go on there."""

    default_retryable = True
    default_outcome = "unknown"


@dataclass(slots=True, eq=False)
class Request:
    """A frame, or the opening of a name, until it is answered.

    Attributes:
        frame: None: an opening.
        slot: of the first new record in its entry; -1: all was stored before.
        opened: the row of an opening.
        refusal: why nothing of it is taken; told behind an entry (INV-S26).
    """

    name: bytes
    frame: Frame | None
    body: Bytes
    future: asyncio.Future[Any]
    slot: int = -1
    opened: Row | None = None
    refusal: Error | None = None
    is_atomic = True

    @property
    def size_bytes(self) -> int:
        """Bytes of its records."""
        return len(self.body)

    @property
    def waiters(self) -> tuple[Request, ...]:
        """Itself: what an entry settles."""
        return (self,)

    def answer(self, segment: int, entry: int) -> None:
        """Tell its outcome: the entry with all of it is durable."""
        if self.future.done():
            return
        if self.refusal is not None:
            self.future.set_exception(self.refusal)
        elif self.frame is None:
            self.future.set_result(self.opened)
        else:
            self.future.set_result(None if self.slot < 0 else DLSN(segment, entry, self.slot))

    def give_up(self, error: Error) -> None:
        """Its owner has ended."""
        if not self.future.done():
            self.future.set_exception(OwnerEnded(str(error)))
            self.future.exception()  # its producer may have gone


class FrameGroup:
    """Frames and openings that go into one entry: an `EntryGroup`."""

    span: Span | None = None
    is_atomic = True

    def __init__(self, queue: FrameQueue) -> None:
        self.waiters: list[Request] = []
        self.count = 0
        self.data_bytes = 0
        self.first_txid = self.last_txid = queue.last_txid
        self._queue = queue
        self._bodies: list[Bytes] = []

    @property
    def size_bytes(self) -> int:
        """The most that the entry takes: where that has room, the entry is sent, since it is encoded only once."""
        block_bytes = PROVENANCE_BYTES_MIN + self._queue.table.block_bytes_max
        return HEAD_BYTES + block_bytes + self.data_bytes

    def add(self, body: Bytes, count: int) -> int:
        """Put a frame's new records behind the others; return the slot of the first."""
        slot = self.count
        if not slot:
            self.first_txid += 1
        self._bodies.append(body)
        self.count += count
        self.last_txid += count
        self.data_bytes += len(body)
        return slot

    def encode(self, place: EntryPlace) -> bytearray:
        """Return the entry; the table is that of what was sent from now on."""
        table = self._queue.table
        if place.entry_id == 0:
            table.begin_segment()
        block = put_producers(table.entry(self.data_bytes, place.time_us))
        out = bytearray(HEAD_BYTES)
        out += block
        for body in self._bodies:
            begin = len(out)
            out += body
            out[begin] = 1  # transaction ids go on from the frame before
        if self.count:
            out[HEAD_BYTES + len(block)] = 0
        head = Head(
            KIND_RECORDS if self.count else KIND_PROVENANCE,
            CODEC_NONE,
            place.epoch,
            self.count,
            place.records,
            self.first_txid,
            self.last_txid,
            place.time_us,
            self.data_bytes,
            self.data_bytes,
            len(block),
            0 if self.count else place.records_distance,
        )
        put_head(out, head)
        self._bodies.clear()
        self._queue.in_flight.append(self)
        return out

    def resolve(self, segment: int, entry: int) -> None:
        """It is durable: answer all that waited for it, and what came after it and needed no entry."""
        self._queue.table.durable()
        self._queue.in_flight.popleft()
        for request in self.waiters:
            request.answer(segment, entry)

    def give_up(self, error: Error) -> None:
        """Its owner has ended."""
        for request in self.waiters:
            request.give_up(error)


class FrameQueue:
    """Frames and openings that wait to be packed: an `EntryQueue`. It asks the table about each when it packs it."""

    may_resend = False

    def __init__(self, table: OwnerTable, last_txid: int) -> None:
        self.table = table
        self.groups: deque[Request | FrameGroup] = deque()
        self.in_flight: deque[FrameGroup] = deque()
        """Entries that were sent."""
        self.last_txid = last_txid
        self.unacked_bytes = 0
        self.taken = 0
        self.settled = 0
        self._waiting_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether what is not acknowledged is within its bound."""
        return self.unacked_bytes <= OPTIONS.unacked_bytes_max

    def put(self, request: Request) -> None:
        """Take a request."""
        self.groups.append(request)
        self.taken += 1
        self.unacked_bytes += request.size_bytes
        self._waiting_bytes += request.size_bytes

    def take(self, *, only_full: bool) -> FrameGroup | None:
        """Pack the first requests into an entry."""
        while self.groups:
            first = self.groups[0]
            if isinstance(first, FrameGroup):  # there was no room for it
                self.groups.popleft()
                return first
            if only_full and self._waiting_bytes < OPTIONS.batch_bytes // 2:
                return None
            group = FrameGroup(self)
            for request in self._packed_next():
                self._admit(request, group)
            self.last_txid = group.last_txid
            if self.table.wants_entry:
                return group
            if self.in_flight:
                # Only repeats: behind all that was sent up to now their originals are durable (INV-S26).
                self.in_flight[-1].waiters += group.waiters
            else:
                self.acknowledged(group)
                for request in group.waiters:
                    request.answer(0, NO_NUMBER)
        return None

    def _packed_next(self) -> Iterator[Request]:
        """Yield requests as long as an entry has room: one at least."""
        size_bytes = 0
        while self.groups:
            request = self.groups[0]
            if isinstance(request, FrameGroup):
                return
            if size_bytes and size_bytes + request.size_bytes > OPTIONS.batch_bytes:
                return
            self.groups.popleft()
            self._waiting_bytes -= request.size_bytes
            size_bytes += request.size_bytes or 1
            yield request

    def _admit(self, request: Request, group: FrameGroup) -> None:
        now_us, frame = clock_us(), request.frame
        try:
            if frame is None:
                request.opened = self.table.open(request.name, now_us)
            else:
                first = self.table.take(frame, now_us)
                count = len(frame.numbers) - first
                if count:
                    body = request.body
                    if first:
                        body = memoryview(body)[check_body(body, len(frame.numbers), first) :]
                    request.slot = group.add(body, count)
        except (NotNext, ProducerFenced, ProducerExpired, TooManyProducers) as error:
            request.refusal = error
        group.waiters.append(request)

    def acknowledged(self, group: FrameGroup | Request) -> None:
        """Count what was acknowledged, or failed."""
        for request in group.waiters:
            self.unacked_bytes -= request.size_bytes
        self.settled += len(group.waiters)


class StreamOwner:
    """A stream's owner, from the takeover to its end. Belongs to one event loop.

    Attributes:
        epoch: of its opening.
    """

    def __init__(
        self, context: StreamContext, known: VersionedChain, engine: AppendEngine, queue: FrameQueue
    ) -> None:
        """`take_over` makes it."""
        self.epoch = known.chain.epoch
        self._context = context
        self._engine = engine
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._on_end: list[Callable[[], None]] = []

    @classmethod
    async def take_over(
        cls, context: StreamContext, owner_name: str, options: TableOptions | None = None
    ) -> StreamOwner:
        """Take the stream over: whoever wrote it is fenced, and the table is read from the log.

        Raises WrongStreamKind, StreamSealed, StreamNotFound, QuotaExceeded, NotEnoughBookies, and what recovery and
        metadata raise; StorageError where the table cannot be read.
        """
        async with slots_of(context.client):
            policy = await context.policy()
            context.check_room()
            await check_bookies(context, policy)
            known = await open_stream(
                context.client, context.store, owner_name, StreamKind.PRODUCERS
            )
            rows = await table_of(context, known.chain)
            await delete_pending(context, known)
        table = OwnerTable(rows, known.chain.epoch, options or TableOptions())
        queue = FrameQueue(table, known.chain.last_txid)
        ended: list[StreamOwner] = []

        def on_progress() -> None:
            for owner in ended:
                owner._progressed()

        engine = AppendEngine(context, OPTIONS, known, policy, on_progress, queue)
        owner = cls(context, known, engine, queue)
        ended.append(owner)
        return owner

    @property
    def failure(self) -> Error | None:
        """What ended it; None while it goes on."""
        return self._engine.failure

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that are not answered yet."""
        return self._queue.unacked_bytes

    @property
    def names(self) -> int:
        """How many names its table has."""
        return len(self._queue.table.rows)

    def stats(self) -> StreamWriterStats:
        """Return its figures; `records` are those of all producers."""
        return self._engine.stats(0)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back once when it ends by a failure: another service took the stream, or bookies are away."""
        self._on_end.append(callback)

    def _progressed(self) -> None:
        if self._engine.failure is not None:
            callbacks, self._on_end = self._on_end, []
            for callback in callbacks:
                callback()

    def last_number(self, name: bytes, incarnation: int) -> int:
        """Return a name's last number, of what was sent; -1 where it has none, or is of another incarnation.

        A producer that goes on needs it for nothing: its frames are judged one by one.
        """
        row = self._queue.table.rows.get(name)
        return NO_NUMBER if row is None or row.incarnation != incarnation else row.last_number

    def open(self, name: bytes) -> asyncio.Future[Row]:
        """Open a name, which fences its other producers. The row is durable then, and all before it.

        The future raises TooManyProducers, OwnerEnded.
        """
        return self._put(name, None, b"")

    def close(self, name: bytes, incarnation: int) -> None:
        """Take in that a producer was closed, all of it acknowledged: a random name leaves the table."""
        self._queue.table.close(name, incarnation)

    def produce(self, frame: Frame, body: Bytes) -> asyncio.Future[DLSN | None]:
        """Append a frame; return a future of its first new record's position, None where all was stored before.

        `body`: records as `check_body` takes them; it is kept until then. The future raises NotNext, ProducerFenced,
        ProducerExpired; OwnerEnded where the next owner knows.
        """
        return self._put(frame.name, frame, body)

    def _put(self, name: bytes, frame: Frame | None, body: Bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        request = Request(name, frame, body, future)
        if self._engine.failure is not None:
            request.give_up(self._engine.failure)
        else:
            self._queue.put(request)
            self._engine.queued()
        return future

    async def release(self) -> None:
        """End as planned: all is answered, the segment is ended, and the chain names no owner.

        Raises what ended it before; then somebody else has the stream, or recovers it.
        """
        config, engine = self._context.client.config, self._engine
        try:
            async with asyncio.timeout(config.close_timeout):
                await engine.until_settled()
                await end_segments(self._context, engine, self.epoch)
                await self._context.store.change(self._without_owner)
        except TimeoutError:
            raise OwnerEnded(
                f"{self._context.name}: its segment could not be ended in time"
            ) from None
        finally:
            self.abandon()

    def _without_owner(self, chain: Chain) -> Chain:
        if chain.epoch == self.epoch and chain.open_rows:
            # Added by a change whose answer was lost: empty, and whoever opens the stream closes it.
            raise OwnerEnded(
                f"{self._context.name}: a segment that was begun is left to the next owner"
            )
        return release(chain, self.epoch)

    def abandon(self) -> None:
        """End at once: what is under way is decided by the next owner."""
        with suppress(Error):
            self._engine.fail(OwnerEnded(f"{self._context.name}: its owner has ended"))
