"""Spans of a stream's sampled appends, and the headers that lead readers of a record to its append."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbk.errors import RecordTooLarge
from fastbk.observe.tracing import HEADER_NAMES, Attributes, Span, Tracer
from fastbk.stream.records import get_headers, put_headers

if TYPE_CHECKING:
    from fastbk.stream.writer.queue import WriterQueue


class TracedAppends:
    """Puts records into a writer's queue, some of them with a span."""

    def __init__(self, tracer: Tracer, queue: WriterQueue, stream: str) -> None:
        self.tracer = tracer
        self._queue = queue
        self._name = f"send {stream}"
        self._attributes = {
            "messaging.system": "fastbk",
            "messaging.operation.type": "send",
            "messaging.destination.name": stream,
        }

    def put(
        self,
        data: bytes,
        txid: int | None,
        key: bytes | None,
        headers: bytes,
        future: asyncio.Future[Any],
    ) -> None:
        """Do as the queue's `put`, whose errors it raises. The record that is traced names its span in a header."""
        span = self._begin({"messaging.message.body.size": len(data)})
        if span is None:
            self._queue.put(data, txid, key, headers, future)
            return
        try:
            try:
                self._queue.put(data, txid, key, _with_span(headers, span), future)
            except RecordTooLarge:
                # by its header, perhaps: tracing must not refuse what else has room
                self._queue.put(data, txid, key, headers, future)
        except BaseException as error:
            span.fail(str(error))
            raise
        self._taken(span, future)

    def put_batch(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
        future: asyncio.Future[Any],
    ) -> None:
        """Do as the queue's `put_batch`. The span is one for all, and the first record names it."""
        span = self._begin({"messaging.batch.message_count": len(payloads)})
        if span is None:
            self._queue.put_batch(payloads, txids, keys, headers, future)
            return
        first, *others = [b""] * len(payloads) if headers is None else headers
        try:
            try:
                self._queue.put_batch(
                    payloads, txids, keys, [_with_span(first, span), *others], future
                )
            except RecordTooLarge:
                self._queue.put_batch(payloads, txids, keys, headers, future)
        except BaseException as error:
            span.fail(str(error))
            raise
        self._taken(span, future)

    def _begin(self, attributes: Attributes) -> Span | None:
        if not self.tracer.wants_span():
            return None
        return self.tracer.begin(self._name, "producer", {**self._attributes, **attributes})

    def _taken(self, span: Span, future: asyncio.Future[Any]) -> None:
        group = self._queue.groups[-1]
        if group.span is None:
            group.span = span
        else:  # the entry's own span can only be in one
            span.link(group.span)
        future.add_done_callback(partial(_end, span))


def _with_span(headers: bytes, span: Span) -> bytes:
    """Return a record's headers with those of its span, unless the application has put such headers itself."""
    if headers and any(name in HEADER_NAMES for name, _ in get_headers(headers)):
        return headers
    return headers + put_headers(span.headers())


def _end(span: Span, future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        span.fail("its caller waits no more; the record stays in its place")
        return
    error = future.exception()
    if error is not None:
        span.fail(f"{type(error).__name__}: {error}")
        return
    place = future.result()
    if place is not None:
        span.set(
            dict(zip(("fastbk.segment", "fastbk.entry.id", "fastbk.slot"), place, strict=True))
        )
    span.end()
