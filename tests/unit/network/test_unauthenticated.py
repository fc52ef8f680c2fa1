"""INV-N6: who has not authenticated holds a connection for a bounded time, and few of them, whatever it sends.

Handshakes: an address takes turns with the others, and who has not sent a whole ClientHello has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fastbk.native.worker import UNAUTHENTICATED_CLOSED
from fastbk.observe.names import SLOTS
from fastbk.security.authority import Authority, Issued
from fastbk.security.settings import AuthenticationSettings
from fastbk.server.network import network
from fastbk.server.network.acceptor import Turns
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.apache_wire import EOK, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.logins import in_v3, log_in
from tests.fixtures.users import sasl_settings
from tests.fixtures.wait import beats
from tests.fixtures.worker_harness import Client, Served, WorkerHarness, served, until
from tests.fixtures.worker_tls import greet, secure, tls_settings, trusting

HELLO_TIMEOUTS = SLOTS["FBK_C_WORKER_HELLO_TIMEOUTS"]
OK = 0


@pytest.fixture
def users(tmp_path: Path) -> AuthenticationSettings:
    return sasl_settings(tmp_path, "writer")


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.02)
    return


@contextlib.asynccontextmanager
async def sending(client: Client, data: Callable[[int], bytes]) -> AsyncIterator[None]:
    """Send something new every few milliseconds, and read whatever is answered."""

    async def send() -> None:
        numbers = itertools.count()
        async for _ in beats(0.005):
            client.send(data(next(numbers)))

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while await client.reader.read(1 << 16):
                pass

    tasks = [asyncio.create_task(send()), asyncio.create_task(read())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def authenticated(bookie: Served) -> Client:
    """Return a client that has authenticated; on a busy machine the deadline of strangers may meet it, too."""
    while True:
        client = await bookie.connect()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            assert await in_v3(client, "writer", "of writer") == EOK
            return client


BUSY: dict[str, Callable[[int], bytes]] = {
    "requests": lambda n: apache.v3_read(n, 0),
    "version 2": lambda n: apache.v2_read(n),
    "requests behind a challenge": lambda n: (
        apache.v3_auth(n, b"") if n == 0 else apache.v3_read(n, 0)
    ),
    "bytes of a frame": lambda n: b"\x00\x00\xff\x00" if n == 0 else b"\x00",
    "bytes of a hello": lambda n: frames.MAGIC + b"\xff\x03\x00\x00" if n == 0 else b"\x00",
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("kind", BUSY)
async def test_who_does_not_authenticate_is_closed_whatever_it_sends(
    kind: str, users: AuthenticationSettings, quick_sweeps: None
) -> None:
    with WorkerHarness() as harness:
        async with served(
            harness, authentication=users, hello_timeout_ms=300, frame_timeout_ms=60_000
        ) as bookie:
            known = await authenticated(bookie)
            before = harness.counter(HELLO_TIMEOUTS)
            stranger = await bookie.connect()
            async with sending(stranger, BUSY[kind]):
                await until(lambda: harness.counter(HELLO_TIMEOUTS) == before + 1)
            await until(lambda: len(bookie.network.connections) == 1)
            known.send(apache.v3_read(9, 0))  # it has no such deadline
            await bookie.take_request()
            await known.close()


async def test_where_nobody_has_to_authenticate_a_connection_may_rest(quick_sweeps: None) -> None:
    with WorkerHarness() as harness:
        async with served(harness, hello_timeout_ms=50) as bookie:
            silent, quiet = await bookie.connect(), await bookie.connect()
            quiet.send(apache.v3_read(1, 0))
            await bookie.take_request()
            wakes = counted(harness, "WAKES")
            await until(lambda: counted(harness, "WAKES") > wakes + 10)
            assert len(bookie.network.connections) == 2
            for client in (silent, quiet):
                await client.close()


async def test_they_hold_a_quarter_of_all_connections(users: AuthenticationSettings) -> None:
    """However many they are and whatever they send, who authenticates finds room for all the others."""
    with WorkerHarness() as harness:
        async with served(harness, authentication=users, connections_max=16) as bookie:
            strangers = [await bookie.connect() for _ in range(40)]
            for number, stranger in enumerate(strangers):
                stranger.send(apache.v3_read(number, 0))
            known = []
            for number in range(12):
                client = await bookie.connect()
                if number % 2:
                    assert await in_v3(client, "writer", "of writer") == EOK
                else:
                    assert (await log_in(client, "writer", "of writer"))[0] == OK
                known.append(client)
                strangers.append(await bookie.connect())
            await until(lambda: len(bookie.network.connections) <= 16)
            assert counted(harness, "CONNECTIONS_REFUSED") == 0
            assert harness.counter(UNAUTHENTICATED_CLOSED) >= 40
            for client in known[1::2]:
                client.send(apache.v3_read(9, 0))
                await bookie.take_request()
            for client in (*known, *strangers):
                await client.close()


async def test_the_address_with_the_most_loses_its_oldest(users: AuthenticationSettings) -> None:
    with WorkerHarness() as harness:
        async with served(harness, authentication=users, connections_max=16) as bookie:
            other = await dialled(bookie, "127.0.0.9")
            strangers = [await bookie.connect() for _ in range(3)]
            await until(lambda: len(bookie.network.connections) == 4)
            strangers += [await bookie.connect() for _ in range(2)]
            for stranger in strangers[:2]:
                await stranger.is_closed()
            assert harness.counter(UNAUTHENTICATED_CLOSED) == 2
            assert await in_v3(other, "writer", "of writer") == EOK
            assert await in_v3(strangers[2], "writer", "of writer") == EOK
            for client in (other, *strangers):
                await client.close()


# ------------------------------------------------------------------ handshakes


async def dialled(bookie: Served, source: str) -> Client:
    """Connect from another of this machine's addresses."""
    return Client(*await asyncio.open_connection("127.0.0.1", bookie.port, local_addr=(source, 0)))


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return the first record of a client's handshake."""
    out = ssl.MemoryBIO()
    side = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return out.read()


class Waiting:
    """A connection, as far as turns are concerned."""

    def __init__(self, address: str) -> None:
        self.address = address


def test_addresses_take_turns() -> None:
    turns, order = Turns(), []
    waiting = [Waiting(address) for address in "aaaabbc"]
    for number, one in enumerate(waiting):
        turns.add(one, lambda number=number: order.append(number))  # type: ignore[arg-type, misc]
    turns.remove(waiting[1])  # type: ignore[arg-type]
    while (begin := turns.next()) is not None:
        begin()
    assert order == [0, 4, 6, 2, 5, 3]
    turns.remove(waiting[0])  # type: ignore[arg-type]
    assert turns.next() is None


async def test_an_address_that_wants_many_handshakes_holds_up_itself_alone(
    authority: Authority, issued: Issued
) -> None:
    """At five a second the forty that came first need eight seconds; another address has the next turn."""
    context = trusting(authority)
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued, handshakes_rate=5)) as bookie:
            loop = asyncio.get_running_loop()
            flood = [await dialled(bookie, "127.0.0.9") for _ in range(40)]
            for one in flood:
                one.send(client_hello(context))
            await until(
                lambda: (
                    sum(one.opening is not None for one in bookie.network.connections.values()) >= 5
                )
            )
            began_s = loop.time()
            client = await secure(bookie, context)
            await greet(client)
            assert loop.time() - began_s < 2.0
            for one in (*flood, client):
                await one.close()


@pytest.mark.parametrize(
    "sent", [b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00\x01more"]
)
@pytest.mark.uvloop_too
async def test_part_of_a_client_hello_takes_no_turn(
    sent: bytes, authority: Authority, issued: Issued
) -> None:
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued, handshakes_rate=1)) as bookie:
            loop = asyncio.get_running_loop()
            flood = [await bookie.connect() for _ in range(30)]
            for one in flood:
                one.send(sent)
            await until(
                lambda: (
                    sum(one.awaited_bytes > 1 for one in bookie.network.connections.values()) == 30
                )
            )
            began_s = loop.time()
            client = await secure(bookie, trusting(authority))
            await greet(client)
            assert loop.time() - began_s < 1.0
            for one in (*flood, client):
                await one.close()
            await until(lambda: not bookie.network.connections)


@pytest.mark.uvloop_too
async def test_a_client_hello_in_pieces_is_taken(authority: Authority, issued: Issued) -> None:
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued)) as bookie:
            client = await bookie.connect()
            hello = client_hello(trusting(authority))
            for piece, awaited in ((hello[:1], 6), (hello[1:-1], len(hello))):
                client.send(piece)
                await until(
                    lambda n=awaited: (
                        [c.awaited_bytes for c in bookie.network.connections.values()] == [n]
                    )
                )
            client.send(hello[-1:])
            assert (await client.reader.readexactly(1)) == b"\x16", (
                "the server's part of the handshake"
            )
            await client.close()


@pytest.mark.parametrize("sent", [b"\x16", b"\x16\x03\x01\x02\x00\x01more"])
@pytest.mark.uvloop_too
async def test_who_ends_in_the_middle_of_a_client_hello_is_gone(
    sent: bytes, issued: Issued
) -> None:
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued), hello_timeout_ms=60_000) as bookie:
            client = await bookie.connect()
            client.send(sent)
            await until(
                lambda: any(one.awaited_bytes > 1 for one in bookie.network.connections.values())
            )
            client.writer.write_eof()
            await until(lambda: not bookie.network.connections)
            await client.close()


@pytest.mark.uvloop_too
async def test_an_upgrade_waits_for_its_turn_as_any_handshake(
    authority: Authority, issued: Issued
) -> None:
    """At two a second the five last the second and a half that three of them wait for."""

    async def upgraded(bookie: Served) -> Client:
        client = await bookie.connect()
        client.send(apache.v3_start_tls(1))
        assert (await hear_v3(client)).status == EOK
        await client.writer.start_tls(trusting(authority), server_hostname="127.0.0.1")
        client.send(apache.v3_read(9, 0))
        return client

    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued, handshakes_rate=2)) as bookie:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            clients = await asyncio.gather(*(upgraded(bookie) for _ in range(5)))
            for _ in clients:
                await bookie.take_request()
            assert loop.time() - began_s >= 1.0
            for client in clients:
                await client.close()
            assert counted(harness, "TLS_HANDSHAKES") == 5
