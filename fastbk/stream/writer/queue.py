"""What was appended and is not sent yet, packed into groups that become an entry each. Without I/O.

`EntryQueue` and `EntryGroup` are what the engine (`engine.py`) needs; `WriterQueue` and `Group` are those of a stream
with one writer. A write service has its own (`fastbk/producers/owner.py`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from fastbk.errors import BufferFull, Error, RecordTooLarge, TxidOutOfOrder
from fastbk.native.stream_codec import HEAD_BYTES, RECORD_OVERHEAD_BYTES_MAX, encode
from fastbk.observe.tracing import Span
from fastbk.option_checks import integer
from fastbk.stream.positions import DLSN, TXID_MAX


class EntryGroup(Protocol):
    """What goes into one entry, and who waits for it; what the engine and a segment ask of it."""

    @property
    def size_bytes(self) -> int:
        """The most that the entry takes, without compression."""

    @property
    def span(self) -> Span | None:
        """Of the first record that is traced."""

    @property
    def count(self) -> int:
        """How many records it has."""

    @property
    def data_bytes(self) -> int:
        """Bytes of payloads, keys and headers, about."""

    @property
    def first_txid(self) -> int:
        """Of its first record; of none, the last one before it."""

    @property
    def last_txid(self) -> int:
        """Of its last record, or the last one before it."""

    def encode(self, place: EntryPlace) -> bytearray:
        """Return the entry, not compressed. It is called once, unless the entry was not sent."""

    def resolve(self, segment: int, entry: int) -> None:
        """It is acknowledged, and has this place."""

    def give_up(self, error: Error) -> None:
        """It failed, or was never sent."""


class EntryPlace(NamedTuple):
    """Where an entry will stand. `records`: those of the segment before it."""

    epoch: int
    entry_id: int
    records: int
    records_distance: int
    """Entries back to the last one with records; 0: there is none."""
    time_us: int


class EntryQueue(Protocol):
    """What was given and not sent yet; what the engine asks of it.

    Attributes:
        groups: what waits, in its order.
        taken: calls that were taken.
        settled: of these, those that were acknowledged or have failed.
        may_resend: what a segment that somebody else closed does not hold may go to another segment.
    """

    groups: deque[Any]
    last_txid: int
    unacked_bytes: int
    taken: int
    settled: int
    may_resend: bool

    @property
    def has_room(self) -> bool:
        """Whether what is not acknowledged is within its bound."""

    def take(self, *, only_full: bool) -> EntryGroup | None:
        """Return the next group to send. `only_full`: the last one, to which more may come, stays."""

    def acknowledged(self, group: Any) -> None:  # noqa: ANN401 -- one that `take` returned, or of `groups`
        """That group was acknowledged, or failed."""


class Group:
    """Records that go into one entry, and who waits for them."""

    __slots__ = (
        "headers",
        "is_atomic",
        "keys",
        "payloads",
        "size_bytes",
        "span",
        "txids",
        "waiters",
    )

    def __init__(self, *, is_atomic: bool) -> None:
        self.is_atomic = is_atomic
        self.payloads: list[bytes] = []
        self.txids = array("q")
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes] | None = None
        self.waiters: list[Any] = []
        """A waiter for each record, or one for all of an atomic group."""
        self.size_bytes = HEAD_BYTES
        self.span: Span | None = None
        """Span of the first record that is traced."""

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self.payloads)

    @property
    def data_bytes(self) -> int:
        """Bytes of payloads, keys and headers."""
        return self.size_bytes - HEAD_BYTES - len(self.payloads) * RECORD_OVERHEAD_BYTES_MAX

    @property
    def first_txid(self) -> int:
        """Of its first record."""
        return self.txids[0]

    @property
    def last_txid(self) -> int:
        """Of its last record."""
        return self.txids[-1]

    def encode(self, place: EntryPlace) -> bytearray:
        """Return the entry, not compressed."""
        epoch, records, time_us = place.epoch, place.records, place.time_us
        return encode(epoch, records, time_us, self.payloads, self.txids, self.keys, self.headers)

    def resolve(self, segment: int, entry: int) -> None:
        """Tell all that wait where their records are."""
        for slot, waiter in enumerate(self.waiters):
            if not waiter.done():
                waiter.set_result(DLSN(segment, entry, slot))

    def give_up(self, error: Error) -> None:
        """Fail all that wait."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error.copy())
                waiter.exception()  # nobody has to look at each of many

    def add(self, payload: bytes, txid: int, key: bytes | None, headers: bytes) -> None:
        """Put a record behind the others."""
        if (key is not None or headers) and self.keys is None:
            self.keys = [None] * len(self.payloads)
            self.headers = [b""] * len(self.payloads)
        self.txids.append(txid)
        self.payloads.append(payload)
        if self.keys is not None and self.headers is not None:
            self.keys.append(key)
            self.headers.append(headers)
        self.size_bytes += record_bytes(payload, key, headers)


def record_bytes(payload: bytes, key: bytes | None, headers: bytes) -> int:
    """Return the most that a record takes in an entry."""
    return len(payload) + len(headers) + (len(key) if key else 0) + RECORD_OVERHEAD_BYTES_MAX


class WriterQueue:
    """What was given and not sent yet, in groups that become an entry each, in the order of the calls.

    Counts what was not acknowledged yet, sent or not. Without I/O.

    Attributes:
        taken: calls (of `put` and `put_batch`) that were taken.
        settled: of these, those that were acknowledged or have failed.
    """

    def __init__(
        self, entry_bytes_max: int, batch_bytes: int, unacked_bytes_max: int, last_txid: int
    ) -> None:
        """`entry_bytes_max`: of one entry's data. `batch_bytes`: a group as large is sent as it is."""
        self.groups: deque[Group] = deque()
        self.last_txid = last_txid
        self.unacked_bytes = 0
        self.taken = 0
        self.settled = 0
        self.may_resend = True
        self._entry_bytes_max = entry_bytes_max
        self._batch_bytes = min(batch_bytes, entry_bytes_max)
        self._unacked_bytes_max = unacked_bytes_max

    @property
    def has_room(self) -> bool:
        """Whether what is not acknowledged is within its bound."""
        return self.unacked_bytes <= self._unacked_bytes_max

    def put(
        self, payload: bytes, txid: int | None, key: bytes | None, headers: bytes, waiter: object
    ) -> None:
        """Take one record. Raises TxidOutOfOrder, RecordTooLarge, BufferFull; then nothing has changed."""
        size = record_bytes(payload, key, headers)
        self._check_size(size)
        number = next_txid(txid, self.last_txid)
        last = self.groups[-1] if self.groups else None
        if last is None or last.is_atomic or last.size_bytes + size > self._batch_bytes:
            last = Group(is_atomic=False)
            self.groups.append(last)
        last.add(payload, number, key, headers)
        last.waiters.append(waiter)
        self.last_txid = number
        self.unacked_bytes += size
        self.taken += 1

    def put_batch(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
        waiter: object,
    ) -> None:
        """Take records that are one entry. Raises as `put`, and then nothing has changed."""
        group, last = Group(is_atomic=True), self.last_txid
        for index, payload in enumerate(payloads):
            last = next_txid(None if txids is None else txids[index], last)
            key = None if keys is None else keys[index]
            group.add(payload, last, key, b"" if headers is None else headers[index])
        self._check_size(group.size_bytes - HEAD_BYTES)
        group.waiters.append(waiter)
        self.groups.append(group)
        self.last_txid = last
        self.unacked_bytes += group.size_bytes - HEAD_BYTES
        self.taken += 1

    def _check_size(self, size: int) -> None:
        check_size(size, self.unacked_bytes, self._entry_bytes_max, self._unacked_bytes_max)

    def take(self, *, only_full: bool) -> Group | None:
        """Return the next group to send. `only_full`: the last one, to which more may come, stays."""
        if not self.groups:
            return None
        first = self.groups[0]
        if (
            only_full
            and len(self.groups) == 1
            and not first.is_atomic
            and first.size_bytes < self._batch_bytes // 2
        ):
            return None
        return self.groups.popleft()

    def acknowledged(self, group: Group) -> None:
        """That group was acknowledged, or failed."""
        self.unacked_bytes -= group.size_bytes - HEAD_BYTES
        self.settled += len(group.waiters)


def check_size(size: int, unacked_bytes: int, entry_bytes_max: int, unacked_bytes_max: int) -> None:
    """Raise RecordTooLarge or BufferFull if so many bytes, of one record or batch, cannot be taken."""
    check_entry(size, entry_bytes_max)
    if unacked_bytes and unacked_bytes + size > 2 * unacked_bytes_max:
        raise BufferFull(
            f"{unacked_bytes} bytes are not acknowledged yet: await ready() before appending more"
        )


def has_room_for(size: int, unacked_bytes: int, unacked_bytes_max: int) -> bool:
    """Whether so many bytes may be taken by who waits for that: within the bound, or up to twice of it, or alone."""
    is_within = unacked_bytes <= unacked_bytes_max
    return is_within and (not unacked_bytes or unacked_bytes + size <= 2 * unacked_bytes_max)


def check_entry(size: int, entry_bytes_max: int) -> None:
    """Raise RecordTooLarge if so many bytes, of one record or batch, are too many for an entry."""
    if size + HEAD_BYTES > entry_bytes_max:
        raise RecordTooLarge(
            f"{size} bytes do not fit into one entry: at most {entry_bytes_max - HEAD_BYTES}, with about"
            f" {RECORD_OVERHEAD_BYTES_MAX} around each record"
        )


def next_txid(txid: int | None, last: int) -> int:
    """Return the transaction id of a record behind `last`; `txid`: what was asked for. Raises TxidOutOfOrder."""
    if txid is None:
        txid = last + 1
    elif type(txid) is not int:
        txid = integer("txid", txid)
    if not max(last, 0) <= txid <= TXID_MAX:
        raise TxidOutOfOrder(
            f"transaction id {txid}: the last one was {last}, and none may be less, nor above 2^62"
        )
    return txid
