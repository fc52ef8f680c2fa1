"""The producer without `await`: any thread may append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fastbk.client.loop_thread import LoopThread, blocking
from fastbk.native.stream_codec import HEAD_BYTES
from fastbk.observe.tracing import tracer_of
from fastbk.option_checks import checked_timeout
from fastbk.stream.client import Client
from fastbk.stream.positions import DLSN
from fastbk.stream.producer.producer import Place, Producer, ProducerStats
from fastbk.stream.producer.window import next_number
from fastbk.stream.records import HeadersLike
from fastbk.stream.sync_appends import PendingRecord, SyncAppends
from fastbk.stream.writer.stream_writer import Data


class SyncProducer(SyncAppends[Producer, Place]):
    """Appends to one stream beside any number of others; made by `Stream.producer()` of `fastbk.sync`.

    Several threads may append. The rules are the asyncio producer's: order of calls = order of records, the first
    failed append ends it, and leaving the `with` block by an exception aborts.
    """

    _kind = "producer"

    def __init__(self, loop: LoopThread[Client], make: Callable[[], Producer], name: str) -> None:
        super().__init__(loop, make, 0, 0)
        self.name = name
        """Also of a random one."""

    def _begin(self, inner: Producer) -> tuple[int, bool]:
        bounds = inner._opened().window.bounds
        self._entry_bytes_max = bounds.entry_bytes_max + HEAD_BYTES
        self._unacked_bytes_max = bounds.unacked_bytes_max
        return inner.last_number, tracer_of(self._loop.client().config.tracing) is not None

    def _next(self, number: int | None, last: int) -> int:
        return next_number(number, last)

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The number of the last record that is stored: when it was opened, then as acknowledged; -1: none is."""
        return self._opened().last_number

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last record that was acknowledged to this producer; None before, or if nobody knows."""
        return self._opened().last_dlsn

    def stats(self) -> ProducerStats:
        """Return this producer's figures now, what is on its way to the loop included."""
        return self._live(Producer.stats)

    # --- appending ----------------------------------------------------------------------------------------------

    def append(
        self,
        payload: Data,
        *,
        number: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
        timeout: float | None = None,
    ) -> Place:
        """Append a record, and return its position once it is stored; None: an append whose answer was lost stored it.

        Waits for room first. After `timeout` seconds (30) for all of it: QuorumTimeout, and the producer goes on.
        Raises, and nothing was taken: ConfigError (a number that does not rise), RecordTooLarge, what ended it.
        """
        checked_timeout(timeout)
        return self._kept(self._sending(payload, number, key, headers), timeout)

    def append_nowait(
        self,
        payload: Data,
        *,
        number: int | None = None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> PendingRecord[Place]:
        """Take a record; `.result()` of what is returned waits until it is stored.

        As `append`, but it waits for no room: BufferFull (call `ready()`).
        """
        return self._put(self._sending(payload, number, key, headers), 0.0)

    def append_batch(
        self,
        payloads: Sequence[Data],
        *,
        numbers: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> Place:
        """Append records that are all kept or none: they become one entry. Waits and raises as `append`.

        Returns the first one's position; the others follow it, slot by slot.
        """
        checked_timeout(timeout)
        return self._kept(self._sending_batch(payloads, numbers, keys, headers), timeout)

    def append_batch_nowait(
        self,
        payloads: Sequence[Data],
        *,
        numbers: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike] | None = None,
    ) -> PendingRecord[Place]:
        """Append as `append_batch`, but wait for no room: BufferFull (call `ready()`)."""
        return self._put(self._sending_batch(payloads, numbers, keys, headers), 0.0)

    def append_many(
        self,
        payloads: Iterable[Data],
        *,
        numbers: Iterable[int] | None = None,
        keys: Iterable[Data | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
        timeout: float | None = None,
    ) -> tuple[Place, Place]:
        """Append records one behind the other (not atomic), wait, and return the first and the last one's position.

        `timeout` is of each wait: for room, and at the end for the last acknowledgement. Raises ConfigError, and
        nothing was sent, for no record, and for another number of `numbers`, `keys` or `headers` than of payloads.
        """
        return self._append_rows(payloads, numbers, keys, headers, timeout)

    flush = blocking(Producer.flush)
