"""Appends without `await`, as writers and producers of streams have them in `fastbk.sync`.

An append puts its record into a queue and wakes the loop once for all that is in it: crossing over to the loop's thread
costs as much as dozens of appends. What can be wrong with a record is found in the caller's thread, at once. The step
into the queue is all of an append: an exception that is raised in the caller comes before it or behind it (INV-C3).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from fastbk.client.async_tools import TAKEN_AWAY, may_end_quietly
from fastbk.client.loop_thread import CHECK_S, AppendQueue, LoopThread, Notices, facade_text
from fastbk.errors import BufferFull, ClientClosed, ConfigError, Error, QuorumTimeout
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.context import as_error
from fastbk.stream.positions import DLSN
from fastbk.stream.records import HeadersLike
from fastbk.stream.writer.queue import check_entry, has_room_for, record_bytes
from fastbk.stream.writer.stream_writer import Data, owned_batch, owned_record, rows_of

_log = LibraryLog("fastbk.stream")
RESULT_TIMEOUT_S = 30.0
if TYPE_CHECKING:
    # Only here, where a type checker brings it along: `PendingRecord` alone is a writer's.
    from typing_extensions import TypeVar as DefaultedTypeVar

    D = DefaultedTypeVar("D", default=DLSN)
else:
    D = TypeVar("D")
"""What an append returns."""
T = TypeVar("T")


class Appending(Protocol):
    """An asyncio writer or producer."""

    _is_reported: bool

    @property
    def failure(self) -> Error | None:
        """What ended it."""

    async def open(self) -> None:
        """Open it."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush, and end it."""

    def abort(self) -> None:
        """End it."""

    def _admit(
        self, data: bytes, key: bytes | None, headers: bytes, number: int | None
    ) -> asyncio.Future[Any]:
        """Take a record."""

    def _admit_batch(
        self,
        datas: Sequence[bytes],
        numbers: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
    ) -> asyncio.Future[Any]:
        """Take records that are one entry."""


W = TypeVar("W", bound=Appending)
_Sending: TypeAlias = tuple[
    int, Callable[[int], int], Callable[[int], Callable[[Any], asyncio.Future[Any]]]
]
"""Bytes that a call appends; what returns its last number, of the one before; and of that what sends it."""


class PendingRecord(Generic[D]):
    """A record, or an atomic batch, that was appended; `result()` waits until it is kept."""

    __slots__ = ("_appends", "_context", "_failure", "_future")

    def __init__(self, appends: SyncAppends[Any, D], context: Context | None = None) -> None:
        """`context`: of its caller, whose span it may be in; None: it is in none."""
        self._appends = appends
        self._future: asyncio.Future[D] | None = None
        self._failure: Error | None = None
        self._context = context

    def done(self) -> bool:
        """Whether it is acknowledged or failed."""
        return self._failure is not None or (self._future is not None and self._future.done())

    def result(self, timeout: float | None = None) -> D:
        """Wait until it is acknowledged, and return its position (a batch: of its first record).

        Raises what the asyncio object's future does, and QuorumTimeout after `timeout` seconds (30): it may still be
        kept, and can be waited for again.
        """
        self._appends._wait(self.done, checked_timeout(timeout, RESULT_TIMEOUT_S))
        try:
            if self._failure is not None:
                raise self._failure.copy()
            assert self._future is not None
            return self._future.result()
        except TAKEN_AWAY:
            self._appends._is_reported = True
            raise


class Taken(NamedTuple):
    """What one call has appended, and what all calls have up to it. `last_number`: or transaction id."""

    pending: PendingRecord[Any]
    send: Callable[[Any], asyncio.Future[Any]]
    last_number: int
    given_bytes: int


class SyncAppends(Generic[W, D]):
    """What appends to one stream from any thread, by an asyncio object on the loop's thread.

    The order of calls is the order of records, the first failed append ends it, and leaving the `with` block by an
    exception aborts.
    """

    _kind = "writer"

    def __init__(
        self,
        loop: LoopThread[Client],
        make: Callable[[], W],
        entry_bytes_max: int,
        unacked_bytes_max: int,
    ) -> None:
        self._loop = loop
        self._make = make
        self._entry_bytes_max = entry_bytes_max
        self._unacked_bytes_max = unacked_bytes_max
        self._changed = Notices()
        self._queue = AppendQueue(loop, self._send, Taken(PendingRecord(self), _not_sent, -1, 0))
        self._is_traced = False
        self._is_closed = False
        self._is_aborted = False
        self._is_reported = False  # by a call, that another has the stream
        # Written on the loop only.
        self._inner: W | None = None
        self._settled_bytes = 0
        self._failure: Error | None = None

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    def _opened(self) -> W:
        self._loop.check()
        if self._inner is None:
            raise ClientClosed(f"this {self._kind} is not open: use `with`")
        return self._inner

    def _begin(self, inner: W) -> tuple[int, bool]:
        """Return the last number, or transaction id, of what was opened; and whether appends may be traced."""
        raise NotImplementedError

    def _next(self, number: int | None, last: int) -> int:
        """Return the number, or transaction id, of the record behind `last`. Raises what refuses `number`."""
        raise NotImplementedError

    @property
    def unacked_bytes(self) -> int:
        """What was appended and not acknowledged yet."""
        self._opened()
        return self._queue.last().given_bytes - self._settled_bytes

    def open(self) -> None:
        """Open it; `with` does it. Raises as the asyncio object's."""

        async def opened() -> W:
            inner = self._make()
            await inner.open()
            last_number, self._is_traced = self._begin(inner)
            self._queue.sent = self._queue.sent._replace(last_number=last_number)
            return inner

        self._inner = self._loop.call(opened, undo=lambda inner: inner.close())

    # --- appending ----------------------------------------------------------------------------------------------

    def _kept(self, sending: _Sending, timeout: float | None) -> D:
        """Append, and return the position once it is kept. QuorumTimeout after `timeout` seconds (30) for all of it."""
        limit_s = checked_timeout(timeout, RESULT_TIMEOUT_S)
        end_s = time.monotonic() + limit_s
        try:
            pending = self._put(sending, limit_s)
        except BufferFull as full:
            raise QuorumTimeout(f"not appended: {full}", outcome="not_written") from None
        return pending.result(max(0.0, end_s - time.monotonic()))

    def _sending(
        self, payload: Data, number: int | None, key: Data | None, headers: HeadersLike
    ) -> _Sending:
        data, owned_key, raw = owned_record(payload, key, headers)

        def sending(taken: int) -> Callable[[Any], asyncio.Future[Any]]:
            return lambda inner: inner._admit(data, owned_key, raw, taken)

        size = record_bytes(data, owned_key, raw)
        return size, lambda last: self._next(number, last), sending

    def _sending_batch(
        self,
        payloads: Sequence[Data],
        given: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[HeadersLike] | None,
    ) -> _Sending:
        datas, wanted, owned_keys, raw = owned_batch(payloads, given, keys, headers)
        size = sum(
            record_bytes(
                data,
                None if owned_keys is None else owned_keys[index],
                b"" if raw is None else raw[index],
            )
            for index, data in enumerate(datas)
        )

        def numbered(last: int) -> int:
            numbers.clear()
            for index in range(len(datas)):
                last = self._next(None if wanted is None else wanted[index], last)
                numbers.append(last)
            return last

        def sending(_: int) -> Callable[[Any], asyncio.Future[Any]]:
            return lambda inner: inner._admit_batch(datas, numbers, owned_keys, raw)

        numbers: list[int] = []
        return size, numbered, sending

    def _append_rows(
        self,
        payloads: Iterable[Data],
        numbers: Iterable[int] | None,
        keys: Iterable[Data | None] | None,
        headers: Iterable[HeadersLike] | None,
        timeout: float | None,
    ) -> tuple[D, D]:
        """Append records one behind the other, wait, and return the first and the last one's position.

        `timeout` is of each wait: for room, and at the end for the last acknowledgement.
        """
        limit_s = checked_timeout(timeout, RESULT_TIMEOUT_S)
        first: PendingRecord[D] | None = None
        last: PendingRecord[D] | None = None
        for payload, number, key, given in rows_of(payloads, numbers, keys, headers):
            last = self._put(self._sending(payload, number, key, given), limit_s)
            first = first or last
        if first is None or last is None:
            raise ConfigError("append_many needs at least one record")
        end = last.result(timeout)
        return first.result(timeout), end

    def _put(self, sending: _Sending, limit_s: float) -> PendingRecord[D]:
        """Wait for room, and put what is appended into the queue. Raises BufferFull, what ended the writer."""
        pending: PendingRecord[D] = PendingRecord(self, copy_context() if self._is_traced else None)
        size, numbered, made = sending
        check_entry(size, self._entry_bytes_max)
        end_s = time.monotonic() + limit_s
        while True:
            self._check_taking()  # also: in a forked child the lock may be held for ever
            with self._queue.lock:
                if self._has_room(size):
                    last = self._queue.last()
                    number, given_bytes = numbered(last.last_number), last.given_bytes + size
                    self._queue.put(Taken(pending, made(number), number, given_bytes))
                    return pending
            self._wait_for_room(size, end_s, limit_s)

    def _check_taking(self) -> None:
        """Raise what ended the writer: of an append that was not sent."""
        inner = self._opened()
        # Whoever has been told of the failure may be here before the loop has come to `_settled`.
        if (ended := self._failure or inner.failure) is not None:
            failure = ended.copy()
            failure.outcome = "not_written"
            self._is_reported = self._is_reported or isinstance(failure, TAKEN_AWAY)
            raise failure
        if self._is_closed:
            raise ClientClosed(f"this {self._kind} is closed")

    def _has_room(self, size: int) -> bool:
        return has_room_for(size, self.unacked_bytes, self._unacked_bytes_max)

    def _wait_for_room(self, size: int, end_s: float, limit_s: float) -> None:
        """Return when there may be room, or the writer has ended. Raises BufferFull."""
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            # What was told to be kept may not be counted yet: the loop does so with its next turn.
            self._loop.call_plain(lambda: None)
            if self._has_room(size):
                return
            raise BufferFull(
                f"{self.unacked_bytes} bytes are not acknowledged after {limit_s:g} s: call ready() and try again"
            )
        self._changed.wait(
            lambda: self._has_room(size) or self._failure is not None, min(left_s, CHECK_S)
        )

    def _wait(self, is_done: Callable[[], bool], limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while not is_done():
            self._loop.check()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise QuorumTimeout(f"not acknowledged after {limit_s:g} s", outcome="unknown")
            # Woken by acknowledgements; a client that is closed meanwhile wakes nobody.
            self._changed.wait(is_done, min(left_s, CHECK_S))

    # --- on the loop --------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Hand all that is queued to the asyncio object. The client may be closing: then that refuses, or takes it."""
        inner = self._inner
        assert inner is not None
        last: asyncio.Future[Any] | None = None
        for taken in self._queue.taken():
            pending = taken.pending
            try:
                if pending._context is None:
                    last = taken.send(inner)
                else:
                    last = pending._context.run(taken.send, inner)
                pending._future = last
            except BaseException as error:  # noqa: BLE001 -- told to those who wait
                if not isinstance(error, Error):
                    # A bug, which the loop would only log: nothing may be sent behind what was not (INV-S5).
                    _log.error("stream.bug", where=self._kind, reason=repr(error), failed=error)
                    inner.abort()
                # It has ended: nothing more is taken.
                failure = as_error(error, f"this {self._kind}")
                self._failure = self._failure or failure
                pending._failure = failure
        # The last one is what the next is counted from; its record is not kept with it.
        sent = self._queue.sent = self._queue.sent._replace(send=_not_sent)
        settled = partial(self._settled, sent.given_bytes)
        if last is None:
            settled(None)
        else:
            # Futures resolve in order (INV-S5): when the last one has, all have.
            last.add_done_callback(settled)

    def _settled(self, given_bytes: int, _: object) -> None:
        """All that was given up to there is kept or has failed, perhaps while the client closes."""
        inner = self._inner
        assert inner is not None
        self._settled_bytes = max(self._settled_bytes, given_bytes)
        self._failure = self._failure or inner.failure
        self._changed.notify()

    # --- waiting ------------------------------------------------------------------------------------------------

    def ready(self, *, timeout: float | None = None) -> None:
        """Return when `append_nowait` has room. Raises what ended it, BufferFull after `timeout` (30 s)."""
        limit_s = checked_timeout(timeout, RESULT_TIMEOUT_S)
        end_s = time.monotonic() + limit_s
        self._check_taking()
        while not self._has_room(0):
            self._wait_for_room(0, end_s, limit_s)
            self._check_taking()

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, take no more appends, and end it. Raises what ended it before.

        Called again, it waits for the end, and raises the same. An exception in the caller's thread (Ctrl-C) ends the
        wait, and not the closing.
        """
        checked_timeout(timeout)
        is_again, self._is_closed = self._is_closed, True
        if self._inner is None or self._is_aborted or (is_again and self._loop.is_closed):
            return
        self._call(lambda inner: inner.close(timeout=timeout), goes_on=True)

    def abort(self) -> None:
        """Take no more appends and wait for nothing."""
        self._is_closed = self._is_aborted = True
        inner = self._inner
        if inner is not None and self._loop.is_closed is None:
            self._loop.call_plain(inner.abort)

    def _call(self, act: Callable[[W], Awaitable[T]], *, goes_on: bool = False) -> T:
        """Run something of the asyncio object's behind all that was appended here."""
        inner = self._opened()
        return self._queue.call(lambda: act(inner), goes_on=goes_on)

    def _live(self, act: Callable[[W], T]) -> T:
        """Return what the asyncio object says now, what is on its way to the loop included."""
        inner = self._opened()

        def read() -> T:
            self._send()
            return act(inner)

        return self._loop.call_plain(read)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            self.abort()
            return
        was_reported = self._is_reported or (self._inner is not None and self._inner._is_reported)
        try:
            self.close()
        except Error as closing:
            if not may_end_quietly(closing, None, is_reported=was_reported):
                raise


def _not_sent(_: object) -> asyncio.Future[Any]:
    raise AssertionError("this stands for what was appended before it was opened")
