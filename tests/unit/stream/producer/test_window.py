"""A producer's window against a service that has the real owner's table, loses, repeats and comes back."""

from __future__ import annotations

import random
from array import array
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import BufferFull, ConfigError, ProducerFenced, RecordTooLarge
from fastbk.native.stream_codec import RECORD_OVERHEAD_BYTES_MAX
from fastbk.producers.table import (
    NO_NUMBER,
    Frame,
    NotNext,
    OwnerTable,
)
from fastbk.stream.positions import DLSN
from fastbk.stream.producer.window import ProducerFrame, Window, WindowBounds, next_number
from fastbk.stream.provenance import Provenance, Row, read_table

NAME = b"till-1"
BOUNDS = WindowBounds(entry_bytes_max=400, batch_bytes=200, unacked_bytes_max=2_000, frames_max=4)
PENDING_BYTES_MAX = 500


def put(window: Window, *numbers: int | None, waiters: list[int] | None = None) -> None:
    for number in numbers:
        taken = next_number(number, window.last_number)
        window.put(b"%d" % taken, number, None, b"", taken)
        if waiters is not None:
            waiters.append(taken)


def test_numbers_rise_and_are_counted() -> None:
    """INV-S31."""
    window = Window(6, BOUNDS, PENDING_BYTES_MAX)
    put(window, None, 20, None)
    assert window.last_number == 21
    for wrong in (21, 5, -1, 2**63):
        with pytest.raises(ConfigError):
            window.put(b"", wrong, None, b"", None)
    with pytest.raises(ConfigError):
        window.put_batch([b"a", b"b"], [30, 30], None, None, None)
    frame = window.next_frame()
    assert frame is not None
    assert (frame.follows, frame.numbers, frame.has_gaps) == (6, array("q", [7, 20, 21]), True)
    assert window.last_number == 21
    put(window, None, None)
    following = window.next_frame()
    assert following is not None
    assert (following.follows, following.numbers.tolist(), following.has_gaps) == (
        21,
        [22, 23],
        False,
    )


def test_what_is_sent_again_is_the_same() -> None:
    """INV-S31, INV-S32: two frames are not merged, although both wait when they are sent again."""
    window = Window(NO_NUMBER, BOUNDS, PENDING_BYTES_MAX)
    put(window, None)
    first = window.next_frame()
    put(window, None, None)
    second = window.next_frame()
    assert first is not None and second is not None
    bodies = bytes(first.body), bytes(second.body)
    window.lost()
    put(window, None)
    assert window.next_frame() is first
    assert window.next_frame() is second
    assert (bytes(first.body), bytes(second.body)) == bodies
    assert window.resent == 2
    assert window.next_frame() is None  # two are under way: the last group stays open for more
    window.answered(first, None)
    third = window.next_frame()
    assert third is not None and third.numbers.tolist() == [3]


def test_waiters_are_told_in_order() -> None:
    """INV-S33; and an answer of before a loss counts, with the place that it says."""
    window = Window(NO_NUMBER, BOUNDS, PENDING_BYTES_MAX)
    put(window, None)
    first = window.next_frame()
    put(window, None)
    second = window.next_frame()
    assert first is not None and second is not None
    window.lost()
    assert window.answered(second, DLSN(1, 1, 0)) == []
    assert window.acknowledged_number == NO_NUMBER
    assert window.next_frame() is first
    assert window.answered(first, None) == [first, second]
    assert (first.place, second.place) == (None, DLSN(1, 1, 0))
    assert window.is_empty
    assert window.queue.unacked_bytes == 0
    put(window, None)
    third = window.next_frame()
    assert third is not None and third.follows == 1


def test_no_more_is_unanswered_than_the_service_takes() -> None:
    """INV-S33: bytes and frames; one frame alone may be larger."""
    window = Window(NO_NUMBER, BOUNDS, PENDING_BYTES_MAX)
    window.pending_bytes_max = 10
    window.put_batch([bytes(100)], None, None, None, 0)
    window.put_batch([b""], None, None, None, 1)
    large = window.next_frame()
    assert large is not None and len(large.body) > 10
    assert window.next_frame() is None
    window.answered(large, None)
    assert window.next_frame() is not None
    for _ in range(BOUNDS.frames_max):
        window.put_batch([b""], None, None, None, 2)
    window.pending_bytes_max = 1000
    assert sum(window.next_frame() is not None for _ in range(10)) == BOUNDS.frames_max - 1


def test_what_is_too_large_or_too_much_is_refused() -> None:
    window = Window(NO_NUMBER, BOUNDS, PENDING_BYTES_MAX)
    with pytest.raises(RecordTooLarge):
        window.put(bytes(BOUNDS.entry_bytes_max), None, None, b"", None)
    with pytest.raises(BufferFull):
        for _ in range(100):
            window.put(bytes(100), None, None, b"", None)
    assert window.queue.unacked_bytes <= 2 * PENDING_BYTES_MAX
    assert window.queue.unacked_bytes == (window.last_number + 1) * (
        100 + RECORD_OVERHEAD_BYTES_MAX
    )


# --- the world ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    frame: ProducerFrame
    incarnation: int
    losses: int


@dataclass(frozen=True)
class Reply:
    request: Request
    place: DLSN | None
    is_next: bool = True


@dataclass
class Owner:
    table: OwnerTable
    taken: list[tuple[int, bytes]] = field(default_factory=list)
    entries: deque[tuple[list[tuple[int, bytes]], Provenance]] = field(default_factory=deque)
    """On their way."""
    answers: deque[tuple[int, Request, DLSN | None, Connection | None]] = field(
        default_factory=deque
    )


@dataclass
class Connection:
    requests: deque[Request] = field(default_factory=deque)
    replies: deque[Reply] = field(default_factory=deque)


class World:
    """One producer, a service that crashes, and connections that are cut."""

    def __init__(self, seed: int, *, has_numbers: bool) -> None:
        self.random = random.Random(seed)
        self.has_numbers = has_numbers
        self.log: list[tuple[list[tuple[int, bytes]], Provenance]] = []
        self.epoch = 0
        self.owner = self.take_over()
        self.old_requests: list[Request] = []
        self.given: list[int] = []
        """Numbers that the application appended, of all its lives."""
        self.told: list[int] = []
        self.connection: Connection | None = None
        self.open()

    # --- the service

    def take_over(self) -> Owner:
        self.epoch += 1
        newest = self.log[-1][1] if self.log else None
        rows = read_table(newest, lambda number: self.log[-1 - number][1])
        return Owner(OwnerTable(rows, self.epoch))

    def entry(self) -> None:
        owner = self.owner
        if owner.table.wants_entry:
            owner.entries.append((owner.taken, owner.table.entry(0, 0)))
            owner.taken = []

    def durable(self) -> None:
        owner = self.owner
        if owner.entries:
            self.log.append(owner.entries.popleft())
            owner.table.durable()
        while owner.answers and owner.answers[0][0] <= owner.table.entries_durable:
            _, request, place, connection = owner.answers.popleft()
            if connection is not None:
                connection.replies.append(Reply(request, place))

    def serve(self, request: Request, connection: Connection | None) -> None:
        frame, owner = request.frame, self.owner
        try:
            first = owner.table.take(
                Frame(NAME, request.incarnation, frame.follows, frame.numbers), 0
            )
        except NotNext:
            if connection is not None:
                connection.replies.append(Reply(request, None, is_next=False))
            return
        except ProducerFenced:
            assert connection is None or connection is not self.connection
            return
        assert first in (0, len(frame.numbers))  # all of a frame is stored, or nothing (INV-S31)
        if first == 0:
            owner.taken.extend((number, bytes(frame.body)) for number in frame.numbers)
        place = None if first else DLSN(1, owner.table.answers_after(), 0)
        owner.answers.append((owner.table.answers_after(), request, place, connection))

    def crash(self) -> None:
        for _ in range(self.random.randint(0, len(self.owner.entries))):
            self.log.append(self.owner.entries.popleft())
        self.cut()
        self.owner = self.take_over()

    # --- the producer

    def open(self) -> None:
        """A life of the application begins: it opens the name, which fences its former life."""
        self.cut()
        row: Row = self.owner.table.open(NAME, 0)
        while self.owner.table.wants_entry:
            self.entry()
        while self.owner.entries:
            self.durable()
        self.incarnation = row.incarnation
        self.window = Window(row.last_number, BOUNDS, PENDING_BYTES_MAX)
        self.told = [number for number in self.told if number <= row.last_number]
        self.connection = Connection()
        self.told_in_this_life: list[int] = []

    def append(self) -> None:
        number = None
        if self.has_numbers and self.random.random() < 0.3:
            number = self.window.last_number + self.random.randint(1, 5)
        try:
            if self.random.random() < 0.2:
                wanted = None if number is None else [number, number + 2]
                self.window.put_batch([b"a", b"b"], wanted, None, None, None)
                self.given.append(self.window.last_number - (1 if wanted is None else 2))
            else:
                self.window.put(b"x", number, None, b"", None)
        except BufferFull:
            return
        self.given.append(self.window.last_number)

    def send(self) -> None:
        frame = None if self.connection is None else self.window.next_frame()
        if frame is not None and self.connection is not None:
            request = Request(frame, self.incarnation, self.window.losses)
            self.connection.requests.append(request)

    def deliver(self) -> None:
        if self.connection is not None and self.connection.requests:
            self.serve(self.connection.requests.popleft(), self.connection)

    def deliver_late(self) -> None:
        if self.old_requests:
            index = self.random.randrange(len(self.old_requests))
            self.serve(self.old_requests.pop(index), None)

    def reply(self) -> None:
        if self.connection is None or not self.connection.replies:
            return
        reply = self.connection.replies.popleft()
        if reply.is_next:
            for frame in self.window.answered(reply.request.frame, reply.place):
                self.told_in_this_life.extend(frame.numbers)
                self.told.extend(frame.numbers)
        elif reply.request.losses == self.window.losses:
            self.window.lost()

    def cut(self) -> None:
        if self.connection is not None:
            self.old_requests.extend(self.connection.requests)
            self.connection = None
            self.window.lost()

    def resume(self) -> None:
        if self.connection is None:
            self.connection = Connection()

    def die(self) -> None:
        """The application is killed; with numbers it goes on behind what is stored."""
        if self.has_numbers:
            self.cut()
            self.open()
            last = self.window.last_number
            self.given = [number for number in self.given if number <= last]

    # --- the end

    def heal(self) -> None:
        for _ in range(10_000):
            if self.window.is_empty:
                return
            for step in (
                self.resume,
                self.send,
                self.deliver,
                self.entry,
                self.durable,
                self.reply,
            ):
                step()
        raise AssertionError("it does not come to an end")

    def judge(self) -> None:
        stored = [number for records, _ in self.log for number, _ in records]
        assert stored == self.given, "each record once, in order"
        assert self.told_in_this_life == sorted(self.told_in_this_life)
        assert set(self.told) <= set(stored)
        assert self.window.acknowledged_number == (stored[-1] if stored else NO_NUMBER)


STEPS = ("append",) * 6 + ("send",) * 6 + ("deliver",) * 6 + ("entry",) * 4 + ("durable",) * 4 + (
    "reply",) * 6 + ("resume",) * 4 + ("cut", "crash", "deliver_late", "deliver_late", "die")  # fmt: skip


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 400), has_numbers=st.booleans())
def test_each_record_is_stored_once_and_in_order(
    seed: int, steps: int, *, has_numbers: bool
) -> None:
    """INV-S31, INV-S32, INV-S33 with the owner's: over crashes of services, and with numbers over the producer's."""
    world = World(seed, has_numbers=has_numbers)
    for _ in range(steps):
        getattr(world, world.random.choice(STEPS))()
        stored = {number for records, _ in world.log for number, _ in records}
        assert set(world.told) <= stored, "nothing is told before it is durable"
    world.heal()
    world.judge()
