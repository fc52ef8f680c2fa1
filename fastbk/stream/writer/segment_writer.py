"""One segment of a stream while it is written: its ledger, what it holds by now, and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import Error, LedgerFenced
from fastbk.native.stream_codec import encode
from fastbk.observe.library_log import LibraryLog
from fastbk.observe.tracing import Span, Tracer
from fastbk.stream.chain.chain import NONE, Segment
from fastbk.stream.chain.changes import Contents
from fastbk.stream.chain.segment_contents import IndexBuilder
from fastbk.stream.compression import CODECS, compressed
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import CARRIED_US_MAX, DLSN
from fastbk.stream.writer.queue import Group

_log = LibraryLog("fastbk.stream")


class SegmentWriter:
    """Sends groups as entries; knows what was acknowledged.

    Attributes:
        in_flight: entries that were sent and not acknowledged.
        records, size_bytes: of all that was sent.
        began_s: when the first entry was sent, by the monotonic clock; None before.
        last_time_us: no entry of the segment that follows has an earlier time.
        is_ahead: the last entry's time lies far ahead of this machine's clock, which has gone back.
        is_lost: somebody closed its ledger who does not write the stream: the ledger says what it holds.
    """

    def __init__(
        self,
        row: Segment,
        ledger: LedgerWriter,
        policy: StreamPolicy,
        on_acknowledged: Callable[[Group, DLSN], None],
        on_failed: Callable[[Group, DLSN, Error], None],
        tracer: Tracer | None = None,
    ) -> None:
        """`policy`: the stream's when the segment was created. Each group gets one callback, in their order.

        `tracer`: of the ledger; its spans are in those of records. None: it has none.
        """
        self.number = row.number
        self.ledger = ledger
        self.policy = policy
        self.in_flight = 0
        self.records = 0
        self.size_bytes = 0
        self.began_s: float | None = None
        self.is_lost = False
        self.last_time_us = row.created_us
        self.is_ahead = False
        self._epoch = row.epoch
        self._codec = CODECS[policy.compression]
        self._on_acknowledged = on_acknowledged
        self._on_failed = on_failed
        self._tracer = tracer
        self._index = IndexBuilder()
        self._index_entry_id = NONE
        self._is_index_due = True
        self._entries = 0
        self._first_txid = NONE
        self._last_txid = NONE
        self._first_time_us = NONE
        self._last_slot = 0

    def age_s(self, now_s: float) -> float:
        """Return how long ago its first entry was sent; 0 while there is none."""
        return 0.0 if self.began_s is None else now_s - self.began_s

    def send(self, group: Group, not_before_us: int) -> None:
        """Send a group as one entry. Raises BufferFull, or what ended the ledger's writer; then nothing has changed."""
        now_us = time.time_ns() // 1000
        time_us = max(not_before_us, self.last_time_us, now_us)  # INV-S22
        entry = compressed(
            encode(
                self._epoch,
                self.records,
                time_us,
                group.payloads,
                group.txids,
                group.keys,
                group.headers,
            ),
            self._codec,
        )
        future = self._append(entry, group.span)
        entry_id = self._entries
        if self.began_s is None:
            self.began_s = time.monotonic()
            self._first_txid, self._first_time_us = group.txids[0], time_us
        self._index.add(entry_id, self.records, group.txids[0], time_us)
        self._entries += 1
        self.in_flight += 1
        self.records += len(group.payloads)
        self.size_bytes += len(entry)
        self.last_time_us = time_us
        self.is_ahead = time_us - now_us > CARRIED_US_MAX
        self._last_txid = group.txids[-1]
        self._last_slot = len(group.payloads) - 1

        def done(acknowledged: asyncio.Future[int]) -> None:
            self.in_flight -= 1
            error = None if acknowledged.cancelled() else acknowledged.exception()
            first = DLSN(self.number, entry_id, 0)
            if error is None and not acknowledged.cancelled():
                self._on_acknowledged(group, first)
            else:
                failed = error if isinstance(error, Error) else Error(str(error))
                self._on_failed(group, first, failed)

        future.add_done_callback(done)

    def _append(self, entry: bytes | bytearray, span: Span | None) -> asyncio.Future[int]:
        if self._tracer is None:
            return self.ledger.append_nowait(entry)
        return self._tracer.call_within(span, self.ledger.append_nowait, entry)

    @property
    def contents(self) -> Contents:
        """What it holds, once all that was sent is acknowledged."""
        if self.records == 0:
            return Contents(0)
        last = self._entries - 1
        return Contents(
            records=self.records,
            first_txid=self._first_txid,
            last_txid=self._last_txid,
            first_time_us=self._first_time_us,
            last_time_us=self.last_time_us,
            last_dlsn=DLSN(self.number, last, self._last_slot),
            index_entry_id=self._index_entry_id,
            size_bytes=self.size_bytes,
        )

    async def end(self) -> None:
        """Write the index behind the records, and close the ledger. All sent before must be acknowledged.

        A reader that meets the index knows at once that the segment is complete. An index that cannot be written is
        done without: the ledger then ends behind its records. Raises what `close` raises; called again it goes on.
        """
        if self.records and self._is_index_due:
            self._is_index_due = False
            entry = self._index.entry(self._epoch, self.records, self._last_txid, self.last_time_us)
            try:
                self._index_entry_id = await self._append(entry, None)
            except LedgerFenced:
                raise
            except Error as error:
                # The ledger's writer ends with it; closing leaves out what was not acknowledged.
                _log.info("stream.no_index", ledger_id=self.ledger.ledger_id, reason=str(error))
            else:
                self.size_bytes += len(entry)
                self.ledger.send_lac()
        await self.ledger.close()
