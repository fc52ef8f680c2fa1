"""Every bound of a worker, and what happens there (INV-B1): credit, rings, pending requests, memory, replies, time."""

from __future__ import annotations

import socket

import pytest

from fastbk.native.worker import CONNECTIONS_REFUSED
from fastbk.observe.names import SLOTS
from fastbk.server.network import network
from fastbk.wire.messages import MAGIC, ErrorReply, decode_reply
from tests.fixtures import frames
from tests.fixtures.frames import KEY, answer_of, entry_bytes
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
    served,
    until,
)

OK, FENCED, READ_ONLY, TOO_MANY_REQUESTS = 0, 20, 24, 25


async def greeted(bookie: Served) -> Client:
    client = await bookie.connect()
    client.send(frames.hello())
    assert answer_of(await client.frame()) == (1, OK)
    return client


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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, pending_requests_max=10) as bookie:
            client = await greeted(bookie)
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
            await client.close()


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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, is_reads_only=1) as bookie:
            client = await greeted(bookie)
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
            await client.close()


@pytest.mark.uvloop_too
async def test_a_client_that_stops_reading_is_cut_and_others_are_served() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            slow, other = await greeted(bookie), await greeted(bookie)
            slow.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
            )
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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, reply_backlog_bytes_max=16 * MIB) as bookie:
            client = await greeted(bookie)
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
            await client.close()


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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, connections_max=3) as bookie:
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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, hello_timeout_ms=50, frame_timeout_ms=50) as bookie:
            client = await bookie.connect()
            client.send(sent)
            await client.is_closed()
            assert worker_harness.counter(SLOTS[f"FBK_C_WORKER_{counter}"]) == 1
            await client.close()


@pytest.mark.parametrize("is_greeted", [True, False])
async def test_an_idle_connection_stays(is_greeted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has not said anything yet: Apache's clients open some that they need later."""
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.1)
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, hello_timeout_ms=50, frame_timeout_ms=50) as bookie:
            client = await (greeted(bookie) if is_greeted else bookie.connect())
            wakes = worker_harness.counter(SLOTS["FBK_C_WORKER_WAKES"])
            # Two rounds of the sweep, each of them longer than both deadlines.
            await until(lambda: worker_harness.counter(SLOTS["FBK_C_WORKER_WAKES"]) >= wakes + 2)
            client.send(frames.ping(2) if is_greeted else frames.hello(2))
            assert answer_of(await client.frame()) == (2, OK)
            await client.close()


async def test_polls_of_a_connection_that_left_are_cancelled() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
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
