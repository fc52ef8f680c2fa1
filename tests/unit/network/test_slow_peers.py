"""Peers that are slow, silent or greedy: each bound is reached on purpose, and others go on."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from fastbk.native.client_codec import put_read
from fastbk.native.worker import ABORT, COLD, COLLECT, PAUSE, Worker
from fastbk.observe.names import SLOTS
from fastbk.server.network import network
from fastbk.wire.statuses import Status
from tests.fixtures import frames
from tests.fixtures.frames import answer_of, entry_bytes
from tests.fixtures.worker_harness import MIB, READ, Client, Served, WorkerHarness, served, until

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


async def greeted(bookie: Served, *, receive_bytes: int = 0) -> Client:
    client = await bookie.connect()
    if receive_bytes:
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.send(frames.hello())
    assert answer_of(await client.frame())[1] == Status.OK
    return client


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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, partial_frames_bytes_max=8 * MIB) as bookie:
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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, partial_frames_bytes_max=4 * MIB) as bookie:
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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, connections_max=16) as bookie:
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
