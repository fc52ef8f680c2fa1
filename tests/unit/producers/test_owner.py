"""The owner of a stream of producers, on ledgers in memory: histories of owners that come, freeze and are fenced.

INV-S23 to INV-S27 with the real engine and real entries: what `fastbk/producers/README.md` calls P1 to P6.
"""

from __future__ import annotations

import asyncio
import functools
import random
from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ParamSpec

import pytest

from fastbk.errors import Error, ProducerExpired, ProducerFenced
from fastbk.native.stream_codec import HEAD_BYTES, encode
from fastbk.producers.owner import FrameQueue, OwnerEnded, Request, StreamOwner
from fastbk.producers.table import NO_NUMBER, Frame, NotNext, OwnerTable, TableOptions
from fastbk.stream.chain import add_segment, reserve
from fastbk.stream.opening import create_ledger
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import Row, table_of_log
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.writer.queue import EntryPlace
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan
from tests.fixtures.streams import cluster_with_stream, context_of, records_of

P = ParamSpec("P")
SEEDS = 60
WHOLE = TableOptions(entries_max=4, bytes_max=2000)


def body_of(payloads: list[bytes]) -> bytes:
    return bytes(encode(0, 0, 0, payloads, array("q", range(len(payloads))))[HEAD_BYTES:])


_owners: list[StreamOwner] = []


def ending_owners(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Have what a test began ended behind it."""

    @functools.wraps(test)
    async def run(*args: P.args, **keywords: P.kwargs) -> None:
        try:
            await test(*args, **keywords)
        finally:
            while _owners:
                _owners.pop().abandon()
            await asyncio.sleep(0)

    return run


async def owner_of(
    cluster: Cluster, name: str = "service:a", policy: StreamPolicy | None = None
) -> StreamOwner:
    owner = await StreamOwner.take_over(context_of(cluster.client(), policy), name, WHOLE)
    _owners.append(owner)
    return owner


async def table_of(cluster: Cluster) -> dict[bytes, Row]:
    """Return the table that the next owner would read, of a stream with all segments closed."""
    context = context_of(cluster.client())
    return await table_of_log(context, (await context.store.read()).chain) or {}


def frame_of(row: Row, *numbers: int, follows: int | None = None) -> tuple[Frame, bytes]:
    before = numbers[0] - 1 if follows is None else follows
    payloads = [b"%s %d %d" % (row.name, row.incarnation, number) for number in numbers]
    return Frame(row.name, row.incarnation, before, numbers), body_of(payloads)


@ending_owners
async def test_a_frame_is_one_entry_and_its_repeat_is_left_out() -> None:
    cluster, _ = await cluster_with_stream()
    owner = await owner_of(cluster)
    row = await owner.open(b"till-1")
    assert row.last_number == NO_NUMBER
    first = await owner.produce(*frame_of(row, 0, 1, 2, follows=-1))
    assert first == DLSN(1, 1, 0)
    assert await owner.produce(*frame_of(row, 0, 1, 2, follows=-1)) is None
    assert await owner.produce(*frame_of(row, 1, 2, 3, 4, follows=0)) == DLSN(1, 2, 0)
    await owner.release()
    numbers = [int(bytes(record.payload).split()[2]) for record in await records_of(cluster)]
    assert numbers == [0, 1, 2, 3, 4]


@ending_owners
async def test_what_was_not_sent_is_refused_as_not_next_and_ends_nobody() -> None:
    """INV-S25."""
    cluster, _ = await cluster_with_stream()
    owner = await owner_of(cluster)
    row = await owner.open(b"a")
    with pytest.raises(NotNext):
        await owner.produce(*frame_of(row, 5, follows=4))
    assert await owner.produce(*frame_of(row, 4, follows=-1)) is not None
    assert await owner.produce(*frame_of(row, 5, follows=4)) is not None


@ending_owners
async def test_a_second_opening_fences_the_first() -> None:
    cluster, _ = await cluster_with_stream()
    owner = await owner_of(cluster)
    row = await owner.open(b"a")
    await owner.produce(*frame_of(row, 0, follows=-1))
    second = await owner.open(b"a")
    assert second.last_number == 0
    with pytest.raises(ProducerFenced):
        await owner.produce(*frame_of(row, 1))
    with pytest.raises(ProducerExpired):
        await owner.produce(*frame_of(Row(b"nobody", 1, -1, 0), 0, follows=-1))


@ending_owners
async def test_openings_without_records_are_kept_over_owners() -> None:
    """INV-S36: a segment in which names were opened, and nothing was appended, stays, and readers pass over it."""
    cluster, _ = await cluster_with_stream()
    rows = []
    for number in range(3):
        owner = await owner_of(cluster, f"service:{number}")
        rows.append(await owner.open(b"name-%d" % number))
        owner.abandon()
    owner = await owner_of(cluster, "service:last")
    for number, row in enumerate(rows):
        assert await owner.produce(*frame_of(row, number, follows=-1)) is not None
    await owner.release()
    chain = (await context_of(cluster.client()).store.read()).chain
    assert [segment.records for segment in chain.rows] == [0, 0, 0, 3]
    assert [record.seq for record in await records_of(cluster)] == [0, 1, 2]
    context = context_of(cluster.client())
    async with StreamReader(context, "earliest", tail=False) as reader:
        found = [record.seq async for record in reader]
    assert found == [0, 1, 2]
    async with StreamReader(context, DLSN(2, 0, 0), tail=False) as reader:
        assert [record.dlsn async for record in reader] == [DLSN(4, entry, 0) for entry in range(3)]


@ending_owners
async def test_an_empty_segment_is_not_rolled() -> None:
    """What stands behind it in the chain goes with it: an acknowledged record would."""
    cluster, _ = await cluster_with_stream()
    owner = await owner_of(cluster)
    row = await owner.open(b"a")
    for _ in range(2):
        await owner._engine.rolling.roll()
    for _ in range(200):
        await asyncio.sleep(0)
    assert await owner.produce(*frame_of(row, 0, follows=-1)) is not None
    await owner_of(cluster, "service:b")
    assert len(await records_of(cluster)) == 1


async def test_no_entry_takes_more_than_its_bound() -> None:
    """Room is looked for by the bound: an entry that is encoded and not sent would be in the table twice."""
    row = Row(b"n" * 64, 1 << 32 | 1, 5, 0)
    for rows in ({}, {row.name: row}):
        for wants_records in (False, True):
            queue = FrameQueue(OwnerTable(dict(rows), 1), -1)
            frame, body = frame_of(row, 6) if wants_records else frame_of(row, 9)
            future = asyncio.get_running_loop().create_future()
            queue.put(Request(row.name, frame, body, future))
            group = queue.take(only_full=False)
            assert group is not None
            bound = group.size_bytes
            assert len(group.encode(EntryPlace(1, 0, 0, 0, 1))) <= bound


class HeldAppends(Plan):
    """Appends wait while `go` is not set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "append":
            await self.go.wait()


@ending_owners
async def test_a_repeat_waits_for_its_original() -> None:
    """INV-S26: it is answered when that is durable, and not at all if it may not be."""
    plan = HeldAppends()
    plan.go.set()
    cluster, _ = await cluster_with_stream(plan)
    owner = await owner_of(cluster)
    row = await owner.open(b"a")
    plan.go.clear()
    original = owner.produce(*frame_of(row, 0, follows=-1))
    for _ in range(100):
        await asyncio.sleep(0)
    repeat = owner.produce(*frame_of(row, 0, follows=-1))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not original.done()
    assert not repeat.done()
    plan.go.set()
    assert await original == DLSN(1, 1, 0)
    assert await repeat is None
    plan.go.clear()
    original = owner.produce(*frame_of(row, 1))
    for _ in range(100):
        await asyncio.sleep(0)
    repeat = owner.produce(*frame_of(row, 1))
    for _ in range(100):
        await asyncio.sleep(0)
    owner.abandon()
    plan.go.set()
    for answer in (original, repeat):
        with pytest.raises(OwnerEnded):
            await answer


@ending_owners
async def test_an_owner_that_is_fenced_refuses_nobody() -> None:
    """INV-S26: its refusal would need an entry, and it gets none any more."""
    cluster, _ = await cluster_with_stream()
    former = await owner_of(cluster, "service:former")
    row = await former.open(b"a")
    now = await owner_of(cluster, "service:now")
    other = await now.open(b"b")
    answers = [
        former.produce(*frame_of(other, 0, follows=-1)),
        former.produce(*frame_of(row, 0, follows=-1)),
        former.open(b"c"),
    ]
    for answer in answers:
        with pytest.raises(OwnerEnded):
            await answer
    assert former.failure is not None
    assert await now.produce(*frame_of(row, 0, follows=-1)) is not None


@ending_owners
async def test_an_owner_that_is_fenced_finds_out_by_a_frame_that_does_not_follow() -> None:
    """INV-S26: a producer that went on elsewhere, and came back, would be told to send again for ever."""
    cluster, _ = await cluster_with_stream()
    former = await owner_of(cluster, "service:former")
    row = await former.open(b"a")
    now = await owner_of(cluster, "service:now")
    assert await now.produce(*frame_of(row, 0, follows=-1)) is not None
    with pytest.raises(OwnerEnded):
        await former.produce(*frame_of(row, 1))
    assert former.failure is not None


@ending_owners
async def test_an_owner_whose_ledger_was_closed_by_somebody_ends() -> None:
    """INV-S37: it does not send again in another segment."""
    cluster, _ = await cluster_with_stream()
    owner = await owner_of(cluster)
    row = await owner.open(b"a")
    ended = asyncio.Event()
    owner.on_end(ended.set)
    context = context_of(cluster.client())
    chain = (await context.store.read()).chain
    await context.client.open_ledger(chain.rows[-1].ledger_id, recovery=True)
    with pytest.raises(OwnerEnded):
        await owner.produce(*frame_of(row, 0, follows=-1))
    async with asyncio.timeout(10):
        await ended.wait()
    after = await owner_of(cluster, "service:b")
    assert await after.produce(*frame_of(row, 0, follows=-1)) is not None


@ending_owners
async def test_an_owner_that_left_a_segment_open_releases_nothing() -> None:
    """A change of metadata whose answer was lost had added the next segment: whoever opens the stream closes it."""
    cluster, _ = await cluster_with_stream()
    owner = await owner_of(cluster)
    row = await owner.open(b"a")
    context, epoch = context_of(cluster.client()), owner.epoch
    ledger_id, known = await context.store.name_ledger(
        lambda chain, ledger_id: reserve(chain, epoch, ledger_id), await context.store.read()
    )
    await create_ledger(context, await context.policy(), ledger_id)
    await context.store.change(lambda chain: add_segment(chain, epoch, ledger_id, 0), known)
    with pytest.raises(OwnerEnded, match="segment"):
        await owner.release()
    after = await owner_of(cluster, "service:b")
    assert await after.produce(*frame_of(row, 0, follows=-1)) is not None
    await after.release()
    assert not (await context.store.read()).chain.owner


# --- histories ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Sender:
    """One incarnation of a name, and what became of its frames."""

    row: Row
    sent: list[tuple[int, ...]] = field(default_factory=list)
    stored: int = NO_NUMBER
    """The last number that was acknowledged."""
    is_ended: bool = False

    @property
    def last(self) -> int:
        return self.sent[-1][-1] if self.sent else self.row.last_number

    def unacknowledged(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return its frames that have no answer, each with the number before it."""
        before, left = self.row.last_number, []
        for numbers in self.sent:
            if numbers[-1] > self.stored:
                left.append((before, numbers))
            before = numbers[-1]
        return left


class History:
    """Owners and producers of one stream, at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.owners: list[StreamOwner] = []
        self.senders: list[Sender] = []
        self.opened: list[Row] = []
        """Answered openings, in their order."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.cluster = Cluster(Plan())

    async def run(self, steps: int) -> None:
        self.cluster, _ = await cluster_with_stream(RandomPlan(self.rng))
        for _ in range(steps):
            await self.rng.choices(
                [self.take_over, self.open, self.send, self.resend, self.roll, self.wait],
                [2, 3, 12, 3, 1, 4],
            )[0]()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await owner_of(self.cluster, "service:end")

    def owner(self) -> StreamOwner | None:
        """Return the newest owner mostly, and now and then one that does not know that it was fenced."""
        if not self.owners:
            return None
        return self.owners[-1] if self.rng.random() < 0.8 else self.rng.choice(self.owners)

    def spawn(self, work: object) -> None:
        task = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def take_over(self) -> None:
        policy = StreamPolicy(roll_bytes=self.rng.choice([0, 400]))
        with suppress(Error):
            name = f"service:{self.rng.random()}"
            self.owners.append(await owner_of(self.cluster, name, policy))

    async def open(self) -> None:
        owner = self.owner()
        if owner is not None:
            self.spawn(self._open(owner, self.rng.choice([b"a", b"b", b"c"])))

    async def _open(self, owner: StreamOwner, name: bytes) -> None:
        with suppress(OwnerEnded):
            row = await owner.open(name)
            self.opened.append(row)
            self.senders.append(Sender(row))

    async def send(self) -> None:
        live = [sender for sender in self.senders if not sender.is_ended]
        owner = self.owner()
        if not live or owner is None:
            return
        sender = self.rng.choice(live)
        first = sender.last + self.rng.choice([1, 1, 3])
        numbers = tuple(range(first, first + self.rng.randint(1, 4)))
        before = sender.last
        sender.sent.append(numbers)
        self.spawn(self._send(owner, sender, before, numbers))

    async def _send(
        self, owner: StreamOwner, sender: Sender, before: int, numbers: tuple[int, ...]
    ) -> None:
        try:
            await owner.produce(*frame_of(sender.row, *numbers, follows=before))
        except (ProducerFenced, ProducerExpired):
            sender.is_ended = True
        except (NotNext, OwnerEnded):
            pass
        else:
            sender.stored = max(sender.stored, numbers[-1])

    async def resend(self) -> None:
        owner = self.owner()
        for sender in self.senders:
            if owner is not None and not sender.is_ended and self.rng.random() < 0.5:
                for before, numbers in sender.unacknowledged():
                    self.spawn(self._send(owner, sender, before, numbers))

    async def roll(self) -> None:
        engine = self.owners[-1]._engine if self.owners else None
        segment = None if engine is None or engine.failure is not None else engine.segment
        if (
            segment is not None and not segment.is_empty
        ):  # as a writer does: an empty one never rolls
            self.spawn(self.owners[-1]._engine.rolling.roll())

    async def wait(self) -> None:
        for _ in range(self.rng.randrange(30)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(SEEDS))
@ending_owners
async def test_each_number_is_stored_once_in_order_and_what_was_acknowledged_is(seed: int) -> None:
    history = History(seed)
    await history.run(150)
    rows = [bytes(record.payload).split() for record in await records_of(history.cluster)]
    log = [(name, int(incarnation), int(number)) for name, incarnation, number in rows]
    for name in (b"a", b"b", b"c"):
        numbers = [number for of, _, number in log if of == name]
        assert numbers == sorted(set(numbers))  # P3, P5: once, and in order
        incarnations = [incarnation for of, incarnation, _ in log if of == name]
        assert incarnations == sorted(incarnations)
        last = (await table_of(history.cluster)).get(name)
        if last is not None and numbers:
            assert last.last_number >= numbers[-1]  # P1; higher where an earlier opening skipped
    for sender in history.senders:
        mine = [
            number
            for of, of_this, number in log
            if (of, of_this) == (sender.row.name, sender.row.incarnation)
        ]
        sent = [number for numbers in sender.sent for number in numbers]
        assert mine == sent[: len(mine)]  # P5: nothing is there whose predecessor is not
        assert all(number in mine for number in sent if number <= sender.stored)  # P4
    for row in history.opened:  # P6
        earlier = [
            number for of, of_this, number in log if of == row.name and of_this < row.incarnation
        ]
        assert not earlier or earlier[-1] <= row.last_number


@ending_owners
async def test_histories_are_not_empty() -> None:
    """The histories above have takeovers, refusals and rolls, so that they show something."""
    records = segments = fenced = 0
    for seed in range(10):
        history = History(seed)
        await history.run(150)
        records += len(await records_of(history.cluster))
        segments += len((await context_of(history.cluster.client()).store.read()).chain.rows)
        fenced += sum(sender.is_ended for sender in history.senders)
    assert records > 300
    assert segments > 60
    assert fenced > 10
