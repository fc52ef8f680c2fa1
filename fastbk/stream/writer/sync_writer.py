"""The writer of a stream without `await`.

`append` puts the record into a queue and wakes the loop once for all that is in it: crossing over to the loop's thread
costs as much as dozens of appends. What can be wrong with a record is found here, at once. That step into the queue is
all of an append: an exception that is raised in the caller comes before it or behind it (INV-C3).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from fastbk.client.async_tools import TAKEN_AWAY, may_end_quietly
from fastbk.client.loop_thread import (
    CHECK_S,
    AppendQueue,
    LoopThread,
    Notices,
    blocking,
    facade_text,
)
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    Error,
    QuorumTimeout,
    QuotaExceeded,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.observe.tracing import tracer_of
from fastbk.option_checks import checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.context import as_error
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.records import HeadersLike
from fastbk.stream.writer.engine import (
    StreamWriterStats,
    check_entry,
    has_room_for,
    next_txid,
    record_bytes,
)
from fastbk.stream.writer.stream_writer import (
    Data,
    StreamWriter,
    owned_batch,
    owned_record,
    rows_of,
)

_log = LibraryLog("fastbk.stream")

T = TypeVar("T")
_Sending: TypeAlias = tuple[
    int, Callable[[int], int], Callable[[int], Callable[[StreamWriter], asyncio.Future[DLSN]]]
]
"""Bytes that a call appends; what returns its last transaction id, of the one before; and of that what sends it."""
_RESULT_TIMEOUT_S = 30.0


class PendingRecord:
    """A record, or an atomic batch, that was appended; `result()` waits until it is kept."""

    __slots__ = ("_failure", "_future", "_writer")

    def __init__(self, writer: SyncStreamWriter) -> None:
        self._writer = writer
        self._future: asyncio.Future[DLSN] | None = None
        self._failure: Error | None = None

    def done(self) -> bool:
        """Whether it is acknowledged or failed."""
        return self._failure is not None or (self._future is not None and self._future.done())

    def result(self, timeout: float | None = None) -> DLSN:
        """Wait until it is acknowledged, and return its position (a batch: of its first record).

        Raises what the asyncio writer's future does, and QuorumTimeout after `timeout` seconds (30): it may still be
        kept, and can be waited for again.
        """
        self._writer._wait(self.done, checked_timeout(timeout, _RESULT_TIMEOUT_S))
        try:
            if self._failure is not None:
                raise self._failure.copy()
            assert self._future is not None
            return self._future.result()
        except TAKEN_AWAY:
            self._writer._is_reported = True
            raise


class TracedPendingRecord(PendingRecord):
    """A record with the context of its caller, whose span it may be in."""

    __slots__ = ("context",)

    def __init__(self, writer: SyncStreamWriter) -> None:
        super().__init__(writer)
        self.context = copy_context()


class _Taken(NamedTuple):
    """What one call has appended, and what all calls have up to it."""

    pending: PendingRecord
    send: Callable[[StreamWriter], asyncio.Future[DLSN]]
    last_txid: int
    given_bytes: int


class SyncStreamWriter:
    """Appends to one stream; made by `Stream.writer()` of `fastbk.sync`. Several threads may append.

    The rules are the asyncio writer's: order of calls = order of records, the first failed append ends the writer, and
    leaving the `with` block by an exception aborts.
    """

    def __init__(
        self, loop: LoopThread[Client], make: Callable[[], StreamWriter], options: WriterOptions
    ) -> None:
        self._loop = loop
        self._make = make
        self._options = options
        self._changed = Notices()
        self._queue = AppendQueue(loop, self._send, _Taken(PendingRecord(self), _not_sent, -1, 0))
        self._pending_type = PendingRecord
        self._is_closed = False
        self._is_aborted = False
        self._is_reported = False  # by a call, that another has the stream
        # Written on the loop only.
        self._inner: StreamWriter | None = None
        self._settled_bytes = 0
        self._failure: Error | None = None

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    # --- what it is ---------------------------------------------------------------------------------------------

    def _opened(self) -> StreamWriter:
        self._loop.check()
        if self._inner is None:
            raise ClientClosed("this writer is not open: use `with`")
        return self._inner

    @property
    def epoch(self) -> int:
        """Of this opening; rises with each."""
        return self._opened().epoch

    @property
    def last_txid(self) -> int:
        """The last transaction id appended, acknowledged or not; -1 in an empty stream."""
        self._opened()
        return self._queue.last().last_txid

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last record that was acknowledged, also by earlier writers."""
        return self._opened().last_dlsn

    @property
    def unacked_bytes(self) -> int:
        """What was appended and not acknowledged yet."""
        self._opened()
        return self._queue.last().given_bytes - self._settled_bytes

    def stats(self) -> StreamWriterStats:
        """Return this writer's figures now, what is on its way to the loop included."""
        writer = self._opened()

        def told() -> StreamWriterStats:
            self._send()
            return writer.stats()

        return self._loop.call_plain(told)

    def open(self) -> None:
        """Take the stream over; `with` does it. Raises as the asyncio writer's."""

        async def opened() -> StreamWriter:
            writer = self._make()
            await writer.open()
            if tracer_of(writer._context.client.config.tracing) is not None:
                self._pending_type = TracedPendingRecord
            self._queue.sent = self._queue.sent._replace(last_txid=writer.last_txid)
            return writer

        self._inner = self._loop.call(opened, undo=lambda writer: writer.close())

    # --- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
        timeout: float | None = None,
    ) -> DLSN:
        """Append a record, and return its position once the ack quorum has it.

        Waits for room first. After `timeout` seconds (30) for all of it: QuorumTimeout, and the writer goes on. Raises,
        and nothing was taken: TxidOutOfOrder, RecordTooLarge, what ended the writer.
        """
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        sending = self._sending(payload, txid, key, headers)
        return self._kept(sending, limit_s)

    def _kept(self, sending: _Sending, limit_s: float) -> DLSN:
        end_s = time.monotonic() + limit_s
        try:
            pending = self._put(sending, limit_s)
        except BufferFull as full:
            raise QuorumTimeout(f"not appended: {full}", outcome="not_written") from None
        return pending.result(max(0.0, end_s - time.monotonic()))

    def _sending(
        self, payload: Data, txid: int | None, key: Data | None, headers: HeadersLike
    ) -> _Sending:
        data, owned_key, raw = owned_record(payload, key, headers)

        def sending(number: int) -> Callable[[StreamWriter], asyncio.Future[DLSN]]:
            return lambda writer: writer._admit(data, owned_key, raw, number)

        return record_bytes(data, owned_key, raw), lambda last: next_txid(txid, last), sending

    def append_nowait(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> PendingRecord:
        """Take a record; `.result()` of what is returned waits until it is kept.

        As `append`, but it waits for no room: BufferFull (call `ready()`).
        """
        return self._put(self._sending(payload, txid, key, headers), 0.0)

    def append_batch(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> DLSN:
        """Append records that are all kept or none: they become one entry. Waits and raises as `append`.

        Returns the first one's position; the others follow it, slot by slot.
        """
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        return self._kept(self._sending_batch(payloads, txids, keys, headers), limit_s)

    def append_batch_nowait(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
    ) -> PendingRecord:
        """As `append_batch`, but it waits for no room: BufferFull (call `ready()`)."""
        return self._put(self._sending_batch(payloads, txids, keys, headers), 0.0)

    def _sending_batch(
        self,
        payloads: Sequence[Data],
        txids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[HeadersLike] | None,
    ) -> _Sending:
        datas, wanted, owned_keys, raw = owned_batch(payloads, txids, keys, headers)
        size = sum(
            record_bytes(
                data,
                None if owned_keys is None else owned_keys[at],
                b"" if raw is None else raw[at],
            )
            for at, data in enumerate(datas)
        )

        def numbered(last: int) -> int:
            numbers.clear()
            for at in range(len(datas)):
                last = next_txid(None if wanted is None else wanted[at], last)
                numbers.append(last)
            return last

        def sending(_: int) -> Callable[[StreamWriter], asyncio.Future[DLSN]]:
            return lambda writer: writer._admit_batch(datas, numbers, owned_keys, raw)

        numbers: list[int] = []
        return size, numbered, sending

    def append_many(
        self,
        payloads: Iterable[Data],
        *,
        txids: Iterable[int] | None = None,
        keys: Iterable[Data | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> tuple[DLSN, DLSN]:
        """Append records one behind the other (not atomic), wait, and return the first and the last one's position.

        `timeout` is of each wait: for room, and at the end for the last acknowledgement. Raises ConfigError, and
        nothing was sent, for no record, and for another number of `txids`, `keys` or `headers` than of payloads.
        """
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        first: PendingRecord | None = None
        last: PendingRecord | None = None
        for payload, txid, key, given in rows_of(payloads, txids, keys, headers):
            last = self._put(self._sending(payload, txid, key, given), limit_s)
            first = first or last
        if first is None or last is None:
            raise ConfigError("append_many needs at least one record")
        end = last.result(timeout)
        return first.result(timeout), end

    def _put(self, sending: _Sending, limit_s: float) -> PendingRecord:
        """Wait for room, and put what is appended into the queue. Raises BufferFull, what ended the writer."""
        options, pending = self._options, self._pending_type(self)
        size, numbered, made = sending
        check_entry(size, options.entry_bytes_max)
        end_s = time.monotonic() + limit_s
        while True:
            self._check_taking()  # also: in a forked child the lock may be held for ever
            with self._queue.lock:
                if self._has_room(size):
                    last = self._queue.last()
                    number, given_bytes = numbered(last.last_txid), last.given_bytes + size
                    self._queue.put(_Taken(pending, made(number), number, given_bytes))
                    return pending
            self._wait_for_room(size, end_s, limit_s)

    def _check_taking(self) -> None:
        """Raise what ended the writer: of an append that was not sent."""
        writer = self._opened()
        # Whoever has been told of the failure may be here before the loop has come to `_settled`.
        if (ended := self._failure or writer.failure) is not None:
            failure = ended.copy()
            failure.outcome = "not_written"
            self._is_reported = self._is_reported or isinstance(failure, TAKEN_AWAY)
            raise failure
        if self._is_closed:
            raise ClientClosed("this writer is closed")

    def _has_room(self, size: int) -> bool:
        return has_room_for(size, self.unacked_bytes, self._options.unacked_bytes_max)

    def _wait_for_room(self, size: int, end_s: float, limit_s: float) -> None:
        """Return when there may be room, or the writer has ended. Raises BufferFull."""
        left_s = end_s - time.monotonic()
        if left_s <= 0:
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
        """Hand all that is queued to the asyncio writer. The client may be closing: then that refuses, or takes it."""
        writer = self._inner
        assert writer is not None
        last: asyncio.Future[DLSN] | None = None
        for taken in self._queue.taken():
            try:
                last = taken.pending._future = _in_context(taken.pending, taken.send, writer)
            except BaseException as error:  # noqa: BLE001 -- told to those who wait
                if not isinstance(error, Error):
                    # A bug, which the loop would only log: nothing may be sent behind what was not (INV-S5).
                    _log.error("stream.bug", where="writer", reason=repr(error), failed=error)
                    writer.abort()
                # The writer has ended: nothing more is taken.
                failure = as_error(error, "this writer")
                self._failure = self._failure or failure
                taken.pending._failure = failure
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
        writer = self._inner
        assert writer is not None
        self._settled_bytes = max(self._settled_bytes, given_bytes)
        self._failure = self._failure or writer.failure
        self._changed.notify()

    # --- waiting ------------------------------------------------------------------------------------------------

    def ready(self, *, timeout: float | None = None) -> None:
        """Return when `append_nowait` has room. Raises what ended the writer, BufferFull after `timeout` (30 s)."""
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        end_s = time.monotonic() + limit_s
        self._check_taking()
        while not self._has_room(0):
            self._wait_for_room(0, end_s, limit_s)
            self._check_taking()

    flush = blocking(StreamWriter.flush)
    publish = blocking(StreamWriter.publish)
    roll = blocking(StreamWriter.roll)

    def seal(self) -> DLSN | None:
        """End the stream for good, and the writer. Returns the last record's position."""
        self._is_closed = True
        return self._call(lambda writer: writer.seal(), goes_on=True)

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, end the segment, take no more appends. Raises what ended the writer.

        Called again, it waits for the end, and raises the same. An exception in the caller's thread (Ctrl-C) ends the
        wait, and not the closing.
        """
        checked_timeout(timeout)
        is_again, self._is_closed = self._is_closed, True
        if self._inner is None or self._is_aborted or (is_again and self._loop.is_closed):
            return
        self._call(lambda writer: writer.close(timeout=timeout), goes_on=True)

    def abort(self) -> None:
        """Take no more appends and wait for nothing."""
        self._is_closed = self._is_aborted = True
        inner = self._inner
        if inner is not None and self._loop.is_closed is None:
            self._loop.call_plain(inner.abort)

    def _call(self, act: Callable[[StreamWriter], Awaitable[T]], *, goes_on: bool = False) -> T:
        """Run something of the asyncio writer's behind all that was appended here."""
        writer = self._opened()
        return self._queue.call(lambda: act(writer), goes_on=goes_on)

    def __enter__(self) -> SyncStreamWriter:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            was_reported = self._is_reported or (
                self._inner is not None and self._inner._is_reported
            )
            try:
                self.close()
            except Error as closing:
                if not may_end_quietly(closing, None, is_reported=was_reported):
                    raise
        elif kind is QuotaExceeded:
            with suppress(Error):
                self.close()
        else:
            self.abort()


def _not_sent(_: StreamWriter) -> asyncio.Future[DLSN]:
    raise AssertionError("this stands for what was appended before the writer was opened")


def _in_context(
    pending: PendingRecord,
    send: Callable[[StreamWriter], asyncio.Future[DLSN]],
    writer: StreamWriter,
) -> asyncio.Future[DLSN]:
    """Send a record in the context of its caller, where that matters."""
    if isinstance(pending, TracedPendingRecord):
        return pending.context.run(send, writer)
    return send(writer)
