"""What a producer was given and not yet told of, without I/O: its frames, when each may be sent, and when again.

    window = Window(last_number, bounds)
    window.put(b"payload", None, None, b"", waiter)     # takes the next number
    while (frame := window.next_frame()) is not None:
        send(frame)                                     # with frame.follows, frame.numbers, frame.body
    for done in window.answered(frame, place): ...      # its waiters may be told
    window.lost()                                       # the service, or a frame: begin again with the first one

A *frame* is what a service stores in one entry, all or none. It is made when it is first sent, of all that waits then.

INV-S31: numbers rise within a name; each frame names the number before its first one (`follows`), and is never changed,
merged or split. What is sent again is the same bytes under the same numbers.
INV-S32: frames are sent in their order. After a loss, or a refusal as not next, all are sent again from the first one
on that is not answered. So no record overtakes one that was refused.
INV-S33: waiters are told in the order of their records, of a frame only when all before it are answered; and no more
than the service's bound is unanswered, unless one frame alone is larger.

What makes that exactly once is the owner's: fastbk/producers/README.md.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fastbk.errors import ConfigError
from fastbk.native.stream_codec import HEAD_BYTES, encode
from fastbk.option_checks import integer
from fastbk.stream.positions import DLSN, TXID_MAX
from fastbk.stream.writer.engine import ENTRIES_BEFORE_PACKING
from fastbk.stream.writer.queue import Group, WriterQueue


def next_number(number: int | None, last: int) -> int:
    """Return the number of a record behind `last`; `number`: what was asked for. Raises ConfigError."""
    if number is None:
        number = last + 1
    elif type(number) is not int:
        number = integer("number", number)
    if not last < number <= TXID_MAX:
        raise ConfigError(
            f"number {number}: the last one of this producer is {last}, and numbers rise, up to 2^62. Begin behind"
            " `last_number`"
        )
    return number


@dataclass(slots=True)
class ProducerFrame:
    """Records that are stored in one entry, all or none, and who waits for them."""

    group: Group
    follows: int
    """The number before its first one."""
    body: memoryview
    """Its records, as in an entry's body."""
    data_bytes: int
    """Bytes of their payloads, keys and headers."""
    is_answered: bool = False
    place: DLSN | None = None
    """Of its first record, once it is answered; None: it was stored before, by a frame whose answer was lost."""

    @property
    def numbers(self) -> array[int]:
        """Of its records."""
        return self.group.txids

    @property
    def has_gaps(self) -> bool:
        """Whether its numbers do not just follow each other."""
        numbers = self.group.txids
        return numbers[-1] - numbers[0] + 1 != len(numbers)


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """What a producer may take, and send unanswered."""

    entry_bytes_max: int
    """Of a frame's records."""
    batch_bytes: int
    """Records that queue up become a frame when they have as many bytes."""
    unacked_bytes_max: int
    """Of what was taken; up to twice as much, where it is one record or batch that exceeds it."""
    frames_max: int
    """Unanswered."""


class Intake(Protocol):
    """What takes records for a queue."""

    def put(
        self,
        payload: bytes,
        txid: int | None,
        key: bytes | None,
        headers: bytes,
        waiter: Any,  # noqa: ANN401 -- a future, or what stands for it
        /,
    ) -> None:
        """Take one record."""

    def put_batch(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
        waiter: Any,  # noqa: ANN401 -- as above
        /,
    ) -> None:
        """Take records that are one frame."""


class Window:
    """One producer's, from its opening to its end.

    Attributes:
        queue: what was taken and not sent yet, and how much is not answered.
        last_number: of the last record that was taken.
        acknowledged_number: of the last one that was stored: before the opening, or answered since.
        frames: that were sent and not answered, in order.
        pending_bytes_max: what the service takes unanswered. Another service may take less.
        resent: frames that were sent again.
        intake: what puts records into the queue: the queue, or with tracing what makes their spans before.
        losses: how often all was to be sent again. What was sent before the last one and is refused counts no more.
    """

    def __init__(self, last_number: int, bounds: WindowBounds, pending_bytes_max: int) -> None:
        self.acknowledged_number = last_number
        self.frames: deque[ProducerFrame] = deque()
        self.pending_bytes_max = pending_bytes_max
        self.resent = 0
        unacked_bytes_max = min(bounds.unacked_bytes_max, pending_bytes_max)
        self.bounds = replace(bounds, unacked_bytes_max=unacked_bytes_max)
        self.queue = WriterQueue(
            bounds.entry_bytes_max + HEAD_BYTES, bounds.batch_bytes, unacked_bytes_max, last_number
        )
        self.intake: Intake = self.queue
        self._framed_number = last_number
        self._sent = self._sent_bytes = 0
        """Of `frames`, the first ones, that were sent since the last loss."""
        self.losses = 0

    @property
    def last_number(self) -> int:
        """The number of the last record that was taken."""
        return self.queue.last_txid

    @property
    def is_empty(self) -> bool:
        """Whether all that was taken is answered."""
        return not self.frames and not self.queue.groups

    # --- taking -------------------------------------------------------------------------------------------------

    def put(
        self, payload: bytes, number: int | None, key: bytes | None, headers: bytes, waiter: object
    ) -> None:
        """Take one record. Raises ConfigError (its number), RecordTooLarge, BufferFull; then nothing has changed."""
        self.intake.put(payload, next_number(number, self.last_number), key, headers, waiter)

    def put_batch(
        self,
        payloads: Sequence[bytes],
        numbers: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
        waiter: object,
    ) -> None:
        """Take records that are one frame. Raises as `put`, and then nothing has changed."""
        last, taken = self.last_number, array("q")
        for index in range(len(payloads)):
            last = next_number(None if numbers is None else numbers[index], last)
            taken.append(last)
        self.intake.put_batch(payloads, taken, keys, headers, waiter)

    # --- sending ------------------------------------------------------------------------------------------------

    def next_frame(self) -> ProducerFrame | None:
        """Return the frame to be sent now, and take it as sent; None: nothing is to be sent, or it has to wait."""
        if self._sent >= self.bounds.frames_max:
            return None
        if self._sent < len(self.frames):
            frame = self.frames[self._sent]
            if not self._has_room(len(frame.body)):
                return None
            self.resent += 1
        else:
            groups = self.queue.groups
            if not groups or not self._has_room(groups[0].size_bytes - HEAD_BYTES):
                return None
            group = self.queue.take(only_full=self._sent >= ENTRIES_BEFORE_PACKING)
            if group is None:
                return None
            frame = self._framed(group)
            self.frames.append(frame)
        self._sent += 1
        self._sent_bytes += len(frame.body)
        return frame

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether so many bytes more may be unanswered (INV-S33)."""
        return not self._sent or self._sent_bytes + size_bytes <= self.pending_bytes_max

    def _framed(self, group: Group) -> ProducerFrame:
        # Transaction ids of producers' records are not the numbers: those of all names would not rise.
        ids = array("q", range(len(group.payloads)))
        entry = encode(0, 0, 0, group.payloads, ids, group.keys, group.headers)
        body = memoryview(entry)[HEAD_BYTES:]
        frame = ProducerFrame(group, self._framed_number, body, group.data_bytes)
        self._framed_number = group.txids[-1]
        # The body has them.
        group.payloads, group.keys, group.headers = [], None, None
        return frame

    # --- answers ------------------------------------------------------------------------------------------------

    def answered(self, frame: ProducerFrame, place: DLSN | None) -> list[ProducerFrame]:
        """Take in that a frame is stored; return the frames whose waiters may be told now, in order (INV-S33).

        The answer may be one of before a loss: what was stored stays so.
        """
        if not frame.is_answered:
            frame.is_answered, frame.place = True, place
        done = []
        while self.frames and self.frames[0].is_answered:
            first = self.frames.popleft()
            if self._sent:
                self._sent -= 1
                self._sent_bytes -= len(first.body)
            self.acknowledged_number = first.numbers[-1]
            self.queue.acknowledged(first.group)
            done.append(first)
        return done

    def lost(self) -> None:
        """All that is not answered has to be sent again, in its order (INV-S32)."""
        self._sent = self._sent_bytes = 0
        self.losses += 1
