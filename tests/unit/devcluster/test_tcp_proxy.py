"""What one side of a proxied connection does reaches the other side: data, an end, a reset."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fastbk.devcluster.faults import TcpProxy

WAIT_S = 10.0
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client and the server behind the proxy, connected, both in use."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        TcpProxy(f"127.0.0.1:{listener.getsockname()[1]}") as proxy,
        socket.create_connection((proxy.host, proxy.port), WAIT_S) as client,
    ):
        server, _ = listener.accept()
        server.settimeout(WAIT_S)
        with server:
            # Both threads of the connection run, and then wait for more.
            client.sendall(b"ping")
            assert server.recv(16) == b"ping"
            server.sendall(b"pong")
            assert client.recv(16) == b"pong"
            yield client, server


@pytest.mark.parametrize("is_server", [True, False], ids=["server", "client"])
def test_a_reset_of_one_end_is_the_end_for_the_other(
    ends: tuple[socket.socket, socket.socket], is_server: bool
) -> None:
    client, server = ends
    one, other = (server, client) if is_server else (client, server)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one.close()
    with suppress(ConnectionResetError):
        assert other.recv(16) == b""


def test_the_end_of_one_direction_leaves_the_other(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, server = ends
    client.shutdown(socket.SHUT_WR)
    assert server.recv(16) == b""
    server.sendall(b"more")
    assert client.recv(16) == b"more"
    server.close()
    assert client.recv(16) == b""
