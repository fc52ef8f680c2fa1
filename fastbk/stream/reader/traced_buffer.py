"""A reader's buffer that makes a span of each record whose append was traced, when the record is handed out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fastbk.errors import ProtocolError
from fastbk.observe.tracing import Attributes, Tracer, tracer_of
from fastbk.stream.positions import DLSN, FIRST
from fastbk.stream.reader.buffer import ReadBuffer
from fastbk.stream.records import Chunk, Record

if TYPE_CHECKING:
    from fastbk.stream.context import StreamContext
    from fastbk.stream.reader.segment_search import Key


def buffer_of(
    context: StreamContext,
    position: DLSN,
    from_key: Key | None,
    ends: Sequence[DLSN | Key],
    keys_from: DLSN = FIRST,
) -> ReadBuffer:
    """Return a reader's buffer, with spans or without."""
    tracer = tracer_of(context.client.config.tracing)
    if tracer is None:
        return ReadBuffer(context.name, position, from_key, ends, keys_from)
    return TracedBuffer(context.name, position, from_key, ends, tracer, keys_from)


class TracedBuffer(ReadBuffer):
    """`ReadBuffer` with spans."""

    def __init__(
        self,
        name: str,
        position: DLSN,
        from_key: Key | None,
        ends: Sequence[DLSN | Key],
        tracer: Tracer,
        keys_from: DLSN = FIRST,
    ) -> None:
        super().__init__(name, position, from_key, ends, keys_from)
        self._tracer = tracer
        self._span_name = f"receive {name}"
        self._attributes = {
            "messaging.system": "fastbk",
            "messaging.operation.type": "receive",
            "messaging.destination.name": name,
        }

    def next_record(self) -> Record:
        """As `ReadBuffer` does."""
        record = super().next_record()
        if record.headers:
            self._received(record)
        return record

    def take(self, max_records: int, max_bytes: int) -> Chunk | None:
        """As `ReadBuffer` does."""
        chunk = super().take(max_records, max_bytes)
        if chunk is not None:
            for row in chunk.rows_with_headers():
                with suppress(
                    ProtocolError
                ):  # of a record that cannot be read: whoever looks at it is told
                    self._received(chunk[row])
        return chunk

    def _received(self, record: Record) -> None:
        segment, entry, slot = record.dlsn
        attributes: Attributes = {
            **self._attributes,
            "messaging.message.body.size": len(record.payload),
            "fastbk.segment": segment,
            "fastbk.entry.id": entry,
            "fastbk.slot": slot,
            "fastbk.record.age_ms": max(time.time_ns() // 1000 - record.time_us, 0) / 1e3,
        }
        self._tracer.received(self._span_name, attributes, record.headers)
