"""What a worker makes of bounds at their edges, and of an index whose answers are not what was asked for."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from fastbk.native.worker import COLLECT, PAUSE, Worker
from fastbk.observe.names import SLOTS
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import EIO, EOK, LEDGER, hear_v2, hear_v3
from tests.fixtures.worker_harness import (
    FRAME_SIZE_BYTES_MAX,
    READ,
    READ_BATCH,
    Record,
    WorkerHarness,
    served,
    until,
)

SOME = apache.entry(7, b"some data")
STATUS_OK = 0


class Fed:
    """A worker whose connections receive what the test says, when it says so."""

    def __init__(self, worker_harness: WorkerHarness, worker: Worker) -> None:
        self.worker_harness = worker_harness
        self.worker = worker
        self._ends: list[socket.socket] = []

    def connect(self) -> int:
        near, far = socket.socketpair()
        near.setblocking(False)
        self._ends += (near, far)
        slot = self.worker.connect(near.fileno())
        assert slot is not None
        return slot

    def feed(self, slot: int, data: bytes) -> int:
        todo = 0
        while data:
            piece = data[: len(self.worker.receive_buffer)]
            self.worker.receive_buffer[: len(piece)] = piece
            todo |= self.worker.receive(slot, len(piece))
            data = data[len(piece) :]
        return todo

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self.worker.close()


@contextlib.contextmanager
def fed(worker_harness: WorkerHarness, **changes: int) -> Iterator[Fed]:
    one = Fed(worker_harness, Worker(worker_harness.options(**changes)))
    try:
        yield one
    finally:
        one.close()


TRIALS = 256
"""Others that may go over the bound for a little (FBK_TRIALS_MAX)."""


def waits(worker_harness: WorkerHarness) -> int:
    return worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_REQUEST_RING"])


def test_who_is_ready_and_finds_no_room_waits_for_it_in_its_line() -> None:
    """A frame that came in whole while it waited for memory: its connection has its turn, and receives before that."""
    large = apache.v2_add(1, bytes(17_000))
    with (
        WorkerHarness(request_ring=4096) as worker_harness,
        fed(
            worker_harness,
            frame_size_bytes_max=20_000,
            partial_frames_bytes_max=40_000,
            receive_size_bytes=16_384,
            connections_max=300,
        ) as one,
    ):
        over, late = one.connect(), one.connect()
        # the last one goes over the bound: one may
        for slot in (
            one.connect(),
            one.connect(),
            over,
        ):
            one.feed(slot, large[:9000])
        for _ in range(TRIALS):
            one.feed(one.connect(), large[:9000])
        assert one.feed(late, large[:5000]) & PAUSE
        one.feed(late, large[5000:])  # was on its way
        assert one.feed(over, large[9000:]) & COLLECT
        one.feed(late, b"".join(apache.v2_read(i) for i in range(100)))
        taken = []
        for _ in range(100):
            one.worker.collect()
            while (record := worker_harness.next_request()) is not None:
                taken.append(record.entry_id)
        assert taken == list(range(100))


async def test_an_answer_that_comes_twice_is_taken_once_while_the_next_step_waits() -> None:
    with WorkerHarness(request_ring=4096) as worker_harness:
        async with served(worker_harness) as bookie:
            client, other = await bookie.connect(), await bookie.connect()
            client.send(apache.v3_read(3, 4, previous_lac=6, timeout_ms=50))
            poll = await bookie.take_request()
            other.send(b"".join(apache.v2_read(i) for i in range(60)))
            await until(lambda: waits(worker_harness) > 0)
            before = waits(worker_harness)
            for _ in range(2):
                worker_harness.say(poll, "lac", 9, b"", 0, -1, b"", 0)
            await until(lambda: waits(worker_harness) > before)
            taken: list[Record] = []
            while len(taken) < 61:
                taken.append(await bookie.take_request())
                worker_harness.index()
            again = [record for record in taken if record.request_id == poll.request_id]
            assert [record.kind for record in again] == [READ]
            worker_harness.say(again[0], "read", 4, 9, SOME, len(SOME))
            assert (await hear_v3(client)).status == EOK
            await client.close()
            await other.close()


async def test_an_answer_to_something_else_is_an_error() -> None:
    """Not an entry, not nothing: what was read is unknown."""
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_read(7))
            worker_harness.say(await bookie.take_request(), "status", STATUS_OK)
            assert (await hear_v2(client)).error == apache.V2_STATUSES[EIO]
            client.send(apache.v3_read(2, 7))
            worker_harness.say(await bookie.take_request(), "lac", 9, b"", 0, 7, SOME, len(SOME))
            assert (await hear_v3(client)).status == EIO
            await client.close()


@pytest.mark.parametrize("size_bytes_max", [-(1 << 63), -1, 0, 35, 36, (1 << 63) - 1])
async def test_a_batch_of_any_size_has_its_first_entry(size_bytes_max: int) -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_batch(9, 7, 1, size_bytes_max))
            record = await bookie.take_request()
            assert (record.kind, record.ledger_id, record.entry_id) == (READ_BATCH, LEDGER, 7)
            limit = int.from_bytes(record.payload[12:16], "little")
            assert 1 <= limit <= FRAME_SIZE_BYTES_MAX
            assert size_bytes_max > 37 or limit == 1
            await client.close()


@pytest.mark.parametrize(
    "tail",
    [
        b"\xf8\x03\x01",  # field 63: a number, a group, four bytes
        b"\xf3\x03\x08\x01\xf4\x03",
        b"\xfd\x03four",
        b"\x0a\x02\x20\x64",  # more of the header: the priority
    ],
)
async def test_what_python_answers_may_have_fields_that_nobody_knows(tail: bytes) -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            for question in (apache.v3_info(4, 3), apache.v3_auth(4)):
                client.send(apache.framed(question[4:] + tail))
                reply = await hear_v3(client)
                assert (reply.txn, reply.status) == (4, EOK)
            await client.close()
