"""The writer of a stream without `await`.

`append` puts the record into a queue of this thread's and wakes the loop once for all that is in it: crossing over to
the loop's thread costs as much as dozens of appends. What can be wrong with a record is found here, at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from fastbk.client.loop_thread import LoopThread, blocking, facade_text
from fastbk.errors import BufferFull, ClientClosed, ConfigError, Error, QuorumTimeout, QuotaExceeded
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.context import as_error
from fastbk.stream.positions import DLSN
from fastbk.stream.records import get_headers, put_headers
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.queue import Group, WriterQueue, with_txids
from fastbk.stream.writer.stream_writer import Data, HeadersLike, StreamWriter

_log = LibraryLog("fastbk.stream")

P = ParamSpec("P")
T = TypeVar("T")
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
        if self._failure is not None:
            raise self._failure.copy()
        assert self._future is not None
        return self._future.result()


class TracedPendingRecord(PendingRecord):
    """A record with the context of its caller, whose span it may be in."""

    __slots__ = ("context",)

    def __init__(self, writer: SyncStreamWriter) -> None:
        super().__init__(writer)
        self.context = copy_context()


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
        self._changed = threading.Condition()
        self._inner: StreamWriter | None = None
        self._pending_type = PendingRecord
        self._queue: WriterQueue | None = None
        self._failure: Error | None = None
        self._is_closed = False
        self._is_scheduled = False

    def __repr__(self) -> str:
        return facade_text(self, self._inner)

    # --- what it is ---------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[StreamWriter, WriterQueue]:
        self._loop.check()
        if self._inner is None or self._queue is None:
            raise ClientClosed("this writer is not open: use `with`")
        return self._inner, self._queue

    @property
    def epoch(self) -> int:
        """Of this opening; rises with each."""
        return self._opened()[0].epoch

    @property
    def last_txid(self) -> int:
        """The last transaction id appended, acknowledged or not; -1 in an empty stream."""
        return self._opened()[1].last_txid

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last record that was acknowledged, also by earlier writers."""
        return self._opened()[0].last_dlsn

    @property
    def unacked_bytes(self) -> int:
        """What was appended and not acknowledged yet."""
        return self._opened()[1].unacked_bytes

    def open(self) -> None:
        """Take the stream over; `with` does it. Raises as the asyncio writer's."""

        async def opened() -> StreamWriter:
            writer = self._make()
            await writer.open()
            return writer

        self._inner = self._loop.call(opened)
        if self._inner._context.client.config.tracing is not None:
            self._pending_type = TracedPendingRecord
        options = self._options
        self._queue = WriterQueue(
            options.entry_bytes_max,
            options.batch_bytes,
            options.unacked_bytes_max,
            self._inner.last_txid,
        )

    # --- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
        timeout: float | None = None,
    ) -> PendingRecord:
        """Take a record; `.result()` of what is returned waits until it is kept.

        Waits for room where too much is not acknowledged, at most `timeout` seconds (30), then BufferFull. Raises, and
        nothing was taken: TxidOutOfOrder, RecordTooLarge, BufferFull, what ended the writer.

        Version 0.3 makes this wait and return the position, as it does for ledgers: use `append_nowait` to keep what is
        pending.
        """
        pending = self._pending_type(self)
        data = payload if type(payload) is bytes else bytes(payload)
        raw = put_headers(headers) if headers else b""
        self._loop.check()  # in a forked child the lock may be held for ever
        with self._changed:
            self._has_room(timeout).put(data, txid, key, raw, pending)
            self._wake()
        return pending

    def append_nowait(
        self,
        payload: Data,
        *,
        txid: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> PendingRecord:
        """As `append`, but it waits for no room: BufferFull (call `ready()`)."""
        return self.append(payload, txid=txid, key=key, headers=headers, timeout=0.0)

    def append_batch(
        self,
        payloads: Sequence[Data],
        *,
        txids: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> PendingRecord:
        """Take records that are all kept or none: they become one entry. Waits and raises as `append`."""
        beside = (txids, keys, headers)
        if not payloads or any(one is not None and len(one) != len(payloads) for one in beside):
            raise ConfigError(
                "a batch has at least one record, and as many ids, keys and headers as payloads"
            )
        pending = self._pending_type(self)
        raw = None if headers is None else [put_headers(one) for one in headers]
        datas = [bytes(one) for one in payloads]
        self._loop.check()  # in a forked child the lock may be held for ever
        with self._changed:
            self._has_room(timeout).put_batch(datas, txids, keys, raw, pending)
            self._wake()
        return pending

    def append_many(
        self,
        payloads: Iterable[Data],
        *,
        txids: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> tuple[DLSN, DLSN]:
        """Append records one behind the other (not atomic), wait, and return the first and the last one's position.

        `timeout` is of each wait: for room, and at the end for the last acknowledgement. Raises ConfigError, and
        nothing was sent, for no record, and for another number of `txids` than of payloads.
        """
        first: PendingRecord | None = None
        last: PendingRecord | None = None
        for payload, txid in with_txids(payloads, txids):
            last = self.append(payload, txid=txid, timeout=timeout)
            first = first or last
        if first is None or last is None:
            raise ConfigError("append_many needs at least one record")
        end = last.result(timeout)
        return first.result(timeout), end

    def _has_room(self, timeout: float | None) -> WriterQueue:
        """Wait for room and return the queue. The condition is held."""
        limit_s = checked_timeout(timeout, _RESULT_TIMEOUT_S)
        writer, queue = self._opened()
        end_s = time.monotonic() + limit_s
        while True:
            self._loop.check()
            # Whoever has been told of the failure may be here before the loop has come to `_settled`.
            if (ended := self._failure or writer.failure) is not None:
                failure = ended.copy()
                failure.outcome = "not_written"
                raise failure
            if self._is_closed:
                raise ClientClosed("this writer is closed")
            if queue.has_room:
                return queue
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise BufferFull(
                    f"{queue.unacked_bytes} bytes are not acknowledged after {limit_s:g} s: call ready() and try again"
                )
            self._changed.wait(min(left_s, 1.0))

    def _wait(self, is_done: Callable[[], bool], limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        if is_done():
            return
        self._loop.check()
        with self._changed:
            while not is_done():
                self._loop.check()
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise QuorumTimeout(f"not acknowledged after {limit_s:g} s", outcome="unknown")
                # Woken by acknowledgements; a client that is closed meanwhile wakes nobody.
                self._changed.wait(min(left_s, 1.0))

    def _wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.soon(self._send)

    # --- on the loop --------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Hand all that is queued to the asyncio writer. The client may be closing: then that refuses, or takes it."""
        writer, queue = self._inner, self._queue
        assert writer is not None
        assert queue is not None
        with self._changed:
            self._is_scheduled = False
            groups = list(queue.groups)
            queue.groups.clear()
        for group in groups:
            self._send_group(writer, group)

    def _send_group(self, writer: StreamWriter, group: Group) -> None:
        last: asyncio.Future[DLSN] | None = None
        try:
            if group.is_atomic:
                headers = None if group.headers is None else [get_headers(h) for h in group.headers]
                last = _in_context(group.waiters[0], writer.append_batch)(
                    group.payloads, txids=group.txids, keys=group.keys, headers=headers
                )
                group.waiters[0]._future = last
            else:
                for at, (payload, txid) in enumerate(zip(group.payloads, group.txids, strict=True)):
                    key = None if group.keys is None else group.keys[at]
                    raw = b"" if group.headers is None else group.headers[at]
                    last = _in_context(group.waiters[at], writer.append_nowait)(
                        payload, txid=txid, key=key, headers=get_headers(raw) if raw else ()
                    )
                    group.waiters[at]._future = last
        except BaseException as error:  # noqa: BLE001 -- told to those who wait
            if not isinstance(error, Error):
                # A bug, which the loop would only log: nothing may be sent behind what was not (INV-S5).
                _log.error("stream.bug", where="writer", reason=repr(error), failed=error)
                writer.abort()
            self._refused(group, as_error(error, "this writer"))
        if last is None:
            self._settled(group)
        else:
            # Futures resolve in order (INV-S5): when the last one has, all have.
            last.add_done_callback(lambda _: self._settled(group))

    def _refused(self, group: Group, error: Error) -> None:
        """The writer has ended: what of the group it did not take has failed, and nothing more is taken."""
        with self._changed:
            self._failure = self._failure or error
            for waiter in group.waiters:
                if waiter._future is None:
                    waiter._failure = error

    def _settled(self, group: Group) -> None:
        """All of a group is kept or has failed, perhaps while the client closes."""
        writer, queue = self._inner, self._queue
        assert writer is not None
        assert queue is not None
        with self._changed:
            queue.acknowledged(group)
            self._failure = self._failure or writer.failure
            self._changed.notify_all()

    # --- waiting ------------------------------------------------------------------------------------------------

    def ready(self, *, timeout: float | None = None) -> None:
        """Return when `append_nowait` has room. Raises what ended the writer, BufferFull after `timeout` (30 s)."""
        self._loop.check()
        with self._changed:
            self._has_room(timeout)

    def drain(self, *, timeout: float | None = None) -> None:
        """The former name of `ready`; deprecated, to be removed in version 0.3."""
        warnings.warn("StreamWriter.drain is called ready now", DeprecationWarning, stacklevel=2)
        self.ready(timeout=timeout)

    flush = blocking(StreamWriter.flush)
    publish = blocking(StreamWriter.publish)
    roll = blocking(StreamWriter.roll)

    def seal(self) -> DLSN | None:
        """End the stream for good, and the writer. Returns the last record's position."""
        self._is_closed = True
        return self._call(lambda writer: writer.seal())

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, end the segment, take no more appends. A second call does nothing. Raises what ended the writer."""
        checked_timeout(timeout)
        if self._is_closed or self._inner is None:
            return
        self._is_closed = True
        self._call(lambda writer: writer.close(timeout=timeout))

    def abort(self) -> None:
        """Take no more appends and wait for nothing."""
        self._is_closed = True
        inner = self._inner
        if inner is not None and self._loop.is_closed is None:
            self._loop.call_plain(inner.abort)

    def _call(self, act: Callable[[StreamWriter], Awaitable[T]]) -> T:
        """Run something of the asyncio writer's behind all that was appended here."""
        writer, _ = self._opened()

        async def acted() -> T:
            self._send()
            return await act(writer)

        return self._loop.call(acted)

    def __enter__(self) -> SyncStreamWriter:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
        elif kind is QuotaExceeded:
            with suppress(Error):
                self.close()
        else:
            self.abort()


def _in_context(pending: PendingRecord, append: Callable[P, T]) -> Callable[P, T]:
    """Return `append` as it is called for a record: in the context of its caller, where that matters."""
    return partial(pending.context.run, append) if isinstance(pending, TracedPendingRecord) else append
