"""The producer of a stream, as applications use it: takes records, and says when they are stored.

`ProducerEngine` is the way of its records to the stream's owner, a write service: it sends what its window has, takes
answers, finds the owner again when that is lost, and ends the producer by the first failure.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from fastbk.client.async_tools import TAKEN_AWAY, SharedEnd, may_end_quietly
from fastbk.client.client import Client
from fastbk.client.connection import Answer
from fastbk.client.ledger_writer import called_by
from fastbk.errors import (
    AppendUnknown,
    BufferFull,
    ClientClosed,
    ConfigError,
    Error,
    MetadataUnavailable,
    NoWriteService,
    ProducerExpired,
    ProducerFenced,
    QuorumTimeout,
    QuotaExceeded,
    StreamNotFound,
    StreamSealed,
    Unauthorized,
    WriterFailed,
    WrongType,
)
from fastbk.native import client_codec as codec
from fastbk.observe.meter import (
    SENT,
    AppendClock,
    Figures,
    Latency,
    duration_figures,
    meter_of,
    sending,
)
from fastbk.observe.tracing import tracer_of
from fastbk.option_checks import checked_timeout
from fastbk.retry import Retry
from fastbk.stream.context import as_error
from fastbk.stream.options import ProducerOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.producer.service_links import (
    NotReady,
    OwnerSearch,
    ServiceLinks,
    Session,
    close_producer,
    links_of,
    refusal,
    text_of,
)
from fastbk.stream.producer.window import ProducerFrame, Window, WindowBounds
from fastbk.stream.provenance import NAME_BYTES_MAX, RANDOM_PREFIX
from fastbk.stream.records import HeadersLike
from fastbk.stream.writer.stream_writer import (
    Backpressure,
    Data,
    owned_batch,
    owned_record,
    rows_of,
)
from fastbk.stream.writer.traced_appends import TracedAppends
from fastbk.wire.statuses import Status

Place: TypeAlias = DLSN | None
"""Where a record is; None: it was stored before, by an append whose answer was lost."""
FRAMES_MAX = 64
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 0.5
"""Between two attempts to find the owner."""
_MAY_PASS = (NoWriteService, MetadataUnavailable)
"""Why an owner is not found now; all else ends the producer."""
_NAMED = (ProducerFenced, ProducerExpired, StreamNotFound, StreamSealed, QuotaExceeded)
"""What ends a producer, and is told as it is."""


def checked_name(name: str | None) -> str:
    """Return a producer's name, a random one for None. Raises WrongType, ConfigError."""
    if name is None:
        return RANDOM_PREFIX + secrets.token_hex(8)
    if not isinstance(name, str):
        raise WrongType(f"a producer's name is a text, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= NAME_BYTES_MAX or not name.isprintable() or name.startswith(RANDOM_PREFIX):
        raise ConfigError(
            f"{name[:100]!r} is no name of a producer: it has 1 to {NAME_BYTES_MAX} bytes of printable text, and does"
            f' not begin with "{RANDOM_PREFIX}" (random names do)'
        )
    return name


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Figures of one producer at one moment, since it was opened."""

    records: int
    """Acknowledged."""
    bytes: int
    """Bytes of their payloads, keys and headers."""
    appends_in_flight: int
    """Records and batches that were taken and are not acknowledged yet."""
    bytes_in_flight: int
    """What these count in the bound `unacked_bytes_max`: with some 30 bytes around each record."""
    appends_waiting: int
    """Appends that wait for room, and are not taken yet."""
    frames_resent: int
    """Groups of records that were sent again, after a lost connection or to another service."""
    owner_changes: int
    """How often it had to find the stream's owner again."""
    append_latency: Latency
    """Time of a record from the turn of the event loop that took it to its acknowledgement."""


class ProducerEngine:
    """One producer's way to the owner, from its opening to its end.

    Attributes:
        failure: what ended the producer, None while it goes on.
        last_dlsn: of the last record that was acknowledged to this producer, where that is known.
    """

    lost_event = "client.appends_lost"

    def __init__(
        self,
        client: Client,
        stream: str,
        options: ProducerOptions,
        name: str,
        session: Session,
        search: OwnerSearch,
        progress: asyncio.Event,
    ) -> None:
        """`progress` is set when there may be room again, or the producer has ended."""
        reply, config = session.reply, client.config
        self.failure: Error | None = None
        self.last_dlsn: DLSN | None = None
        self.window = Window(
            reply.last_number,
            WindowBounds(
                reply.entry_bytes_max, options.batch_bytes, options.unacked_bytes_max, FRAMES_MAX
            ),
            reply.pending_bytes_max,
        )
        tracer = tracer_of(config.tracing)
        if tracer is not None:
            self.window.intake = TracedAppends(tracer, self.window.queue, stream)
        self.clock = AppendClock()
        self.incarnation = reply.incarnation
        self._stream = stream
        self._name = name
        self._links: ServiceLinks = links_of(client)
        self._links.producers.add(self)
        self._unsettled = client.unsettled
        self._unsettled.add(self)
        self._limit_s = config.append_timeout
        self._loop = asyncio.get_running_loop()
        self._progress = progress
        self._session: Session | None = session
        self._search = search
        self._searching: asyncio.Task[None] | None = None
        self._trouble: Error | None = None
        """Why nothing is sent now."""
        self._retry = Retry(PAUSE_S_MIN, PAUSE_S_MAX)
        self._resending: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._turn_s = 0.0
        self._begun = 0
        self._progress_s = 0.0
        self._late_timer: asyncio.TimerHandle | None = None
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._records = self._record_bytes = self._owner_changes = 0
        meter = meter_of(config.tracing)
        self._source = None if meter is None else meter.add(sending(self._stream), self._figures)

    # --- figures --------------------------------------------------------------------------------------------------

    def stats(self, appends_waiting: int) -> ProducerStats:
        """Return the figures now. `appends_waiting`: for room."""
        queue = self.window.queue
        return ProducerStats(
            records=self._records,
            bytes=self._record_bytes,
            appends_in_flight=queue.taken - queue.settled,
            bytes_in_flight=queue.unacked_bytes,
            appends_waiting=appends_waiting,
            frames_resent=self.window.resent,
            owner_changes=self._owner_changes,
            append_latency=self.clock.histogram.latency(),
        )

    def _figures(self) -> Figures:
        stats = self.stats(0)
        return {
            SENT: stats.records,
            "fastbk.client.send.size": stats.bytes,
            "fastbk.client.send.pending": stats.appends_in_flight,
            "fastbk.client.send.buffered": stats.bytes_in_flight,
            "fastbk.client.send.resent": stats.frames_resent,
            **duration_figures("send", stats.append_latency),
        }

    @property
    def queue(self) -> Any:  # noqa: ANN401 -- as `Bounded` wants it
        """What was taken."""
        return self.window.queue

    # --- sending ------------------------------------------------------------------------------------------------

    def queued(self) -> None:
        """Something was taken: send it in the next turn of the loop, with all that this turn appends."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turn_s = time.monotonic()
            self._loop.call_soon(self._send_turn)

    def _send_turn(self) -> None:
        self._is_scheduled = False
        taken = self.window.queue.taken
        if self._begun < taken:
            self._begun = taken
            self.clock.begin(taken, self._turn_s)
        if self._late_timer is None and self.failure is None and not self.window.is_empty:
            self._progress_s = self._loop.time()
            self._late_timer = self._loop.call_later(self._limit_s, self._check_late)
        self._send()

    def _send(self) -> None:
        try:
            session = self._session
            if session is None:
                self._find_owner()
                return
            if self._resending is not None:
                return  # after a pause
            while (
                self.failure is None
                and self._session is session
                and (frame := self.window.next_frame()) is not None
            ):
                self._send_frame(session, frame)
        except BaseException as error:
            # A bug: the loop would only log it, and those who append would wait for ever.
            self.fail(as_error(error, f"the producer {self._name} of {self._stream}"))
            raise

    def _send_frame(self, session: Session, frame: ProducerFrame) -> None:
        request_id, numbers = self._links.next_request_id(), frame.numbers
        sent = codec.put_produce(
            request_id,
            session.reply.producer,
            frame.follows,
            numbers[0],
            len(numbers),
            frame.body,
            numbers if frame.has_gaps else None,
        )
        on_answer = partial(self._answered, session, frame, self.window.losses)
        session.connection.send_request(request_id, sent, on_answer)

    # --- answers ------------------------------------------------------------------------------------------------

    def _answered(
        self, session: Session, frame: ProducerFrame, losses: int, outcome: Answer | Error
    ) -> None:
        try:
            self._take_outcome(session, frame, losses, outcome)
        except BaseException as error:
            self.fail(as_error(error, f"the producer {self._name} of {self._stream}"))
            raise

    def _take_outcome(
        self, session: Session, frame: ProducerFrame, losses: int, outcome: Answer | Error
    ) -> None:
        if self.failure is not None:
            return
        if isinstance(outcome, Error):
            self._lose(session, outcome)
        elif outcome.status == Status.OK and outcome.kind == codec.PRODUCE_REPLY:
            place = None
            if outcome.segment:
                place = DLSN(outcome.segment, outcome.entry_id, outcome.slot)
            self._acknowledged(frame, place)
        elif session is not self._session:
            return  # what a former owner refuses is sent to this one
        elif outcome.status == Status.NOT_NEXT:
            if losses == self.window.losses:
                self.window.lost()
                self._resending = self._loop.call_later(self._retry.pause_s(), self._send_again)
        elif outcome.status == Status.MOVED:
            self._search.hint = text_of(outcome)
            self._lose(session, NotReady(f"its owner is {self._search.hint} now"))
        else:
            error = refusal(outcome, self._stream, self._name.encode())
            if isinstance(error, NotReady):
                self._lose(session, error)
            else:
                self.fail(error)

    def _send_again(self) -> None:
        self._resending = None
        self._send()

    def _acknowledged(self, frame: ProducerFrame, place: Place) -> None:
        self._progress_s = self._loop.time()
        self._retry.restart()
        done = self.window.answered(frame, place)
        if not done:
            return
        self.clock.finish(self.window.queue.settled)
        for stored in done:
            count, first = len(stored.numbers), stored.place
            self._records += count
            self._record_bytes += stored.data_bytes
            if first is None:
                for waiter in stored.group.waiters:
                    if not waiter.done():
                        waiter.set_result(None)
                continue
            segment, entry, slot = first
            self.last_dlsn = DLSN(segment, entry, slot + count - 1)
            for index, waiter in enumerate(stored.group.waiters, slot):
                if not waiter.done():
                    waiter.set_result(DLSN(segment, entry, index))
        self._wake_flushed()
        if self._session is not None:
            self._send()
        self._progress.set()

    # --- the owner ------------------------------------------------------------------------------------------------

    def _lose(self, session: Session, error: Error) -> None:
        """The owner is another one, or is not reached: find it, and send again what is not answered (INV-S32)."""
        if session is not self._session:
            return
        self._session, self._trouble = None, error
        self._cancel_resending()
        self._owner_changes += 1
        self.window.lost()
        if not self.window.is_empty:
            self._find_owner()

    def _find_owner(self) -> None:
        if self._searching is None and self.failure is None:
            self._searching = self._loop.create_task(
                self._resume(), name=f"fastbk owner of {self._stream}"
            )

    async def _resume(self) -> None:
        """Go on with the same opening at whoever owns the stream now."""
        try:
            retry = Retry(PAUSE_S_MIN, PAUSE_S_MAX)
            while self.failure is None:
                try:
                    session = await self._search.attempt(self.incarnation, self._limit_s)
                except (*_MAY_PASS, Unauthorized) as error:
                    # A token that has just ended is renewed: it was good when this was opened.
                    self._trouble = error
                    await asyncio.sleep(retry.pause_s())
                else:
                    self._session, self._trouble = session, None
                    self.window.pending_bytes_max = session.reply.pending_bytes_max
                    break
        except Exception as error:  # noqa: BLE001 -- told to those who append
            self._searching = None
            self.fail(as_error(error, f"the producer {self._name} of {self._stream}"))
            return
        finally:
            self._searching = None
        self._send()

    def _check_late(self) -> None:
        """End the producer where nothing was acknowledged for as long as an append may take."""
        self._late_timer = None
        if self.failure is not None or self.window.is_empty:
            return
        left_s = self._progress_s + self._limit_s - self._loop.time()
        if left_s > 0:
            self._late_timer = self._loop.call_later(left_s, self._check_late)
            return
        reason = f": {self._trouble}" if self._trouble is not None else ""
        late = QuorumTimeout(f"not acknowledged within {self._limit_s:g} s{reason}")
        late.__cause__ = self._trouble
        self.fail(late)

    # --- the end ------------------------------------------------------------------------------------------------

    def fail(self, error: Error) -> None:
        """End the producer, unless it has ended: the first cause counts."""
        if self.failure is None:
            self.failure = self._failure_of(error)
            self._give_up(self.failure)
        self.stop()

    def block(self, error: Error) -> None:
        """Refuse everything, and touch nothing: it lives in a forked child."""
        self.failure = self.failure or error

    def _failure_of(self, error: Error) -> Error:
        """Return what a producer says that this error has ended. The outcome is that of appends that were sent."""
        named = (WriterFailed, ClientClosed, *_NAMED)
        if isinstance(error, named):
            return error.copy()
        failed = WriterFailed(
            f"{self._stream}: an append of producer {self._name} failed: {error}", outcome="unknown"
        )
        failed.__cause__ = error
        return failed

    def _give_up(self, failure: Error) -> None:
        unknown, unsent = self._unknown(failure), self.unsent()
        frames, self.window.frames = list(self.window.frames), type(self.window.frames)()
        groups = self.window.queue.groups
        ended = [(frame.group, unknown) for frame in frames]
        ended += [(group, unsent) for group in groups]
        groups.clear()
        for group, error in ended:
            self.window.queue.acknowledged(group)
            group.give_up(error)
        self._wake_flushed()
        self._progress.set()

    def _unknown(self, failure: Error) -> Error:
        """Return the error of an append that was sent, of a producer that ended so."""
        cause = failure.__cause__ or failure
        error: Error
        if isinstance(failure, _NAMED):
            error = failure.copy()
            error.outcome = "unknown"
            return error
        error = AppendUnknown(
            f"{self._stream}: {cause}; it may be kept: open producer {self._name} again and look at last_number"
        )
        error.__cause__ = cause
        return error

    def unsent(self) -> Error:
        """Return the error of an append that was never sent, of a producer that has ended."""
        assert self.failure is not None
        error = self.failure.copy()
        error.outcome = "not_written"
        return error

    def _cancel_resending(self) -> None:
        if self._resending is not None:
            self._resending.cancel()
            self._resending = None

    def stop(self) -> None:
        """Find no owner any more, and tell the present one that this producer is done."""
        self._unsettled.discard(self)
        self._links.producers.discard(self)
        if self._source is not None:
            self._source.close()
        self._cancel_resending()
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        if self._searching is not None:
            self._searching.cancel()
        session, self._session = self._session, None
        if session is not None:
            close_producer(self._links, session.connection, session.reply.producer)

    # --- settling -----------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """What it has taken."""
        return f"appends to stream {self._stream}"

    @property
    def is_unsettled(self) -> bool:
        """Whether records were taken that are neither acknowledged nor have failed."""
        return self.window.queue.settled < self.window.queue.taken

    @property
    def trouble(self) -> str:
        """Why records have failed; empty: none has."""
        return "" if self.failure is None else str(self.failure)

    async def until_settled(self) -> None:
        """Return when all that was taken so far is acknowledged, or has failed."""
        queue = self.window.queue
        if queue.settled < queue.taken:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((queue.taken, future))
            await future

    def _wake_flushed(self) -> None:
        while self._flushing and self._flushing[0][0] <= self.window.queue.settled:
            _, future = self._flushing.pop(0)
            if not future.done():
                future.set_result(None)


class Producer:
    """Appends to one stream beside any number of others; made by `Stream.producer()`. Tasks of one loop may share it.

    `async with` opens it: a producer that has the same name, in whatever process, is fenced. Leaving the block flushes
    and closes. Each record has a number, which rises within the name. Give it, and go on behind `last_number` after a
    crash: then each record is stored exactly once. Without numbers that holds over crashes of services and bookies.
    The first append that fails ends the producer. Cancelling the await of an append's future withdraws nothing.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        name: str,
        options: ProducerOptions,
        make_stream: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`stream`: its path, which the service looks up: no right to read metadata is needed."""
        self.name = name
        """Also of a random one."""
        self._client = client
        self._stream = stream
        self._make_stream = make_stream
        self._options = options
        self._engine: ProducerEngine | None = None
        self._is_closed = False
        self._is_reported = False
        """A call has raised that another has the name, or has deleted the stream."""
        self._end = SharedEnd()

    @property
    def last_number(self) -> int:
        """The number of the last record that is stored: when it was opened, then as acknowledged; -1: none is."""
        return self._opened().window.acknowledged_number

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last record that was acknowledged to this producer; None before, or if nobody knows."""
        return self._opened().last_dlsn

    @property
    def unacked_bytes(self) -> int:
        """What was appended and not acknowledged yet."""
        return self._opened().window.queue.unacked_bytes

    @property
    def failure(self) -> Error | None:
        """What ended the producer; None while it goes on."""
        return self._opened().failure

    def stats(self) -> ProducerStats:
        """Return this producer's figures now."""
        return self._opened().stats(self._backpressure.waiting)

    def __repr__(self) -> str:
        engine, what = self._engine, f"{self.name} of {self._stream}"
        if engine is None or self._is_closed:
            return f"<Producer {what}, {'closed' if self._is_closed else 'not open'}>"
        unacked_bytes = engine.window.queue.unacked_bytes
        state = f"last {engine.window.acknowledged_number}, {unacked_bytes} bytes not acknowledged"
        return f"<Producer {what}: {state if engine.failure is None else engine.failure}>"

    def _opened(self) -> ProducerEngine:
        if self._engine is None:
            raise ClientClosed(f"the producer of {self._stream} is not open: use `async with`")
        return self._engine

    def _check(self) -> ProducerEngine:
        """Return the engine if appends can be taken. Raises what ended it, of an append that was not sent."""
        engine = self._opened()
        if engine.failure is not None:
            raise engine.unsent()
        if self._is_closed:
            raise ClientClosed(f"the producer of {self._stream} is closed")
        return engine

    async def open(self) -> None:
        """Open the name at the stream's owner; `async with` does it. Tries for as long as an append may take.

        Raises NoWriteService where none answers in that time; WrongStreamKind, StreamNotFound, StreamSealed,
        QuotaExceeded (TooManyProducers: of names), Unauthorized at once.
        """
        if self._engine is not None or self._is_closed:
            raise ClientClosed(
                f"the producer of {self._stream} was opened before: make another one"
            )
        if self._make_stream is not None:
            await self._make_stream()
        client = self._client
        limit_s = client.config.append_timeout
        search = OwnerSearch(links_of(client), self._stream, self.name.encode())
        retry = Retry(PAUSE_S_MIN, PAUSE_S_MAX, give_up_s=limit_s)
        while True:
            try:
                session = await search.attempt(0, limit_s)
            except _MAY_PASS as error:
                await asyncio.sleep(retry.pause_s(error))
            else:
                break
        self._loop = asyncio.get_running_loop()
        progress = asyncio.Event()
        engine = ProducerEngine(
            client, self._stream, self._options, self.name, session, search, progress
        )
        self._backpressure = Backpressure(engine, progress, self._stream)
        self._engine = engine

    # --- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        payload: Data,
        *,
        number: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Place]:
        """Append a record, and return its position once it is stored. To be awaited, or made a task.

        None: an append whose answer was lost has stored it before. Waits for room first, in the order in which appends
        begin to wait. `timeout` covers all of it, in seconds: QuorumTimeout, and the producer goes on. `number` None:
        one more than the last. Raises, and nothing was taken: ConfigError (a number that does not rise),
        RecordTooLarge, BufferFull when 10,000 wait for room, what ended the producer (ProducerFenced, ProducerExpired,
        WriterFailed).
        """
        limit_s = checked_timeout(timeout)
        data, raw_key, raw = owned_record(payload, key, headers)

        def take(engine: ProducerEngine) -> asyncio.Future[Place]:
            return self._take(engine, data, number, raw_key, raw)

        return called_by(self._append(take, limit_s), "Producer.append")

    async def _append(
        self, take: Callable[[ProducerEngine], asyncio.Future[Place]], timeout_s: float | None
    ) -> Place:
        try:
            engine = self._check()
            if timeout_s is None and self._backpressure.may_pass:
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
        number: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> asyncio.Future[Place]:
        """Take a record and return a future of its position, resolved when it is stored, in call order.

        As `append`, but it waits for no room: BufferFull (await `ready()`).
        """
        try:
            return self._admit(*owned_record(payload, key, headers), number)
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    def _admit(
        self, data: bytes, key: bytes | None, headers: bytes, number: int | None
    ) -> asyncio.Future[Place]:
        """Do as `append_nowait` with what `owned_record` returned; for `fastbk.sync`."""
        engine = self._check()
        self._backpressure.check_no_waiters()
        return self._take(engine, data, number, key, headers)

    def _take(
        self,
        engine: ProducerEngine,
        data: bytes,
        number: int | None,
        key: bytes | None,
        headers: bytes,
    ) -> asyncio.Future[Place]:
        future: asyncio.Future[Place] = self._loop.create_future()
        engine.window.put(data, number, key, headers, future)
        engine.queued()
        return future

    def append_batch(
        self,
        payloads: Sequence[Data],
        *,
        numbers: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Place]:
        """Append records that are all kept or none: they become one entry. Returns the first one's position.

        The others follow it, slot by slot. Waits and raises as `append`, and ConfigError for an empty batch. What has
        more than the service's `entry_bytes_max` bytes is RecordTooLarge.
        """
        limit_s = checked_timeout(timeout)
        owned = owned_batch(payloads, numbers, keys, headers)

        def take(engine: ProducerEngine) -> asyncio.Future[Place]:
            return self._take_batch(engine, *owned)

        return called_by(self._append(take, limit_s), "Producer.append_batch")

    def append_batch_nowait(
        self,
        payloads: Sequence[Data],
        *,
        numbers: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
    ) -> asyncio.Future[Place]:
        """Append as `append_batch`, but wait for no room: BufferFull (await `ready()`). Returns a future."""
        try:
            return self._admit_batch(*owned_batch(payloads, numbers, keys, headers))
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    def _admit_batch(
        self,
        datas: Sequence[bytes],
        numbers: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
    ) -> asyncio.Future[Place]:
        """Do as `append_batch_nowait` with what `owned_batch` returned; for `fastbk.sync`."""
        engine = self._check()
        self._backpressure.check_no_waiters()
        return self._take_batch(engine, datas, numbers, keys, headers)

    def _take_batch(
        self,
        engine: ProducerEngine,
        datas: Sequence[bytes],
        numbers: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
    ) -> asyncio.Future[Place]:
        future: asyncio.Future[Place] = self._loop.create_future()
        engine.window.put_batch(datas, numbers, keys, headers, future)
        engine.queued()
        return future

    def append_many(
        self,
        payloads: Iterable[Data],
        *,
        numbers: Iterable[int] | None = None,
        keys: Iterable[Data | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
    ) -> Coroutine[Any, Any, tuple[Place, Place]]:
        """Append records one behind the other (not atomic); return the first and the last one's position.

        Waits for room, and for the last acknowledgement. Raises ConfigError, and nothing was sent, for no record, and
        for another number of `numbers`, `keys` or `headers` than of payloads; otherwise what `append` raises.
        """
        rows = rows_of(payloads, numbers, keys, headers)
        return called_by(self._append_many(rows), "Producer.append_many")

    async def _append_many(
        self, rows: Iterable[tuple[Data, int | None, Data | None, HeadersLike]]
    ) -> tuple[Place, Place]:
        first = last = None
        try:
            for payload, number, key, headers in rows:
                await self.ready()
                data, raw_key, raw = owned_record(payload, key, headers)
                last = await self._backpressure.taken(
                    lambda: self._take(self._check(), data, number, raw_key, raw)  # noqa: B023
                )
                first = first or last
            if first is None or last is None:
                raise ConfigError("append_many needs at least one record")
            end = await last
            return await first, end
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    async def ready(self) -> None:
        """Return when `append_nowait` has room; raises what ended the producer.

        Lets other tasks run now and then while there is room, too: a loop of `ready` and `append_nowait` stalls none.
        """
        try:
            self._check()
            await self._backpressure.ready()
            self._check()
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    async def flush(self, *, timeout: float | None = None) -> Place:
        """Wait until all appends so far are acknowledged; return the last one's position. Raises what ended it.

        QuorumTimeout after `timeout` seconds; the producer goes on. None: as long as an append may take.
        """
        engine = self._opened()
        try:
            async with asyncio.timeout(checked_timeout(timeout)):
                await self._backpressure.passed()
                await engine.until_settled()
        except TimeoutError:
            raise QuorumTimeout(
                f"{self._stream}: not all was acknowledged within {timeout:g} s"
            ) from None
        if engine.failure is not None:
            self._is_reported = True
            raise engine.failure.copy()
        return engine.last_dlsn

    # --- the end ------------------------------------------------------------------------------------------------

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush, and take no more appends. Raises what ended the producer.

        Cancelled, it is an `abort`; after `timeout` seconds, too: QuorumTimeout. Called again, it waits for the first
        call's end, and raises the same. The name and its last number stay in the stream.
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
            raise QuorumTimeout(f"{self._stream}: not closed within {timeout:g} s") from None

    async def _close(self, engine: ProducerEngine) -> None:
        try:
            await self.flush()
        finally:
            engine.stop()

    def abort(self) -> None:
        """Take no more appends and wait for nothing: what is under way is decided by the stream's owner."""
        self._is_closed = True
        if self._engine is not None:
            self._engine.fail(WriterFailed(f"{self._stream}: the producer was aborted"))

    async def __aenter__(self) -> Producer:
        await self.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            self.abort()
            return
        was_reported = self._is_reported
        try:
            await self.close()
        except Error as closing:
            if not may_end_quietly(closing, None, is_reported=was_reported):
                raise
