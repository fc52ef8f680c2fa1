"""Apache's clients at their worst: other protocols, broken frames, too much at once, gone before the answer."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import EOK, ETOOMANYREQUESTS, KEY, hear_v2, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.worker_harness import (
    FENCE,
    LIST,
    READ,
    READ_LAC,
    Client,
    Record,
    Served,
    WorkerHarness,
    one_client,
    one_worker,
    served,
    until,
)

SOME = apache.entry(7, b"some data")


# --- frames -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "counter"),
    [
        (b"\x16\x03\x01\x02\x00", "BAD_MAGIC"),  # TLS
        (b"GET / HTTP/1.1\r\n\r\n", "BAD_MAGIC"),
        (b"\xff\xff\xff\xff", "BAD_MAGIC"),
        (struct.pack(">i", 0), "BAD_LENGTH"),
        (struct.pack(">i", 3), "BAD_LENGTH"),
        (apache.v2_read(1) + struct.pack(">i", -1), "BAD_LENGTH"),
        (apache.v2_read(1) + struct.pack(">i", 1 << 30), "TOO_LARGE"),
        (struct.pack(">i", (1 << 20) + 4096 - 3), "TOO_LARGE"),
        (apache.framed(apache.v2_header(99) + bytes(40)), "BAD_FRAME"),
        (apache.framed(b"\x0a\xff\xff\xff\xff\x0f" + bytes(20)), "BAD_FRAME"),
        (apache.framed(apache.v2_header(apache.V2_ADD) + bytes(30)), "BAD_FRAME"),
        (apache.v3_auth(1, payload=bytes(20_000)), "TOO_LARGE"),
    ],
)
async def test_what_makes_no_sense_is_closed_without_a_word(sent: bytes, counter: str) -> None:
    async with one_client() as (worker_harness, _, client):
        client.send(sent)
        assert await client.is_closed() == b""
        assert counted(worker_harness, counter) == 1


@pytest.mark.uvloop_too
async def test_a_byte_at_a_time() -> None:
    async with one_client() as (worker_harness, bookie, client):
        for byte in apache.v2_add(1) + apache.v3_add(2, 2, b"x" * 40) + apache.v3_auth(3):
            client.send(bytes([byte]))
            await client.writer.drain()
        await bookie.take(2)
        assert (await hear_v3(client)).operation == apache.AUTH
        worker_harness.publish()
        assert (await hear_v2(client)).entry_id == 1
        assert (await hear_v3(client)).txn == 2


# --- answers that come too late -----------------------------------------------------------------------------------


async def test_a_late_answer_reaches_nobody_else() -> None:
    """The context of who is gone is used again at once, by another connection in the same slot and by others."""
    async with one_client(connections_max=2) as (worker_harness, bookie, other):
        other.send(apache.v2_read(1))
        await bookie.take_request()
        gone = await bookie.connect()
        gone.send(apache.v2_read(2) + apache.v2_add(3) + apache.v2_read(4, flags=1, key=KEY))
        late = [await bookie.take_request(), *await bookie.take(2)]
        await gone.close()
        await until(lambda: len(bookie.network.connections) == 1)
        again = await bookie.connect()
        again.send(apache.v2_read(12) + apache.v2_add(13) + apache.v2_read(14, flags=1, key=KEY))
        fresh = [await bookie.take_request(), *await bookie.take(2)]
        numbers = {record.request_id & 0xFFFFFFFF for record in fresh}
        assert numbers == {record.request_id & 0xFFFFFFFF for record in late}
        worker_harness.publish()
        assert (await hear_v2(again)).entry_id == 13
        for records in (late, fresh):
            for record in (records[0], records[2]):
                worker_harness.say(record, "read", record.entry_id, 0, SOME, len(SOME))
        assert [(await hear_v2(again)).entry_id for _ in range(2)] == [12, 14]
        # The same connection, an answer twice: the second is for nobody.
        stale = counted(worker_harness, "REPLIES_STALE")
        worker_harness.say(fresh[0], "read", 12, 0, SOME, len(SOME))
        await until(lambda: counted(worker_harness, "REPLIES_STALE") == stale + 1)
        again.send(apache.v2_add(15))
        await bookie.take(1)
        worker_harness.publish()
        assert (await hear_v2(again)).entry_id == 15
        await again.close()


async def test_polls_of_a_connection_that_left_are_cancelled() -> None:
    async with one_worker() as (_, bookie):
        client = await bookie.connect()
        client.send(apache.v3_read(2, -1, flag=apache.PIGGYBACK, previous_lac=5, timeout_ms=9000))
        poll = await bookie.take_request()
        await client.close()
        cancel = await bookie.take_request()
        assert (cancel.kind, cancel.connection_id) == (21, poll.connection_id)
        await until(lambda: bookie.worker.pending == 0)


# --- bounds -------------------------------------------------------------------------------------------------------


async def test_requests_above_the_bound_wait_and_all_are_answered() -> None:
    async with one_worker(apache_requests_max=4) as (worker_harness, bookie):
        clients = [await bookie.connect() for _ in range(3)]
        for client in clients:
            client.send(b"".join(apache.v2_add(i) for i in range(10)))
        for _ in range(30):
            await bookie.take(1)
            assert bookie.worker.pending <= 4
            worker_harness.publish()
        for client in clients:
            assert [(await hear_v2(client)).entry_id for _ in range(10)] == list(range(10))
        assert counted(worker_harness, "WAITS_CONTEXT") > 0
        assert bookie.worker.pending == 0
        for client in clients:
            await client.close()


async def test_polls_take_at_most_half_of_what_there_is() -> None:
    async with one_client(apache_requests_max=8) as (worker_harness, bookie, client):
        for txn in range(5):
            client.send(
                apache.v3_read(txn, -1, flag=apache.PIGGYBACK, previous_lac=5, timeout_ms=9000)
            )
        refused = await hear_v3(client)
        assert (refused.txn, refused.status) == (4, ETOOMANYREQUESTS)
        polls = [await bookie.take_request() for _ in range(4)]
        client.send(apache.v3_add(9, 9))
        await bookie.take(1)
        for poll in polls:
            worker_harness.say(poll, "lac", 5, b"", 0, -1, b"", 0)
        assert {(await hear_v3(client)).txn for _ in range(4)} == {0, 1, 2, 3}


async def test_too_many_adds_and_reads_are_refused_but_urgent_ones() -> None:
    async with one_client(apache_adds_pending_max=2, apache_reads_pending_max=1) as (
        worker_harness,
        bookie,
        client,
    ):
        client.send(b"".join(apache.v3_add(txn, txn) for txn in range(4)))
        assert [((await hear_v3(client)).status) for _ in range(2)] == [ETOOMANYREQUESTS] * 2
        client.send(apache.v3_add(5, 5, recovery=True) + apache.v3_add(6, 6, priority=1))
        await bookie.take(4)
        client.send(apache.v3_read(10, 1) + apache.v3_read(11, 1))
        assert ((await hear_v3(client)).status) == ETOOMANYREQUESTS
        client.send(apache.v2_batch(1, 1, 1) + apache.v3_read(12, 1, flag=apache.FENCE, key=KEY))
        assert (await hear_v2(client)).error == 106
        assert (await bookie.take(1))[0].kind == FENCE
        client.send(apache.v3_read(13, -1, flag=apache.PIGGYBACK, previous_lac=5, timeout_ms=9000))
        assert [(await bookie.take_request()).kind for _ in range(2)] == [READ, READ_LAC]
        worker_harness.publish()
        assert [(await hear_v3(client)).txn for _ in range(4)] == [0, 1, 5, 6]
        client.send(apache.v3_add(14, 14))
        assert (await bookie.take(1))[0].entry_id == 14


async def test_above_the_adds_in_progress_nobody_is_refused() -> None:
    async with one_worker(apache_adds_in_progress_max=2, apache_reads_in_progress_max=1) as (
        worker_harness,
        bookie,
    ):
        client, reader = await bookie.connect(), await bookie.connect()
        client.send(b"".join(apache.v3_add(txn, txn) for txn in range(5)))
        await bookie.take(2)
        reader.send(apache.v3_read(10, 1) + apache.v3_read(11, 1))
        read = await bookie.take_request()
        assert worker_harness.next() is None
        assert worker_harness.next_request() is None
        for batch in ([0, 1], [2, 3], [4]):
            worker_harness.publish()
            assert [(await hear_v3(client)).txn for _ in batch] == batch
            await bookie.take(min(2, 4 - batch[-1]))
        worker_harness.say(read, "status", 0)
        assert (await hear_v3(reader)).txn == 10
        await bookie.take_request()
        await client.close()
        await reader.close()


# --- a second step that finds no room -----------------------------------------------------------------------------


def fill(count: int) -> bytes:
    return b"".join(apache.v2_read(i) for i in range(count))


async def stuck(
    worker_harness: WorkerHarness, bookie: Served, client: Client
) -> tuple[Record, Client]:
    """A poll whose read waits, and that other: the request ring is full of others' reads."""
    client.send(apache.v3_read(3, 4, previous_lac=6, timeout_ms=50))
    poll = await bookie.take_request()
    other = await bookie.connect()
    other.send(fill(60))
    await until(lambda: counted(worker_harness, "WAITS_REQUEST_RING") > 0)
    waits = counted(worker_harness, "WAITS_REQUEST_RING")
    worker_harness.say(poll, "lac", 9, b"", 0, -1, b"", 0)
    await until(lambda: counted(worker_harness, "WAITS_REQUEST_RING") > waits)
    return poll, other


async def test_a_second_step_waits_for_room_before_all_others() -> None:
    with WorkerHarness(request_ring=4096) as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            poll, other = await stuck(worker_harness, bookie, client)
            kinds = []
            while True:
                record = await bookie.take_request()
                kinds.append(record)
                worker_harness.index()
                if record.request_id == poll.request_id:
                    break
            assert len(kinds) < 60, "it came before those of the other connection that waited, too"
            worker_harness.say(record, "read", 4, 9, SOME, len(SOME))
            assert (await hear_v3(client)).status == EOK
            await client.close()
            await other.close()


async def test_who_leaves_while_a_second_step_waits_is_forgotten() -> None:
    with WorkerHarness(request_ring=4096) as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            poll, other = await stuck(worker_harness, bookie, client)
            before = bookie.worker.pending
            await client.close()
            await until(lambda: bookie.worker.pending == before - 1)
            taken = []
            while len(taken) < 60:
                taken.append(await bookie.take_request())
                worker_harness.index()
            assert poll.request_id not in {record.request_id for record in taken}
            await other.close()


async def test_drain_waits_for_a_second_step() -> None:
    with WorkerHarness(request_ring=4096) as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            poll, other = await stuck(worker_harness, bookie, client)
            drained = asyncio.ensure_future(bookie.network.drain(10.0))
            while True:
                record = await bookie.take_request()
                worker_harness.index()
                worker_harness.say(record, "read", record.entry_id, 9, SOME, len(SOME))
                if record.request_id == poll.request_id:
                    break
            assert (await hear_v3(client)).status == EOK
            while (late := worker_harness.next_request()) is not None:
                worker_harness.say(late, "read", late.entry_id, 9, SOME, len(SOME))
            assert await drained == 0
            await client.close()
            await other.close()


# --- all at once --------------------------------------------------------------------------------------------------


class Chaos:
    """Clients that ask for this and that, and an index that answers whatever it wants to, in any order."""

    def __init__(self, worker_harness: WorkerHarness, bookie: Served, rng: random.Random) -> None:
        self.worker_harness, self.bookie, self.rng = worker_harness, bookie, rng
        self.asked: dict[Client, dict[int, int]] = {}
        self.waiting: list[Record] = []
        self.txn = 0

    def ask(self, client: Client) -> None:
        self.txn += 1
        txn, entry_id = self.txn, self.txn % 1000
        sent, operation = self.rng.choice(
            [
                (apache.v3_add(txn, entry_id), apache.ADD),
                (apache.v3_add(txn, entry_id, recovery=True), apache.ADD),
                (apache.v3_read(txn, entry_id), apache.READ),
                (apache.v3_read(txn, entry_id, flag=apache.FENCE, key=KEY), apache.READ),
                (apache.v3_read(txn, entry_id, previous_lac=1, timeout_ms=9), apache.READ),
                (
                    apache.v3_read(txn, -1, flag=apache.PIGGYBACK, previous_lac=1, timeout_ms=9),
                    apache.READ,
                ),
                (apache.v3_force(txn), apache.FORCE),
                (apache.v3_list(txn), apache.LIST),
                (apache.v3_read_lac(txn), apache.READ_LAC),
                (apache.v3_auth(txn), apache.AUTH),
            ]
        )
        self.asked[client][txn] = operation
        client.send(sent)

    def take(self) -> None:
        while (record := self.worker_harness.next()) is not None:
            if record.kind == FENCE:
                self.waiting.append(record)
        self.worker_harness.publish()
        self.worker_harness.index()
        while (record := self.worker_harness.next_request()) is not None:
            if record.kind != 21:
                self.waiting.append(record)

    def answer(self) -> None:
        record = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        if self.rng.random() < 0.2:
            self.worker_harness.say(record, "status", self.rng.choice([10, 11, 12, 25, 30]))
        elif record.kind == READ_LAC:
            self.worker_harness.say(record, "lac", 9, b"", 0, 2, SOME, len(SOME))
        elif record.kind == LIST:
            more = self.rng.random() < 0.5
            first = record.entry_id
            page = struct.pack("<qq", first, first + 1)
            self.worker_harness.say(record, "list", first + 5 if more else -1, page, 1)
        else:
            self.worker_harness.say(record, "read", record.entry_id, 3, SOME, len(SOME))

    async def hear(self, client: Client) -> None:
        while self.asked[client] and client.reader._buffer:  # type: ignore[attr-defined]
            reply = await hear_v3(client)
            assert self.asked[client].pop(reply.txn) == reply.operation


@pytest.mark.slow
async def test_whatever_happens_each_request_has_its_own_answer(rng: random.Random) -> None:
    """With few contexts and a small request ring; connections come and go."""
    with WorkerHarness(request_ring=4096) as worker_harness:
        async with served(
            worker_harness, apache_requests_max=24, pending_requests_max=16
        ) as bookie:
            chaos = Chaos(worker_harness, bookie, rng)
            clients = [await bookie.connect() for _ in range(4)]
            chaos.asked = {client: {} for client in clients}
            for _ in range(1500):
                client = rng.choice(clients)
                step = rng.randrange(100)
                if step < 50:
                    chaos.ask(client)
                elif step < 70:
                    chaos.take()
                elif step < 95 and chaos.waiting:
                    chaos.answer()
                elif step == 99 and rng.random() < 0.5:
                    clients.remove(client)
                    await client.close()
                    clients.append(await bookie.connect())
                    chaos.asked[clients[-1]] = {}
                await asyncio.sleep(0)
                await chaos.hear(client)
            async with asyncio.timeout(20):
                while any(chaos.asked[client] for client in clients):
                    chaos.take()
                    while chaos.waiting:
                        chaos.answer()
                    await asyncio.sleep(0.001)
                    for client in clients:
                        await chaos.hear(client)
            await until(lambda: bookie.worker.pending == 0)
            assert counted(worker_harness, "WAITS_CONTEXT") > 0
            for client in clients:
                await client.close()
