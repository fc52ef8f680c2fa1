"""Every bound of a running bookie is reached on purpose: it does then what is written, and everybody else goes on."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

import fastbk
from fastbk.devcluster import Bookie
from fastbk.native.client_codec import put_read_batch
from fastbk.testing import LocalCluster
from fastbk.units import KIB, MIB
from fastbk.wire.messages import MAGIC, ErrorReply, Hello, decode_reply, encode_hello
from fastbk.wire.statuses import Status
from tests.fixtures.memory import own_memory_bytes
from tests.fixtures.pages import metrics
from tests.fixtures.raw_bookie import RawBookie, raw_bookie
from tests.fixtures.wait import wait_until, wait_until_async


def counted(cluster: LocalCluster, name: str) -> float:
    return metrics(cluster.bookies[0])[f"fastbk_worker_{name}_total"]


def memory_bytes(cluster: LocalCluster) -> int:
    return own_memory_bytes(cluster.bookies[0].pids.values())


def data_of(entry_id: int, size_bytes: int) -> bytes:
    return random.Random(entry_id).randbytes(32) * (size_bytes // 32)


async def write_and_check(cluster: LocalCluster, count: int, size_bytes: int) -> None:
    """Append as fast as the bookie takes it, then read all of it."""
    async with fastbk.connect(cluster.metadata_uri, append_timeout=60.0) as client:
        async with await client.create_ledger(1, 1, 1) as writer:
            pending: set[asyncio.Future[int]] = set()
            for entry_id in range(count):
                if len(pending) >= 200:
                    _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                pending.add(writer.append_nowait(data_of(entry_id, size_bytes)))
            await asyncio.gather(*pending)
        reader = await client.open_ledger(writer.ledger_id)
        expected = 0
        async for entry in reader.read(0, count - 1):
            assert (entry.entry_id, bytes(entry.data)) == (expected, data_of(expected, size_bytes))
            expected += 1
        assert expected == count


async def test_writers_wait_for_a_write_cache_that_is_full_and_go_on() -> None:
    settings = {
        "limits": {"frame_size_max": "128KiB"},
        "journal": {"batch_size_max": "128KiB"},
        "ledgers": {"write_cache_size": "1MiB"},
    }
    async with LocalCluster(1, settings=settings) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(write_and_check(cluster, 200, 64 * KIB))
            # Fences have a reserve: they are answered while adds wait (INV-R3).
            for ledger_id in range(1000, 1040):
                assert await bookie.fence(ledger_id) in (Status.NO_LEDGER, Status.NO_ENTRY)
                assert await bookie.add(ledger_id, 0, b"late") == Status.FENCED
        bookie.close()
        assert counted(cluster, "waits_credit") > 0, "the bound was never reached"


@pytest.fixture(scope="module")
def small() -> Iterator[LocalCluster]:
    """A bookie of small frames and rings."""
    limits = {"frame_size_max": "64KiB", "add_ring_size": "256KiB", "reply_ring_size": "256KiB"}
    with LocalCluster(1, settings={"limits": limits}) as running:
        yield running


async def test_writers_wait_for_a_ring_that_is_full_and_go_on(small: LocalCluster) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(write_and_check(small, 400, 32 * KIB))
    assert counted(small, "waits_ring") > 0, "the bound was never reached"


async def use(connection: RawBookie, ledger_id: int) -> None:
    for entry_id in range(3):
        assert await connection.add(ledger_id, entry_id, b"%d" % ledger_id) == Status.OK
    assert await connection.read(ledger_id, 2) == b"%d" % ledger_id


async def test_a_thousand_connections_append_and_read() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2500), hard))
    try:
        async with LocalCluster(1) as cluster:
            before = memory_bytes(cluster)
            some = asyncio.Semaphore(100)

            async def connect() -> RawBookie:
                async with some:
                    return await raw_bookie(cluster.bookies[0])

            connections = await asyncio.gather(*(connect() for _ in range(1000)))
            for _ in range(2):
                await asyncio.gather(*(use(c, 5000 + n) for n, c in enumerate(connections)))
            assert counted(cluster, "connections_accepted") >= 1000
            assert counted(cluster, "connections_refused") == 0
            grown = memory_bytes(cluster) - before
            assert grown < 100 * MIB, f"{grown / MIB:.0f} MiB for a thousand connections"
            for connection in connections:
                connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(bookie: Bookie, *, receive_bytes: int = 0) -> socket.socket:
    """A plain socket; `receive_bytes`: how little it may hold unread."""
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", bookie.port))
    return sock


def frame_from(sock: socket.socket) -> bytes:
    """The next frame; b"" at the end of the connection."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
        wanted = 4 + int.from_bytes(data[:4], "little") if len(data) >= 4 else 4
        more = sock.recv(wanted - len(data))
        if not more:
            return b""
        data += more
    return data


def is_cut(sock: socket.socket) -> bool:
    """Whether the bookie closed this connection; reads what came before."""
    sock.settimeout(0.0)
    try:
        while sock.recv(1 << 20):
            continue
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def hello(sock: socket.socket) -> None:
    sock.sendall(MAGIC + encode_hello(1, Hello()))
    assert decode_reply(frame_from(sock))[1] == Status.OK


async def test_a_client_that_does_not_read_is_cut_while_others_go_on() -> None:
    settings = {"limits": {"frame_size_max": "2MiB"}, "network": {"reply_backlog_max": "4MiB"}}
    async with LocalCluster(1, settings=settings) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        for entry_id in range(64):
            assert await bookie.add(7, entry_id, bytes(64 * KIB)) == Status.OK
        before = memory_bytes(cluster)
        deaf = dial(cluster.bookies[0], receive_bytes=4096)
        hello(deaf)
        asked = b"".join(put_read_batch(n, 7, 0, 63, 64, MIB) for n in range(10, 410))
        # 25 MiB of answers at least: while adds are slow, the newest entries come one by one.
        deaf.sendall(asked)
        for entry_id in range(64, 96):
            assert await bookie.add(7, entry_id, b"others") == Status.OK
            assert await bookie.read(7, entry_id) == b"others"
        await wait_until_async(lambda: counted(cluster, "slow_readers_cut") == 1, "the cut")
        assert memory_bytes(cluster) - before < 40 * MIB
        wait_until(lambda: is_cut(deaf), "the end of that connection")
        deaf.close()
        bookie.close()


async def test_connections_above_the_bound_are_told_so_and_closed() -> None:
    async with LocalCluster(1, settings={"network": {"connections_max": 10}}) as cluster:
        taken = [await raw_bookie(cluster.bookies[0]) for _ in range(10)]
        for _ in range(5):
            sock = dial(cluster.bookies[0])
            _, status, reply = decode_reply(frame_from(sock))
            assert status == Status.TOO_MANY_REQUESTS
            assert isinstance(reply, ErrorReply)
            assert reply.message
            wait_until(lambda sock=sock: is_cut(sock), "the end of that connection")
            sock.close()
        assert counted(cluster, "connections_refused") == 5
        for number, connection in enumerate(taken):
            await use(connection, 100 + number)
        taken.pop().close()
        await wait_until_async(lambda: can_connect(cluster), "room after one has left")
        for connection in taken:
            connection.close()


async def can_connect(cluster: LocalCluster) -> bool:
    try:
        (await raw_bookie(cluster.bookies[0])).close()
    except fastbk.errors.Error:
        return False
    return True


@pytest.mark.parametrize(
    ("settings", "counter"),
    [
        ({"network": {"pending_requests_max": 8}}, "waits_pending"),
        ({"limits": {"request_ring_size": "4KiB"}}, "waits_request_ring"),
    ],
)
async def test_requests_above_the_bound_wait_their_turn(
    settings: dict[str, dict[str, object]], counter: str
) -> None:
    async with LocalCluster(1, settings=settings) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        count = 2000
        for entry_id in range(10):
            assert await bookie.add(7, entry_id, b"%d" % entry_id) == Status.OK
        found = await asyncio.gather(*(bookie.read(7, n % 10) for n in range(count)))
        assert found == [b"%d" % (n % 10) for n in range(count)]
        assert counted(cluster, counter) > 0, "the bound was never reached"
        bookie.close()


def bad_magic(sock: socket.socket, rng: random.Random) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\n" + rng.randbytes(rng.randrange(100)))


def bad_length(sock: socket.socket, rng: random.Random) -> None:
    hello(sock)
    sock.sendall(struct.pack("<I", rng.randrange(4)) + rng.randbytes(50))


def too_large(sock: socket.socket, rng: random.Random) -> None:
    hello(sock)
    sock.sendall(struct.pack("<I", rng.randrange(1 << 30, 1 << 32)))


def bad_frame(sock: socket.socket, rng: random.Random) -> None:
    hello(sock)
    sock.sendall(struct.pack("<I", 200) + rng.randbytes(200))


def bad_version(sock: socket.socket, rng: random.Random) -> None:
    sock.sendall(MAGIC + encode_hello(1, Hello(version_min=900, version_max=901)))
    _, status, reply = decode_reply(frame_from(sock))
    assert status == Status.UNSUPPORTED
    assert isinstance(reply, ErrorReply)
    assert (reply.version_min, reply.version_max) == (1, 1), "it says what it speaks"


def silent(sock: socket.socket, rng: random.Random) -> None:
    sock.sendall(MAGIC[: rng.randrange(1, len(MAGIC))])


def slow(sock: socket.socket, rng: random.Random) -> None:
    hello(sock)
    sock.setblocking(False)
    try:
        sock.send(struct.pack("<I", MIB) + bytes(rng.randrange(1, MIB // 2)))
    except BlockingIOError:
        pass


ABUSES = {
    "bad_magic": bad_magic,
    "bad_length": bad_length,
    "too_large": too_large,
    "bad_frame": bad_frame,
    "bad_version": bad_version,
    "hello_timeouts": silent,
    "frame_timeouts": slow,
}


@pytest.fixture(scope="module")
def abused() -> Iterator[LocalCluster]:
    settings: dict[str, dict[str, object]] = {
        "limits": {"frame_size_max": "2MiB"},
        "network": {"hello_timeout": "1s", "frame_timeout": "1s", "partial_frames_max": "8MiB"},
    }
    with LocalCluster(1, settings=settings) as cluster:
        yield cluster


@pytest.mark.parametrize("counter", ABUSES)
def test_abuse_is_cut_counted_and_bounded(
    abused: LocalCluster, counter: str, rng: random.Random
) -> None:
    # More begun frames than there is memory for: those that wait for the others' memory count as slow.
    count = 40 if counter == "frame_timeouts" else 100
    before_bytes = memory_bytes(abused)
    before = metrics(abused.bookies[0])
    sockets = []
    for _ in range(count):
        sock = dial(abused.bookies[0])
        ABUSES[counter](sock, rng)
        sockets.append(sock)
    most_bytes = memory_bytes(abused)
    for sock in sockets:
        wait_until(lambda sock=sock: is_cut(sock), f"{counter}: the end of the connection", 20)
        sock.close()
    after = metrics(abused.bookies[0])
    names = [f"fastbk_worker_{name}_total" for name in ABUSES]
    grown = {name: int(after[name] - before[name]) for name in names}
    if counter == "frame_timeouts":
        cut = "fastbk_worker_slow_frames_cut_total"
        count -= int(after.get(cut, 0.0) - before.get(cut, 0.0))
    assert grown.pop(f"fastbk_worker_{counter}_total") == count, grown
    assert not any(grown.values()), grown
    for seen in (most_bytes, memory_bytes(abused)):
        assert seen - before_bytes < 24 * MIB, f"{(seen - before_bytes) / MIB:.1f} MiB more"
    asyncio.run(write_and_check(abused, 10, 1024))


@pytest.mark.parametrize("digest", ["hmac", "crc32c"])
async def test_a_ledger_that_ends_in_the_largest_entry_is_read(
    small: LocalCluster, digest: str
) -> None:
    """Its LAC too, which the bookie tells together with the last entry and the explicit LAC."""
    async with fastbk.connect(small.metadata_uri, explicit_lac_interval=0.01) as client:
        writer = await client.create_ledger(1, 1, 1, digest=digest)
        await writer.append(b"first")
        size_bytes = 64 * KIB - writer._pipe._codec.add_overhead_bytes
        await writer.append(bytes(size_bytes))
        reader = await client.open_ledger(writer.ledger_id, recovery=False)

        async def is_confirmed() -> bool:
            return await reader.last_add_confirmed() >= 1

        await wait_until_async(is_confirmed, "the last entry is confirmed")
        assert [len(entry.data) async for entry in reader.read()] == [5, size_bytes]
