"""Worlds of producers: services that own a stream one after the other, names that append, and a log with fencing.

    run_producers(7)                # raises Broken when a promise does not hold, Stuck when nothing goes on

`fastbk/producers/README.md` has the promises P1 to P6 (INV-S23 to INV-S26 keep them). `fastbk.producers.table` decides.
What a service does around it is here, until there is one; faults are planted into both.

The log is what ledgers promise to a stream's writer: entries in order; an opening fences, and of what was on the way a
beginning is in the log, the rest never is.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from fastbk.errors import ProducerExpired, ProducerFenced, TooManyProducers
from fastbk.producers.table import (
    NO_NUMBER,
    Frame,
    NotNext,
    OwnerTable,
    TableOptions,
)
from fastbk.stream.provenance import Provenance, Row, read_table
from tests.simulation.streams.facts import demand
from tests.simulation.streams.loop import Stuck

STEPS = 400
HEAL_STEPS_MAX = 20_000
NAMES = (b"a", b"b", b"c", b"d", b"e", b"f")
SERVICES = 3
RECORDS_MAX = 40
"""That a name is to append in all."""
AGE_US = 60_000_000
OPTIONS = TableOptions(names_max=5, names_kept=0, entries_max=6, bytes_max=2_000, age_us=AGE_US)


def note(seconds: float, who: str, what: str) -> None:
    """Do nothing: a replay prints it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record of the log."""

    name: bytes
    incarnation: int
    number: int
    time_us: int


@dataclass(slots=True, eq=False)
class Entry:
    """An entry on its way to the log, or in it."""

    epoch: int
    segment: int
    records: tuple[Stored, ...]
    provenance: Provenance


@dataclass(slots=True)
class Judge:
    """What the log has, what was promised, and whether both agree."""

    stored: dict[tuple[bytes, int], Stored] = field(default_factory=dict)
    last: dict[bytes, Row] = field(default_factory=dict)
    """The table as it must be, with names that were forgotten."""
    promised: dict[bytes, int] = field(default_factory=dict)
    """Incarnations that were answered."""
    sent: dict[tuple[bytes, int], list[int]] = field(default_factory=dict)
    """Numbers of each incarnation in the order in which they were sent first."""

    def take(self, entry: Entry) -> None:
        """An entry is in the log for ever."""
        for row in entry.provenance.rows:
            known = self.last.get(row.name)
            if known is None or row.incarnation > known.incarnation:
                last_number = NO_NUMBER if known is None else known.last_number
                self.last[row.name] = Row(row.name, row.incarnation, last_number, row.time_us)
        for record in entry.records:
            self._take_record(record)

    def _take_record(self, record: Stored) -> None:
        name, number = record.name, record.number
        demand(
            (name, number) not in self.stored, f"P3: number {number} of {name!r} is stored twice"
        )
        demand(
            record.incarnation >= self.promised.get(name, 0),
            f"P6: number {number} of {name!r} came from an opening that is fenced",
        )
        row = self.last[name]
        demand(number > row.last_number, f"P5: number {number} of {name!r} after {row.last_number}")
        for earlier in self.sent[name, record.incarnation]:
            if earlier == number:
                break
            demand((name, earlier) in self.stored, f"P5: {number} of {name!r} without {earlier}")
        self.stored[name, number] = record
        time_us = max(record.time_us, row.time_us)
        self.last[name] = Row(name, row.incarnation, number, time_us)

    def acknowledged(self, name: bytes, number: int) -> None:
        demand((name, number) in self.stored, f"P4: number {number} of {name!r} is not stored")

    def opened(self, name: bytes, incarnation: int) -> None:
        known = self.last.get(name)
        demand(
            known is not None and known.incarnation >= incarnation,
            f"P6: an opening of {name!r} was answered and is not stored",
        )
        self.promised[name] = max(incarnation, self.promised.get(name, 0))

    def read(self, rows: dict[bytes, Row], now_us: int) -> None:
        """A takeover has read this."""
        for name, truth in self.last.items():
            row = rows.get(name)
            if row is None:
                self.expired(name, truth.incarnation, now_us)
                continue
            forgotten = row.last_number == NO_NUMBER and row.incarnation == truth.incarnation
            demand(
                row.incarnation == truth.incarnation
                and (row.last_number == truth.last_number or forgotten),
                f"P1: {row} was read, {truth} is there",
            )

    def expired(self, name: bytes, incarnation: int, now_us: int) -> None:
        """An opening of a name was not found."""
        row = self.last.get(name)
        demand(
            row is None or row.incarnation > incarnation or now_us - row.time_us > AGE_US,
            f"{name!r} was forgotten before its age",
        )


class Log:
    """The stream's segments, as one list of entries; who opened it last; what is on the way."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.entries: list[Entry] = []
        self.flying: deque[tuple[Entry, Service]] = deque()
        self.epoch = 0
        self.segments = 0

    def open(self, rng: random.Random) -> int:
        """Fence, decide what was on the way, and begin an epoch."""
        for _ in range(rng.randint(0, len(self.flying))):
            self.land()
        for entry, service in self.flying:
            service.news.append((entry, False))
        self.flying.clear()
        self.epoch += 1
        return self.epoch

    def append(self, entry: Entry, service: Service) -> None:
        if entry.epoch != self.epoch:
            service.news.append((entry, False))
        else:
            self.flying.append((entry, service))

    def land(self) -> None:
        entry, service = self.flying.popleft()
        self.entries.append(entry)
        self.judge.take(entry)
        service.news.append((entry, True))

    def begin_segment(self) -> int:
        self.segments += 1
        return self.segments

    def table(self) -> dict[bytes, Row]:
        """Return what a takeover reads: of the newest segment with entries, for older ones may be deleted."""
        newest = self.entries[-1] if self.entries else None

        def before(number: int) -> Provenance:
            entry = self.entries[-1 - number]
            demand(entry.segment == self.entries[-1].segment, "P1: a segment has no whole table")
            return entry.provenance

        return read_table(newest.provenance if newest else None, before)


Answer: TypeAlias = tuple[str, int, int]
"""What became of a request; a number or an incarnation; the last number, of an opening."""


@dataclass(slots=True, eq=False)
class Wire:
    """One connection: requests and answers in order; what is in a broken one may still arrive, or not."""

    producer: Producer
    service: Service
    requests: deque[Frame | None] = field(default_factory=deque)
    """None: open the name."""
    answers: deque[Answer] = field(default_factory=deque)
    is_broken: bool = False


class Service:
    """One process of the write service."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.table: OwnerTable | None = None
        self.batch: list[Stored] = []
        self.waiting: deque[tuple[int, Wire, Answer]] = deque()
        """Answers, and the entry that has to be durable before."""
        self.news: deque[tuple[Entry, bool]] = deque()
        """What became of entries that this one sent."""
        self.is_frozen = False
        self.is_leaving = False
        self.segment = 0

    def give_up(self) -> None:
        """Own nothing any more: all that was pending is unknown."""
        self.table = None
        self.is_leaving = False
        self.batch.clear()
        self.waiting.clear()

    def take_over(self) -> None:
        """Open the writer, and read the table."""
        self.give_up()
        epoch = self.world.log.open(self.world.rng)
        rows = self.world.log.table()
        self.world.judge.read(rows, self.world.now_us)
        self.table = OwnerTable(rows, epoch, OPTIONS)
        self.segment = self.world.log.begin_segment()
        self.world.say(self.name, f"takes over, epoch {epoch}, {len(rows)} names")

    def roll(self) -> None:
        """Go on in a new segment."""
        if self.table is not None:
            self.table.begin_segment()
            self.segment = self.world.log.begin_segment()

    def leave(self) -> None:
        """Stop as planned: take nothing, and hand the stream over when all is durable."""
        self.is_leaving = self.table is not None

    def hand_over(self) -> None:
        """Give the lease to another, if all is durable that was taken."""
        table = self.table
        if table is not None and table.entries_durable == table.answers_after():
            self.give_up()
            if self.world.lease_of(self):
                self.world.expire()

    def receive(self, wire: Wire, request: Frame | None) -> None:
        if self.is_leaving or (self.table is None and not self.world.lease_of(self)):
            wire.answers.append(("moved", 0, 0))
            return
        if self.table is None:
            self.take_over()
        table = self.table
        assert table is not None
        answer = self.judge(table, wire.producer.name, request)
        self.waiting.append((table.answers_after(), wire, answer))
        self.answer(table)

    def judge(self, table: OwnerTable, name: bytes, request: Frame | None) -> Answer:
        """Take a request; return the answer that it is to get."""
        now_us = self.world.now_us
        try:
            if request is None:
                row = table.open(name, now_us)
                return "open", row.incarnation, row.last_number
            first = table.take(request, now_us)
        except (ProducerExpired, ProducerFenced, NotNext, TooManyProducers) as error:
            return type(error).__name__, 0, 0
        self.batch += [
            Stored(name, request.incarnation, number, now_us) for number in request.numbers[first:]
        ]
        return "durable", request.numbers[-1], 0

    def write(self) -> None:
        """Send an entry with all that was taken."""
        if self.table is None or not self.table.wants_entry:
            return
        records, self.batch = tuple(self.batch), []
        provenance = self.table.entry(100 * (1 + len(records)), self.world.now_us)
        entry = Entry(self.table.epoch, self.segment, records, provenance)
        self.world.log.append(entry, self)

    def hear(self) -> None:
        """Learn what became of the oldest entry."""
        entry, is_stored = self.news.popleft()
        if self.table is None or entry.epoch != self.table.epoch:
            return
        if not is_stored:
            self.world.say(self.name, "is fenced")
            self.give_up()
            return
        self.table.durable()
        self.answer(self.table)

    def answer(self, table: OwnerTable) -> None:
        """Answer what is durable."""
        while self.waiting and self.waiting[0][0] <= table.entries_durable:
            _, wire, answer = self.waiting.popleft()
            wire.answers.append(answer)


class Producer:
    """One incarnation of a name, of an application that keeps nothing but what it is told."""

    def __init__(self, name: bytes, world: World) -> None:
        self.name = name
        self.world = world
        self.incarnation = 0
        self.next_number = 0
        self.acknowledged = NO_NUMBER
        self.unacknowledged: deque[int] = deque()
        self.unsent: deque[int] = deque()
        """Of these, what is not sent on this connection."""
        self.follows = NO_NUMBER
        self.wire: Wire | None = None
        self.is_opening = False
        self.is_over = False

    def connect(self) -> None:
        """Find the owner; all that is not acknowledged is sent again, from the first on."""
        if self.wire is not None:
            self.wire.is_broken = True
        self.wire = Wire(self, self.world.owner())
        self.world.wires.append(self.wire)
        self.unsent = deque(self.unacknowledged)
        self.follows = self.acknowledged
        self.is_opening = self.incarnation == 0
        if self.is_opening:
            self.wire.requests.append(None)

    def work(self) -> None:
        """Send what there is, or hear an answer."""
        if self.is_over:
            return
        if self.wire is None:
            self.connect()
        elif self.wire.answers and self.world.rng.random() < 0.7:
            self.hear(*self.wire.answers.popleft())
        elif not self.is_opening:
            self.send(self.wire)

    def send(self, wire: Wire) -> None:
        rng = self.world.rng
        while len(self.unsent) < rng.randint(1, 3) and self.next_number < RECORDS_MAX:
            self.next_number += rng.choice((0, 0, 0, 1))
            self.unacknowledged.append(self.next_number)
            self.unsent.append(self.next_number)
            self.world.judge.sent.setdefault((self.name, self.incarnation), []).append(
                self.next_number
            )
            self.next_number += 1
        if self.unsent:
            count = rng.randint(1, len(self.unsent))
            numbers = tuple(self.unsent.popleft() for _ in range(count))
            wire.requests.append(Frame(self.name, self.incarnation, self.follows, numbers))
            self.follows = numbers[-1]

    def hear(self, what: str, number: int, last_number: int) -> None:
        if what == "open":
            self.world.judge.opened(self.name, number)
            self.incarnation, self.is_opening = number, False
            self.acknowledged = self.follows = last_number
            # What the application knows of its own is as good: a name that was forgotten is not begun anew.
            self.next_number = max(self.next_number, last_number + 1)
        elif what == "durable":
            self.world.judge.acknowledged(self.name, number)
            while self.unacknowledged and self.unacknowledged[0] <= number:
                self.acknowledged = self.unacknowledged.popleft()
        elif what in ("ProducerFenced", "TooManyProducers"):
            self.is_over = True
        elif what == "ProducerExpired":
            self.world.judge.expired(self.name, self.incarnation, self.world.now_us)
            self.restart()
        else:
            self.connect()

    def restart(self) -> None:
        """Open the name again. Numbers that were given are not given again."""
        if self.unacknowledged:
            self.next_number = max(self.next_number, self.unacknowledged[-1] + 1)
        self.unacknowledged.clear()
        self.incarnation = 0
        self.connect()

    @property
    def is_done(self) -> bool:
        return self.is_over or (
            self.next_number >= RECORDS_MAX and not self.unacknowledged and not self.is_opening
        )


class World:
    """One stream, its services and producers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.judge = Judge()
        self.log = Log(self.judge)
        self.now_us = 0
        self.services = [Service(f"service-{number}", self) for number in range(SERVICES)]
        self.lease = 0
        self.wires: list[Wire] = []
        self.producers = [Producer(name, self) for name in NAMES]

    def say(self, who: str, what: str) -> None:
        note(self.now_us / 1e6, who, what)

    def owner(self) -> Service:
        """Return where a producer goes that asks metadata: mostly the owner."""
        if self.rng.random() < 0.9:
            return self.services[self.lease]
        return self.rng.choice(self.services)

    def lease_of(self, service: Service) -> bool:
        return self.services[self.lease] is service

    def run(self) -> None:
        for _ in range(STEPS):
            self.step(faults=True)
        for service in self.services:
            service.is_frozen = False
        for number in range(HEAL_STEPS_MAX):
            if all(producer.is_done for producer in self.producers):
                break
            self.step(faults=False)
            if (
                number % 300 == 299
            ):  # Who waits for an answer that was lost connects again after a while.
                for producer in self.producers:
                    producer.connect()
        else:
            raise Stuck("producers do not come to an end")
        self.judge.read(self.log.table(), self.now_us)

    def step(self, *, faults: bool) -> None:
        self.now_us += self.rng.choice((1_000, 10_000, 100_000))
        if faults and self.rng.random() < 0.15:
            self.strike()
            return
        act = self.rng.choice(
            (self.producer_works, self.producer_works, self.delivers, self.delivers, self.writes,
             self.lands, self.hears)
        )  # fmt: skip
        act()

    def producer_works(self) -> None:
        self.rng.choice(self.producers).work()

    def delivers(self) -> None:
        """One connection, an old one, too, gives its service a request."""
        waiting = [wire for wire in self.wires if wire.requests and not wire.service.is_frozen]
        if waiting:
            wire = self.rng.choice(waiting)
            wire.service.receive(wire, wire.requests.popleft())

    def writes(self) -> None:
        service = self.rng.choice(self.services)
        if service.is_frozen:
            return
        service.write()
        if service.is_leaving:
            service.hand_over()

    def lands(self) -> None:
        if self.log.flying:
            self.log.land()

    def hears(self) -> None:
        waiting = [one for one in self.services if one.news and not one.is_frozen]
        if waiting:
            self.rng.choice(waiting).hear()

    def strike(self) -> None:
        """Have something go wrong."""
        rng = self.rng
        strikes: list[Callable[[], None]] = [
            self.freeze, self.kill, self.expire, self.leave, self.roll, self.drop, self.kill_producer, self.second,
            self.wait_long,
        ]  # fmt: skip
        rng.choice(strikes)()

    def freeze(self) -> None:
        service = self.rng.choice(self.services)
        service.is_frozen = not service.is_frozen
        self.say(service.name, "freezes" if service.is_frozen else "goes on")

    def kill(self) -> None:
        """A service dies, and is there again, with nothing. Its entries are still on their way."""
        service = self.rng.choice(self.services)
        self.say(service.name, "dies")
        service.give_up()
        service.news.clear()
        for wire in self.wires:
            if wire.service is service:
                wire.is_broken = True
                wire.requests.clear()
        if self.lease_of(service):
            self.expire()

    def expire(self) -> None:
        """The lease goes to another, whatever its owner believes."""
        self.lease = self.rng.randrange(SERVICES)
        self.say(self.services[self.lease].name, "has the lease")
        if not self.services[self.lease].is_frozen:
            self.services[self.lease].take_over()

    def leave(self) -> None:
        self.services[self.lease].leave()

    def roll(self) -> None:
        service = self.rng.choice(self.services)
        if not service.is_frozen:
            service.roll()

    def drop(self) -> None:
        """A connection breaks; of what it has, some is lost."""
        producer = self.rng.choice(self.producers)
        if producer.wire is not None:
            if self.rng.random() < 0.5:
                producer.wire.requests.clear()
            if not producer.is_over:
                producer.connect()

    def kill_producer(self) -> None:
        """An application dies; the next one of that name begins behind the last number that is stored."""
        position = self.rng.randrange(len(self.producers))
        before = self.producers[position]
        self.producers[position] = after = Producer(before.name, self)
        after.next_number = before.next_number
        before.is_over = True

    def second(self) -> None:
        """A name is opened a second time, while the first one goes on."""
        first = self.rng.choice(self.producers)
        other = Producer(first.name, self)
        other.next_number = first.next_number + 100 * len(self.producers)
        if len(self.producers) < 2 * len(NAMES):
            self.producers.append(other)

    def wait_long(self) -> None:
        """All is still for so long that names may be forgotten."""
        if self.rng.random() < 0.3:
            self.now_us += AGE_US // 2


def run_producers(seed: int) -> None:
    """Live one world."""
    World(seed).run()
