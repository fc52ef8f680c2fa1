"""What writers that share a connection send in one turn of the loop leaves together, whole and in order."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.client.connection import (
    GATHERED_BYTES_EACH,
    GATHERED_BYTES_MAX,
    KEEPALIVE_IDLE_S,
    Connection,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_S = 20


class Counting:
    """A real transport whose writes are counted."""

    def __init__(self, transport: Any) -> None:
        self.sizes: list[int] = []
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Received:
    """A peer that keeps what it hears."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = asyncio.Event()

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while some := await reader.read(1 << 16):
            self.data += some
        self.ended.set()
        writer.close()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, Counting, Received]]:
    received = Received()
    server = await asyncio.start_server(received.hear, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Connection({}, lambda reason: None, lambda: None)
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    counting = Counting(connection._transport)
    connection._transport = counting  # type: ignore[assignment]
    try:
        yield connection, counting, received
    finally:
        connection.close()
        async with asyncio.timeout(PATIENCE_S):
            await connection.closed
            await received.ended.wait()
        server.close()
        await server.wait_closed()


async def test_many_frames_of_one_turn_are_few_writes_in_their_order() -> None:
    frames = [b"%06d" % at * 10 for at in range(1000)]
    async with connected() as (connection, counting, received):
        for frame in frames:
            connection.write(frame)
        assert counting.sizes == [60], "the first one leaves at once, the others with the turn"
        await asyncio.sleep(0)
        assert len(counting.sizes) == 2
        connection.write(b"alone")
        assert counting.sizes[-1] == 5, "each turn's first one leaves at once"
    assert bytes(received.data) == b"".join(frames) + b"alone"


@pytest.mark.parametrize("size", [GATHERED_BYTES_EACH - 1, GATHERED_BYTES_EACH, 300_000])
async def test_large_ones_wait_for_nothing_and_pass_nobody(size: int) -> None:
    frames = [bytes([at]) * (100 if at % 2 else size) for at in range(20)]
    async with connected() as (connection, counting, received):
        for frame in frames:
            connection.write(frame)
        waiting = sum(map(len, frames)) - sum(counting.sizes)
        assert waiting < GATHERED_BYTES_MAX
    assert bytes(received.data) == b"".join(frames)


async def test_what_was_written_leaves_before_the_connection_is_closed() -> None:
    async with connected() as (connection, _, received):
        connection.write(b"first")
        connection.write(b"second")
        connection.close()
    assert bytes(received.data) == b"firstsecond"


async def test_nothing_is_sent_behind_an_abort() -> None:
    async with connected() as (connection, counting, _):
        connection.write(b"first")
        connection.write(b"second")
        connection.abort("enough")
        await connection.closed
        connection.write(b"third")
        assert counting.sizes == [5] or counting.sizes == [5, 6]


@pytest.mark.parametrize("size", [100, GATHERED_BYTES_EACH])
async def test_nothing_is_written_to_a_transport_that_failed(size: int) -> None:
    """The loop would complain of each such write until it tells of the failure, with its next turn."""
    async with connected() as (connection, counting, _):
        connection.write(b"first")
        counting._transport._fatal_error(BrokenPipeError())
        for _ in range(20):
            connection.write(bytes(size))
        await connection.closed
        assert counting.sizes == [5]


async def test_the_kernel_probes_a_connection_that_is_silent() -> None:
    """A tail that waits sends nothing for half a minute: a host that is gone has to be found all the same."""
    async with connected() as (connection, _, _):
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE_S
