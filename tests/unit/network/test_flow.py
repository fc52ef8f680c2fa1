"""Every bound of a worker, and what happens there (INV-B1): credit, rings, pending requests, memory, replies, time."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from fastbk.native.client_codec import put_read
from fastbk.native.worker import ABORT, BUFFER, COLD, COLLECT, CONNECTIONS_REFUSED, PAUSE, Worker
from fastbk.observe.names import SLOTS
from fastbk.server.configuration.settings import NetworkSettings
from fastbk.server.network import network
from fastbk.server.network.network import keep_alive
from fastbk.wire.messages import MAGIC, ErrorReply, decode_reply
from fastbk.wire.statuses import Status
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.apache_wire import hear_v3
from tests.fixtures.frames import KEY, answer_of, entry_bytes
from tests.fixtures.wait import wait_until
from tests.fixtures.worker_harness import (
    CANCEL,
    FENCE,
    LIST,
    MIB,
    READ,
    READ_LAC,
    Client,
    Record,
    Served,
    WorkerHarness,
    greeted,
    one_client,
    one_worker,
    served,
    until,
)

OK, FENCED, READ_ONLY, TOO_MANY_REQUESTS = 0, 20, 24, 25


def cost(data_bytes: int) -> int:
    """What the index's cache takes for an entry with CRC32C: fbk_record_cost."""
    return 56 + -(-(36 + data_bytes) // 8) * 8


async def answered(client: Client, request_ids: range) -> None:
    got = [answer_of(await client.frame()) for _ in request_ids]
    assert got == [(request_id, OK) for request_id in request_ids]


@pytest.mark.uvloop_too
async def test_without_credit_a_connection_waits_and_goes_on() -> None:
    with WorkerHarness() as worker_harness:
        worker_harness.grant(cost(100) * 10)
        async with served(worker_harness) as bookie:
            client = await greeted(bookie)
            client.send(b"".join(frames.add(100 + i, i, b"d" * 100) for i in range(35)))
            await bookie.take(10)
            await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_CREDIT"]) >= 1)
            worker_harness.publish()
            await answered(client, range(100, 110))
            assert worker_harness.next() is None
            for more in (20, 30, 40):
                worker_harness.grant(cost(100) * more)
                count = min(35, more) - (more - 10)
                await bookie.take(count)
                worker_harness.publish()
                await answered(client, range(100 + more - 10, 100 + more - 10 + count))
            await client.close()


async def test_fences_and_recovery_adds_need_no_credit() -> None:
    """INV-R3."""
    with WorkerHarness() as worker_harness:
        worker_harness.grant(0)
        async with served(worker_harness) as bookie:
            stuck, other = await greeted(bookie), await greeted(bookie)
            stuck.send(frames.add(2, 0))
            await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_CREDIT"]) == 1)
            other.send(
                frames.read(3, -1, flags=1, key=KEY) + frames.add(4, 9, flags=1) + frames.force(5)
            )
            records = await bookie.take(3)
            assert [record.request_id for record in records] == [3, 4, 5]
            other.send(frames.read(6, 3))
            assert (await bookie.take_request()).request_id == 6
            assert worker_harness.counter(SLOTS["FBK_C_WORKER_ADD_WAITS"]) == 0, "it still waits"
            worker_harness.grant(1000)
            (record,) = await bookie.take(1)
            assert record.request_id == 2
            assert worker_harness.counter(SLOTS["FBK_C_WORKER_ADD_WAITS"]) == 1
            assert worker_harness.counter(SLOTS["FBK_C_WORKER_ADD_WAITS_US"]) > 0
            await stuck.close()
            await other.close()


async def test_a_full_ring_keeps_its_reserve_and_resumes() -> None:
    """INV-R1, INV-R3: the last eighth takes what must not wait for adds. INV-R2: all come out as sent."""
    with WorkerHarness(add_ring=4 * MIB) as worker_harness:
        async with served(worker_harness) as bookie:
            client, other = await greeted(bookie), await greeted(bookie)
            total = 100
            client.send(b"".join(frames.add(100 + i, i, b"d" * 60_000) for i in range(total)))
            taken: list[Record] = []
            await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_RING"]) >= 1)
            other.send(frames.read(3, -1, flags=1, key=KEY))

            def fence_is_there() -> bool:
                taken.extend(worker_harness.take_all())
                return any(record.kind == FENCE for record in taken)

            await until(fence_is_there)
            normal_bytes = sum(len(r.payload) + 96 for r in taken if r.kind != FENCE)
            assert 3 * MIB < normal_bytes <= 4 * MIB * 7 // 8
            answers = 0
            while answers < total:  # neither journal nor index alone frees the ring
                worker_harness.publish()
                worker_harness.index()
                adds = [record for record in taken if record.kind != FENCE]
                for add in adds:
                    assert add.payload == entry_bytes(add.entry_id, b"d" * 60_000)
                    assert answer_of(await client.frame()) == (100 + answers, OK)
                    answers += 1
                taken = []
                if answers < total:
                    taken = await bookie.take(1)
                    taken += worker_harness.take_all()
            await client.close()
            await other.close()


async def test_waiting_connections_take_turns() -> None:
    with WorkerHarness() as worker_harness:
        worker_harness.grant(0)
        async with served(worker_harness) as bookie:
            clients = [await greeted(bookie) for _ in range(3)]
            for number, client in enumerate(clients):
                client.send(
                    b"".join(frames.add(number * 100 + i, i, b"d" * 100) for i in range(10, 20))
                )
            await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_CREDIT"]) >= 1)
            await until(lambda: bookie.network.connections[2]._transport.is_reading() is False)
            order = []
            for n in range(1, 31):
                worker_harness.grant(cost(100) * n)
                (record,) = await bookie.take(1)
                order.append(record.request_id // 100)
            assert sorted(order) == [0] * 10 + [1] * 10 + [2] * 10
            assert set(order[:6]) == {0, 1, 2}
            for client in clients:
                await client.close()


async def test_too_many_pending_requests_pause_a_connection() -> None:
    async with one_client(pending_requests_max=10, is_greeted=True) as (
        worker_harness,
        bookie,
        client,
    ):
        client.send(b"".join(frames.add(100 + i, i) for i in range(25)))
        await bookie.take(10)
        await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_PENDING"]) == 1)
        assert worker_harness.next() is None
        worker_harness.publish()
        await answered(client, range(100, 110))
        await bookie.take(10)
        worker_harness.publish()
        await answered(client, range(110, 120))
        await bookie.take(5)
        worker_harness.publish()
        await answered(client, range(120, 125))


async def test_a_full_request_ring_pauses_a_connection() -> None:
    with WorkerHarness(request_ring=4096) as worker_harness:
        async with served(worker_harness) as bookie:
            client = await greeted(bookie)
            client.send(b"".join(frames.read(100 + i, i) for i in range(100)))
            await until(
                lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_REQUEST_RING"]) >= 1
            )
            for i in range(100):
                record = await bookie.take_request()
                assert record.request_id == 100 + i
                worker_harness.reply(
                    frames.read_reply(100 + i, i, b"e"), record.connection_id, READ
                )
            await answered(client, range(100, 200))
            await client.close()


async def test_a_read_only_bookie_says_so_at_once() -> None:
    """Also to those that were waiting for credit that will not come."""
    with WorkerHarness() as worker_harness:
        worker_harness.grant(0)
        async with served(worker_harness) as bookie:
            client = await greeted(bookie)
            client.send(frames.add(2, 0) + frames.add(3, 1))
            await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_CREDIT"]) >= 1)
            worker_harness.read_only(1)
            assert answer_of(await client.frame()) == (2, READ_ONLY)
            assert answer_of(await client.frame()) == (3, READ_ONLY)
            client.send(frames.add(4, 1, flags=1) + frames.add(5, 2))
            assert answer_of(await client.frame()) == (5, READ_ONLY)
            (record,) = await bookie.take(1)
            assert record.request_id == 4
            await client.close()


async def test_without_a_journal_nothing_goes_into_the_add_ring() -> None:
    """A13: normal and recovery adds, batches, fences and forces are refused; the rest goes to the index."""
    async with one_client(is_reads_only=1, is_greeted=True) as (worker_harness, bookie, client):
        entries = [entry_bytes(0), entry_bytes(1)]
        refused = [
            frames.add(2, 0),
            frames.add(3, 0, flags=1),
            frames.add_batch(4, 0, entries),
            frames.add_batch(5, 0, entries, flags=1),
            frames.read(6, -1, flags=1, key=KEY),
            frames.force(7),
        ]
        client.send(b"".join(refused))
        for request_id in range(2, 8):
            assert answer_of(await client.frame()) == (request_id, READ_ONLY)
        assert worker_harness.next() is None
        assert worker_harness.counter(SLOTS["FBK_C_WORKER_REFUSED_READ_ONLY"]) == len(refused)
        client.send(frames.read(8, 0) + frames.read_lac(9, -1) + frames.list_entries(10, 0, 5))
        assert [(await bookie.take_request()).kind for _ in range(3)] == [READ, READ_LAC, LIST]
        assert bookie.worker.is_read_only
        assert bookie.worker.pending >= 1


@pytest.mark.uvloop_too
async def test_a_client_that_stops_reading_is_cut_and_others_are_served() -> None:
    async with one_worker() as (worker_harness, bookie):
        slow, other = await greeted(bookie), await greeted(bookie)
        slow.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
        slow.send(b"".join(frames.read(100 + i, 0) for i in range(60)))
        cut = SLOTS["FBK_C_WORKER_SLOW_READERS_CUT"]
        for i in range(60):
            record = await bookie.take_request()
            worker_harness.reply(
                frames.read_reply(100 + i, 0, bytes(1000_000)), record.connection_id, READ
            )
            reply_is_taken = worker_harness.counter(SLOTS["FBK_C_WORKER_REPLIES"]) + 1
            await until(
                lambda wanted=reply_is_taken: (
                    worker_harness.counter(SLOTS["FBK_C_WORKER_REPLIES"]) >= wanted  # type: ignore[misc]
                    or worker_harness.counter(cut) == 1
                )
            )
            if worker_harness.counter(cut):
                break
        assert worker_harness.counter(cut) == 1
        other.send(frames.ping(7))
        assert answer_of(await other.frame()) == (7, OK)
        await until(lambda: len(bookie.network.connections) == 1)
        slow.writer.transport.abort()
        await other.close()


@pytest.mark.uvloop_too
async def test_a_slow_reader_gets_everything_in_order() -> None:
    """Replies that the socket does not take go through the transport, and nothing overtakes them."""
    async with one_client(reply_backlog_bytes_max=16 * MIB, is_greeted=True) as (
        worker_harness,
        bookie,
        client,
    ):
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"".join(frames.read(100 + i, 0) for i in range(200)))
        for i in range(200):
            record = await bookie.take_request()
            size = [10, 20_000, 200_000, 3000][i % 4]
            worker_harness.reply(
                frames.read_reply(100 + i, 0, bytes(size)), record.connection_id, READ
            )
        await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_OUTPUT"]) >= 1)
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await answered(client, range(100, 300))
        client.send(frames.ping(7))
        assert answer_of(await client.frame()) == (7, OK)


async def test_memory_for_partial_frames_is_given_in_order() -> None:
    """A9: three clients begin frames that do not fit together; each gets its turn."""
    with WorkerHarness() as worker_harness:
        bounds = {"partial_frames_bytes_max": 2 * MIB + 8192, "frame_rate_bytes_min": 1}
        async with served(worker_harness, **bounds) as bookie:
            clients = [await greeted(bookie) for _ in range(3)]
            adds = [frames.add(2, i, bytes([i]) * 1_000_000) for i in range(3)]
            for client, add in zip(clients, adds, strict=True):
                client.send(add[:600_000])
            await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_MEMORY"]) >= 1)
            for client, add in zip(clients, adds, strict=True):
                client.send(add[600_000:])
            records = await bookie.take(3)
            worker_harness.publish()
            assert sorted(record.payload for record in records) == sorted(
                entry_bytes(i, bytes([i]) * 1_000_000) for i in range(3)
            )
            for client in clients:
                assert answer_of(await client.frame()) == (2, OK)
                await client.close()


async def test_too_many_connections_hear_why() -> None:
    async with one_worker(connections_max=3) as (worker_harness, bookie):
        clients = [await greeted(bookie) for _ in range(3)]
        refused = await bookie.connect()
        request_id, status, reply = decode_reply(await refused.frame())
        assert (request_id, status) == (0, TOO_MANY_REQUESTS)
        assert isinstance(reply, ErrorReply)
        assert "3 connections" in reply.message
        assert await refused.is_closed() == b""
        await refused.close()
        assert worker_harness.counter(CONNECTIONS_REFUSED) == 1
        await clients[0].close()
        await until(lambda: len(bookie.network.connections) == 2)
        clients[0] = await greeted(bookie)
        for client in clients:
            await client.close()


@pytest.mark.parametrize(
    ("sent", "counter"),
    [
        pytest.param(MAGIC[:1], "HELLO_TIMEOUTS", id="one byte"),
        pytest.param(MAGIC, "HELLO_TIMEOUTS", id="magic only"),
        pytest.param(frames.hello()[:30], "HELLO_TIMEOUTS", id="half a hello"),
        pytest.param(frames.hello() + frames.add(2, 0)[:50], "FRAME_TIMEOUTS", id="half a frame"),
        pytest.param(frames.hello() + frames.add(2, 0)[:2], "FRAME_TIMEOUTS", id="half a length"),
    ],
)
async def test_who_does_not_finish_in_time_is_closed(
    sent: bytes, counter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.02)
    async with one_client(hello_timeout_ms=50, frame_timeout_ms=50) as (worker_harness, _, client):
        client.send(sent)
        await client.is_closed()
        assert worker_harness.counter(SLOTS[f"FBK_C_WORKER_{counter}"]) == 1


@pytest.mark.parametrize("is_greeted", [True, False])
async def test_an_idle_connection_stays(is_greeted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has not said anything yet: Apache's clients open some that they need later."""
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.1)
    async with one_worker(hello_timeout_ms=50, frame_timeout_ms=50) as (worker_harness, bookie):
        client = await (greeted(bookie) if is_greeted else bookie.connect())
        wakes = worker_harness.counter(SLOTS["FBK_C_WORKER_WAKES"])
        # Two rounds of the sweep, each of them longer than both deadlines.
        await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAKES"]) >= wakes + 2)
        client.send(frames.ping(2) if is_greeted else frames.hello(2))
        assert answer_of(await client.frame()) == (2, OK)
        await client.close()


async def test_polls_of_a_connection_that_left_are_cancelled() -> None:
    async with one_worker() as (worker_harness, bookie):
        client, other = await greeted(bookie), await greeted(bookie)
        client.send(frames.read_lac(2, 5, 60_000))
        poll = await bookie.take_request()
        assert poll.kind == READ_LAC
        await client.close()
        cancel = await bookie.take_request()
        assert (cancel.kind, cancel.connection_id) == (CANCEL, poll.connection_id)
        again = await greeted(bookie)  # perhaps in the same slot, never with the same id
        again.send(frames.read(3, 0))
        record = await bookie.take_request()
        assert record.connection_id != poll.connection_id
        worker_harness.reply(frames.read_reply(2, 0, b"late"), poll.connection_id, READ_LAC)
        worker_harness.reply(frames.read_reply(3, 0, b"e"), record.connection_id, READ)
        assert answer_of(await again.frame()) == (3, OK)
        assert worker_harness.counter(SLOTS["FBK_C_WORKER_REPLIES_STALE"]) == 1
        await again.close()
        await other.close()


async def test_acks_for_a_connection_that_left_go_nowhere() -> None:
    async with one_worker() as (worker_harness, bookie):
        client = await greeted(bookie)
        client.send(frames.add(2, 0))
        await bookie.take(1)
        await client.close()
        await until(lambda: not bookie.network.connections)
        again = await greeted(bookie)
        again.send(frames.add(3, 1))
        await bookie.take(1)
        worker_harness.publish()
        assert answer_of(await again.frame()) == (3, OK)
        assert bookie.worker.pending == 0
        await again.close()


# Peers that are slow, silent or greedy: each bound is reached on purpose, and others go on.


UNREAD_CUT = SLOTS["FBK_C_WORKER_UNREAD_REPLIES_CUT"]
UNREAD_BYTES = SLOTS["FBK_C_WORKER_UNREAD_REPLY_BYTES"]
WRITE_TIMEOUTS = SLOTS["FBK_C_WORKER_WRITE_TIMEOUTS"]
SLOW_FRAMES_CUT = SLOTS["FBK_C_WORKER_SLOW_FRAMES_CUT"]
FRAME_TIMEOUTS = SLOTS["FBK_C_WORKER_FRAME_TIMEOUTS"]
SILENT_CLOSED = SLOTS["FBK_C_WORKER_SILENT_CLOSED"]
TURNS_ENDED = SLOTS["FBK_C_WORKER_TURNS_ENDED"]
MEMORY_RETURNED = SLOTS["FBK_C_WORKER_MEMORY_RETURNED"]
REPLIES = SLOTS["FBK_C_WORKER_REPLIES"]
WAKES = SLOTS["FBK_C_WORKER_WAKES"]
STATUS_FRAME_BYTES = 36


@pytest.fixture
def fast_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.02)


def stop_reading(client: Client) -> None:
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]


async def reply(bookie: Served, client: Client, request_id: int, size_bytes: int) -> None:
    """Have the index answer a read of this client's, and the worker pass it on."""
    client.send(frames.read(request_id, 0))
    record = await bookie.take_request()
    before = bookie.worker_harness.counter(REPLIES)
    frame = frames.read_reply(request_id, 0, bytes(size_bytes))
    bookie.worker_harness.reply(frame, record.connection_id, READ)
    await until(lambda: bookie.worker_harness.counter(REPLIES) > before)


async def deaf_one(bookie: Served, count: int) -> Client:
    """A client that has requested `count` replies of a megabyte and reads none of them."""
    client = await greeted(bookie, receive_bytes=4096)
    stop_reading(client)
    # At once: the worker reads nothing more from it once the first is unread.
    client.send(b"".join(frames.read(100 + i, 0) for i in range(count)))
    records = [await bookie.take_request() for _ in range(count)]
    for i, record in enumerate(records):
        before = bookie.worker_harness.counter(REPLIES)
        bookie.worker_harness.reply(
            frames.read_reply(100 + i, 0, bytes(1000_000)), record.connection_id, READ
        )
        await until(lambda before=before: bookie.worker_harness.counter(REPLIES) > before)  # type: ignore[misc]
    return client


@pytest.mark.uvloop_too
async def test_all_unread_replies_have_a_bound_and_a_reader_is_not_cut(fast_sweeps: None) -> None:
    """INV-B1: each of these is below the bound of one connection; together they would be 60 MB."""
    with WorkerHarness() as worker_harness:
        bounds = {"reply_backlog_bytes_max": 8 * MIB, "unread_replies_bytes_max": 16 * MIB}
        async with served(worker_harness, **bounds) as bookie:
            reader = await greeted(bookie)
            deaf = []
            for _ in range(10):
                deaf.append(await deaf_one(bookie, 6))
                assert worker_harness.counter(UNREAD_BYTES) <= 16 * MIB
                await reply(bookie, reader, 7, 1000_000)
                assert answer_of(await reader.frame()) == (7, Status.OK)
            # What sockets hold does not count: some of them have room for several megabytes.
            assert worker_harness.counter(UNREAD_CUT) > 0
            await until(
                lambda: len(bookie.network.connections) <= 11 - worker_harness.counter(UNREAD_CUT)
            )
            for client in deaf:
                client.writer.transport.abort()
            await until(lambda: len(bookie.network.connections) == 1)
            await until(lambda: worker_harness.counter(UNREAD_BYTES) == 0)
            await until(lambda: worker_harness.counter(MEMORY_RETURNED) > 0)
            await reader.close()


@pytest.mark.slow
@pytest.mark.uvloop_too
async def test_who_reads_nothing_for_too_long_is_cut(fast_sweeps: None) -> None:
    with WorkerHarness() as worker_harness:
        bounds = {"reply_backlog_bytes_max": 32 * MIB, "write_timeout_ms": 300}
        async with served(worker_harness, **bounds) as bookie:
            deaf = await deaf_one(bookie, 8)
            await until(lambda: worker_harness.counter(WRITE_TIMEOUTS) == 1)
            await until(lambda: not bookie.network.connections)
            deaf.writer.transport.abort()


@pytest.mark.slow
async def test_who_reads_slowly_is_not_cut(fast_sweeps: None) -> None:
    """Several times as long as one that does not read may take."""
    with WorkerHarness() as worker_harness:
        bounds = {"reply_backlog_bytes_max": 32 * MIB, "write_timeout_ms": 400}
        async with served(worker_harness, **bounds) as bookie:
            client = await greeted(bookie)
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.send(b"".join(frames.read(100 + i, 0) for i in range(8)))
            for i in range(8):
                record = await bookie.take_request()
                frame = frames.read_reply(100 + i, 0, bytes(1000_000))
                worker_harness.reply(frame, record.connection_id, READ)
            size_bytes, waited = 0, 0
            expected = 8 * len(frames.read_reply(100, 0, bytes(1000_000)))
            while size_bytes < expected:
                size_bytes += len(
                    await client.reader.readexactly(min(expected - size_bytes, 160_000))
                )
                wakes = worker_harness.counter(WAKES)
                await until(lambda wakes=wakes: worker_harness.counter(WAKES) > wakes)  # type: ignore[misc]
                waited += 1
            assert waited >= 50
            assert worker_harness.counter(WRITE_TIMEOUTS) == 0
            await client.close()


def waiting_bytes(worker_harness: WorkerHarness) -> int:
    return worker_harness.counter(SLOTS["FBK_C_WORKER_INPUT_BYTES"])


@pytest.mark.uvloop_too
async def test_frames_that_are_only_announced_take_little_memory(fast_sweeps: None) -> None:
    """A9: 40 announcements of a megabyte fit where eight whole frames do."""
    async with one_worker(partial_frames_bytes_max=8 * MIB) as (worker_harness, bookie):
        announced = [await greeted(bookie) for _ in range(40)]
        large = frames.add(2, 1, bytes(1000_000))
        for client in announced:
            client.send(large[:1000])
        honest = await greeted(bookie)
        for i in range(3):
            honest.send(frames.add(10 + i, i, bytes([i]) * 1000_000))
            (record,) = await bookie.take(1)
            assert record.payload == entry_bytes(i, bytes([i]) * 1000_000)
            worker_harness.publish()
            assert answer_of(await honest.frame()) == (10 + i, Status.OK)
            worker_harness.index()
        assert waiting_bytes(worker_harness) < 6 * MIB
        assert worker_harness.counter(SLOW_FRAMES_CUT) == 0
        for client in [*announced, honest]:
            await client.close()


@pytest.mark.uvloop_too
async def test_the_slowest_frames_are_closed_when_memory_is_short(fast_sweeps: None) -> None:
    """Thirty clients fill the memory and then stop; a frame of somebody else's goes through."""
    async with one_worker(partial_frames_bytes_max=4 * MIB) as (worker_harness, bookie):
        large = frames.add(2, 1, bytes(1000_000))
        stuck = [await greeted(bookie) for _ in range(30)]
        for client in stuck:
            client.send(large[:300_000])
        honest = await greeted(bookie)
        honest.send(frames.add(10, 5, b"h" * 1000_000))
        (record,) = await bookie.take(1)
        assert record.payload == entry_bytes(5, b"h" * 1000_000)
        worker_harness.publish()
        assert answer_of(await honest.frame()) == (10, Status.OK)
        await until(lambda: worker_harness.counter(SLOW_FRAMES_CUT) > 0)
        for client in stuck:
            client.writer.transport.abort()
        await honest.close()


@pytest.mark.slow
async def test_a_frame_may_take_longer_than_the_timeout_as_long_as_it_keeps_coming(
    fast_sweeps: None,
) -> None:
    with WorkerHarness() as worker_harness:
        bounds = {"frame_timeout_ms": 500, "frame_rate_bytes_min": 1000}
        async with served(worker_harness, **bounds) as bookie:
            client, stopping = await greeted(bookie), await greeted(bookie)
            add = frames.add(2, 1, bytes(400_000))
            stopping.send(add[:390_000])
            for at in range(0, len(add), 4000):
                client.send(add[at : at + 4000])
                wakes = worker_harness.counter(WAKES)
                await until(lambda wakes=wakes: worker_harness.counter(WAKES) > wakes)  # type: ignore[misc]
            await bookie.take(1)
            worker_harness.publish()
            assert answer_of(await client.frame()) == (2, Status.OK)
            await until(lambda: worker_harness.counter(FRAME_TIMEOUTS) == 1)  # the other one
            await client.close()
            stopping.writer.transport.abort()


def test_refused_frames_end_their_connections_turn() -> None:
    with WorkerHarness() as worker_harness, ExitStack() as stack:
        worker = Worker(worker_harness.options(turn_frames_max=160))
        stack.callback(worker.close)
        near, far = (stack.enter_context(one) for one in socket.socketpair())
        for end in (near, far):
            end.setblocking(False)
        slot = worker.connect(near.fileno())
        assert slot is not None

        def receive(data: bytes) -> int:
            worker.receive_buffer[: len(data)] = data
            return worker.receive(slot, len(data))

        assert receive(frames.hello()) & COLD
        worker.proceed(slot)
        refused = b"".join(put_read(100 + i, -5, 0) for i in range(100))
        assert receive(refused) & (PAUSE | COLLECT) == PAUSE | COLLECT
        answered = []
        for _ in range(40):
            data = b""
            try:
                data = far.recv(1 << 20)
            except BlockingIOError:
                pass
            answered.append(len(data) // STATUS_FRAME_BYTES)
            worker.collect()
        assert sum(answered) == 100
        assert answered[0] <= 10, "the first turn"
        assert worker_harness.counter(TURNS_ENDED) >= 2
        assert not receive(frames.ping(7)) & (PAUSE | ABORT), "it goes on"


async def test_silent_connections_make_room_once_most_are_in_use(
    fast_sweeps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that never said anything first, and none that something is under way for."""
    monkeypatch.setattr(network, "SEARCH_INTERVAL_S", 0.0)
    monkeypatch.setattr(network, "SILENT_SWEEPS", 4)
    async with one_worker(connections_max=16) as (worker_harness, bookie):
        busy = [await greeted(bookie) for _ in range(4)]
        for client in busy:
            client.send(frames.read(2, 0))
        records = [await bookie.take_request() for _ in busy]
        idle = [await greeted(bookie) for _ in range(4)]
        silent = [await bookie.connect() for _ in range(4)]
        wakes = worker_harness.counter(WAKES)
        await until(lambda: worker_harness.counter(WAKES) > wakes + 8)
        assert worker_harness.counter(SILENT_CLOSED) == 0, "three quarters may be silent"
        more = [await greeted(bookie) for _ in range(3)]
        await until(lambda: worker_harness.counter(SILENT_CLOSED) == 3)
        await until(lambda: len(bookie.network.connections) == 12)
        assert [await client.is_closed() for client in silent[:3]] == [b""] * 3
        for client in (*silent, *more[:2]):
            await client.close()
        for record in records:
            frame = frames.read_reply(2, 0, b"e")
            worker_harness.reply(frame, record.connection_id, READ)
        for client in busy:
            assert answer_of(await client.frame()) == (2, Status.OK)
        for client in (*busy, *idle, more[2]):
            await client.close()


# Memory for frames that are not whole yet, with the worker's C alone: what a loop does to it is
# decided here.


DATA = bytes(range(250)) * 4000


def receive(worker: Worker, slot: int, data: bytes, todo: int = 0) -> int:
    """Hand bytes over as a loop does that has read them already when it is told to pause; return the last bits."""
    while data:
        buffer = worker.own_buffer(slot) if todo & BUFFER else worker.receive_buffer
        piece = data[: len(buffer)]
        buffer[: len(piece)] = piece
        data = data[len(piece) :]
        todo = worker.receive(slot, len(piece))
        if todo & COLD:
            todo = worker.proceed(slot)
    return todo


def collect(worker: Worker) -> None:
    """What one ring of the bell leads to."""
    while worker.collect()[1]:
        pass


def test_a_frame_that_came_in_without_its_turn_is_taken_as_soon_as_there_is_room() -> None:
    """No frame is slow here: one that a busy machine had begun a quarter of a second ago was cut for the others."""
    with WorkerHarness() as worker_harness, ExitStack() as stack:
        worker_harness.grant(0)
        worker = Worker(
            worker_harness.options(partial_frames_bytes_max=2 * MIB + 8192, frame_rate_bytes_min=1)
        )
        stack.callback(worker.close)
        slots: dict[int, int] = {}
        for request_id in range(4):
            near, far = (stack.enter_context(one) for one in socket.socketpair())
            near.setblocking(False)
            far.setblocking(False)
            slot = worker.connect(near.fileno())
            assert slot is not None
            receive(worker, slot, frames.hello())
            first = frames.add(2 + request_id, request_id, DATA)[:10_000]
            slots[slot] = receive(worker, slot, first)
        for request_id, (slot, todo) in enumerate(slots.items()):
            receive(worker, slot, frames.add(2 + request_id, request_id, DATA)[10_000:], todo)
        collect(worker)
        assert worker_harness.take_all() == []
        worker_harness.grant(64 * MIB)
        collect(worker)
        taken = {record.request_id: record.payload for record in worker_harness.take_all()}
        assert taken == {2 + i: entry_bytes(i, DATA) for i in range(4)}


def test_a_frame_that_is_over_is_counted_once() -> None:
    """It was cut again as the slowest, when one that waited for its memory had its turn."""
    with WorkerHarness() as worker_harness, ExitStack() as stack:
        worker = Worker(
            worker_harness.options(
                partial_frames_bytes_max=2 * MIB + 8192,
                frame_timeout_ms=500,
                frame_rate_bytes_min=MIB,
            )
        )
        stack.callback(worker.close)
        for _ in range(4):
            near, far = (stack.enter_context(one) for one in socket.socketpair())
            near.setblocking(False)
            far.setblocking(False)
            slot = worker.connect(near.fileno())
            assert slot is not None
            receive(worker, slot, frames.hello())
            receive(worker, slot, frames.add(2, 2, DATA)[:300_000])
        assert worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_MEMORY"]) > 0
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 0.6, "the first frame is over")
        ended = [slot for slot, todo in worker.sweep() if todo & ABORT]
        late = worker_harness.counter(SLOTS["FBK_C_WORKER_FRAME_TIMEOUTS"])
        assert 1 <= len(ended) == late + worker_harness.counter(SLOW_FRAMES_CUT)


# What a worker says is under way and what waits, for Apache's clients and ours, until all is
# answered.


def under_way(worker_harness: WorkerHarness, bookie: Served) -> list[int]:
    """Adds and reads in progress, connections that wait to get there, and bytes in the rings."""
    bookie.worker.sweep()
    names = ("ADDS_IN_PROGRESS", "READS_IN_PROGRESS", "ADDS_BLOCKED", "READS_BLOCKED", "RING_BYTES")
    return [worker_harness.counter(SLOTS[f"FBK_C_WORKER_{name}"]) for name in names]


async def test_what_is_under_way_and_what_waits() -> None:
    async with one_worker(apache_adds_in_progress_max=2, apache_reads_in_progress_max=1) as (
        worker_harness,
        bookie,
    ):
        client, reader = await bookie.connect(), await bookie.connect()
        client.send(b"".join(apache.v3_add(txn, txn) for txn in range(3)))
        adds = await bookie.take(2)
        reader.send(apache.v3_read(10, 1) + apache.v3_read(11, 1))
        read = await bookie.take_request()
        bytes_of_two = 2 * (96 + 48)
        assert len(apache.entry(0)) <= 48
        assert under_way(worker_harness, bookie) == [2, 1, 1, 1, bytes_of_two]
        worker_harness.publish()
        assert [(await hear_v3(client)).txn for _ in adds] == [0, 1]
        await bookie.take(1)
        assert under_way(worker_harness, bookie) == [1, 1, 0, 1, bytes_of_two // 2]
        worker_harness.publish()
        assert (await hear_v3(client)).txn == 2
        worker_harness.say(read, "status", 0)
        assert (await hear_v3(reader)).txn == 10
        worker_harness.say(await bookie.take_request(), "status", 0)
        assert (await hear_v3(reader)).txn == 11
        assert under_way(worker_harness, bookie) == [0, 0, 0, 0, 0]
        await client.close()
        await reader.close()


async def test_a_poll_is_not_in_progress() -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v3_read(3, 4, previous_lac=6, timeout_ms=50))
        await bookie.take_request()
        assert under_way(worker_harness, bookie) == [0, 0, 0, 0, 0]


# The system asks clients that say nothing whether they are still there, as the settings say.


OPTIONS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


async def options_of_a_new_connection(bookie: Served) -> list[int]:
    client = await bookie.connect()
    client.send(frames.hello())
    assert answer_of(await client.frame()) == (1, 0)
    (connection,) = bookie.network.connections.values()
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in OPTIONS]
    await client.close()
    await until(lambda: not bookie.network.connections)
    return found


@pytest.mark.uvloop_too
async def test_a_connection_has_the_keep_alive_that_is_set() -> None:
    async with one_worker() as (_, bookie):
        idle_s, interval_s, questions = await options_of_a_new_connection(bookie)
        bookie.network.keep_alive = keep_alive(
            NetworkSettings(keep_alive_idle_s=37, keep_alive_questions_max=3)
        )
        assert (idle_s, questions) != (37, 3), "the system's own differ"
        assert await options_of_a_new_connection(bookie) == [37, interval_s, 3]


def test_what_is_not_set_is_left_to_the_system() -> None:
    assert keep_alive(NetworkSettings()) == ()
    settings = NetworkSettings(keep_alive_interval_s=5)
    assert keep_alive(settings) == ((socket.TCP_KEEPINTVL, 5),)
